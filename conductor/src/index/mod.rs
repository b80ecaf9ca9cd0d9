//! The global prefix index: which node holds which prefix.
//!
//! Structure: the interface is [`PrefixIndex`]; [`FlatIndex`] is its first implementation, exact and simple. A query has
//! the keys of a whole chain at hand and a chain hash names a block *and all before it*, so no tree is needed: a holder's
//! answer is the number of leading keys that it holds, each looked up on its own. That is also why orphans need no care:
//! a block whose parent is not known counts from the moment the parent comes.
//!
//! Exactness: for each holder the answer is the length of the longest prefix **all of whose blocks** it holds, under any
//! order of stored, removed and cleared. A holder that lost its head blocks holds nothing of the prefix. The bound on
//! memory ([`IndexStats::evicted`]) can make answers too small, never too large.
//!
//! The answers are hints all the same (law 1): they say what the events said, and nodes verify what they load.

mod flat;
#[cfg(test)]
mod oracle;

use kvrail_kv::{ChainHash, KvEvent, Tier};

use crate::members::MemberId;

pub use flat::FlatIndex;

/// How much of a chain one holder has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    /// Who.
    pub holder: MemberId,
    /// Leading blocks of the chain that it holds, in any tier. At least 1: who holds none is not named.
    pub blocks: u32,
    /// Leading blocks that lie in its device tier; at most `blocks`.
    pub device_blocks: u32,
}

/// Sizes and counters of an index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexStats {
    /// Distinct blocks known.
    pub blocks: usize,
    /// (holder, block) pairs known.
    pub memberships: usize,
    /// Memberships dropped to stay within the bound, since the start.
    pub evicted: u64,
    /// Removals of what was not known (evicted here, or never told), since the start.
    pub unknown_removals: u64,
}

/// The interface that routing and the event feeds use. Pure: no clock, no I/O.
///
/// A block that is stored twice in a tier must be removed twice: sources may hold two copies.
pub trait PrefixIndex: Send {
    /// `holder` stored `blocks`, consecutive in one chain after `parent`.
    fn handle_stored(&mut self, holder: MemberId, tier: Tier, parent: Option<ChainHash>, blocks: &[ChainHash]);

    /// `holder` dropped one copy of each of `blocks` from `tier`.
    fn handle_removed(&mut self, holder: MemberId, tier: Tier, blocks: &[ChainHash]);

    /// `holder` holds nothing any more, or is gone.
    fn handle_cleared(&mut self, holder: MemberId);

    /// For each holder of at least the first block: the longest prefix it holds, ordered by holder.
    fn query(&self, chain: &[ChainHash]) -> Vec<Match>;

    /// Sizes and counters.
    fn stats(&self) -> IndexStats;

    /// Applies one event of `holder`.
    fn handle_event(&mut self, holder: MemberId, event: &KvEvent) {
        match event {
            KvEvent::Stored { parent, blocks, tier } => self.handle_stored(holder, *tier, *parent, blocks),
            KvEvent::Removed { blocks, tier } => self.handle_removed(holder, *tier, blocks),
            KvEvent::Cleared => self.handle_cleared(holder),
        }
    }

    /// Replaces all that is known of `holder` by `events` (those of a snapshot: stored runs).
    fn handle_snapshot(&mut self, holder: MemberId, events: &[KvEvent]) {
        self.handle_cleared(holder);
        for event in events {
            self.handle_event(holder, event);
        }
    }
}
