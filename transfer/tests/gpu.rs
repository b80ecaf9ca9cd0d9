//! Device memory through the public face, on a driver that is made up: its memory cannot be dereferenced by the host, its copies end
//! late, and what is freed too early panics. Nothing here has run on a GPU.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvrail_transfer::gpu::fake::{Fake, FakeDevice};
use kvrail_transfer::gpu::{AllocationKind, Device, Driver, Gpus, StagingOptions};
use kvrail_transfer::*;

const LEN: usize = 3 << 20;
const BLOCK: u64 = 16 << 10;
const LONG: Duration = Duration::from_secs(30);

fn device(lag: u32) -> (Arc<Fake>, Device) {
    let fake = Fake::new(vec![FakeDevice::able("0000:44:00.0")], lag);
    let driver: Arc<dyn Driver> = fake.clone();
    let options = StagingOptions { chunk_bytes: 64 << 10, chunks_max: 8 };
    let device = Gpus::with(driver, options).unwrap().device(0).unwrap();
    (fake, device)
}

fn pattern(seed: usize) -> Vec<u8> {
    (0..LEN).map(|at| (at / 5 + at * seed) as u8).collect()
}

/// A region of device memory that holds these bytes.
fn filled(device: &Device, bytes: &[u8]) -> Region {
    let region = Region::device(device.allocate(bytes.len() as u64).unwrap());
    region.try_write(0, bytes).unwrap();
    region
}

fn contents(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.try_read(0, &mut bytes).unwrap();
    bytes
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, future).await.expect("ends in time")
}

async fn pair(transports: &[TransportKind], faults: Option<FaultPlan>) -> (Engine, Engine, Peer) {
    let config = || EngineConfig { transports: transports.to_vec(), ..EngineConfig::default() };
    let a = Engine::start(EngineConfig { faults, ..config() }).unwrap();
    let b = Engine::start(config()).unwrap();
    let peer = within(a.connect(b.local_addr(), None)).await.unwrap();
    (a, b, peer)
}

fn lend(engine: &Engine, region: &Region, access: Access) -> Lease {
    let ranges = vec![ByteRange { offset: 0, len: region.len() as u64 }];
    engine.grant(LeaseRequest { region, ranges, access, ttl: LONG }).unwrap()
}

/// Blocks of one side, each to another place of the other.
fn scattered() -> Vec<Op> {
    let blocks = LEN as u64 / BLOCK;
    (0..blocks).map(|n| Op::contiguous(n * BLOCK, (n * 37 % blocks) * BLOCK, BLOCK)).collect()
}

/// What the far side holds when the local one holds `bytes`.
fn shuffled(bytes: &[u8]) -> Vec<u8> {
    let mut far = vec![0; LEN];
    for op in scattered() {
        let (from, to, n) = (op.local.offset as usize, op.remote.offset as usize, BLOCK as usize);
        far[to..to + n].copy_from_slice(&bytes[from..from + n]);
    }
    far
}

fn request<'a>(
    region: &'a Region,
    ticket: &'a LeaseTicket,
    direction: Direction,
    checksum: bool,
) -> TransferRequest<'a> {
    let deadline = Instant::now() + LONG;
    let checksum = Some(checksum);
    TransferRequest { deadline, checksum, ..TransferRequest::new(region, ticket, direction, scattered()) }
}

#[tokio::test]
async fn bytes_move_from_device_to_device_over_tcp_and_are_there_when_that_is_reported() {
    for checksum in [false, true] {
        // Two machines: two drivers.
        let ((here, near), (there, far)) = (device(2), device(3));
        let (a, b, peer) = pair(&[TransportKind::Tcp], None).await;
        let bytes = pattern(3);
        let source = filled(&near, &bytes);
        let target = filled(&far, &vec![0; LEN]);
        let lease = lend(&b, &target, Access::Write);
        let ticket = lease.ticket();
        let transfer = a.submit(&peer, request(&source, &ticket, Direction::Write, checksum)).unwrap();
        let report = within(transfer).await;
        assert_eq!(report.status, Ok(()));
        // The very memory, without anybody asking for a copy's end.
        let address = target.device_memory().unwrap().address();
        assert!(there.peek(address, LEN) == shuffled(&bytes), "checksum {checksum}");
        assert_eq!(lease.bytes_landed(), LEN as u64);
        assert_eq!((a.stats().bytes_staged, b.stats().bytes_staged), (LEN as u64, LEN as u64));
        within(lease.revoke()).await;
        drop((source, target));
        within(a.shutdown()).await;
        within(b.shutdown()).await;
        assert_eq!((here.allocations(), there.allocations()), (0, 0), "nothing holds memory any more");
        assert_eq!((near.staging_bytes(), far.staging_bytes()), (0, 0));
    }
}

