//! Tests of memory that engines are lent and did not map: moved in place, and kept until nothing can touch it.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::{MemoryKind, Region};
use crate::{
    Access, ByteRange, Direction, Engine, EngineConfig, FaultPlan, Gate, Lease, LeaseRequest, Op, Peer, Transfer,
    TransferRequest, TransportKind,
};

const LEN: usize = 1 << 20;
const LONG: Duration = Duration::from_secs(20);

/// Heap memory, and a flag that says when it has gone.
struct Heap {
    _bytes: Vec<u8>,
    gone: Arc<AtomicBool>,
}

impl Drop for Heap {
    fn drop(&mut self) {
        self.gone.store(true, Ordering::SeqCst);
    }
}

/// A region over a vector's bytes, where they are, and whether they have gone.
fn registered(fill: impl Fn(usize) -> u8) -> (Region, *mut u8, Arc<AtomicBool>) {
    let mut bytes: Vec<u8> = (0..LEN).map(fill).collect();
    let base = bytes.as_mut_ptr();
    let gone = Arc::new(AtomicBool::new(false));
    let heap = Heap { _bytes: bytes, gone: Arc::clone(&gone) };
    // SAFETY: the heap block goes with the region, and nothing else looks at it.
    let region = unsafe { Region::register(NonNull::new(base).unwrap(), LEN, heap) }.unwrap();
    (region, base, gone)
}

async fn pair(kinds: &[TransportKind], faults: Option<FaultPlan>) -> (Engine, Engine, Peer) {
    let config = || EngineConfig { transports: kinds.to_vec(), ..EngineConfig::default() };
    let a = Engine::start(EngineConfig { faults, ..config() }).unwrap();
    let b = Engine::start(config()).unwrap();
    let peer = within(a.connect(b.local_addr(), None)).await.unwrap();
    (a, b, peer)
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, future).await.expect("ends in time")
}

fn lend(engine: &Engine, region: &Region, access: Access) -> Lease {
    let ranges = vec![ByteRange { offset: 0, len: LEN as u64 }];
    engine.grant(LeaseRequest { region, ranges, access, ttl: LONG }).unwrap()
}

fn move_all(engine: &Engine, peer: &Peer, region: &Region, lease: &Lease, direction: Direction) -> Transfer {
    let (blocks, step) = (64u64, LEN as u64 / 64);
    let ops = (0..blocks).map(|n| Op::contiguous(n * step, (n * 37 % blocks) * step, step)).collect();
    let ticket = lease.ticket();
    let request =
        TransferRequest { deadline: Instant::now() + LONG, ..TransferRequest::new(region, &ticket, direction, ops) };
    engine.submit(peer, request).unwrap()
}

fn pattern(at: usize) -> u8 {
    (at.wrapping_mul(0x9e37_79b9) >> 11) as u8
}

/// Whether `to` holds the blocks of `from` as `move_all` sends them.
fn moved(from: &Region, to: &Region) -> bool {
    let step = LEN / 64;
    let (mut a, mut b) = (vec![0; step], vec![0; step]);
    (0..64).all(|n| {
        from.read((n * step) as u64, &mut a);
        to.read((n * 37 % 64 * step) as u64, &mut b);
        a == b
    })
}

#[tokio::test]
async fn registered_memory_is_written_and_read_where_it_lies() {
    let (a, b, peer) = pair(&[TransportKind::Tcp], None).await;
    let (source, at, _) = registered(pattern);
    let (target, target_at, _) = registered(|_| 0xEE);
    assert_eq!((source.as_ptr(), target.as_ptr()), (at, target_at));
    let lease = lend(&b, &target, Access::Write);
    assert_eq!(within(move_all(&a, &peer, &source, &lease, Direction::Write)).await.status, Ok(()));
    assert!(moved(&source, &target));

    let (back, _, _) = registered(|_| 0x11);
    let lease = lend(&b, &source, Access::Read);
    assert_eq!(within(move_all(&a, &peer, &back, &lease, Direction::Read)).await.status, Ok(()));
    assert!(moved(&back, &source));
}

#[tokio::test]
async fn a_shared_source_is_copied_straight_into_registered_memory() {
    let (a, b, peer) = pair(&[TransportKind::Shm], None).await;
    let source = a.allocate(LEN, MemoryKind::Shared).unwrap();
    source.write(0, &(0..LEN).map(pattern).collect::<Vec<_>>());
    let (target, ..) = registered(|_| 0xEE);
    let lease = lend(&b, &target, Access::Write);
    assert_eq!(within(move_all(&a, &peer, &source, &lease, Direction::Write)).await.status, Ok(()));
    assert!(moved(&source, &target));
}

#[tokio::test]
async fn the_owner_stays_while_a_transfer_or_a_lease_needs_the_memory() {
    let gate = Gate::default();
    let faults = FaultPlan { post_gate: Some(gate.clone()), ..FaultPlan::default() };
    let (a, b, peer) = pair(&[TransportKind::Tcp], Some(faults)).await;
    let (source, _, source_gone) = registered(pattern);
    let (target, _, target_gone) = registered(|_| 0xEE);
    let lease = lend(&b, &target, Access::Write);
    let transfer = move_all(&a, &peer, &source, &lease, Direction::Write);
    drop((source, target));
    let until = Instant::now() + LONG;
    while !gate.is_reached() {
        assert!(Instant::now() < until, "a slice is about to be sent");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(transfer.report().is_none() && !transfer.is_done());
    assert!(!source_gone.load(Ordering::SeqCst), "a slice of it is about to be sent");
    gate.open();
    within(transfer.finished()).await;
    assert_eq!(transfer.report().map(|report| report.status), Some(Ok(())));
    within(transfer.quiesce()).await;
    within(a.shutdown()).await;
    assert!(source_gone.load(Ordering::SeqCst), "nothing can touch it any more");

    assert!(!target_gone.load(Ordering::SeqCst), "it is still lent");
    lease.begin_revoke();
    within(lease.fenced()).await;
    within(b.shutdown()).await;
    drop(lease);
    assert!(target_gone.load(Ordering::SeqCst), "it is fenced");
}
