//! A member of a sweep: an engine, and its ends of the flows. It does what it is ordered; in the process that the command was
//! given to it runs in a thread, elsewhere behind [`far`](crate::far).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kvrail_transfer::{
    Access, ByteRange, Engine, EngineConfig, Lease, LeaseRequest, LeaseTicket, MemoryKind, Region, TransportKind,
};

use super::cell::{Layout, OpKind};
use super::checker::{Checker, WORD_BYTES};
use super::order::{FlowId, Looked, Mark, Order, Shape, Start, Word};
use super::submit::{self, Outgoing};
use super::tally::STEP;
use crate::content::{fill, holds};
use crate::far::{BenchError, Place, Wire};
use crate::machine::memory_available;
use crate::setting::SettingError;
use crate::usage::Usage;

/// Longer than any sweep.
const LEASE_TTL: Duration = Duration::from_secs(24 * 3600);
/// Words on what was found that may wait to be heard: more than transfers are ever under way.
const WORDS_MAX: usize = 65_536;

/// Bytes that an engine has sent and received since the start of a cell's time, for who watches.
pub type Meter = Arc<AtomicU64>;

/// A member.
pub struct Member {
    place: Place,
    meter: Meter,
    running: Option<Running>,
}

/// An engine and what it is used for.
struct Running {
    // Before the engine: its thread holds a clone.
    checker: Checker,
    sampler: Option<Sampler>,
    incoming: BTreeMap<FlowId, Incoming>,
    outgoing: BTreeMap<FlowId, Arc<Outgoing>>,
    shape: Option<Shape>,
    started: Usage,
    wire: Wire,
    engine: Engine,
    runtime: tokio::runtime::Runtime,
}

/// The end of a flow that lends its memory.
struct Incoming {
    region: Region,
    // Dropping it ends the right to the memory.
    _lease: Lease,
}

/// The blocks of one end of a flow in a cell.
#[derive(Clone)]
pub struct Blocks {
    /// The memory.
    pub region: Region,
    /// How they lie.
    pub layout: Layout,
    /// Source and destination slot of each, place by place.
    pub moves: Arc<Vec<(usize, usize)>>,
}

impl Blocks {
    fn new(region: &Region, flow: FlowId, shape: &Shape) -> Self {
        let layout = shape.cell.layout(shape.pool);
        let moves = Arc::new(layout.moves(shape.seed ^ u64::from(flow) << 32));
        Self { region: region.clone(), layout, moves }
    }

    /// The blocks of one place.
    #[must_use]
    pub fn of(&self, place: usize) -> &[(usize, usize)] {
        &self.moves[place * self.layout.batch..][..self.layout.batch]
    }

    /// Fills the source of one place.
    pub fn fill(&self, place: usize, tag: u64, block: &mut Vec<u8>) {
        block.resize(self.layout.block as usize, 0);
        for &(from, _) in self.of(place) {
            fill(tag, from, block);
            self.region.write(from as u64 * self.layout.block, block);
        }
    }

    /// Overwrites the destination of one place, so that what lies there afterwards has come since.
    pub fn poison(&self, place: usize, block: &mut Vec<u8>) {
        block.clear();
        block.resize(self.layout.block as usize, 0xa5);
        for &(_, to) in self.of(place) {
            self.region.write(to as u64 * self.layout.block, block);
        }
    }

    /// Looks at every byte of the destination of one place.
    pub fn look(&self, place: usize, tag: u64, block: &mut Vec<u8>) -> Looked {
        block.resize(self.layout.block as usize, 0);
        let mut looked = Looked::default();
        for &(from, to) in self.of(place) {
            self.region.read(to as u64 * self.layout.block, block);
            looked += Looked { wrong: u64::from(!holds(tag, from, block)), looked_at: 1 };
        }
        looked
    }
}

/// What the contents of a flow's transfer hang on. Turns count only where each transfer is looked at.
#[must_use]
pub fn tag(shape: &Shape, flow: FlowId, turn: u64) -> u64 {
    let parts = [shape.seed, u64::from(shape.number), u64::from(flow), turn];
    // Distinct parts, distinct tags, near enough: the content's generator spreads them further.
    parts.iter().fold(0, |tag: u64, part| (tag ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23))
}

impl Member {
    /// One that has not been ordered anything.
    #[must_use]
    pub fn new(place: Place) -> Self {
        Self { place, meter: Meter::default(), running: None }
    }

    /// The same, watched.
    #[must_use]
    pub fn with_meter(self, meter: Meter) -> Self {
        Self { meter, ..self }
    }

