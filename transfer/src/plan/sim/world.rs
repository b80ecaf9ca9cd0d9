//! Planner, links, loads and memory in one event loop.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;

use super::link::{Condition, Link, LinkOptions};
use super::memory::Memory;
use crate::plan::retry::Rng;
use crate::plan::time::nanos;
use crate::plan::{
    Action, Cause, Class, Completion, Config, Direction, Event, Fate, Op, Outcome, PathId, PeerId, Piece, Planner,
    RailId, Report, Request, Slice, SliceBatch, SliceId, SubmitError, TenantId, Time, TransferId,
};

/// How the world behaves around its links.
#[derive(Clone, Debug)]
pub struct WorldOptions {
    /// Slices that a rail's worker keeps on the wire, at most.
    pub worker_depth: usize,
    /// From a fence's request to its answer.
    pub fence_time: Duration,
    /// From asking for a path to its being open, or being known to be broken.
    pub open_time: Duration,
    /// Until an attempt to open a dark link gives up.
    pub open_timeout: Duration,
    /// From a link's break to the failure of its slices.
    pub break_time: Duration,
    /// Answers fences without stopping what is under way: a broken fence ladder, to show that the checks see it.
    pub fences_lie: bool,
}

impl Default for WorldOptions {
    fn default() -> Self {
        Self {
            worker_depth: 64,
            fence_time: Duration::from_micros(500),
            open_time: Duration::from_micros(200),
            open_timeout: Duration::from_millis(50),
            break_time: Duration::from_micros(100),
            fences_lie: false,
        }
    }
}

/// A transfer to come.
#[derive(Clone, Debug)]
pub struct Load {
    /// To whom.
    pub peer: PeerId,
    /// Which way.
    pub direction: Direction,
    /// What.
    pub ops: Vec<Op>,
    /// Class of service.
    pub class: Class,
    /// Tenant.
    pub tenant: TenantId,
    /// From submission to deadline.
    pub patience: Duration,
    /// With real bytes on both sides, compared at the end.
    pub content: bool,
}

/// What became of a load.
#[derive(Clone, Debug, Default)]
pub struct LoadOutcome {
    /// Refused at submission.
    pub refused: Option<SubmitError>,
    /// When it was submitted.
    pub submitted_at: Time,
    /// Its report and when it came.
    pub done: Option<(Time, Report)>,
    /// When it was quiesced.
    pub quiesced_at: Option<Time>,
    /// Bytes that touched its destination, repetitions included, and when the last of them did.
    pub landed: (u64, Time),
}

/// Something that happens at a given time.
#[derive(Clone, Debug)]
pub enum Step {
    /// Submit the load of this number.
    Submit(usize),
    /// Cancel it.
    Cancel(usize),
    /// A link (by order of creation) changes.
    Link(usize, Condition),
    /// A peer is declared lost.
    PeerLost(PeerId),
}

#[derive(Debug)]
enum Happening {
    Step(Step),
    Lands(SliceId, u32),
    /// The same, but what is written is wrong; who looks at the checksum says so.
    Damages(SliceId, u32),
    Ends(SliceId, Outcome),
    Fenced(usize),
    Opened(usize),
}

/// Every other load carries checksums.
fn has_checksum(load: usize) -> bool {
    load.is_multiple_of(2)
}

#[derive(Debug)]
struct Flight {
    slice: Slice,
    pieces: Vec<Piece>,
    link: usize,
    load: usize,
    /// Held by a dark link.
    held: bool,
    /// Known to the planner as over: it only may still land.
    ended: bool,
}

/// See the [module](super).
#[derive(Debug)]
pub struct World {
    /// The planner under test.
    pub planner: Planner,
    /// What became of each load, in the order of [`World::load`].
    pub outcomes: Vec<LoadOutcome>,
    /// Laws that were broken.
    pub violations: Vec<String>,
    options: WorldOptions,
    now: Time,
    rng: Rng,
    links: Vec<Link>,
    flights: BTreeMap<SliceId, Flight>,
    loads: Vec<(Load, Option<Memory>)>,
    transfers: BTreeMap<TransferId, usize>,
    agenda: BinaryHeap<Reverse<(Time, u64, usize)>>,
    happenings: Vec<Option<Happening>>,
    batch: SliceBatch,
    outstanding: BTreeMap<RailId, usize>,
}

