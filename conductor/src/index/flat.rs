//! An exact index in one hash table: block → who holds it.
//!
//! Complexity: stored and removed O(holders of the block) each; query O(chain × holders of its head); clearing a source
//! O(its blocks). Each source has a log of its memberships in order of their last storing: it is what clearing walks and
//! where the oldest are found when memory is short. Threading: none, the owner locks.

use std::collections::{HashMap, VecDeque};

use kvrail_kv::{ChainHash, Tier};

use super::{IndexStats, Match, PrefixIndex};
use crate::members::MemberId;

/// Number of [`Tier`]s.
const TIERS: usize = 2;

/// One holder of one block.
#[derive(Clone, Copy, Debug)]
struct Holding {
    holder: MemberId,
    /// Copies in each tier.
    copies: [u16; TIERS],
    /// The entry of the source's log that stands for this membership; older ones are dead.
    stamp: u64,
}

#[derive(Debug, Default)]
struct Source {
    /// (block, stamp) in order of storing; contains each live membership once, and dead entries.
    log: VecDeque<(ChainHash, u64)>,
    live: usize,
}

/// The first [`PrefixIndex`]: exact, bounded, single-threaded.
#[derive(Debug)]
pub struct FlatIndex {
    /// Holdings of a block, sorted by holder; never empty.
    blocks: HashMap<ChainHash, Vec<Holding>>,
    sources: HashMap<MemberId, Source>,
    memberships: usize,
    memberships_max: usize,
    next_stamp: u64,
    evicted: u64,
    unknown_removals: u64,
}

const fn slot(tier: Tier) -> usize {
    match tier {
        Tier::Device => 0,
        Tier::Host => 1,
    }
}

impl FlatIndex {
    /// An empty index of at most `memberships_max` (holder, block) pairs, at about 100 bytes each.
    #[must_use]
    pub fn new(memberships_max: usize) -> Self {
        Self {
            blocks: HashMap::new(),
            sources: HashMap::new(),
            memberships: 0,
            memberships_max: memberships_max.max(1),
            next_stamp: 0,
            evicted: 0,
            unknown_removals: 0,
        }
    }

    /// Removes `holder` from `block` whatever its copies, if its stamp is `stamp` (or whichever, for `None`).
    fn forget(&mut self, holder: MemberId, block: ChainHash, stamp: Option<u64>) -> bool {
        let Some(holdings) = self.blocks.get_mut(&block) else { return false };
        let Ok(at) = holdings.binary_search_by_key(&holder, |h| h.holder) else { return false };
        if stamp.is_some_and(|stamp| holdings[at].stamp != stamp) {
            return false;
        }
        holdings.remove(at);
        if holdings.is_empty() {
            self.blocks.remove(&block);
        }
        self.memberships -= 1;
        true
    }

    /// Makes room: the oldest of the largest source go first, a 64th of it at once so that the scan is paid seldom.
    fn evict(&mut self) {
        let Some((&holder, source)) = self.sources.iter().max_by_key(|(id, s)| (s.live, id.0)) else { return };
        let mut wanted = (source.live / 64).max(1);
        while wanted > 0 {
            let Some(source) = self.sources.get_mut(&holder) else { return };
            let Some((block, stamp)) = source.log.pop_front() else { return };
            if self.forget(holder, block, Some(stamp)) {
                if let Some(source) = self.sources.get_mut(&holder) {
                    source.live -= 1;
                }
                self.evicted += 1;
                wanted -= 1;
            }
        }
    }

    /// Drops dead log entries once they outnumber the live ones.
    fn compact(&mut self, holder: MemberId) {
        let Some(source) = self.sources.get_mut(&holder) else { return };
        if source.log.len() <= 2 * source.live + 64 {
            return;
        }
        let blocks = &self.blocks;
        source.log.retain(|(block, stamp)| {
            blocks.get(block).is_some_and(|holdings| {
                holdings.binary_search_by_key(&holder, |h| h.holder).is_ok_and(|at| holdings[at].stamp == *stamp)
            })
        });
    }
}

