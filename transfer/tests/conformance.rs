//! What every transport must do, run over each of them.

#[macro_use]
mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::*;
use kvrail_transfer::*;

over_each_transport!(
    a_write_is_visible_when_it_is_done,
    a_read_brings_the_owners_bytes,
    strided_ops_touch_their_runs_and_nothing_else,
    a_hundred_thousand_descriptors_go_in_one_submit,
    checksums_pass_clean_bytes_both_ways,
    a_notification_comes_after_the_bytes,
    a_full_notification_queue_is_a_typed_refusal,
    a_revoked_lease_turns_writes_away,
    a_revoked_lease_makes_reads_stale,
    an_expired_lease_fences_itself,
    requests_that_make_no_sense_are_refused_by_name,
    a_dropped_transfer_is_cancelled_and_quiesces,
    many_transfers_run_both_ways_at_once,
    two_dials_at_once_end_in_one_session,
    a_peer_that_stops_is_lost_and_harms_nobody,
    a_hopeless_deadline_ends_in_time,
);

async fn a_write_is_visible_when_it_is_done(kind: TransportKind) {
    let (a, b, peer) = within(pair(kind)).await;
    let data = pattern(1, 3 << 20);
    let (source, target) = (region(&a, 3 << 20, &data), region(&b, 4 << 20, &[]));
    let lease = lend(&b, &target, Access::Write, &[(4096, 3 << 20)]);
    let ticket = LeaseTicket::from_bytes(&lease.ticket().to_bytes()).unwrap();
    let ops = vec![Op::contiguous(0, 4096, 3 << 20)];
    let report = within(a.submit(&peer, request(&source, &ticket, Direction::Write, ops)).unwrap()).await;
    assert_eq!(report.status, Ok(()));
    assert_eq!((report.bytes, report.retried_bytes), (3 << 20, 0));
    assert_eq!(report.bytes_by_rail.iter().map(|r| r.bytes).sum::<u64>(), 3 << 20);
    assert!(report.bytes_by_rail.iter().all(|r| r.transport == kind));
    if matches!(kind, TransportKind::Tcp | TransportKind::Shm) {
        assert_eq!(lease.bytes_landed(), 3 << 20, "seen as they land");
    }
    let got = bytes(&target);
    assert!(got[4096..4096 + data.len()] == data[..], "the bytes are there");
    assert!(got[..4096].iter().chain(&got[4096 + data.len()..]).all(|b| *b == 0), "and nowhere else");
    assert_eq!(within(lease.revoke()).await, Fenced { bytes_landed: 3 << 20 });
    assert_nothing_is_left(&[&a, &b]).await;
}

async fn a_read_brings_the_owners_bytes(kind: TransportKind) {
    let (a, b, peer) = within(pair(kind)).await;
    let data = pattern(2, 5_000_000);
    let (local, remote) = (region(&a, 5_000_000, &[]), region(&b, 5_000_000, &data));
    let lease = lend_all(&b, &remote, Access::Read);
    let ops = vec![Op::contiguous(1000, 0, 2_000_000), Op::contiguous(3_000_000, 2_999_999, 2_000_000)];
    let report = within(a.submit(&peer, request(&local, &lease.ticket(), Direction::Read, ops)).unwrap()).await;
    assert_eq!(report.status, Ok(()));
    let got = bytes(&local);
    assert!(got[1000..2_001_000] == data[..2_000_000]);
    assert!(got[3_000_000..] == data[2_999_999..4_999_999]);
    assert!(got[..1000].iter().all(|b| *b == 0) && got[2_001_000..3_000_000].iter().all(|b| *b == 0));
    drop(lease);
    assert_nothing_is_left(&[&a, &b]).await;
}

