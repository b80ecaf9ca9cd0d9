//! The cursor of one source of events.

use kvrail_kv::{KvEvent, KvEventBatch};

/// What the index must do about a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing: known already, or waiting for a snapshot.
    Ignore,
    /// Apply these, in order.
    Apply(Vec<KvEvent>),
    /// Replace all that is known of this source by these stored runs.
    Replace(Vec<KvEvent>),
    /// Drop all that is known of this source and ask for a snapshot from `expected_sequence` on.
    ClearAndResync {
        /// The first event that is missing.
        expected_sequence: u64,
    },
}

/// A message that breaks the protocol; its stream is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// More blocks in one snapshot than a source may have.
    #[error("a snapshot of more than {max} blocks")]
    SnapshotTooLarge {
        /// The bound.
        max: u64,
    },
    /// A snapshot that holds something else than stored runs.
    #[error("a snapshot may hold stored runs only")]
    NotStored,
    /// A sequence number so high that the next would not fit.
    #[error("sequence numbers ran past their end")]
    SequenceOverflow,
}

/// Counters of one source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceStats {
    /// Events applied.
    pub applied: u64,
    /// Events dropped because a snapshot or an earlier message covered them.
    pub duplicates: u64,
    /// Gaps found, each with a snapshot asked for.
    pub gaps: u64,
    /// Snapshots taken.
    pub snapshots: u64,
}

#[derive(Debug)]
enum State {
    /// Since the start, or since a gap: events say nothing until a snapshot came.
    AwaitingSnapshot { parts: Vec<KvEvent>, blocks: u64 },
    /// All below `next` is applied.
    Live { next: u64 },
}

/// Where one registration's events stand.
#[derive(Debug)]
pub struct Source {
    state: State,
    snapshot_blocks_max: u64,
    stats: SourceStats,
}

impl Source {
    /// A source that will begin with a snapshot, of at most `snapshot_blocks_max` blocks over all its parts.
    #[must_use]
    pub fn new(snapshot_blocks_max: u64) -> Self {
        let state = State::AwaitingSnapshot { parts: Vec::new(), blocks: 0 };
        Self { state, snapshot_blocks_max, stats: SourceStats::default() }
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> SourceStats {
        self.stats
    }

    /// Events between what is applied and `node_next`, the sequence of the next event that the node will emit. `None`
    /// while a snapshot is awaited, or where the node does not say (0).
    #[must_use]
    pub fn lag(&self, node_next: u64) -> Option<u64> {
        match self.state {
            State::Live { next } if node_next > 0 => Some(node_next.saturating_sub(next)),
            _ => None,
        }
    }

    /// A batch of events came.
    ///
    /// # Errors
    /// [`SourceError::SequenceOverflow`].
    pub fn handle_events(&mut self, batch: KvEventBatch) -> Result<Action, SourceError> {
        let count = batch.events.len() as u64;
        let end = batch.first_sequence.checked_add(count).ok_or(SourceError::SequenceOverflow)?;
        let State::Live { next } = &mut self.state else {
            // The snapshot that is on its way was taken later, so it covers these.
            self.stats.duplicates += count;
            return Ok(Action::Ignore);
        };
        if batch.first_sequence > *next {
            let expected_sequence = *next;
            self.stats.gaps += 1;
            self.state = State::AwaitingSnapshot { parts: Vec::new(), blocks: 0 };
            return Ok(Action::ClearAndResync { expected_sequence });
        }
        let known = (*next - batch.first_sequence).min(count);
        self.stats.duplicates += known;
        if known == count {
            return Ok(Action::Ignore);
        }
        *next = end;
        self.stats.applied += count - known;
        Ok(Action::Apply(batch.events.into_iter().skip(known as usize).collect()))
    }

    /// A part of a snapshot came; after the `last` one the next event has number `next_sequence`.
    ///
    /// # Errors
    /// [`SourceError::SnapshotTooLarge`], [`SourceError::NotStored`].
    pub fn handle_snapshot(
        &mut self,
        stored: Vec<KvEvent>,
        next_sequence: u64,
        last: bool,
    ) -> Result<Action, SourceError> {
        if let State::Live { .. } = self.state {
            // Unasked: a node may always say all again.
            self.state = State::AwaitingSnapshot { parts: Vec::new(), blocks: 0 };
        }
        let State::AwaitingSnapshot { parts, blocks } = &mut self.state else { return Ok(Action::Ignore) };
        for event in &stored {
            let KvEvent::Stored { blocks: run, .. } = event else { return Err(SourceError::NotStored) };
            // An empty run costs memory too.
            *blocks += (run.len() as u64).max(1);
        }
        if *blocks > self.snapshot_blocks_max {
            return Err(SourceError::SnapshotTooLarge { max: self.snapshot_blocks_max });
        }
        parts.extend(stored);
        if !last {
            return Ok(Action::Ignore);
        }
        let parts = std::mem::take(parts);
        self.state = State::Live { next: next_sequence };
        self.stats.snapshots += 1;
        Ok(Action::Replace(parts))
    }
}

#[cfg(test)]
mod tests {
    use kvrail_kv::{ChainHash, Tier};
    use proptest::prelude::*;

