//! What a decode node is told at start.

use std::time::Duration;

use kvrail_node::NodeConfig;

/// Settings of the decode service. Plain values; the binary parses them.
#[derive(Clone, Debug)]
pub struct DecodeConfig {
    /// The node under the service; its role must be decode.
    pub node: NodeConfig,
    /// Most requests that wait for headroom; the next one is refused with `queue_full`.
    pub queue_max: usize,
    /// Longest wait for headroom; then `no_capacity`.
    pub queue_wait_max: Duration,
    /// Most decoding requests a step.
    pub batch_max: u32,
    /// Most prompt tokens a step, where this node computes prompts.
    pub prefill_tokens_max: u32,
    /// Time that a step should take at most (the time between tokens); `None` for no target.
    pub step_target: Option<Duration>,
    /// Part of the answer's growth that is reserved at admission, 0 to 1. Below 1 more requests run at once, and some may
    /// have to be preempted and recomputed.
    pub growth_reserved: f64,
    /// Prompts of which at most so many tokens are missing are computed here, whatever prefill nodes are named.
    pub local_prefill_tokens: u32,
    /// Most prefill nodes tried for a request before this node computes the prompt itself.
    pub prefill_attempts_max: u32,
    /// Time a prefill node has to answer a request at all.
    pub prefill_answer_max: Duration,
    /// Longest silence of a prefill node that works on a request. (A dead one is found sooner, by keep-alive.)
    pub prefill_silence_max: Duration,
    /// Time for which a prefill node that was lost is not tried again.
    pub prefill_suspect: Duration,
    /// Silence on an answer's stream after which a heartbeat is sent.
    pub heartbeat: Duration,
    /// Deadline of a request that names none.
    pub deadline_default: Duration,
    /// Longest deadline that a request may name; longer ones are cut.
    pub deadline_max: Duration,
}

impl DecodeConfig {
    /// Defaults on top of `node`.
    #[must_use]
    pub fn new(node: NodeConfig) -> Self {
        Self {
            node,
            queue_max: 4096,
            queue_wait_max: Duration::from_secs(120),
            batch_max: 256,
            prefill_tokens_max: 512,
            step_target: Some(Duration::from_millis(500)),
            growth_reserved: 1.0,
            local_prefill_tokens: 0,
            prefill_attempts_max: 3,
            prefill_answer_max: Duration::from_secs(5),
            prefill_silence_max: Duration::from_secs(60),
            prefill_suspect: Duration::from_secs(2),
            heartbeat: Duration::from_secs(1),
            deadline_default: Duration::from_secs(300),
            deadline_max: Duration::from_secs(3600),
        }
    }
}
