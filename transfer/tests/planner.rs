//! The planner's public face, one rule a test.

use std::sync::Arc;
use std::time::Duration;

use kvrail_transfer::plan::{
    Action, Cause, Class, Completion, Config, Direction, Event, Failure, Fate, Limit, Op, OpStatus, Outcome, PathError,
    PathId, PathLimits, PathSpec, PeerId, Planner, PortId, RailId, RailSet, Refusal, Report, Request, Slice,
    SliceBatch, SubmitError, TenantId, Time, TransferId,
};

const LIMITS: PathLimits = PathLimits {
    slice_bytes_min: 16 << 10,
    slice_bytes_max: 64 << 10,
    slice_pieces_max: 64,
    slices_max: 64,
    window_min: 128 << 10,
    window_max: 128 << 10,
    local_chunk_bytes: u64::MAX,
    remote_chunk_bytes: u64::MAX,
};

fn spec() -> PathSpec {
    PathSpec {
        rate: Some(1_000_000_000),
        base_delay: Duration::from_micros(10),
        penalty: Duration::ZERO,
        tier: 0,
        lanes: 1,
        limits: LIMITS,
    }
}

struct Bed {
    planner: Planner,
    peer: PeerId,
    now: Time,
}

impl Bed {
    /// One peer over paths of these rails (local, remote).
    fn new(rails: &[(u8, u8)]) -> Self {
        let mut planner = Planner::new(Config::default(), 1);
        let peer = planner.add_peer().unwrap();
        let mut bed = Self { planner, peer, now: Time(1) };
        for rails in rails {
            bed.up(*rails, spec());
        }
        bed.planner.poll_wakes();
        bed
    }

    fn path(&self, (local, remote): (u8, u8)) -> PathId {
        PathId { peer: self.peer, local: RailId(local), remote: RailId(remote) }
    }

    fn up(&mut self, rails: (u8, u8), spec: PathSpec) {
        self.planner.handle_path_up(self.path(rails), spec, self.now).unwrap();
    }

    fn request(&self, ops: Vec<Op>) -> Request {
        Request {
            peer: self.peer,
            direction: Direction::Write,
            ops: Arc::new(ops),
            local_bytes: 1 << 40,
            remote_bytes: 1 << 40,
            class: Class::KvHandoff,
            tenant: TenantId(0),
            deadline: self.now + Duration::from_secs(10),
            checksum: false,
            distance: None,
        }
    }

    fn submit(&mut self, bytes: u64) -> TransferId {
        self.planner.submit(self.request(vec![Op::contiguous(0, 0, bytes)]), self.now).unwrap()
    }

    fn poll(&mut self, rail: u8) -> Vec<Slice> {
        let mut batch = SliceBatch::default();
        self.planner.poll_slices(RailId(rail), 100, self.now, &mut batch);
        batch.slices
    }

    fn complete(&mut self, slice: &Slice, outcome: Outcome) {
        self.now = self.now + Duration::from_micros(100);
        self.planner.handle_completions(&[Completion { slice: slice.id, outcome }], self.now);
    }

    fn report(&mut self) -> Option<Report> {
        match self.planner.poll_event() {
            Some(Event::Done(_, report)) => Some(*report),
            other => {
                assert_eq!(other, None);
                None
            }
        }
    }
}

#[test]
fn the_window_bounds_what_is_out_and_its_opening_wakes_the_rail() {
    let mut bed = Bed::new(&[(0, 0)]);
    bed.submit(1 << 20);
    assert!(bed.planner.poll_wakes().contains(RailId(0)), "there is work");
    let out = bed.poll(0);
    assert_eq!(out.iter().map(|slice| slice.bytes).sum::<u64>(), 128 << 10);
    assert!(bed.planner.poll_wakes().is_empty());
    bed.complete(&out[0], Outcome::Landed);
    assert!(bed.planner.poll_wakes().contains(RailId(0)), "its window opened");
    assert_eq!(bed.poll(0).len(), 1);
}

