//! How long to wait before the next try: doubling, capped, with full jitter.
//!
//! Full jitter (a uniform draw below the doubled bound) spreads a pool's reconnects after a conductor's death more than
//! a draw around it does: M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.

use std::time::Duration;

/// A sequence of waits. Pure: the same seed gives the same waits.
#[derive(Clone, Debug)]
pub struct Backoff {
    base: Duration,
    max: Duration,
    bound: Duration,
    state: u64,
}

impl Backoff {
    /// Waits below `base` first, doubling up to `max`. Nodes must differ in `seed`.
    #[must_use]
    pub fn new(base: Duration, max: Duration, seed: u64) -> Self {
        Self { base, max, bound: base, state: seed | 1 }
    }

    /// The next wait: between a tenth of the bound (never a busy loop) and the bound.
    pub fn next_wait(&mut self) -> Duration {
        // xorshift64: enough to spread nodes, not meant to be unpredictable.
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        let fraction = (self.state >> 11) as f64 / (1u64 << 53) as f64;
        let wait = self.bound.mul_f64(fraction.max(0.1));
        self.bound = (self.bound * 2).min(self.max);
        wait
    }

    /// A try succeeded: the next failure waits from the base again.
    pub fn reset(&mut self) {
        self.bound = self.base;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_the_cap_and_differ_between_nodes() {
        let (base, max) = (Duration::from_millis(100), Duration::from_secs(2));
        let mut a = Backoff::new(base, max, 0x9e37_79b9_7f4a_7c15);
        let mut b = Backoff::new(base, max, 0xd1b5_4a32_d192_ed03);
        let waits: Vec<_> = (0..64).map(|_| a.next_wait()).collect();
        assert!(waits[0] <= base);
        assert!(waits.iter().all(|w| *w >= base / 10 && *w <= max));
        assert!(waits[10..].iter().any(|w| *w > max / 2));
        assert_ne!(waits, (0..64).map(|_| b.next_wait()).collect::<Vec<_>>());
        a.reset();
        assert!(a.next_wait() <= base);
    }
}
