//! Queue pairs: the requester, which sends what we have, and the responder, through which a peer reaches us.

use std::sync::Arc;

use kvrail_verbs::{
    Access, Capacity, Completion, CompletionChannel, CompletionQueue, Data, Error, Flags, Operation, Path, QueuePair,
    ReceiveChain, Remote, Segment, SendChain, Status, ToInit, ToRtr, ToRts,
};

use crate::plan::Direction;
use crate::transport::onesided::rail::DEPTH;
use crate::transport::onesided::{Key, Request, VOUCH, Work, WorkStatus};
use crate::transport::rdma::address::Address;
use crate::transport::rdma::{Nic, chain};
use crate::transport::{PIECES_MAX, RailError};

/// Entries of a gather list, where the device has as many.
const SEGMENTS_MAX: u32 = 16;
/// READs under way at once, where both devices have as many.
const READS_MAX: u8 = 16;
/// 4.096 µs · 2^12 = 17 ms until an answer is missed, seven times over. The planner gives up on a path before that; the
/// NIC's patience is for losses that a fabric recovers from, and each costs it as long.
const TIMEOUT: u8 = 12;
const RETRIES: u8 = 7;
/// Receives of a responder, for words that vouch. A requester has one under way at a time, so a worker may be away for as many round trips
/// before a word finds no receive and is sent again by the NIC.
const RECEIVES: usize = 64;
/// Completions taken at once.
const BATCH: usize = 64;

/// A queue pair between the two NICs of a path, in `Init`.
fn new_pair(nic: &Nic, queue: &CompletionQueue, capacity: Capacity, access: Access) -> Result<QueuePair, Error> {
    let pair = nic.domain.queue_pair(queue).capacity(capacity).build()?;
    pair.to_init(ToInit { port: nic.name.port, pkey_index: 0, access })?;
    Ok(pair)
}

/// Connects it to the far one, from the place `gid_index` of our GID table.
fn to_rtr(pair: &QueuePair, nic: &Nic, near: &Address, gid_index: u32, far: &Address) -> Result<(), Error> {
    let port = nic.port()?;
    let path = Path {
        port: nic.name.port,
        source_gid_index: u8::try_from(gid_index).unwrap_or(0),
        // Within a subnet of InfiniBand the LID does, and saves a header.
        destination_gid: (!Nic::is_infiniband(&port)).then_some(far.gid),
        destination_lid: far.lid,
        service_level: 0,
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
    };
    pair.to_rtr(ToRtr {
        path,
        mtu: near.mtu.min(far.mtu),
        destination: far.number,
        receive_sequence: far.sequence,
        reads_answered: near.reads.min(far.reads).max(1),
        not_ready_timer: 12,
    })
}

fn address(pair: &QueuePair, nic: &Nic, like: Option<&Address>, reads: u8) -> Result<(Address, u32), RailError> {
    let port = nic.port()?;
    let gid = nic.gid(like.map(|far| far.reach))?;
    let (entry, reach) = gid.ok_or(RailError::Protocol("no address of a NIC reaches the other's"))?;
    let sequence = (crate::random::u64() & 0xff_ffff) as u32;
    let (number, mtu) = (pair.number(), Nic::mtu(&port));
    let address =
        Address { number, sequence, gid: entry.gid, reach, lid: port.lid, mtu, reads: reads.clamp(1, READS_MAX) };
    Ok((address, entry.index))
}

/// A completion queue, and whether it will say when something is in it.
pub(super) struct Queue {
    queue: CompletionQueue,
    /// An event has been asked for and has not come.
    armed: bool,
}

impl Queue {
    fn new(nic: &Nic, channel: &CompletionChannel, entries: u32) -> Result<Self, Error> {
        Ok(Self { queue: nic.context.completion_queue(entries, Some(channel))?, armed: false })
    }

    /// Whether an event of this queue was fetched. Then no other comes until it is asked for.
    pub(super) fn disarm(&mut self, queue: u32) -> bool {
        let is_ours = self.queue.handle() == queue;
        self.armed &= !is_ours;
        is_ours
    }

    /// Whether an event is due that has not come.
    pub(super) fn is_armed(&self) -> bool {
        self.armed
    }

