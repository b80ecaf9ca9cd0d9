//! The OpenAI endpoint, a process of its own: it knows the model's text, holds each stream's tokens, and outlives both
//! the conductor and any node.
//!
//! Laws:
//! - A field that is not implemented is refused by name, never ignored; so is one that nobody knows.
//! - Before the first byte a client gets an HTTP error in OpenAI's shape, after it an `error` event and then neither a
//!   finish reason nor `[DONE]`.
//! - The [`journal`] of a choice is the only truth: a node that breaks, falls silent or contradicts it is left for another,
//!   which forces the journal. No token is repeated, lost or changed.
//! - Everything is bounded: body, time, prompt, choices, requests, connections, events in flight, moves of a stream.
//!
//! Map: `routes` from HTTP to a running request · `body`, `json`, `request`, `fields` reading it · [`auth`] keys and tenants ·
//! `pool` members, routing and its fallback, channels (`view` is its pure part) · `drive` one choice over as many nodes as
//! it takes · [`journal`] its tokens · [`transcript`] their text · `answer`, `render` what goes back · [`error`] what does
//! when it fails · `state` what requests share.

mod answer;
pub mod auth;
mod body;
mod config;
mod drive;
pub mod error;
mod fields;
pub mod journal;
mod json;
mod pool;
mod render;
mod request;
mod routes;
mod state;
pub mod transcript;
mod view;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use crate::http;
use crate::service::{ServeError, bind};
use state::Gateway;

pub use auth::ApiKey;
pub use config::GatewayConfig;

/// Time for the errors of requests that had to end, to clients that read them.
const FAREWELL_MAX: Duration = Duration::from_secs(2);

/// Serves until `shutdown` resolves with the time that open requests get; those that need longer end with an error.
/// `ready` is called once, when the listener stands.
///
/// # Errors
/// [`ServeError`] if the address is taken or the conductor's cannot be.
pub fn serve_gateway<'a>(
    config: GatewayConfig,
    ready: impl FnOnce(SocketAddr) + Send + 'a,
    shutdown: impl Future<Output = Duration> + Send + 'a,
) -> BoxFuture<'a, Result<(), ServeError>> {
    boxed(config, Box::new(ready), Box::pin(shutdown))
}

type Ready<'a> = Box<dyn FnOnce(SocketAddr) + Send + 'a>;
type Shutdown<'a> = BoxFuture<'a, Duration>;

/// Keeps the gateway from being compiled again in everything that runs one.
fn boxed<'a>(config: GatewayConfig, ready: Ready<'a>, shutdown: Shutdown<'a>) -> BoxFuture<'a, Result<(), ServeError>> {
    Box::pin(serve_here(config, ready, shutdown))
}

async fn serve_here(config: GatewayConfig, ready: Ready<'_>, shutdown: Shutdown<'_>) -> Result<(), ServeError> {
    let (listener, address) = bind(config.http).await?;
    let reason = |e: tonic::transport::Error| ServeError::Config {
        field: "conductor",
        reason: format!("`{}` is not host:port ({e})", config.conductor),
    };
    let gateway = Arc::new(Gateway::new(config.clone()).map_err(reason)?);
    let (stop, cut) = (CancellationToken::new(), CancellationToken::new());
    // Whatever way this ends, the server ends too.
    let _guards = (stop.clone().drop_guard(), cut.clone().drop_guard());
    let router = routes::router(Arc::clone(&gateway));
    let open = gateway.meters.connections();
    let mut server = tokio::spawn(http::serve(listener, router, config.server, open, stop.clone(), cut.clone()));

    tracing::info!(http = %address, conductor = %config.conductor, model = %config.model, "gateway serving");
    ready(address);
    let follow = gateway.pool.follow();
    let mut follow = std::pin::pin!(follow);
    let drain_max = tokio::select! {
        drain_max = shutdown => drain_max,
        () = &mut follow => Duration::ZERO,
        _ = &mut server => return Ok(()),
    };
    // New requests are refused with a word and `/readyz` says so, which balancers can only hear while the listener stands.
    gateway.drain();
    // Streams that move while the gateway drains need the members too.
    let drained = tokio::select! {
        () = gateway.idle() => true,
        _ = &mut server => return Ok(()),
        () = &mut follow => false,
        () = tokio::time::sleep(drain_max) => false,
    };
    if !drained {
        tracing::warn!(requests = gateway.requests_open(), "the drain took too long; ending what is open");
        gateway.end_requests();
    }
    stop.cancel();
    if tokio::time::timeout(FAREWELL_MAX, &mut server).await.is_err() {
        cut.cancel();
        let _ = server.await;
    }
    Ok(())
}
