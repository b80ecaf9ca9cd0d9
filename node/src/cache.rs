//! The node's block cache behind one mutex, with its KV events on their way to the conductor.
//!
//! Threading: the lock is held for microseconds (every operation is O(1) a block), never across a forward pass, a send or
//! an await. Events leave the cache under the same lock that made them, so their order is the order of the changes, and a
//! snapshot is consistent with the sequence number it carries.

use std::sync::Arc;

use kvrail_engine::cache::{BlockCache, CacheCounters};
use kvrail_kv::KvEvent;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::membership::EventSource;
use crate::membership::log::{Backlog, EventLog};

/// The block cache of a node. Clones share it.
#[derive(Clone, Debug)]
pub struct KvCache {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug)]
struct State {
    cache: BlockCache,
    log: EventLog,
}

impl KvCache {
    /// Wraps an empty cache; `backlog_hashes_max` bounds the events that wait for the conductor.
    #[must_use]
    pub fn new(cache: BlockCache, backlog_hashes_max: usize) -> Self {
        let state = State { cache, log: EventLog::new(backlog_hashes_max) };
        Self { inner: Arc::new(Inner { state: Mutex::new(state), changed: Notify::new() }) }
    }

    /// Works on the cache. Keep `work` short: it runs under the lock.
    pub fn with<R>(&self, work: impl FnOnce(&mut BlockCache) -> R) -> R {
        let mut state = self.inner.state.lock();
        let result = work(&mut state.cache);
        let events = state.cache.drain_events();
        if !events.is_empty() {
            state.log.push(events);
            self.inner.changed.notify_one();
        }
        result
    }

    /// Blocks by state.
    #[must_use]
    pub fn counters(&self) -> CacheCounters {
        self.inner.state.lock().cache.counters()
    }

    /// Events that were dropped because the conductor was away or slow.
    #[must_use]
    pub fn lost_events(&self) -> u64 {
        self.inner.state.lock().log.lost_events()
    }
}

impl EventSource for KvCache {
    fn take(&self, events_max: usize) -> Backlog {
        self.inner.state.lock().log.take(events_max)
    }

    fn snapshot(&self) -> (u64, Vec<KvEvent>) {
        let mut state = self.inner.state.lock();
        let next_sequence = state.log.anchor();
        (next_sequence, state.cache.snapshot())
    }

    fn next_sequence(&self) -> u64 {
        self.inner.state.lock().log.next_sequence()
    }

    fn drop_listener(&self) {
        self.inner.state.lock().log.drop_listener();
    }

    fn changed(&self) -> &Notify {
        &self.inner.changed
    }
}
