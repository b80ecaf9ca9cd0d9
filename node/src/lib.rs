//! What a prefill and a decode node share: the parts around a model that turn a process into a member of the pool.
//!
//! Laws this crate serves:
//! - *The data path needs no conductor* (law 6): the membership client only reads what the node publishes; without a
//!   conductor the node serves on, and returns with a snapshot.
//! - *Everything is bounded* (law 7): the event backlog, messages, requests in flight, the drain, metric label values.
//! - *Every failure is typed* (law 4): [`Failure`] is what a refused or failed request is told.
//! - No environment and no globals: a node is its [`NodeConfig`]; two nodes in one process do not mix.
//!
//! Map: [`config`] what a node is told · `model` its executor · [`node`] its parts, put together · [`serve`] its life: serve, drain, leave, stop ·
//! [`cache`] the block cache behind one lock, events included · [`backing`] a transfer region as pool memory ·
//! [`membership`] the stream to the conductor · [`load`] what the node is doing · [`admin`] the HTTP endpoint ·
//! [`metrics`] every metric's name · [`latency`] quantiles · [`grpc`] servers and channels with limits · [`convert`]
//! requests from the wire, checked · [`failure`] codes · [`drain`] going away · [`backoff`] waits before the next try.

#![deny(unsafe_code)]

pub mod admin;
pub mod backing;
pub mod backoff;
pub mod cache;
pub mod config;
pub mod convert;
pub mod drain;
pub mod failure;
pub mod grpc;
pub mod latency;
pub mod load;
pub mod membership;
pub mod metrics;
mod model;
pub mod node;
pub mod serve;

pub use cache::KvCache;
pub use config::{GgufOptions, ModelSource, NodeConfig, PoolSize, Role};
pub use failure::{Failure, FailureCode};
pub use node::{BoundAddresses, Node, NodeError, Sockets, Started};
