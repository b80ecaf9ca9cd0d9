//! Every metric of conductor and gateway: names, kinds and help in one table, and the registry that renders them.
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
    /// Members by role.
    MEMBERS = ("kvrail_conductor_members", Gauge);
    /// Registrations taken.
    REGISTRATIONS = ("kvrail_conductor_registrations_total", Counter);
    /// Members whose lease ran out.
    LEASES_EXPIRED = ("kvrail_conductor_leases_expired_total", Counter);
    /// Routing decisions by kind: pair, alone, refused.
    ROUTES = ("kvrail_conductor_routes_total", Counter);
    /// Time that a routing decision took.
    ROUTE_SECONDS = ("kvrail_conductor_route_seconds", Histogram);
    /// Prompt tokens of routed requests by kind: all, best_cached (most that an eligible node held), chosen_cached.
    ROUTE_TOKENS = ("kvrail_conductor_route_tokens_total", Counter);
    /// Distinct blocks in the prefix index.
    INDEX_BLOCKS = ("kvrail_index_blocks", Gauge);
    /// Pairs of holder and block in the prefix index.
    INDEX_MEMBERSHIPS = ("kvrail_index_memberships", Gauge);
    /// Pairs dropped to keep the index within its bound.
    INDEX_EVICTED = ("kvrail_index_evicted_total", Counter);
    /// Most events that any one source has emitted and the index has not applied.
    INDEX_LAG = ("kvrail_index_lag_events", Gauge);
    /// KV events by fate: applied, duplicate.
    EVENTS = ("kvrail_index_events_total", Counter);
    /// Gaps in a source's events, each answered by asking for a snapshot.
    EVENT_GAPS = ("kvrail_index_gaps_total", Counter);
    /// Snapshots taken.
    SNAPSHOTS = ("kvrail_index_snapshots_total", Counter);

    /// Requests by endpoint: chat, completions.
    REQUESTS = ("kvrail_gateway_requests_total", Counter);
    /// Requests ended, by outcome: ok, client_gone, or an error code.
    REQUESTS_ENDED = ("kvrail_gateway_requests_ended_total", Counter);
    /// Requests being served.
    REQUESTS_OPEN = ("kvrail_gateway_requests_open", Gauge);
    /// Open client connections.
    CONNECTIONS = ("kvrail_gateway_connections", Gauge);
    /// Tokens by kind: prompt, cached, output.
    TOKENS = ("kvrail_gateway_tokens_total", Counter);
    /// Time from a request's arrival to its first token.
    TTFT_SECONDS = ("kvrail_gateway_ttft_seconds", Histogram);
    /// Time between two tokens of a choice.
    ITL_SECONDS = ("kvrail_gateway_itl_seconds", Histogram);
    /// Time from a request's arrival to its end.
    REQUEST_SECONDS = ("kvrail_gateway_request_seconds", Histogram);
    /// Streams that went on at another node, by cause: broken, silent, fault, failed, refused.
    MIGRATIONS = ("kvrail_gateway_migrations_total", Counter);
    /// Requests routed from the last known members because the conductor did not answer.
    ROUTE_FALLBACKS = ("kvrail_gateway_route_fallbacks_total", Counter);
    /// Whether the stream of members from the conductor stands.
    CONDUCTOR_CONNECTED = ("kvrail_gateway_conductor_connected", Gauge);
}

/// Bucket bounds of every histogram: 0.1 ms to 2 min.
pub const SECONDS_BUCKETS: &[f64] =
    &[0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0];

const METADATA: Metadata<'static> = Metadata::new("kvrail", Level::INFO, None);

/// The metrics of one service. Not global: two services in one process (as in tests) do not mix.
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
    fn what_was_counted_is_rendered() {
        let registry = Registry::default();
        registry.counter(name::REQUESTS, &[("endpoint", "chat")]).increment(3);
        registry.histogram(name::TTFT_SECONDS, &[]).record(0.02);
        let text = registry.render();
        assert!(text.contains("kvrail_gateway_requests_total{endpoint=\"chat\"} 3"), "{text}");
        assert!(text.contains("kvrail_gateway_ttft_seconds_bucket{le=\"0.025\"} 1"), "{text}");
    }
}
