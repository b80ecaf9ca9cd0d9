//! What the transfer engine's tests share: engines, patterns, leases.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use kvrail_transfer::{
    Access, ByteRange, Direction, Engine, EngineConfig, Fabric, Lease, LeaseRequest, MemoryKind, Op, Peer, RdmaRail,
    Region, TransferRequest, TransportKind,
};

/// Runs each function as a test over a transport, in a module of its name.
#[allow(unused_macros, reason = "each test binary uses its part")]
macro_rules! over {
    ($module:ident, $kind:ident, $($name:ident),* $(,)?) => {
        mod $module {
            $(#[tokio::test] async fn $name() { super::$name(super::TransportKind::$kind).await; })*
        }
    };
}

/// On real NICs, or those of the soft-RoCE machine.
#[allow(unused_macros, reason = "each test binary uses its part")]
macro_rules! over_rdma {
    ($($name:ident),* $(,)?) => {
        mod rdma {
            $(
                #[tokio::test]
                #[ignore = "RDMA NICs of two hosts are named in KVRAIL_TEST_RDMA, say rxa0,rxa1/rxb0,rxb1"]
                async fn $name() { super::$name(super::TransportKind::Rdma).await; }
            )*
        }
    };
}

#[allow(unused_macros, reason = "each test binary uses its part")]
macro_rules! over_each_transport {
    ($($name:ident),* $(,)?) => {
        over_each_transport!($($name),*; not on rdma: );
    };
    ($($name:ident),*; not on rdma: $($here:ident),* $(,)?) => {
        over!(tcp, Tcp, $($name,)* $($here),*);
        over!(shm, Shm, $($name,)* $($here),*);
        over!(sim, Sim, $($name,)* $($here),*);
        over_rdma!($($name),*);
    };
}

/// For several processes, which the simulated fabric does not join.
#[allow(unused_macros, reason = "each test binary uses its part")]
macro_rules! over_each_for_processes {
    ($($name:ident),* $(,)?) => {
        over_tcp_and_shm!($($name),*);
        over_rdma!($($name),*);
    };
}

/// For those whose other side is spoken by hand.
#[allow(unused_macros, reason = "each test binary uses its part")]
macro_rules! over_tcp_and_shm {
    ($($name:ident),* $(,)?) => {
        over!(tcp, Tcp, $($name),*);
        over!(shm, Shm, $($name),*);
    };
}

/// Bound of everything that must not hang.
pub const LONG: Duration = Duration::from_secs(20);

/// What tests say of a byte that landed after its fence, and of a read that was believed after its eviction. The `late-write`
/// suite listens for these words where the fence is switched off.
pub const LATE_WRITE: &str = "a late write landed in reused memory";
pub const STALE_READ: &str = "evicted bytes were believed";

/// What the engines of a test binary are joined by where the transport is simulated.
static FABRIC: LazyLock<Fabric> = LazyLock::new(Fabric::default);

/// NICs of the next engine: those of the two hosts that `KVRAIL_TEST_RDMA` names, in turns.
fn nics() -> Vec<RdmaRail> {
    static ENGINES: AtomicUsize = AtomicUsize::new(0);
    let hosts = std::env::var("KVRAIL_TEST_RDMA").expect("KVRAIL_TEST_RDMA names the NICs of two hosts");
    let hosts: Vec<&str> = hosts.split('/').collect();
    // A process that a test has started is the other host.
    let first = usize::from(std::env::var_os("KVRAIL_TEST_CHILD").is_some());
    let host = hosts[(first + ENGINES.fetch_add(1, Ordering::Relaxed)) % hosts.len()];
    host.split(',').map(|nic| nic.parse().expect("a NIC")).collect()
}

pub fn config(kind: TransportKind) -> EngineConfig {
    EngineConfig {
        rdma_rails: if kind == TransportKind::Rdma { nics() } else { Vec::new() },
        guard_leases: std::env::var_os("KVRAIL_TEST_GUARDS").is_some(),
        transports: vec![kind],
        fabric: (kind == TransportKind::Sim).then(|| FABRIC.clone()),
        heartbeat: Duration::from_millis(100),
        peer_timeout: Duration::from_millis(800),
        ..EngineConfig::default()
    }
}

pub fn engine(kind: TransportKind) -> Engine {
    Engine::start(config(kind)).expect("an engine starts")
}

/// Two connected engines: initiator, owner, and the owner as the initiator's peer.
pub async fn pair(kind: TransportKind) -> (Engine, Engine, Peer) {
    let (a, b) = (engine(kind), engine(kind));
    let peer = a.connect(b.local_addr(), Some(b.generation())).await.expect("connects");
    (a, b, peer)
}

/// Bytes that differ at every offset and for every seed.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 24) as u8
        })
        .collect()
}

pub fn region(engine: &Engine, len: usize, fill: &[u8]) -> Region {
    let region = engine.allocate(len, MemoryKind::Shared).expect("memory");
    region.write(0, fill);
    region
}

/// The memory's next use: what it must hold from here on.
pub fn reuse(region: &Region) -> Vec<u8> {
    let fresh = pattern(99, region.len());
    region.write(0, &fresh);
    fresh
}

pub fn bytes(region: &Region) -> Vec<u8> {
    let mut out = vec![0; region.len()];
    region.read(0, &mut out);
    out
}

pub fn lend(engine: &Engine, region: &Region, access: Access, ranges: &[(u64, u64)]) -> Lease {
    let ranges = ranges.iter().map(|&(offset, len)| ByteRange { offset, len }).collect();
    engine.grant(LeaseRequest { region, ranges, access, ttl: Duration::from_secs(60) }).expect("a lease")
}

pub fn lend_all(engine: &Engine, region: &Region, access: Access) -> Lease {
    lend(engine, region, access, &[(0, region.len() as u64)])
}

pub fn request<'a>(
    region: &'a Region,
    ticket: &'a kvrail_transfer::LeaseTicket,
    direction: Direction,
    ops: Vec<Op>,
) -> TransferRequest<'a> {
    TransferRequest { deadline: Instant::now() + LONG, ..TransferRequest::new(region, ticket, direction, ops) }
}

/// Fails the test where `future` does not end in time.
pub async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, future).await.expect("ends in time")
}

/// Waits until `condition` holds.
pub async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + LONG;
    while !condition() {
        assert!(Instant::now() < until, "never: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Leases and transfers are all gone, memory is lent to nobody.
pub async fn assert_nothing_is_left(engines: &[&Engine]) {
    for engine in engines {
        eventually("counters return to zero", || {
            let s = engine.stats();
            s.leases + s.leases_quarantined + s.transfers + s.transfers_lent == 0
        })
        .await;
    }
}

/// An honest peer still gets its bytes across.
pub async fn assert_serves(owner: &Engine, kind: TransportKind) {
    let a = engine(kind);
    let peer = within(a.connect(owner.local_addr(), None)).await.expect("still serves");
    let (source, target) = (region(&a, 4096, &pattern(1, 4096)), region(owner, 4096, &[]));
    let lease = lend_all(owner, &target, Access::Write);
    let ticket = lease.ticket();
    let ask = request(&source, &ticket, Direction::Write, vec![Op::contiguous(0, 0, 4096)]);
    assert_eq!(within(a.submit(&peer, ask).unwrap()).await.status, Ok(()));
    assert!(bytes(&target) == pattern(1, 4096));
}
