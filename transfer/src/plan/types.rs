//! What crosses the planner's boundary: ids, requests, slices, completions, actions, reports.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::{Op, OpError, Time};

/// A local or remote NIC by number. At most [`RailId::MAX_RAILS`] on a side; for shared memory and other transports that have
/// no NIC, the transport takes a number of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RailId(pub u8);

impl RailId {
    /// Rails on one side; numbers are below it.
    pub const MAX_RAILS: usize = 128;
}

/// A set of local rails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RailSet(pub u128);

impl RailSet {
    /// Adds `rail`; numbers past the limit are ignored (they are refused where paths are added).
    pub fn insert(&mut self, rail: RailId) {
        self.0 |= 1u128.checked_shl(u32::from(rail.0)).unwrap_or(0);
    }

    /// Is `rail` in it?
    #[must_use]
    pub fn contains(self, rail: RailId) -> bool {
        self.0.checked_shr(u32::from(rail.0)).unwrap_or(0) & 1 == 1
    }

    /// No rail.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The rails, lowest first.
    pub fn iter(self) -> impl Iterator<Item = RailId> {
        (0..Self::BITS).filter(move |i| self.0 >> i & 1 == 1).map(RailId)
    }

    const BITS: u8 = RailId::MAX_RAILS as u8;
}

/// Names one slot of a planner table together with its generation, so that a late word about a slot's former tenant is
/// recognised and ignored.
macro_rules! slot_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name {
            slot: u32,
            generation: u32,
        }

        impl $name {
            /// Position in a table: dense, below the table's limit, reused under a new generation.
            #[must_use]
            pub fn index(self) -> usize {
                self.slot as usize
            }

            /// As one number, for a work request id or a log line.
            #[must_use]
            pub fn to_bits(self) -> u64 {
                u64::from(self.generation) << 32 | u64::from(self.slot)
            }

            /// Back from [`Self::to_bits`].
            #[must_use]
            pub fn from_bits(bits: u64) -> Self {
                Self { slot: bits as u32, generation: (bits >> 32) as u32 }
            }
        }

        impl super::slots::Key for $name {
            fn new(slot: u32, generation: u32) -> Self {
                Self { slot, generation }
            }
            fn slot(self) -> u32 {
                self.slot
            }
            fn generation(self) -> u32 {
                self.generation
            }
        }
    };
}

slot_id! {
    /// A remote engine under one generation. One that comes back is another `PeerId`.
    PeerId
}
slot_id! {
    /// One submitted transfer.
    TransferId
}
slot_id! {
    /// One attempt to move one slice. A retry is another `SliceId`.
    SliceId
}

/// One way to a peer: local NIC, remote NIC. It may have several lanes (queue pairs, sockets) beneath: which lane a slice takes is
/// its transport's business, and the planner assumes no order among completions, not even on one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathId {
    /// Whom it leads to.
    pub peer: PeerId,
    /// Our NIC.
    pub local: RailId,
    /// Theirs.
    pub remote: RailId,
}

/// What a transport says of a path when it comes up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PathSpec {
    /// Bytes a second it is expected to carry, read from the NIC, never assumed; the estimate starts here. `None` where nobody
    /// can tell: then it is found with small slices, more of them at a time as they land.
    pub rate: Option<u64>,
    /// Time until the first byte is visible on an idle path, as far as known.
    pub base_delay: Duration,
    /// Added to the cost of every slice: distance of the remote NIC (another rail's spine), a slow lane.
    pub penalty: Duration,
    /// Preference: paths of a higher tier are used only while no path of a lower one to that peer is usable (TCP behind shared
    /// memory or RDMA).
    pub tier: u8,
    /// Lanes beneath: a lone path is cut into enough slices to keep all of them busy.
    pub lanes: u16,
    /// Bounds on what is handed out.
    pub limits: PathLimits,
}

/// Bounds of a path's transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathLimits {
    /// Bytes of a slice, at most.
    pub slice_bytes_max: u64,
    /// No slice is smaller, unless the work is, or the path so slow that it would take longer than
    /// [`Config::floor_time`](super::Config::floor_time).
    pub slice_bytes_min: u64,
    /// Pieces of a slice, at most (iovec or work-request count).
    pub slice_pieces_max: u32,
    /// Slices in flight, at most (queue depth).
    pub slices_max: u32,
    /// Bytes in flight below which delay never pushes the window.
    pub window_min: u64,
    /// Bytes in flight, at most.
    pub window_max: u64,
    /// No piece crosses a multiple of this many bytes in the local region (memory-registration chunk); `u64::MAX` for none.
    pub local_chunk_bytes: u64,
    /// The same for the remote region.
    pub remote_chunk_bytes: u64,
}

