//! What holds of the software NIC alone; what it has in common with the other transports is in the conformance suite.

mod common;

use std::time::{Duration, Instant};

use common::*;
use kvrail_transfer::*;

const LEN: usize = 4 << 20;

/// There and back takes 300 ms: whatever a busy machine puts in between comes before. With one stream the planner waits longer
/// than that, and has nothing fenced.
fn slow() -> Fabric {
    Fabric::new(FabricOptions { delay: Duration::from_millis(150), ..FabricOptions::default() })
}

/// An engine of one stream on a fabric of its choice.
fn on(fabric: &Fabric, transports: Vec<TransportKind>) -> Engine {
    let fabric = Some(fabric.clone());
    Engine::start(EngineConfig { transports, fabric, streams_per_peer: 1, ..config(TransportKind::Sim) }).unwrap()
}

#[tokio::test]
async fn engines_that_share_no_fabric_do_not_meet_on_one() {
    let (here, there) = (Fabric::default(), Fabric::default());
    let (a, b) = (on(&here, vec![TransportKind::Sim]), on(&there, vec![TransportKind::Sim]));
    let error = within(a.connect(b.local_addr(), None)).await.unwrap_err();
    assert_eq!(error, ConnectError::NoTransport);
    let both = || vec![TransportKind::Sim, TransportKind::Tcp];
    let (a, b) = (on(&here, both()), on(&there, both()));
    let peer = within(a.connect(b.local_addr(), None)).await.unwrap();
    let (source, target) = (region(&a, LEN, &pattern(1, LEN)), region(&b, LEN, &[]));
    let lease = lend_all(&b, &target, Access::Write);
    let ops = vec![Op::contiguous(0, 0, LEN as u64)];
    let report = within(a.submit(&peer, request(&source, &lease.ticket(), Direction::Write, ops)).unwrap()).await;
    assert_eq!(report.status, Ok(()));
    assert!(report.bytes_by_rail.iter().all(|rail| rail.transport == TransportKind::Tcp));
}

#[test]
fn without_a_fabric_it_is_refused_by_name() {
    let config = EngineConfig { fabric: None, ..config(TransportKind::Sim) };
    let error = Engine::start(config).err().unwrap();
    assert!(matches!(error, EngineError::Config { name: "fabric", .. }), "{error}");
    assert!(!EngineConfig::default().transports.contains(&TransportKind::Sim), "nobody has it by default");
}

/// The notification itself goes over a socket and is there at once; the rail's word goes there and back once more.
#[tokio::test]
async fn a_notification_waits_for_the_word_of_the_rail_that_brought_its_bytes() {
    let fabric = slow();
    let (a, b) = (on(&fabric, vec![TransportKind::Sim]), on(&fabric, vec![TransportKind::Sim]));
    let peer = within(a.connect(b.local_addr(), None)).await.unwrap();
    let (source, target) = (region(&a, 4096, &pattern(1, 4096)), region(&b, 4096, &[]));
    let lease = lend_all(&b, &target, Access::Write);
    let (ticket, notify) = (lease.ticket(), Some(bytes::Bytes::from_static(b"there")));
    let ops = vec![Op::contiguous(0, 0, 4096)];
    let ask = TransferRequest { notify, ..request(&source, &ticket, Direction::Write, ops) };
    let transfer = a.submit(&peer, ask).unwrap();
    let inbox = b.notifications();
    assert_eq!(&within(inbox.recv()).await.payload[..], b"there");
    let heard = Instant::now();
    let landed = within(transfer).await.last_landed.expect("it has landed");
    assert!(heard - landed >= Duration::from_millis(290), "{:?} after the bytes", heard - landed);
}

