//! A one-sided rail.
//!
//! **Its socket.** The stream that the session opened and authenticated stays the rail's own. Over it the two ends say which
//! queue pairs belong together, lend and return leases, ask for checksums, and notice at once that the other end is gone.
//!
//! **Queue pairs.** Each direction has one of its own, made when there is something to send. An error (a request that the
//! owner turned away, say, because its lease had ended) takes the queue pair with it; what was flushed is posted again to a
//! new one, in order. The planner hears of the culprit alone: a revoked lease speaks against no path.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::plan::{Cause, Completion, Direction, Fate, Outcome, SliceId};
use crate::session::lease::{Access, Pin};
use crate::session::pipe::{Pipe, PipeError};
use crate::session::wire::{Borrow, Message};
use crate::telemetry::count;
use crate::transport::frame::{PAYLOAD_MAX, Status};
use crate::transport::onesided::borrow::{Leave, Loans, Returned};
use crate::transport::onesided::lend::Lending;
use crate::transport::onesided::vouch::Vouch;
use crate::transport::onesided::{Device, Key, Reach, Request, Side, VOUCH, Work, WorkStatus, check};
use crate::transport::sys::{Poller, Readiness};
use crate::transport::{Owner, PIECES_MAX, Post, PostError, Rail, RailError};

/// Work requests that a send queue takes; each piece of a slice is one at most.
pub(crate) const DEPTH: usize = 8 * PIECES_MAX;
/// Slices outstanding at which a rail wants no more.
const SLICES_WANTED: usize = 8;
/// Messages served before the worker's other rails get their turn.
const MESSAGES: usize = 64;

/// Keys of a lease, at most: what a message holds.
const KEYS_MAX: usize = 280;
/// Key of the socket in the rail's poller; a device uses others.
const SOCKET: u64 = 0;

/// One of our slices between `submit` and its completion.
struct Flight {
    slice: SliceId,
    request: Arc<Request>,
    /// Of a write whose checksum is wanted, as it was submitted.
    crc: Option<u32>,
    /// It was with a queue pair that has failed. Until the peer has made another responder, it may still land.
    in_doubt: bool,
    /// The planner was told that it is not on its way yet.
    waits: bool,
}

impl Flight {
    fn lease(&self) -> u64 {
        self.request.job.lease
    }
}

/// Our sending direction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sender {
    Idle,
    /// The peer was asked for a responder.
    Asking,
    Ready,
}

/// What becomes of a slice that waits.
enum Step {
    Post(Vec<Key>, Vec<Key>),
    Ask,
    Wait,
    End(Outcome),
}

/// A rail to one peer over a device.
pub(crate) struct OneSided<D: Device> {
    device: D,
    owner: Arc<Owner>,
    pipe: Pipe,
    /// Over the socket and the device's descriptors.
    poller: Poller,
    sender: Sender,
    loans: Loans,
    lending: Lending,
    /// Taken, not yet with the NIC; in the order of submission.
    waiting: BTreeMap<u64, Flight>,
    /// With the NIC.
    posted: BTreeMap<u64, Flight>,
    /// Landed; the owner looks at the checksum.
    checking: BTreeMap<u64, Flight>,
    /// Work requests of `waiting` and `posted`, at most.
    queued: usize,
    next: u64,
    works: Vec<Work>,
    done: VecDeque<Completion>,
    vouch: Vouch,
    /// The poller may have something to say.
    called: bool,
    /// The socket may have something for us.
    readable: bool,
    /// Since when leases may have been revoked that are still to be wanted back.
    recalls: Option<Instant>,
}

