//! What a block of KV cache *is*: its namespace, its identity, its shape, and the events that tell who holds it.
//!
//! Everything here is pure: no I/O, no clock, no allocation beyond what is returned.
//!
//! Laws this crate serves:
//! - *A hint is never trusted* (law 1): [`BlockKey`] carries a 64-bit [`ChainHash`] that only **finds** a block and a
//!   128-bit keyed [`BlockProof`] that **proves** it. Whoever loads a block compares the proof.
//! - Blocks of different models, formats, adapters or tenants cannot meet: the [`Namespace`] is mixed into both hashes.
//!
//! Map: [`namespace`] who may share blocks · [`chain`] hashes and proofs of token blocks · [`format`] the bytes of a
//! block · [`event`] stored / removed / cleared with sequence numbers.

#![forbid(unsafe_code)]

pub mod chain;
pub mod event;
pub mod format;
pub mod namespace;

pub use chain::{BlockKey, BlockProof, Chain, ChainHash};
pub use event::{KvEvent, KvEventBatch, Tier};
pub use format::{DType, FormatError, KvFormat, Span};
pub use namespace::{Namespace, NamespaceParts};

/// A token id of the model's vocabulary.
pub type TokenId = u32;
