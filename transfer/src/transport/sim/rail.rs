//! A rail over queue pairs of the software NIC.
//!
//! **Its socket.** The stream that the session opened and authenticated stays the rail's own. Over it the two ends say which
//! queue pairs belong together, ask for checksums, and notice at once that the other end is gone.
//!
//! **Queue pairs.** Each direction has one of its own, made when there is something to send. An error (a request that the
//! owner turned away, say, because its lease had ended) takes the queue pair with it; what was flushed is posted again to a
//! new one, in order. The planner hears of the culprit alone: a revoked lease speaks against no path.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::integrity::Crc;
use crate::mailbox::Mailbox;
use crate::plan::{Cause, Completion, Direction, Fate, Outcome, Refusal, SliceId};
use crate::session::lease::Access;
use crate::session::pipe::{Pipe, PipeError};
use crate::session::wire::{Check, Message};
use crate::telemetry::count;
use crate::transport::frame::{PAYLOAD_MAX, Status};
use crate::transport::sim::nic::Nic;
use crate::transport::sim::pair::{QueuePair, Request, WorkCompletion, WorkStatus};
use crate::transport::sim::responder::Responder;
use crate::transport::sim::wire::Wire;
use crate::transport::sys::Poller;
use crate::transport::{Owner, PIECES_MAX, Post, PostError, Rail, RailError};

/// Work requests that a send queue takes; each piece of a slice is one.
const DEPTH: usize = 8 * PIECES_MAX;
/// Slices outstanding at which a rail wants no more.
const SLICES_WANTED: usize = 8;
/// Messages served before the worker's other rails get their turn.
const MESSAGES: usize = 64;

/// One of our slices between `submit` and its completion.
struct Flight {
    slice: SliceId,
    request: Arc<Request>,
    /// Of a write whose checksum is wanted, as it was posted.
    crc: Option<u32>,
}

/// Our sending direction.
enum Sender {
    Idle,
    /// The peer was asked for a responder to this requester.
    Asking(u64),
    Ready(Arc<QueuePair>),
}

/// A rail to one peer.
pub(crate) struct SimRail {
    nic: Arc<Nic>,
    owner: Arc<Owner>,
    pipe: Pipe,
    /// Over the socket and the completion queue's eventfd.
    poller: Poller,
    completions: Arc<Mailbox<WorkCompletion>>,
    wire: Wire,
    sender: Sender,
    /// Our end of the peer's sending direction.
    responder: Option<Arc<Responder>>,
    /// With the NIC, or about to be; in the order of posting.
    posted: BTreeMap<u64, Flight>,
    /// Landed; the owner looks at the checksum.
    checking: BTreeMap<u64, Flight>,
    /// Work requests of `posted`.
    queued: usize,
    next: u64,
    done: VecDeque<Completion>,
    /// The socket may have something for us.
    readable: bool,
}

