//! Where a failed slice goes next, and how long a failed path rests: back-off with jitter.

use std::time::Duration;

use super::coalesce::Cursor;
use super::time::nanos;
use super::{Cause, PathId, Time};

/// SplitMix64 (Steele, Lea, Flood 2014): the planner's only source of chance, seeded by its caller.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Below `bound`; 0 for 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

/// Doubling waits between a floor and a ceiling, each drawn from the upper half of its range, so that what failed
/// together does not return together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The first wait, at most.
    pub first: Duration,
    /// Any wait, at most.
    pub max: Duration,
}

impl Backoff {
    /// Wait before try number `tries` (the first is 0).
    pub(crate) fn wait(&self, tries: u32, rng: &mut Rng) -> Duration {
        let max = nanos(self.max);
        let top = nanos(self.first).checked_shl(tries.min(32)).map_or(max, |t| t.min(max)).max(2);
        Duration::from_nanos(top / 2 + rng.below(top / 2))
    }
}

/// A range of a transfer that failed and is to be sent again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retry {
    pub(crate) start: Cursor,
    pub(crate) bytes: u64,
    /// Attempts made so far.
    pub(crate) attempts: u8,
    /// How many of them failed their checksum.
    pub(crate) corrupt: u8,
    pub(crate) cause: Cause,
    /// The path of the last attempt.
    pub(crate) failed_on: PathId,
    /// Not before this, where no other path was there to take it at once.
    pub(crate) not_before: Time,
}

impl Retry {
    /// Does the last failure speak against `path`? A local fault against its whole local rail, a remote one against the remote.
    pub(crate) fn avoids(&self, path: &PathId) -> bool {
        avoids(self.cause, &self.failed_on, path)
    }
}

/// See [`Retry::avoids`].
pub(crate) fn avoids(cause: Cause, failed_on: &PathId, path: &PathId) -> bool {
    match cause {
        Cause::LocalFault => path.local == failed_on.local,
        Cause::RemoteFault => path.remote == failed_on.remote,
        Cause::PathFault | Cause::Timeout | Cause::Corrupt => path == failed_on,
        Cause::Refused(_) | Cause::PeerLost => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{PeerId, RailId};

    #[test]
    fn waits_double_within_bounds_and_differ() {
        let backoff = Backoff { first: Duration::from_millis(10), max: Duration::from_millis(500) };
        let mut rng = Rng::new(7);
        for (tries, top) in [(0, 10), (1, 20), (3, 80), (6, 500), (40, 500)] {
            let waits: Vec<Duration> = (0..100).map(|_| backoff.wait(tries, &mut rng)).collect();
            let top = Duration::from_millis(top);
            assert!(waits.iter().all(|w| *w >= top / 2 && *w <= top), "{tries}");
            assert!(waits.iter().any(|w| *w != waits[0]));
        }
        assert!(Backoff { first: Duration::ZERO, max: Duration::ZERO }.wait(3, &mut rng) <= Duration::from_nanos(2));
    }

    #[test]
    fn the_cause_says_what_to_avoid() {
        let path = |local, remote| PathId { peer: PeerId::from_bits(0), local: RailId(local), remote: RailId(remote) };
        let rule = |cause, other| avoids(cause, &path(0, 0), &other);
        assert!(rule(Cause::LocalFault, path(0, 1)) && !rule(Cause::LocalFault, path(1, 0)));
        assert!(rule(Cause::RemoteFault, path(1, 0)) && !rule(Cause::RemoteFault, path(0, 1)));
        assert!(
            rule(Cause::PathFault, path(0, 0))
                && !rule(Cause::PathFault, path(0, 1))
                && !rule(Cause::Timeout, path(1, 0))
        );
    }
}
