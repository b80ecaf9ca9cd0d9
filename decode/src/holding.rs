//! The blocks and the headroom of one request. Dropping it gives everything back, whatever path the request ends on; blocks
//! that are lent go through quarantine (see [`lend`](crate::lend)).

use kvrail_engine::BlockId;
use kvrail_engine::cache::{BlockCache, CacheError, Reservation};
use kvrail_kv::BlockKey;
use kvrail_node::KvCache;

use crate::lend::Lent;

/// A sequence's block table with the promise of more.
#[derive(Debug)]
pub struct Holding {
    cache: KvCache,
    table: Vec<BlockId>,
    /// `None` only while it is being given back.
    promised: Option<Reservation>,
    /// Leading blocks that the cache has been told the key of.
    complete: u32,
    /// What a prefill node may write: blocks from an index of the table on.
    pub(crate) lent: Option<Lent>,
}

impl Holding {
    /// Pins what is cached of `chain` and promises the rest of `blocks`, both or neither.
    ///
    /// # Errors
    /// [`CacheError::NoCapacity`] if the headroom is not there now.
    pub fn admit(cache: &KvCache, chain: &[BlockKey], blocks: u32) -> Result<Self, CacheError> {
        let (table, promised) = cache.with(|c| c.admit(chain, blocks))?;
        let complete = table.len() as u32;
        Ok(Self { cache: cache.clone(), table, promised: Some(promised), complete, lent: None })
    }

    /// The block table, from the start of the sequence.
    #[must_use]
    pub fn table(&self) -> &[BlockId] {
        &self.table
    }

    /// Leading blocks that are complete and keyed.
    #[must_use]
    pub fn complete(&self) -> u32 {
        self.complete
    }

    /// Grows the table to `blocks` blocks, from the promise first and from what is free beyond it.
    ///
    /// # Errors
    /// [`CacheError::NoCapacity`] if neither has enough; the table is as it was.
    pub fn grow(&mut self, blocks: u32) -> Result<(), CacheError> {
        let missing = blocks.saturating_sub(self.table.len() as u32);
        if missing == 0 {
            return Ok(());
        }
        let Self { cache, table, promised, .. } = self;
        cache.with(|c| {
            let promised = promised.get_or_insert(c.reserve(0)?);
            if promised.left() < missing {
                promised.merge(c.reserve(missing - promised.left())?);
            }
            for _ in 0..missing {
                table.push(c.take(promised)?);
            }
            Ok(())
        })
    }

    /// Tells the cache that the next blocks are full and what their keys are.
    ///
    /// # Errors
    /// [`CacheError::WrongState`] if a block is not ours to complete: a bug.
    pub fn complete_next(&mut self, keys: &[BlockKey]) -> Result<(), CacheError> {
        let Self { cache, table, complete, .. } = self;
        cache.with(|c| {
            for key in keys {
                let at = *complete as usize;
                let parent = at.checked_sub(1).map(|p| table[p]);
                c.complete(table[at], *key, parent)?;
                *complete += 1;
            }
            Ok(())
        })
    }

    /// Gives the blocks after the first `keep` back and has as many promised again.
    pub fn shrink(&mut self, keep: u32) {
        let Self { cache, table, promised, complete, .. } = self;
        let dropped = table.split_off((keep as usize).min(table.len()));
        *complete = (*complete).min(keep);
        cache.with(|c| {
            for &block in &dropped {
                release(c, &[block]);
                // Under one lock: what was released is there to be promised (a block that others hold too may not be,
                // and is then missed only if nothing else is free when the table grows).
                if let (Ok(again), Some(promised)) = (c.reserve(1), promised.as_mut()) {
                    promised.merge(again);
                }
            }
        });
    }

    /// Takes the blocks after the first `keep` out of use, until they are fenced; they are no part of this any more.
    pub fn quarantine_after(&mut self, keep: u32) -> Vec<BlockId> {
        let Self { cache, table, complete, .. } = self;
        let lent = table.split_off((keep as usize).min(table.len()));
        *complete = (*complete).min(keep);
        cache.with(|c| {
            for &block in &lent {
                if let Err(error) = c.quarantine(block) {
                    tracing::error!(%error, "a lent block could not be quarantined");
                }
            }
        });
        lent
    }