impl<D: Device> OneSided<D> {
    /// Over the connected socket of a stream.
    pub(crate) fn new(socket: OwnedFd, owner: Arc<Owner>, device: D, poller: Poller) -> std::io::Result<Self> {
        let mut pipe = Pipe::new(socket);
        pipe.keep();
        poller.add(pipe.fd(), SOCKET)?;
        device.watch(&poller)?;
        Ok(Self {
            device,
            owner,
            pipe,
            poller,
            sender: Sender::Idle,
            loans: Loans::default(),
            lending: Lending::default(),
            waiting: BTreeMap::new(),
            posted: BTreeMap::new(),
            checking: BTreeMap::new(),
            queued: 0,
            next: 0,
            works: Vec::new(),
            done: VecDeque::new(),
            vouch: Vouch::default(),
            called: true,
            readable: true,
            recalls: None,
        })
    }

    #[cfg(test)]
    pub(crate) fn device(&self) -> &D {
        &self.device
    }

    #[cfg(test)]
    pub(crate) fn can_post(&self) -> bool {
        self.sender == Sender::Ready
    }

    fn hear(&mut self, now: Instant) -> Result<(), RailError> {
        for _ in 0..MESSAGES {
            match self.pipe.receive()? {
                Some(message) => self.serve(message, now)?,
                None => {
                    self.readable = false;
                    break;
                }
            }
        }
        Ok(())
    }

    fn serve(&mut self, message: Message, now: Instant) -> Result<(), RailError> {
        match message {
            Message::PairRequest { address } => {
                // The requester before has ended with an error, or it would not ask for another.
                let address = self.device.responder(&address)?;
                self.pipe.send(&Message::PairReply { address })?;
            }
            Message::PairReply { address } => {
                if self.sender != Sender::Asking {
                    return Err(RailError::Protocol("a queue pair that nobody asked for"));
                }
                self.device.connect(&address)?;
                self.sender = Sender::Ready;
            }
            Message::Borrow(borrow) => self.lend(&borrow, now)?,
            Message::Lent { lease, status, keys } => {
                let keys = match status_of(status)? {
                    Status::Ok => Ok(keys),
                    status => Err(status),
                };
                if keys.as_ref().is_ok_and(|keys: &Vec<Key>| !keys.is_sorted_by_key(|key| key.offset)) {
                    return Err(RailError::Protocol("keys out of order"));
                }
                if !self.loans.answered(lease, keys) {
                    return Err(RailError::Protocol("a lease that nobody asked for"));
                }
            }
            Message::Recall { lease } => {
                let returned = self.loans.recalled(lease);
                self.send_back(returned)?;
            }
            Message::Returned { lease, landed } => {
                if !self.lending.returned(lease, landed, &self.owner.counters) {
                    return Err(RailError::Protocol("a lease returned that was not lent"));
                }
            }
            Message::Check(question) => {
                let (status, crc) = check::answer(&self.owner, &question, now);
                self.pipe.send(&Message::Checked { id: question.id, status: status as u8, crc })?;
            }
            Message::Checked { id, status, crc } => {
                let status = status_of(status)?;
                if let Some(flight) = self.checking.remove(&id) {
                    let status = check::verdict(&self.owner, &flight.request, status, crc);
                    self.tell(flight.slice, status.outcome());
                }
            }
            _ => return Err(RailError::Protocol("a message out of turn")),
        }
        Ok(())
    }

    // ---- the owner's side

    /// A peer holds a ticket and wants to use the lease.
    fn lend(&mut self, borrow: &Borrow, now: Instant) -> Result<(), RailError> {
        if !self.device.lends() || self.lending.is_lent(borrow.lease) {
            return Err(RailError::Protocol("a lease borrowed twice, or where none is lent"));
        }
        let access = if borrow.read { Access::Read } else { Access::Write };
        let admitted = self.owner.admit(borrow.generation, borrow.lease, borrow.key, access, std::iter::empty(), now);
        match admitted {
            Ok(pin) => self.lending.lend(pin),
            Err(refusal) => {
                count(&self.owner.counters.frames_refused, 1);
                let status = Status::from(refusal) as u8;
                self.pipe.send(&Message::Lent { lease: borrow.lease, status, keys: Vec::new() })?;
            }
        }
        Ok(())
    }

