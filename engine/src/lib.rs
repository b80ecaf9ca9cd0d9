//! Model execution over a paged KV cache that can be shipped while it is being written.
//!
//! Two things live here: the [`Executor`] trait with its implementations, and the paged cache they write
//! ([`KvMemory`], the block pool and the prefix cache). The engine knows neither services nor conductor nor the wire.
//!
//! Laws:
//! - **Deterministic**: within one numerics id the same tokens give the same KV bytes and the same logits, whatever the
//!   chunking, the prefix hits or the other sequences of the batch. Token identity is therefore a test.
//! - A block that is lent, being written or quarantined is never handed out again.
//!
//! Map: [`executor`] the trait · [`cpu`] the built-in executor · [`memory`] the bytes of the pool · [`cache`] who holds which block, and the prefix cache ·
//! [`sampling`] logits to tokens · [`mock`] an executor without weights · [`testing`] what every executor must pass.

pub mod cache;
pub mod cpu;
pub mod executor;
pub mod memory;
pub mod mock;
pub mod sampling;
pub mod testing;

pub use executor::{Chunk, ExecError, Executor, Logits, ModelSpec};
pub use memory::{Backing, BlockId, HeapBacking, KvMemory};