    /// Asks for an event, unless one is due. True if so: what came before raises none.
    fn arm(&mut self) -> Result<bool, Error> {
        let asks = !self.armed;
        if asks {
            self.queue.request_event(false)?;
            self.armed = true;
        }
        Ok(asks)
    }
}

/// What sends our requests.
pub(super) struct Requester {
    pair: QueuePair,
    pub(super) queue: Queue,
    near: Address,
    gid_index: u32,
    /// Taken, and not rung for.
    chain: SendChain,
    /// Pieces of what is in it.
    pieces: usize,
    segments: Vec<Segment>,
    works: Vec<chain::Work>,
    segments_max: usize,
    completions: Box<[Completion]>,
    /// Signalled requests that have not completed.
    outstanding: usize,
}

impl Requester {
    pub(super) fn new(nic: &Nic, channel: &CompletionChannel) -> Result<Self, RailError> {
        let attributes = &nic.attributes;
        // One more than slices take: for the word that vouches.
        let depth = (DEPTH as u32 + 1).min(attributes.qp_requests_max).min(attributes.cq_entries_max);
        let segments = SEGMENTS_MAX.min(attributes.segments_max).max(1);
        let queue = Queue::new(nic, channel, depth)?;
        let capacity =
            Capacity { sends: depth, receives: 1, send_segments: segments, receive_segments: 1, inline_bytes: 0 };
        let pair = new_pair(nic, &queue.queue, capacity, Access::empty())?;
        let (near, gid_index) = address(&pair, nic, None, attributes.qp_reads_started_max)?;
        Ok(Self {
            pair,
            queue,
            near,
            gid_index,
            // One more, as above.
            chain: SendChain::with_capacity(PIECES_MAX + 1, PIECES_MAX, 0),
            pieces: 0,
            segments: Vec::new(),
            works: Vec::new(),
            segments_max: segments as usize,
            completions: vec![Completion::default(); BATCH].into(),
            outstanding: 0,
        })
    }

    pub(super) fn address(&self) -> &Address {
        &self.near
    }

    pub(super) fn connect(&mut self, nic: &Nic, far: &Address) -> Result<(), RailError> {
        to_rtr(&self.pair, nic, &self.near, self.gid_index, far)?;
        Ok(self.pair.to_rts(ToRts {
            timeout: TIMEOUT,
            retries: RETRIES,
            not_ready_retries: 7,
            send_sequence: self.near.sequence,
            reads_started: self.near.reads.min(far.reads).max(1),
        })?)
    }

    /// Whether there is room for a slice without ringing first.
    pub(super) fn has_room(&self, request: &Request) -> bool {
        self.pieces + request.pieces.len() <= PIECES_MAX
    }

    /// Takes a slice, which is one completion. Says how many work requests that was.
    pub(super) fn post(&mut self, request: &Arc<Request>, local: &[Key], remote: &[Key]) -> Result<usize, RailError> {
        let (segments, works) = (&mut self.segments, &mut self.works);
        chain::build(&request.pieces, (local, remote), self.segments_max, segments, works)
            .ok_or(RailError::Protocol("a lease without the keys of all its parts"))?;
        let mut first = 0;
        for work in works.iter() {
            let remote = Remote { address: work.remote, rkey: work.rkey };
            let operation = match request.direction {
                Direction::Write => Operation::Write(remote),
                Direction::Read => Operation::Read(remote),
            };
            let data = Data::Segments(&segments[first..first + work.segments]);
            first += work.segments;
            let pushed = self.chain.push(request.id, operation, data, Flags::empty());
            pushed.map_err(|_| RailError::Protocol("a slice of more pieces than agreed"))?;
        }
        self.chain.signal_last();
        self.pieces += request.pieces.len();
        self.outstanding += 1;
        Ok(works.len())
    }

    /// Posts what was taken with one doorbell. False: there was nothing.
    pub(super) fn ring(&mut self) -> Result<bool, RailError> {
        if self.chain.is_empty() {
            return Ok(false);
        }
        self.pair.post_send(&mut self.chain).map_err(|error| RailError::Nic(error.to_string()))?;
        self.chain.clear();
        self.pieces = 0;
        Ok(true)
    }

