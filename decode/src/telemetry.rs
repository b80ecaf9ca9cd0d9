//! What the service counts, for `/status` and `/metrics`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kvrail_engine::sampling::Finish;
use kvrail_kv::KvFormat;
use kvrail_node::latency::Latency;
use kvrail_node::metrics::{Registry, name};
use kvrail_node::{FailureCode, Node};
use kvrail_proto::v1;
use metrics::{Counter, Gauge, Histogram};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use crate::lifecycle::State;
use crate::sequence::Sequence;

/// How an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// With a finish reason.
    Finished(Finish),
    /// With a failure.
    Failed(FailureCode),
}

impl Outcome {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Finished(Finish::Stop) => "stop",
            Self::Finished(Finish::Length) => "length",
            Self::Failed(code) => code.as_str(),
        }
    }
}

/// Handles of every metric, and the figures that `/status` shows.
#[derive(Debug)]
pub struct Telemetry {
    format: KvFormat,
    node: Node,
    requests: Counter,
    output_tokens: Counter,
    preemptions: Counter,
    held_tokens: Counter,
    transferred_tokens: Counter,
    computed_tokens: Counter,
    payload_bytes: Counter,
    retried_bytes: Counter,
    leases: Counter,
    ttft_seconds: Histogram,
    tpot_seconds: Histogram,
    step_seconds: Histogram,
    step_rows: Gauge,
    totals: Totals,
    ttft: Latency,
    tpot: Latency,
    step: Latency,
    hand_off: Mutex<HandOff>,
    /// Smoothed step time.
    step_us: AtomicU64,
}

#[derive(Debug, Default)]
struct Totals {
    requests: AtomicU64,
    finished: AtomicU64,
    failed: AtomicU64,
    cancelled: AtomicU64,
    preempted: AtomicU64,
    remote: AtomicU64,
    local: AtomicU64,
    prefill_failures: AtomicU64,
    output_tokens: AtomicU64,
    payload_bytes: AtomicU64,
    retried_bytes: AtomicU64,
    blocks: AtomicU64,
    tokens: AtomicU64,
}

/// From P's last computed layer to the last visible block.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
struct HandOff {
    count: u64,
    sum: u64,
    last: u64,
}

fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

impl Telemetry {
    /// Registers everything with the node's registry.
    #[must_use]
    pub fn new(node: &Node) -> Self {
        let m: &Registry = node.metrics();
        let tokens = |source| m.counter(name::PROMPT_TOKENS, &[("source", source)]);
        Self {
            format: *node.kv().format(),
            node: node.clone(),
            requests: m.counter(name::REQUESTS, &[("role", "decode")]),
            output_tokens: m.counter(name::OUTPUT_TOKENS, &[]),
            preemptions: m.counter(name::PREEMPTIONS, &[]),
            held_tokens: tokens("held"),
            transferred_tokens: tokens("transferred"),
            computed_tokens: tokens("computed"),
            payload_bytes: m.counter(name::KV_PAYLOAD_BYTES, &[]),
            retried_bytes: m.counter(name::KV_RETRIED_BYTES, &[]),
            leases: m.counter(name::LEASES, &[]),
            ttft_seconds: m.histogram(name::TTFT_SECONDS, &[]),
            tpot_seconds: m.histogram(name::TPOT_SECONDS, &[]),
            step_seconds: m.histogram(name::STEP_SECONDS, &[]),
            step_rows: m.gauge(name::STEP_ROWS, &[]),
            totals: Totals::default(),
            ttft: Latency::default(),
            tpot: Latency::default(),
            step: Latency::default(),
            hand_off: Mutex::default(),
            step_us: AtomicU64::new(0),
        }
    }

    /// A request came.
    pub fn arrived(&self) {
        self.requests.increment(1);
        add(&self.totals.requests, 1);
    }

    /// A request was admitted for the first time, with that many prompt tokens in the cache.
    pub fn admitted(&self, held_tokens: u32) {
        self.held_tokens.increment(held_tokens.into());
    }

    /// This node computes a prompt itself.
    pub fn local(&self) {
        add(&self.totals.local, 1);
    }

    /// A first token was streamed.
    pub fn first_token(&self, arrived: Instant, now: Instant) {
        let took = now.saturating_duration_since(arrived);
        self.ttft.record(took);
        self.ttft_seconds.record(took);
    }

