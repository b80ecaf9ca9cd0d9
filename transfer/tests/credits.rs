//! Senders with planners of their own, one receiver with a ledger, one slow link into it: in virtual time, by seed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

use kvrail_transfer::plan::{
    Action, Cause, Class, Completion, Config, CreditConfig, Demand, Direction, Event, Fate, Ledger, Limit, Op, Outcome,
    PathId, PathLimits, PathSpec, PeerId, Planner, PortId, RailId, Request, SliceBatch, SliceId, TenantId, Time,
    TransferId,
};

const PORT: PortId = PortId(3);
/// Bytes a second into the receiver.
const RATE: f64 = 50e6;

#[derive(Debug)]
enum Happening {
    /// A slice's last byte comes out of the slow link.
    Arrives(usize, SliceId, u64),
    Acknowledged(usize, SliceId),
    Tells(usize, Demand),
    Hears(usize, Limit),
    Look,
}

struct Sender {
    planner: Planner,
    peer: PeerId,
    name: PeerId,
    /// Its part of the link works.
    lives: bool,
    arrived: u64,
    done: Vec<(TransferId, Time, bool)>,
}

struct World {
    now: Time,
    senders: Vec<Sender>,
    ledger: Ledger,
    /// The receiver sees what arrives.
    counts: bool,
    free_at: Time,
    /// Bytes before the slow link, and the most there were since this was cleared.
    queue: u64,
    queue_max: u64,
    agenda: BinaryHeap<Reverse<(Time, u64, usize)>>,
    happenings: Vec<Option<Happening>>,
    overdrawn: Vec<PeerId>,
}

impl World {
    fn new(senders: usize, counts: bool, cheats: &[usize]) -> Self {
        let mut own = Planner::new(Config::default(), 1);
        let sender = |index: usize| {
            let config = Config { ignores_limits: cheats.contains(&index), ..Config::default() };
            let mut planner = Planner::new(config, index as u64);
            let peer = planner.add_peer().unwrap();
            let path = PathId { peer, local: RailId(0), remote: RailId(0) };
            let limits = PathLimits { window_min: 256 << 10, window_max: 1 << 20, ..PathLimits::default() };
            let (base_delay, penalty) = (Duration::from_micros(100), Duration::ZERO);
            let spec = PathSpec { rate: Some(50_000_000), base_delay, penalty, tier: 0, lanes: 1, limits };
            planner.handle_path_up(path, spec, Time(1)).unwrap();
            planner.handle_port(path, PORT, counts);
            Sender { planner, peer, name: own.add_peer().unwrap(), lives: true, arrived: 0, done: Vec::new() }
        };
        Self {
            now: Time(1),
            senders: (0..senders).map(sender).collect(),
            ledger: Ledger::new(if counts { CreditConfig::default() } else { CreditConfig::one_sided() }),
            counts,
            free_at: Time(0),
            queue: 0,
            queue_max: 0,
            agenda: BinaryHeap::new(),
            happenings: Vec::new(),
            overdrawn: Vec::new(),
        }
    }

    fn submit(&mut self, sender: usize, bytes: u64, tenant: u32) -> TransferId {
        // Nobody's share makes it hopeless.
        let deadline = self.now + Duration::from_secs(600);
        let request = Request {
            peer: self.senders[sender].peer,
            direction: Direction::Write,
            ops: Arc::new(vec![Op::contiguous(0, 0, bytes)]),
            local_bytes: bytes,
            remote_bytes: bytes,
            class: Class::KvHandoff,
            tenant: TenantId(tenant),
            deadline,
            checksum: false,
            distance: None,
        };
        self.senders[sender].planner.submit(request, self.now).unwrap()
    }

    fn at(&mut self, at: Time, happening: Happening) {
        self.happenings.push(Some(happening));
        self.agenda.push(Reverse((at, self.happenings.len() as u64, self.happenings.len() - 1)));
    }

    fn after(&mut self, micros: u64, happening: Happening) {
        self.at(self.now + Duration::from_micros(micros), happening);
    }

    fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        self.after(0, Happening::Look);
        loop {
            self.serve();
            let timers = self.senders.iter().filter_map(|s| s.planner.poll_timeout()).chain(self.ledger.poll_timeout());
            let next = self.agenda.peek().map(|Reverse((at, ..))| *at).into_iter().chain(timers).min();
            let Some(at) = next.filter(|at| *at <= end) else { break };
            self.now = self.now.max(at);
            while let Some(&Reverse((at, _, index))) = self.agenda.peek() {
                if at > self.now {
                    break;
                }
                self.agenda.pop();
                if let Some(happening) = self.happenings[index].take() {
                    self.happen(happening);
                }
            }
            for sender in &mut self.senders {
                sender.planner.handle_timeout(self.now);
            }
        }
        self.now = end;
    }

    fn happen(&mut self, happening: Happening) {
        let now = self.now;
        match happening {
            Happening::Arrives(index, slice, bytes) => {
                self.queue -= bytes;
                let sender = &mut self.senders[index];
                if !sender.lives {
                    return;
                }
                sender.arrived += bytes;
                let (name, arrived) = (sender.name, sender.arrived);
                if self.ledger.ceiling(name).is_some_and(|ceiling| arrived > ceiling) && self.counts {
                    self.overdrawn.push(name);
                }
                if self.counts {
                    self.ledger.handle_arrived(name, arrived, now);
                }
                self.after(100, Happening::Acknowledged(index, slice));
            }
            Happening::Acknowledged(index, slice) => {
                let completion = Completion { slice, outcome: Outcome::Landed };
                self.senders[index].planner.handle_completions(&[completion], now);
            }
            // Who is lost is not heard any more.
            Happening::Tells(index, _) if !self.senders[index].lives => {}
            Happening::Tells(index, demand) => self.ledger.handle_demand(self.senders[index].name, demand, now),
            Happening::Hears(index, limit) => {
                let sender = &mut self.senders[index];
                sender.planner.handle_limit(Some(sender.peer), PORT, limit);
            }
            Happening::Look => {}
        }
    }

    fn serve(&mut self) {
        for index in 0..self.senders.len() {
            let mut batch = SliceBatch::default();
            let sender = &mut self.senders[index];
            sender.planner.poll_wakes();
            sender.planner.poll_slices(RailId(0), 64, self.now, &mut batch);
            for slice in &batch.slices {
                self.queue += slice.bytes;
                self.queue_max = self.queue_max.max(self.queue);
                let there = self.now + Duration::from_micros(100);
                self.free_at = self.free_at.max(there) + Duration::from_secs_f64(slice.bytes as f64 / RATE);
                self.at(self.free_at, Happening::Arrives(index, slice.id, slice.bytes));
            }
            let sender = &mut self.senders[index];
            while let Some(action) = sender.planner.poll_action() {
                match action {
                    Action::Fence(path) => sender.planner.handle_fenced(path, self.now),
                    Action::Open(path) if sender.lives => {
                        let limits = PathLimits::default();
                        let (base_delay, penalty) = (Duration::from_micros(100), Duration::ZERO);
                        let spec = PathSpec { rate: Some(50_000_000), base_delay, penalty, tier: 0, lanes: 1, limits };
                        sender.planner.handle_path_up(path, spec, self.now).unwrap();
                    }
                    Action::Open(path) => sender.planner.handle_path_failed(path, Cause::PathFault, self.now),
                }
            }
            while let Some(event) = sender.planner.poll_event() {
                if let Event::Done(id, report) = event {
                    sender.done.push((id, self.now, report.status.is_ok()));
                }
            }
            let mut told = Vec::new();
            if sender.planner.review_accounts(self.now) {
                while let Some((_, port, demand)) = sender.planner.poll_demand() {
                    assert_eq!(port, PORT);
                    told.push(demand);
                }
            }
            for demand in told {
                self.after(150, Happening::Tells(index, demand));
                // And once more, late.
                self.after(2000, Happening::Tells(index, demand));
            }
        }
        while let Some((to, limit)) = self.ledger.poll_word(self.now) {
            let index = self.senders.iter().position(|sender| sender.name == to).unwrap();
            self.after(150, Happening::Hears(index, limit));
            self.after(1500, Happening::Hears(index, limit));
        }
        while let Some(name) = self.ledger.poll_overdrawn(self.now) {
            self.overdrawn.push(name);
        }
        for name in std::mem::take(&mut self.overdrawn) {
            let index = self.senders.iter().position(|sender| sender.name == name).unwrap();
            self.lose(index);
        }
    }

    /// The receiver has done with a sender.
    fn lose(&mut self, index: usize) {
        let sender = &mut self.senders[index];
        if std::mem::take(&mut sender.lives) {
            sender.planner.handle_peer_lost(sender.peer, self.now);
            self.ledger.handle_peer_lost(sender.name, self.now);
        }
    }

    fn arrived(&self) -> Vec<u64> {
        self.senders.iter().map(|sender| sender.arrived).collect()
    }

    /// Bytes of each sender in this time, in parts of what the link carries.
    fn shares(&mut self, time: Duration) -> Vec<f64> {
        let before = self.arrived();
        self.run_for(time);
        let all = RATE * time.as_secs_f64();
        self.arrived().iter().zip(before).map(|(after, before)| (after - before) as f64 / all).collect()
    }
}

