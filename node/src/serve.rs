//! The life of a service on a node: serve → drain → leave → stop, the same for both roles.

use std::sync::Arc;
use std::sync::OnceLock;
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

use crate::admin::{self, AdminSource};
use crate::grpc;
use crate::metrics::name;
use crate::node::{BoundAddresses, Node, NodeError, Sockets};

/// Time for requests that were told to end, for the farewell, and for open connections: each.
const STOP_STEP_MAX: Duration = Duration::from_secs(2);

/// What a service gives its node.
pub trait Service: Send + Sync + 'static {
    /// Adds the service's fields to `/status` (an object); `requests: {running, queued}` and
    /// `kv: {payload_bytes, retried_bytes, blocks}` are expected.
    fn status(&self, status: &mut serde_json::Map<String, Value>);
    /// Sets the gauges that are read and not counted; called before each scrape.
    fn refresh_metrics(&self);
    /// The drain took too long: end what still runs, with a typed failure.
    fn abort(&self);
}

/// What is called when a node serves.
pub type Ready<'a> = Box<dyn FnOnce(&BoundAddresses) + Send + 'a>;
/// Resolves when a node is to end, with the time that running requests get.
pub type Shutdown<'a> = BoxFuture<'a, Duration>;

/// Runs `routes` until the node fails or `shutdown` resolves, with the time that running requests get to end.
///
/// `ready` is called once, when requests are served. Boxes at this border, and at those of the services, keep a whole
/// service from being compiled again in everything that runs one.
///
/// # Errors
/// [`NodeError`] if a server breaks or the service failed.
pub fn run<'a>(
    node: Node,
    sockets: Sockets,
    routes: Routes,
    service: Arc<dyn Service>,
    ready: Ready<'a>,
    shutdown: Shutdown<'a>,
) -> BoxFuture<'a, Result<(), NodeError>> {
    Box::pin(run_here(node, sockets, routes, service, ready, shutdown))
}

async fn run_here(
    node: Node,
    sockets: Sockets,
    routes: Routes,
    service: Arc<dyn Service>,
    ready: Ready<'_>,
    shutdown: Shutdown<'_>,
) -> Result<(), NodeError> {
    let stop = CancellationToken::new();
    let admin = Arc::new(Admin { node: node.clone(), service: Arc::clone(&service), membership: OnceLock::new() });
    let admin_server =
        tokio::spawn(admin::serve(sockets.admin, Arc::clone(&admin) as _, stop.clone().cancelled_owned()));
    let mut grpc_server = tokio::spawn({
        let (config, stop) = (node.config().grpc.clone(), stop.clone());
        async move { grpc::serve(&config, sockets.grpc, routes, stop.cancelled_owned(), STOP_STEP_MAX).await }
    });
    let membership = node.join()?;
    if let Some(membership) = &membership {
        let _ = admin.membership.set(membership.connected());
    }
    let addresses = node.addresses();
    tracing::info!(node = %node.info().node_id, role = node.role().as_str(), ?addresses, "serving");
    ready(addresses);

    let result = tokio::select! {
        drain_max = shutdown => Ok(drain_max),
        reason = node.failed() => Err(NodeError::Service(reason)),
        ended = &mut grpc_server => match ended {
            Ok(Err(error)) => Err(error.into()),
            Ok(Ok(())) => Err(NodeError::Service("the gRPC server ended by itself".into())),
            Err(error) => Err(NodeError::Service(format!("the gRPC server: {error}"))),
        },
    };
    drain(&node, service.as_ref(), *result.as_ref().unwrap_or(&Duration::ZERO)).await;
    if let Some(membership) = membership {
        membership.leave(STOP_STEP_MAX).await;
    }
    stop.cancel();
    if !grpc_server.is_finished() {
        let _ = tokio::time::timeout(2 * STOP_STEP_MAX, &mut grpc_server).await;
        grpc_server.abort();
    }
    let admin_abort = admin_server.abort_handle();
    let _ = tokio::time::timeout(STOP_STEP_MAX, admin_server).await;
    admin_abort.abort();
    result.map(drop)
}

