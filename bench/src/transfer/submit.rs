//! Submitting: threads, each with some lanes that have one transfer under way at a time.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use kvrail_transfer::{
    Class, Engine, Lease, LeaseTicket, Op, Peer, Region, Report, SubmitError, TenantId, TransferRequest, TransportKind,
};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::cell::{Layout, OpKind};
use super::checker::Notice;
use super::member::{Blocks, Looks, tag};
use super::order::{FlowDone, FlowId, Limit, Looked, Shape};
use crate::far::{BenchError, Wire};

/// Longest that a transfer may take.
const TRANSFER_MAX: Duration = Duration::from_secs(60);
/// Longest that the receiver may take to look at what it was told of.
const LOOK_MAX: Duration = Duration::from_secs(20);
/// Wait before a peer that was lost is sought again.
const RECONNECT_AFTER: Duration = Duration::from_millis(100);
/// How long it is sought where no time ends the cell.
const RECONNECT_MAX: Duration = Duration::from_secs(10);

/// The end of a flow that submits.
pub struct Outgoing {
    flow: FlowId,
    /// Its memory.
    pub region: Region,
    ticket: LeaseTicket,
    to: SocketAddr,
    peer: Mutex<Peer>,
    work: Mutex<Option<Arc<Work>>>,
    looks: Looks,
    // The receiver's right to say what it found.
    _words: Lease,
}

/// A cell's work on a flow.
struct Work {
    shape: Shape,
    blocks: Blocks,
    /// Of each place.
    ops: Vec<Arc<Vec<Op>>>,
    /// Places whose bytes the receiver has not looked at yet.
    unseen: Vec<AtomicBool>,
    seen: Notify,
    /// Transfers of each lane so far.
    turns: Vec<AtomicU64>,
}

impl Outgoing {
    /// A flow to a connected peer.
    pub fn new(flow: FlowId, region: Region, ticket: LeaseTicket, to: SocketAddr, peer: Peer, words: Lease) -> Self {
        let (peer, work) = (Mutex::new(peer), Mutex::new(None));
        Self { flow, region, ticket, to, peer, work, looks: Looks::default(), _words: words }
    }

    /// The next cell.
    pub fn shape(&self, blocks: Blocks, shape: Shape) {
        let size = shape.cell.block_bytes;
        let op = |&(from, to): &(usize, usize)| {
            let (local, remote) = if shape.cell.op == OpKind::Write { (from, to) } else { (to, from) };
            Op::contiguous(local as u64 * size, remote as u64 * size, size)
        };
        let places = blocks.layout.places();
        let ops = (0..places).map(|place| Arc::new(blocks.of(place).iter().map(op).collect())).collect();
        let unseen = std::iter::repeat_with(AtomicBool::default).take(places).collect();
        let turns = std::iter::repeat_with(AtomicU64::default).take(blocks.layout.lanes).collect();
        *self.work.lock() = Some(Arc::new(Work { shape, blocks, ops, unseen, seen: Notify::new(), turns }));
    }

    /// The receiver has looked at a place.
    pub fn looked_at(&self, place: usize) {
        let work = self.work.lock().clone();
        if let Some(work) = work
            && let Some(unseen) = work.unseen.get(place)
        {
            unseen.store(false, Ordering::Release);
            work.seen.notify_waiters();
        }
    }

    /// What this end has looked at since this was last asked.
    pub fn take_looked(&self) -> Looked {
        self.looks.take()
    }
}