    /// Hands over the keys of leases that were lent, as soon as there are any.
    fn tell_keys(&mut self) -> Result<(), RailError> {
        if !self.lending.has_untold {
            return Ok(());
        }
        let (device, pipe) = (&mut self.device, &mut self.pipe);
        self.lending.tell(|pin| -> Result<_, RailError> {
            let lease = pin.lease();
            let (status, keys) = match keys_of(device, pin) {
                // Its end comes before its beginning.
                _ if lease.is_revoked() => (Status::Stale, Vec::new()),
                Reach::Soon => return Ok(Some(false)),
                Reach::Now(keys) => (Status::Ok, keys),
                Reach::Never => (Status::Unreachable, Vec::new()),
            };
            let (status, keys) = if keys.len() > KEYS_MAX { (Status::Unreachable, Vec::new()) } else { (status, keys) };
            pipe.send(&Message::Lent { lease: lease.id, status: status as u8, keys })?;
            Ok((status == Status::Ok).then_some(true))
        })
    }

    /// Wants back what has been revoked. A borrower that does not answer ends the rail.
    fn recall(&mut self, now: Instant) -> Result<(), RailError> {
        if self.recalls.take().is_some() {
            for lease in self.lending.recall(now) {
                self.pipe.send(&Message::Recall { lease })?;
            }
        }
        match self.lending.due() {
            Some(due) if due <= now => Err(RailError::Overdue),
            _ => Ok(()),
        }
    }

    // ---- the borrower's side

    /// A request under the lease has ended, having moved so many bytes: the last one takes along a lease that is wanted back.
    fn give_back(&mut self, lease: u64, landed: u64) -> Result<(), RailError> {
        let returned = self.loans.ended(lease, landed);
        self.send_back(returned)
    }

    fn send_back(&mut self, returned: Option<Returned>) -> Result<(), RailError> {
        if let Some(Returned { lease, landed }) = returned {
            self.pipe.send(&Message::Returned { lease, landed })?;
        }
        Ok(())
    }

    /// Takes what the NIC has done.
    fn reap(&mut self) -> Result<(), RailError> {
        let mut works = std::mem::take(&mut self.works);
        self.device.reap(&mut works)?;
        let mut failed = false;
        for Work { id, status } in works.drain(..) {
            failed |= status != WorkStatus::Success;
            if id == VOUCH && status == WorkStatus::Success {
                self.vouch.arrived();
            }
            let Some(mut flight) = self.posted.remove(&id) else { continue };
            if status == WorkStatus::Flushed {
                flight.in_doubt = true;
                self.waiting.insert(id, flight);
                continue;
            }
            self.queued -= flight.request.pieces.len();
            let landed = if status == WorkStatus::Success { flight.request.bytes } else { 0 };
            self.give_back(flight.lease(), landed)?;
            if status == WorkStatus::RemoteAccess {
                // A submit checks ranges and direction against the ticket: what is left is that the lease has ended.
                self.tell(flight.slice, Status::Stale.outcome());
            } else if flight.request.job.checksum {
                self.pipe.send(&check::question(&flight.request, flight.crc))?;
                self.checking.insert(id, flight);
            } else {
                self.tell(flight.slice, Outcome::Landed);
            }
        }
        self.works = works;
        if failed {
            self.sender = Sender::Idle;
            self.vouch.lost();
            // What is still to come of that queue pair comes in vain: the next one takes it over, in the old order.
            while let Some((id, flight)) = self.posted.pop_first() {
                self.waiting.insert(id, Flight { in_doubt: true, ..flight });
            }
        }
        Ok(())
    }