async fn strided_ops_touch_their_runs_and_nothing_else(kind: TransportKind) {
    let (a, b, peer) = within(pair(kind)).await;
    let data = pattern(3, 1 << 20);
    let (source, target) = (region(&a, 1 << 20, &data), region(&b, 1 << 20, &pattern(4, 1 << 20)));
    let strided = |offset, stride| Strided { offset, len: 777, stride, count: 300 };
    let op = Op { local: strided(11, 1000), remote: strided(5, 3001) };
    // Lent run by run: not a byte between them.
    let ranges: Vec<_> = (0..300).map(|n| (5 + n * 3001, 777)).collect();
    let lease = lend(&b, &target, Access::Write, &ranges);
    let report = within(a.submit(&peer, request(&source, &lease.ticket(), Direction::Write, vec![op])).unwrap()).await;
    assert_eq!(report.status, Ok(()));
    let mut expected = pattern(4, 1 << 20);
    for n in 0..300 {
        expected[5 + n * 3001..][..777].copy_from_slice(&data[11 + n * 1000..][..777]);
    }
    assert!(bytes(&target) == expected);
}

async fn a_hundred_thousand_descriptors_go_in_one_submit(kind: TransportKind) {
    let (a, b, peer) = within(pair(kind)).await;
    let (n, len) = (100_000u64, 128u64);
    let data = pattern(5, (n * len) as usize);
    let (source, target) = (region(&a, data.len(), &data), region(&b, data.len(), &[]));
    let lease = lend_all(&b, &target, Access::Write);
    // Multiplying by an odd number modulo a power of two scatters; 100,000 is none, so a prime step does.
    let place = |i: u64| i * 77_773 % n;
    let ops = (0..n).map(|i| Op::contiguous(i * len, place(i) * len, len)).collect();
    let report = within(a.submit(&peer, request(&source, &lease.ticket(), Direction::Write, ops)).unwrap()).await;
    assert_eq!(report.status, Ok(()));
    assert_eq!(report.ops.len(), 100_000);
    assert!(report.ops.iter().all(|s| *s == OpStatus::Landed));
    let got = bytes(&target);
    for i in 0..n {
        let (from, to) = ((i * len) as usize, (place(i) * len) as usize);
        assert!(got[to..to + len as usize] == data[from..from + len as usize], "block {i}");
    }
}

async fn checksums_pass_clean_bytes_both_ways(kind: TransportKind) {
    let (a, b, peer) = within(pair(kind)).await;
    let data = pattern(6, 1 << 20);
    let (local, remote) = (region(&a, 1 << 20, &data), region(&b, 1 << 20, &[]));
    let ops = || (0..64).map(|i| Op::contiguous(i << 14, (63 - i) << 14, 1 << 14)).collect::<Vec<_>>();
    let write = lend_all(&b, &remote, Access::Write);
    let ticket = write.ticket();
    let ask = TransferRequest { checksum: Some(true), ..request(&local, &ticket, Direction::Write, ops()) };
    assert_eq!(within(a.submit(&peer, ask).unwrap()).await.status, Ok(()));
    within(write.revoke()).await;
    local.write(0, &vec![0; 1 << 20]);
    let ticket = lend_all(&b, &remote, Access::Read);
    let ticket = (ticket.ticket(), ticket);
    let ask = TransferRequest { checksum: Some(true), ..request(&local, &ticket.0, Direction::Read, ops()) };
    assert_eq!(within(a.submit(&peer, ask).unwrap()).await.status, Ok(()));
    assert!(bytes(&local) == data);
    assert_eq!((a.stats().checksum_errors, b.stats().checksum_errors), (0, 0));
}

async fn a_notification_comes_after_the_bytes(kind: TransportKind) {
    let (a, b, peer) = within(pair(kind)).await;
    let (source, target) = (region(&a, 1 << 20, &pattern(7, 1 << 20)), region(&b, 1 << 20, &[]));
    let lease = lend_all(&b, &target, Access::Write);
    let ticket = lease.ticket();
    let notify = Some(bytes::Bytes::from_static(b"layer 3"));
    let ops = vec![Op::contiguous(0, 0, 1 << 20)];
    let ask = TransferRequest { notify, ..request(&source, &ticket, Direction::Write, ops) };
    let transfer = a.submit(&peer, ask).unwrap();
    let inbox = b.notifications();
    let word = within(inbox.recv()).await;
    assert!(common::bytes(&target) == pattern(7, 1 << 20), "visible when the word comes");
    assert_eq!((word.from, &word.payload[..]), (a.generation(), &b"layer 3"[..]));
    assert_eq!(within(transfer).await.status, Ok(()));
    assert_eq!(inbox.try_recv(), None);
    drop(lease);
    assert_nothing_is_left(&[&a, &b]).await;
}

