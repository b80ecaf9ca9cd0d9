//! RDMA verbs, safe and thin: one type for each object of libibverbs, one method for each verb that kvrail uses.
//!
//! ```no_run
//! use kvrail_verbs::{Verbs, Access};
//!
//! let verbs = Verbs::open()?;                      // a typed error where there is no libibverbs
//! for device in verbs.devices()?.iter() {
//!     let context = device.open()?;
//!     let port = context.port(1)?;
//!     println!("{} {:?} {} bit/s", context.name(), port.state, port.bits_per_second());
//! }
//! # Ok::<(), kvrail_verbs::Error>(())
//! ```
//!
//! # Laws
//!
//! - An object keeps alive what it was made from; handles of shared objects are cloned, and the last one destroys.
//! - No call blocks: event descriptors are non-blocking, and events are acknowledged where they are fetched, or by their
//!   queue before it goes.
//! - Posting, polling and fetching events allocate nothing; only errors off that path carry text.
//! - An error says what was attempted, on what, and the errno. A wrong transition of a queue pair is refused here, with what
//!   is missing and what is too much, before a driver says `EINVAL`.
//! - What the NIC does to registered memory is agreed once, where it is registered (`unsafe`); after that no safe call
//!   reaches memory that is not registered. Inline data is copied when it is put into a chain.
//! - Objects are `Send + Sync`: libibverbs locks. Nothing here is a global, nothing reads the environment.
//!
//! # Map
//!
//! | file | room |
//! |---|---|
//! | `library`, `context` | the opened library, its devices; a device in use, its attributes |
//! | `port`, `gid`, `event` | ports and their speed, the GID table, what a device reports on its own |
//! | `memory`, `window` | protection domains, memory regions, memory windows |
//! | `channel`, `queue`, `completion` | completion channels, completion queues, what is in them |
//! | `qp` | queue pairs: `builder`, `attributes`, the `states` as a table |
//! | `send`, `receive`, `shared` | chains of requests with one doorbell; receives; shared receive queues |
//! | `error` | what can go wrong |

mod channel;
mod completion;
mod context;
mod error;
mod event;
mod gid;
mod library;
mod memory;
mod port;
mod qp;
mod queue;
mod receive;
mod send;
mod shared;
mod window;

pub use channel::CompletionChannel;
pub use completion::{Completion, Opcode, Status};
pub use context::{Context, DeviceAttributes};
pub use error::{Error, PostError};
pub use event::{AsyncEvent, QueuePairFault};
pub use gid::{Gid, GidEntry, GidKind};
pub use kvrail_verbs_sys::Unavailable;
pub use library::{Device, Devices, Verbs};
pub use memory::{Access, MemoryRegion, ProtectionDomain};
pub use port::{LinkLayer, Mtu, PortAttributes, PortState};
pub use qp::attributes::{Change, Path, ToInit, ToRtr, ToRts};
pub use qp::builder::{Capacity, QueuePairBuilder};
pub use qp::states::{Attributes, QpState, TransitionError};
pub use qp::{QpStatus, QueuePair};
pub use queue::CompletionQueue;
pub use receive::ReceiveChain;
pub use send::{ChainFull, Data, Flags, Operation, Remote, Segment, SendChain};
pub use shared::SharedReceiveQueue;
pub use window::{MemoryWindow, WindowKind};