impl SimRail {
    /// Over the connected socket of a stream; `salt` tells the streams of an engine apart.
    pub(crate) fn new(socket: OwnedFd, owner: Arc<Owner>, nic: Arc<Nic>, salt: u64) -> std::io::Result<Self> {
        let (poller, waker) = Poller::new()?;
        let pipe = Pipe::new(socket);
        poller.add(pipe.fd(), 0)?;
        Ok(Self {
            wire: Wire::new(*nic.fabric().options(), salt, Instant::now()),
            nic,
            owner,
            pipe,
            poller,
            completions: Arc::new(Mailbox::new(waker)),
            sender: Sender::Idle,
            responder: None,
            posted: BTreeMap::new(),
            checking: BTreeMap::new(),
            queued: 0,
            next: 0,
            done: VecDeque::new(),
            readable: true,
        })
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
                let requester = number(&address)?;
                let responder = Responder::open(self.nic.fabric(), Arc::clone(&self.owner), requester);
                self.pipe.send(&Message::PairReply { address: responder.number().to_le_bytes().to_vec() })?;
                // The requester before has ended with an error, or it would not ask for another.
                if let Some(old) = self.responder.replace(responder) {
                    old.close();
                }
            }
            Message::PairReply { address } => {
                let Sender::Asking(requester) = self.sender else {
                    return Err(RailError::Protocol("a queue pair that nobody asked for"));
                };
                // Not there any more: the other end has closed, and the socket will say so.
                let responder = self.nic.fabric().responder(number(&address)?).ok_or(RailError::Closed)?;
                let pair = Arc::new(QueuePair::new(requester, responder, Arc::clone(&self.completions)));
                for flight in self.posted.values() {
                    post(&self.nic, &pair, &flight.request);
                }
                self.sender = Sender::Ready(pair);
            }
            Message::Check(check) => {
                let (status, crc) = self.check(&check, now);
                self.pipe.send(&Message::Checked { id: check.id, status: status as u8, crc })?;
            }
            Message::Checked { id, status, crc } => {
                let status = Status::from_code(u32::from(status)).ok_or(RailError::Protocol("unknown status"))?;
                if let Some(flight) = self.checking.remove(&id) {
                    let status = self.verdict(&flight, status, crc);
                    self.end(flight.slice, status.outcome());
                }
            }
            _ => return Err(RailError::Protocol("a message out of turn")),
        }
        Ok(())
    }

    /// Takes what the NIC has done.
    fn reap(&mut self) -> Result<(), RailError> {
        self.completions.listen();
        let mut failed = false;
        for WorkCompletion { pair, id, status } in self.completions.take() {
            // What an earlier queue pair had outstanding may still be coming.
            let current = matches!(&self.sender, Sender::Ready(ready) if ready.number() == pair);
            failed |= current && status != WorkStatus::Success;
            if matches!(status, WorkStatus::Flushed | WorkStatus::RetryExceeded) {
                // Not carried out, and it will not be by that queue pair: it stays for the next.
                continue;
            }
            let Some(flight) = self.posted.remove(&id) else { continue };
            self.queued -= flight.request.pieces.len();
            if status == WorkStatus::RemoteAccess {
                // A submit checks ranges and direction against the ticket: what is left is that the lease has ended.
                self.end(flight.slice, Outcome::Failed(Cause::Refused(Refusal::Stale), Fate::Settled));
            } else if flight.request.job.checksum {
                self.pipe.send(&question(id, &flight))?;
                self.checking.insert(id, flight);
            } else {
                self.end(flight.slice, Outcome::Landed);
            }
        }
        if failed {
            self.sender = Sender::Idle;
        }
        Ok(())
    }

    /// Asks for the other end of a queue pair where there is something to send and nothing to send it through.
    fn ask(&mut self) -> Result<(), RailError> {
        if matches!(self.sender, Sender::Idle) && !self.posted.is_empty() {
            let requester = crate::random::u64();
            self.sender = Sender::Asking(requester);
            self.pipe.send(&Message::PairRequest { address: requester.to_le_bytes().to_vec() })?;
        }
        Ok(())
    }

    fn end(&mut self, slice: SliceId, outcome: Outcome) {
        self.done.push_back(Completion { slice, outcome });
    }

    /// The owner's side of a checksum: what do the bytes that a peer wrote or read look like here?
    fn check(&self, check: &Check, now: Instant) -> (Status, u32) {
        let access = if check.read { Access::Read } else { Access::Write };
        let ranges = check.ranges.iter().map(|(offset, len)| (*offset, u64::from(*len)));
        let pin = match self.owner.admit(check.generation, check.lease, check.key, access, ranges.clone(), now) {
            Ok(pin) => pin,
            Err(refusal) => {
                count(&self.owner.counters.frames_refused, 1);
                return (refusal.into(), 0);
            }
        };
        let mut crc = Crc::default();
        for (offset, len) in ranges {
            if let Some(base) = pin.region().mapping().at(offset, len) {
                // SAFETY: `at` proved the range, the pin keeps the region mapped and lent.
                unsafe { crc.add(base, len as usize) };
            }
        }
        let crc = crc.finish();
        if check.crc.is_some_and(|expected| expected != crc) {
            count(&self.owner.counters.checksum_errors, 1);
            return (Status::Corrupt, crc);
        }
        (Status::Ok, crc)
    }

    /// The initiator's side: a read compares what has come with what was there.
    fn verdict(&self, flight: &Flight, status: Status, crc: u32) -> Status {
        if status != Status::Ok || flight.request.direction == Direction::Write || local_crc(&flight.request) == crc {
            return status;
        }
        count(&self.owner.counters.checksum_errors, 1);
        Status::Corrupt
    }
}

