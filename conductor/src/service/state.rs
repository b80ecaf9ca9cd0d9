//! What the conductor's tasks share: the state machine behind a lock, and the members as they are published.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvrail_proto::v1;
use metrics::Histogram;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{Notify, Semaphore, watch};
use tokio_util::sync::CancellationToken;

use super::ConductorConfig;
use crate::admin::AdminSource;
use crate::core::Core;
use crate::members::Role;
use crate::metrics::{Registry, name};

pub(super) struct State {
    pub(super) config: ConductorConfig,
    /// Differs between two lives of a conductor.
    pub(super) epoch: u64,
    core: Mutex<Core>,
    started: Instant,
    /// Something that gateways watch may have changed.
    changed: Notify,
    pub(super) published: watch::Sender<Arc<v1::Members>>,
    pub(super) watchers: Arc<Semaphore>,
    pub(super) stop: CancellationToken,
    pub(super) route_seconds: Histogram,
    registry: Registry,
}

impl State {
    pub(super) fn new(config: ConductorConfig, stop: CancellationToken) -> Self {
        let registry = Registry::default();
        Self {
            epoch: rand::random(),
            core: Mutex::new(Core::new(config.core)),
            started: Instant::now(),
            changed: Notify::new(),
            published: watch::Sender::new(Arc::new(v1::Members::default())),
            watchers: Arc::new(Semaphore::new(config.watchers_max)),
            stop,
            route_seconds: registry.histogram(name::ROUTE_SECONDS, &[]),
            registry,
            config,
        }
    }

    /// One step of the state machine at the present time.
    pub(super) fn with<T>(&self, step: impl FnOnce(&mut Core, Duration) -> T) -> T {
        let mut core = self.core.lock();
        let before = core.revision();
        let result = step(&mut core, self.started.elapsed());
        let changed = core.revision() != before;
        drop(core);
        if changed {
            self.changed.notify_one();
        }
        result
    }

    /// Publishes changes of members and load, each at once but no more often than every `coalesce`.
    pub(super) async fn publish(&self, coalesce: Duration) {
        loop {
            let members = self.with(|core, _| v1::Members {
                revision: core.revision(),
                members: core.members().into_iter().map(v1::Member::from).collect(),
            });
            self.published.send_replace(Arc::new(members));
            tokio::time::sleep(coalesce).await;
            self.changed.notified().await;
        }
    }

    /// Ends leases when they run out.
    pub(super) async fn expire(&self) {
        loop {
            let next = self.with(|core, now| {
                for id in core.handle_timeout(now) {
                    tracing::warn!(member = id.0, "lease ran out; out of routing, index entries dropped");
                }
                core.poll_timeout().map(|at| at.saturating_sub(now))
            });
            // A member that joins meanwhile has a whole lease before it.
            let lease = self.config.core.lease;
            tokio::time::sleep(next.unwrap_or(lease).min(lease).max(Duration::from_millis(5))).await;
        }
    }
}

fn role_name(role: Role) -> &'static str {
    match role {
        Role::Prefill => "prefill",
        Role::Decode => "decode",
    }
}

impl AdminSource for State {
    fn ready(&self) -> Result<(), String> {
        if self.stop.is_cancelled() { Err("stopping".into()) } else { Ok(()) }
    }

    fn status(&self) -> Value {
        self.with(|core, now| {
            let members: Vec<Value> = core
                .members()
                .into_iter()
                .map(|member| {
                    let (node, load) = (&member.node, &member.load);
                    json!({
                        "node_id": node.node_id,
                        "role": role_name(node.role),
                        // 64-bit numbers that JSON readers would round.
                        "generation": format!("{:016x}", node.generation),
                        "namespace": format!("{:016x}", node.namespace_id),
                        "model": node.model,
                        "grpc": node.grpc_address,
                        "transfer": node.transfer_address,
                        "admin": node.admin_address,
                        "connected": member.connected,
                        "lease_ms_left": member.lease_until.saturating_sub(now).as_millis() as u64,
                        "draining": load.draining,
                        "running": load.running,
                        "queued": load.queued,
                        "queued_tokens": load.queued_tokens,
                        "blocks": {"total": node.pool_blocks, "free": load.blocks_free, "reserved": load.blocks_reserved,
                            "quarantined": load.blocks_quarantined},
                        "prefill_tokens_per_s": load.prefill_tokens_per_s,
                        "step_ms": load.step_ms,
                        "index_lag_events": core.lag(member),
                        "credits": core.credits(member, now),
                    })
                })
                .collect();
            let (index, stats) = (core.index_stats(), core.stats());
            json!({
                "role": "conductor",
                "epoch": format!("{:016x}", self.epoch),
                "uptime_s": self.started.elapsed().as_secs(),
                "revision": core.revision(),
                "members": members,
                "index": {"blocks": index.blocks, "memberships": index.memberships, "evicted": index.evicted},
                "events": {"applied": stats.events.applied, "duplicates": stats.events.duplicates,
                    "gaps": stats.events.gaps, "snapshots": stats.events.snapshots},
                "routes": {"pairs": stats.routed_pairs, "alone": stats.routed_alone, "refused": stats.refused,
                    "prompt_tokens": stats.prompt_tokens, "best_cached_tokens": stats.best_cached_tokens,
                    "chosen_cached_tokens": stats.chosen_cached_tokens},
            })
        })
    }

    fn metrics(&self) -> String {
        self.with(|core, _| {
            let members = core.members();
            for role in [Role::Prefill, Role::Decode] {
                let count = members.iter().filter(|m| m.node.role == role).count();
                self.registry.gauge(name::MEMBERS, &[("role", role_name(role))]).set(count as f64);
            }
            let lag = members.iter().filter_map(|m| core.lag(m)).max().unwrap_or(0);
            let (index, stats) = (core.index_stats(), core.stats());
            let gauges = [
                (name::INDEX_BLOCKS, index.blocks as f64),
                (name::INDEX_MEMBERSHIPS, index.memberships as f64),
                (name::INDEX_LAG, lag as f64),
            ];
            for (name, value) in gauges {
                self.registry.gauge(name, &[]).set(value);
            }
            let counters: [(_, &[(_, _)], _); 13] = [
                (name::REGISTRATIONS, &[], stats.registrations),
                (name::LEASES_EXPIRED, &[], stats.leases_expired),
                (name::ROUTES, &[("kind", "pair")], stats.routed_pairs),
                (name::ROUTES, &[("kind", "alone")], stats.routed_alone),
                (name::ROUTES, &[("kind", "refused")], stats.refused),
                (name::ROUTE_TOKENS, &[("kind", "all")], stats.prompt_tokens),
                (name::ROUTE_TOKENS, &[("kind", "best_cached")], stats.best_cached_tokens),
                (name::ROUTE_TOKENS, &[("kind", "chosen_cached")], stats.chosen_cached_tokens),
                (name::INDEX_EVICTED, &[], index.evicted),
                (name::EVENTS, &[("fate", "applied")], stats.events.applied),
                (name::EVENTS, &[("fate", "duplicate")], stats.events.duplicates),
                (name::EVENT_GAPS, &[], stats.events.gaps),
                (name::SNAPSHOTS, &[], stats.events.snapshots),
            ];
            for (name, labels, value) in counters {
                self.registry.counter(name, labels).absolute(value);
            }
        });
        self.registry.render()
    }
}
