//! The wire contract of the control plane: the `.proto` files, their generated types, and conversions from `kv`.
//!
//! No logic of the services lives here. Laws: every message has a bound on its size ([`MESSAGE_BYTES_MAX`]); field numbers are never
//! reused; a receiver ignores unknown fields and treats a missing `oneof` as a malformed message.
//!
//! Map: [`v1`] generated types and services · [`convert`] KV events to and from the wire · [`incoming`] how gRPC
//! servers take connections ([`accept`]: how any does).

#![forbid(unsafe_code)]

pub mod accept;
pub mod convert;
pub mod incoming;

/// Version 1 of the contract, generated from `kvrail/v1/*.proto`.
#[allow(missing_docs, clippy::all, clippy::pedantic)]
pub mod v1 {
    tonic::include_proto!("kvrail.v1");
}

/// Largest gRPC message either side accepts, in bytes: a million tokens fit, a hostile length does not.
pub const MESSAGE_BYTES_MAX: usize = 8 << 20;
