//! What planning costs: CPU nanoseconds a descriptor, from submit to report, with no wire in between.
//!
//! `cargo run --release -p kvrail-transfer --example plan_cost`

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvrail_transfer::plan::{
    Class, Completion, Config, Direction, Event, Op, Outcome, PathId, PathLimits, PathSpec, Planner, RailId, Request,
    SliceBatch, Strided, TenantId, Time,
};

const ROUNDS: usize = 21;

struct Cost {
    submit: f64,
    hand_out: f64,
    complete: f64,
    slices: usize,
    pieces: usize,
}

fn main() {
    println!("median of {ROUNDS} rounds; ns are a descriptor's share of the whole, by wall clock on one thread");
    println!(
        "{:<44}{:>8}{:>10}{:>10}{:>10}{:>10}{:>9}",
        "case", "rails", "submit", "hand out", "complete", "sum", "slices"
    );
    let blocks =
        |n: u64, len: u64| (0..n).map(|i| Op::contiguous(i * 2 * len, (i * 7 % n) * 2 * len, len)).collect::<Vec<_>>();
    let layers: Vec<Op> = (0..160)
        .map(|layer| {
            let side = |offset, stride| Strided { offset, len: 32 << 10, stride, count: 157 };
            Op { local: side(layer * 157 * (64 << 10), 64 << 10), remote: side(layer * (32 << 10), 160 * (32 << 10)) }
        })
        .collect();
    let cases = [
        ("25,120 scattered 32 KiB blocks", blocks(25_120, 32 << 10), 25_120),
        ("the same as 160 strided descriptors", layers, 25_120),
        ("100,000 scattered 4 KiB descriptors", blocks(100_000, 4 << 10), 100_000),
        ("100,000 scattered 16 KiB descriptors", blocks(100_000, 16 << 10), 100_000),
        ("100,000 scattered 64 KiB descriptors", blocks(100_000, 64 << 10), 100_000),
    ];
    for (name, ops, runs) in cases {
        let ops = Arc::new(ops);
        for rails in [1, 2, 8] {
            let mut costs: Vec<Cost> = (0..ROUNDS).map(|_| round(&ops, rails)).collect();
            assert!(costs.iter().all(|cost| cost.pieces >= runs), "every run was handed out");
            let mut median = |of: fn(&Cost) -> f64| {
                costs.sort_by(|a, b| of(a).total_cmp(&of(b)));
                of(&costs[ROUNDS / 2]) * 1e9 / runs as f64
            };
            let (submit, hand_out, complete) = (median(|c| c.submit), median(|c| c.hand_out), median(|c| c.complete));
            let (sum, slices) = (submit + hand_out + complete, costs[0].slices);
            println!("{name:<44}{rails:>8}{submit:>10.1}{hand_out:>10.1}{complete:>10.1}{sum:>10.1}{slices:>9}");
        }
    }
}

/// One transfer: rails in turn, 16 slices a poll, each batch completed before the next.
fn round(ops: &Arc<Vec<Op>>, rails: u8) -> Cost {
    let mut planner = Planner::new(Config::default(), 1);
    let peer = planner.add_peer().expect("below the limit");
    let mut now = Time(1);
    let spec = PathSpec {
        rate: Some(3_000_000_000),
        base_delay: Duration::from_micros(20),
        penalty: Duration::ZERO,
        tier: 0,
        lanes: 2,
        limits: PathLimits { window_min: 16 << 20, ..PathLimits::default() },
    };
    for rail in (0..rails).map(RailId) {
        planner.handle_path_up(PathId { peer, local: rail, remote: rail }, spec, now).expect("a new path");
    }
    let mut cost = Cost { submit: 0.0, hand_out: 0.0, complete: 0.0, slices: 0, pieces: 0 };
    let timed = |sum: &mut f64, clock: Instant| *sum += clock.elapsed().as_secs_f64();

    let clock = Instant::now();
    let request = Request {
        peer,
        direction: Direction::Write,
        ops: Arc::clone(ops),
        local_bytes: 1 << 40,
        remote_bytes: 1 << 40,
        class: Class::KvHandoff,
        tenant: TenantId(0),
        deadline: now + Duration::from_secs(3600),
        checksum: false,
        distance: None,
    };
    planner.submit(request, now).expect("accepted");
    timed(&mut cost.submit, clock);

    let (mut batch, mut done) = (SliceBatch::default(), Vec::new());
    loop {
        for rail in (0..rails).map(RailId) {
            batch.clear();
            let clock = Instant::now();
            planner.poll_slices(rail, 16, now, &mut batch);
            timed(&mut cost.hand_out, clock);
            cost.slices += batch.slices.len();
            cost.pieces += batch.pieces.len();
            let bytes: u64 = batch.slices.iter().map(|slice| slice.bytes).sum();
            now = now + Duration::from_nanos(20_000 + bytes / 3);
            done.clear();
            done.extend(batch.slices.iter().map(|slice| Completion { slice: slice.id, outcome: Outcome::Landed }));
            let clock = Instant::now();
            planner.handle_completions(&done, now);
            planner.handle_timeout(now);
            timed(&mut cost.complete, clock);
        }
        if let Some(Event::Done(_, report)) = planner.poll_event() {
            assert_eq!(report.status, Ok(()));
            return cost;
        }
    }
}