#[test]
fn a_limit_bounds_what_is_written_to_a_port_and_nothing_else() {
    let mut bed = Bed::new(&[(0, 0)]);
    let (port, limit) = (PortId(7), |total| Limit { epoch: 1, total, quantum: 1000, at_once: Limit::ALL });
    bed.planner.handle_limit(Some(bed.peer), port, limit(0));
    bed.planner.handle_port(bed.path((0, 0)), port, true);
    bed.planner.handle_limit(Some(bed.peer), port, limit(10_000));
    bed.submit(1 << 20);
    let out = bed.poll(0);
    assert_eq!(out.iter().map(|slice| slice.bytes).sum::<u64>(), 10_000);
    bed.complete(&out[0], Outcome::Landed);
    assert_eq!(bed.poll(0), [], "landing is not a grant");
    bed.planner.poll_wakes();
    bed.planner.handle_limit(Some(bed.peer), port, limit(40_000));
    assert!(bed.planner.poll_wakes().contains(RailId(0)));
    bed.planner.handle_limit(Some(bed.peer), port, limit(20_000)); // overtaken on the way: ignored
    assert_eq!(bed.poll(0).iter().map(|slice| slice.bytes).sum::<u64>(), 30_000);

    let read = Request { direction: Direction::Read, ..bed.request(vec![Op::contiguous(0, 0, 5000)]) };
    bed.planner.submit(read.clone(), bed.now).unwrap();
    assert_eq!(bed.poll(0).iter().map(|slice| slice.bytes).sum::<u64>(), 5000, "it comes, it does not go");
    bed.planner.handle_near_port(bed.path((0, 0)), port, false);
    bed.planner.handle_limit(None, port, limit(6000));
    bed.planner.submit(read, bed.now).unwrap();
    assert_eq!(bed.poll(0).iter().map(|slice| slice.bytes).sum::<u64>(), 1000, "what was on the way counts");
}

#[test]
fn what_went_before_the_port_was_known_counts() {
    let mut bed = Bed::new(&[(0, 0)]);
    let port = PortId(1);
    bed.submit(100_000);
    let out = bed.poll(0);
    bed.complete(&out[0], Outcome::Landed);
    bed.planner.handle_port(bed.path((0, 0)), port, false);
    bed.planner.handle_limit(Some(bed.peer), port, Limit { epoch: 1, total: 0, quantum: 1000, at_once: Limit::ALL });
    assert!(bed.planner.review_accounts(bed.now));
    let (of, at, demand) = bed.planner.poll_demand().unwrap();
    assert_eq!((of, at, demand.epoch), (Some(bed.peer), port, 1));
    let sent = out.iter().map(|slice| slice.bytes).sum::<u64>();
    assert_eq!((demand.used, demand.settled, demand.wanted), (sent, out[0].bytes, 100_000));

    // A port that is known before its path.
    bed.planner.handle_port(bed.path((1, 1)), PortId(2), false);
    bed.up((1, 1), spec());
    bed.planner.handle_limit(
        Some(bed.peer),
        PortId(2),
        Limit { epoch: 1, total: 0, quantum: 1000, at_once: Limit::ALL },
    );
    bed.submit(1 << 20);
    assert_eq!(bed.poll(1), []);
}

#[test]
fn a_higher_tier_serves_only_when_the_lower_is_gone() {
    let mut bed = Bed::new(&[(0, 0)]);
    bed.up((1, 1), PathSpec { tier: 1, ..spec() });
    bed.submit(1 << 20);
    assert_eq!(bed.poll(1), []);
    assert!(!bed.poll(0).is_empty());
    bed.planner.handle_path_failed(bed.path((0, 0)), Cause::PathFault, bed.now);
    assert!(bed.planner.poll_wakes().contains(RailId(1)));
    assert!(!bed.poll(1).is_empty());
}

#[test]
fn a_rail_that_cannot_reach_the_memory_is_not_used_and_the_near_one_is_preferred() {
    let mut bed = Bed::new(&[(0, 0), (1, 1), (2, 2)]);
    let request =
        Request { distance: Some(Arc::from([500_000, 0, u32::MAX])), ..bed.request(vec![Op::contiguous(0, 0, 1000)]) };
    bed.planner.submit(request, bed.now).unwrap();
    assert_eq!(bed.poll(2), []);
    assert_eq!(bed.poll(0), [], "half a millisecond away: the other is done before");
    assert_eq!(bed.poll(1).len(), 1);
}

