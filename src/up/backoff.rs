//! When a process that died is started again. Pure: times in, decisions out.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(5);
/// A process that ran this long was well: what ended it is a new matter.
const WELL: Duration = Duration::from_secs(60);

/// What to do about a process that died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Start it again after this wait.
    Again {
        /// How long to wait.
        wait: Duration,
        /// How many times in a row it was started again, this one included.
        attempt: u32,
    },
    /// It was started again as often as allowed.
    GiveUp,
}

/// Counts how often one process died in a row.
#[derive(Clone, Copy, Debug, Default)]
pub struct Backoff {
    in_a_row: u32,
}

impl Backoff {
    /// It died after running for so long; at most `limit` restarts in a row.
    pub fn handle_death(&mut self, ran: Duration, limit: u32) -> Decision {
        if ran >= WELL {
            self.in_a_row = 0;
        }
        if self.in_a_row >= limit {
            return Decision::GiveUp;
        }
        let wait = FIRST.saturating_mul(1u32.checked_shl(self.in_a_row).unwrap_or(u32::MAX)).min(LONGEST);
        self.in_a_row += 1;
        Decision::Again { wait, attempt: self.in_a_row }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_bound_and_restarts_end() {
        let mut backoff = Backoff::default();
        let waits: Vec<_> = (0..8).map(|_| backoff.handle_death(Duration::ZERO, 7)).collect();
        let again = |ms, attempt| Decision::Again { wait: Duration::from_millis(ms), attempt };
        assert_eq!(
            waits,
            [
                again(200, 1),
                again(400, 2),
                again(800, 3),
                again(1600, 4),
                again(3200, 5),
                again(5000, 6),
                again(5000, 7),
                Decision::GiveUp
            ]
        );
    }

    #[test]
    fn a_long_life_clears_the_record() {
        let mut backoff = Backoff::default();
        backoff.handle_death(Duration::ZERO, 1);
        assert_eq!(backoff.handle_death(Duration::from_secs(59), 1), Decision::GiveUp);
        assert!(matches!(backoff.handle_death(WELL, 1), Decision::Again { attempt: 1, .. }));
        assert_eq!(Backoff::default().handle_death(Duration::ZERO, 0), Decision::GiveUp);
    }
}
