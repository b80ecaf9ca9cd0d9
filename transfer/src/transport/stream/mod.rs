//! The framed stream that tcp and shm share.
//!
//! It plays both parts: *initiator* for slices that are submitted here, *owner* for frames that the peer sends. The
//! payload either follows its frame (tcp) or is copied by the receiver out of an exported region (shm, whose frames are heads alone
//! and go through a ring: `heads`). One worker owns a stream; nothing here locks, and buffers, gather lists and frames are reused.
//!
//! # Memory
//! What a stream points to is kept alive by the frame, sink or flight that points to it: the initiator's region by its
//! [`Job`], the owner's by a [`Pin`] of the lease. A pin also keeps the fence from passing; [`Stream::fence`] gives it
//! back by turning the rest of such a frame away from the memory.

mod heads;
mod leases;
mod rx;
mod serve;
mod staged;
mod tx;

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Instant;

use foldhash::HashMap;

use crate::integrity::Crc;
use crate::plan::{Completion, Direction, Piece, SliceId};
use crate::session::inflow::Inflow;
use crate::session::lease::Pin;
use crate::transport::frame::{ENTRIES_MAX, Entry, Header, Kind, PAYLOAD_MAX, Status, push_entry};
use crate::transport::shm::Exchange;
use crate::transport::sys::Readiness;
use crate::transport::{Job, Owner, Post, PostError, Rail, RailError};

use leases::LeaseCache;
use rx::Rx;
use staged::{Landing, Lanes};
use tx::{Keep, Tx};

/// Slices queued for sending at which a stream wants no more: one on the wire, one behind it.
const QUEUE_WANTED: usize = 2;
/// Slices of ours without a word, at most.
const FLIGHT_MAX: usize = 512;
/// Reads of a peer that may wait here.
const SERVING_MAX: usize = 1024;

/// One of our slices between `submit` and its completion.
struct Flight {
    job: Arc<Job>,
    direction: Direction,
    /// Where a read's bytes go; empty for a write.
    pieces: Vec<Piece>,
    bytes: u64,
    /// The payload of a read came, and did not fit its checksum.
    corrupt: bool,
}

/// A stream to one peer.
pub(crate) struct Stream {
    fd: OwnedFd,
    owner: Arc<Owner>,
    leases: LeaseCache,
    /// Present where heads go through a ring, regions are exchanged and payload is copied by the receiver.
    shm: Option<Exchange>,
    tx: Tx,
    rx: Rx,
    flights: HashMap<u64, Flight>,
    spare_pieces: Vec<Vec<Piece>>,
    lanes: Lanes,
    /// Received, and on their way to a device; no more than the peer has slices in flight.
    landings: Vec<Landing>,
    /// A device copies: look again at once.
    spinning: bool,
    /// Look again then, whatever is ready.
    look_at: Option<Instant>,
    done: VecDeque<Completion>,
    /// Counts the peer's writes against its limit, where it has one.
    inflow: Option<Arc<Inflow>>,
}

impl Stream {
    pub(crate) fn new(fd: OwnedFd, owner: Arc<Owner>, shm: Option<Exchange>, inflow: Option<Arc<Inflow>>) -> Self {
        Self {
            fd,
            owner,
            leases: LeaseCache::default(),
            shm,
            tx: Tx::default(),
            rx: Rx::default(),
            flights: HashMap::default(),
            spare_pieces: Vec::new(),
            lanes: Lanes::default(),
            landings: Vec::new(),
            spinning: false,
            look_at: None,
            done: VecDeque::new(),
            inflow,
        }
    }

    fn complete(&mut self, id: u64, status: Status) {
        if let Some(mut flight) = self.flights.remove(&id) {
            let status = if flight.corrupt && status == Status::Ok { Status::Corrupt } else { status };
            flight.pieces.clear();
            if flight.direction == Direction::Read {
                self.spare_pieces.push(flight.pieces);
            }
            self.done.push_back(Completion { slice: SliceId::from_bits(id), outcome: status.outcome() });
        }
    }

    /// Queues the frame that lets the peer map `region`, unless it has it already.
    fn export(&mut self, region: &crate::memory::Region) -> Result<(), PostError> {
        let Some(shm) = &mut self.shm else { return Ok(()) };
        if region.share().is_none() {
            return Err(PostError::Unreachable);
        }
        if shm.note_export(region.id()) {
            let mut header = Header::new(Kind::Export, region.len() as u64);
            header.region = region.id();
            self.tx.push(header, |_| {}, Keep::Export(region.clone()));
        }
        Ok(())
    }
}

