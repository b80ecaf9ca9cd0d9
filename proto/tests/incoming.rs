//! A server without file descriptors waits for them; alone in its process, whose limit it lowers.

use std::time::Duration;

use futures::StreamExt;
use kvrail_proto::incoming::{Limits, incoming};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

fn cpu_time() -> Duration {
    clock_gettime(ClockId::ProcessCPUTime).try_into().unwrap()
}

#[tokio::test]
async fn accept_errors_burn_nothing_and_pass() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let _peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let mut incoming = Box::pin(incoming(listener, Limits::default()));

    let before = getrlimit(Resource::Nofile);
    // What is open stays open; any new descriptor is one too many.
    setrlimit(Resource::Nofile, Rlimit { current: Some(3), ..before }).unwrap();
    let started = cpu_time();
    assert!(timeout(Duration::from_secs(1), incoming.next()).await.is_err(), "nothing could be accepted");
    let burnt = cpu_time() - started;
    assert!(burnt < Duration::from_millis(300), "{burnt:?} of a second");

    setrlimit(Resource::Nofile, before).unwrap();
    assert!(timeout(Duration::from_secs(30), incoming.next()).await.expect("not accepted").is_some());
}
