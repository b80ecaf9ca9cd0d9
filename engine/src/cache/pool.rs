//! The state machine of blocks. Every transition is one method; every wrong one is a [`CacheError`] that changes nothing.

use std::collections::HashMap;

use kvrail_kv::{BlockKey, ChainHash, KvEvent, Tier};

use super::events::{EventLog, Pending};
use super::lru::Lru;
use crate::memory::BlockId;

/// Fewest hashes that the event log holds before it falls back to a snapshot.
const LOG_HASHES_MIN: usize = 4096;

/// A count of blocks that [`BlockCache::take`] is sure to give. Hand it back with [`BlockCache::cancel`]: dropping it
/// leaves the blocks promised for ever.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a reservation that is dropped stays promised; give it to `cancel`"]
pub struct Reservation {
    left: u32,
}

impl Reservation {
    /// Blocks still to be taken.
    #[must_use]
    pub fn left(&self) -> u32 {
        self.left
    }

    /// Adds what `other` promises to this one.
    pub fn merge(&mut self, other: Self) {
        self.left += other.left;
    }
}

/// What became of a completed block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// Lookups find it from now on.
    Stored,
    /// The holder goes on with it, lookups do not find it: an equal one was there first, its hash belongs to another
    /// block, or its own parent cannot be found.
    Private,
}

/// A call that the state of the pool does not allow. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CacheError {
    /// More blocks were asked for than are free or can be evicted, less what is promised.
    #[error("{wanted} blocks wanted, {available} of {total} are available")]
    NoCapacity {
        /// Blocks asked for.
        wanted: u32,
        /// Blocks that could be promised.
        available: u32,
        /// Blocks of the pool.
        total: u32,
    },
    /// Every block of the reservation has been taken.
    #[error("the reservation has no block left")]
    ReservationSpent,
    /// The block's state does not allow the operation.
    #[error("cannot {operation} block {block}: it is {state}")]
    WrongState {
        /// The block.
        block: u32,
        /// What was asked.
        operation: &'static str,
        /// What it is.
        state: &'static str,
    },
    /// No such block.
    #[error("block {block} is outside the pool of {total}")]
    NoSuchBlock {
        /// The block.
        block: u32,
        /// Blocks of the pool.
        total: u32,
    },
}

/// How many blocks are in each state; all but `reserved` add up to the pool. `reserved` of the free and cached ones are
/// promised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounters {
    /// Neither held nor findable.
    pub free: u32,
    /// Held, being filled.
    pub writing: u32,
    /// Held, complete, not findable.
    pub private: u32,
    /// Findable, and held (or an ancestor of a held one).
    pub shared: u32,
    /// Findable, held by nobody: evictable.
    pub cached: u32,
    /// Lent to a peer that may still touch it.
    pub quarantined: u32,
    /// Promised to reservations.
    pub reserved: u32,
}

impl CacheCounters {
    /// Blocks that a reservation could still get.
    #[must_use]
    pub fn available(&self) -> u32 {
        self.free + self.cached - self.reserved
    }
}

/// Totals since start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Blocks that lookups asked for.
    pub looked_up: u64,
    /// Blocks that lookups found, proved and pinned.
    pub hits: u64,
    /// Lookups that met an equal hash with another proof.
    pub collisions: u64,
    /// Lookups cut short because their block was promised to a reservation.
    pub pins_refused: u64,
    /// Blocks that became findable.
    pub stored: u64,
    /// Findable blocks that were evicted.
    pub evicted: u64,
}

#[derive(Debug)]
enum State {
    Free,
    Writing,
    Private { twin: Option<BlockId> },
    Keyed(Keyed),
    Quarantined,
}

/// A findable block. `active()` is the difference between shared and cached.
#[derive(Debug)]
struct Keyed {
    key: BlockKey,
    parent: Option<BlockId>,
    pins: u32,
    active_children: u32,
}

/// Children of each block as linked lists, built for one snapshot.
struct Family {
    first_child: Vec<Option<BlockId>>,
    sibling: Vec<Option<BlockId>>,
}

impl Family {
    fn adopt(&mut self, parent: BlockId, child: BlockId) {
        self.sibling[child.0 as usize] = self.first_child[parent.0 as usize].replace(child);
    }

    fn children(&self, parent: BlockId) -> impl Iterator<Item = BlockId> {
        std::iter::successors(self.first_child[parent.0 as usize], |child| self.sibling[child.0 as usize])
    }
}

impl Keyed {
    fn active(&self) -> bool {
        self.pins > 0 || self.active_children > 0
    }
}