    /// Takes a request without bytes, whose word completes one of the peer's receives.
    pub(super) fn vouch(&mut self, word: u32) -> Result<(), RailError> {
        let nowhere = Remote { address: 0, rkey: 0 };
        let pushed = self.chain.push(VOUCH, Operation::WriteImmediate(nowhere, word), Data::NONE, Flags::SIGNALED);
        pushed.map_err(|_| RailError::Protocol("a chain without room"))?;
        self.outstanding += 1;
        Ok(())
    }

    /// Asks for an event where something is outstanding and none is due. True if so: what came before raises none.
    pub(super) fn arm(&mut self) -> Result<bool, RailError> {
        Ok(self.outstanding > 0 && self.queue.arm()?)
    }

    /// Takes what has completed.
    pub(super) fn reap(&mut self, into: &mut Vec<Work>) -> Result<(), RailError> {
        if self.outstanding == 0 {
            return Ok(());
        }
        loop {
            let taken = self.queue.queue.poll(&mut self.completions)?;
            for completion in taken {
                let status = match completion.status() {
                    Status::Success => WorkStatus::Success,
                    Status::RemoteAccess => WorkStatus::RemoteAccess,
                    Status::Flushed => WorkStatus::Flushed,
                    failed => return Err(RailError::Nic(failed.to_string())),
                };
                self.outstanding = self.outstanding.saturating_sub(1);
                into.push(Work { id: completion.id(), status });
            }
            if taken.len() < BATCH {
                return Ok(());
            }
        }
    }

    /// Destroys it: nothing of it touches our memory any more. False if that failed.
    pub(super) fn destroy(self) -> bool {
        destroy(self.pair)
    }
}

/// What serves a peer's requests, without anybody's doing.
pub(super) struct Responder {
    pair: QueuePair,
    /// Of its receives.
    pub(super) queue: Queue,
    near: Address,
    receives: ReceiveChain,
}

impl Responder {
    /// Connected to the requester at `far`.
    pub(super) fn new(nic: &Nic, channel: &CompletionChannel, far: &Address) -> Result<Self, RailError> {
        let receives = RECEIVES as u32;
        let queue = Queue::new(nic, channel, receives + 1)?;
        let capacity = Capacity { sends: 1, receives, send_segments: 1, receive_segments: 1, inline_bytes: 0 };
        let pair = new_pair(nic, &queue.queue, capacity, Access::REMOTE_WRITE | Access::REMOTE_READ)?;
        let (near, gid_index) = address(&pair, nic, Some(far), nic.attributes.qp_reads_answered_max)?;
        let mut responder = Self { pair, queue, near, receives: ReceiveChain::with_capacity(RECEIVES, 0) };
        // Before a request can come, and asked for before there can be an event.
        responder.receive(RECEIVES)?;
        responder.queue.arm()?;
        to_rtr(&responder.pair, nic, &responder.near, gid_index, far)?;
        Ok(responder)
    }

    /// Posts so many receives.
    fn receive(&mut self, count: usize) -> Result<(), RailError> {
        self.receives.clear();
        for _ in 0..count {
            self.receives.push(0, &[]).map_err(|_| RailError::Protocol("a chain without room"))?;
        }
        self.pair.post_receive(&mut self.receives).map_err(|error| RailError::Nic(error.to_string()))
    }

    /// For when its event has come: the peer's latest word, if there is one, and whether to look once more. A batch at a time: a peer
    /// that says words without end keeps nobody from the rest.
    pub(super) fn hear(&mut self) -> Result<(Option<u32>, bool), RailError> {
        let mut room = [Completion::default(); RECEIVES];
        let taken = self.queue.queue.poll(&mut room)?;
        if taken.iter().any(|completion| !completion.is_success()) {
            return Err(RailError::Nic("a responder is in error".into()));
        }
        let latest = taken.iter().rev().find_map(Completion::immediate);
        match taken.len() {
            0 => Ok((None, self.queue.arm()?)),
            taken => self.receive(taken).map(|()| (latest, true)),
        }
    }

    pub(super) fn address(&self) -> &Address {
        &self.near
    }

    pub(super) fn number(&self) -> u32 {
        self.near.number
    }

    /// Destroys it: the peer reaches nothing through it any more. False if that failed.
    pub(super) fn destroy(self) -> bool {
        destroy(self.pair)
    }
}

fn destroy(pair: QueuePair) -> bool {
    let number = pair.number();
    pair.destroy().inspect_err(|error| tracing::error!(number, %error, "a queue pair cannot be destroyed")).is_ok()
}
