//! What the service is told at start.

use std::time::Duration;

use kvrail_node::NodeConfig;

use crate::schedule::Limits;

/// A prefill node.
#[derive(Clone, Debug)]
pub struct PrefillConfig {
    /// What it shares with a decode node.
    pub node: NodeConfig,
    /// Bounds and sizes of its line.
    pub limits: Limits,
    /// Deadline of a request that names none.
    pub deadline_default: Duration,
    /// Longest deadline that a request may name.
    pub deadline_max: Duration,
}

impl PrefillConfig {
    /// Defaults for `node`: chunks of 256 tokens, others join up to 64, a line of 65,536 tokens.
    #[must_use]
    pub fn new(node: NodeConfig) -> Self {
        Self {
            node,
            limits: Limits {
                tokens_max: 65_536,
                requests_max: 1024,
                running_max: 64,
                chunk_tokens: 512,
                fill_tokens: 64,
                age_bound: Duration::from_secs(2),
            },
            deadline_default: Duration::from_secs(120),
            deadline_max: Duration::from_secs(3600),
        }
    }
}