    /// Posts what may be posted, and asks for what is missing: a lease, a key, a queue pair.
    fn advance(&mut self, now: Instant) -> Result<(), RailError> {
        let ids: Vec<u64> = self.waiting.keys().copied().collect();
        for id in ids {
            match self.step(id) {
                Step::Wait => self.waits(id),
                Step::Ask => {
                    self.ask(id)?;
                    self.waits(id);
                }
                Step::End(outcome) => {
                    let Some(flight) = self.waiting.remove(&id) else { continue };
                    self.queued -= flight.request.pieces.len();
                    if flight.in_doubt {
                        self.give_back(flight.lease(), 0)?;
                    }
                    self.tell(flight.slice, outcome);
                }
                Step::Post(local, remote) => {
                    let Some(flight) = self.waiting.remove(&id) else { continue };
                    self.device.post(&flight.request, &local, &remote, now)?;
                    if !flight.in_doubt {
                        self.loans.posted(flight.lease());
                    }
                    if flight.waits {
                        self.tell(flight.slice, Outcome::Leaves);
                    }
                    self.posted.insert(id, Flight { in_doubt: false, waits: false, ..flight });
                }
            }
        }
        self.loans.forget_refused();
        if self.sender == Sender::Ready
            && let Some(word) = self.vouch.next()
        {
            self.device.vouch(word, now)?;
        }
        self.device.ring()?;
        if self.sender == Sender::Idle && (!self.waiting.is_empty() || self.vouch.is_wanted()) {
            let address = self.device.requester()?;
            self.sender = Sender::Asking;
            self.pipe.send(&Message::PairRequest { address })?;
        }
        Ok(())
    }

    /// What becomes of a slice that waits, now.
    fn step(&mut self, id: u64) -> Step {
        let Some(Flight { request, in_doubt, .. }) = self.waiting.get(&id) else { return Step::Wait };
        if *in_doubt && self.sender != Sender::Ready {
            return Step::Wait;
        }
        let lends = self.device.lends();
        let remote = match self.loans.leave(request.job.lease) {
            _ if !lends => Vec::new(),
            Leave::Ask => return Step::Ask,
            Leave::Wait => return Step::Wait,
            Leave::No(status) => return Step::End(status.outcome()),
            Leave::Post(keys) => keys.to_vec(),
        };
        let mut ranges = request.pieces.iter().map(|piece| (piece.local, piece.len));
        match self.device.keys(&request.job.region, &mut ranges, Side::Local) {
            Reach::Soon => Step::Wait,
            Reach::Never => Step::End(Outcome::Failed(Cause::LocalFault, Fate::Settled)),
            Reach::Now(local) if self.sender == Sender::Ready => Step::Post(local, remote),
            Reach::Now(_) => Step::Wait,
        }
    }

    /// Asks the owner for the lease of a slice.
    fn ask(&mut self, id: u64) -> Result<(), RailError> {
        let Some(Flight { request, .. }) = self.waiting.get(&id) else { return Ok(()) };
        let (job, read) = (&request.job, request.direction == Direction::Read);
        let borrow = Borrow { lease: job.lease, key: job.key, generation: job.generation, read };
        self.loans.asked(borrow.lease);
        Ok(self.pipe.send(&Message::Borrow(borrow))?)
    }

    /// A slice is not on its way yet.
    fn waits(&mut self, id: u64) {
        if let Some(flight) = self.waiting.get_mut(&id).filter(|flight| !flight.waits) {
            flight.waits = true;
            let slice = flight.slice;
            self.tell(slice, Outcome::Waits);
        }
    }

    /// The planner is told.
    fn tell(&mut self, slice: SliceId, outcome: Outcome) {
        self.done.push_back(Completion { slice, outcome });
    }
}

/// Keys for whom a lease is lent to.
fn keys_of(device: &mut impl Device, pin: &Pin) -> Reach {
    let mut ranges = pin.lease().ranges.iter().map(|range| (range.offset, range.len));
    device.guard(pin.region(), pin.lease()).unwrap_or_else(|| device.keys(pin.region(), &mut ranges, Side::Remote))
}

fn status_of(byte: u8) -> Result<Status, RailError> {
    Status::from_code(u32::from(byte)).ok_or(RailError::Protocol("unknown status"))
}