    /// The cache it holds blocks of.
    #[must_use]
    pub fn cache(&self) -> &KvCache {
        &self.cache
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.abandon_lent();
        let Self { cache, table, promised, .. } = self;
        cache.with(|c| {
            release(c, table);
            if let Some(promised) = promised.take() {
                c.cancel(promised);
            }
        });
    }
}

fn release(cache: &mut BlockCache, blocks: &[BlockId]) {
    for &block in blocks {
        if let Err(error) = cache.release(block) {
            tracing::error!(%error, "a held block could not be released");
        }
    }
}

#[cfg(test)]
mod tests {
    use kvrail_kv::{Chain, DType, KvFormat, Namespace, NamespaceParts};

    use super::*;

    fn pool(blocks: u32) -> (KvCache, Vec<BlockKey>) {
        let format = KvFormat { layers: 1, kv_heads: 1, head_dim: 8, block_tokens: 1, dtype: DType::F16 };
        let parts = NamespaceParts { model: "m", format: &format, numerics: "n", adapter: "", salt: "" };
        let chain = Chain::keys(&Namespace::new(&parts), 1, &[1, 2, 3, 4, 5, 6, 7, 8]);
        (KvCache::new(BlockCache::new(blocks), 1000), chain)
    }

    #[test]
    fn all_or_nothing_and_everything_comes_back() {
        let (cache, chain) = pool(6);
        let mut first = Holding::admit(&cache, &chain[..4], 5).expect("room");
        first.grow(4).expect("promised");
        first.complete_next(&chain[..4]).expect("ours");
        assert_eq!(first.complete(), 4);
        assert!(Holding::admit(&cache, &chain[..2], 5).is_err(), "one block is free, three more are wanted");
        let second = Holding::admit(&cache, &chain[..4], 5).expect("four are shared, one is free");
        assert_eq!(second.table(), first.table());
        assert!(Holding::admit(&cache, &[], 1).is_err());
        drop(first);
        drop(second);
        let counters = cache.counters();
        assert_eq!((counters.shared, counters.writing, counters.reserved), (0, 0, 0));
        assert_eq!((counters.cached, counters.free), (4, 2));
    }

    #[test]
    fn what_is_given_back_is_still_promised() {
        let (cache, chain) = pool(4);
        let mut holding = Holding::admit(&cache, &chain, 4).expect("room");
        holding.grow(3).expect("promised");
        holding.complete_next(&chain[..1]).expect("ours");
        holding.shrink(1);
        assert!(Holding::admit(&cache, &[], 1).is_err(), "the pool is promised to the first");
        holding.grow(4).expect("still promised");
        assert_eq!(holding.complete(), 1);
    }

    #[test]
    fn growth_beyond_the_promise_takes_only_what_is_free() {
        let (cache, chain) = pool(4);
        let mut holding = Holding::admit(&cache, &chain, 1).expect("room");
        let other = Holding::admit(&cache, &[], 2).expect("room");
        holding.grow(2).expect("one is free beyond the promise");
        assert!(matches!(holding.grow(3), Err(CacheError::NoCapacity { .. })));
        assert_eq!(holding.table().len(), 2);
        drop(other);
        holding.grow(3).expect("given back");
    }

    #[test]
    fn quarantined_blocks_are_nobodys_until_fenced() {
        let (cache, chain) = pool(4);
        let mut holding = Holding::admit(&cache, &chain, 4).expect("room");
        holding.grow(3).expect("promised");
        let lent = holding.quarantine_after(1);
        drop(holding);
        assert_eq!(lent.len(), 2);
        let counters = cache.counters();
        assert_eq!((counters.quarantined, counters.free), (2, 2));
        cache.with(|c| lent.iter().for_each(|&b| c.unquarantine(b).expect("was quarantined")));
        assert_eq!(cache.counters().free, 4);
    }
}