    /// Does what it is ordered.
    ///
    /// # Errors
    /// [`BenchError`] if that cannot be done.
    pub fn obey(&mut self, order: Order) -> Result<Word, BenchError> {
        if let Order::Start(start) = order {
            // The one before frees its memory first.
            self.running = None;
            let (running, rails) = Running::start(&self.place, &start)?;
            let address = running.engine.local_addr();
            self.running = Some(running);
            return Ok(Word::Started { address, rails });
        }
        let running = self.running.as_mut().ok_or_else(|| BenchError::Far("no engine was started".into()))?;
        match order {
            Order::Start(_) => Err(BenchError::unexpected("start")),
            Order::Lend { flow, bytes, written } => running.lend(flow, bytes, written),
            Order::Open { flow, bytes, to, ticket } => running.open(flow, bytes, to, &ticket),
            Order::Acknowledge { flow, to, ticket } => {
                let ticket = LeaseTicket::from_bytes(&ticket).map_err(BenchError::engine)?;
                running.checker.acknowledge(flow, to, ticket);
                Ok(Word::Done(Vec::new()))
            }
            Order::Shape(shape) => running.shape(shape),
            Order::Go(limit) => {
                running.begin(&self.meter);
                submit::go(&running.engine, running.outgoing.values(), limit).map(Word::Done)
            }
            Order::Mark => Ok(Word::Marked(running.mark())),
            Order::Look { flow, turns } => running.look(flow, &turns).map(Word::Looked),
        }
    }
}

impl Running {
    fn start(place: &Place, start: &Start) -> Result<(Self, usize), BenchError> {
        let read = |what: String| BenchError::Far(what);
        let mut tcp_rails = place.rails.clone();
        if tcp_rails.is_empty() {
            let rails = start.rails.iter().map(|rail| rail.parse());
            tcp_rails = rails.collect::<Result<_, kvrail_transfer::TcpRailError>>().map_err(|e| read(e.to_string()))?;
        }
        let mut rdma_rails = place.rdma_rails.clone();
        if rdma_rails.is_empty() {
            let rails = start.rdma_rails.iter().map(|rail| rail.parse());
            rdma_rails =
                rails.collect::<Result<_, kvrail_transfer::RdmaRailError>>().map_err(|e| read(e.to_string()))?;
        }
        let rails = match start.wire.kind() {
            TransportKind::Tcp => tcp_rails.len(),
            TransportKind::Rdma => rdma_rails.len(),
            _ => 0,
        };
        let faults = start.slices.as_ref().map(|plan| plan.parse()).transpose();
        let config = EngineConfig {
            listen: (place.host, 0).into(),
            transports: vec![start.wire.kind()],
            tcp_rails,
            rdma_rails,
            streams_per_peer: start.streams,
            notifications_max: WORDS_MAX,
            faults: faults.map_err(|e: kvrail_transfer::FaultPlanError| read(e.to_string()))?,
            ..EngineConfig::default()
        };
        let engine = Engine::start(config).map_err(BenchError::engine)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let this = Self {
            checker: Checker::start(&engine)?,
            sampler: None,
            incoming: BTreeMap::new(),
            outgoing: BTreeMap::new(),
            shape: None,
            started: Usage::default(),
            wire: start.wire,
            engine,
            runtime,
        };
        Ok((this, rails))
    }

    /// Memory of the kind that the transport is made for.
    fn allocate(&self, bytes: u64) -> Result<Region, BenchError> {
        if let Some(free) = memory_available().filter(|free| bytes > *free as u64) {
            let wanted =
                format!("a pool of {bytes} bytes is needed in each end of each flow, {free} bytes are free here");
            return Err(SettingError::new("pool", bytes, wanted).into());
        }
        let kind = if self.wire == Wire::Shm { MemoryKind::Shared } else { MemoryKind::Host };
        self.engine.allocate(usize::try_from(bytes).unwrap_or(usize::MAX), kind).map_err(BenchError::engine)
    }

    fn grant(&self, region: &Region, access: Access) -> Result<Lease, BenchError> {
        let ranges = vec![ByteRange { offset: 0, len: region.len() as u64 }];
        self.engine.grant(LeaseRequest { region, ranges, access, ttl: LEASE_TTL }).map_err(BenchError::engine)
    }

    fn lend(&mut self, flow: FlowId, bytes: u64, written: bool) -> Result<Word, BenchError> {
        let region = self.allocate(bytes)?;
        let lease = self.grant(&region, if written { Access::Write } else { Access::Read })?;
        let ticket = lease.ticket().to_bytes();
        self.incoming.insert(flow, Incoming { region, _lease: lease });
        Ok(Word::Lent { ticket })
    }

    fn open(&mut self, flow: FlowId, bytes: u64, to: SocketAddr, ticket: &[u8]) -> Result<Word, BenchError> {
        let ticket = LeaseTicket::from_bytes(ticket).map_err(BenchError::engine)?;
        let region = self.allocate(bytes)?;
        let connect = self.engine.connect(to, Some(ticket.generation()));
        let peer = self.runtime.block_on(connect).map_err(BenchError::engine)?;
        let words = self.allocate(WORD_BYTES)?;
        let lease = self.grant(&words, Access::Write)?;
        let words = lease.ticket().to_bytes();
        self.outgoing.insert(flow, Arc::new(Outgoing::new(flow, region, ticket, to, peer, lease)));
        Ok(Word::Opened { ticket: words })
    }