    /// A request ended.
    pub fn ended(&self, sequence: &Sequence, outcome: Outcome) {
        self.refused(outcome);
        let streamed = u64::from(sequence.outputs().saturating_sub(sequence.request.forced_tokens));
        self.output_tokens.increment(streamed);
        add(&self.totals.output_tokens, streamed);
        if let Some(each) = sequence.time_per_token() {
            self.tpot.record(each);
            self.tpot_seconds.record(each);
        }
    }

    /// A request ended before it was a sequence.
    pub fn refused(&self, outcome: Outcome) {
        self.node.metrics().counter(name::REQUESTS_ENDED, &[("outcome", outcome.as_str())]).increment(1);
        let total = match outcome {
            Outcome::Finished(_) => &self.totals.finished,
            Outcome::Failed(FailureCode::Cancelled) => &self.totals.cancelled,
            Outcome::Failed(_) => &self.totals.failed,
        };
        add(total, 1);
    }

    /// A request's blocks were taken.
    pub fn preempted(&self) {
        self.preemptions.increment(1);
        add(&self.totals.preempted, 1);
    }

    /// An attempt at a prefill node failed.
    pub fn prefill_failed(&self, code: FailureCode) {
        self.node.metrics().counter(name::PREFILL_FAILURES, &[("code", code.as_str())]).increment(1);
        add(&self.totals.prefill_failures, 1);
    }

    /// Blocks were lent.
    pub fn leased(&self) {
        self.leases.increment(1);
    }

    /// A prefill node's KV is here, whole.
    pub fn transferred(&self, tokens: u32, blocks: u32, done: &v1::PrefillDone) {
        let bytes = u64::from(tokens) * self.format.token_bytes();
        self.transferred_tokens.increment(tokens.into());
        self.payload_bytes.increment(bytes);
        self.retried_bytes.increment(done.retried_bytes);
        add(&self.totals.remote, 1);
        add(&self.totals.payload_bytes, bytes);
        add(&self.totals.retried_bytes, done.retried_bytes);
        add(&self.totals.blocks, blocks.into());
        add(&self.totals.tokens, tokens.into());
        let mut hand_off = self.hand_off.lock();
        hand_off.count += 1;
        hand_off.last = done.last_layer_to_visible_us;
        hand_off.sum += hand_off.last;
    }

    /// A step ran.
    pub fn stepped(&self, rows: u32, prompt_tokens: u32, took: Duration) {
        self.step.record(took);
        self.step_seconds.record(took);
        self.step_rows.set(rows);
        self.computed_tokens.increment(prompt_tokens.into());
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1);
        let before = get(&self.step_us);
        let smoothed = if before == 0 { us } else { before - before / 8 + us / 8 };
        self.step_us.store(smoothed, Ordering::Relaxed);
    }

    /// Smoothed step time in milliseconds; 0 before the first step.
    #[must_use]
    pub fn step_ms(&self) -> f64 {
        get(&self.step_us) as f64 / 1e3
    }

    /// The service's part of `/status`; `states` is how many requests are in each state.
    pub fn status(&self, states: &[(State, u32)], status: &mut Map<String, Value>) {
        let t = &self.totals;
        let in_state = |state| states.iter().find(|(s, _)| *s == state).map_or(0, |(_, n)| *n);
        let all: u32 = states.iter().map(|(_, n)| n).sum();
        let queued = in_state(State::Queued);
        status.insert(
            "requests".into(),
            json!({
                "running": all - queued,
                "queued": queued,
                "remote": in_state(State::Hiring),
                "prefill": in_state(State::Prefilling),
                "decode": in_state(State::Decoding),
                "total": get(&t.requests),
                "finished": get(&t.finished),
                "failed": get(&t.failed),
                "cancelled": get(&t.cancelled),
                "preempted": get(&t.preempted),
                "prefilled_remote": get(&t.remote),
                "prefilled_local": get(&t.local),
                "prefill_failures": get(&t.prefill_failures),
                "output_tokens": get(&t.output_tokens),
            }),
        );
        let transfer = self.node.engine().stats();
        status.insert(
            "kv".into(),
            json!({
                "payload_bytes": get(&t.payload_bytes),
                "retried_bytes": get(&t.retried_bytes),
                "checksum_failures": transfer.checksum_errors,
                "frames_refused": transfer.frames_refused,
                "blocks": get(&t.blocks),
                "tokens": get(&t.tokens),
                "token_bytes": self.format.token_bytes(),
                "block_bytes": self.format.block_bytes(),
                "last_layer_to_visible_us": *self.hand_off.lock(),
            }),
        );
        status.insert(
            "latency".into(),
            json!({"ttft": self.ttft.quantiles(), "tpot": self.tpot.quantiles(), "step": self.step.quantiles()}),
        );
    }
}
