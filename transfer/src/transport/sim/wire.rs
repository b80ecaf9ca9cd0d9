//! The model of a link: when a request that is posted now is done.

use std::time::{Duration, Instant};

use crate::plan::Rng;
use crate::transport::sim::FabricOptions;

/// One direction of a link. Pure: the clock is the caller's.
pub(super) struct Wire {
    options: FabricOptions,
    rng: Rng,
    /// When everything posted so far has left.
    free_at: Instant,
    /// When the last request is due: none overtakes another.
    last: Instant,
}

impl Wire {
    /// `salt` tells the links of a fabric apart.
    pub(super) fn new(options: FabricOptions, salt: u64, now: Instant) -> Self {
        Self { rng: Rng::new(options.seed ^ salt), options, free_at: now, last: now }
    }

    /// When a request of `bytes` is done: a write has landed and is acknowledged, a read was asked for and has come. Both
    /// go there and back, so both take the same.
    pub(super) fn due(&mut self, bytes: u64, now: Instant) -> Instant {
        let own = u128::from(bytes) * 1_000_000_000 / u128::from(self.options.rate.max(1));
        self.free_at = self.free_at.max(now) + nanos(u64::try_from(own).unwrap_or(u64::MAX));
        let jitter = u64::try_from(self.options.jitter.as_nanos()).unwrap_or(u64::MAX);
        let late = nanos(self.rng.below(jitter.saturating_add(1)));
        self.last = self.last.max(self.free_at + 2 * self.options.delay + late);
        self.last
    }
}

/// A day at most: no sum of these passes the end of the clock.
fn nanos(n: u64) -> Duration {
    Duration::from_nanos(n).min(Duration::from_secs(86_400))
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    fn wire(jitter: Duration, seed: u64, now: Instant) -> Wire {
        Wire::new(FabricOptions { rate: 1_000_000_000, delay: 5 * US, jitter, seed, windows: false }, 3, now)
    }

    #[test]
    fn requests_leave_one_after_another_at_the_links_rate() {
        let now = Instant::now();
        let mut wire = wire(Duration::ZERO, 1, now);
        assert_eq!(wire.due(100_000, now), now + 110 * US);
        assert_eq!(wire.due(100_000, now), now + 210 * US, "behind the first");
        let later = now + 1000 * US;
        assert_eq!(wire.due(50_000, later), later + 60 * US, "an idle link starts at once");
    }

    #[test]
    fn jitter_is_the_seeds_and_lets_nothing_overtake() {
        let now = Instant::now();
        let run = |seed| {
            let mut wire = wire(40 * US, seed, now);
            (0..200).map(|_| wire.due(1_000, now)).collect::<Vec<_>>()
        };
        let first = run(1);
        assert_eq!(first, run(1));
        assert_ne!(first, run(2));
        assert!(first.is_sorted());
        for (n, due) in first.iter().enumerate() {
            let clean = now + (n as u32 + 1) * US + 10 * US;
            // In order: it may have to wait for the latest of those before it.
            assert!((clean..=clean + 40 * US).contains(due), "request {n}");
        }
    }
}