    fn shape(&mut self, shape: Shape) -> Result<Word, BenchError> {
        let bytes = shape.cell.layout(shape.pool).bytes();
        let fits = |region: &Region| bytes.is_some_and(|bytes| bytes <= region.len() as u64);
        let regions =
            self.incoming.values().map(|flow| &flow.region).chain(self.outgoing.values().map(|flow| &flow.region));
        if !regions.into_iter().all(fits) {
            return Err(BenchError::Far(format!("{} does not fit the pools", shape.cell)));
        }
        let written = shape.cell.op == OpKind::Write;
        let mut checked = BTreeMap::new();
        for (&flow, incoming) in &self.incoming {
            let blocks = Blocks::new(&incoming.region, flow, &shape);
            if !written {
                fill_all(&blocks, tag(&shape, flow, 0));
            }
            checked.insert(flow, blocks);
        }
        self.checker.shape(checked);
        for (&flow, outgoing) in &self.outgoing {
            let blocks = Blocks::new(&outgoing.region, flow, &shape);
            if written && !shape.verify {
                fill_all(&blocks, tag(&shape, flow, 0));
            }
            outgoing.shape(blocks, shape);
        }
        self.checker.send_words_to(&self.outgoing);
        self.shape = Some(shape);
        Ok(Word::Shaped)
    }

    fn begin(&mut self, meter: &Meter) {
        self.sampler = None;
        let received = self.shape.is_some_and(|shape| shape.cell.op == OpKind::Write) && self.wire != Wire::Rdma;
        // What was found is counted from mark to mark: others may have begun a moment before.
        self.started = Usage::own();
        self.sampler = Some(Sampler::start(&self.engine, received, Arc::clone(meter)));
    }

    fn mark(&mut self) -> Mark {
        let usage = Usage::own() - self.started;
        let landed = self.sampler.take().map(Sampler::stop).unwrap_or_default();
        let mut looked = self.checker.take();
        for flow in self.outgoing.values() {
            looked += flow.take_looked();
        }
        Mark { usage, landed, looked }
    }

    fn look(&self, flow: FlowId, turns: &[u64]) -> Result<Looked, BenchError> {
        let shape = self.shape.ok_or_else(|| BenchError::Far("no cell was told".into()))?;
        let incoming = self.incoming.get(&flow).map(|flow| &flow.region);
        let region = incoming.or_else(|| self.outgoing.get(&flow).map(|flow| &flow.region));
        let region = region.ok_or_else(|| BenchError::Far(format!("flow {flow} does not end here")))?;
        let blocks = Blocks::new(region, flow, &shape);
        let (tag, mut block, mut looked) = (tag(&shape, flow, 0), Vec::new(), Looked::default());
        for (lane, turns) in turns.iter().enumerate().take(blocks.layout.lanes) {
            for turn in 0..(*turns).min(blocks.layout.laps as u64) {
                looked += blocks.look(blocks.layout.place(lane, turn), tag, &mut block);
            }
        }
        Ok(looked)
    }
}

fn fill_all(blocks: &Blocks, tag: u64) {
    let mut block = Vec::new();
    (0..blocks.layout.places()).for_each(|place| blocks.fill(place, tag, &mut block));
}

/// Reads a counter of the engine at every step.
struct Sampler {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<u64>>,
}

impl Sampler {
    /// Counts what lands here from peers' writes, which moves slice by slice; where that is not to be had, what this engine
    /// moved, which moves transfer by transfer.
    fn start(engine: &Engine, received: bool, meter: Meter) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (flag, engine) = (Arc::clone(&stop), engine.clone());
        let before = engine.stats();
        let start = Instant::now();
        meter.store(0, Ordering::Relaxed);
        let thread = std::thread::spawn(move || {
            let mut landed = Vec::new();
            while !flag.load(Ordering::Acquire) {
                let next = start + STEP * (landed.len() as u32 + 1);
                std::thread::sleep(next.saturating_duration_since(Instant::now()));
                let now = engine.stats();
                let (came, went) = (now.bytes_received - before.bytes_received, now.bytes_moved - before.bytes_moved);
                meter.store(came + went, Ordering::Relaxed);
                landed.push(if received { came } else { went });
            }
            landed
        });
        Self { stop, thread }
    }

    fn stop(self) -> Vec<u64> {
        self.stop.store(true, Ordering::Release);
        self.thread.join().unwrap_or_default()
    }
}

/// Counts of blocks that several threads look at.
#[derive(Default)]
pub struct Looks {
    wrong: AtomicU64,
    looked_at: AtomicU64,
}

impl Looks {
    /// Notes what was found.
    pub fn add(&self, looked: Looked) {
        self.wrong.fetch_add(looked.wrong, Ordering::Relaxed);
        self.looked_at.fetch_add(looked.looked_at, Ordering::Relaxed);
    }

    /// What was found since this was last asked.
    pub fn take(&self) -> Looked {
        let take = |count: &AtomicU64| count.swap(0, Ordering::Relaxed);
        Looked { wrong: take(&self.wrong), looked_at: take(&self.looked_at) }
    }
}
