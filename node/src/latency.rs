//! Latency quantiles of a service, bounded in memory whatever the traffic.

use std::time::Duration;

use hdrhistogram::Histogram;
use parking_lot::Mutex;
use serde::Serialize;

/// Longest time told apart; longer ones count as this.
const MAX_US: u64 = 3_600_000_000;

/// Quantiles in milliseconds since the start of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Quantiles {
    /// Number of samples.
    pub count: u64,
    /// Median.
    pub p50_ms: f64,
    /// 90 %.
    pub p90_ms: f64,
    /// 99 %.
    pub p99_ms: f64,
    /// Largest.
    pub max_ms: f64,
}

/// A histogram of durations with 1 % resolution between 1 µs and an hour.
#[derive(Debug)]
pub struct Latency(Mutex<Histogram<u64>>);

impl Default for Latency {
    fn default() -> Self {
        Self(Mutex::new(Histogram::new_with_bounds(1, MAX_US, 2).expect("constant bounds are valid")))
    }
}

impl Latency {
    /// Counts one duration.
    pub fn record(&self, duration: Duration) {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(MAX_US).clamp(1, MAX_US);
        self.0.lock().saturating_record(micros);
    }

    /// Quantiles of what was counted; zeros before the first sample.
    #[must_use]
    pub fn quantiles(&self) -> Quantiles {
        let histogram = self.0.lock();
        if histogram.is_empty() {
            return Quantiles::default();
        }
        let ms = |q: f64| histogram.value_at_quantile(q) as f64 / 1e3;
        Quantiles {
            count: histogram.len(),
            p50_ms: ms(0.5),
            p90_ms: ms(0.9),
            p99_ms: ms(0.99),
            max_ms: histogram.max() as f64 / 1e3,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_a_percent() {
        let latency = Latency::default();
        assert_eq!(latency.quantiles(), Quantiles::default());
        for ms in 1..=1000 {
            latency.record(Duration::from_millis(ms));
        }
        let q = latency.quantiles();
        assert_eq!(q.count, 1000);
        for (got, want) in [(q.p50_ms, 500.0), (q.p90_ms, 900.0), (q.p99_ms, 990.0), (q.max_ms, 1000.0)] {
            assert!((got / want - 1.0).abs() < 0.01, "{got} against {want}");
        }
        latency.record(Duration::from_secs(100_000));
        assert_eq!(latency.quantiles().count, 1001, "what is off the scale is counted at its end");
    }
}
