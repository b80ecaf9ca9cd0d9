//! Faults by seed, over each transport: bytes right, errors typed, nothing left behind, no late write.

#[macro_use]
mod common;

use std::time::Duration;

use common::*;
use kvrail_transfer::*;

const BLOCK: u64 = 16 << 10;
const BLOCKS: u64 = 512;
const LEN: usize = (BLOCK * BLOCKS) as usize;

over_each_transport!(
    lost_doubled_late_and_swapped_slices_change_nothing,
    streams_that_break_cost_their_share,
    a_frozen_stream_is_left_behind,
    reads_survive_broken_streams,
    a_write_retried_elsewhere_is_done_only_when_the_old_stream_is_fenced,
    eviction_under_a_read_is_stale_or_whole,
);

fn scattered() -> Vec<Op> {
    (0..BLOCKS).map(|i| Op::contiguous(i * BLOCK, (i * 389 % BLOCKS) * BLOCK, BLOCK)).collect()
}

fn assert_scattered(data: &[u8], got: &[u8]) {
    for i in 0..BLOCKS {
        let (from, to) = ((i * BLOCK) as usize, (i * 389 % BLOCKS * BLOCK) as usize);
        assert!(data[from..][..BLOCK as usize] == got[to..][..BLOCK as usize], "block {i}");
    }
}

async fn faulty(kind: TransportKind, faults: FaultPlan) -> (Engine, Engine, Peer) {
    let a = Engine::start(EngineConfig { faults: Some(faults), ..config(kind) }).unwrap();
    let b = engine(kind);
    let peer = within(a.connect(b.local_addr(), None)).await.unwrap();
    (a, b, peer)
}

/// Writes all blocks under the fault plan and checks every byte.
async fn write_under(kind: TransportKind, faults: FaultPlan) -> (Report, EngineStats) {
    let (a, b, peer) = faulty(kind, faults).await;
    let data = pattern(1, LEN);
    let (source, target) = (region(&a, LEN, &data), region(&b, LEN, &[]));
    let lease = lend_all(&b, &target, Access::Write);
    let ticket = lease.ticket();
    let report = within(a.submit(&peer, request(&source, &ticket, Direction::Write, scattered())).unwrap()).await;
    assert_eq!(report.status, Ok(()), "{:?}", a.stats());
    assert_scattered(&data, &bytes(&target));
    within(lease.revoke()).await;
    assert_nothing_is_left(&[&a, &b]).await;
    (report, a.stats())
}

async fn lost_doubled_late_and_swapped_slices_change_nothing(kind: TransportKind) {
    let delay = Duration::from_millis(30);
    let mut retried = 0;
    for seed in 1..4 {
        let faults = FaultPlan {
            seed,
            drop_permille: 150,
            duplicate_permille: 150,
            reorder_permille: 150,
            delay_permille: 150,
            delay,
            ..FaultPlan::default()
        };
        let (report, _) = write_under(kind, faults).await;
        assert_eq!(report.bytes, LEN as u64, "each byte is counted once");
        retried += report.retried_bytes;
    }
    assert!(retried > 0, "some slice was lost in three runs");
}

async fn streams_that_break_cost_their_share(kind: TransportKind) {
    let (report, stats) =
        write_under(kind, FaultPlan { kill_after: Some(2), openings: Some(2), ..FaultPlan::default() }).await;
    assert!(report.retried_bytes > 0);
    assert_eq!((stats.peers, stats.peers_lost), (1, 0), "the session stands");
}

async fn a_frozen_stream_is_left_behind(kind: TransportKind) {
    // Each stream stands still at its second slice, for longer than the transfer may take.
    let freeze = Duration::from_secs(60);
    let faults = FaultPlan { freeze_after: Some(2), freeze, openings: Some(1), ..FaultPlan::default() };
    write_under(kind, faults).await;
}

async fn reads_survive_broken_streams(kind: TransportKind) {
    let (a, b, peer) = faulty(kind, FaultPlan { kill_after: Some(2), openings: Some(2), ..FaultPlan::default() }).await;
    let data = pattern(2, LEN);
    let (local, remote) = (region(&a, LEN, &[]), region(&b, LEN, &data));
    let lease = lend_all(&b, &remote, Access::Read);
    let ticket = lease.ticket();
    let ops = scattered().into_iter().map(|op| Op { local: op.remote, remote: op.local }).collect();
    let report = within(a.submit(&peer, request(&local, &ticket, Direction::Read, ops)).unwrap()).await;
    assert_eq!(report.status, Ok(()));
    assert_scattered(&data, &bytes(&local));
    drop(lease);
    assert_nothing_is_left(&[&a, &b]).await;
}

/// A frozen stream still has slices of the transfer in its buffers when another stream has carried them again. Once the
/// transfer is done its destination belongs to the consumer, even under a lease that lives on.
async fn a_write_retried_elsewhere_is_done_only_when_the_old_stream_is_fenced(kind: TransportKind) {
    let faults = FaultPlan {
        seed: 3,
        freeze_after: Some(2),
        freeze: Duration::from_millis(900),
        openings: Some(1),
        ..FaultPlan::default()
    };
    let (a, b, peer) = faulty(kind, faults).await;
    let (source, target) = (region(&a, LEN, &pattern(4, LEN)), region(&b, LEN, &[]));
    let lease = lend_all(&b, &target, Access::Write);
    let ticket = lease.ticket();
    let report = within(a.submit(&peer, request(&source, &ticket, Direction::Write, scattered())).unwrap()).await;
    assert_eq!(report.status, Ok(()));
    let fresh = pattern(98, LEN);
    target.write(0, &fresh);
    tokio::time::sleep(Duration::from_millis(1200)).await;
    assert!(bytes(&target) == fresh, "a frame of an abandoned stream landed after the transfer was done");
}

/// The owner revokes and overwrites while reads run: a read either says so, or brings what was lent.
async fn eviction_under_a_read_is_stale_or_whole(kind: TransportKind) {
    let (a, b, peer) = within(pair(kind)).await;
    let (local, remote) = (region(&a, LEN, &[]), region(&b, LEN, &[]));
    let (mut stale, mut whole) = (0, 0);
    for round in 0..60u64 {
        let data = vec![round as u8; LEN];
        remote.write(0, &data);
        let lease = lend_all(&b, &remote, Access::Read);
        let ticket = lease.ticket();
        let transfer = a.submit(&peer, request(&local, &ticket, Direction::Read, scattered())).unwrap();
        // Every other one is overtaken at once: a timer is no finer than a whole read is long.
        if round % 2 == 0 {
            tokio::time::sleep(Duration::from_micros(round * 60)).await;
        }
        within(lease.revoke()).await;
        remote.write(0, &vec![0xee; LEN]);
        let quiesced = transfer.quiesce();
        match within(transfer).await.status {
            Ok(()) => {
                whole += 1;
                assert!(bytes(&local) == data, "round {round}: {STALE_READ}");
            }
            Err(error) => {
                stale += 1;
                assert!(error.is_stale(), "{error}");
            }
        }
        within(quiesced).await;
    }
    // One-sided rails are waited for: what has been posted under a lease ends before its fence.
    let is_overtaken = matches!(kind, TransportKind::Tcp | TransportKind::Shm);
    assert!(stale > 0 || !is_overtaken, "no read was overtaken: {whole} whole");
    assert_nothing_is_left(&[&a, &b]).await;
}
