//! Late writes and stale reads: a slice, a copy or a read is stopped where it was checked and is about to move bytes; then its
//! memory is taken back and used again; then it goes on. The memory never changes, and a stale read is `Stale`.
//!
//! Each of these fails where the fence is switched off (feature `no-fence`, `KVRAIL_TEST_NO_FENCE=1`): the `late-write`
//! suite runs them both ways.

#[macro_use]
mod common;

use std::time::{Duration, Instant};

use common::*;
use kvrail_transfer::*;

/// Several slices.
const LEN: usize = 4 << 20;

over_each_transport!(
    a_slice_delayed_past_cancel_never_lands,
    a_slice_delayed_past_the_deadline_never_lands,
    a_slice_delayed_past_the_leases_time_never_lands,
    a_slice_delayed_past_revocation_never_lands;
    // A NIC in hardware stops at no gate; `sim` stands in for it.
    not on rdma:
    a_copy_stopped_after_its_check_holds_up_the_fence,
    a_read_stopped_after_its_check_is_stale_once_its_memory_is_evicted,
);

/// A write whose first slice was checked and stands at a gate before it is sent; the others wait behind it.
struct Delayed {
    gate: Gate,
    sender: Engine,
    owner: Engine,
    target: Region,
    transfer: Transfer,
}

impl Delayed {
    async fn start(kind: TransportKind, lent_for: Duration, due_in: Duration) -> (Self, Lease) {
        let gate = Gate::default();
        let sender = engine_with(kind, FaultPlan { post_gate: Some(gate.clone()), ..FaultPlan::default() });
        let owner = engine(kind);
        let peer = within(sender.connect(owner.local_addr(), None)).await.unwrap();
        let (source, target) = (region(&sender, LEN, &pattern(3, LEN)), region(&owner, LEN, &[]));
        let ranges = vec![ByteRange { offset: 0, len: LEN as u64 }];
        let ask = LeaseRequest { region: &target, ranges, access: Access::Write, ttl: lent_for };
        let lease = owner.grant(ask).unwrap();
        let ticket = lease.ticket();
        let ask = request(&source, &ticket, Direction::Write, vec![Op::contiguous(0, 0, LEN as u64)]);
        let transfer = sender.submit(&peer, TransferRequest { deadline: Instant::now() + due_in, ..ask }).unwrap();
        eventually("a slice is about to be sent", || gate.is_reached()).await;
        (Self { gate, sender, owner, target, transfer }, lease)
    }

    /// Uses the memory again, lets the slices go, and looks when the last has come.
    async fn assert_never_lands(self) -> Report {
        let fresh = reuse(&self.target);
        let quiesced = self.transfer.quiesce();
        self.gate.open();
        let report = within(self.transfer).await;
        within(quiesced).await;
        assert!(bytes(&self.target) == fresh, "{LATE_WRITE}");
        assert!(self.owner.stats().frames_refused > 0, "no slice came late");
        assert_nothing_is_left(&[&self.sender, &self.owner]).await;
        report
    }
}

/// An engine with a single stream to each peer, so that what waits at a gate is all that is under way.
fn engine_with(kind: TransportKind, faults: FaultPlan) -> Engine {
    Engine::start(EngineConfig { faults: Some(faults), streams_per_peer: 1, ..config(kind) }).unwrap()
}

fn assert_stale(report: &Report) {
    let error = report.status.expect_err("a stale transfer was believed");
    assert_eq!(error.kind(), FailureKind::Transfer(Failure::Fault(Cause::Refused(Refusal::Stale))));
}

async fn a_slice_delayed_past_cancel_never_lands(kind: TransportKind) {
    let (delayed, lease) = Delayed::start(kind, LONG, LONG).await;
    delayed.transfer.cancel();
    within(lease.revoke()).await;
    let error = delayed.assert_never_lands().await.status.unwrap_err();
    assert!(error.is_cancelled() && !error.memory_is_free(), "{error:?}: a slice was under way");
}

async fn a_slice_delayed_past_the_deadline_never_lands(kind: TransportKind) {
    let (mut delayed, lease) = Delayed::start(kind, LONG, Duration::from_millis(500)).await;
    let error = within(&mut delayed.transfer).await.status.unwrap_err();
    assert!(error.is_deadline() && !error.memory_is_free(), "{error:?}: a slice is under way");
    within(lease.revoke()).await;
    delayed.assert_never_lands().await;
}

