//! The planner's clock reading: a value that is passed in, never read.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

/// Nanoseconds since an origin that the caller chose (the engine: its start; a simulation: zero).
///
/// The planner compares and adds these and reads no clock, so a log of its inputs replays bit for bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// Later than anything that happens: 584 years after the origin.
    pub const FAR: Time = Time(u64::MAX);

    /// Time since `earlier`, zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Time;
    /// Saturates at [`Time::FAR`].
    fn add(self, duration: Duration) -> Time {
        Time(self.0.saturating_add(nanos(duration)))
    }
}

impl Sub<Duration> for Time {
    type Output = Time;
    /// Saturates at the origin.
    fn sub(self, duration: Duration) -> Time {
        Time(self.0.saturating_sub(nanos(duration)))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.6}s", self.0 as f64 / 1e9)
    }
}

/// Whole nanoseconds of `duration`, saturating.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates_at_both_ends() {
        assert_eq!(Time(5) - Duration::from_secs(1), Time(0));
        assert_eq!(Time::FAR + Duration::from_secs(1), Time::FAR);
        assert_eq!(Time(3).since(Time(5)), Duration::ZERO);
        assert_eq!((Time(3) + Duration::from_micros(2)).since(Time(3)), Duration::from_micros(2));
    }
}