    use super::*;

    fn stored(block: u64) -> KvEvent {
        KvEvent::Stored { parent: None, blocks: vec![ChainHash(block)], tier: Tier::Device }
    }

    fn batch(first_sequence: u64, blocks: &[u64]) -> KvEventBatch {
        KvEventBatch { first_sequence, events: blocks.iter().copied().map(stored).collect() }
    }

    fn live(next: u64) -> Source {
        let mut source = Source::new(10_000);
        assert_eq!(source.handle_snapshot(vec![], next, true), Ok(Action::Replace(vec![])));
        source
    }

    #[test]
    fn events_say_nothing_before_the_snapshot() {
        let mut source = Source::new(100);
        assert_eq!(source.handle_events(batch(0, &[1])), Ok(Action::Ignore));
        assert_eq!(source.handle_snapshot(vec![stored(1)], 3, false), Ok(Action::Ignore));
        assert_eq!(source.handle_snapshot(vec![stored(2)], 3, true), Ok(Action::Replace(vec![stored(1), stored(2)])));
        assert_eq!(source.handle_events(batch(1, &[7, 8, 9])), Ok(Action::Apply(vec![stored(9)])), "2 are covered");
        assert_eq!(source.handle_events(batch(1, &[7, 8, 9])), Ok(Action::Ignore), "a replay");
        assert_eq!(source.stats().duplicates, 1 + 2 + 3);
        assert_eq!((source.lag(4), source.lag(9), source.lag(0)), (Some(0), Some(5), None));
    }

    #[test]
    fn a_gap_clears_and_asks_once() {
        let mut source = live(5);
        assert_eq!(source.handle_events(batch(7, &[1])), Ok(Action::ClearAndResync { expected_sequence: 5 }));
        assert_eq!(source.handle_events(batch(8, &[1])), Ok(Action::Ignore), "asked already");
        assert_eq!(source.lag(9), None);
        assert_eq!(source.handle_snapshot(vec![stored(3)], 9, true), Ok(Action::Replace(vec![stored(3)])));
        assert_eq!(source.handle_events(batch(9, &[4])), Ok(Action::Apply(vec![stored(4)])));
        assert_eq!(source.stats(), SourceStats { applied: 1, duplicates: 1, gaps: 1, snapshots: 2 });
    }

    #[test]
    fn hostile_messages_are_typed_errors() {
        let mut source = live(0);
        assert_eq!(source.handle_events(batch(u64::MAX, &[1])), Err(SourceError::SequenceOverflow));
        let mut source = Source::new(100);
        let huge = KvEvent::Stored { parent: None, blocks: vec![ChainHash(1); 60], tier: Tier::Device };
        assert_eq!(source.handle_snapshot(vec![huge.clone()], 0, false), Ok(Action::Ignore));
        assert_eq!(source.handle_snapshot(vec![huge], 0, false), Err(SourceError::SnapshotTooLarge { max: 100 }));
        assert_eq!(Source::new(9).handle_snapshot(vec![KvEvent::Cleared], 0, true), Err(SourceError::NotStored));
    }

    proptest! {
        /// A node with a lossy queue and replays: whatever is lost or said twice, what was applied since the last
        /// replacement is exactly the node's events from there on, each once and in order.
        #[test]
        fn nothing_is_lost_silently_or_applied_twice(sends in proptest::collection::vec((0..4u64, 0..5u64, any::<bool>()), 1..60)) {
            let mut source = live(0);
            let mut emitted = 0u64;     // the node's next event; event n stores block n
            let mut known_to = 0u64;    // all below is in the index
            for (back, len, lost) in sends {
                let first = emitted.saturating_sub(back);
                let end = emitted + len;
                emitted = end;
                if lost {
                    continue;
                }
                let events: Vec<u64> = (first..end).collect();
                match source.handle_events(batch(first, &events)).unwrap() {
                    Action::Ignore => {}
                    Action::Apply(events) => {
                        for event in events {
                            prop_assert_eq!(event, stored(known_to));
                            known_to += 1;
                        }
                    }
                    Action::ClearAndResync { expected_sequence } => {
                        prop_assert_eq!(expected_sequence, known_to);
                        let all: Vec<_> = (0..emitted).map(stored).collect();
                        let replaced = source.handle_snapshot(all.clone(), emitted, true);
                        prop_assert_eq!(replaced, Ok(Action::Replace(all)));
                        known_to = emitted;
                    }
                    Action::Replace(_) => prop_assert!(false, "no snapshot was sent"),
                }
            }
            prop_assert!(source.lag(emitted.max(1)).is_some());
        }
    }
}