/// Nobody takes the memory back: the lease's time ends.
async fn a_slice_delayed_past_the_leases_time_never_lands(kind: TransportKind) {
    let (delayed, lease) = Delayed::start(kind, Duration::from_millis(200), LONG).await;
    within(lease.fenced()).await;
    assert_stale(&delayed.assert_never_lands().await);
}

/// The owner takes its memory back and the sender knows of nothing.
async fn a_slice_delayed_past_revocation_never_lands(kind: TransportKind) {
    let (delayed, lease) = Delayed::start(kind, LONG, LONG).await;
    within(lease.revoke()).await;
    assert_stale(&delayed.assert_never_lands().await);
}

/// Whoever copies into lent memory (the owner's worker; over shared memory out of the sender's; or the NIC) stands between its
/// check of the lease and its copy when the lease ends: the fence waits for it, and for nobody else.
async fn a_copy_stopped_after_its_check_holds_up_the_fence(kind: TransportKind) {
    let gate = Gate::default();
    let sender = engine(kind);
    let owner = engine_with(kind, FaultPlan { copy_gate: Some(gate.clone()), ..FaultPlan::default() });
    let peer = within(sender.connect(owner.local_addr(), None)).await.unwrap();
    let (source, target) = (region(&sender, LEN, &pattern(3, LEN)), region(&owner, LEN, &[]));
    let lease = lend_all(&owner, &target, Access::Write);
    let ops = vec![Op::contiguous(0, 0, LEN as u64)];
    let transfer = sender.submit(&peer, request(&source, &lease.ticket(), Direction::Write, ops)).unwrap();
    let quiesced = transfer.quiesce();
    eventually("a copy is about to be made", || gate.is_reached()).await;
    let waited = revoke_at(&gate, lease).await;
    let fresh = reuse(&target);
    gate.open();
    let report = within(transfer).await;
    within(quiesced).await;
    assert!(bytes(&target) == fresh, "{LATE_WRITE}");
    assert!(waited, "the fence passed while a copy was about to be made");
    assert_stale(&report);
    assert_nothing_is_left(&[&sender, &owner]).await;
}

/// Whoever copies out of lent memory (over tcp the owner's worker, over shared memory the reader's, or the NIC) stands between its
/// check and its copy when the owner evicts: what comes may be anything, and is `Stale`.
async fn a_read_stopped_after_its_check_is_stale_once_its_memory_is_evicted(kind: TransportKind) {
    let gate = Gate::default();
    let [reader, owner] =
        [0, 1].map(|_| engine_with(kind, FaultPlan { copy_gate: Some(gate.clone()), ..FaultPlan::default() }));
    let peer = within(reader.connect(owner.local_addr(), None)).await.unwrap();
    // One slice, so that none but its own end can say how it went.
    let lent = pattern(3, 16 << 10);
    let (local, remote) = (region(&reader, lent.len(), &[]), region(&owner, lent.len(), &lent));
    let lease = lend_all(&owner, &remote, Access::Read);
    let ops = vec![Op::contiguous(0, 0, lent.len() as u64)];
    let transfer = reader.submit(&peer, request(&local, &lease.ticket(), Direction::Read, ops)).unwrap();
    let quiesced = transfer.quiesce();
    eventually("a copy is about to be made", || gate.is_reached()).await;
    revoke_at(&gate, lease).await;
    reuse(&remote);
    gate.open();
    let report = within(transfer).await;
    within(quiesced).await;
    assert!(report.status.is_err() || bytes(&local) == lent, "{STALE_READ}");
    // Over a one-sided rail the fence has waited for the read, so it is whole.
    if report.status.is_err() || matches!(kind, TransportKind::Tcp | TransportKind::Shm) {
        assert_stale(&report);
    }
    assert_nothing_is_left(&[&reader, &owner]).await;
}

/// Revokes while a worker waits at `gate`. Where the fence waits for that worker the gate is opened: true.
async fn revoke_at(gate: &Gate, lease: Lease) -> bool {
    let revoked = tokio::spawn(lease.revoke());
    tokio::time::sleep(Duration::from_millis(100)).await;
    let waits = !revoked.is_finished();
    if waits {
        gate.open();
    }
    within(revoked).await.unwrap();
    waits
}
