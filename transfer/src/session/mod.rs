//! Sessions: who the peer is, what it may do, and when it is gone.
//!
//! | file | room |
//! |---|---|
//! | `lease` | leases at the owner: pins, revocation, the fence |
//! | `ticket` | what a peer is handed so that it may use a lease |
//! | `wire`, `parts`, `codec` | messages and what they are made of; checked reading and writing |
//! | `pipe` | messages over a non-blocking socket |
//! | `peer` | a session as threads and handles see it |
//! | `control`, `timers` | the control thread: connections; what is due |
//! | `handshake`, `resume` | making sessions; going on over another connection |
//! | `messages` | what a session's messages do |
//! | `line` | a session's messages in order and once, over whichever connection |
//! | `rails` | which of our rails goes with which of the peer's |
//! | `ports`, `inflow` | our NICs as receivers: credit for those who send to them, and what arrives against it |
//! | `streams` | opening, fencing and reopening data streams |
//! | `vouches` | notifications that wait until what they speak of is certain to be visible |

pub(crate) mod codec;
pub(crate) mod control;
mod handshake;
pub(crate) mod inflow;
pub(crate) mod lease;
mod line;
mod messages;
pub(crate) mod parts;
pub(crate) mod peer;
pub(crate) mod pipe;
pub(crate) mod ports;
pub(crate) mod rails;
mod resume;
pub(crate) mod streams;
pub(crate) mod ticket;
mod timers;
pub(crate) mod vouches;
pub(crate) mod wire;

pub use lease::{Access, ByteRange, LeaseError, LeaseRequest};
pub use rails::{TCP_RAILS_MAX, TcpRail, TcpRailError};
pub use ticket::{LeaseTicket, TicketError};