fn backlogged(senders: usize, counts: bool, cheats: &[usize]) -> World {
    let mut world = World::new(senders, counts, cheats);
    for sender in 0..senders {
        world.submit(sender, 1 << 30, 0);
    }
    world
}

#[test]
fn eight_senders_fill_the_link_alike_and_queue_little() {
    for counts in [true, false] {
        let mut world = backlogged(8, counts, &[]);
        world.run_for(Duration::from_millis(300));
        world.queue_max = 0;
        let shares = world.shares(Duration::from_secs(2));
        let all: f64 = shares.iter().sum();
        assert!(all > 0.99, "{all:.3} of the link, {shares:?}");
        assert!(shares.iter().all(|share| (share * 8.0 / all - 1.0).abs() < 0.05), "{shares:?}");
        assert!(world.queue_max <= world.ledger.window(), "{} in the queue", world.queue_max);
        assert!(world.ledger.window() <= 160 << 10, "{} bytes of window", world.ledger.window());
        assert!(world.senders.iter().all(|sender| sender.lives));
    }
}

#[test]
fn weights_of_tenants_are_kept() {
    let mut world = World::new(3, true, &[]);
    for (tenant, weight) in [1, 2, 4].into_iter().enumerate() {
        world.ledger.set_tenant_weight(TenantId(tenant as u32), weight);
        world.submit(tenant, 1 << 30, tenant as u32);
    }
    world.run_for(Duration::from_millis(300));
    let shares = world.shares(Duration::from_secs(2));
    for (share, due) in shares.iter().zip([1.0, 2.0, 4.0]) {
        assert!((share * 7.0 / due - 1.0).abs() < 0.05, "{shares:?}");
    }
}

#[test]
fn one_sender_is_never_limited_and_two_are_again_one() {
    let mut world = World::new(2, true, &[]);
    world.submit(0, 1 << 30, 0);
    let alone = world.shares(Duration::from_secs(1));
    assert!(alone[0] > 0.99 && !world.ledger.is_limiting(), "{alone:?}");
    world.submit(1, 1 << 20, 0);
    world.run_for(Duration::from_millis(10));
    assert!(world.ledger.is_limiting());
    world.run_for(Duration::from_millis(200));
    assert_eq!((world.senders[1].done.len(), world.ledger.is_limiting()), (1, false));
    let alone = world.shares(Duration::from_secs(1));
    assert!(alone[0] > 0.99, "{alone:?}");
}