#[tokio::test]
async fn bytes_are_read_from_device_to_device_over_tcp() {
    for checksum in [false, true] {
        let ((here, near), (_there, far)) = (device(2), device(2));
        let (a, b, peer) = pair(&[TransportKind::Tcp], None).await;
        let bytes = pattern(7);
        let pool = filled(&far, &shuffled(&bytes));
        let into = filled(&near, &vec![0; LEN]);
        let lease = lend(&b, &pool, Access::Read);
        let ticket = lease.ticket();
        let report = within(a.submit(&peer, request(&into, &ticket, Direction::Read, checksum)).unwrap()).await;
        assert_eq!(report.status, Ok(()));
        let address = into.device_memory().unwrap().address();
        assert!(here.peek(address, LEN) == bytes, "checksum {checksum}");
    }
}

#[tokio::test]
async fn host_and_device_memory_meet_in_each_way() {
    let (fake, gpu) = device(1);
    for kinds in [&[TransportKind::Tcp][..], &[TransportKind::Shm, TransportKind::Tcp]] {
        let (a, b, peer) = pair(kinds, None).await;
        let bytes = pattern(11);
        for direction in [Direction::Write, Direction::Read] {
            let access = if direction == Direction::Write { Access::Write } else { Access::Read };
            for (local_is_device, checksum) in [(false, false), (true, false), (false, true), (true, true)] {
                let host = |engine: &Engine| engine.allocate(LEN, MemoryKind::Shared).unwrap();
                let on_device = || filled(&gpu, &vec![0; LEN]);
                let (local, remote) = if local_is_device { (on_device(), host(&b)) } else { (host(&a), on_device()) };
                let (from, to, wanted) = match direction {
                    Direction::Write => (&local, &remote, shuffled(&bytes)),
                    Direction::Read => (&remote, &local, bytes.clone()),
                };
                let given = if direction == Direction::Write { bytes.clone() } else { shuffled(&bytes) };
                from.try_write(0, &given).unwrap();
                let lease = lend(&b, &remote, access);
                let ticket = lease.ticket();
                let report = within(a.submit(&peer, request(&local, &ticket, direction, checksum)).unwrap()).await;
                assert_eq!(report.status, Ok(()), "{kinds:?} {direction:?} {local_is_device}");
                assert!(contents(to) == wanted, "{kinds:?} {direction:?} {local_is_device} {checksum}");
                within(lease.revoke()).await;
            }
        }
    }
    assert_eq!(fake.allocations(), 0);
}

#[tokio::test]
async fn what_no_nic_reaches_goes_past_the_nics_whichever_side_it_is_on() {
    let fake = Fake::new(vec![FakeDevice::plain("0000:44:00.0")], 1);
    let driver: Arc<dyn Driver> = fake.clone();
    let gpu = Gpus::with(driver, StagingOptions::default()).unwrap().device(0).unwrap();
    let fabric = Fabric::new(FabricOptions::default());
    let config = || EngineConfig {
        transports: vec![TransportKind::Sim, TransportKind::Tcp],
        fabric: Some(fabric.clone()),
        ..EngineConfig::default()
    };
    let (a, b) = (Engine::start(config()).unwrap(), Engine::start(config()).unwrap());
    let peer = within(a.connect(b.local_addr(), None)).await.unwrap();
    let bytes = pattern(13);
    for local_is_device in [false, true] {
        let host = |engine: &Engine| engine.allocate(LEN, MemoryKind::Host).unwrap();
        let on_device = || filled(&gpu, &vec![0; LEN]);
        let (local, remote) = if local_is_device { (on_device(), host(&b)) } else { (host(&a), on_device()) };
        local.try_write(0, &bytes).unwrap();
        let lease = lend(&b, &remote, Access::Write);
        // What it says of its memory survives the way.
        let ticket = LeaseTicket::from_bytes(&lease.ticket().to_bytes()).unwrap();
        let report = within(a.submit(&peer, request(&local, &ticket, Direction::Write, false)).unwrap()).await;
        assert_eq!(report.status, Ok(()));
        assert!(report.bytes_by_rail.iter().all(|rail| rail.transport == TransportKind::Tcp), "{report:?}");
        assert_eq!(report.retried_bytes, 0, "nothing was tried in vain");
        assert!(contents(&remote) == shuffled(&bytes));
    }
}

#[tokio::test]
async fn damage_is_found_before_it_is_told_as_landed() {
    let (_fake, gpu) = device(1);
    let (a, b, peer) = {
        let config = || EngineConfig { transports: vec![TransportKind::Tcp], ..EngineConfig::default() };
        let a = Engine::start(config()).unwrap();
        let faults = Some("flip=1".parse::<FaultPlan>().unwrap());
        let b = Engine::start(EngineConfig { faults, ..config() }).unwrap();
        let peer = within(a.connect(b.local_addr(), None)).await.unwrap();
        (a, b, peer)
    };
    let source = filled(&gpu, &pattern(3));
    let target = filled(&gpu, &vec![0; LEN]);
    let lease = lend(&b, &target, Access::Write);
    let ticket = lease.ticket();
    let report = within(a.submit(&peer, request(&source, &ticket, Direction::Write, true)).unwrap()).await;
    assert!(report.status.is_err());
    assert!(b.stats().checksum_errors > 0);
    assert_eq!(lease.bytes_landed(), 0);
}

