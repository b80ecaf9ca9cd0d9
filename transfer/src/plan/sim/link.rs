//! One simulated path.

use std::time::Duration;

use crate::plan::{PathId, PathLimits, PathSpec, RailId, Time};

/// What a link is like while it works.
#[derive(Clone, Debug)]
pub struct LinkOptions {
    /// Our rail.
    pub local: RailId,
    /// Theirs.
    pub remote: RailId,
    /// Real bytes a second.
    pub rate: u64,
    /// Bytes a second that the transport tells the planner, if it tells.
    pub claimed_rate: Option<u64>,
    /// From the last byte sent to its visibility; the completion takes as long again.
    pub delay: Duration,
    /// Added to a slice's delay, uniformly from zero: slices overtake each other.
    pub jitter: Duration,
    /// Of a million slices, so many fail cleanly (settled).
    pub fail_ppm: u32,
    /// So many vanish without a word.
    pub vanish_ppm: u32,
    /// So many are reported twice.
    pub repeat_ppm: u32,
    /// Bounds that the transport states.
    pub limits: PathLimits,
    /// Tier that the transport states.
    pub tier: u8,
}

impl LinkOptions {
    /// A clean link between rails of one number.
    #[must_use]
    pub fn clean(rail: u8, rate: u64, delay: Duration) -> Self {
        Self {
            local: RailId(rail),
            remote: RailId(rail),
            rate,
            claimed_rate: Some(rate),
            delay,
            jitter: Duration::ZERO,
            fail_ppm: 0,
            vanish_ppm: 0,
            repeat_ppm: 0,
            limits: PathLimits::default(),
            tier: 0,
        }
    }
}

/// How a link is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// As its options say.
    Good,
    /// So many times slower.
    Slow(u32),
    /// Nothing arrives and nothing is said; it may come back.
    Dark,
    /// It says so: what is on it fails, and it cannot be opened.
    Broken,
}

#[derive(Debug)]
pub(super) struct Link {
    pub(super) id: PathId,
    pub(super) options: LinkOptions,
    pub(super) condition: Condition,
    /// When the sender has put everything on the wire.
    pub(super) free_at: Time,
    /// Fences answered so far: a flight of an earlier epoch is gone.
    pub(super) epoch: u32,
}

impl Link {
    pub(super) fn spec(&self) -> PathSpec {
        PathSpec {
            rate: self.options.claimed_rate,
            base_delay: 2 * self.options.delay,
            penalty: Duration::ZERO,
            tier: self.options.tier,
            lanes: 1,
            limits: self.options.limits,
        }
    }

    /// When `bytes` that are posted now have left.
    pub(super) fn send(&mut self, bytes: u64, now: Time) -> Time {
        let slower = if let Condition::Slow(times) = self.condition { u64::from(times.max(1)) } else { 1 };
        let own = u128::from(bytes) * 1_000_000_000 * u128::from(slower) / u128::from(self.options.rate.max(1));
        self.free_at = self.free_at.max(now) + Duration::from_nanos(own as u64);
        self.free_at
    }
}
