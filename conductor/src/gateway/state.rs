//! What all requests of a gateway share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use metrics::{Counter, Gauge, Histogram};
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::auth::Keys;
use super::body::Intake;
use super::config::GatewayConfig;
use super::error::ApiError;
use super::pool::Pool;
use super::request::Endpoint;
use crate::admin::AdminSource;
use crate::members::Role;
use crate::metrics::{Registry, name};

/// How often a gateway that drains looks whether it is done.
const IDLE_POLL: Duration = Duration::from_millis(5);

/// Handles of what is counted while requests run.
pub(super) struct Meters {
    registry: Registry,
    pub itl: Histogram,
    ttft: Histogram,
    duration: Histogram,
    open: Gauge,
    prompt_tokens: Counter,
    cached_tokens: Counter,
    output_tokens: Counter,
}

impl Meters {
    fn new(registry: Registry) -> Self {
        let tokens = |kind| registry.counter(name::TOKENS, &[("kind", kind)]);
        Self {
            itl: registry.histogram(name::ITL_SECONDS, &[]),
            ttft: registry.histogram(name::TTFT_SECONDS, &[]),
            duration: registry.histogram(name::REQUEST_SECONDS, &[]),
            open: registry.gauge(name::REQUESTS_OPEN, &[]),
            prompt_tokens: tokens("prompt"),
            cached_tokens: tokens("cached"),
            output_tokens: tokens("output"),
            registry,
        }
    }

    /// Open client connections.
    pub(super) fn connections(&self) -> Gauge {
        self.registry.gauge(name::CONNECTIONS, &[])
    }

    /// A stream moved.
    pub(super) fn migrated(&self, cause: &'static str) {
        self.registry.counter(name::MIGRATIONS, &[("cause", cause)]).increment(1);
    }
}

pub(super) struct Gateway {
    pub config: GatewayConfig,
    pub pool: Pool,
    pub meters: Meters,
    pub keys: Keys,
    pub intake: Intake,
    /// Choices being driven: journals that are kept.
    pub choices: AtomicUsize,
    slots: Arc<Semaphore>,
    draining: AtomicBool,
    ending: CancellationToken,
    pub started: Instant,
}

impl Gateway {
    pub(super) fn new(config: GatewayConfig) -> Result<Self, tonic::transport::Error> {
        let registry = Registry::default();
        Ok(Self {
            pool: Pool::new(config.clone(), &registry)?,
            meters: Meters::new(registry),
            keys: Keys::new(config.api_keys.clone()),
            intake: Intake::new(&config),
            choices: AtomicUsize::new(0),
            slots: Arc::new(Semaphore::new(config.requests_max)),
            draining: AtomicBool::new(false),
            ending: CancellationToken::new(),
            started: Instant::now(),
            config,
        })
    }

    pub(super) fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// The time of open requests is over: they end now, with an error.
    pub(super) fn end_requests(&self) {
        self.ending.cancel();
    }

    /// Resolves when [`Gateway::end_requests`] was called.
    pub(super) async fn ended(&self) {
        self.ending.cancelled().await;
    }

    /// A request has come; whether it is served is to be seen.
    pub(super) fn arrive(self: &Arc<Self>, endpoint: Endpoint) -> Ticket {
        self.meters.registry.counter(name::REQUESTS, &[("endpoint", endpoint.name())]).increment(1);
        let gateway = Arc::clone(self);
        Ticket { gateway, arrived: Instant::now(), outcome: "client_gone", first_token: false, place: None }
    }

    /// Whether a request would get a place now.
    ///
    /// # Errors
    /// 429 if there are too many, 503 if the gateway is going away.
    pub(super) fn has_room(&self) -> Result<(), ApiError> {
        if self.draining.load(Ordering::Relaxed) {
            return Err(ApiError::draining());
        }
        if self.slots.available_permits() == 0 {
            return Err(ApiError::too_many_requests(self.config.requests_max));
        }
        Ok(())
    }