impl World {
    /// A world without peers. `seed` drives planner and network.
    #[must_use]
    pub fn new(config: Config, options: WorldOptions, seed: u64) -> Self {
        Self {
            planner: Planner::new(config, seed),
            outcomes: Vec::new(),
            violations: Vec::new(),
            options,
            now: Time(1),
            rng: Rng::new(seed ^ 0x5157_u64),
            links: Vec::new(),
            flights: BTreeMap::new(),
            loads: Vec::new(),
            transfers: BTreeMap::new(),
            agenda: BinaryHeap::new(),
            happenings: Vec::new(),
            batch: SliceBatch::default(),
            outstanding: BTreeMap::new(),
        }
    }

    /// Now.
    #[must_use]
    pub fn now(&self) -> Time {
        self.now
    }

    /// A peer with these links, all up. `None` at the planner's limit of peers.
    pub fn peer(&mut self, links: &[LinkOptions]) -> Option<PeerId> {
        let peer = self.planner.add_peer()?;
        for options in links {
            let id = PathId { peer, local: options.local, remote: options.remote };
            let options = options.clone();
            let link = Link { id, options, condition: Condition::Good, free_at: self.now, epoch: 0 };
            if let Err(error) = self.planner.handle_path_up(id, link.spec(), self.now) {
                self.violations.push(format!("path refused: {error}"));
            }
            self.links.push(link);
        }
        Some(peer)
    }

    /// Adds a load to be submitted at `at`; returns its number.
    pub fn load(&mut self, at: Time, load: Load) -> usize {
        let salt = self.rng.next();
        let memory = load.content.then(|| Memory::new(&load.ops, load.direction, salt));
        self.loads.push((load, memory));
        self.outcomes.push(LoadOutcome::default());
        self.at(at, Step::Submit(self.loads.len() - 1));
        self.loads.len() - 1
    }

    /// Has something happen at `at`.
    pub fn at(&mut self, at: Time, step: Step) {
        self.schedule(at, Happening::Step(step));
    }

    /// Runs until `end`, or until nothing is left to happen.
    pub fn run(&mut self, end: Time) {
        loop {
            self.serve();
            let next = self.agenda.peek().map(|Reverse((at, ..))| *at);
            let Some(at) = [next, self.planner.poll_timeout()].into_iter().flatten().min().filter(|at| *at <= end)
            else {
                return;
            };
            self.now = self.now.max(at);
            while let Some(Reverse((at, _, index))) = self.agenda.peek().copied() {
                if at > self.now {
                    break;
                }
                self.agenda.pop();
                if let Some(happening) = self.happenings[index].take() {
                    self.happen(happening);
                }
            }
            self.planner.handle_timeout(self.now);
        }
    }

    fn schedule(&mut self, at: Time, happening: Happening) {
        self.happenings.push(Some(happening));
        // Ties in random order, not in that of scheduling.
        self.agenda.push(Reverse((at, self.rng.next(), self.happenings.len() - 1)));
    }

    /// Workers that have a reason to look do so; the planner's wishes are carried out.
    fn serve(&mut self) {
        loop {
            let wakes = self.planner.poll_wakes();
            for rail in wakes.iter() {
                self.work(rail);
            }
            while let Some(action) = self.planner.poll_action() {
                let (Action::Fence(path) | Action::Open(path)) = action;
                let Some(link) = self.links.iter().position(|link| link.id == path) else { continue };
                match action {
                    Action::Fence(_) => self.schedule(self.now + self.options.fence_time, Happening::Fenced(link)),
                    Action::Open(_) => {
                        let dark = self.links[link].condition == Condition::Dark;
                        let wait = if dark { self.options.open_timeout } else { self.options.open_time };
                        self.schedule(self.now + wait, Happening::Opened(link));
                    }
                }
            }
            while let Some(event) = self.planner.poll_event() {
                self.hear(event);
            }
            if wakes.is_empty() {
                return;
            }
        }
    }

    fn work(&mut self, rail: RailId) {
        let outstanding = self.outstanding.entry(rail).or_default();
        let room = self.options.worker_depth.saturating_sub(*outstanding);
        let mut batch = std::mem::take(&mut self.batch);
        batch.clear();
        *outstanding += self.planner.poll_slices(rail, room, self.now, &mut batch);
        for slice in &batch.slices {
            let pieces = batch.pieces(slice).to_vec();
            if pieces.iter().map(|piece| piece.len).sum::<u64>() != slice.bytes || slice.bytes == 0 {
                self.violations.push(format!("{slice:?} does not add up"));
            }
            self.post(slice.clone(), pieces);
        }
        self.batch = batch;
    }

