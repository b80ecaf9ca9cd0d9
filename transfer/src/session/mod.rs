//! Sessions: who the peer is, what it may do, and when it is gone.
//!
//! | file | room |
//! |---|---|
//! | `lease` | leases at the owner: pins, revocation, the fence |
//! | `ticket` | what a peer is handed so that it may use a lease |
//! | `codec` | checked reading and writing of small messages |

pub(crate) mod codec;
pub(crate) mod lease;
pub(crate) mod ticket;

pub use lease::{Access, ByteRange, LeaseError, LeaseRequest};
pub use ticket::{LeaseTicket, TicketError};