    /// Resolves when no request is open.
    pub(super) async fn idle(&self) {
        while self.requests_open() > 0 {
            tokio::time::sleep(IDLE_POLL).await;
        }
    }

    pub(super) fn requests_open(&self) -> usize {
        self.config.requests_max - self.slots.available_permits()
    }
}

/// A request: its place among those that are served, once it has one, and its figures. Dropping it ends it.
pub(super) struct Ticket {
    gateway: Arc<Gateway>,
    arrived: Instant,
    outcome: &'static str,
    first_token: bool,
    place: Option<OwnedSemaphorePermit>,
}

impl Ticket {
    /// Gives the request, which is all there, its place.
    ///
    /// # Errors
    /// Those of [`Gateway::has_room`].
    pub(super) fn admit(&mut self) -> Result<(), ApiError> {
        let gateway = &self.gateway;
        gateway.has_room()?;
        let place = Arc::clone(&gateway.slots).try_acquire_owned();
        self.place = Some(place.map_err(|_| ApiError::too_many_requests(gateway.config.requests_max))?);
        gateway.meters.open.increment(1.0);
        Ok(())
    }

    pub(super) fn token_came(&mut self) {
        if !std::mem::replace(&mut self.first_token, true) {
            self.gateway.meters.ttft.record(self.arrived.elapsed());
        }
    }

    /// It went well.
    pub(super) fn succeed(&mut self, usage: super::render::Usage) {
        self.outcome = "ok";
        let meters = &self.gateway.meters;
        meters.prompt_tokens.increment(usage.prompt_tokens);
        meters.cached_tokens.increment(usage.cached_tokens);
        meters.output_tokens.increment(usage.output_tokens);
    }

    /// It did not.
    pub(super) fn fail(&mut self, error: &ApiError) {
        self.outcome = error.code;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let meters = &self.gateway.meters;
        meters.registry.counter(name::REQUESTS_ENDED, &[("outcome", self.outcome)]).increment(1);
        if self.place.is_some() {
            meters.duration.record(self.arrived.elapsed());
            meters.open.decrement(1.0);
        }
    }
}

impl AdminSource for Gateway {
    fn ready(&self) -> Result<(), String> {
        if self.draining.load(Ordering::Relaxed) {
            return Err("draining".into());
        }
        let (model, conductor) = (&self.config.model, &self.config.conductor);
        let cut_off = if self.pool.is_connected() {
            String::new()
        } else {
            format!(", and the conductor at {conductor} cannot be reached")
        };
        self.pool.serving().map(|_| ()).ok_or_else(|| format!("no decode node serves `{model}`{cut_off}"))
    }

    fn status(&self) -> Value {
        let members: Vec<Value> = self.pool.with_view(|view| {
            let member = |m: &crate::members::Member| {
                json!({
                    "node_id": m.node.node_id,
                    "role": match m.node.role { Role::Prefill => "prefill", Role::Decode => "decode" },
                    "model": m.node.model,
                    // 64 bits that JSON readers would round.
                    "namespace": format!("{:016x}", m.node.namespace_id),
                    "grpc": m.node.grpc_address,
                    "admin": m.node.admin_address,
                    "known_to_conductor": m.connected,
                    "draining": m.load.draining,
                    "running": m.load.running,
                    "queued": m.load.queued,
                })
            };
            view.members().iter().map(member).collect()
        });
        let serving = self.pool.serving();
        json!({
            "role": "gateway",
            "uptime_s": self.started.elapsed().as_secs(),
            "model": self.config.model,
            "namespace": serving.map(|s| format!("{:016x}", s.node.namespace_id)),
            "draining": self.draining.load(Ordering::Relaxed),
            "conductor": {"address": self.config.conductor, "connected": self.pool.is_connected()},
            "requests": {"open": self.requests_open(), "max": self.config.requests_max},
            "choices": {"open": self.choices.load(Ordering::Relaxed)},
            "bodies": self.intake.status(),
            "members": members,
        })
    }

    fn metrics(&self) -> String {
        self.meters.registry.render()
    }
}
