//! Transports: ways to move slices to a peer, and its slices to us.
//!
//! A [`Rail`] is one stream, or one set of queue pairs, to one peer. A worker thread owns it alone and drives it with
//! three calls: `submit` a slice, `progress` what the descriptor is ready for, take a `completion`. Everything that a
//! peer sends over it is served in `progress` too, against the owner's leases.
//!
//! | file | room |
//! |---|---|
//! | `frame` | what a frame looks like; encoding and checked decoding |
//! | `stream` | the framed stream that tcp and shm share: `tx` sends, `rx` receives, `serve` answers |
//! | `tcp` | sockets: options, payload in the stream |
//! | `shm` | one host: descriptors passed over a Unix socket, payload copied by the receiver out of the sender's memfd |
//! | `ring` | memory through which the heads of shm's frames go, and how its two ends sleep |
//! | `onesided` | what RDMA and its stand-in share: queue pairs, loans, checksums |
//! | `rdma` | RDMA NICs |
//! | `sim` | a NIC in software: one-sided, queue pairs, a modelled link; between engines of one process, for tests |
//! | `fault` | decorator that drops, delays, duplicates, reorders, kills and freezes by seed |
//! | `gate` | where a fault plan has a worker stand still until a test lets it go |
//! | `sys` | the system calls beneath, each with its `SAFETY` |

pub(crate) mod fault;
pub(crate) mod frame;
pub(crate) mod gate;
pub(crate) mod onesided;
pub(crate) mod rdma;
pub(crate) mod ring;
pub(crate) mod shm;
pub(crate) mod sim;
pub(crate) mod stream;
pub(crate) mod sys;
pub(crate) mod tcp;

use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Instant;

use crate::memory::Region;
use crate::plan::{Completion, Direction, Piece, Refusal, SliceId};
use crate::session::lease::{Access, LeaseTable, Pin, fencing_is_off};
use crate::telemetry::Counters;
use crate::transport::fault::Flipper;
use crate::transport::gate::Gate;
use crate::transport::sys::Readiness;

/// A way to move bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TransportKind {
    /// Shared memory of one host: the receiver copies out of the sender's memfd.
    Shm,
    /// TCP streams.
    Tcp,
    /// RDMA: RoCE and InfiniBand NICs, over libibverbs where that is installed.
    Rdma,
    /// The software NIC, for tests: it joins the engines of one process that share a [`Fabric`](crate::Fabric). No default
    /// and no setting of a node chooses it.
    Sim,
}

impl TransportKind {
    /// Whether bytes land without the receiver's worker, so that a rail has to vouch for them.
    pub(crate) const fn is_one_sided(self) -> bool {
        matches!(self, Self::Rdma | Self::Sim)
    }

    /// All, preferred first.
    pub(crate) const ALL: [Self; 4] = [Self::Shm, Self::Rdma, Self::Sim, Self::Tcp];
}

/// What the receiving side of every rail of an engine needs.
pub(crate) struct Owner {
    pub(crate) generation: u64,
    pub(crate) leases: Arc<LeaseTable>,
    pub(crate) counters: Arc<Counters>,
    /// Damages what lands; only ever there by a fault plan.
    pub(crate) flipper: Option<Flipper>,
    /// Holds up copies; only ever there by a fault plan.
    pub(crate) copy_gate: Option<Gate>,
}

impl Owner {
    /// Everything that must hold before a peer may touch these ranges, offset and length each. The pin keeps the lease from
    /// being fenced while it lives.
    pub(crate) fn admit(
        &self,
        generation: u64,
        lease: u64,
        key: u64,
        access: Access,
        ranges: impl Iterator<Item = (u64, u64)>,
        now: Instant,
    ) -> Result<Pin, Refusal> {
        if !self.is_meant(generation) {
            return Err(Refusal::Stale);
        }
        self.leases.find(lease, key).ok_or(Refusal::Stale)?.admit(access, ranges, now)
    }

