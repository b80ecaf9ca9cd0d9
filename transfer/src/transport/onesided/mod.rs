//! Rails whose bytes move without the other side's workers: RDMA, and the NIC in software that stands in for it in tests.
//!
//! What both have in common is here: a [`Rail`](rail::Rail) talks with its other end over a socket of its own about queue pairs,
//! loans and checksums, and has a [`Device`] move the bytes. A device knows queue pairs and memory, and nothing of leases.
//!
//! **Loans.** Most NICs check a key for a whole registered region, not for a lease, and their owner sees nothing of a write. So who
//! holds a ticket *borrows* the lease over each rail before it posts anything under it: the owner checks ticket and lease, pins
//! the lease for as long as it is out, and hands over the keys. When the lease is revoked the owner wants it back; the borrower
//! posts nothing more under it and answers when all that it had posted has completed. If it does not answer in time the rail ends:
//! its queue pairs are destroyed at the owner, and after that nothing of this peer lands. Then the pin goes, and that is
//! the fence. So a late write is impossible, whatever the borrower does; a write *outside the lease's ranges* is not where a key opens
//! its region: a peer is trusted that far, unless leases are guarded by keys of their own. A device that checks every request against its lease needs no loans
//! ([`Device::lends`]).
//!
//! | file | room |
//! |---|---|
//! | `rail` | the rail: from a slice to its completion |
//! | `borrow` | the borrower's side of loans, pure |
//! | `lend` | the owner's side, with its pins |
//! | `check` | checksums of bytes that nobody here has touched |
//! | `vouch` | the word that what was brought is visible |

mod borrow;
mod check;
mod lend;
pub(crate) mod rail;
mod vouch;

use std::sync::Arc;
use std::time::Instant;

use crate::memory::Region;
use crate::plan::{Direction, Piece};
use crate::session::lease::LeaseState;
use crate::transport::sys::Poller;
use crate::transport::{Job, RailError};

pub(crate) use rail::OneSided;

/// A chain of work requests, one a piece at most, of which the last is signalled.
pub(crate) struct Request {
    /// Quoted in its completion.
    pub(crate) id: u64,
    pub(crate) job: Arc<Job>,
    pub(crate) direction: Direction,
    pub(crate) pieces: Vec<Piece>,
    pub(crate) bytes: u64,
}

/// In place of a request's number: what vouches.
pub(crate) const VOUCH: u64 = u64::MAX;

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkStatus {
    Success,
    /// The owner's side turned it away. The queue pair is in error.
    RemoteAccess,
    /// Outstanding in a queue pair that is in error: to be posted again to the next.
    Flushed,
}

/// An entry of a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Work {
    pub(crate) id: u64,
    pub(crate) status: WorkStatus,
}

/// What opens a part of a region to a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    /// Where the part begins, in the region.
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) key: u32,
    /// Where the NIC sees its beginning.
    pub(crate) address: u64,
}

impl Key {
    /// What opens `[offset, offset + len)` of these, by offset, and where the NIC sees that. A peer may have said any address: the NIC judges it.
    pub(crate) fn of(keys: &[Self], offset: u64, len: u64) -> Option<(u32, u64)> {
        let place = keys.partition_point(|key| key.offset <= offset).checked_sub(1)?;
        let Self { offset: start, len: length, key, address } = keys[place];
        let within = offset - start;
        (len <= length && within <= length - len).then_some((key, address.wrapping_add(within)))
    }
}

/// Whose requests a key is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Our own: to read from and write to it.
    Local,
    /// The peer's.
    Remote,
}

/// Whether a device reaches memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    Now(Vec<Key>),
    /// It is being registered; the rail's poller will say when to ask again.
    Soon,
    /// It cannot be registered.
    Never,
}

/// A NIC as one rail has it: at most one requester, for what we send, and one responder, for what the peer sends.
pub(crate) trait Device: Send {
    /// Adds its descriptors to the rail's poller: those that become readable when there is something to reap or to hear.
    fn watch(&self, poller: &Poller) -> std::io::Result<()>;

    /// One of its descriptors, by the key that it was added with, is readable.
    fn ready(&mut self, key: u64);

    /// Whether leases have to be borrowed, because this NIC does not check them itself.
    fn lends(&self) -> bool;

    /// Keys of the parts that these ranges (offset and length) of a region lie in, by offset.
    fn keys(&mut self, region: &Region, ranges: &mut dyn Iterator<Item = (u64, u64)>, side: Side) -> Reach;

    /// Keys that open a lease and nothing else, by offset; none where leases are not guarded.
    fn guard(&mut self, _region: &Region, _lease: &Arc<LeaseState>) -> Option<Reach> {
        None
    }

    /// Makes a requester, in place of the one before; its address for the peer.
    fn requester(&mut self) -> Result<Vec<u8>, RailError>;

    /// The peer has made the responder to it.
    fn connect(&mut self, far: &[u8]) -> Result<(), RailError>;

    /// Makes the responder to a peer's requester, in place of the one before; its address.
    fn responder(&mut self, far: &[u8]) -> Result<Vec<u8>, RailError>;

    /// Takes a request, which goes on its way at the next [`Self::ring`] at the latest.
    fn post(&mut self, request: &Arc<Request>, local: &[Key], remote: &[Key], now: Instant) -> Result<(), RailError>;

    /// Takes a request without bytes, whose word the peer's device hears when everything before it is visible there. Its completion is
    /// that of [`VOUCH`].
    fn vouch(&mut self, word: u32, now: Instant) -> Result<(), RailError>;

    /// One doorbell for what was taken since the last.
    fn ring(&mut self) -> Result<(), RailError> {
        Ok(())
    }

    /// The latest word of the peer's, if there was one since the last call.
    fn vouched(&mut self) -> Option<u32>;

    /// Takes what has completed, and hears what the NIC has to say.
    fn reap(&mut self, into: &mut Vec<Work>) -> Result<(), RailError>;

    /// From here on what completes wakes the rail's poller. True: something may have completed just before, look once more.
    fn arm(&mut self) -> Result<bool, RailError>;

    /// Destroys both queue pairs. True: nothing of them touches memory any more, on either side.
    fn close(&mut self) -> bool;
}