async fn a_full_notification_queue_is_a_typed_refusal(kind: TransportKind) {
    let a = engine(kind);
    let b = Engine::start(EngineConfig { notifications_max: 1, ..config(kind) }).unwrap();
    let peer = within(a.connect(b.local_addr(), None)).await.unwrap();
    let (source, target) = (region(&a, 4096, &[1; 4096]), region(&b, 4096, &[]));
    let lease = lend_all(&b, &target, Access::Write);
    let ticket = lease.ticket();
    let send = || {
        let ask = request(&source, &ticket, Direction::Write, vec![Op::contiguous(0, 0, 4096)]);
        a.submit(&peer, TransferRequest { notify: Some(bytes::Bytes::from_static(b"x")), ..ask }).unwrap()
    };
    assert_eq!(within(send()).await.status, Ok(()));
    let refused = within(send()).await.status.unwrap_err();
    assert_eq!((refused.kind(), refused.memory_is_free()), (FailureKind::NotifyRefused, true));
    assert!(b.notifications().try_recv().is_some());
    assert_eq!(within(send()).await.status, Ok(()));
}

async fn a_revoked_lease_turns_writes_away(kind: TransportKind) {
    let (a, b, peer) = within(pair(kind)).await;
    let (source, target) = (region(&a, 1 << 20, &[1; 1 << 20]), region(&b, 1 << 20, &[7; 1 << 20]));
    let lease = lend_all(&b, &target, Access::Write);
    let ticket = lease.ticket();
    assert_eq!(within(lease.revoke()).await.bytes_landed, 0);
    let ops = vec![Op::contiguous(0, 0, 1 << 20)];
    let transfer = a.submit(&peer, request(&source, &ticket, Direction::Write, ops)).unwrap();
    let quiesced = transfer.quiesce();
    let error = within(transfer).await.status.unwrap_err();
    assert!(error.is_stale(), "{error}");
    within(quiesced).await;
    assert!(bytes(&target).iter().all(|b| *b == 7));
    assert!(b.stats().frames_refused > 0);
    assert_nothing_is_left(&[&a, &b]).await;
}

async fn a_revoked_lease_makes_reads_stale(kind: TransportKind) {
    let (a, b, peer) = within(pair(kind)).await;
    let (local, remote) = (region(&a, 1 << 20, &[]), region(&b, 1 << 20, &[7; 1 << 20]));
    let lease = lend_all(&b, &remote, Access::Read);
    let ticket = lease.ticket();
    within(lease.revoke()).await;
    let ops = vec![Op::contiguous(0, 0, 1 << 20)];
    let error =
        within(a.submit(&peer, request(&local, &ticket, Direction::Read, ops)).unwrap()).await.status.unwrap_err();
    assert!(error.is_stale(), "{error}");
}

async fn an_expired_lease_fences_itself(kind: TransportKind) {
    let (a, b, peer) = within(pair(kind)).await;
    let (source, target) = (region(&a, 4096, &[1; 4096]), region(&b, 4096, &[7; 4096]));
    let ranges = vec![ByteRange { offset: 0, len: 4096 }];
    let ask = LeaseRequest { region: &target, ranges, access: Access::Write, ttl: Duration::from_millis(30) };
    let lease = b.grant(ask).unwrap();
    let ticket = lease.ticket();
    within(lease.fenced()).await;
    assert!(lease.is_over());
    assert_eq!(b.stats().leases, 0);
    let ask = request(&source, &ticket, Direction::Write, vec![Op::contiguous(0, 0, 4096)]);
    assert!(within(a.submit(&peer, ask).unwrap()).await.status.unwrap_err().is_stale());
    assert!(bytes(&target).iter().all(|b| *b == 7));
}

