//! Properties of the planner over thousands of seeded schedules, in virtual time.
//!
//! `KVRAIL_SEEDS=n` runs n seeds of each property; `KVRAIL_SEED=s` runs that one alone (a failure prints it).

use std::ops::Range;
use std::time::Duration;

use kvrail_transfer::plan::sim::{Condition, LinkOptions, Load, LoadOutcome, Step, World, WorldOptions};
use kvrail_transfer::plan::{
    Class, Config, Direction, Failure, Op, PathLimits, PeerId, Strided, SubmitError, TenantId, Time,
};

/// A small generator of our own, so that a schedule depends on its seed alone.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % bound.max(1)
    }

    fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.below(range.end - range.start)
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn micros(&mut self, range: Range<u64>) -> Duration {
        Duration::from_micros(self.within(range))
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

fn each_seed(default: u64, mut property: impl FnMut(u64)) {
    let read = |name| std::env::var(name).ok().and_then(|text: String| text.parse::<u64>().ok());
    let seeds = match read("KVRAIL_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..read("KVRAIL_SEEDS").unwrap_or(default),
    };
    for seed in seeds {
        property(seed);
    }
}

fn after(duration: Duration) -> Time {
    Time(1) + duration
}

fn bulk(peer: PeerId, bytes: u64, class: Class) -> Load {
    Load {
        peer,
        direction: Direction::Write,
        ops: vec![Op::contiguous(0, 0, bytes)],
        class,
        tenant: TenantId(0),
        patience: Duration::from_secs(100),
        content: false,
    }
}

fn done_at(outcome: &LoadOutcome) -> Time {
    let (at, report) = outcome.done.as_ref().expect("a report");
    assert_eq!(report.status, Ok(()));
    *at
}

/// Descriptors of all shapes whose destinations do not overlap.
fn scattered(dice: &mut Dice, ops_max: u64, direction: Direction) -> Vec<Op> {
    let mut free = 0;
    let mut op = |dice: &mut Dice| {
        let len = if dice.one_in(3) { dice.within(1..200_000) } else { dice.pick(&[512, 4096, 16384, 32768]) };
        let count = if dice.one_in(3) { dice.within(1..2 + 400_000 / (len + 10_000)) as u32 } else { 1 };
        let side = |dice: &mut Dice, offset| Strided { offset, len, stride: len + dice.below(3) / 2 * 4096, count };
        let offset = free + dice.below(2) * 777;
        let to = side(dice, offset);
        free = to.extent().unwrap().end;
        let offset = dice.below(100_000);
        let from = side(dice, offset);
        match direction {
            Direction::Write => Op { local: from, remote: to },
            Direction::Read => Op { local: to, remote: from },
        }
    };
    (0..dice.within(1..ops_max + 1)).map(|_| op(dice)).collect()
}

fn random_link(dice: &mut Dice, rail: u8) -> LinkOptions {
    let rate = dice.within(50_000_000..5_000_000_000);
    let delay = dice.micros(1..200);
    LinkOptions {
        remote: kvrail_transfer::plan::RailId(if dice.one_in(4) { dice.below(4) as u8 } else { rail }),
        claimed_rate: match dice.below(6) {
            0 => None,
            1 | 2 => Some(dice.within(10_000_000..50_000_000_000)),
            _ => Some(rate),
        },
        jitter: dice.micros(0..300),
        fail_ppm: dice.pick(&[0, 0, 1_000, 50_000]),
        vanish_ppm: dice.pick(&[0, 0, 0, 2_000]),
        repeat_ppm: dice.pick(&[0, 100_000]),
        tier: dice.pick(&[0, 0, 0, 1]),
        limits: PathLimits {
            slice_pieces_max: dice.pick(&[1, 4, 256]),
            slice_bytes_max: dice.pick(&[16 << 10, 1 << 20, 4 << 20]),
            slices_max: dice.pick(&[1, 4, 256]),
            window_min: dice.pick(&[16 << 10, 1 << 20]),
            local_chunk_bytes: dice.pick(&[u64::MAX, u64::MAX, 65_536, 50_000]),
            ..PathLimits::default()
        },
        ..LinkOptions::clean(rail, rate, delay)
    }
}

/// Which schedules `chaos` makes.
#[derive(Clone, Copy, PartialEq)]
enum Mercy {
    /// Anything may happen.
    None,
    /// Each peer keeps one good link, deadlines are long, nobody cancels.
    OneGoodLink,
}

/// Faults of every kind, cancels, tight deadlines, dead peers, reads and writes of all shapes.
fn chaos(seed: u64, mercy: Mercy, options: WorldOptions) -> World {
    let merciful = mercy == Mercy::OneGoodLink;
    let mut dice = Dice(seed);
    let mut world = World::new(Config::default(), options, seed);
    let mut peers = Vec::new();
    let (mut links, mut good_links) = (0, Vec::new());
    for _ in 0..dice.within(1..3) {
        let rails: Vec<u8> = (0..dice.within(1..5) as u8).collect();
        let mut options: Vec<LinkOptions> = rails.iter().map(|rail| random_link(&mut dice, *rail)).collect();
        if merciful {
            let good = dice.below(options.len() as u64) as usize;
            let rate = dice.within(50_000_000..5_000_000_000);
            let clean = LinkOptions::clean(rails[good], rate, dice.micros(1..200));
            options[good] = LinkOptions { remote: options[good].remote, tier: options[good].tier, ..clean };
            good_links.push(links + good as u64);
        }
        links += options.len() as u64;
        peers.push(world.peer(&options).unwrap());
    }
    for _ in 0..dice.within(1..10) {
        let direction = dice.pick(&[Direction::Write, Direction::Read]);
        let load = Load {
            peer: dice.pick(&peers),
            direction,
            ops: scattered(&mut dice, 12, direction),
            class: dice.pick(&Class::ALL),
            tenant: TenantId(dice.below(3) as u32),
            patience: if merciful {
                Duration::from_secs(60)
            } else if dice.one_in(3) {
                dice.micros(50..20_000)
            } else {
                dice.micros(100_000..8_000_000)
            },
            content: true,
        };
        let at = after(dice.micros(0..50_000));
        let index = world.load(at, load);
        if dice.one_in(5) && !merciful {
            world.at(at + dice.micros(0..20_000), Step::Cancel(index));
        }
    }
    for _ in 0..dice.below(6) {
        let link = dice.below(links);
        if good_links.contains(&link) {
            continue;
        }
        let link = link as usize;
        let (bad, begin) =
            (dice.pick(&[Condition::Dark, Condition::Broken, Condition::Slow(20)]), dice.micros(0..60_000));
        world.at(after(begin), Step::Link(link, bad));
        if !dice.one_in(4) {
            let length = dice.pick(&[500, 20_000, 300_000, 3_000_000]);
            world.at(after(begin + dice.micros(1..length)), Step::Link(link, Condition::Good));
        }
    }
    if dice.one_in(8) && !merciful {
        world.at(after(dice.micros(0..60_000)), Step::PeerLost(dice.pick(&peers)));
    }
    world.run(after(Duration::from_secs(120)));
    world
}

#[test]
fn whatever_happens_each_op_is_reported_once_and_nothing_lands_after_quiescence() {
    each_seed(150, |seed| {
        let world = chaos(seed, Mercy::None, WorldOptions::default());
        assert!(world.violations.is_empty(), "seed {seed}: {:#?}", world.violations);
        for (index, outcome) in world.outcomes.iter().enumerate() {
            match &outcome.refused {
                Some(SubmitError::Hopeless | SubmitError::PeerLost) => continue,
                Some(error) => panic!("seed {seed} load {index}: {error}"),
                None => {}
            }
            assert!(outcome.done.is_some(), "seed {seed} load {index}: no report");
            assert!(outcome.quiesced_at.is_some(), "seed {seed} load {index}: never quiesced");
        }
        let left = world.planner.gauges();
        assert_eq!((left.transfers, left.slices, left.ops), (0, 0, 0), "seed {seed}: left behind");
    });
}

/// While one link to a peer is good, faults on the others are nobody's error, and cost no more than their detection.
#[test]
fn with_one_good_link_nothing_fails() {
    each_seed(150, |seed| {
        let world = chaos(seed, Mercy::OneGoodLink, WorldOptions::default());
        assert!(world.violations.is_empty(), "seed {seed}: {:#?}", world.violations);
        for (index, outcome) in world.outcomes.iter().enumerate() {
            let (at, report) = outcome.done.as_ref().unwrap_or_else(|| panic!("seed {seed} load {index}: no report"));
            assert_eq!(report.status, Ok(()), "seed {seed} load {index}");
            let took = at.since(outcome.submitted_at);
            assert!(took < Duration::from_secs(4), "seed {seed} load {index}: took {took:?}");
        }
    });
}

/// A slow path is given up with slices on it, half of which write damage before the fence stops them: a range that landed
/// elsewhere meanwhile must not be called landed with that on top.
#[test]
fn damage_on_a_path_that_was_given_up_is_never_called_landed() {
    let mut whole = 0;
    each_seed(100, |seed| {
        let options = WorldOptions { fence_time: Duration::from_millis(500), ..WorldOptions::default() };
        let mut world = World::new(Config::default(), options, seed);
        let [good, slow] = [0, 1].map(|rail| LinkOptions::clean(rail, 1_000_000_000, Duration::from_micros(10)));
        let slow = LinkOptions { jitter: Duration::from_secs(1), fail_ppm: 500_000, ..slow };
        let peer = world.peer(&[good, slow]).unwrap();
        world.load(after(Duration::ZERO), Load { content: true, ..bulk(peer, 4 << 20, Class::KvHandoff) });
        world.run(after(Duration::from_secs(60)));
        assert!(world.violations.is_empty(), "seed {seed}: {:#?}", world.violations);
        whole += u32::from(world.outcomes[0].done.as_ref().is_some_and(|(_, report)| report.status.is_ok()));
    });
    assert!(whole > 0, "none of them ended well");
}

#[test]
fn reports_come_by_the_deadline_to_the_nanosecond() {
    each_seed(150, |seed| {
        let mut dice = Dice(seed);
        let mut world = World::new(Config::default(), WorldOptions::default(), seed);
        let links: Vec<LinkOptions> = (0..dice.within(1..4)).map(|rail| random_link(&mut dice, rail as u8)).collect();
        let peer = world.peer(&links).unwrap();
        for link in 0..links.len() {
            let bad = dice.pick(&[Condition::Dark, Condition::Broken]);
            world.at(after(dice.micros(0..3_000)), Step::Link(link, bad));
        }
        let patience = dice.micros(10..3_000_000);
        world.load(after(Duration::ZERO), Load { patience, ..bulk(peer, 1 << 32, Class::KvHandoff) });
        world.run(after(Duration::from_secs(60)));
        assert!(world.violations.is_empty(), "seed {seed}: {:#?}", world.violations);
        let outcome = &world.outcomes[0];
        if outcome.refused.is_some() {
            return;
        }
        let (at, report) = outcome.done.as_ref().unwrap_or_else(|| panic!("seed {seed}: no report"));
        assert!(
            report.status.is_err() && *at <= outcome.submitted_at + patience,
            "seed {seed}: {at} {:?}",
            report.status
        );
        assert!(outcome.quiesced_at.is_some(), "seed {seed}: never quiesced");
    });
}

/// Bytes / sum of live rates × 1.1 + detection × deaths, for any pattern of rail deaths that leaves one alive.
#[test]
fn deaths_cost_their_share_and_their_detection_and_no_more() {
    each_seed(100, |seed| {
        let mut dice = Dice(seed);
        let config = Config::default();
        let options = WorldOptions::default();
        let detection = config.stall_min + options.fence_time + Duration::from_millis(10);
        let mut world = World::new(config, options, seed);
        let rails = dice.within(1..9);
        let links: Vec<LinkOptions> = (0..rails)
            .map(|rail| {
                let rate = dice.within(500_000_000..5_000_000_000);
                LinkOptions::clean(rail as u8, rate, dice.micros(2..50))
            })
            .collect();
        let peer = world.peer(&links).unwrap();
        let bytes = dice.within(200 << 20..2 << 30);
        world.load(after(Duration::ZERO), bulk(peer, bytes, Class::KvHandoff));

        let survivor = dice.below(rails);
        let mut deaths: Vec<(Duration, u64)> = Vec::new();
        for rail in (0..rails).filter(|rail| *rail != survivor) {
            if dice.one_in(2) {
                let at = dice.micros(0..400_000);
                world.at(after(at), Step::Link(rail as usize, dice.pick(&[Condition::Dark, Condition::Broken])));
                deaths.push((at, links[rail as usize].rate));
            }
        }
        world.run(after(Duration::from_secs(100)));
        assert!(world.violations.is_empty(), "seed {seed}: {:#?}", world.violations);

        // How long perfect rails would take: each gives its rate until it dies.
        deaths.sort_unstable();
        let (mut rate, mut left, mut clock) = (links.iter().map(|l| l.rate).sum::<u64>() as f64, bytes as f64, 0.0);
        for (at, lost) in &deaths {
            let step = (at.as_secs_f64() - clock).min(left / rate);
            (clock, left) = (clock + step, left - step * rate);
            rate -= *lost as f64;
        }
        let ideal = clock + left / rate;
        let bound = ideal * 1.1 + detection.as_secs_f64() * deaths.len() as f64 + 0.002;
        let took = done_at(&world.outcomes[0]).since(after(Duration::ZERO)).as_secs_f64();
        assert!(took <= bound, "seed {seed}: {took:.4} s, ideal {ideal:.4}, bound {bound:.4}, {} deaths", deaths.len());
    });
}

/// Without faults: every rail is kept busy to the end, whatever rates were claimed, in either direction, for any number of loads.
#[test]
fn rails_are_kept_busy_to_the_end() {
    each_seed(40, |seed| {
        let mut dice = Dice(seed);
        let mut world = World::new(Config::default(), WorldOptions::default(), seed);
        let links: Vec<LinkOptions> = (0..dice.within(1..9))
            .map(|rail| {
                let rate = dice.within(200_000_000..10_000_000_000);
                let claimed_rate = match dice.below(6) {
                    0 => None,
                    1 | 2 => Some(dice.within(rate / 3..rate * 3)),
                    _ => Some(rate),
                };
                LinkOptions {
                    claimed_rate,
                    jitter: dice.micros(0..20),
                    ..LinkOptions::clean(rail as u8, rate, dice.micros(2..30))
                }
            })
            .collect();
        let peer = world.peer(&links).unwrap();
        let (loads, size) = (dice.within(1..6), dice.within(64 << 20..1 << 30));
        for _ in 0..loads {
            world.load(after(Duration::ZERO), bulk(peer, size, dice.pick(&Class::ALL)));
        }
        world.run(after(Duration::from_secs(100)));
        let rate = links.iter().map(|link| link.rate).sum::<u64>() as f64;
        let ideal = (loads * size) as f64 / rate;
        let last = world.outcomes.iter().map(done_at).max().unwrap();
        let took = last.since(after(Duration::ZERO)).as_secs_f64();
        assert!(took <= ideal * 1.03 + 0.004, "seed {seed}: {took:.5} s against {ideal:.5} on {} rails", links.len());
    });
}

/// The last slices shrink, and a slow rail leaves them to fast ones: a short transfer takes what a perfect split would, within
/// half a slice.
#[test]
fn tails_end_together() {
    each_seed(40, |seed| {
        let mut dice = Dice(seed);
        let mut world = World::new(Config::default(), WorldOptions::default(), seed);
        let delay = Duration::from_micros(5);
        let fast = dice.within(2..5);
        let mut links: Vec<LinkOptions> =
            (0..fast).map(|rail| LinkOptions::clean(rail as u8, 1_000_000_000, delay)).collect();
        links.push(LinkOptions::clean(fast as u8, 20_000_000, delay)); // 16 KiB take it 0.8 ms
        let peer = world.peer(&links).unwrap();
        for round in 0..20 {
            let bytes = dice.within(64 << 10..4 << 20);
            world.load(after(Duration::from_millis(20 * round)), bulk(peer, bytes, Class::KvHandoff));
        }
        world.run(after(Duration::from_secs(10)));
        for (round, outcome) in world.outcomes.iter().enumerate() {
            let (at, report) = outcome.done.as_ref().unwrap();
            let took = at.since(outcome.submitted_at).as_secs_f64();
            let ideal = report.bytes as f64 / (fast as f64 * 1e9) + 2.0 * delay.as_secs_f64();
            assert!(took <= ideal * 1.1 + 100e-6, "seed {seed} round {round}: {took:.6} s against {ideal:.6}");
        }
    });
}

/// Slow rails of which nothing is known are found out without a stall: none of it is sent twice, and all end together. Floors are
/// those of TCP, which a guess of the rate would fill with more than the slow rail moves before it counts as stalled.
#[test]
fn unknown_rates_are_found_without_a_stall() {
    each_seed(40, |seed| {
        let mut dice = Dice(seed);
        let mut world = World::new(Config::default(), WorldOptions::default(), seed);
        let limits = PathLimits {
            window_min: 8 << 20,
            slice_bytes_min: 1 << 20,
            slice_bytes_max: 2 << 20,
            slices_max: 64,
            ..Default::default()
        };
        let links: Vec<LinkOptions> = (0..dice.within(1..5))
            .map(|rail| {
                let clean = LinkOptions::clean(rail as u8, dice.within(3_000_000..150_000_000), dice.micros(20..200));
                LinkOptions { claimed_rate: None, limits, ..clean }
            })
            .collect();
        let peer = world.peer(&links).unwrap();
        let rate = links.iter().map(|link| link.rate).sum::<u64>();
        world.load(after(Duration::ZERO), bulk(peer, 2 * rate, Class::KvHandoff));
        world.run(after(Duration::from_secs(60)));
        assert!(world.violations.is_empty(), "seed {seed}: {:#?}", world.violations);
        let took = done_at(&world.outcomes[0]).since(after(Duration::ZERO)).as_secs_f64();
        let report = &world.outcomes[0].done.as_ref().unwrap().1;
        assert_eq!(report.retried_bytes, 0, "seed {seed}");
        let rates: Vec<u64> = links.iter().map(|link| link.rate).collect();
        assert!(took <= 2.0 * 1.05, "seed {seed}: {took:.3} s of 2.000 on {rates:?}");
    });
}

/// A rail that is ten times slower than it was costs no more than its own share.
#[test]
fn a_rail_that_slows_down_costs_its_own_share() {
    each_seed(30, |seed| {
        let mut dice = Dice(seed);
        let mut world = World::new(Config::default(), WorldOptions::default(), seed);
        let (rails, rate) = (dice.within(2..9), 2_000_000_000u64);
        let links: Vec<LinkOptions> =
            (0..rails).map(|rail| LinkOptions::clean(rail as u8, rate, Duration::from_micros(10))).collect();
        let peer = world.peer(&links).unwrap();
        let bytes = (rails * 256) << 20;
        let at = dice.within(1_000..60_000);
        world.load(after(Duration::ZERO), bulk(peer, bytes, Class::KvHandoff));
        world.at(after(Duration::from_micros(at)), Step::Link(0, Condition::Slow(10)));
        world.run(after(Duration::from_secs(100)));
        let full = (rails * rate) as f64;
        let before = at as f64 * 1e-6;
        let ideal = before + (bytes as f64 - before * full) / (full - 0.9 * rate as f64);
        let took = done_at(&world.outcomes[0]).since(after(Duration::ZERO)).as_secs_f64();
        assert!(took <= ideal * 1.05 + 0.01, "seed {seed}: {took:.4} s against {ideal:.4} on {rails} rails");
    });
}

/// Down and up every 200 ms: no error, and the rail is used again within a second of its return.
#[test]
fn a_flapping_rail_is_used_when_it_is_there_and_fails_nobody() {
    each_seed(6, |seed| {
        let mut dice = Dice(seed);
        let mut world = World::new(Config::default(), WorldOptions::default(), seed);
        let links = [0, 1].map(|rail| LinkOptions::clean(rail, 1_000_000_000, Duration::from_micros(20)));
        let peer = world.peer(&links).unwrap();
        world.load(after(Duration::ZERO), bulk(peer, 6 << 30, Class::KvHandoff));
        let bad = dice.pick(&[Condition::Dark, Condition::Broken]);
        for flap in 0..5u64 {
            world.at(after(Duration::from_millis(100 + 400 * flap)), Step::Link(0, bad));
            world.at(after(Duration::from_millis(300 + 400 * flap)), Step::Link(0, Condition::Good));
        }
        let back = after(Duration::from_millis(300 + 400 * 4));
        world.run(back + Duration::from_secs(1));
        let usable = world.planner.paths().find(|path| path.id.local.0 == 0).unwrap();
        assert!(usable.usable && usable.in_flight > 0, "seed {seed}: not back within a second: {usable:?}");
        world.run(after(Duration::from_secs(60)));
        assert!(world.violations.is_empty(), "seed {seed}: {:#?}", world.violations);
        let report = &world.outcomes[0].done.as_ref().unwrap().1;
        assert_eq!(report.status, Ok(()), "seed {seed}");
        assert!(report.retried_bytes > 0 && report.retried_bytes < 200 << 20, "seed {seed}: {}", report.retried_bytes);
    });
}

#[test]
fn classes_share_by_weight_and_control_overtakes() {
    each_seed(30, |seed| {
        let mut dice = Dice(seed);
        let mut world = World::new(Config::default(), WorldOptions::default(), seed);
        let links: Vec<LinkOptions> = (0..dice.within(1..5))
            .map(|rail| LinkOptions::clean(rail as u8, dice.within(1..4) * 1_000_000_000, dice.micros(2..50)))
            .collect();
        let peer = world.peer(&links).unwrap();
        let classes = [Class::KvHandoff, Class::Replication, Class::Weights];
        for class in classes {
            world.load(after(Duration::ZERO), bulk(peer, 8 << 30, class));
        }
        let urgent = world.load(after(Duration::from_millis(40)), bulk(peer, 64 << 10, Class::Control));
        world.run(after(Duration::from_millis(100)));
        let landed: Vec<f64> = world.outcomes[..3].iter().map(|outcome| outcome.landed.0 as f64).collect();
        let total: f64 = landed.iter().sum();
        for (share, weight) in landed.iter().zip([8.0, 2.0, 1.0]) {
            let ratio = share / total / (weight / 11.0);
            assert!(
                (0.85..1.15).contains(&ratio),
                "seed {seed}: weight {weight} got {ratio:.3} of its share: {landed:?}"
            );
        }
        let urgent = &world.outcomes[urgent];
        let took = done_at(urgent).since(urgent.submitted_at);
        assert!(took < Duration::from_millis(4), "seed {seed}: control took {took:?}");
    });
}

#[test]
fn a_deadline_that_cannot_be_met_is_refused_or_given_up_early() {
    let mut world = World::new(Config::default(), WorldOptions::default(), 1);
    let peer = world.peer(&[LinkOptions::clean(0, 1_000_000_000, Duration::from_micros(10))]).unwrap();
    world.load(after(Duration::ZERO), bulk(peer, 64 << 20, Class::KvHandoff));
    world.run(after(Duration::from_secs(1)));
    let at = after(Duration::from_secs(2));
    world.load(at, Load { patience: Duration::from_millis(100), ..bulk(peer, 1 << 30, Class::KvHandoff) });
    let slowed = Load { patience: Duration::from_secs(2), ..bulk(peer, 1 << 30, Class::KvHandoff) };
    world.load(at, slowed);
    world.at(at + Duration::from_millis(10), Step::Link(0, Condition::Slow(100)));
    world.run(after(Duration::from_secs(30)));
    assert_eq!(world.outcomes[1].refused, Some(SubmitError::Hopeless));
    let (when, report) = world.outcomes[2].done.as_ref().unwrap();
    assert_eq!(report.status, Err(Failure::Hopeless));
    assert!(*when < at + Duration::from_secs(1), "given up at {when}, well before the deadline");
}

/// The checks can fail: with fences that stop nothing, late writes are seen.
#[test]
fn without_fencing_late_writes_are_caught() {
    let late = |seed: &u64| {
        let world = chaos(*seed, Mercy::None, WorldOptions { fences_lie: true, ..WorldOptions::default() });
        world.violations.iter().any(|violation| violation.contains("landed after"))
    };
    let caught = (0..100).filter(late).count();
    assert!(caught > 0, "no late write in 100 schedules without fencing");
}