    fn post(&mut self, slice: Slice, pieces: Vec<Piece>) {
        let Some(index) = self.links.iter().position(|link| link.id == slice.path) else { return };
        let Some(load) = self.transfers.get(&slice.transfer).copied() else {
            return self.violations.push(format!("{slice:?} of no transfer"));
        };
        let link = &mut self.links[index];
        let (id, epoch) = (slice.id, link.epoch);
        let left = link.send(slice.bytes, self.now);
        let jitter = self.rng.below(nanos(link.options.jitter).saturating_add(1));
        let there = left + link.options.delay + Duration::from_nanos(jitter);
        let heard = there + link.options.delay;
        let chance = self.rng.below(1_000_000) as u32;
        let (fail, vanish) = (link.options.fail_ppm, link.options.vanish_ppm);
        let condition = link.condition;
        self.flights.insert(id, Flight { slice, pieces, link: index, load, held: false, ended: false });
        if condition == Condition::Broken {
            let outcome = Outcome::Failed(Cause::PathFault, Fate::Settled);
            self.schedule(self.now + self.options.break_time, Happening::Ends(id, outcome));
        } else if chance < fail {
            let cause =
                [Cause::PathFault, Cause::Corrupt, Cause::LocalFault, Cause::RemoteFault][self.rng.below(4) as usize];
            if cause == Cause::Corrupt && has_checksum(load) {
                self.schedule(there, Happening::Damages(id, epoch));
            }
            self.schedule(heard, Happening::Ends(id, Outcome::Failed(cause, Fate::Settled)));
        } else if chance - fail >= vanish {
            self.schedule(there, Happening::Lands(id, epoch));
        }
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Step(step) => self.step(step),
            Happening::Lands(slice, epoch) => self.land(slice, epoch),
            Happening::Damages(slice, epoch) => self.damage(slice, epoch),
            Happening::Ends(slice, outcome) => self.finish(slice, outcome),
            Happening::Fenced(link) => self.fenced(link),
            Happening::Opened(link) => {
                let link = &self.links[link];
                match link.condition {
                    Condition::Good | Condition::Slow(_) => {
                        // Refused where the peer is gone meanwhile.
                        let _ = self.planner.handle_path_up(link.id, link.spec(), self.now);
                    }
                    Condition::Dark | Condition::Broken => {
                        self.planner.handle_path_failed(link.id, Cause::PathFault, self.now);
                    }
                }
            }
        }
    }

    fn land(&mut self, slice: SliceId, epoch: u32) {
        let Some(flight) = self.flights.get_mut(&slice) else { return };
        let link = &self.links[flight.link];
        if link.epoch != epoch {
            return;
        }
        if link.condition == Condition::Dark {
            flight.held = true;
            return;
        }
        let heard = self.now + link.options.delay;
        let load = flight.load;
        if self.outcomes[load].quiesced_at.is_some() {
            self.violations.push(format!("{slice:?} landed after its transfer was quiesced"));
        }
        if let Some(memory) = &mut self.loads[load].1 {
            flight.pieces.iter().for_each(|piece| memory.land(piece));
        }
        let landed = &mut self.outcomes[load].landed;
        *landed = (landed.0 + flight.slice.bytes, self.now);
        if !flight.ended {
            let twice = (self.rng.below(1_000_000) as u32) < link.options.repeat_ppm;
            self.schedule(heard, Happening::Ends(slice, Outcome::Landed));
            if twice {
                self.schedule(heard + Duration::from_micros(300), Happening::Ends(slice, Outcome::Landed));
            }
        }
    }

    fn damage(&mut self, slice: SliceId, epoch: u32) {
        let Some(flight) = self.flights.get(&slice) else { return };
        let link = &self.links[flight.link];
        if link.epoch == epoch
            && link.condition != Condition::Dark
            && let Some(memory) = &mut self.loads[flight.load].1
        {
            flight.pieces.iter().for_each(|piece| memory.damage(piece));
        }
    }

    fn finish(&mut self, slice: SliceId, outcome: Outcome) {
        if let Some(flight) = self.flights.get_mut(&slice) {
            let link = &self.links[flight.link];
            if link.condition == Condition::Dark {
                flight.held = true; // the answer is lost with everything else; it comes again when the link does
                return;
            }
            let rail = link.id.local;
            if !std::mem::replace(&mut flight.ended, true)
                && let Some(outstanding) = self.outstanding.get_mut(&rail)
            {
                *outstanding -= 1;
            }
            if !matches!(outcome, Outcome::Failed(_, Fate::MayLand)) {
                self.flights.remove(&slice);
            }
            self.planner.handle_completions(&[Completion { slice, outcome }], self.now);
            self.work(rail);
        } else {
            self.planner.handle_completions(&[Completion { slice, outcome }], self.now); // a repetition
        }
    }

    /// Everything that was on the link is gone for good.
    fn fenced(&mut self, index: usize) {
        let rail = self.links[index].id.local;
        let on_link: Vec<SliceId> = self.flights.iter().filter(|(_, f)| f.link == index).map(|(id, _)| *id).collect();
        for slice in on_link {
            let Some(flight) = self.flights.get_mut(&slice) else { continue };
            if !std::mem::replace(&mut flight.ended, true)
                && let Some(outstanding) = self.outstanding.get_mut(&rail)
            {
                *outstanding -= 1;
            }
            if !self.options.fences_lie {
                self.flights.remove(&slice);
            }
        }
        let link = &mut self.links[index];
        link.epoch += u32::from(!self.options.fences_lie);
        link.free_at = self.now;
        let id = link.id;
        self.planner.handle_fenced(id, self.now);
        self.work(rail);
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Submit(load) => self.submit(load),
            Step::Cancel(load) => {
                let found = self.transfers.iter().find(|(_, of)| **of == load).map(|(id, _)| *id);
                if let Some(id) = found {
                    self.planner.cancel(id, self.now);
                }
            }
            Step::PeerLost(peer) => self.planner.handle_peer_lost(peer, self.now),
            Step::Link(index, condition) => self.change(index, condition),
        }
    }

    fn change(&mut self, index: usize, condition: Condition) {
        let before = std::mem::replace(&mut self.links[index].condition, condition);
        let epoch = self.links[index].epoch;
        let on_link: Vec<SliceId> = self.flights.iter().filter(|(_, f)| f.link == index).map(|(id, _)| *id).collect();
        for slice in on_link {
            let soon = self.now + Duration::from_nanos(self.rng.below(5_000_000));
            let Some(flight) = self.flights.get_mut(&slice) else { continue };
            if condition == Condition::Broken && !flight.ended {
                let fate = if self.rng.below(3) == 0 { Fate::Settled } else { Fate::MayLand };
                let cause = [Cause::PathFault, Cause::LocalFault, Cause::RemoteFault][self.rng.below(3) as usize];
                let outcome = Outcome::Failed(cause, fate);
                if fate == Fate::MayLand && flight.held {
                    self.schedule(soon, Happening::Lands(slice, epoch));
                }
                self.schedule(self.now + self.options.break_time, Happening::Ends(slice, outcome));
            } else if before == Condition::Dark && condition != Condition::Dark && std::mem::take(&mut flight.held) {
                self.schedule(soon, Happening::Lands(slice, epoch));
            }
        }
    }

    fn submit(&mut self, index: usize) {
        let load = &self.loads[index].0;
        let end = |side: fn(&Op) -> &crate::plan::Strided| {
            load.ops.iter().filter_map(|op| side(op).extent()).map(|extent| extent.end).max().unwrap_or(0)
        };
        let request = Request {
            peer: load.peer,
            direction: load.direction,
            local_bytes: end(|op| &op.local),
            remote_bytes: end(|op| &op.remote),
            ops: Arc::new(load.ops.clone()),
            class: load.class,
            tenant: load.tenant,
            deadline: self.now + load.patience,
            checksum: has_checksum(index),
            distance: None,
        };
        self.outcomes[index].submitted_at = self.now;
        match self.planner.submit(request, self.now) {
            Ok(id) => {
                if self.transfers.insert(id, index).is_some() {
                    self.violations.push(format!("{id:?} was given twice"));
                }
            }
            Err(error) => self.outcomes[index].refused = Some(error),
        }
    }

    fn hear(&mut self, event: Event) {
        let (Event::Done(id, _) | Event::Quiesced(id)) = &event;
        let Some(index) = self.transfers.get(id).copied() else {
            return self.violations.push(format!("{event:?} of no transfer"));
        };
        let outcome = &mut self.outcomes[index];
        match event {
            Event::Done(_, report) => {
                if outcome.done.is_some() {
                    self.violations.push(format!("load {index} was reported twice"));
                }
                let (load, memory) = &self.loads[index];
                if let Some(wrong) = memory.as_ref().and_then(|memory| memory.contradicts(&load.ops, &report.ops)) {
                    self.violations.push(format!("load {index}: {wrong}"));
                }
                if report.status.is_ok() && report.bytes != load.ops.iter().map(Op::bytes).sum::<u64>() {
                    self.violations.push(format!("load {index}: {} bytes reported", report.bytes));
                }
                outcome.done = Some((self.now, *report));
            }
            Event::Quiesced(id) => {
                if outcome.done.is_none() || outcome.quiesced_at.replace(self.now).is_some() {
                    self.violations.push(format!("load {index} was quiesced twice or before its report"));
                }
                self.transfers.remove(&id);
            }
        }
    }
}
