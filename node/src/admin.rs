//! The admin endpoint of a node: `/healthz` `/readyz` `/status` `/metrics` over HTTP.

use std::future::Future;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router};
use serde_json::Value;
use tokio::net::TcpListener;

/// What the endpoint shows. Called on each request; must be quick and must not block.
pub trait AdminSource: Send + Sync + 'static {
    /// Why the process should be restarted; `Ok` while it works.
    ///
    /// # Errors
    /// One line for people.
    fn health(&self) -> Result<(), String>;
    /// Why it should get no requests now; `Ok` while it takes them.
    ///
    /// # Errors
    /// One line for people.
    fn ready(&self) -> Result<(), String>;
    /// Everything worth knowing, as JSON.
    fn status(&self) -> Value;
    /// The metrics in the Prometheus text format.
    fn metrics(&self) -> String;
}

/// Serves the endpoint until `shutdown` resolves.
///
/// # Errors
/// If the listener breaks.
pub async fn serve(
    listener: TcpListener,
    source: Arc<dyn AdminSource>,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    axum::serve(listener, router(source)).with_graceful_shutdown(shutdown).await
}

/// The endpoint's routes.
pub fn router(source: Arc<dyn AdminSource>) -> Router {
    Router::new()
        .route("/healthz", get(|State(s): State<Arc<dyn AdminSource>>| async move { verdict(s.health()) }))
        .route("/readyz", get(|State(s): State<Arc<dyn AdminSource>>| async move { verdict(s.ready()) }))
        .route("/status", get(|State(s): State<Arc<dyn AdminSource>>| async move { Json(s.status()) }))
        .route("/metrics", get(metrics))
        .with_state(source)
}

async fn metrics(State(source): State<Arc<dyn AdminSource>>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], source.metrics())
}

fn verdict(state: Result<(), String>) -> (StatusCode, String) {
    match state {
        Ok(()) => (StatusCode::OK, "ok\n".into()),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, why + "\n"),
    }
}