#[test]
fn the_cause_decides_where_a_slice_goes_next() {
    for (cause, next) in [(Cause::LocalFault, (1, 0)), (Cause::RemoteFault, (0, 1)), (Cause::PathFault, (0, 1))] {
        let mut bed = Bed::new(&[(0, 0)]);
        bed.submit(1000);
        let first = bed.poll(0).remove(0);
        for rails in [(0, 1), (1, 0)] {
            bed.up(rails, spec());
        }
        bed.complete(&first, Outcome::Failed(cause, Fate::Settled));
        let slices = [bed.poll(0), bed.poll(1)].concat();
        assert_eq!(slices.len(), 1);
        assert_eq!((slices[0].path, slices[0].attempt), (bed.path(next), 1), "{cause}");
    }
}

#[test]
fn success_waits_for_the_fence_of_an_abandoned_path() {
    let mut bed = Bed::new(&[(0, 0), (1, 1)]);
    bed.submit(1000);
    let first = bed.poll(0).remove(0);
    bed.complete(&first, Outcome::Failed(Cause::PathFault, Fate::MayLand));
    assert_eq!(bed.planner.poll_action(), Some(Action::Fence(bed.path((0, 0)))));
    let again = bed.poll(1).remove(0);
    bed.complete(&again, Outcome::Landed);
    assert_eq!(bed.report(), None, "the first attempt may still land");
    assert_eq!(bed.planner.handle_path_up(bed.path((0, 0)), spec(), bed.now), Err(PathError::NotFenced));
    bed.planner.handle_fenced(bed.path((0, 0)), bed.now);
    let report = bed.report().unwrap();
    assert_eq!((report.status, report.bytes, report.retried_bytes, report.lent), (Ok(()), 1000, 1000, false));
    assert_eq!(report.bytes_by_path, [(bed.path((1, 1)), 1000)]);
}

/// Whether a path is given up within so many milliseconds.
fn fences(bed: &mut Bed, millis: u64) -> bool {
    (0..millis / 10).any(|_| {
        bed.now = bed.now + Duration::from_millis(10);
        bed.planner.handle_timeout(bed.now);
        std::iter::from_fn(|| bed.planner.poll_action()).any(|action| matches!(action, Action::Fence(_)))
    })
}

#[test]
fn a_slice_for_which_something_is_made_first_has_not_stalled() {
    let mut bed = Bed::new(&[(0, 0), (1, 1)]);
    bed.submit(1000);
    let slice = bed.poll(0).remove(0);
    bed.complete(&slice, Outcome::Waits);
    assert!(!fences(&mut bed, 400));
    bed.complete(&slice, Outcome::Leaves);
    assert!(!fences(&mut bed, 80), "its time begins when it leaves");
    assert!(fences(&mut bed, 50));

    // On a path that failed before, making it is part of the proof.
    bed.planner.handle_fenced(bed.path((0, 0)), bed.now);
    let again = bed.poll(1).remove(0);
    bed.complete(&again, Outcome::Landed);
    assert!(!fences(&mut bed, 50));
    bed.up((0, 0), spec());
    bed.submit(1000);
    let slice = bed.poll(0).remove(0);
    bed.complete(&slice, Outcome::Waits);
    assert!(fences(&mut bed, 150));
}

#[test]
fn where_nothing_comes_from_any_path_none_is_blamed_until_one_speaks() {
    for speaks in [false, true] {
        let mut bed = Bed::new(&[(0, 0), (1, 1)]);
        bed.submit(1 << 20);
        let (slices, others) = (bed.poll(0), bed.poll(1));
        assert!(!slices.is_empty() && !others.is_empty());
        assert!(!fences(&mut bed, 200), "a busy peer, or a busy machine");
        if speaks {
            bed.complete(&others[0], Outcome::Landed);
        }
        assert_eq!(fences(&mut bed, 60), speaks);
        assert!(speaks || fences(&mut bed, 100), "not for long");
    }
}