/// Over the bytes on our side.
fn local_crc(request: &Request) -> u32 {
    let mut crc = Crc::default();
    for piece in &request.pieces {
        if let Some(base) = request.job.region.mapping().at(piece.local, piece.len) {
            // SAFETY: `at` proved the range; the job keeps the region mapped.
            unsafe { crc.add(base, piece.len as usize) };
        }
    }
    crc.finish()
}

fn question(id: u64, flight: &Flight) -> Message {
    let (job, pieces) = (&flight.request.job, &flight.request.pieces);
    Message::Check(Check {
        id,
        generation: job.generation,
        lease: job.lease,
        key: job.key,
        read: flight.request.direction == Direction::Read,
        crc: flight.crc,
        ranges: pieces.iter().map(|piece| (piece.remote, piece.len as u32)).collect(),
    })
}

fn post(nic: &Nic, pair: &Arc<QueuePair>, request: &Arc<Request>) {
    pair.post(Arc::clone(request));
    nic.ring(pair, request.due);
}

/// A queue pair's number on this fabric.
fn number(address: &[u8]) -> Result<u64, RailError> {
    let bytes = address.try_into().map_err(|_| RailError::Protocol("not an address of a queue pair"))?;
    Ok(u64::from_le_bytes(bytes))
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

impl Rail for SimRail {
    fn readiness(&self) -> RawFd {
        self.poller.fd()
    }

    fn submit(&mut self, submitted: &Post<'_>, now: Instant) -> Result<(), PostError> {
        let mapping = submitted.job.region.mapping();
        let reachable = submitted.pieces.iter().all(|p| mapping.at(p.local, p.len).is_some());
        if !reachable || submitted.pieces.len() > PIECES_MAX || submitted.bytes > PAYLOAD_MAX {
            return Err(PostError::Unreachable);
        }
        if self.queued + submitted.pieces.len() > DEPTH {
            return Err(PostError::Full);
        }
        let id = self.next;
        self.next += 1;
        let request = Arc::new(Request {
            id,
            job: Arc::clone(submitted.job),
            direction: submitted.direction,
            pieces: submitted.pieces.to_vec(),
            bytes: submitted.bytes,
            due: self.wire.due(submitted.bytes, now),
        });
        let wants_crc = submitted.job.checksum && submitted.direction == Direction::Write;
        let crc = wants_crc.then(|| local_crc(&request));
        if let Sender::Ready(pair) = &self.sender {
            post(&self.nic, pair, &request);
        }
        self.queued += submitted.pieces.len();
        self.posted.insert(id, Flight { slice: submitted.id, request, crc });
        Ok(())
    }

    fn progress(&mut self, now: Instant) -> Result<bool, RailError> {
        let readable = &mut self.readable;
        self.poller.wait(Some(Duration::ZERO), |_, may_read, _| *readable |= may_read)?;
        if self.readable {
            self.hear(now)?;
        }
        self.reap()?;
        self.ask()?;
        self.pipe.flush()?;
        Ok(self.readable)
    }

    /// The rail's own poller says which.
    fn ready(&mut self, _: bool, _: bool) {}

    fn completion(&mut self) -> Option<Completion> {
        self.done.pop_front()
    }

    fn room(&self) -> usize {
        let wanted = SLICES_WANTED.saturating_sub(self.posted.len() + self.checking.len());
        wanted.min((DEPTH - self.queued) / PIECES_MAX)
    }

    /// The NIC asks the lease for each request and holds nothing between two.
    fn fence(&mut self) {}

    fn close(self: Box<Self>) -> Option<OwnedFd> {
        None
    }
}

impl Drop for SimRail {
    /// Nothing of it touches memory on either side from here on.
    fn drop(&mut self) {
        if let Sender::Ready(pair) = &self.sender {
            pair.destroy();
        }
        if let Some(responder) = &self.responder {
            responder.close();
        }
    }
}

#[cfg(test)]
mod tests;
