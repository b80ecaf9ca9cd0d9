//! The log of what became findable and what is gone, coalesced and bounded.

use kvrail_kv::{ChainHash, KvEvent, Tier};

/// Events since they were last taken. Holds at most `hashes_max` hashes; past that it forgets them and remembers only
/// that a snapshot is due.
#[derive(Debug)]
pub(super) struct EventLog {
    events: Vec<KvEvent>,
    hashes: usize,
    hashes_max: usize,
    overflowed: bool,
}

/// What the log has to tell.
pub(super) enum Pending {
    /// These events, in order.
    Events(Vec<KvEvent>),
    /// More than the log holds: tell everything anew.
    Overflow,
}

impl EventLog {
    pub(super) fn new(hashes_max: usize) -> Self {
        Self { events: Vec::new(), hashes: 0, hashes_max, overflowed: false }
    }

    pub(super) fn stored(&mut self, parent: Option<ChainHash>, block: ChainHash) {
        if !self.count() {
            return;
        }
        if let Some(KvEvent::Stored { blocks, .. }) = self.events.last_mut()
            && parent.is_some()
            && parent == blocks.last().copied()
        {
            blocks.push(block);
            return;
        }
        self.events.push(KvEvent::Stored { parent, blocks: vec![block], tier: Tier::Device });
    }

    pub(super) fn removed(&mut self, block: ChainHash) {
        if !self.count() {
            return;
        }
        if let Some(KvEvent::Removed { blocks, .. }) = self.events.last_mut() {
            blocks.push(block);
            return;
        }
        self.events.push(KvEvent::Removed { blocks: vec![block], tier: Tier::Device });
    }

    pub(super) fn take(&mut self) -> Pending {
        self.hashes = 0;
        if std::mem::take(&mut self.overflowed) {
            return Pending::Overflow;
        }
        Pending::Events(std::mem::take(&mut self.events))
    }

    /// Whether one more hash may be logged.
    fn count(&mut self) -> bool {
        if self.overflowed {
            return false;
        }
        self.hashes += 1;
        if self.hashes > self.hashes_max {
            self.overflowed = true;
            self.events = Vec::new();
        }
        !self.overflowed
    }
}
