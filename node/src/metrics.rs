//! Every metric of a prefill or decode node: names, help and kinds in one table, and the registry that renders them.
//!
//! Names follow `kvrail_<noun>_<unit>[_total]`. Label values are `&'static str`, so that no request id, prefix or address
//! can become one: the number of series is bounded by the source code.

use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder, SharedString};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

/// What a metric measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// A distribution, in [`SECONDS_BUCKETS`].
    Histogram,
}

macro_rules! metrics_table {
    ($($(#[doc = $help:literal])+ $name:ident = ($string:literal, $kind:ident);)+) => {
        /// Names of the metrics.
        pub mod name {
            $($(#[doc = $help])+ pub const $name: &str = $string;)+
        }
        /// Name, kind and help of every metric.
        pub const TABLE: &[(&str, Kind, &str)] = &[$(($string, Kind::$kind, concat!($($help),+))),+];
    };
}

metrics_table! {
    /// Requests taken in, by role.
    REQUESTS = ("kvrail_requests_total", Counter);
    /// Requests ended, by outcome: stop, length or a failure code.
    REQUESTS_ENDED = ("kvrail_requests_ended_total", Counter);
    /// Requests by state: queued, remote, prefill, decode.
    REQUESTS_IN_STATE = ("kvrail_requests_in_state", Gauge);
    /// Prompt tokens by where their KV came from: held, transferred, computed.
    PROMPT_TOKENS = ("kvrail_prompt_tokens_total", Counter);
    /// Output tokens sampled.
    OUTPUT_TOKENS = ("kvrail_output_tokens_total", Counter);
    /// Requests that gave their blocks up to let an older one finish.
    PREEMPTIONS = ("kvrail_preemptions_total", Counter);
    /// Attempts at a prefill node that failed, by failure code.
    PREFILL_FAILURES = ("kvrail_prefill_failures_total", Counter);
    /// KV blocks by state: free, writing, shared, cached, reserved, quarantined.
    KV_BLOCKS = ("kvrail_kv_blocks", Gauge);
    /// KV bytes that arrived or left, each valid byte once.
    KV_PAYLOAD_BYTES = ("kvrail_kv_payload_bytes_total", Counter);
    /// KV bytes that were sent again.
    KV_RETRIED_BYTES = ("kvrail_kv_retried_bytes_total", Counter);
    /// How often KV that could be sent found the transfer engine full, and waited.
    KV_WAITS = ("kvrail_kv_waits_total", Counter);
    /// Leases granted on this node's memory.
    LEASES = ("kvrail_leases_total", Counter);
    /// Leases not yet fenced.
    LEASES_OPEN = ("kvrail_leases_open", Gauge);
    /// How often TCP was used where shared memory was wanted, by reason: private_memory, other_user, not_opened.
    TRANSFER_FALLBACKS = ("kvrail_transfer_fallbacks_total", Counter);
    /// Connections and streams at the transfer port that were dropped for what they said, by reason.
    TRANSFER_REJECTIONS = ("kvrail_transfer_rejections_total", Counter);
    /// KV events that were dropped because the conductor was away; a snapshot follows.
    EVENTS_LOST = ("kvrail_events_lost_total", Counter);
    /// Whether the conductor's stream stands.
    CONDUCTOR_CONNECTED = ("kvrail_conductor_connected", Gauge);
    /// Time from a request's arrival to its first token.
    TTFT_SECONDS = ("kvrail_ttft_seconds", Histogram);
    /// Mean time between a request's output tokens after the first.
    TPOT_SECONDS = ("kvrail_tpot_seconds", Histogram);
    /// Duration of one forward step.
    STEP_SECONDS = ("kvrail_step_seconds", Histogram);
    /// Rows (tokens) of one forward step.
    STEP_ROWS = ("kvrail_step_rows", Gauge);
}

/// Bucket bounds of every histogram: 1 ms to 60 s.
pub const SECONDS_BUCKETS: &[f64] =
    &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

const METADATA: Metadata<'static> = Metadata::new("kvrail", Level::INFO, None);

/// The metrics of one node. Not global: two nodes in one process (as in tests) do not mix.
pub struct Registry {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
}

impl Default for Registry {
    fn default() -> Self {
        let builder = PrometheusBuilder::new().set_buckets(SECONDS_BUCKETS).expect("the bounds are not empty");
        let recorder = builder.build_recorder();
        for (name, kind, help) in TABLE {
            let help = SharedString::const_str(help.trim_ascii());
            match kind {
                Kind::Counter => recorder.describe_counter((*name).into(), None, help),
                Kind::Gauge => recorder.describe_gauge((*name).into(), None, help),
                Kind::Histogram => recorder.describe_histogram((*name).into(), None, help),
            }
        }
        let handle = recorder.handle();
        Self { recorder, handle }
    }
}

impl Registry {
    /// A handle to a counter of [`TABLE`].
    pub fn counter(&self, name: &'static str, labels: &[(&'static str, &'static str)]) -> Counter {
        self.recorder.register_counter(&key(name, Kind::Counter, labels), &METADATA)
    }

    /// A handle to a gauge of [`TABLE`].
    pub fn gauge(&self, name: &'static str, labels: &[(&'static str, &'static str)]) -> Gauge {
        self.recorder.register_gauge(&key(name, Kind::Gauge, labels), &METADATA)
    }

    /// A handle to a histogram of [`TABLE`], in seconds.
    pub fn histogram(&self, name: &'static str, labels: &[(&'static str, &'static str)]) -> Histogram {
        self.recorder.register_histogram(&key(name, Kind::Histogram, labels), &METADATA)
    }

    /// Everything in the Prometheus text format.
    #[must_use]
    pub fn render(&self) -> String {
        self.handle.run_upkeep();
        self.handle.render()
    }
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Registry")
    }
}

fn key(name: &'static str, kind: Kind, labels: &[(&'static str, &'static str)]) -> Key {
    debug_assert!(TABLE.iter().any(|(n, k, _)| *n == name && *k == kind), "{name} is not in the table as {kind:?}");
    Key::from_parts(name, labels.iter().map(|&(k, v)| Label::from_static_parts(k, v)).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_rule_and_are_unique() {
        let mut seen = std::collections::HashSet::new();
        for (name, kind, help) in TABLE {
            assert!(seen.insert(name), "{name} twice");
            assert!(name.starts_with("kvrail_") && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{name}");
            assert_eq!(name.ends_with("_total"), *kind == Kind::Counter, "{name}");
            assert_eq!(name.ends_with("_seconds"), *kind == Kind::Histogram, "{name}");
            assert!(help.trim().ends_with('.'), "{name} needs a sentence of help");
        }
    }

    #[test]
    fn two_registries_do_not_mix_and_render_what_was_counted() {
        let (a, b) = (Registry::default(), Registry::default());
        a.counter(name::REQUESTS, &[("role", "decode")]).increment(3);
        a.histogram(name::TTFT_SECONDS, &[]).record(0.02);
        let text = a.render();
        assert!(text.contains("kvrail_requests_total{role=\"decode\"} 3"), "{text}");
        assert!(text.contains("kvrail_ttft_seconds_bucket{le=\"0.025\"} 1"), "{text}");
        assert!(!b.render().contains("kvrail_requests_total{"));
    }
}
