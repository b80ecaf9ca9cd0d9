//! A node's life with a service that does nothing: start, admin endpoint, drain, stop.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kvrail_engine::BlockId;
use kvrail_engine::mock::MockOptions;
use kvrail_node::serve::{self, Service};
use kvrail_node::{ModelSource, Node, NodeConfig, NodeError, PoolSize, Role};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tonic::service::Routes;

#[derive(Default)]
struct Nothing {
    aborted: AtomicBool,
}

impl Service for Nothing {
    fn status(&self, status: &mut serde_json::Map<String, Value>) {
        status.insert("requests".into(), json!({"running": 0, "queued": 0}));
    }
    fn refresh_metrics(&self) {}
    fn abort(&self) {
        self.aborted.store(true, Ordering::Relaxed);
    }
}

fn config() -> NodeConfig {
    NodeConfig::local("n0", Role::Decode, ModelSource::Mock(MockOptions::default()), PoolSize::Blocks(16))
}

async fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.expect("listens");
    let request = format!("GET {path} HTTP/1.1\r\nhost: n\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("text");
    let status = answer.split(' ').nth(1).and_then(|s| s.parse().ok()).expect("a status line");
    (status, answer.split_once("\r\n\r\n").expect("a body").1.to_owned())
}

#[tokio::test]
async fn a_node_tells_how_it_is_and_drains() {
    let started = Node::start(config()).await.expect("starts");
    let node = started.node.clone();
    assert_eq!(node.info().namespace_id, node.namespace("").id());
    assert_ne!(node.namespace("tenant").id(), node.namespace("").id());

    // The pool and the region are the same memory.
    let block = node.kv().format().block_bytes();
    node.kv().write(BlockId(3), 5, b"kv");
    let mut bytes = [0; 2];
    node.region().read(3 * block + 5, &mut bytes);
    assert_eq!(&bytes, b"kv");

    let service = Arc::new(Nothing::default());
    let (stop, stopped) = oneshot::channel::<()>();
    let (ready, is_ready) = oneshot::channel();
    let running = tokio::spawn(serve::run(
        node.clone(),
        started.sockets,
        Routes::default(),
        Arc::clone(&service) as _,
        Box::new(move |at| ready.send(*at).expect("the test waits")),
        Box::pin(async {
            stopped.await.expect("told");
            Duration::from_millis(50)
        }),
    ));
    let at = is_ready.await.expect("ready");
    assert_eq!(get(at.admin, "/healthz").await.0, 200);
    assert_eq!(get(at.admin, "/readyz").await.0, 200);
    let status: Value = serde_json::from_str(&get(at.admin, "/status").await.1).expect("JSON");
    assert_eq!(status["blocks"]["free"], 16);
    assert_eq!(status["role"], "decode");
    assert_eq!(status["leases"], 0);
    assert_eq!(status["shm_fallbacks"], json!({"private_memory": 0, "other_user": 0, "not_opened": 0, "staged": 0}));
    assert_eq!((&status["sessions"]["open"], &status["sessions"]["rejected"]["version"]), (&json!(0), &json!(0)));
    let metrics = get(at.admin, "/metrics").await.1;
    assert!(metrics.contains("kvrail_kv_blocks{state=\"free\"} 16"), "{metrics}");
    assert!(metrics.contains("kvrail_transfer_fallbacks_total{reason=\"private_memory\"} 0"), "{metrics}");

    let request = node.drain().enter().expect("serving");
    stop.send(()).expect("running");
    node.drain().begun().await;
    assert_eq!(get(at.admin, "/readyz").await.0, 503);
    assert_eq!(get(at.admin, "/healthz").await.0, 200);
    while !service.aborted.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(request);
    running.await.expect("no panic").expect("a clean end");
    assert!(TcpStream::connect(at.admin).await.is_err(), "nothing is left listening");
}

#[tokio::test]
async fn a_service_that_fails_ends_the_node_with_its_reason() {
    let started = Node::start(config()).await.expect("starts");
    started.node.fail("the step loop panicked");
    let end = serve::run(
        started.node,
        started.sockets,
        Routes::default(),
        Arc::new(Nothing::default()),
        Box::new(|_| {}),
        Box::pin(std::future::pending()),
    );
    let error = end.await.expect_err("failed");
    assert!(matches!(error, NodeError::Service(reason) if reason.contains("step loop")));
}

#[tokio::test]
async fn a_wildcard_address_needs_a_name() {
    let mut config = config();
    config.grpc_listen = SocketAddr::from(([0, 0, 0, 0], 0));
    let Err(error) = Node::start(config.clone()).await else { panic!("nobody could reach it") };
    assert!(matches!(error, NodeError::Config(_)), "{error}");
    config.advertise_host = Some("node-7.pool".into());
    let node = Node::start(config).await.expect("starts").node;
    assert!(node.info().grpc_address.starts_with("node-7.pool:"));
}
