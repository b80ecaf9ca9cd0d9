//! Who serves a request: pure policy over members, what they hold and what they do.
//!
//! Predicted TTFT(P, D) = queue(P) + prefill(uncached on P) + transfer(what D lacks) + first step(D). The part of P and the
//! part of D do not depend on each other (all paths cost the same here), so the best pair is the best of each: a decision
//! is O(members). D alone costs its own queue and prefill; past a few tokens that is weighted, because a token prefilled
//! on a decode node delays every stream that it serves.
//!
//! Laws: the same seed and the same inputs give the same decisions; a decision is credited at once, so that a burst
//! between two load reports does not herd; a refusal is typed and says what would be right.
//!
//! Map: [`policy`] the [`Router`] · `cost` the prediction · `credit` decisions that no report shows yet · `rng` ties.

mod cost;
mod credit;
pub mod policy;
mod rng;
#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::index::Match;
use crate::members::MemberId;

pub use policy::Router;

/// What the cost model assumes and where its bounds lie.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouteConfig {
    /// Prefill rate of a node that has not measured its own, tokens a second.
    pub prefill_tokens_per_s: f64,
    /// Decode step of a node that has not measured its own, milliseconds.
    pub step_ms: f64,
    /// What one more stream adds to a decode step, milliseconds.
    pub stream_ms: f64,
    /// Decode steps over which the load of a node counts.
    pub horizon_steps: f64,
    /// Bytes a second from any P to any D.
    pub link_bytes_per_s: f64,
    /// Fixed cost of a hand-off, milliseconds.
    pub handoff_ms: f64,
    /// Wait that a request meets which finds no KV room at all, milliseconds; less in proportion.
    pub kv_wait_ms: f64,
    /// Up to so many uncached tokens D computes the prompt itself at no extra price; 0: never while a P can take it.
    pub local_prefill_tokens_max: u32,
    /// Price of D's own prefill past that, as a factor.
    pub local_prefill_penalty: f64,
    /// A P with so many tokens queued is full.
    pub prefill_queue_tokens_max: u64,
    /// A D with so many requests queued is full.
    pub decode_queue_max: u32,
    /// Costs within this fraction of the best are equal: the seeded generator picks.
    pub tie_margin: f64,
    /// Ps named in a decision, in order of preference.
    pub prefill_choices: usize,
    /// A load report shows the decisions that are older than this.
    pub credit_settle: Duration,
    /// A decision that no report has shown after this long is forgotten.
    pub credit_ttl: Duration,
    /// Seed of the tie breaks.
    pub seed: u64,
}

impl Default for RouteConfig {
    fn default() -> Self {
        Self {
            prefill_tokens_per_s: 500.0,
            step_ms: 30.0,
            stream_ms: 2.0,
            horizon_steps: 16.0,
            link_bytes_per_s: 1e9,
            handoff_ms: 3.0,
            kv_wait_ms: 2000.0,
            local_prefill_tokens_max: 32,
            local_prefill_penalty: 4.0,
            prefill_queue_tokens_max: 262_144,
            decode_queue_max: 256,
            tie_margin: 0.02,
            prefill_choices: 3,
            credit_settle: Duration::from_millis(50),
            credit_ttl: Duration::from_secs(2),
            seed: 0,
        }
    }
}

/// A request to place.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The name that clients use.
    pub model: &'a str,
    /// The unsalted namespace that nodes registered.
    pub namespace_id: u64,
    /// Prompt, with the forced output of a migrated stream.
    pub prompt_tokens: u32,
    /// Output tokens still to come at most.
    pub max_tokens: u32,
    /// Names of nodes that just failed this request.
    pub exclude: &'a [String],
    /// What the index says of its chain, ordered by holder.
    pub matches: &'a [Match],
}

/// Who serves it.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The D that owns the request.
    pub decode: MemberId,
    /// Ps in order of preference; empty where D computes the prompt itself.
    pub prefill: Vec<PrefillPick>,
    /// Predicted time to the first token.
    pub ttft: Duration,
    /// Most tokens of the prompt that any eligible node holds.
    pub best_cached_tokens: u32,
    /// Tokens of the prompt that whoever computes it holds.
    pub chosen_cached_tokens: u32,
    /// One line for people.
    pub reason: String,
}

/// A P and what it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefillPick {
    /// Who.
    pub id: MemberId,
    /// Leading blocks of the prompt that it holds.
    pub cached_blocks: u32,
}

/// Why nobody can.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Longer than any node of the pool takes.
    #[error(
        "{prompt_tokens} prompt tokens and {max_tokens} output tokens are more than the {limit} tokens that {what} allows"
    )]
    TooLong {
        /// Asked for.
        prompt_tokens: u32,
        /// Asked for.
        max_tokens: u32,
        /// The largest that fits.
        limit: u64,
        /// Which limit that is.
        what: &'static str,
    },
    /// Nobody there.
    #[error("no decode node can take the request: {why}")]
    NoNodes {
        /// What became of those that could have.
        why: &'static str,
    },
    /// All queues are full.
    #[error("every {what} queue is full; try again in {} s", retry_after.as_secs_f64().ceil())]
    QueueFull {
        /// Which queues.
        what: &'static str,
        /// When the shortest will have room, predicted.
        retry_after: Duration,
    },
}

impl Refusal {
    /// The failure code of docs/errors.md.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::TooLong { .. } => "too_long",
            Self::NoNodes { .. } => "no_nodes",
            Self::QueueFull { .. } => "queue_full",
        }
    }

    /// When to try again, for refusals that pass.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::TooLong { .. } => None,
            Self::NoNodes { .. } => Some(Duration::from_secs(1)),
            Self::QueueFull { retry_after, .. } => Some(*retry_after),
        }
    }
}
