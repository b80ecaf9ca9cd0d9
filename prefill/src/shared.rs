//! What the service's tasks and its step thread share, and what the node shows of it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use kvrail_node::metrics::name;
use kvrail_node::{Node, serve};
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use crate::config::PrefillConfig;
use crate::queue::Queue;
use crate::stats::Stats;

/// Shortest and longest wait that a refused request is told.
const RETRY_AFTER: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));

/// The shared parts.
pub(crate) struct Shared {
    pub node: Node,
    pub config: PrefillConfig,
    pub queue: Queue,
    pub stats: Stats,
    /// Cancelled when the drain took too long.
    pub abort: CancellationToken,
}

impl Shared {
    pub(crate) fn new(node: Node, config: PrefillConfig) -> Self {
        let queue = Queue::new(config.limits, node.cache().clone(), node.spec().format.block_tokens);
        let stats = Stats::new(node.metrics());
        Self { queue, stats, node, config, abort: CancellationToken::new() }
    }

    /// Tells the membership client what the node is doing now.
    pub(crate) fn publish_load(&self) {
        self.node.load().update(|load| {
            // Read under the report's lock: of two threads that publish, the later one has the later figures.
            let (line, blocks) = (self.queue.line(), self.node.cache().counters());
            let in_flight = u32::try_from(self.node.drain().in_flight()).unwrap_or(u32::MAX);
            load.queued = line.queued;
            load.running = in_flight.saturating_sub(line.queued);
            load.queued_tokens = line.tokens;
            load.blocks_free = blocks.available();
            load.blocks_reserved = blocks.reserved;
            load.blocks_quarantined = blocks.quarantined;
            load.prefill_tokens_per_s = self.stats.tokens_per_s();
        });
    }

    /// When a request that finds the line full should come back: when half of what waits is computed.
    pub(crate) fn retry_after(&self) -> Duration {
        let rate = self.stats.tokens_per_s();
        let wait = if rate > 0.0 { self.queue.line().tokens as f64 / rate / 2.0 } else { 1.0 };
        let (min, max) = RETRY_AFTER;
        Duration::try_from_secs_f64(wait).unwrap_or(max).clamp(min, max)
    }
}

impl serve::Service for Shared {
    fn status(&self, status: &mut Map<String, Value>) {
        let (line, stats) = (self.queue.line(), &self.stats);
        let get = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let running = self.node.drain().in_flight().saturating_sub(line.queued.into());
        status
            .insert("requests".into(), json!({ "running": running, "computing": line.running, "queued": line.queued }));
        status.insert(
            "kv".into(),
            json!({
                "token_bytes": self.node.spec().format.token_bytes(),
                "payload_bytes": get(&stats.payload_bytes),
                "retried_bytes": get(&stats.retried_bytes),
                "waits": get(&stats.waits),
                "blocks": get(&stats.blocks_visible),
            }),
        );
        status.insert(
            "prefill".into(),
            json!({
                "queued_tokens": line.tokens,
                "tokens_per_s": stats.tokens_per_s(),
                "computed_tokens": get(&stats.computed_tokens),
                "cached_tokens": get(&stats.cached_tokens),
                "ttft": stats.ttft_quantiles.quantiles(),
                "last_layer_to_visible": stats.tail_quantiles.quantiles(),
            }),
        );
    }

    fn refresh_metrics(&self) {
        let (line, registry) = (self.queue.line(), self.node.metrics());
        let running = self.node.drain().in_flight().saturating_sub(line.queued.into());
        registry.gauge(name::REQUESTS_IN_STATE, &[("state", "queued")]).set(line.queued);
        registry.gauge(name::REQUESTS_IN_STATE, &[("state", "prefill")]).set(running as f64);
    }

    fn abort(&self) {
        self.abort.cancel();
    }
}