impl Default for PathLimits {
    fn default() -> Self {
        Self {
            slice_bytes_min: 16 << 10,
            slice_bytes_max: 4 << 20,
            slice_pieces_max: 256,
            slices_max: 256,
            window_min: 256 << 10,
            window_max: 64 << 20,
            local_chunk_bytes: u64::MAX,
            remote_chunk_bytes: u64::MAX,
        }
    }
}

/// One NIC of an engine, by a number of that engine's choice. Several paths may lead to it: it is what a receiver gives credit for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(pub u8);

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Local to remote.
    Write,
    /// Remote to local.
    Read,
}

/// What a transfer is for. `Control` goes before all others; the others share by weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Small and urgent; strict priority.
    Control,
    /// KV cache that a request waits for.
    KvHandoff,
    /// Prefixes copied ahead of demand.
    Replication,
    /// Model weights.
    Weights,
}

impl Class {
    /// All, in order of their discriminants.
    pub const ALL: [Class; 4] = [Class::Control, Class::KvHandoff, Class::Replication, Class::Weights];
}

/// A paying party; classes are shared among tenants by their weights. Tenant 0 is everybody who is not told apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(pub u32);

/// A batch of descriptors to move.
#[derive(Clone, Debug)]
pub struct Request {
    /// Where to.
    pub peer: PeerId,
    /// Which way.
    pub direction: Direction,
    /// What, in the order in which it is best sent. Descriptors that touch on both sides are merged where they are neighbours
    /// in this list; it is not sorted. Shared, so that a list can be prepared once and submitted many times.
    pub ops: Arc<Vec<Op>>,
    /// Length of the local region in bytes: descriptors are checked against it.
    pub local_bytes: u64,
    /// Length of the remote region in bytes.
    pub remote_bytes: u64,
    /// What for.
    pub class: Class,
    /// For whom.
    pub tenant: TenantId,
    /// When it must have been reported; after that it is an error.
    pub deadline: Time,
    /// Its slices carry checksums: what a path may still damage goes to no other path before the first can touch nothing
    /// any more, or damage would come after what was found right.
    pub checksum: bool,
    /// Nanoseconds of penalty by local [`RailId`] for this region's memory (same switch, same socket, far socket); shared by all
    /// requests on a region. `u32::MAX`: this rail cannot reach the memory. `None`, or past the end: no penalty.
    pub distance: Option<Arc<[u32]>>,
}

/// One contiguous range on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Offset in the local region.
    pub local: u64,
    /// Offset in the remote region.
    pub remote: u64,
    /// Bytes.
    pub len: u64,
}

/// What one NIC is given at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Quoted in its completion.
    pub id: SliceId,
    /// Of which transfer.
    pub transfer: TransferId,
    /// Over which path.
    pub path: PathId,
    /// Which way.
    pub direction: Direction,
    /// Its pieces in [`SliceBatch::pieces`].
    pub pieces: Range<u32>,
    /// Sum of its pieces' bytes.
    pub bytes: u64,
    /// 0 at the first try.
    pub attempt: u8,
}

/// A caller's reusable buffer of slices and their pieces. Once grown it is not allocated again.
#[derive(Debug, Default)]
pub struct SliceBatch {
    /// In the order in which they are to be posted.
    pub slices: Vec<Slice>,
    /// Pieces of all of them.
    pub pieces: Vec<Piece>,
}

impl SliceBatch {
    /// Empties it and keeps its memory.
    pub fn clear(&mut self) {
        self.slices.clear();
        self.pieces.clear();
    }

    /// The pieces of one of its slices; a slice of another batch may give nonsense or nothing, never a panic.
    #[must_use]
    pub fn pieces(&self, slice: &Slice) -> &[Piece] {
        self.pieces.get(slice.pieces.start as usize..slice.pieces.end as usize).unwrap_or(&[])
    }
}

/// Why an attempt, an op or a transfer failed: it decides where the next attempt goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Cause {
    /// Our NIC, socket or registration: another local rail.
    #[error("local fault")]
    LocalFault,
    /// Their NIC: another remote rail.
    #[error("remote fault")]
    RemoteFault,
    /// Something between: another path.
    #[error("path fault")]
    PathFault,
    /// Nothing was heard for too long: another path. Given by the planner itself.
    #[error("no completion in time")]
    Timeout,
    /// A checksum did not match at the receiver, which has written what it got: another path writes it again.
    #[error("checksum mismatch")]
    Corrupt,
    /// The owner says no; no path will change that.
    #[error("refused by the owner: {0}")]
    Refused(Refusal),
    /// The peer is gone, with all paths to it.
    #[error("peer lost")]
    PeerLost,
}