/// The pool of blocks with its prefix cache. See the [module](super) for states and guarantees.
///
/// ```
/// use kvrail_engine::cache::BlockCache;
/// use kvrail_kv::{Chain, DType, KvFormat, Namespace, NamespaceParts};
/// let format = KvFormat { layers: 1, kv_heads: 1, head_dim: 8, block_tokens: 4, dtype: DType::F16 };
/// let parts = NamespaceParts { model: "m", format: &format, numerics: "mock", adapter: "", salt: "" };
/// let chain = Chain::keys(&Namespace::new(&parts), 4, &[1, 2, 3, 4, 5, 6, 7, 8]);
///
/// let mut cache = BlockCache::new(8);
/// let mut promised = cache.reserve(2)?;
/// let first = cache.take(&mut promised)?;
/// let second = cache.take(&mut promised)?;
/// cache.complete(first, chain[0], None)?;
/// cache.complete(second, chain[1], Some(first))?;
/// cache.cancel(promised);
/// for block in [first, second] {
///     cache.release(block)?;
/// }
/// assert_eq!(cache.lookup(&chain), [first, second]);
/// # Ok::<(), kvrail_engine::cache::CacheError>(())
/// ```
#[derive(Debug)]
pub struct BlockCache {
    slots: Vec<State>,
    free: Vec<BlockId>,
    lru: Lru,
    pub(super) index: HashMap<ChainHash, BlockId>,
    log: EventLog,
    counters: CacheCounters,
    stats: CacheStats,
}

impl BlockCache {
    /// A pool of `blocks` free blocks.
    #[must_use]
    pub fn new(blocks: u32) -> Self {
        Self {
            slots: (0..blocks).map(|_| State::Free).collect(),
            free: (0..blocks).rev().map(BlockId).collect(),
            lru: Lru::new(blocks),
            index: HashMap::new(),
            log: EventLog::new(LOG_HASHES_MIN.max(2 * blocks as usize)),
            counters: CacheCounters { free: blocks, ..CacheCounters::default() },
            stats: CacheStats::default(),
        }
    }

    /// Blocks of the pool.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Leading blocks of `chain` that are here and proved, without pinning them: a hint for schedulers.
    #[must_use]
    pub fn held(&self, chain: &[BlockKey]) -> u32 {
        let proved = |key: &&BlockKey| self.index.get(&key.hash).is_some_and(|&id| self.keyed(id).key == **key);
        chain.iter().take_while(proved).count() as u32
    }

    /// The longest prefix of `chain` (keys from the head of a sequence) that is here, proved, and can be pinned without
    /// breaking a promise; each block of it is pinned once more.
    pub fn lookup(&mut self, chain: &[BlockKey]) -> Vec<BlockId> {
        self.stats.looked_up += chain.len() as u64;
        let mut found: Vec<BlockId> = Vec::new();
        for key in chain {
            let Some(&id) = self.index.get(&key.hash) else { break };
            let block = self.keyed(id);
            if block.key.proof != key.proof {
                self.stats.collisions += 1;
                break;
            }
            if block.parent != found.last().copied() {
                break;
            }
            if !block.active() && self.counters.available() == 0 {
                self.stats.pins_refused += 1;
                break;
            }
            self.pin(id);
            found.push(id);
        }
        self.stats.hits += found.len() as u64;
        found
    }

    /// Promises `count` blocks.
    ///
    /// # Errors
    /// [`CacheError::NoCapacity`] if fewer are free or evictable beyond what is promised.
    pub fn reserve(&mut self, count: u32) -> Result<Reservation, CacheError> {
        let available = self.counters.available();
        if count > available {
            return Err(CacheError::NoCapacity { wanted: count, available, total: self.blocks() });
        }
        self.counters.reserved += count;
        Ok(Reservation { left: count })
    }

    /// Admits a sequence of `blocks` blocks in all: pins what is here of `chain` and promises the rest, or does neither.
    ///
    /// # Errors
    /// [`CacheError::NoCapacity`] if the rest cannot be promised; nothing stays pinned.
    pub fn admit(&mut self, chain: &[BlockKey], blocks: u32) -> Result<(Vec<BlockId>, Reservation), CacheError> {
        let wanted = chain.len().min(blocks as usize);
        let pinned = self.lookup(&chain[..wanted]);
        match self.reserve(blocks - pinned.len() as u32) {
            Ok(promised) => Ok((pinned, promised)),
            Err(refused) => {
                pinned.into_iter().for_each(|block| self.unpin(block));
                Err(refused)
            }
        }
    }

    /// Gives back what a reservation has left.
    pub fn cancel(&mut self, reservation: Reservation) {
        self.counters.reserved -= reservation.left;
    }