#[tokio::test]
async fn a_transfer_is_not_accepted_before_the_executors_mark_and_moves_what_was_written_before_it() {
    let (fake, gpu) = device(1);
    let (a, b, peer) = pair(&[TransportKind::Tcp], None).await;
    let source = filled(&gpu, &vec![0; LEN]);
    let target = b.allocate(LEN, MemoryKind::Host).unwrap();
    let lease = lend(&b, &target, Access::Write);
    let ticket = lease.ticket();
    let executor = fake.executor();
    fake.hold_stream(executor, true);
    let bytes = pattern(5);
    fake.launch(executor, source.device_memory().unwrap().address(), &bytes);
    // SAFETY: a stream of this driver.
    let mark = unsafe { gpu.record(executor) }.unwrap();
    for _ in 0..10 {
        let early = a.submit_after(&peer, &mark, request(&source, &ticket, Direction::Write, false));
        assert_eq!(early.err(), Some(SubmitError::NotReady));
    }
    assert_eq!(lease.bytes_landed(), 0);
    fake.hold_stream(executor, false);
    let transfer = a.submit_after(&peer, &mark, request(&source, &ticket, Direction::Write, false)).unwrap();
    assert_eq!(within(transfer).await.status, Ok(()));
    assert!(contents(&target) == shuffled(&bytes));
    fake.fail("query", 0, 719);
    // SAFETY: as above.
    let failed = unsafe { gpu.record(executor) }.unwrap();
    let refused = a.submit_after(&peer, &failed, request(&source, &ticket, Direction::Write, false));
    assert!(matches!(refused.err(), Some(SubmitError::Device(_))));
}

#[tokio::test]
async fn memory_of_a_revoked_lease_never_changes_afterwards() {
    let (fake, gpu) = device(8);
    let (a, b, peer) = pair(&[TransportKind::Tcp], None).await;
    let source = filled(&gpu, &pattern(3));
    for round in 0..20u64 {
        let target = filled(&gpu, &vec![0; LEN]);
        let address = target.device_memory().unwrap().address();
        let lease = lend(&b, &target, Access::Write);
        let ticket = lease.ticket();
        let transfer = a.submit(&peer, request(&source, &ticket, Direction::Write, false)).unwrap();
        tokio::time::sleep(Duration::from_micros(300 * round)).await;
        within(lease.revoke()).await;
        let mark = vec![0xa5; LEN];
        fake.poke(address, &mark);
        let quiesced = transfer.quiesce();
        let report = within(transfer).await;
        assert!(report.status.is_ok() || report.status.as_ref().is_err_and(TransferError::is_stale), "{report:?}");
        within(quiesced).await;
        assert!(fake.peek(address, LEN) == mark, "round {round}: a late write");
    }
}

#[tokio::test]
async fn a_device_that_fails_is_a_typed_error_in_time_and_other_memory_still_moves() {
    let (fake, gpu) = device(0);
    let (a, b, peer) = pair(&[TransportKind::Tcp], None).await;
    let source = filled(&gpu, &pattern(3));
    let target = b.allocate(LEN, MemoryKind::Host).unwrap();
    let lease = lend(&b, &target, Access::Write);
    let ticket = lease.ticket();
    (0..1000).for_each(|_| fake.fail("copy", 0, 700));
    let deadline = Instant::now() + Duration::from_secs(3);
    let doomed = TransferRequest { deadline, ..request(&source, &ticket, Direction::Write, false) };
    let report = within(a.submit(&peer, doomed).unwrap()).await;
    assert!(report.status.is_err());
    let host = a.allocate(LEN, MemoryKind::Host).unwrap();
    host.write(0, &pattern(9));
    let report = within(a.submit(&peer, request(&host, &ticket, Direction::Write, false)).unwrap()).await;
    assert_eq!(report.status, Ok(()));
    assert!(contents(&target) == shuffled(&pattern(9)));
}

#[test]
fn device_memory_is_a_region_of_its_own_kind() {
    let (fake, gpu) = device(0);
    let base = fake.foreign(0, 1 << 20, AllocationKind::Pool);
    // SAFETY: the fake's allocation stays for the test.
    let memory = unsafe { gpu.import(base, 1 << 20, ()) }.unwrap();
    let region = Region::device(memory);
    assert_eq!((region.kind(), region.len()), (MemoryKind::Device, 1 << 20));
    assert_eq!(region.as_ptr() as u64, base.0);
    region.populate_in_background();
    let engine = Engine::start(EngineConfig::default()).unwrap();
    assert!(matches!(engine.allocate(1, MemoryKind::Device), Err(MemoryError::Device)));
}

#[test]
fn a_machine_without_a_driver_says_so() {
    match Gpus::open() {
        Err(error) => assert!(matches!(error, gpu::Error::Unavailable(_)), "{error}"),
        Ok(gpus) => println!("there are {} devices here", gpus.count()),
    }
}
