//! The numbered, bounded backlog of KV events between the cache and the conductor. Pure.
//!
//! Every event gets the next sequence number, whether or not anybody listens. When the backlog outgrows its bound it is
//! dropped as a whole, counted, and only a snapshot makes the stream whole again: never a silent gap.

use std::collections::VecDeque;

use kvrail_kv::{KvEvent, KvEventBatch};

/// What waits to be told.
#[derive(Debug, PartialEq, Eq)]
pub enum Backlog {
    /// Nothing.
    Empty,
    /// These events, without a gap since the last ones.
    Events(KvEventBatch),
    /// Events are missing; only a snapshot helps.
    Lost,
}

/// Events that the conductor has not been told yet.
#[derive(Debug)]
pub struct EventLog {
    waiting: VecDeque<KvEvent>,
    /// Block hashes in `waiting`: what its memory grows with.
    hashes: usize,
    hashes_max: usize,
    /// Sequence number of the next event to be pushed.
    next_sequence: u64,
    /// Nobody has a snapshot to build on, so events are numbered and dropped.
    unanchored: bool,
    lost_events: u64,
}

impl EventLog {
    /// A backlog of at most `hashes_max` block hashes. It begins without a listener: see [`EventLog::anchor`].
    #[must_use]
    pub fn new(hashes_max: usize) -> Self {
        Self { waiting: VecDeque::new(), hashes: 0, hashes_max, next_sequence: 1, unanchored: true, lost_events: 0 }
    }

    /// Numbers `events` and keeps them, if somebody has a snapshot to build on.
    pub fn push(&mut self, events: Vec<KvEvent>) {
        for event in events {
            self.next_sequence += 1;
            if self.unanchored {
                continue;
            }
            self.hashes += weight(&event);
            self.waiting.push_back(event);
            if self.hashes > self.hashes_max {
                self.lost_events += self.waiting.len() as u64;
                self.drop_listener();
            }
        }
    }

    /// Takes at most `events_max` events.
    pub fn take(&mut self, events_max: usize) -> Backlog {
        if self.unanchored {
            return Backlog::Lost;
        }
        let count = events_max.min(self.waiting.len());
        if count == 0 {
            return Backlog::Empty;
        }
        let first_sequence = self.next_sequence - self.waiting.len() as u64;
        let events: Vec<_> = self.waiting.drain(..count).collect();
        self.hashes -= events.iter().map(weight).sum::<usize>();
        Backlog::Events(KvEventBatch { first_sequence, events })
    }

    /// A snapshot is being taken at this very moment: what waited is part of it. Returns the next event's number.
    pub fn anchor(&mut self) -> u64 {
        self.drop_listener();
        self.unanchored = false;
        self.next_sequence
    }

    /// The listener is gone; it will need a snapshot.
    pub fn drop_listener(&mut self) {
        self.waiting.clear();
        self.hashes = 0;
        self.unanchored = true;
    }

    /// Sequence number of the next event to be pushed.
    #[must_use]
    pub fn next_sequence(&self) -> u64 {
        self.next_sequence
    }

    /// Events dropped because the backlog was full.
    #[must_use]
    pub fn lost_events(&self) -> u64 {
        self.lost_events
    }
}

fn weight(event: &KvEvent) -> usize {
    match event {
        KvEvent::Stored { blocks, .. } | KvEvent::Removed { blocks, .. } => 1 + blocks.len(),
        KvEvent::Cleared => 1,
    }
}

#[cfg(test)]
mod tests {
    use kvrail_kv::{ChainHash, Tier};

    use super::*;

    fn removed(hash: u64) -> KvEvent {
        KvEvent::Removed { blocks: vec![ChainHash(hash)], tier: Tier::Device }
    }

    #[test]
    fn sequence_numbers_have_no_gap_across_snapshots() {
        let mut log = EventLog::new(100);
        log.push(vec![removed(1), removed(2)]);
        assert_eq!(log.take(10), Backlog::Lost, "a listener must begin with a snapshot");
        assert_eq!(log.anchor(), 3);
        assert_eq!(log.take(10), Backlog::Empty);
        log.push(vec![removed(3), removed(4), removed(5)]);
        assert_eq!(
            log.take(2),
            Backlog::Events(KvEventBatch { first_sequence: 3, events: vec![removed(3), removed(4)] })
        );
        assert_eq!(log.take(2), Backlog::Events(KvEventBatch { first_sequence: 5, events: vec![removed(5)] }));
        assert_eq!(log.anchor(), 6);
    }

    #[test]
    fn an_overflow_is_counted_and_asks_for_a_snapshot() {
        let mut log = EventLog::new(10);
        log.anchor();
        log.push((0..20).map(removed).collect());
        assert_eq!(log.take(100), Backlog::Lost);
        assert_eq!(log.lost_events(), 6, "the sixth event of weight two was one too many");
        assert_eq!(log.anchor(), 21, "numbers went on while nobody listened");
    }
}
