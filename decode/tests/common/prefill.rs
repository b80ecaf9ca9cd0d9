//! A real prefill node on a runtime of its own, so that it can be killed.

use std::time::Duration;

use kvrail_node::{BoundAddresses, ModelSource, NodeConfig, PoolSize, Role};
use kvrail_prefill::PrefillConfig;
use kvrail_proto::v1;
use kvrail_transfer::TransportKind;
use serde_json::Value;
use tokio::sync::oneshot;

pub struct Prefill {
    pub at: BoundAddresses,
    node_id: String,
    runtime: Option<tokio::runtime::Runtime>,
}

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
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
        let (ready, is_ready) = oneshot::channel();
        runtime.spawn(async move {
            let ready = move |at: &BoundAddresses| ready.send(*at).expect("the test waits");
            kvrail_prefill::run(PrefillConfig::new(node), ready, std::future::pending()).await
        });
        let at = is_ready.await.expect("ready");
        Self { at, node_id: node_id.into(), runtime: Some(runtime) }
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

    /// Its tasks and sockets are gone in mid-sentence.
    pub fn kill(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for Prefill {
    fn drop(&mut self) {
        self.kill();
    }
}