#[test]
fn a_fence_that_comes_unasked_is_not_asked_for() {
    let mut bed = Bed::new(&[(0, 0), (1, 1)]);
    bed.submit(1000);
    assert_eq!(bed.poll(0).len(), 1);
    bed.planner.handle_fenced(bed.path((0, 0)), bed.now);
    assert_eq!(bed.planner.poll_action(), None);
    assert_eq!(bed.poll(1).len(), 1, "its slice went elsewhere at once");
    bed.planner.handle_timeout(bed.now + Duration::from_millis(20));
    assert_eq!(bed.planner.poll_action(), Some(Action::Open(bed.path((0, 0)))));
}

#[test]
fn each_op_says_how_far_it_came() {
    let mut bed = Bed::new(&[(0, 0)]);
    let ops: Vec<Op> = (0..4).map(|i| Op::contiguous(i << 20, i << 20, 64 << 10)).collect();
    bed.planner.submit(bed.request(ops), bed.now).unwrap();
    let out = bed.poll(0);
    assert_eq!(out.len(), 2, "the window holds two");
    bed.complete(&out[0], Outcome::Landed);
    bed.planner.cancel(out[0].transfer, bed.now);
    let report = bed.report().unwrap();
    assert_eq!(report.ops, [OpStatus::Landed, OpStatus::InDoubt, OpStatus::NotSent, OpStatus::NotSent]);
    assert_eq!((report.status, report.lent), (Err(Failure::Cancelled), true));
    bed.complete(&out[1], Outcome::Landed);
    assert_eq!(bed.planner.poll_event(), Some(Event::Quiesced(out[0].transfer)));
    bed.planner.cancel(out[0].transfer, bed.now);
    assert_eq!(bed.planner.poll_event(), None, "once");
}

#[test]
fn a_refusal_ends_the_transfer_and_names_its_ops() {
    let mut bed = Bed::new(&[(0, 0), (1, 1)]);
    let ops: Vec<Op> = (0..3).map(|i| Op::contiguous(i << 20, i << 20, 64 << 10)).collect();
    bed.planner.submit(bed.request(ops), bed.now).unwrap();
    let out = bed.poll(0);
    let stale = Cause::Refused(Refusal::Stale);
    bed.complete(&out[0], Outcome::Failed(stale, Fate::Settled));
    let report = bed.report().unwrap();
    assert_eq!(report.status, Err(Failure::Fault(stale)));
    assert_eq!(report.ops, [OpStatus::Failed(stale), OpStatus::InDoubt, OpStatus::NotSent]);
    assert!(bed.poll(1).is_empty(), "nothing more of it is sent");
}

/// A path that was given up may still write, and damage what another one has written since: under a checksum nobody else
/// writes until it can do so no more, and what it says until then counts.
#[test]
fn under_a_checksum_a_range_has_one_writer_at_a_time() {
    let abandoned = |checksum| {
        let mut bed = Bed::new(&[(0, 0), (1, 1)]);
        let request = Request { checksum, ..bed.request(vec![Op::contiguous(0, 0, 1000)]) };
        bed.planner.submit(request, bed.now).unwrap();
        let slice = bed.poll(0).remove(0);
        bed.planner.handle_path_failed(bed.path((0, 0)), Cause::Timeout, bed.now);
        assert_eq!(bed.planner.poll_action(), Some(Action::Fence(bed.path((0, 0)))));
        (bed, slice)
    };
    let (mut bed, _) = abandoned(false);
    assert_eq!(bed.poll(1).len(), 1, "without one, two writers write the same");

    let lands_on_the_other = |mut bed: Bed| {
        let slice = bed.poll(1).remove(0);
        bed.complete(&slice, Outcome::Landed);
        bed.report().expect("reported")
    };
    let (mut bed, damaged) = abandoned(true);
    assert_eq!(bed.poll(1), []);
    bed.complete(&damaged, Outcome::Failed(Cause::Corrupt, Fate::Settled));
    assert_eq!(lands_on_the_other(bed).status, Ok(()), "once it was told of the damage");

    let (mut bed, _) = abandoned(true);
    let gone = bed.path((0, 0));
    assert_eq!(bed.poll(1), []);
    bed.planner.handle_fenced(gone, bed.now);
    let report = lands_on_the_other(bed);
    assert_eq!((report.status, report.bytes, report.retried_bytes), (Ok(()), 1000, 1000), "once it is fenced");

    let (mut bed, late) = abandoned(true);
    bed.complete(&late, Outcome::Landed);
    let report = bed.report().expect("reported");
    assert_eq!((report.status, report.bytes, report.retried_bytes), (Ok(()), 1000, 0), "late, and right");
}