impl Rail for Stream {
    fn readiness(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    fn submit(&mut self, post: &Post<'_>, _now: Instant) -> Result<(), PostError> {
        if self.flights.len() >= FLIGHT_MAX {
            return Err(PostError::Full);
        }
        if post.pieces.len() > ENTRIES_MAX || post.bytes > PAYLOAD_MAX {
            return Err(PostError::Unreachable);
        }
        let id = post.id.to_bits();
        let kind = match (post.direction, self.shm.is_some()) {
            (Direction::Read, _) => Kind::Read,
            (Direction::Write, false) => Kind::Write,
            (Direction::Write, true) => Kind::WriteRef,
        };
        if kind == Kind::WriteRef {
            self.export(&post.job.region)?;
        }
        let region = &post.job.region;
        let on_device = region.device_memory().is_some();
        let mut crc = (post.job.checksum && post.direction == Direction::Write).then(Crc::default);
        let mut frame = self.tx.frame();
        for piece in post.pieces {
            let base = region.at(piece.local, piece.len);
            if base.is_none() && !(on_device && region.contains(piece.local, piece.len)) {
                self.tx.recycle(frame);
                return Err(PostError::Unreachable);
            }
            // No longer than PAYLOAD_MAX, which the sum above is under.
            let len = piece.len as u32;
            push_entry(&mut frame.head, kind, Entry { key: piece.remote, value: len, source: piece.local });
            if let (Some(crc), Some(base)) = (&mut crc, base) {
                // SAFETY: `at` proved the range; the job keeps the region mapped.
                unsafe { crc.add(base, len as usize) };
            }
        }
        let ranges = post.pieces.iter().map(|piece| (piece.local, piece.len));
        let staged = if on_device && kind == Kind::Write {
            let Some(staged) = self.outgoing(region, ranges, crc.as_mut()) else {
                self.tx.recycle(frame);
                return Err(PostError::Unreachable);
            };
            Some(staged)
        } else {
            None
        };
        let mut header = Header::new(kind, id);
        header.entries = post.pieces.len() as u16;
        header.bytes = post.bytes as u32;
        (header.lease, header.key, header.generation) = (post.job.lease, post.job.key, post.job.generation);
        header.region = post.job.region.id();
        header.payload_crc = crc.map(Crc::finish);
        // A read's flag asks for a checksum; it has none to give.
        if post.job.checksum && post.direction == Direction::Read {
            header.payload_crc = Some(0);
        }
        frame.seal(&header);
        frame.staged = staged;
        if kind == Kind::Write {
            for piece in post.pieces {
                if let Some(base) = region.at(piece.local, piece.len) {
                    frame.iov.push(base, piece.len as usize);
                }
            }
        }
        frame.keep = Keep::Job(Arc::clone(post.job));
        self.tx.queue(frame);
        let mut pieces = Vec::new();
        if post.direction == Direction::Read {
            pieces = self.spare_pieces.pop().unwrap_or_default();
            pieces.extend_from_slice(post.pieces);
        }
        let job = Arc::clone(post.job);
        self.flights.insert(id, Flight { job, direction: post.direction, pieces, bytes: post.bytes, corrupt: false });
        Ok(())
    }

    fn progress(&mut self, now: Instant) -> Result<bool, RailError> {
        self.look_at = None;
        if self.shm.is_some() {
            self.hear()?;
        }
        let mut more = self.receive(now)?;
        more |= self.land(now);
        more |= if self.shm.is_some() { self.transmit_heads()? } else { self.transmit(now)? };
        Ok(more | std::mem::take(&mut self.spinning))
    }

    fn completion(&mut self) -> Option<Completion> {
        self.done.pop_front()
    }

    fn room(&self) -> usize {
        QUEUE_WANTED.saturating_sub(self.tx.len()).min(FLIGHT_MAX - self.flights.len())
    }

    fn is_mid_payload(&self) -> bool {
        self.rx.sink.is_some()
    }

    fn fence(&mut self) {
        self.leases.sweep();
        self.tx.fence();
        self.rx.fence();
        if self.rx.is_revoked_on_a_device() {
            self.turn_away(Status::Stale);
        }
    }

    fn wake_at(&self) -> Option<Instant> {
        self.look_at
    }

    fn close(self: Box<Self>) -> Option<OwnedFd> {
        let lent = self.shm.is_some() && self.flights.values().any(|f| f.direction == Direction::Write);
        lent.then_some(self.fd)
    }

    fn ready(&mut self, is: Readiness) {
        self.rx.readable |= is.readable;
        self.rx.ended |= is.ended;
        self.tx.writable |= is.writable;
    }

    fn is_in_memory(&self) -> bool {
        self.shm.is_some()
    }

    fn calls(&self) -> bool {
        self.shm.as_ref().is_some_and(|shm| shm.ring.calls())
    }

    fn doze(&mut self) -> bool {
        self.shm.as_mut().is_some_and(|shm| shm.ring.doze())
    }

    fn rouse(&mut self) {
        if let Some(shm) = &mut self.shm {
            shm.ring.rouse();
        }
    }
}

/// A pin whose lease has been revoked is given back here.
fn release_revoked(pin: &mut Option<Pin>) -> bool {
    let revoked = pin.as_ref().is_some_and(|p| p.lease().is_revoked());
    if revoked {
        *pin = None;
    }
    revoked
}
