//! What the service counts: metric handles, totals for `/status`, quantiles.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kvrail_node::latency::Latency;
use kvrail_node::metrics::{Registry, name};
use metrics::{Counter, Gauge, Histogram};
use parking_lot::Mutex;

/// Weight of the newest step in the smoothed rate.
const RATE_WEIGHT: f64 = 0.2;

/// Totals since start.
pub(crate) struct Stats {
    pub requests: Counter,
    pub ttft: Histogram,
    pub ttft_quantiles: Latency,
    /// From the last layer computed to the last block visible.
    pub tail_quantiles: Latency,
    step_seconds: Histogram,
    step_rows: Gauge,
    computed_metric: Counter,
    held_metric: Counter,
    payload_metric: Counter,
    retried_metric: Counter,
    waits_metric: Counter,
    pub computed_tokens: AtomicU64,
    pub cached_tokens: AtomicU64,
    pub payload_bytes: AtomicU64,
    pub retried_bytes: AtomicU64,
    pub waits: AtomicU64,
    pub blocks_visible: AtomicU64,
    rate: Mutex<Option<f64>>,
}

impl Stats {
    pub(crate) fn new(registry: &Registry) -> Self {
        Self {
            requests: registry.counter(name::REQUESTS, &[("role", "prefill")]),
            ttft: registry.histogram(name::TTFT_SECONDS, &[]),
            ttft_quantiles: Latency::default(),
            tail_quantiles: Latency::default(),
            step_seconds: registry.histogram(name::STEP_SECONDS, &[]),
            step_rows: registry.gauge(name::STEP_ROWS, &[]),
            computed_metric: registry.counter(name::PROMPT_TOKENS, &[("source", "computed")]),
            held_metric: registry.counter(name::PROMPT_TOKENS, &[("source", "held")]),
            payload_metric: registry.counter(name::KV_PAYLOAD_BYTES, &[("direction", "sent")]),
            retried_metric: registry.counter(name::KV_RETRIED_BYTES, &[("direction", "sent")]),
            waits_metric: registry.counter(name::KV_WAITS, &[]),
            computed_tokens: AtomicU64::new(0),
            cached_tokens: AtomicU64::new(0),
            payload_bytes: AtomicU64::new(0),
            retried_bytes: AtomicU64::new(0),
            waits: AtomicU64::new(0),
            blocks_visible: AtomicU64::new(0),
            rate: Mutex::new(None),
        }
    }

    /// A forward step of `rows` tokens.
    pub(crate) fn step(&self, rows: u32, took: Duration) {
        self.step_seconds.record(took.as_secs_f64());
        self.step_rows.set(f64::from(rows));
        self.computed_metric.increment(rows.into());
        self.computed_tokens.fetch_add(rows.into(), Ordering::Relaxed);
        let now = f64::from(rows) / took.as_secs_f64().max(1e-9);
        let mut rate = self.rate.lock();
        *rate = Some(rate.map_or(now, |before| before + RATE_WEIGHT * (now - before)));
    }

    /// Prompt tokens that were taken from the cache.
    pub(crate) fn cached(&self, tokens: u32) {
        self.held_metric.increment(tokens.into());
        self.cached_tokens.fetch_add(tokens.into(), Ordering::Relaxed);
    }

    /// Bytes of a transfer that has been reported.
    pub(crate) fn sent(&self, payload: u64, retried: u64) {
        self.payload_metric.increment(payload);
        self.retried_metric.increment(retried);
        self.payload_bytes.fetch_add(payload, Ordering::Relaxed);
        self.retried_bytes.fetch_add(retried, Ordering::Relaxed);
    }

    /// The transfer engine was full.
    pub(crate) fn waits(&self) {
        self.waits_metric.increment(1);
        self.waits.fetch_add(1, Ordering::Relaxed);
    }

    /// Smoothed prompt tokens a second; 0 while unknown.
    pub(crate) fn tokens_per_s(&self) -> f64 {
        self.rate.lock().unwrap_or(0.0)
    }
}