impl PrefixIndex for FlatIndex {
    fn handle_stored(&mut self, holder: MemberId, tier: Tier, _parent: Option<ChainHash>, blocks: &[ChainHash]) {
        for &block in blocks {
            if self.memberships >= self.memberships_max {
                self.evict();
            }
            let stamp = self.next_stamp;
            self.next_stamp += 1;
            let source = self.sources.entry(holder).or_default();
            source.log.push_back((block, stamp));
            let holdings = self.blocks.entry(block).or_default();
            let at = match holdings.binary_search_by_key(&holder, |h| h.holder) {
                Ok(at) => at,
                Err(at) => {
                    holdings.insert(at, Holding { holder, copies: [0; TIERS], stamp });
                    self.memberships += 1;
                    source.live += 1;
                    at
                }
            };
            holdings[at].stamp = stamp;
            let copies = &mut holdings[at].copies[slot(tier)];
            *copies = copies.saturating_add(1);
        }
        self.compact(holder);
    }

    fn handle_removed(&mut self, holder: MemberId, tier: Tier, blocks: &[ChainHash]) {
        for &block in blocks {
            let holding = self.blocks.get_mut(&block).and_then(|holdings| {
                let at = holdings.binary_search_by_key(&holder, |h| h.holder).ok()?;
                Some(&mut holdings[at])
            });
            let Some(holding) = holding.filter(|h| h.copies[slot(tier)] > 0) else {
                self.unknown_removals += 1;
                continue;
            };
            holding.copies[slot(tier)] -= 1;
            if holding.copies == [0; TIERS] {
                self.forget(holder, block, None);
                if let Some(source) = self.sources.get_mut(&holder) {
                    source.live -= 1;
                }
            }
        }
        self.compact(holder);
    }

    fn handle_cleared(&mut self, holder: MemberId) {
        let Some(source) = self.sources.remove(&holder) else { return };
        for (block, stamp) in source.log {
            self.forget(holder, block, Some(stamp));
        }
    }

    fn query(&self, chain: &[ChainHash]) -> Vec<Match> {
        let Some(head) = chain.first().and_then(|block| self.blocks.get(block)) else { return Vec::new() };
        let on_device = |holding: &Holding| holding.copies[slot(Tier::Device)] > 0;
        let mut done = Vec::with_capacity(head.len());
        let mut active: Vec<Match> = head
            .iter()
            .map(|h| Match { holder: h.holder, blocks: 1, device_blocks: u32::from(on_device(h)) })
            .collect();
        for block in &chain[1..] {
            // Both are sorted by holder: one walk intersects them.
            let mut holdings = self.blocks.get(block).map_or(&[][..], Vec::as_slice).iter().peekable();
            active.retain_mut(|found| {
                while holdings.next_if(|h| h.holder < found.holder).is_some() {}
                let Some(holding) = holdings.next_if(|h| h.holder == found.holder) else {
                    done.push(*found);
                    return false;
                };
                if found.device_blocks == found.blocks && on_device(holding) {
                    found.device_blocks += 1;
                }
                found.blocks += 1;
                true
            });
            if active.is_empty() {
                break;
            }
        }
        done.append(&mut active);
        done.sort_unstable_by_key(|found| found.holder);
        done
    }