async fn requests_that_make_no_sense_are_refused_by_name(kind: TransportKind) {
    let (a, b, peer) = within(pair(kind)).await;
    let (source, target) = (region(&a, 4096, &[]), region(&b, 8192, &[]));
    let lease = lend(&b, &target, Access::Write, &[(0, 1000), (2000, 1000)]);
    let ticket = lease.ticket();
    let refuse = |direction, op| a.submit(&peer, request(&source, &ticket, direction, vec![op])).err().unwrap();
    let outside = SubmitError::OutsideLease { index: 0 };
    assert_eq!(refuse(Direction::Write, Op::contiguous(0, 999, 2)), outside);
    assert_eq!(refuse(Direction::Write, Op::contiguous(0, 0, 3000)), outside);
    let (local, remote) =
        (Strided { offset: 0, len: 10, stride: 10, count: 3 }, Strided { offset: 985, len: 10, stride: 10, count: 3 });
    assert_eq!(refuse(Direction::Write, Op { local, remote }), outside);
    assert_eq!(refuse(Direction::Read, Op::contiguous(0, 0, 1)), SubmitError::WrongAccess);
    let past_end = refuse(Direction::Write, Op::contiguous(4000, 0, 97));
    assert!(matches!(past_end, SubmitError::BadOp { index: 0, source: OpError::PastEnd { .. } }), "{past_end}");
    let own = lend(&a, &source, Access::Write, &[(0, 1)]);
    let wrong = a.submit(&peer, request(&source, &own.ticket(), Direction::Write, vec![]));
    assert_eq!(wrong.err(), Some(SubmitError::WrongPeer { ticket: a.generation(), peer: b.generation() }));
    let notify = Some(vec![0; NOTIFY_BYTES_MAX + 1].into());
    let long = TransferRequest { notify, ..request(&source, &ticket, Direction::Write, vec![]) };
    assert!(matches!(a.submit(&peer, long).err(), Some(SubmitError::NotifyTooLong { .. })));
    let empty = within(a.submit(&peer, request(&source, &ticket, Direction::Write, vec![])).unwrap()).await;
    assert_eq!((empty.status, empty.bytes), (Ok(()), 0));
}

async fn a_dropped_transfer_is_cancelled_and_quiesces(kind: TransportKind) {
    let (a, b, peer) = within(pair(kind)).await;
    let (source, target) = (region(&a, 64 << 20, &[1; 1]), region(&b, 64 << 20, &[]));
    let lease = lend_all(&b, &target, Access::Write);
    let ticket = lease.ticket();
    let submit = || {
        let ops = (0..16_384).map(|i| Op::contiguous(i << 12, (16_383 - i) << 12, 1 << 12)).collect();
        a.submit(&peer, request(&source, &ticket, Direction::Write, ops)).unwrap()
    };
    let cancelled = submit();
    cancelled.cancel();
    let quiesced = cancelled.quiesce();
    let report = within(cancelled).await;
    assert!(report.status.unwrap_err().is_cancelled());
    within(quiesced).await;
    let dropped = submit();
    let quiesced = dropped.quiesce();
    drop(dropped);
    within(quiesced).await;
    within(lease.revoke()).await;
    assert_nothing_is_left(&[&a, &b]).await;
}

async fn many_transfers_run_both_ways_at_once(kind: TransportKind) {
    let (a, b, to_b) = within(pair(kind)).await;
    let to_a = within(b.connect(a.local_addr(), Some(a.generation()))).await.unwrap();
    assert_eq!((a.stats().peers, b.stats().peers), (1, 1), "the session that is there is used");
    let len = 256 << 10;
    let mut runs = Vec::new();
    for n in 0..40u64 {
        let (from, to, peer) = if n % 2 == 0 { (&a, &b, &to_b) } else { (&b, &a, &to_a) };
        let data = pattern(n, len);
        let (source, target) = (region(from, len, &data), region(to, len, &[]));
        let lease = lend_all(to, &target, Access::Write);
        let ops = (0..64).map(|i| Op::contiguous(i << 12, (i * 37 % 64) << 12, 1 << 12)).collect();
        let transfer = from.submit(peer, request(&source, &lease.ticket(), Direction::Write, ops)).unwrap();
        runs.push((data, target, lease, transfer));
    }
    for (data, target, lease, transfer) in runs {
        assert_eq!(within(transfer).await.status, Ok(()));
        let got = bytes(&target);
        assert!((0..64usize).all(|i| got[(i * 37 % 64) << 12..][..4096] == data[i << 12..][..4096]));
        within(lease.revoke()).await;
    }
    assert_nothing_is_left(&[&a, &b]).await;
}