    /// A promised block, to be filled by the caller alone. Evicts the oldest unreferenced leaf if none is free.
    ///
    /// # Errors
    /// [`CacheError::ReservationSpent`] if nothing is left of the promise; there is no other failure.
    pub fn take(&mut self, reservation: &mut Reservation) -> Result<BlockId, CacheError> {
        if reservation.left == 0 {
            return Err(CacheError::ReservationSpent);
        }
        if self.free.is_empty() {
            self.evict();
        }
        let id = self.free.pop().expect("free + cached ≥ reserved");
        reservation.left -= 1;
        self.counters.reserved -= 1;
        self.counters.free -= 1;
        self.counters.writing += 1;
        self.slots[id.0 as usize] = State::Writing;
        Ok(id)
    }

    /// The block is full and its key known. `parent` is the block before it in the caller's table, which the caller
    /// holds; `None` at the head of a sequence. The caller goes on holding the block.
    ///
    /// # Errors
    /// [`CacheError::WrongState`] unless the block is being written and the parent is complete and held.
    pub fn complete(
        &mut self,
        block: BlockId,
        key: BlockKey,
        parent: Option<BlockId>,
    ) -> Result<Completion, CacheError> {
        let State::Writing = self.state(block)? else { return Err(self.wrong(block, "complete")) };
        let linked = match parent {
            None => Some(None),
            Some(parent) => match self.state(parent)? {
                State::Keyed(p) if p.active() => Some(Some(parent)),
                State::Private { twin } => twin.map(Some),
                _ => return Err(self.wrong(parent, "append to")),
            },
        };
        let twin = match self.index.get(&key.hash).copied() {
            None => None,
            Some(other) if self.keyed(other).key == key => Some(other),
            Some(_) => {
                self.stats.collisions += 1;
                return Ok(self.keep_private(block, None));
            }
        };
        match (linked, twin) {
            (Some(parent), None) => {
                self.store(block, key, parent);
                Ok(Completion::Stored)
            }
            // The twin's parent is the caller's, so it is active, and to pin the twin takes at most one available block.
            (Some(parent), Some(twin))
                if parent == self.keyed(twin).parent
                    && (self.keyed(twin).active() || self.counters.available() > 0) =>
            {
                self.pin(twin);
                Ok(self.keep_private(block, Some(twin)))
            }
            _ => Ok(self.keep_private(block, None)),
        }
    }

    /// Lets go of a block once: one pin of a findable block, or the block itself if only its holder knows it.
    ///
    /// # Errors
    /// [`CacheError::WrongState`] if nobody holds it.
    pub fn release(&mut self, block: BlockId) -> Result<(), CacheError> {
        match self.state(block)? {
            State::Writing => self.counters.writing -= 1,
            State::Private { twin } => {
                let twin = *twin;
                self.counters.private -= 1;
                if let Some(twin) = twin {
                    self.unpin(twin);
                }
            }
            State::Keyed(keyed) if keyed.pins > 0 => {
                self.unpin(block);
                return Ok(());
            }
            _ => return Err(self.wrong(block, "release")),
        }
        self.put_free(block);
        Ok(())
    }

    /// Takes a block out of use that a peer may still touch. Its holder holds it no more.
    ///
    /// # Errors
    /// [`CacheError::WrongState`] unless one holder alone knows the block.
    pub fn quarantine(&mut self, block: BlockId) -> Result<(), CacheError> {
        match self.state(block)? {
            State::Writing => self.counters.writing -= 1,
            State::Private { twin } => {
                let twin = *twin;
                self.counters.private -= 1;
                if let Some(twin) = twin {
                    self.unpin(twin);
                }
            }
            _ => return Err(self.wrong(block, "quarantine")),
        }
        self.counters.quarantined += 1;
        self.slots[block.0 as usize] = State::Quarantined;
        Ok(())
    }

    /// The block is fenced: it is free again.
    ///
    /// # Errors
    /// [`CacheError::WrongState`] unless it is quarantined.
    pub fn unquarantine(&mut self, block: BlockId) -> Result<(), CacheError> {
        let State::Quarantined = self.state(block)? else { return Err(self.wrong(block, "unquarantine")) };
        self.counters.quarantined -= 1;
        self.put_free(block);
        Ok(())
    }

    /// What changed since the last call, in order. After more changes than the log holds it is `Cleared` and a snapshot.
    pub fn drain_events(&mut self) -> Vec<KvEvent> {
        match self.log.take() {
            Pending::Events(events) => events,
            Pending::Overflow => std::iter::once(KvEvent::Cleared).chain(self.snapshot()).collect(),
        }
    }