#[test]
fn a_short_transfer_passes_the_long_ones() {
    for counts in [true, false] {
        let mut world = World::new(8, counts, &[]);
        for sender in 0..7 {
            world.submit(sender, 1 << 30, 0);
        }
        world.run_for(Duration::from_millis(300));
        let alone = Duration::from_secs_f64((256 << 10) as f64 / RATE);
        for _ in 0..20 {
            let begun = world.now;
            world.submit(7, 256 << 10, 0);
            world.run_for(Duration::from_millis(100));
            let took = world.senders[7].done.last().unwrap().1.since(begun);
            // Where a raise is a turn, one of two has to end, and it shares the link with the other.
            let times = if counts { 3 } else { 6 };
            assert!(took < times * alone, "{took:?}, {alone:?} alone");
        }
    }
}

#[test]
fn who_ignores_its_limit_is_cut_and_the_others_are_unharmed() {
    for counts in [true, false] {
        let mut world = backlogged(4, counts, &[2]);
        world.run_for(Duration::from_millis(100));
        let lives: Vec<bool> = world.senders.iter().map(|sender| sender.lives).collect();
        assert_eq!(lives, [true, true, false, true], "counts: {counts}");
        world.run_for(Duration::from_millis(100));
        let shares = world.shares(Duration::from_secs(1));
        assert!([0, 1, 3].iter().all(|index| (shares[*index] * 3.0 - 1.0).abs() < 0.05), "{shares:?}");
    }
}

/// Whatever dies, breaks, is cancelled: the link stays full while anybody has work, and at the end nothing is held.
#[test]
fn whatever_happens_to_some_the_others_go_on_and_everything_comes_back() {
    for seed in 0..40u64 {
        let counts = seed.is_multiple_of(2);
        let mut world = backlogged(6, counts, &[]);
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % below
        };
        let mut extra = Vec::new();
        for _ in 0..12 {
            world.run_for(Duration::from_millis(10 + random(60) as u64));
            let index = 1 + random(5);
            match random(4) {
                0 => world.lose(index),
                1 if world.senders[index].lives => {
                    // Its path breaks: what is on the way is gone, and is sent again.
                    let sender = &mut world.senders[index];
                    let path = PathId { peer: sender.peer, local: RailId(0), remote: RailId(0) };
                    sender.planner.handle_path_failed(path, Cause::PathFault, world.now);
                }
                2 if world.senders[index].lives => extra.push((index, world.submit(index, 1 << 20, 0))),
                3 => {
                    if let Some((index, id)) = extra.pop() {
                        world.senders[index].planner.cancel(id, world.now);
                    }
                }
                _ => {}
            }
        }
        world.run_for(Duration::from_millis(200));
        let shares = world.shares(Duration::from_millis(500));
        let all: f64 = shares.iter().sum();
        assert!(all > 0.98, "seed {seed}: {all:.3} of the link, {shares:?}, {}", world.ledger.window());
        assert!(world.senders[0].lives, "seed {seed}: it was honest");
        (1..6).for_each(|index| world.lose(index));
        world.run_for(Duration::from_millis(300));
        assert!(!world.ledger.is_limiting() && world.ledger.outstanding() == 0, "seed {seed}");
        let alone = world.shares(Duration::from_millis(500));
        assert!(alone[0] > 0.98, "seed {seed}: {alone:?}");
    }
}

/// A receiver that says nothing: the deadline ends the transfer.
#[test]
fn a_limited_sender_does_not_wait_for_ever() {
    let mut world = World::new(1, true, &[]);
    let sender = &mut world.senders[0];
    sender.planner.handle_limit(Some(sender.peer), PORT, Limit { epoch: 1, total: 0, quantum: 1, at_once: Limit::ALL });
    world.submit(0, 1 << 20, 0);
    for _ in 0..610 {
        world.now = world.now + Duration::from_secs(1);
        let now = world.now;
        world.senders[0].planner.handle_timeout(now);
    }
    world.serve();
    assert!(matches!(world.senders[0].done[..], [(_, _, false)]));
    let settled = Completion { slice: SliceId::from_bits(9), outcome: Outcome::Failed(Cause::Timeout, Fate::Settled) };
    world.senders[0].planner.handle_completions(&[settled], world.now);
}
