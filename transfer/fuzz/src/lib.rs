//! What the fuzz targets share: an engine under attack, the watch over it, and scripts that turn bytes into what is nearly
//! its protocol.
//!
//! # Law
//!
//! Whatever is said, the engine does not panic, answers or hangs up within [`testing::PATIENCE`], touches no byte outside what it has
//! lent, and serves an honest peer.
//!
//! # Map
//!
//! | module | room |
//! |---|---|
//! | [`script`] | bytes as steps of a conversation |
//! | [`seeds`] | conversations to begin with |
//! | `targets/` | strangers, session and frames attack who was dialled; answers attacks who dials |

pub mod script;
pub mod seeds;

use std::cell::Cell;
use std::time::{Duration, Instant};

use kvrail_transfer::{
    Access, ByteRange, Direction, Engine, EngineConfig, Lease, LeaseRequest, MemoryKind, Op, Peer, Region,
    TransferRequest, TransportKind, testing,
};

/// Bytes of the victim's memory.
const POOL: usize = 64 << 10;
/// What it has lent of them to whoever shows the ticket.
pub const LENT: ByteRange = ByteRange { offset: 4096, len: 8192 };
/// What the victim's memory holds where nobody may write.
const UNTOUCHED: u8 = 7;
/// Inputs between two transfers of the honest peer.
const ROUND: u32 = 64;
/// Longest that an honest peer waits.
const LONG: Duration = Duration::from_secs(20);

/// An engine under attack, and an honest peer of it.
pub struct Victim {
    engine: Engine,
    pool: Region,
    lent: [Lease; 2],
    runtime: tokio::runtime::Runtime,
    friend: Engine,
    peer: Peer,
    source: Region,
    served: Region,
    serving: Lease,
    inputs: Cell<u32>,
    generation: Cell<u64>,
}

/// An engine that gives nobody much time.
fn config() -> EngineConfig {
    EngineConfig {
        transports: vec![TransportKind::Tcp],
        // Sessions that an input leaves behind are to be gone soon.
        heartbeat: Duration::from_millis(200),
        peer_timeout: Duration::from_secs(2),
        connect_timeout: Duration::from_secs(1),
        workers: 1,
        ..EngineConfig::default()
    }
}

fn lend(engine: &Engine, region: &Region, range: ByteRange, access: Access) -> Lease {
    let request = LeaseRequest { region, ranges: vec![range], access, ttl: Duration::from_secs(24 * 3600) };
    engine.grant(request).expect("a lease")
}

impl Default for Victim {
    fn default() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let (engine, friend) = (Engine::start(config()).expect("starts"), Engine::start(config()).expect("starts"));
        let region = |engine: &Engine, len| engine.allocate(len, MemoryKind::Host).expect("memory");
        let (pool, served, source) = (region(&engine, POOL), region(&engine, 4096), region(&friend, 4096));
        pool.write(0, &[UNTOUCHED; POOL]);
        let lent = [Access::Write, Access::Read].map(|access| lend(&engine, &pool, LENT, access));
        let serving = lend(&engine, &served, ByteRange { offset: 0, len: 4096 }, Access::Write);
        let peer = runtime.block_on(friend.connect(engine.local_addr(), None)).expect("the friend connects");
        let (inputs, generation) = (Cell::new(0), Cell::new(1 << 32));
        Self { engine, pool, lent, runtime, friend, peer, source, served, serving, inputs, generation }
    }
}

impl Victim {
    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> std::net::SocketAddr {
        self.engine.local_addr()
    }

    /// Generation, lease and key of what it has lent: to be written, and to be read.
    #[must_use]
    pub fn tickets(&self) -> [[u64; 3]; 2] {
        self.lent.each_ref().map(|lease| testing::fields(&lease.ticket().to_bytes()))
    }

    /// A session, as an engine at always the same place under a generation that is new: the one before is over with it.
    ///
    /// # Panics
    /// If none is given, for then nothing would be attacked any more, and everything would look clean.
    #[must_use]
    pub fn session(&self) -> testing::Session {
        let mut attempts = std::iter::repeat_with(|| {
            self.generation.set(self.generation.get() + 1);
            testing::session(self.address(), self.generation.get())
        });
        // A busy machine may let a handshake's time pass.
        attempts.by_ref().take(3).find_map(Result::ok).expect("a session is given")
    }

    /// Looks after what an input has done.
    ///
    /// # Panics
    /// If it has done harm.
    pub fn check(&self) {
        let mut bytes = vec![0; POOL];
        self.pool.read(0, &mut bytes);
        let lent = LENT.offset as usize..(LENT.offset + LENT.len) as usize;
        let outside = bytes[..lent.start].iter().chain(&bytes[lent.end..]);
        assert!(outside.into_iter().all(|byte| *byte == UNTOUCHED), "a byte outside the lease was written");
        self.inputs.set(self.inputs.get().wrapping_add(1));
        if self.inputs.get().is_multiple_of(ROUND) {
            self.serves();
        }
    }

    /// The honest peer's bytes still arrive.
    fn serves(&self) {
        let ticket = self.serving.ticket();
        let fresh = [self.inputs.get() as u8; 4096];
        self.source.write(0, &fresh);
        let ops = vec![Op::contiguous(0, 0, 4096)];
        let request = TransferRequest {
            deadline: Instant::now() + LONG,
            ..TransferRequest::new(&self.source, &ticket, Direction::Write, ops)
        };
        let transfer = self.friend.submit(&self.peer, request).expect("the friend submits");
        let report = self.runtime.block_on(transfer);
        assert!(report.status.is_ok(), "the friend is not served: {:?}", report.status);
        let mut bytes = [0; 4096];
        self.served.read(0, &mut bytes);
        assert!(bytes == fresh, "the friend's bytes are not there");
        let stats = self.engine.stats();
        assert!(stats.leases + stats.leases_quarantined == 3 && stats.peers <= 1024, "something piles up: {stats:?}");
    }
}

/// Dials whoever listens at `address`, within the engine's own bound.
///
/// # Panics
/// If that bound does not hold.
pub fn dial(victim: &Victim, address: std::net::SocketAddr) {
    let connect = async { tokio::time::timeout(LONG, victim.friend.connect(address, None)).await };
    let _ = victim.runtime.block_on(connect).expect("a dialler gives up in time");
}
