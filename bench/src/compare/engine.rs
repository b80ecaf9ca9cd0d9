//! kvrail's transfer engine as a contender: two processes, one engine each, every block a descriptor of one submit.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kvrail_transfer::{
    Access, ByteRange, Class, Direction, Engine, EngineConfig, Lease, LeaseRequest, LeaseTicket, MemoryKind, Op, Peer,
    Region, TenantId, TransferRequest,
};

use super::shape::{Check, Shape};
use super::{Contender, Run, told};
use crate::content::fill;
use crate::far::{Ask, BenchError, Far, FarSide, Place, Reply, Wire};
use crate::usage::Usage;

/// Longest that a transfer may take.
const TRANSFER_MAX: Duration = Duration::from_secs(60);
/// Longer than any run of the bench.
const LEASE_TTL: Duration = Duration::from_secs(24 * 3600);

fn start(wire: Wire, bytes: usize, place: &Place) -> Result<(Engine, Region), BenchError> {
    let config = EngineConfig {
        listen: (place.host, 0).into(),
        transports: vec![wire.kind()],
        tcp_rails: place.rails.clone(),
        ..EngineConfig::default()
    };
    let engine = Engine::start(config).map_err(BenchError::engine)?;
    // Each transport gets the memory that it is made for, as its baseline does.
    let kind = if wire == Wire::Shm { MemoryKind::Shared } else { MemoryKind::Host };
    let region = engine.allocate(bytes, kind).map_err(BenchError::engine)?;
    Ok((engine, region))
}

fn runtime() -> Result<tokio::runtime::Runtime, BenchError> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

/// The far side: an engine whose pool peers may write.
pub struct Target {
    engine: Engine,
    region: Region,
    lease: Lease,
    runtime: tokio::runtime::Runtime,
}

impl Target {
    /// Starts it with a pool of `bytes`.
    pub fn new(wire: Wire, bytes: usize, place: &Place) -> Result<Self, BenchError> {
        let (engine, region) = start(wire, bytes, place)?;
        let ranges = vec![ByteRange { offset: 0, len: bytes as u64 }];
        let request = LeaseRequest { region: &region, ranges, access: Access::Write, ttl: LEASE_TTL };
        let lease = engine.grant(request).map_err(BenchError::engine)?;
        Ok(Self { engine, region, lease, runtime: runtime()? })
    }

    /// What the near side needs to know.
    pub fn reply(&self) -> Reply {
        Reply::Engine { address: self.engine.local_addr(), ticket: self.lease.ticket().to_bytes() }
    }

    /// Waits for the word that the transfer with this tag is visible.
    pub fn await_told(&self, tag: u64) -> Result<(), BenchError> {
        let notifications = self.engine.notifications();
        let told = self.runtime.block_on(async { tokio::time::timeout(TRANSFER_MAX, notifications.recv()).await });
        let told = told.map_err(|_| BenchError::Far("the receiver was not told in time".into()))?;
        if told.payload[..] == tag.to_le_bytes() {
            Ok(())
        } else {
            Err(BenchError::Far(format!("told of another transfer: {:?}", told.payload)))
        }
    }

    /// Copies a slot out.
    pub fn read(&self, slot: usize, block: &mut [u8]) {
        self.region.read((slot * block.len()) as u64, block);
    }
}

/// The engine over one transport, as a contender.
pub struct Kvrail {
    wire: Wire,
    engine: Engine,
    peer: Peer,
    region: Region,
    ticket: LeaseTicket,
    far: Far,
    runtime: tokio::runtime::Runtime,
    shape: Shape,
    moves: Vec<(usize, usize)>,
    ops: Arc<Vec<Op>>,
}

impl Kvrail {
    /// Starts both engines and connects them.
    pub fn start(far: &FarSide, wire: Wire, shape: Shape, near: &Place) -> Result<Self, BenchError> {
        let mut far = Far::start(far)?;
        let bytes = shape.slots * shape.block_bytes;
        let Reply::Engine { address, ticket } = far.ask(&Ask::Engine { transport: wire, bytes })? else {
            return Err(BenchError::unexpected("engine"));
        };
        let ticket = LeaseTicket::from_bytes(&ticket).map_err(BenchError::engine)?;
        let (engine, region) = start(wire, bytes, near)?;
        let runtime = runtime()?;
        let peer = runtime.block_on(engine.connect(address, Some(ticket.generation()))).map_err(BenchError::engine)?;
        let mut this =
            Self { wire, engine, peer, region, ticket, far, runtime, shape, moves: Vec::new(), ops: Arc::default() };
        this.reshape(shape);
        Ok(this)
    }

    /// Moves other blocks from now on; they must fit into the pools.
    pub fn reshape(&mut self, shape: Shape) {
        let block = shape.block_bytes as u64;
        self.shape = shape;
        self.moves = shape.moves();
        let op = |&(from, to): &(usize, usize)| Op::contiguous(from as u64 * block, to as u64 * block, block);
        self.ops = Arc::new(self.moves.iter().map(op).collect());
    }

    /// Threads that copy at most: the receiver's workers, each with streams of its own.
    pub fn copying_threads() -> usize {
        let config = EngineConfig::default();
        config.workers.min(config.streams_per_peer.into()).max(1)
    }

    /// Shared memory of the near engine, for the memcpy baseline.
    pub fn allocate_shared(&self, bytes: usize) -> Result<Region, BenchError> {
        self.engine.allocate(bytes, MemoryKind::Shared).map_err(BenchError::engine)
    }
}

impl Contender for Kvrail {
    fn name(&self) -> String {
        format!("kvrail over {}", self.wire)
    }

    fn run(&mut self, tag: u64, check: Check) -> Result<Run, BenchError> {
        let mut block = vec![0; self.shape.block_bytes];
        for &(slot, _) in &self.moves {
            fill(tag, slot, &mut block);
            self.region.write((slot * block.len()) as u64, &block);
        }
        let Reply::Ready(far) = self.far.ask(&Ask::Expect { shape: self.shape, tag, check })? else {
            return Err(BenchError::unexpected("ready"));
        };
        let request = TransferRequest {
            region: &self.region,
            ticket: &self.ticket,
            direction: Direction::Write,
            ops: Arc::clone(&self.ops),
            class: Class::KvHandoff,
            tenant: TenantId::default(),
            deadline: Instant::now() + TRANSFER_MAX,
            checksum: None,
            notify: Some(Bytes::copy_from_slice(&tag.to_le_bytes())),
        };
        let before = Usage::own();
        let started = Instant::now();
        let transfer = self.engine.submit(&self.peer, request).map_err(BenchError::engine)?;
        let submit_seconds = started.elapsed().as_secs_f64();
        let report = self.runtime.block_on(transfer);
        let seconds = started.elapsed().as_secs_f64();
        let usage = Usage::own() - before;
        report.status.map_err(BenchError::engine)?;
        if report.bytes != self.shape.bytes() as u64 {
            return Err(BenchError::Far(format!("the report says {} bytes", report.bytes)));
        }
        told(&mut self.far, far, usage, seconds, &self.shape, Some(submit_seconds))
    }
}
