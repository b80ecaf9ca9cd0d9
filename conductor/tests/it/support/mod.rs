//! A cluster in one process, and a client for it.

pub mod client;
pub mod node;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use kvrail_conductor::{ConductorAddresses, ConductorConfig, GatewayConfig, serve_conductor, serve_gateway};
use kvrail_text::TextModel;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

pub use client::{get, post, post_stream};
pub use node::{FakeNode, Fault, Play, Script, node_info};

pub const MODEL: &str = "mock";

/// Waits until `check` holds; fails the test after 10 s.
pub async fn eventually(what: &str, mut check: impl AsyncFnMut() -> bool) {
    for _ in 0..1000 {
        if check().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never: {what}");
}

/// A service on a runtime of its own, so that it can be killed like a process.
pub struct Process {
    runtime: Option<Runtime>,
    stop: Option<oneshot::Sender<Duration>>,
    ended: Option<oneshot::Receiver<()>>,
}

impl Process {
    pub fn start<F: Future<Output = ()> + Send + 'static>(body: impl FnOnce(oneshot::Receiver<Duration>) -> F) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (stop, stopped) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let future = body(stopped);
        runtime.spawn(async move {
            future.await;
            let _ = end.send(());
        });
        Self { runtime: Some(runtime), stop: Some(stop), ended: Some(ended) }
    }

    /// All of it stops at once: tasks are dropped, sockets break.
    pub fn kill(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }

    /// Asks it to stop and waits until it has.
    pub async fn stop(&mut self) {
        drop(self.stop.take());
        if let Some(ended) = self.ended.take() {
            let _ = ended.await;
        }
    }

    pub fn ask_to_stop(&mut self) {
        drop(self.stop.take());
    }

    /// Asks it to stop; what is open may take so long to end.
    pub fn ask_to_stop_within(&mut self, drain_max: Duration) {
        let _ = self.stop.take().map(|stop| stop.send(drain_max));
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

pub struct Conductor {
    pub process: Process,
    pub addresses: ConductorAddresses,
}

pub async fn conductor(config: ConductorConfig) -> Conductor {
    let (ready, addresses) = oneshot::channel();
    let process = Process::start(|stop| async move {
        let shutdown = async {
            let _ = stop.await;
        };
        serve_conductor(config, |addresses| ready.send(*addresses).unwrap(), shutdown).await.unwrap();
    });
    Conductor { process, addresses: addresses.await.unwrap() }
}

/// Short leases, free ports.
pub fn conductor_config() -> ConductorConfig {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut config = ConductorConfig { grpc: any, admin: any, ..ConductorConfig::default() };
    config.core.lease = Duration::from_millis(1000);
    config.publish_interval = Duration::from_millis(10);
    config
}

pub struct Gateway {
    pub process: Process,
    pub address: SocketAddr,
}

pub async fn gateway(config: GatewayConfig) -> Gateway {
    let (ready, address) = oneshot::channel();
    let process = Process::start(|stop| async move {
        let shutdown = async { stop.await.unwrap_or(Duration::from_secs(30)) };
        serve_gateway(config, |address| ready.send(address).unwrap(), shutdown).await.unwrap();
    });
    Gateway { process, address: address.await.unwrap() }
}

/// Short time-outs, a free port.
pub fn gateway_config(conductor: SocketAddr) -> GatewayConfig {
    let mut config = GatewayConfig::new(conductor.to_string(), MODEL, TextModel::mock(300).unwrap());
    config.http = SocketAddr::from(([127, 0, 0, 1], 0));
    config.silence_max = Duration::from_millis(800);
    config.body_timeout = Duration::from_millis(500);
    config.migration_wait = Duration::from_secs(3);
    config.request_timeout = Duration::from_secs(20);
    config
}

/// A conductor, a gateway and decode nodes named `d0`, `d1`, …, ready to serve.
pub struct Cluster {
    pub conductor: Conductor,
    pub gateway: Gateway,
    pub nodes: Vec<FakeNode>,
    pub play: Arc<Play>,
}

impl Cluster {
    pub async fn start(script: Script, nodes: usize) -> Self {
        Self::start_with(script, nodes, |_| {}).await
    }

    pub async fn start_with(script: Script, nodes: usize, change: impl FnOnce(&mut GatewayConfig)) -> Self {
        let conductor = conductor(conductor_config()).await;
        let play = Play::new(script);
        let mut running = Vec::new();
        for at in 0..nodes {
            running.push(FakeNode::start(&format!("d{at}"), conductor.addresses.grpc, Arc::clone(&play)).await);
        }
        let mut config = gateway_config(conductor.addresses.grpc);
        change(&mut config);
        let gateway = gateway(config).await;
        let cluster = Self { conductor, gateway, nodes: running, play };
        cluster.sees(nodes).await;
        cluster
    }

    /// Waits until the gateway knows that many nodes.
    pub async fn sees(&self, nodes: usize) {
        eventually("the gateway sees the nodes", async || {
            let status = get(self.gateway.address, "/status").await.json();
            status["members"].as_array().unwrap().iter().filter(|m| m["known_to_conductor"] == true).count() == nodes
        })
        .await;
    }

    /// The next request, wherever it goes, meets this.
    pub fn plan(&self, fault: Fault) {
        self.play.faults.lock().push_back(fault);
    }

    pub fn http(&self) -> SocketAddr {
        self.gateway.address
    }

    /// Streams being generated, on all nodes.
    pub fn active(&self) -> usize {
        self.nodes.iter().map(FakeNode::active).sum()
    }
}
