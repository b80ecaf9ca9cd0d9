//! KV events of nodes: what has arrived, what is missing, when to ask for the whole again.
//!
//! One [`Source`] for each registration, pure. Events are numbered without a gap; a number too high means that some were
//! lost (a node's queue is bounded): what is known of the node is cleared and a snapshot is asked for, so that loss is
//! never silent. Events that a snapshot covers already are dropped by their number, so replays do no harm.

mod source;

pub use source::{Action, Source, SourceError, SourceStats};
