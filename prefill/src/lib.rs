//! The prefill service: turns prompts into KV cache, and hands it to decode nodes while it is being computed.
//!
//! A decode node opens a stream a request (`proto/kvrail/v1/prefill.proto` has the order of messages). The request gets a
//! place in the line or a typed refusal; when it is its turn, it asks for a lease and is computed chunk by chunk; each layer
//! of each chunk is written into the lease as it completes; the first token goes back as soon as it is sampled.
//!
//! Laws this crate serves:
//! - *The executor waits for nobody*: the step thread publishes states and submits what can go at once; all waiting (leases,
//!   peers, the wire, slow readers) happens in couriers, one task a request.
//! - *A late write never lands* (law 2): blocks are let go of only when no transfer can read them any more.
//! - *Everything is bounded* (law 7): the line by requests and tokens, replies by count, progress by being a state.
//! - *Policy is pure* (law 8): [`schedule`] and [`handoff`] see neither clock nor socket.
//! - When a request ends, however it ends, all that it held goes back: its blocks stay only as cache.
//!
//! Map: [`config`] what the service is told · [`schedule`] who is computed next · [`handoff`] what of the KV is sent next ·
//! `queue` the line between tasks and the step thread · `job` one request, and its blocks · `step` the step thread ·
//! `dispatch` the hand-over to the transfer engine · `courier` a request's way to the decode node · `service` the gRPC door ·
//! `shared`, `stats` what they share and count.

#![forbid(unsafe_code)]

pub mod config;
mod courier;
mod dispatch;
pub mod handoff;
mod job;
mod queue;
pub mod schedule;
mod service;
mod shared;
mod stats;
mod step;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use kvrail_node::serve::{self, Ready, Shutdown};
use kvrail_node::{BoundAddresses, Node, NodeError, Started};
use kvrail_proto::v1::prefill_server::PrefillServer;
use tonic::service::Routes;

pub use config::PrefillConfig;

/// Runs a prefill node until `shutdown` resolves with the time that running requests get, then drains it. `ready` is called
/// when requests are served.
///
/// # Errors
/// [`NodeError`] if a part cannot start, or breaks.
pub fn run<'a>(
    config: PrefillConfig,
    ready: impl FnOnce(&BoundAddresses) + Send + 'a,
    shutdown: impl Future<Output = Duration> + Send + 'a,
) -> BoxFuture<'a, Result<(), NodeError>> {
    boxed(config, Box::new(ready), Box::pin(shutdown))
}

fn boxed<'a>(config: PrefillConfig, ready: Ready<'a>, shutdown: Shutdown<'a>) -> BoxFuture<'a, Result<(), NodeError>> {
    Box::pin(run_here(config, ready, shutdown))
}

async fn run_here(config: PrefillConfig, ready: Ready<'_>, shutdown: Shutdown<'_>) -> Result<(), NodeError> {
    let Started { node, executor, sockets } = Node::start(config.node.clone()).await?;
    let message_bytes_max = config.node.grpc.message_bytes_max;
    let shared = Arc::new(shared::Shared::new(node.clone(), config));
    let steps = step::spawn(Arc::clone(&shared), executor)
        .map_err(|error| NodeError::Service(format!("the step thread: {error}")))?;
    let service = PrefillServer::new(service::PrefillService::new(Arc::clone(&shared)))
        .max_decoding_message_size(message_bytes_max)
        .max_encoding_message_size(message_bytes_max);
    let routes = Routes::new(service);
    let result = serve::run(node, sockets, routes, Arc::clone(&shared) as _, ready, shutdown).await;
    shared.queue.stop();
    // Ends with its step; a panic has been told to the node already.
    let _ = tokio::task::spawn_blocking(move || steps.join()).await;
    result
}
