//! A NIC in software, with the verbs' shape: what RDMA will look like behind [`Rail`](crate::transport::Rail), on any machine.
//!
//! **One-sided.** A write lands in the peer's lent memory and a read takes from it without any code of the peer's workers: the
//! NIC's own thread carries requests out, whatever the workers on either side are doing (a frozen worker's requests go on
//! landing, as they do with hardware). Whether they may is decided at the owner's side of the wire, request by request, at the
//! moment the bytes move: the lease plays the part of a memory window, its number and key that of the rkey. So the fence is
//! the lease's own word: once it is revoked and no request is being carried out under it, nothing lands and no read succeeds.
//!
//! | verbs | here |
//! |---|---|
//! | fabric, GID | [`Fabric`]: engines of one process that were given the same one; an engine's generation |
//! | send queue of a queue pair, post, state | [`QueuePair`](pair::QueuePair): bounded, in order; an error flushes what is outstanding |
//! | responder, rkey check, NAK | [`Responder`](responder::Responder) over the owner's leases |
//! | completion queue and its channel | a mailbox with an eventfd |
//! | exchange of queue pair numbers | messages over the socket that the rail was opened with (`rail`) |
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

mod fabric;
mod nic;
mod pair;
mod rail;
mod responder;
mod wire;

pub use fabric::{Fabric, FabricOptions};
pub(crate) use nic::Nic;
pub(crate) use rail::SimRail;