impl From<PipeError> for RailError {
    fn from(error: PipeError) -> Self {
        match error {
            PipeError::Closed => Self::Closed,
            PipeError::NotOurs => Self::Protocol("not a message of this protocol"),
            PipeError::Backlog => Self::Protocol("a peer that does not read"),
            PipeError::Os(error) => Self::Os(error),
        }
    }
}

impl<D: Device> Rail for OneSided<D> {
    fn readiness(&self) -> RawFd {
        self.poller.fd()
    }

    fn submit(&mut self, submitted: &Post<'_>, _: Instant) -> Result<(), PostError> {
        let region = &submitted.job.region;
        let reachable = submitted.pieces.iter().all(|p| region.contains(p.local, p.len));
        if !reachable || submitted.pieces.len() > PIECES_MAX || submitted.bytes > PAYLOAD_MAX {
            return Err(PostError::Unreachable);
        }
        if self.queued + submitted.pieces.len() > DEPTH {
            return Err(PostError::Full);
        }
        let id = self.next;
        let request = Arc::new(Request {
            id,
            job: Arc::clone(submitted.job),
            direction: submitted.direction,
            pieces: submitted.pieces.to_vec(),
            bytes: submitted.bytes,
        });
        let wants_crc = submitted.job.checksum && submitted.direction == Direction::Write;
        let crc = if wants_crc { Some(check::local_crc(&request).ok_or(PostError::Unreachable)?) } else { None };
        self.next += 1;
        self.queued += submitted.pieces.len();
        self.waiting.insert(id, Flight { slice: submitted.id, request, crc, in_doubt: false, waits: false });
        // Told before the queue pair is made: that takes a while, and many may be made in one go.
        if self.sender != Sender::Ready {
            self.waits(id);
        }
        Ok(())
    }

    fn progress(&mut self, now: Instant) -> Result<bool, RailError> {
        if std::mem::take(&mut self.called) {
            let (readable, pipe, device) = (&mut self.readable, &mut self.pipe, &mut self.device);
            self.poller.wait(Some(Duration::ZERO), |key, is| match key {
                SOCKET => {
                    *readable |= is.readable;
                    if is.ended {
                        pipe.end_is_near();
                    }
                }
                key if is.readable => device.ready(key),
                _ => {}
            })?;
        }
        if self.readable {
            self.hear(now)?;
        }
        self.reap()?;
        self.tell_keys()?;
        self.recall(now)?;
        self.advance(now)?;
        self.pipe.flush()?;
        Ok(self.device.arm()? || self.readable)
    }

    /// The rail's own poller says which.
    fn ready(&mut self, _: Readiness) {
        self.called = true;
    }

    fn completion(&mut self) -> Option<Completion> {
        self.done.pop_front()
    }

    fn room(&self) -> usize {
        let outstanding = self.waiting.len() + self.posted.len() + self.checking.len();
        SLICES_WANTED.saturating_sub(outstanding).min((DEPTH - self.queued) / PIECES_MAX)
    }

    fn vouch(&mut self, word: u32) {
        self.vouch.want(word);
    }

    fn vouched(&mut self) -> Option<u32> {
        self.device.vouched()
    }

    /// What is lent is wanted back; the rail is looked at again when that is overdue.
    fn fence(&mut self) {
        self.recalls = Some(Instant::now());
    }

    fn wake_at(&self) -> Option<Instant> {
        self.recalls.or_else(|| self.lending.due())
    }

    fn close(self: Box<Self>) -> Option<OwnedFd> {
        None
    }
}

impl<D: Device> Drop for OneSided<D> {
    /// Nothing of it touches memory on either side from here on; then what was lent is back.
    fn drop(&mut self) {
        let is_certain = self.device.close();
        if !is_certain {
            tracing::error!("a queue pair could not be destroyed: what was lent over it stays lent for ever");
        }
        self.lending.end(is_certain);
    }
}
