//! RDMA: a rail over reliable queue pairs of real NICs, through `kvrail-verbs`.
//!
//! What a one-sided rail says and when is in [`onesided`](super::onesided); here are the NICs.
//!
//! | file | room |
//! |---|---|
//! | `name` | how a NIC is named in settings |
//! | `nic` | an opened NIC: its port, its limits, its best GID |
//! | `address` | of a queue pair, as the peer is told it |
//! | `memory` | regions registered in parts, kept with the region |
//! | `clerk` | the thread that registers, and hears what NICs report on their own |
//! | `guard` | which stretches of a region a lease's own keys open, pure |
//! | `chain` | pieces as work requests with gather lists, pure |
//! | `pair` | queue pairs: requester and responder |
//! | `device` | all of it as a rail's [`Device`](super::onesided::Device) |

mod address;
mod chain;
mod clerk;
mod device;
mod guard;
mod memory;
mod name;
mod nic;
mod pair;
#[cfg(test)]
mod tests;

use std::os::fd::OwnedFd;
use std::sync::Arc;

pub(crate) use clerk::Clerk;
pub(crate) use memory::Registrations;
pub use name::{RdmaRail, RdmaRailError};
pub(crate) use nic::Nic;
pub use nic::{RdmaError, active_rdma_rails};

use crate::transport::onesided::OneSided;
use crate::transport::rdma::device::RdmaDevice;
use crate::transport::sys::Poller;
use crate::transport::{Owner, RailError};

/// Regions are registered in parts of so many bytes: below every device's limit that is known, and the planner cuts slices there.
/// Both sides count in them, so it is part of the protocol.
pub(crate) const CHUNK_BYTES: u64 = 1 << 30;

/// The NICs of an engine, and who waits upon them.
#[derive(Clone)]
pub(crate) struct Nics {
    pub(crate) all: Vec<Arc<Nic>>,
    pub(crate) clerk: Arc<Clerk>,
}

/// A rail over one NIC, by the connected socket of a stream. `guards`: leases are lent with keys that open them alone.
pub(crate) fn rail(
    socket: OwnedFd,
    owner: Arc<Owner>,
    nic: Arc<Nic>,
    clerk: Arc<Clerk>,
    guards: bool,
) -> Result<OneSided<impl crate::transport::onesided::Device>, RailError> {
    let (poller, waker) = Poller::new()?;
    let device = RdmaDevice::new(nic, clerk, Arc::clone(&owner.counters), waker, guards)?;
    Ok(OneSided::new(socket, owner, device, poller)?)
}
