//! A NIC in software, with the verbs' shape: what RDMA will look like behind [`Rail`](crate::transport::Rail), on any machine.
//!
//! What a one-sided rail says and when is in [`onesided`](super::onesided), for this NIC as for real ones.
//!
//! **One-sided.** A write lands in the peer's lent memory and a read takes from it without any code of the peer's workers: the
//! NIC's own thread carries requests out, whatever the workers on either side are doing (a frozen worker's requests go on
//! landing, as they do with hardware). Like most NICs it opens a region to whoever has the region's key. With
//! [`FabricOptions::windows`] it decides request by request, at the moment the bytes move: the lease plays the part of a memory window,
//! its number and key that of the rkey. Then the fence is the lease's own word: once it is revoked and no request is being
//! carried out under it, nothing lands and no read succeeds.
//!
//! | verbs | here |
//! |---|---|
//! | fabric, GID | [`Fabric`]: engines of one process that were given the same one; an engine's generation |
//! | send queue of a queue pair, post, state | [`QueuePair`](pair::QueuePair): bounded, in order; an error flushes what is outstanding |
//! | responder, rkey check, NAK | [`Responder`](responder::Responder) over the owner's leases |
//! | completion queue and its channel | a mailbox with an eventfd |
//! | the wire | [`Wire`](wire::Wire): rate, delay, seeded jitter |
//!
//! **Time.** When a request is due is computed: a function of the times at which requests were posted, their sizes and the seed.
//! The clock underneath is the machine's. Planner and rails are handed `now`, but workers sleep in epoll and leases, heartbeats
//! and deadlines run on the kernel's clock, so an engine cannot be put into virtual time as a whole; the planner alone can
//! (`plan::sim`). A request is carried out when the clock has reached its due time, later where the machine is short of
//! processors, never earlier.
//!
//! **Checksums.** A NIC does not check its peer's memory. Where one is asked for, the initiator asks for it over the rail's
//! socket when the bytes have landed, and the owner's worker looks: the one thing of a transfer that it does.

mod device;
mod fabric;
mod nic;
mod pair;
mod responder;
#[cfg(test)]
mod tests;
mod wire;

pub(crate) use device::SimDevice;
pub use fabric::{Fabric, FabricOptions};
pub(crate) use nic::Nic;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::transport::Owner;
use crate::transport::onesided::OneSided;
use crate::transport::sys::Poller;

/// A rail over the connected socket of a stream; `salt` tells the streams of an engine apart.
pub(crate) fn rail(
    socket: OwnedFd,
    owner: Arc<Owner>,
    nic: Arc<Nic>,
    salt: u64,
) -> std::io::Result<OneSided<SimDevice>> {
    let (poller, waker) = Poller::new()?;
    let device = SimDevice::new(nic, Arc::clone(&owner), waker, salt);
    OneSided::new(socket, owner, device, poller)
}