/// The owner's rail stands still; what is written to its memory, and read from it, goes on.
#[tokio::test]
async fn the_owners_worker_has_no_part_in_a_transfer() {
    let freeze = Duration::from_secs(600);
    let faults = FaultPlan { freeze_after: Some(1), freeze, ..FaultPlan::default() };
    let one = |faults| EngineConfig { streams_per_peer: 1, faults, ..config(TransportKind::Sim) };
    let (a, b) = (Engine::start(one(None)).unwrap(), Engine::start(one(Some(faults))).unwrap());
    let to_b = within(a.connect(b.local_addr(), None)).await.unwrap();
    let to_a = within(b.connect(a.local_addr(), None)).await.unwrap();
    let data = pattern(1, LEN);
    let (source, target) = (region(&a, LEN, &data), region(&b, LEN, &[]));
    let lease = lend_all(&b, &target, Access::Write);
    let ticket = lease.ticket();
    let ops = |len| vec![Op::contiguous(0, 0, len)];
    let write = |len| a.submit(&to_b, request(&source, &ticket, Direction::Write, ops(len))).unwrap();
    // The two ends of a queue pair are made, which the owner's worker does have a part in.
    assert_eq!(within(write(1)).await.status, Ok(()));
    let back = lend_all(&a, &source, Access::Write);
    let _frozen = b.submit(&to_a, request(&target, &back.ticket(), Direction::Write, ops(1))).unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    let report = within(write(LEN as u64)).await;
    assert_eq!((report.status, report.retried_bytes), (Ok(()), 0));
    assert!(bytes(&target) == data);
    let (local, lent) = (region(&a, LEN, &[]), lend_all(&b, &target, Access::Read));
    let ticket = lent.ticket();
    let read = || a.submit(&to_b, request(&local, &ticket, Direction::Read, ops(LEN as u64))).unwrap();
    assert_eq!(within(read()).await.status, Ok(()));
    assert!(bytes(&local) == data);
    // And so does the owner's fence.
    within(lent.revoke()).await;
    assert!(within(read()).await.status.unwrap_err().is_stale());
}

/// A link is never faster than its rate, whatever the machine copies; and where there are four, all four carry.
#[tokio::test]
async fn links_keep_to_their_rate_and_all_of_them_carry() {
    const MIB: usize = 1 << 20;
    for (streams, len) in [(1u8, 8 * MIB), (4, 32 * MIB)] {
        // A link takes 80 ms for 8 MiB.
        let fabric = Fabric::new(FabricOptions { rate: 100 << 20, ..FabricOptions::default() });
        let config = EngineConfig { streams_per_peer: streams, fabric: Some(fabric), ..config(TransportKind::Sim) };
        let (a, b) = (Engine::start(config.clone()).unwrap(), Engine::start(config).unwrap());
        let peer = within(a.connect(b.local_addr(), None)).await.unwrap();
        let (source, target) = (region(&a, len, &pattern(1, len)), region(&b, len, &[]));
        let lease = lend_all(&b, &target, Access::Write);
        let ops = vec![Op::contiguous(0, 0, len as u64)];
        let report = within(a.submit(&peer, request(&source, &lease.ticket(), Direction::Write, ops)).unwrap()).await;
        assert_eq!(report.status, Ok(()));
        let bytes: Vec<u64> = report.bytes_by_rail.iter().map(|rail| rail.bytes).collect();
        // How even their shares are is the busy machine's matter.
        assert!(bytes.len() == usize::from(streams) && !bytes.contains(&0), "shares {bytes:?}");
        let most = bytes.iter().max().unwrap();
        let fastest = Duration::from_nanos(most * 1_000_000_000 / (100 << 20));
        assert!(report.wire >= fastest, "{:?} for {most} bytes on a link", report.wire);
    }
}

/// Requests are on the wire, where nobody can call them back, when the owner takes its memory back.
#[tokio::test]
async fn what_is_on_the_wire_when_a_lease_ends_never_lands() {
    let fabric = slow();
    let (a, b) = (on(&fabric, vec![TransportKind::Sim]), on(&fabric, vec![TransportKind::Sim]));
    let peer = within(a.connect(b.local_addr(), None)).await.unwrap();
    let source = region(&a, LEN, &pattern(1, LEN));
    for revoke in [true, false] {
        let target = region(&b, LEN, &[]);
        let (ranges, ttl) = (vec![ByteRange { offset: 0, len: LEN as u64 }], Duration::from_millis(20));
        let ttl = if revoke { Duration::from_secs(60) } else { ttl };
        let lease = b.grant(LeaseRequest { region: &target, ranges, access: Access::Write, ttl }).unwrap();
        let ticket = lease.ticket();
        let ops = vec![Op::contiguous(0, 0, LEN as u64)];
        let transfer = a.submit(&peer, request(&source, &ticket, Direction::Write, ops)).unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
        let fenced = within(async { if revoke { lease.revoke().await } else { lease.fenced().await } }).await;
        assert_eq!(fenced, Fenced { bytes_landed: 0 }, "nothing was due yet");
        let fresh = pattern(2, LEN);
        target.write(0, &fresh);
        let error = within(transfer).await.status.unwrap_err();
        assert!(error.is_stale(), "{error}");
        assert!(bytes(&target) == fresh, "a late write landed in reused memory");
    }
    assert_nothing_is_left(&[&a, &b]).await;
}