async fn two_dials_at_once_end_in_one_session(kind: TransportKind) {
    for _ in 0..20 {
        let (a, b) = (engine(kind), engine(kind));
        let (to_b, to_a) =
            within(async { tokio::join!(a.connect(b.local_addr(), None), b.connect(a.local_addr(), None)) }).await;
        let (to_b, to_a) = (to_b.unwrap(), to_a.unwrap());
        assert_eq!((to_b.generation(), to_a.generation()), (b.generation(), a.generation()));
        assert_eq!((a.stats().peers, b.stats().peers), (1, 1));
        assert_eq!((a.stats().peers_lost, b.stats().peers_lost), (0, 0), "and nobody was thrown out on the way");
        let (source, target) = (region(&b, 4096, &[9; 4096]), region(&a, 4096, &[]));
        let lease = lend_all(&a, &target, Access::Write);
        let ticket = lease.ticket();
        let ask = request(&source, &ticket, Direction::Write, vec![Op::contiguous(0, 0, 4096)]);
        assert_eq!(within(b.submit(&to_a, ask).unwrap()).await.status, Ok(()));
    }
}

async fn a_peer_that_stops_is_lost_and_harms_nobody(kind: TransportKind) {
    let (a, b, to_b) = within(pair(kind)).await;
    let c = engine(kind);
    let to_c = within(a.connect(c.local_addr(), None)).await.unwrap();
    let source = region(&a, 32 << 20, &[1; 1]);
    let (in_b, in_c) = (region(&b, 32 << 20, &[]), region(&c, 32 << 20, &[]));
    let (lease_b, lease_c) = (lend_all(&b, &in_b, Access::Write), lend_all(&c, &in_c, Access::Write));
    let ops = || (0..8192).map(|i| Op::contiguous(i << 12, (8191 - i) << 12, 1 << 12)).collect::<Vec<_>>();
    let (ticket_b, ticket_c) = (lease_b.ticket(), lease_c.ticket());
    let lost = a.submit(&to_b, request(&source, &ticket_b, Direction::Write, ops())).unwrap();
    let kept = a.submit(&to_c, request(&source, &ticket_c, Direction::Write, ops())).unwrap();
    let quiesced = lost.quiesce();
    within(b.shutdown()).await;
    let report = within(lost).await;
    // It may have been done before the end came.
    if let Err(error) = report.status {
        assert!(error.is_peer_lost(), "{error}");
    }
    within(quiesced).await;
    assert_eq!(within(kept).await.status, Ok(()));
    within(to_b.lost()).await;
    let after = a.submit(&to_b, request(&source, &ticket_b, Direction::Write, ops()));
    assert_eq!(after.err(), Some(SubmitError::PeerLost));
    assert!(to_c.is_alive());
    drop((lease_b, lease_c));
    eventually("counters return", || a.stats().transfers + a.stats().transfers_lent == 0).await;
}

async fn a_hopeless_deadline_ends_in_time(kind: TransportKind) {
    let (a, b, peer) = within(pair(kind)).await;
    let (source, target) = (region(&a, 64 << 20, &[1; 1]), region(&b, 64 << 20, &[]));
    let lease = lend_all(&b, &target, Access::Write);
    let ticket = lease.ticket();
    let deadline = Instant::now() + Duration::from_micros(300);
    let ops = Arc::new((0..16_384).map(|i| Op::contiguous(i << 12, (16_383 - i) << 12, 1 << 12)).collect());
    let ask = TransferRequest { deadline, ops, ..request(&source, &ticket, Direction::Write, vec![]) };
    match a.submit(&peer, ask) {
        Err(error) => assert_eq!(error, SubmitError::Hopeless),
        Ok(transfer) => {
            let quiesced = transfer.quiesce();
            let error = within(transfer).await.status.unwrap_err();
            assert!(error.is_deadline(), "{error}");
            within(quiesced).await;
        }
    }
    within(lease.revoke()).await;
    assert_nothing_is_left(&[&a, &b]).await;
}
