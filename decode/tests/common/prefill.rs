//! A real prefill node on a runtime of its own, so that it can be killed.

use std::time::Duration;

use kvrail_node::{BoundAddresses, ModelSource, NodeConfig, NodeError, PoolSize, Role};
use kvrail_prefill::PrefillConfig;
use kvrail_proto::v1;
use kvrail_transfer::TransportKind;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub struct Prefill {
    pub at: BoundAddresses,
    node_id: String,
    running: Option<(tokio::runtime::Runtime, Serving)>,
}

/// How a node is told to go, and what ends when it has gone.
type Serving = (oneshot::Sender<Duration>, JoinHandle<Result<(), NodeError>>);

/// Threads of a node's runtime.
const THREADS: usize = 2;

impl Prefill {
    pub async fn start(node_id: &str, transports: Vec<TransportKind>) -> Self {
        Self::start_with(node_id, super::model(), transports).await
    }

    pub async fn start_with(
        node_id: &str,
        model: kvrail_engine::mock::MockOptions,
        transports: Vec<TransportKind>,
    ) -> Self {
        let mut node = NodeConfig::local(node_id, Role::Prefill, ModelSource::Mock(model), PoolSize::Blocks(512));
        node.transfer.transports = transports;
        Self::start_node(node).await
    }

    pub async fn start_node(node: NodeConfig) -> Self {
        let node_id = node.node_id.clone();
        let builder = tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).enable_all().build();
        let runtime = builder.expect("a runtime");
        let (ready, is_ready) = oneshot::channel();
        let (shutdown, stopped) = oneshot::channel();
        let serving = runtime.spawn(async move {
            let ready = move |at: &BoundAddresses| ready.send(*at).expect("the test waits");
            // A node that is dropped is killed, not drained.
            let stopped = async {
                match stopped.await {
                    Ok(drain_max) => drain_max,
                    Err(_) => std::future::pending().await,
                }
            };
            kvrail_prefill::run(PrefillConfig::new(node), ready, stopped).await
        });
        let at = is_ready.await.expect("ready");
        Self { at, node_id, running: Some((runtime, (shutdown, serving))) }
    }

    pub fn choice(&self) -> v1::PrefillChoice {
        v1::PrefillChoice { node_id: self.node_id.clone(), grpc_address: self.at.grpc.to_string() }
    }

    pub async fn status(&self) -> Value {
        serde_json::from_str(&super::get(self.at.admin, "/status").await).expect("JSON")
    }

    /// Every counter of things held returns to zero.
    pub async fn wait_idle(&self) {
        for _ in 0..1000 {
            if super::is_idle(&self.status().await) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("rest did not come: {}", self.status().await);
    }

    /// Its tasks stand still for so long, while its transfer engine goes on: what it decided before happens, and what it should
    /// hear it hears late.
    pub fn stall(&self, how_long: Duration) {
        for _ in 0..THREADS {
            let (runtime, _) = self.running.as_ref().expect("not killed");
            runtime.spawn(async move { std::thread::sleep(how_long) });
        }
    }

    /// Drains it.
    pub async fn stop(mut self) {
        let (runtime, (shutdown, serving)) = self.running.take().expect("not killed");
        shutdown.send(super::DRAIN_MAX).expect("it runs");
        serving.await.expect("no panic").expect("a clean end");
        runtime.shutdown_background();
    }

    /// Its tasks and sockets are gone in mid-sentence. Its engine's threads stay, like a peer's that nobody can reach any more:
    /// what they still hold they may still send.
    pub fn kill(&mut self) {
        if let Some((runtime, _)) = self.running.take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for Prefill {
    fn drop(&mut self) {
        self.kill();
    }
}