/// The same for a read: taken from memory that was lent no longer, it is not believed.
#[tokio::test]
async fn a_read_that_is_due_after_its_lease_is_stale() {
    let fabric = slow();
    let (a, b) = (on(&fabric, vec![TransportKind::Sim]), on(&fabric, vec![TransportKind::Sim]));
    let peer = within(a.connect(b.local_addr(), None)).await.unwrap();
    let (local, remote) = (region(&a, LEN, &[]), region(&b, LEN, &pattern(1, LEN)));
    let lease = lend_all(&b, &remote, Access::Read);
    let ticket = lease.ticket();
    let ops = vec![Op::contiguous(0, 0, LEN as u64)];
    let transfer = a.submit(&peer, request(&local, &ticket, Direction::Read, ops)).unwrap();
    tokio::time::sleep(Duration::from_millis(10)).await;
    within(lease.revoke()).await;
    remote.write(0, &pattern(2, LEN));
    let error = within(transfer).await.status.unwrap_err();
    assert!(error.is_stale(), "{error}");
    assert!(bytes(&local).iter().all(|byte| *byte == 0), "not even taken");
}

/// Bytes are damaged where they land. A NIC sees nothing of that; the checksum does.
#[tokio::test]
async fn damage_is_found_where_a_checksum_was_asked_for() {
    for (checksum, flip_every) in [(true, 2), (false, 1)] {
        let faults = Some(FaultPlan { flip_every: Some(flip_every), ..FaultPlan::default() });
        let a = engine(TransportKind::Sim);
        let b = Engine::start(EngineConfig { faults, ..config(TransportKind::Sim) }).unwrap();
        let peer = within(a.connect(b.local_addr(), None)).await.unwrap();
        let data = pattern(2, LEN);
        let (source, target) = (region(&a, LEN, &data), region(&b, LEN, &[]));
        let lease = lend_all(&b, &target, Access::Write);
        let ticket = lease.ticket();
        let ask = request(&source, &ticket, Direction::Write, vec![Op::contiguous(0, 0, LEN as u64)]);
        let report = within(a.submit(&peer, TransferRequest { checksum: Some(checksum), ..ask }).unwrap()).await;
        assert_eq!(report.status, Ok(()));
        assert_eq!(report.retried_bytes > 0, checksum);
        assert_eq!(bytes(&target) == data, checksum);
        assert_eq!(b.stats().checksum_errors > 0, checksum);
    }
}

/// Two ops of one slice go to one place, so that what came of the first is gone when the checksum is looked at.
#[tokio::test]
async fn a_read_that_does_not_fit_its_checksum_is_not_believed() {
    let one = || Engine::start(EngineConfig { streams_per_peer: 1, ..config(TransportKind::Sim) }).unwrap();
    let (a, b) = (one(), one());
    let peer = within(a.connect(b.local_addr(), None)).await.unwrap();
    let (local, remote) = (region(&a, LEN, &[]), region(&b, LEN, &pattern(3, LEN)));
    let lease = lend_all(&b, &remote, Access::Read);
    let ticket = lease.ticket();
    let ops = vec![Op::contiguous(0, 0, 4096), Op::contiguous(0, 1 << 20, 4096)];
    let ask = request(&local, &ticket, Direction::Read, ops);
    let status = within(a.submit(&peer, TransferRequest { checksum: Some(true), ..ask }).unwrap()).await.status;
    let corrupt = FailureKind::Transfer(Failure::Fault(Cause::Corrupt));
    assert_eq!(status.unwrap_err().kind(), corrupt);
    assert!(a.stats().checksum_errors > 0);
}