/// Submits on all flows at once until the limit is met, and waits for what is under way.
///
/// # Errors
/// If something is refused that no fault explains.
pub fn go<'a>(
    engine: &Engine,
    flows: impl Iterator<Item = &'a Arc<Outgoing>>,
    limit: Limit,
) -> Result<Vec<FlowDone>, BenchError> {
    let mut jobs = Vec::new();
    for outgoing in flows {
        let work = outgoing.work.lock().clone().ok_or_else(|| BenchError::Far("no cell was told".into()))?;
        let left = Arc::new(AtomicU64::new(if let Limit::Count(count) = limit { count } else { u64::MAX }));
        for thread in 0..work.shape.cell.threads {
            let (outgoing, work, left) = (Arc::clone(outgoing), Arc::clone(&work), Arc::clone(&left));
            jobs.push((outgoing, work, left, thread));
        }
    }
    let barrier = Barrier::new(jobs.len());
    let done: Vec<Result<FlowDone, BenchError>> = std::thread::scope(|scope| {
        let barrier = &barrier;
        let threads: Vec<_> = jobs
            .into_iter()
            .map(|(outgoing, work, left, thread)| {
                scope.spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                    barrier.wait();
                    let started = Instant::now();
                    let end = if let Limit::Time(time) = limit { Some(started + time) } else { None };
                    let run = Run { engine, flow: &outgoing, work: &work, left: &left, started, end };
                    runtime?.block_on(run.lanes(thread))
                })
            })
            .collect();
        let panicked = |_| Err(BenchError::Far("a submitting thread panicked".into()));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
    });
    let mut flows: Vec<FlowDone> = Vec::new();
    for done in done {
        let done = done?;
        match flows.iter_mut().find(|flow| flow.flow == done.flow) {
            Some(flow) => flow.add(done),
            None => flows.push(done),
        }
    }
    Ok(flows)
}

/// What the lanes of a thread have in common.
struct Run<'a> {
    engine: &'a Engine,
    flow: &'a Outgoing,
    work: &'a Work,
    left: &'a AtomicU64,
    started: Instant,
    end: Option<Instant>,
}

