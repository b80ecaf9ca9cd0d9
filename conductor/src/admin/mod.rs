//! `/healthz` `/readyz` `/status` `/metrics`, the same for conductor and gateway.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router};
use serde_json::Value;

/// What the endpoint shows. Called on each request; quick, and never blocking.
pub trait AdminSource: Send + Sync + 'static {
    /// Why it should get no requests now; `Ok` while it takes them.
    ///
    /// # Errors
    /// One line for people.
    fn ready(&self) -> Result<(), String>;
    /// Everything worth knowing.
    fn status(&self) -> Value;
    /// The metrics in the Prometheus text format.
    fn metrics(&self) -> String;
}

/// The endpoint's routes.
pub fn router(source: Arc<dyn AdminSource>) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/status", get(|State(source): State<Arc<dyn AdminSource>>| async move { Json(source.status()) }))
        .route("/metrics", get(metrics))
        .with_state(source)
}

async fn readyz(State(source): State<Arc<dyn AdminSource>>) -> (StatusCode, String) {
    match source.ready() {
        Ok(()) => (StatusCode::OK, "ok\n".into()),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, why + "\n"),
    }
}

async fn metrics(State(source): State<Arc<dyn AdminSource>>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], source.metrics())
}
