//! The life of one request, as a table.
//!
//! ```text
//!            ┌───────────── PrefillFailed ──────────────┐
//! Queued ─ AdmittedRemote ─▶ Hiring ─ KvVisible ─▶ Decoding ◀─ FirstToken ─ Prefilling ◀─ AdmittedLocal ─ Queued
//!   ▲                          │                      │                        │
//!   └────────── Requeued ──────┴────── Preempted ─────┴────────────────────────┘          any ─ Ended ─▶ Over
//! ```
//! What holds memory: `Queued` and `Over` hold none; `Hiring` holds blocks of which some are lent; the other two hold
//! blocks that only the step loop writes.

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Waits for headroom.
    Queued,
    /// Blocks are reserved and a prefill node is being hired or works.
    Hiring,
    /// This node computes what is missing of the prompt.
    Prefilling,
    /// In the continuous batch, a token a step.
    Decoding,
    /// Answered, failed or cancelled.
    Over,
}

/// What happened to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// Headroom is there and a prefill node is asked.
    AdmittedRemote,
    /// Headroom is there and this node computes the prompt.
    AdmittedLocal,
    /// The last block is visible and the lease is fenced.
    KvVisible,
    /// No prefill node did it; this node computes what is missing.
    PrefillFailed,
    /// Lent blocks are not fenced in time and no others are there: wait again.
    Requeued,
    /// The prompt is computed here and a token sampled.
    FirstToken,
    /// Its blocks were taken so that an older request can finish.
    Preempted,
    /// Answered, failed or cancelled.
    Ended,
}

/// Every legal step.
pub const TABLE: &[(State, Event, State)] = &[
    (State::Queued, Event::AdmittedRemote, State::Hiring),
    (State::Queued, Event::AdmittedLocal, State::Prefilling),
    (State::Queued, Event::Ended, State::Over),
    (State::Hiring, Event::KvVisible, State::Decoding),
    (State::Hiring, Event::PrefillFailed, State::Prefilling),
    (State::Hiring, Event::Requeued, State::Queued),
    (State::Hiring, Event::Ended, State::Over),
    (State::Prefilling, Event::FirstToken, State::Decoding),
    (State::Prefilling, Event::Preempted, State::Queued),
    (State::Prefilling, Event::Ended, State::Over),
    (State::Decoding, Event::Preempted, State::Queued),
    (State::Decoding, Event::Ended, State::Over),
];

/// A step that the table does not have: a bug, told instead of acted on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a request that is {state:?} cannot have {event:?}")]
pub struct IllegalStep {
    /// Where it was.
    pub state: State,
    /// What was said to have happened.
    pub event: Event,
}

impl State {
    /// Every state.
    pub const ALL: [Self; 5] = [Self::Queued, Self::Hiring, Self::Prefilling, Self::Decoding, Self::Over];

    /// The state after `event`.
    ///
    /// # Errors
    /// [`IllegalStep`] where the table has no such step.
    pub fn after(self, event: Event) -> Result<Self, IllegalStep> {
        let step = TABLE.iter().find(|(from, on, _)| (*from, *on) == (self, event));
        step.map(|(_, _, to)| *to).ok_or(IllegalStep { state: self, event })
    }

    /// The state in status and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Hiring => "remote",
            Self::Prefilling => "prefill",
            Self::Decoding => "decode",
            Self::Over => "over",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_unique_and_every_state_can_end() {
        for (i, (from, on, _)) in TABLE.iter().enumerate() {
            assert!(TABLE[i + 1..].iter().all(|(f, o, _)| (f, o) != (from, on)), "{from:?} {on:?} twice");
        }
        for state in State::ALL.into_iter().filter(|s| *s != State::Over) {
            assert_eq!(state.after(Event::Ended), Ok(State::Over));
        }
        assert!(TABLE.iter().all(|(from, _, _)| *from != State::Over), "what is over stays over");
    }

    #[test]
    fn every_state_is_reached_from_the_queue() {
        let mut reached = vec![State::Queued];
        let mut next = 0;
        while next < reached.len() {
            for (from, _, to) in TABLE {
                if *from == reached[next] && !reached.contains(to) {
                    reached.push(*to);
                }
            }
            next += 1;
        }
        assert_eq!(reached.len(), State::ALL.len());
        assert_eq!(
            State::Over.after(Event::Preempted),
            Err(IllegalStep { state: State::Over, event: Event::Preempted })
        );
    }
}
