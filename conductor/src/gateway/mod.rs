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
//! Map: `routes` from HTTP to a running request · `body`, `request`, `fields` reading it · [`auth`] keys and tenants ·
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
mod pool;
mod render;
mod request;
mod routes;
mod state;
pub mod transcript;
mod view;

use std::net::SocketAddr;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::http;
use crate::service::{ServeError, bind};
use state::Gateway;

pub use auth::ApiKey;
pub use config::GatewayConfig;

/// Serves until `shutdown` resolves, then lets open requests end; `ready` is called once, when the listener stands.
///
/// # Errors
/// [`ServeError`] if the address is taken or the conductor's cannot be.
pub async fn serve_gateway(
    config: GatewayConfig,
    ready: impl FnOnce(SocketAddr),
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let (listener, address) = bind(config.http).await?;
    let reason = |e: tonic::transport::Error| ServeError::Config {
        field: "conductor",
        reason: format!("`{}` is not host:port ({e})", config.conductor),
    };
    let gateway = Arc::new(Gateway::new(config.clone()).map_err(reason)?);
    let stop = CancellationToken::new();
    // Whatever way this ends, the server ends too.
    let _guard = stop.clone().drop_guard();
    let router = routes::router(Arc::clone(&gateway));
    let drain_max = config.drain_max;
    let mut server = tokio::spawn(http::serve(listener, router, config.server, stop.clone(), drain_max));

    tracing::info!(http = %address, conductor = %config.conductor, model = %config.model, "gateway serving");
    ready(address);
    let follow = gateway.pool.follow();
    let mut follow = std::pin::pin!(follow);
    tokio::select! {
        () = shutdown => {}
        () = &mut follow => {}
        _ = &mut server => return Ok(()),
    }
    gateway.drain();
    stop.cancel();
    // Streams that move while the gateway drains need the members too.
    tokio::select! {
        _ = &mut server => {}
        () = &mut follow => {}
    }
    Ok(())
}
