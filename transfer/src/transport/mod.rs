//! Transports: ways to move slices to a peer, and its slices to us.
//!
//! A [`Rail`] is one stream (later: one set of queue pairs) to one peer. A worker thread owns it alone and drives it with
//! three calls: `submit` a slice, `progress` what the descriptor is ready for, take a `completion`. Everything that a
//! peer sends over it is served in `progress` too, against the owner's leases.
//!
//! | file | room |
//! |---|---|
//! | `frame` | what a frame looks like; encoding and checked decoding |
//! | `stream` | the framed stream that tcp and shm share: `tx` sends, `rx` receives, `serve` answers |
//! | `tcp` | sockets: options, payload in the stream |
//! | `shm` | Unix sockets: descriptors passed, payload copied by the receiver out of the sender's memfd |
//! | `fault` | decorator that drops, delays, duplicates, reorders, kills and freezes by seed |
//! | `sys` | the system calls beneath, each with its `SAFETY` |

pub(crate) mod fault;
pub(crate) mod frame;
pub(crate) mod shm;
pub(crate) mod stream;
pub(crate) mod sys;
pub(crate) mod tcp;

use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Instant;

use crate::memory::Region;
use crate::plan::{Completion, Direction, Piece, SliceId};

/// A way to move bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TransportKind {
    /// Shared memory of one host: the receiver copies out of the sender's memfd.
    Shm,
    /// TCP streams.
    Tcp,
}

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
    fn ready(&mut self, readable: bool, writable: bool);

    /// What ended since the last call.
    fn completion(&mut self) -> Option<Completion>;

    /// Slices that it takes before bytes would only wait in its queue.
    fn room(&self) -> usize;

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