/// Fails every attempt of a small transfer, the first `others` of them for another cause; how many there were, and how long
/// it took.
fn attempts_until_the_end(rails: &[(u8, u8)], others: u32, cause: Cause) -> (u32, Duration) {
    let mut bed = Bed::new(rails);
    bed.submit(1000);
    let (mut attempts, started) = (0, bed.now);
    loop {
        let out: Vec<Slice> = rails.iter().flat_map(|(rail, _)| bed.poll(*rail)).collect();
        for slice in &out {
            attempts += 1;
            let cause = if attempts <= others { Cause::PathFault } else { cause };
            bed.complete(slice, Outcome::Failed(cause, Fate::Settled));
        }
        if let Some(report) = bed.report() {
            assert_eq!(report.status, Err(Failure::Fault(cause)));
            return (attempts, bed.now.since(started));
        }
        if !out.is_empty() {
            continue;
        }
        bed.now = bed.planner.poll_timeout().map_or(bed.now, |at| at.max(bed.now));
        bed.planner.handle_timeout(bed.now);
        while let Some(action) = bed.planner.poll_action() {
            let Action::Open(path) = action else { panic!("{action:?}: nothing was in doubt") };
            bed.planner.handle_path_up(path, spec(), bed.now).unwrap();
        }
    }
}

#[test]
fn attempts_are_bounded() {
    let (attempts, _) = attempts_until_the_end(&[(0, 0), (1, 1)], 0, Cause::PathFault);
    assert_eq!(attempts, u32::from(Config::default().attempts_max));
}

/// Who damages everything is found out in a few attempts, and before any path rests: damage is no congestion.
#[test]
fn damaged_attempts_are_bounded_by_fewer_and_by_little_time() {
    let config = Config::default();
    for rails in [&[(0, 0)][..], &[(0, 0), (1, 1)]] {
        let (attempts, took) = attempts_until_the_end(rails, 0, Cause::Corrupt);
        assert_eq!(attempts, u32::from(config.corrupt_max));
        assert!(took < 8 * config.slice_backoff.first, "{took:?} over {} paths", rails.len());
    }
    let (attempts, _) = attempts_until_the_end(&[(0, 0), (1, 1)], 2, Cause::Corrupt);
    assert_eq!(attempts, 2 + u32::from(config.corrupt_max), "other failures are no damage");
}

#[test]
fn a_path_that_damages_is_left_for_another_but_not_for_none() {
    let mut bed = Bed::new(&[(0, 0), (1, 1)]);
    for _ in 0..Config::default().path_failures_max {
        let id = bed.submit(1000);
        let slice = bed.poll(0).remove(0);
        bed.complete(&slice, Outcome::Failed(Cause::Corrupt, Fate::Settled));
        bed.planner.cancel(id, bed.now);
        while bed.planner.poll_event().is_some() {}
    }
    let usable = |bed: &Bed| bed.planner.paths().map(|path| path.usable).collect::<Vec<_>>();
    assert_eq!(usable(&bed), [false, true], "the other one can take it");
    for _ in 0..10 {
        let id = bed.submit(1000);
        let slice = bed.poll(1).remove(0);
        bed.complete(&slice, Outcome::Failed(Cause::Corrupt, Fate::Settled));
        bed.planner.cancel(id, bed.now);
        while bed.planner.poll_event().is_some() {}
    }
    assert_eq!(usable(&bed), [false, true], "the last one stays");
}

