//! The decode service: owns a request from the gateway's call to its last token.
//!
//! It verifies and pins what it holds of the prompt, reserves headroom for the rest and for the answer as a count, hires a
//! prefill node (or computes the prompt itself), lends blocks when that node asks, streams the first token at once, and
//! decodes in a continuous batch when the last block is visible.
//!
//! Laws this crate serves:
//! - *A wrong token reaches nobody* (law 4): what a prefill node says is checked figure by figure; KV that did not come
//!   whole is recomputed; a first token that the client has is forced, never sampled again.
//! - *A late write never lands* (law 2): lent blocks are used, given on or given back only behind their fence.
//! - *Everything is bounded* (law 7): the queue, the batch, attempts, waits, an answer's channel.
//! - A request alone, in any batch, colocated or disaggregated, preempted or moved gives the same tokens.
//! - It never deadlocks for memory: headroom is reserved whole at admission, in order of arrival; where an operator has it
//!   reserved in part, the younger give way to the older and are recomputed, once at most.
//!
//! Map: [`service`] the door · [`core`] every request and where it is · [`lifecycle`] its states as a table ·
//! [`scheduler`] who is admitted, who runs (pure) · [`sequence`] one request's tokens, blocks and sampler · [`holding`] its
//! blocks and headroom · [`lend`] lending them and having them back · [`hire`] the conversation with a prefill node ·
//! [`peers`] channels to them · [`steps`] the thread that runs the model · [`outlet`] the answer's stream ·
//! [`telemetry`] counters · [`serve`](mod@serve) the process · [`config`].

#![forbid(unsafe_code)]

pub mod config;
pub mod core;
pub mod hire;
pub mod holding;
pub mod lend;
pub mod lifecycle;
pub mod outlet;
pub mod peers;
pub mod scheduler;
pub mod sequence;
pub mod serve;
pub mod service;
pub mod steps;
pub mod telemetry;

pub use config::DecodeConfig;
pub use serve::serve;
