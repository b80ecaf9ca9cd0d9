//! Who is there, who holds what, who serves whom, and the OpenAI endpoint in front: two services in one crate.
//!
//! The **conductor** ([`serve_conductor`]) hears from the nodes (members, load, KV events) and answers gateways. The
//! **gateway** ([`serve_gateway`]) is another process: it turns HTTP into streams on decode nodes, and goes on without a
//! conductor.
//!
//! Laws this crate serves:
//! - *A hint is never trusted* (1): the index says who may hold a prefix; nodes verify what they load.
//! - *Every failure is typed, bounded in time and local* (4): docs/errors.md has each code; a stream moves or ends, and
//!   never hangs.
//! - *The data path needs no conductor* (6): its state is soft, and a gateway that loses it routes by the members it last
//!   knew, and says so.
//! - *Everything is bounded* (7), *policy is pure* (8): [`members`], [`events`], [`index`], [`route`], [`core`] and the
//!   gateway's journal, transcript and view take messages and a time, and do no I/O.
//!
//! Map: [`members`] leases · [`events`] cursors of KV events · [`index`] the global prefix index · [`route`] cost and
//! choice · [`core`] these four as one state machine · [`service`] its gRPC face · [`gateway`] the OpenAI endpoint ·
//! [`admin`], [`http`], [`metrics`] what both services show and how · `testing` what their tests share.

#![forbid(unsafe_code)]

pub mod admin;
pub mod core;
pub mod events;
pub mod gateway;
pub mod http;
pub mod index;
pub mod members;
pub mod metrics;
pub mod route;
pub mod service;
#[cfg(test)]
mod testing;

pub use gateway::{ApiKey, GatewayConfig, serve_gateway};
pub use service::{ConductorAddresses, ConductorConfig, ServeError, serve_conductor};
