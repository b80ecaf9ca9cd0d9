//! The block pool and the prefix cache in one state machine: who holds which block, and which blocks can be found again.
//!
//! Pure: no I/O, no clock, no thread. One owner calls it (or a mutex around it); every operation is O(1) a block.
//!
//! ```text
//!            take                complete                 last pin gone
//!   free ───────────▶ writing ───────────▶ shared (pins) ◀──────────────▶ cached (LRU)
//!    ▲                 │   │  └─ twin known ▶ private            lookup        │
//!    │     release     │   │ quarantine        │ release                       │ take evicts
//!    ├─────────────────┘   ▼                   │                               │
//!    ├── unquarantine ─ quarantined            │                               │
//!    └─────────────────────────────────────────┴───────────────────────────────┘
//! ```
//!
//! - **Found by hash, proved by proof.** A lookup compares the 128-bit proof; an equal hash with another proof is a miss
//!   and is counted.
//! - **A reservation is a promise.** `free + cached ≥ reserved` holds always, so [`BlockCache::take`] cannot fail while
//!   its reservation has blocks left. For the same reason a lookup pins an unreferenced block only while one more than
//!   what is promised is there; else it answers with a shorter prefix, which costs recompute and nothing else.
//! - **Leaves before parents, oldest first, O(1).** A block is *active* while it is pinned or a child of it is active. So a
//!   block becomes unreferenced after all its descendants, the list of unreferenced blocks in that order has no
//!   ancestor before its descendant, and its head is always a leaf: a plain linked list suffices.
//! - **Two computed the same block.** The first to complete it is the one that lookups find. The second keeps its own
//!   bytes *private* until it lets go (its id may stand in block tables and transfers), and pins the first, its *twin*, so
//!   that what it computes next still hangs on a chain that can be found.
//!
//! Map: [`pool`] the state machine · [`lru`] the list of unreferenced blocks · [`events`] what changed, for the index.

mod events;
mod lru;
mod pool;
#[cfg(test)]
mod tests;

pub use pool::{BlockCache, CacheCounters, CacheError, CacheStats, Completion, Reservation};