#[test]
fn a_lost_peer_takes_only_its_own_with_it() {
    let mut bed = Bed::new(&[(0, 0)]);
    let lost = bed.peer;
    bed.submit(1000);
    assert_eq!(bed.poll(0).len(), 1);
    let other = bed.planner.add_peer().unwrap();
    bed.peer = other;
    bed.up((0, 0), spec());
    bed.submit(2000);
    bed.planner.handle_peer_lost(lost, bed.now);
    let report = bed.report().unwrap();
    assert_eq!((report.status, report.lent), (Err(Failure::Fault(Cause::PeerLost)), true));
    bed.peer = lost;
    assert_eq!(bed.planner.submit(bed.request(vec![]), bed.now), Err(SubmitError::PeerLost));
    let gone = bed.path((0, 0));
    assert_eq!(bed.planner.poll_action(), Some(Action::Fence(gone)));
    bed.planner.handle_fenced(gone, bed.now);
    assert!(matches!(bed.planner.poll_event(), Some(Event::Quiesced(_))));
    assert_eq!(bed.planner.gauges().peers, 1, "forgotten once fenced");
    bed.peer = other;
    let slice = bed.poll(0).remove(0);
    bed.complete(&slice, Outcome::Landed);
    assert_eq!(bed.report().unwrap().status, Ok(()));
}

#[test]
fn bounds_are_refusals_that_name_the_bound() {
    let mut planner = Planner::new(Config { transfers_max: 1, ops_max: 10, peers_max: 1, ..Config::default() }, 1);
    let peer = planner.add_peer().unwrap();
    assert_eq!(planner.add_peer(), None);
    let bed = Bed { planner, peer, now: Time(1) };
    let (request, mut planner) =
        (|n: usize| bed.request(vec![Op::contiguous(0, 0, 1); n]), Planner::new(Config::default(), 1));
    assert_eq!(planner.submit(request(1), bed.now), Err(SubmitError::PeerLost), "a peer of another planner");
    let mut planner = bed.planner;
    let bed = Bed::new(&[]);
    let request = |n: usize| Request { peer, ..bed.request(vec![Op::contiguous(0, 0, 1); n]) };
    assert_eq!(planner.submit(request(11), bed.now), Err(SubmitError::WouldExceed { what: "ops", limit: 10 }));
    planner.submit(request(10), bed.now).unwrap();
    assert_eq!(planner.submit(request(0), bed.now), Err(SubmitError::WouldExceed { what: "transfers", limit: 1 }));
}

#[test]
fn an_empty_request_is_done_at_once_and_an_impossible_one_refused() {
    let mut bed = Bed::new(&[(0, 0)]);
    let id = bed.planner.submit(bed.request(vec![Op::contiguous(5, 5, 0)]), bed.now).unwrap();
    assert_eq!(bed.report().unwrap().ops, [OpStatus::Landed]);
    assert_eq!(bed.planner.poll_event(), Some(Event::Quiesced(id)));
    let late = Request { deadline: bed.now, ..bed.request(vec![]) };
    assert_eq!(bed.planner.submit(late, bed.now), Err(SubmitError::Hopeless));
    let long = bed.request(vec![Op::contiguous(0, 0, 1), Op::contiguous(1 << 40, 0, 1)]);
    assert!(matches!(bed.planner.submit(long, bed.now), Err(SubmitError::BadOp { index: 1, .. })));
    let rail = PathId { peer: bed.peer, local: RailId(RailId::MAX_RAILS as u8), remote: RailId(0) };
    assert_eq!(bed.planner.handle_path_up(rail, spec(), bed.now), Err(PathError::BadRail));
    assert_eq!(bed.planner.poll_wakes(), RailSet::default());
}

/// A planner that slept through its timeout looks once more before it blames the path.
#[test]
fn its_own_sleep_is_not_the_paths_fault() {
    let mut bed = Bed::new(&[(0, 0), (1, 1)]);
    bed.submit(1000);
    let slice = bed.poll(0).remove(0);
    bed.now = bed.now + Duration::from_secs(5);
    bed.planner.handle_timeout(bed.now);
    assert_eq!(bed.planner.poll_action(), None);
    let silent = bed.planner.poll_timeout().unwrap();
    bed.planner.handle_timeout(silent);
    assert_eq!(bed.planner.poll_action(), Some(Action::Fence(slice.path)), "but it does not sleep twice");
}