    fn stats(&self) -> IndexStats {
        IndexStats {
            blocks: self.blocks.len(),
            memberships: self.memberships,
            evicted: self.evicted,
            unknown_removals: self.unknown_removals,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: MemberId = MemberId(1);
    const B: MemberId = MemberId(2);
    const C: MemberId = MemberId(3);

    fn hashes(range: std::ops::Range<u64>) -> Vec<ChainHash> {
        range.map(ChainHash).collect()
    }

    fn store(index: &mut FlatIndex, holder: MemberId, range: std::ops::Range<u64>) {
        index.handle_stored(holder, Tier::Device, None, &hashes(range));
    }

    fn lengths(index: &FlatIndex, chain: &[ChainHash]) -> Vec<(MemberId, u32)> {
        index.query(chain).iter().map(|m| (m.holder, m.blocks)).collect()
    }

    #[test]
    fn a_holder_that_lost_its_head_holds_nothing() {
        let mut index = FlatIndex::new(1000);
        store(&mut index, A, 1..3);
        store(&mut index, B, 1..5);
        index.handle_removed(B, Tier::Device, &hashes(1..3));
        store(&mut index, C, 1..3);
        store(&mut index, C, 5..7);
        assert_eq!(lengths(&index, &hashes(1..5)), [(A, 2), (C, 2)]);
        store(&mut index, B, 1..3);
        assert_eq!(lengths(&index, &hashes(1..5)), [(A, 2), (B, 4), (C, 2)], "orphans count once the head is back");
    }

    #[test]
    fn copies_are_counted_and_tiers_kept_apart() {
        let mut index = FlatIndex::new(1000);
        store(&mut index, A, 1..4);
        store(&mut index, A, 1..4);
        index.handle_removed(A, Tier::Device, &hashes(1..4));
        assert_eq!(lengths(&index, &hashes(1..4)), [(A, 3)], "the second copy is still there");
        index.handle_stored(A, Tier::Host, None, &hashes(2..3));
        index.handle_removed(A, Tier::Device, &hashes(2..3));
        assert_eq!(index.query(&hashes(1..4)), [Match { holder: A, blocks: 3, device_blocks: 1 }]);
        index.handle_removed(A, Tier::Host, &hashes(1..2));
        assert_eq!(index.stats().unknown_removals, 1, "no copy of block 1 lay in the host tier");
        assert_eq!(lengths(&index, &hashes(1..4)), [(A, 3)]);
    }

    #[test]
    fn a_snapshot_replaces_and_a_clear_leaves_no_memory_behind() {
        let mut index = FlatIndex::new(1000);
        store(&mut index, A, 1..9);
        store(&mut index, B, 1..9);
        let run = kvrail_kv::KvEvent::Stored { parent: None, blocks: hashes(1..3), tier: Tier::Device };
        index.handle_snapshot(A, &[run]);
        assert_eq!(lengths(&index, &hashes(1..9)), [(A, 2), (B, 8)]);
        index.handle_cleared(A);
        index.handle_cleared(B);
        assert_eq!((index.stats().blocks, index.stats().memberships), (0, 0));
        assert!(index.sources.is_empty() && index.query(&hashes(1..9)).is_empty());
    }

    #[test]
    fn the_bound_evicts_the_oldest_of_the_largest_and_only_under_reports() {
        let mut index = FlatIndex::new(100);
        store(&mut index, B, 1000..1010);
        store(&mut index, A, 0..200);
        assert!(index.stats().memberships <= 100);
        assert_eq!(index.stats().evicted, 110);
        assert_eq!(lengths(&index, &hashes(1000..1010)), [(B, 10)], "the small source is spared");
        assert_eq!(lengths(&index, &hashes(199..200)), [(A, 1)], "the newest stay");
        assert!(lengths(&index, &hashes(0..5)).is_empty());
        index.handle_removed(A, Tier::Device, &hashes(0..200));
        assert_eq!(index.stats().memberships, 10);
    }

    #[test]
    fn the_log_stays_proportional_to_what_lives() {
        let mut index = FlatIndex::new(1000);
        for _ in 0..10_000 {
            store(&mut index, A, 1..4);
            index.handle_removed(A, Tier::Device, &hashes(1..4));
        }
        assert!(index.sources[&A].log.len() <= 64 + 8, "log has {} entries", index.sources[&A].log.len());
    }
}