    /// Whether what is for an engine of this generation is for us, and not for who was here before.
    fn is_meant(&self, generation: u64) -> bool {
        generation == self.generation || fencing_is_off()
    }

    /// Called where a lease was checked and its bytes are copied next.
    fn about_to_copy(&self) {
        if let Some(gate) = &self.copy_gate {
            gate.pass();
        }
    }
}

/// Pieces of a slice, at most.
pub(crate) const PIECES_MAX: usize = 512;

/// What all slices of a transfer have in common.
pub(crate) struct Job {
    pub(crate) region: Region,
    pub(crate) generation: u64,
    pub(crate) lease: u64,
    pub(crate) key: u64,
    pub(crate) checksum: bool,
}

/// A slice on its way to a rail.
pub(crate) struct Post<'a> {
    pub(crate) id: SliceId,
    pub(crate) job: &'a Arc<Job>,
    pub(crate) direction: Direction,
    /// Inside the local region and the lease: checked when the transfer was accepted.
    pub(crate) pieces: &'a [Piece],
    pub(crate) bytes: u64,
}

/// The rail cannot take the slice.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PostError {
    /// Its queue is full.
    Full,
    /// It never will: the memory cannot be reached this way.
    Unreachable,
}

/// Why a rail has ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RailError {
    #[error("closed by the peer")]
    Closed,
    #[error("system error")]
    Os(#[from] std::io::Error),
    #[error("the peer broke the protocol: {0}")]
    Protocol(&'static str),
    #[error("the peer sends more than it may")]
    Overdrawn,
    #[error("the NIC: {0}")]
    Nic(String),
    #[error("the device: {0}")]
    Device(String),
    #[error("the peer did not give a revoked lease back in time")]
    Overdue,
    #[error("killed by the fault plan")]
    Killed,
}

/// One way to one peer, owned by one worker.
pub(crate) trait Rail: Send {
    /// Descriptor whose readiness (edge-triggered, both ways) calls for `progress`.
    fn readiness(&self) -> RawFd;

    /// Takes a slice; copies its gather list, not its bytes.
    fn submit(&mut self, post: &Post<'_>, now: Instant) -> Result<(), PostError>;

    /// Moves what can be moved without blocking, within a budget. True: call again, there may be more.
    fn progress(&mut self, now: Instant) -> Result<bool, RailError>;

    /// What the descriptor became ready for.
    fn ready(&mut self, is: Readiness);

    /// Whether the peer's word may lie in memory, with nothing said by the descriptor while this side is awake.
    fn is_in_memory(&self) -> bool {
        false
    }

    /// Looks at that memory: whether there is a reason to call `progress`. Makes no system call.
    fn calls(&self) -> bool {
        false
    }

    /// The worker is about to sleep: from here on the descriptor tells. True: there is something already.
    fn doze(&mut self) -> bool {
        false
    }

    /// The worker looks by itself again.
    fn rouse(&mut self) {}

    /// What ended since the last call.
    fn completion(&mut self) -> Option<Completion>;

    /// Slices that it takes before bytes would only wait in its queue.
    fn room(&self) -> usize;

    /// Whether a payload is half here, so that more of it is due.
    fn is_mid_payload(&self) -> bool {
        false
    }

    /// Says to the other end that whatever it brought so far is visible there: up to this word, which grows. Where bytes land by the
    /// receiver's own hand there is nothing to say.
    fn vouch(&mut self, _word: u32) {}

    /// The other end's latest word, if there was one since the last call.
    fn vouched(&mut self) -> Option<u32> {
        None
    }

    /// Lets go of memory whose lease has been revoked, at once.
    fn fence(&mut self);

    /// Closes it. The socket is given back where the peer may still be copying out of our memory: the end of that socket
    /// is the word that it does not.
    fn close(self: Box<Self>) -> Option<OwnedFd>;

    /// When `progress` must be called although nothing is ready; only fault plans want it.
    fn wake_at(&self) -> Option<Instant> {
        None
    }
}