/// Why an owner refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    /// The lease is unknown, expired or revoked, or its owner restarted.
    #[error("lease is stale")]
    Stale,
    /// The lease does not cover these bytes, or not this direction.
    #[error("outside the lease")]
    OutsideLease,
    /// The owner does not understand the request.
    #[error("malformed")]
    Malformed,
}

/// May an unfinished attempt still touch memory?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    /// It never will: it was not posted, was refused, or was flushed.
    Settled,
    /// It may: only the fence of its path settles it.
    MayLand,
}

/// How an attempt fares, as its transport knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is not on its way yet: something has to be made for it first, a queue pair say. It has not ended.
    Waits,
    /// What it waited for is there, and it is on its way. It has not ended.
    Leaves,
    /// The bytes are visible to their consumer (write: at the receiver; read: here, and the owner confirmed the lease).
    Landed,
    /// They are not, as far as is known.
    Failed(Cause, Fate),
}

/// News of one attempt. It ends once; what comes later, and what is said of fenced slices, is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Which attempt.
    pub slice: SliceId,
    /// How it fares.
    pub outcome: Outcome,
}

/// What the planner asks the session and transports to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Stop this path: post nothing more of what was handed out for it, and answer `handle_fenced` when no slice of it
    /// that has not been completed can touch memory any more, here or there (the fence ladder). No slice is handed out for the
    /// path from now until `handle_path_up`.
    Fence(PathId),
    /// Bring this fenced path up again (new queue pairs or sockets, or the old where they were left whole) and answer
    /// `handle_path_up` or `handle_path_failed`.
    Open(PathId),
}

/// What the planner tells the transfer's owner.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The transfer's one report.
    Done(TransferId, Box<Report>),
    /// Nothing of the transfer can touch memory any more; its id is free. Exactly once for each transfer, never before its `Done`.
    Quiesced(TransferId),
}

/// How one op ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpStatus {
    /// All its bytes are visible.
    Landed,
    /// It failed for this reason.
    Failed(Cause),
    /// The transfer ended while some of it was in flight or landed: its destination holds old and new bytes.
    InDoubt,
    /// The transfer ended before any of it was handed to a path: its destination is untouched.
    NotSent,
}

/// Why a transfer failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The last attempt that was allowed failed for this cause, or the cause allows no other attempt.
    #[error("{0}")]
    Fault(Cause),
    /// It did not end in time.
    #[error("deadline exceeded")]
    Deadline,
    /// It could not have ended in time, so it was not let go on.
    #[error("deadline cannot be met")]
    Hopeless,
    /// The caller cancelled it.
    #[error("cancelled")]
    Cancelled,
}

/// How a transfer ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// All landed and every abandoned path fenced, or why not.
    pub status: Result<(), Failure>,
    /// One for each op of the request, in its order.
    pub ops: Vec<OpStatus>,
    /// Payload bytes that landed, each counted once.
    pub bytes: u64,
    /// Bytes that were handed out again after a failed attempt.
    pub retried_bytes: u64,
    /// Landed bytes by path.
    pub bytes_by_path: Vec<(PathId, u64)>,
    /// From submission to the first slice handed out (to the end, if none was).
    pub queued: Duration,
    /// From the first slice handed out to the last landed.
    pub wire: Duration,
    /// When the last slice landed; `None` if none did.
    pub last_landed: Option<Time>,
    /// May something still touch the memory? If so, [`Event::Quiesced`] comes when not.
    pub lent: bool,
}

/// Why a request was not accepted. Nothing was posted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// A descriptor is wrong.
    #[error("op {index}: {source}")]
    BadOp {
        /// Which.
        index: usize,
        /// How.
        source: OpError,
    },
    /// A bound of the planner would be passed.
    #[error("would exceed the limit of {limit} {what}")]
    WouldExceed {
        /// Of what.
        what: &'static str,
        /// The bound.
        limit: u64,
    },
    /// Even all live paths together could not move it before its deadline.
    #[error("deadline cannot be met")]
    Hopeless,
    /// The peer is unknown or gone.
    #[error("peer lost")]
    PeerLost,
}