impl Run<'_> {
    async fn lanes(&self, thread: usize) -> Result<FlowDone, BenchError> {
        let tally = RefCell::new(FlowDone { flow: self.flow.flow, ..FlowDone::default() });
        let in_flight = self.work.shape.cell.in_flight;
        let lanes = thread * in_flight..(thread + 1) * in_flight;
        let mut running: FuturesUnordered<_> = lanes.clone().map(|lane| self.lane(lane, &tally)).collect();
        while let Some(ended) = running.next().await {
            ended?;
        }
        drop(running);
        // What is still to be looked at belongs to this cell: its blocks lie elsewhere in the next one.
        let Layout { laps, .. } = self.work.blocks.layout;
        for place in lanes.start * laps..lanes.end * laps {
            if !self.was_seen(place).await {
                self.fail(&tally, &"the receiver did not say what it found");
            }
        }
        let mut done = tally.into_inner();
        done.turns = lanes.map(|lane| self.work.turns[lane].load(Ordering::Relaxed)).collect();
        Ok(done)
    }

    /// Whether one more transfer may begin.
    fn may_go_on(&self) -> bool {
        let counted = |left: u64| left.checked_sub(1);
        self.end.is_none_or(|end| Instant::now() < end)
            && self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, counted).is_ok()
    }

    async fn lane(&self, lane: usize, tally: &RefCell<FlowDone>) -> Result<(), BenchError> {
        let Work { shape, blocks, turns, .. } = self.work;
        let mut block = Vec::new();
        while self.may_go_on() {
            let turn = turns[lane].fetch_add(1, Ordering::Relaxed);
            let place = blocks.layout.place(lane, turn);
            let tag =
                tag(shape, self.flow.flow, if shape.verify && shape.cell.op == OpKind::Write { turn + 1 } else { 0 });
            if shape.verify {
                match shape.cell.op {
                    OpKind::Write if !self.was_seen(place).await => {
                        self.fail(tally, &"the receiver did not say what it found");
                        continue;
                    }
                    OpKind::Write => blocks.fill(place, tag, &mut block),
                    OpKind::Read => blocks.poison(place, &mut block),
                }
            }
            self.transfer(place, tag, tally, &mut block).await?;
        }
        Ok(())
    }

    async fn transfer(
        &self,
        place: usize,
        tag: u64,
        tally: &RefCell<FlowDone>,
        block: &mut Vec<u8>,
    ) -> Result<(), BenchError> {
        let Work { shape, blocks, ops, unseen, .. } = self.work;
        let told = shape.verify && shape.cell.op == OpKind::Write;
        let peer = self.flow.peer.lock().clone();
        unseen[place].store(told, Ordering::Release);
        let landed = Notice::Landed { flow: self.flow.flow, place: place as u32, tag };
        let started = Instant::now();
        let request = TransferRequest {
            region: &self.flow.region,
            ticket: &self.flow.ticket,
            direction: shape.cell.op.direction(),
            ops: Arc::clone(&ops[place]),
            class: Class::KvHandoff,
            tenant: TenantId::default(),
            deadline: started + TRANSFER_MAX,
            checksum: None,
            notify: told.then(|| landed.to_bytes()),
        };
        let transfer = match self.engine.submit(&peer, request) {
            Ok(transfer) => transfer,
            Err(error @ SubmitError::PeerLost) => {
                unseen[place].store(false, Ordering::Release);
                self.fail(tally, &error);
                self.reconnect().await;
                return Ok(());
            }
            Err(error) => return Err(BenchError::engine(error)),
        };
        let posted = started.elapsed();
        let quiesced = transfer.quiesce();
        let report = transfer.await;
        let mut ended = Instant::now();
        match report.status {
            Ok(()) => {
                if shape.verify {
                    // Lanes of a thread wait for each other's looks: what the engine heard is when it was there. Nobody knows it
                    // before `submit` has returned.
                    ended = report.last_landed.unwrap_or(ended).max(started + posted);
                }
                if shape.verify && shape.cell.op == OpKind::Read {
                    self.flow.looks.add(blocks.look(place, tag, block));
                }
                self.note(tally, &report, [posted, ended.saturating_duration_since(started)], ended);
            }
            Err(error) => {
                unseen[place].store(false, Ordering::Release);
                self.fail(tally, &error);
                quiesced.await;
                if error.is_peer_lost() {
                    self.reconnect().await;
                }
            }
        }
        Ok(())
    }

    /// Waits until a place may be filled anew.
    async fn was_seen(&self, place: usize) -> bool {
        let seen = async {
            loop {
                let seen = self.work.seen.notified();
                tokio::pin!(seen);
                seen.as_mut().enable();
                if !self.work.unseen[place].load(Ordering::Acquire) {
                    return;
                }
                seen.await;
            }
        };
        let in_time = tokio::time::timeout(LOOK_MAX, seen).await.is_ok();
        if !in_time {
            self.work.unseen[place].store(false, Ordering::Release);
        }
        in_time
    }

    fn note(&self, tally: &RefCell<FlowDone>, report: &Report, [posted, visible]: [Duration; 2], ended: Instant) {
        let mut done = tally.borrow_mut();
        done.transfers += 1;
        done.bytes += report.bytes;
        done.retried_bytes += report.retried_bytes;
        done.seconds = done.seconds.max(ended.saturating_duration_since(self.started).as_secs_f64());
        done.post.record(posted);
        done.wire.record(report.wire);
        done.visible.record(visible);
        for rail in &report.bytes_by_rail {
            let wire = match rail.transport {
                TransportKind::Tcp => Wire::Tcp,
                TransportKind::Rdma => Wire::Rdma,
                // No engine of a sweep has another one.
                TransportKind::Shm | TransportKind::Sim => Wire::Shm,
            };
            done.moved(wire, rail.stream, rail.bytes);
        }
    }

    fn fail(&self, tally: &RefCell<FlowDone>, error: &dyn std::fmt::Display) {
        let mut done = tally.borrow_mut();
        done.failed += 1;
        done.first_failure.get_or_insert_with(|| error.to_string());
    }

    /// Connects again to a peer that was lost, for as long as the cell goes on; the lanes of a flow share the session.
    async fn reconnect(&self) {
        let until = self.end.unwrap_or_else(|| Instant::now() + RECONNECT_MAX);
        while Instant::now() < until {
            let connect = self.engine.connect(self.flow.to, Some(self.flow.ticket.generation()));
            if let Ok(Ok(peer)) = tokio::time::timeout_at(until.into(), connect).await
                && peer.is_alive()
            {
                *self.flow.peer.lock() = peer;
                return;
            }
            tokio::time::sleep(RECONNECT_AFTER).await;
        }
    }
}
