//! The service as a process runs it.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use kvrail_node::serve::{self as life, Ready, Shutdown};
use kvrail_node::{BoundAddresses, Node, NodeError, Role};
use kvrail_proto::v1::decode_server::DecodeServer;
use tonic::service::Routes;

use crate::config::DecodeConfig;
use crate::core::Core;
use crate::service::DecodeService;
use crate::steps;

/// Loads the model and serves until `shutdown` resolves with the time that running requests get, and then until they have
/// ended or that time is over.
///
/// `ready` is called once, with the addresses, when requests are served.
///
/// # Errors
/// [`NodeError`] if the node does not start, a server breaks or the step loop panics.
pub fn serve<'a>(
    config: DecodeConfig,
    ready: impl FnOnce(&BoundAddresses) + Send + 'a,
    shutdown: impl Future<Output = Duration> + Send + 'a,
) -> BoxFuture<'a, Result<(), NodeError>> {
    boxed(config, Box::new(ready), Box::pin(shutdown))
}

fn boxed<'a>(config: DecodeConfig, ready: Ready<'a>, shutdown: Shutdown<'a>) -> BoxFuture<'a, Result<(), NodeError>> {
    Box::pin(serve_here(config, ready, shutdown))
}

async fn serve_here(config: DecodeConfig, ready: Ready<'_>, shutdown: Shutdown<'_>) -> Result<(), NodeError> {
    if config.node.role != Role::Decode {
        return Err(NodeError::Config("the decode service needs a node of the decode role".into()));
    }
    let started = Node::start(config.node.clone()).await?;
    let node = started.node;
    let core = Core::new(node.clone(), config);
    let thread = steps::spawn(Arc::clone(&core), started.executor)
        .map_err(|error| NodeError::Service(format!("no thread for the step loop: {error}")))?;
    let service = DecodeService::new(Arc::clone(&core));
    let bytes = node.config().grpc.message_bytes_max;
    let server = DecodeServer::new(service.clone()).max_decoding_message_size(bytes).max_encoding_message_size(bytes);

    let result = life::run(node, started.sockets, Routes::new(server), Arc::new(service), ready, shutdown).await;
    core.stop();
    // At most one step; a panic in it was told by the node's failure.
    let _ = tokio::task::spawn_blocking(move || thread.join()).await;
    result
}