    /// All findable blocks as `Stored` events, parents before children, unbranched runs in one event. O(pool), without a
    /// hash: it runs under the lock of whoever owns the cache.
    #[must_use]
    pub fn snapshot(&self) -> Vec<KvEvent> {
        let mut family = Family { first_child: vec![None; self.slots.len()], sibling: vec![None; self.slots.len()] };
        let mut heads = Vec::new();
        for (id, state) in (0..).map(BlockId).zip(&self.slots) {
            let State::Keyed(keyed) = state else { continue };
            match keyed.parent {
                Some(parent) => family.adopt(parent, id),
                None => heads.push(id),
            }
        }
        let mut events = Vec::new();
        while let Some(head) = heads.pop() {
            let first = self.keyed(head);
            let mut blocks = vec![first.key.hash];
            let mut last = head;
            while let Some(child) = family.first_child[last.0 as usize] {
                if family.sibling[child.0 as usize].is_some() {
                    heads.extend(family.children(last));
                    break;
                }
                last = child;
                blocks.push(self.keyed(child).key.hash);
            }
            let parent = first.parent.map(|p| self.keyed(p).key.hash);
            events.push(KvEvent::Stored { parent, blocks, tier: Tier::Device });
        }
        events
    }

    /// How many blocks are in each state now.
    #[must_use]
    pub fn counters(&self) -> CacheCounters {
        self.counters
    }

    /// Totals since start.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        self.stats
    }

    fn store(&mut self, block: BlockId, key: BlockKey, parent: Option<BlockId>) {
        self.counters.writing -= 1;
        self.counters.shared += 1;
        self.stats.stored += 1;
        self.slots[block.0 as usize] = State::Keyed(Keyed { key, parent, pins: 1, active_children: 0 });
        self.index.insert(key.hash, block);
        let parent_hash = parent.map(|p| {
            let parent = self.keyed_mut(p);
            parent.active_children += 1;
            parent.key.hash
        });
        self.log.stored(parent_hash, key.hash);
    }

    fn keep_private(&mut self, block: BlockId, twin: Option<BlockId>) -> Completion {
        self.counters.writing -= 1;
        self.counters.private += 1;
        self.slots[block.0 as usize] = State::Private { twin };
        Completion::Private
    }

    /// Pins a findable block; activates it and its ancestors if they were not.
    fn pin(&mut self, block: BlockId) {
        let keyed = self.keyed_mut(block);
        let mut was_active = keyed.active();
        keyed.pins += 1;
        let mut at = block;
        while !was_active {
            self.lru.unlink(at);
            self.counters.cached -= 1;
            self.counters.shared += 1;
            let Some(parent) = self.keyed(at).parent else { break };
            let keyed = self.keyed_mut(parent);
            was_active = keyed.active();
            keyed.active_children += 1;
            at = parent;
        }
    }

    /// Unpins a findable block; it and the ancestors that nothing else keeps active become evictable, children first.
    fn unpin(&mut self, block: BlockId) {
        self.keyed_mut(block).pins -= 1;
        let mut at = block;
        while !self.keyed(at).active() {
            self.lru.push(at);
            self.counters.shared -= 1;
            self.counters.cached += 1;
            let Some(parent) = self.keyed(at).parent else { break };
            self.keyed_mut(parent).active_children -= 1;
            at = parent;
        }
    }

    fn evict(&mut self) {
        let Some(block) = self.lru.pop() else { return };
        let hash = self.keyed(block).key.hash;
        self.index.remove(&hash);
        self.log.removed(hash);
        self.counters.cached -= 1;
        self.stats.evicted += 1;
        self.put_free(block);
    }

    fn put_free(&mut self, block: BlockId) {
        self.slots[block.0 as usize] = State::Free;
        self.counters.free += 1;
        self.free.push(block);
    }

    fn state(&self, block: BlockId) -> Result<&State, CacheError> {
        let missing = CacheError::NoSuchBlock { block: block.0, total: self.blocks() };
        self.slots.get(block.0 as usize).ok_or(missing)
    }

    fn keyed(&self, block: BlockId) -> &Keyed {
        match &self.slots[block.0 as usize] {
            State::Keyed(keyed) => keyed,
            _ => unreachable!("the index, the LRU list, twins and parents name findable blocks only"),
        }
    }

    fn keyed_mut(&mut self, block: BlockId) -> &mut Keyed {
        match &mut self.slots[block.0 as usize] {
            State::Keyed(keyed) => keyed,
            _ => unreachable!("the index, the LRU list, twins and parents name findable blocks only"),
        }
    }

    fn wrong(&self, block: BlockId, operation: &'static str) -> CacheError {
        let state = match &self.slots[block.0 as usize] {
            State::Free => "free",
            State::Writing => "being written",
            State::Private { .. } => "private to its holder",
            State::Keyed(keyed) if keyed.active() => "shared",
            State::Keyed(_) => "cached, held by nobody",
            State::Quarantined => "quarantined",
        };
        CacheError::WrongState { block: block.0, operation, state }
    }
}
