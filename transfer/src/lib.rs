//! The transfer engine: moves KV cache between machines over every path that they share.
//!
//! # Laws
//!
//! 1. **A late write never lands, a late read is never believed.** Memory is lent under a [`Lease`]; the receiver checks
//!    lease, generation and ranges of every frame before it touches memory, and [`Lease::revoke`] resolves only when no
//!    byte can land any more. A read counts when the owner has confirmed, after its end, that the lease still held.
//! 2. **Done means visible.** A [`Transfer`] completes when the receiver's consumer may read the bytes.
//! 3. **Every failure is typed, bounded in time and local.** Each op has its own status; [`TransferError`] tells whether
//!    the memory is free or still lent, and [`Transfer::quiesce`] when it is free.
//! 4. **Everything is bounded**, and what idles costs nothing.
//!
//! # Map
//!
//! | module | room |
//! |---|---|
//! | `engine` | the public face: [`Engine`], [`Peer`], [`Lease`] |
//! | `config`, `transfer`, `notify`, `telemetry` | its values: settings, requests and reports, notifications, counts |
//! | `start`, `submit` | starting an engine; checking a request before it is planned |
//! | `core`, `mailbox`, `sync` | what threads and handles share |
//! | `worker`, `urgent` | the threads that move bytes, and how the scheduler treats them |
//! | `seat`, `spin` | who drives a worker, its thread or a caller that waits; whether looking pays before sleeping |
//! | [`plan`] | sans-I/O: coalesce, slice, choose, window, retry |
//! | `session` | handshake, leases, fencing, peer health |
//! | `memory` | regions: host memory, sealed memfds, and memory of others |
//! | `integrity`, `random` | checksums of payloads; generations and keys that nobody guesses |
//! | [`gpu`] | memory of GPUs: devices, allocation, import; which way it goes |
//! | `transport` | tcp, shm, rdma and a software NIC behind one trait; faults by seed |
//! | [`topology`] | what a machine is made of, and which NICs serve which memory |
//! | [`testing`] | the protocol spoken by hand, for tests of what is refused |
//!
//! ```
//! use std::time::Duration;
//! use kvrail_transfer::*;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let owner = Engine::start(EngineConfig::default())?;
//! let pool = owner.allocate(1 << 20, MemoryKind::Shared)?;
//! let lease = owner.grant(LeaseRequest {
//!     region: &pool,
//!     ranges: vec![ByteRange { offset: 0, len: 65_536 }],
//!     access: Access::Write,
//!     ttl: Duration::from_secs(30),
//! })?;
//! // The ticket travels by whatever way the two sides talk.
//! let ticket = LeaseTicket::from_bytes(&lease.ticket().to_bytes())?;
//! assert_eq!(ticket.generation(), owner.generation());
//! # Ok(()) }
//! ```

mod config;
mod core;
mod engine;
pub mod gpu;
mod integrity;
mod mailbox;
mod memory;
mod notify;
pub mod plan;
mod random;
mod seat;
mod session;
mod spin;
mod start;
mod submit;
mod sync;
mod telemetry;
pub mod testing;
pub mod topology;
mod transfer;
mod transport;
mod urgent;
mod worker;

pub use config::EngineConfig;
pub use engine::{ConnectError, Engine, EngineError, Fenced, Lease, Peer};
pub use memory::{MemoryError, MemoryKind, Region};
pub use notify::{NOTIFY_BYTES_MAX, Notification, Notifications, Recv};
pub use plan::{Cause, Class, Direction, Failure, Op, OpError, OpStatus, Refusal, Strided, TenantId};
pub use session::{
    Access, ByteRange, LeaseError, LeaseRequest, LeaseTicket, TCP_RAILS_MAX, TcpRail, TcpRailError, TicketError,
};
pub use telemetry::{EngineStats, Fallbacks};
pub use transfer::{
    FailureKind, Finished, Quiesce, RailBytes, Report, SubmitError, Transfer, TransferError, TransferRequest,
};
pub use transport::TransportKind;
pub use transport::fault::{FaultPlan, FaultPlanError};
pub use transport::gate::Gate;
pub use transport::rdma::{RdmaError, RdmaRail, RdmaRailError, active_rdma_rails};
pub use transport::sim::{Fabric, FabricOptions};
pub use urgent::urgent;