async fn drain(node: &Node, service: &dyn Service, drain_max: Duration) {
    node.drain().begin();
    node.load().update(|load| load.draining = true);
    let running = node.drain().in_flight();
    tracing::info!(running, "draining");
    if tokio::time::timeout(drain_max, node.drain().drained()).await.is_err() {
        tracing::warn!(running = node.drain().in_flight(), "the drain took too long; ending what still runs");
        service.abort();
        if tokio::time::timeout(STOP_STEP_MAX, node.drain().drained()).await.is_err() {
            tracing::warn!(running = node.drain().in_flight(), "requests did not end");
        }
    }
}

struct Admin {
    node: Node,
    service: Arc<dyn Service>,
    membership: OnceLock<crate::membership::Connected>,
}

impl Admin {
    fn connected(&self) -> Option<bool> {
        self.membership.get().map(crate::membership::Connected::get)
    }
}

impl AdminSource for Admin {
    fn health(&self) -> Result<(), String> {
        self.node.failure().map_or(Ok(()), Err)
    }

    fn ready(&self) -> Result<(), String> {
        self.health()?;
        if self.node.drain().is_draining() { Err("draining".into()) } else { Ok(()) }
    }

    fn status(&self) -> Value {
        let node = &self.node;
        let (info, blocks, engine) = (node.info(), node.cache().counters(), node.engine().stats());
        let mut status = json!({
            "node_id": info.node_id,
            "role": node.role().as_str(),
            // A 64-bit number that JSON readers would round.
            "generation": format!("{:016x}", node.generation()),
            "namespace": format!("{:016x}", info.namespace_id),
            "model": info.model,
            "uptime_s": node.started().elapsed().as_secs(),
            "draining": node.drain().is_draining(),
            "in_flight": node.drain().in_flight(),
            "conductor": self.connected(),
            "grpc": info.grpc_address,
            "transfer": info.transfer_address,
            "blocks": {
                "total": node.kv().blocks(),
                "free": blocks.free,
                "cached": blocks.cached,
                "shared": blocks.shared,
                "private": blocks.private,
                "writing": blocks.writing,
                "reserved": blocks.reserved,
                "quarantined": blocks.quarantined,
            },
            "leases": engine.leases,
            "leases_quarantined": engine.leases_quarantined,
            "transfers": engine.transfers,
            "transfers_lent": engine.transfers_lent,
            "sessions": {"open": engine.peers, "streams": engine.streams, "lost": engine.peers_lost,
                "rejected": engine.rejections},
            "shm_fallbacks": engine.fallbacks,
        });
        if let Value::Object(map) = &mut status {
            self.service.status(map);
        }
        status
    }

    fn metrics(&self) -> String {
        let (registry, blocks) = (self.node.metrics(), self.node.cache().counters());
        let states = [
            ("free", blocks.free),
            ("cached", blocks.cached),
            ("shared", blocks.shared),
            ("private", blocks.private),
            ("writing", blocks.writing),
            ("reserved", blocks.reserved),
            ("quarantined", blocks.quarantined),
        ];
        for (state, count) in states {
            registry.gauge(name::KV_BLOCKS, &[("state", state)]).set(count);
        }
        let engine = self.node.engine().stats();
        for (reason, count) in engine.rejections {
            registry.counter(name::TRANSFER_REJECTIONS, &[("reason", reason)]).absolute(count);
        }
        let fallbacks = engine.fallbacks;
        let reasons = [
            ("private_memory", fallbacks.private_memory),
            ("other_user", fallbacks.other_user),
            ("not_opened", fallbacks.not_opened),
            ("staged", fallbacks.staged),
        ];
        for (reason, count) in reasons {
            registry.counter(name::TRANSFER_FALLBACKS, &[("reason", reason)]).absolute(count);
        }
        registry.counter(name::EVENTS_LOST, &[]).absolute(self.node.cache().lost_events());
        if let Some(connected) = self.connected() {
            registry.gauge(name::CONDUCTOR_CONNECTED, &[]).set(f64::from(u8::from(connected)));
        }
        self.service.refresh_metrics();
        registry.render()
    }
}
