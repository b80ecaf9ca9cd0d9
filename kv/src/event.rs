//! What a node tells the world about its blocks. A hint (law 1): the index is built from these and never trusted.

use crate::ChainHash;

/// Where a block lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tier {
    /// The executor's own pool.
    Device,
    /// Host memory behind it.
    Host,
}

/// One change of what a node holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvEvent {
    /// Consecutive blocks of one chain became complete.
    Stored {
        /// The block before the first one; `None` at the head of a chain.
        parent: Option<ChainHash>,
        /// The blocks, in chain order.
        blocks: Vec<ChainHash>,
        /// Where they lie.
        tier: Tier,
    },
    /// These blocks are gone, in any order.
    Removed {
        /// The blocks.
        blocks: Vec<ChainHash>,
        /// Where they lay.
        tier: Tier,
    },
    /// Everything is gone.
    Cleared,
}

/// Events of one source, numbered without a gap within one generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvEventBatch {
    /// Sequence number of the first event.
    pub first_sequence: u64,
    /// The events, in order.
    pub events: Vec<KvEvent>,
}
