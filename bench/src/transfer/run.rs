//! The coordinator: starts or finds the members, tells them each cell in turn, and collects what they say.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::cell::{Cell, OpKind};
use super::expect::Floor;
use super::fault::{Act, Signal};
use super::line;
use super::link::{Link, started};
use super::member::Meter;
use super::options::Options;
use super::order::{FlowDone, Limit, Looked, Mark, Order, Shape, Start, Word};
use super::pattern::Flow;
use super::plan::Plan;
use super::report::{Figures, Raw, Report};
use super::strike::{Striker, Targets};
use super::tally::Event;
use super::units::Rate;
use super::watch::Watch;
use crate::far::{BenchError, FarSide, Place, Wire};
use crate::machine::memory_available;
use crate::setting::SettingError;

/// Longest that a member may take to start an engine, fill a pool or look at it.
const ANSWER_MAX: Duration = Duration::from_secs(180);
/// What a cell may take beyond its time: the longest transfer, and seeking a lost peer.
const AFTER_MAX: Duration = Duration::from_secs(120);
/// Longest that a number of transfers may take.
const COUNT_MAX: Duration = Duration::from_secs(3600);

/// Runs the sweep. `far` starts a peer on this machine; see [`far_side`](crate::far::far_side).
///
/// # Errors
/// [`BenchError`]; a missed floor is none, [`Report::missed`] tells it.
pub fn run(options: &Options, far: &FarSide) -> Result<Report, BenchError> {
    let plan = Plan::new(options)?;
    let pool = plan.pool(options)?;
    check_memory(&plan, options, pool)?;
    let line_rate = line_rate(&plan, options)?;
    let targets = Targets::find(&plan, options)?;
    let mut report = Report::new(&plan, options, line_rate);
    let meter = Meter::default();
    let mut watch = Watch::new(plan.cells.len(), Meter::clone(&meter));
    watch.begin("peers".into());
    let mut sweep = Sweep::start(options, &plan, far, targets, meter)?;
    sweep.line = report.pattern_line_rate;
    for (number, cell) in plan.cells.iter().enumerate() {
        let before = number.checked_sub(1).map(|before| &plan.cells[before]);
        if before.is_none_or(|before| engines(before) != engines(cell)) {
            watch.begin(format!("{cell}: engines"));
            sweep.open(cell, pool, &watch)?;
        }
        watch.begin(cell.to_string());
        let figures = sweep.measure(number, cell, &watch)?;
        watch.end(number, cell, &figures);
        report.cells.push(figures);
    }
    report.judge(options);
    Ok(report)
}

/// Cells that can use the same engines and leases.
fn engines(cell: &Cell) -> (Wire, u8, OpKind) {
    (cell.wire, cell.streams, cell.op)
}

/// What this machine's ends of the flows need.
fn check_memory(plan: &Plan, options: &Options, pool: u64) -> Result<(), SettingError> {
    let here = |flow: &Flow| u64::from(flow.from == 0) + u64::from(flow.to == 0);
    let ends = if options.to.is_empty() { plan.flows.len() as u64 * 2 } else { plan.flows.iter().map(here).sum() };
    let needed = pool.saturating_mul(ends);
    match memory_available() {
        Some(free) if needed > free as u64 => {
            let wanted = format!(
                "{ends} ends of flows with {pool} bytes each need {needed} bytes, {free} are free: a smaller pool, smaller or fewer \
                 blocks, or fewer under way"
            );
            Err(SettingError::new("pool", options.pool, wanted))
        }
        _ => Ok(()),
    }
}

/// What was said of it, or what the devices say.
fn line_rate(plan: &Plan, options: &Options) -> Result<Option<Rate>, SettingError> {
    let one_wire = plan.cells.iter().all(|cell| cell.wire == plan.cells[0].wire);
    let read = || match plan.cells.first().map(|cell| cell.wire).filter(|_| one_wire && !options.to.is_empty())? {
        Wire::Tcp => line::of_tcp(&options.rails),
        Wire::Rdma => line::of_rdma(&options.rdma_rails),
        Wire::Shm => None,
    };
    let rate = options.line_rate.or_else(read);
    let wants = options.expect.iter().any(|expect| matches!(expect.floor, Floor::Line(_)));
    if wants && rate.is_none() {
        let wanted = "--line-rate, since the devices of the rails do not say how fast they are; or a floor as 5GB/s";
        return Err(SettingError::new("expect", "…line", wanted));
    }
    Ok(rate)
}

/// What came of a cell's measured time.
struct Gone {
    done: Vec<FlowDone>,
    marks: Vec<Mark>,
    events: Vec<Event>,
}

/// Members that have been found, and what they are at.
struct Sweep<'a> {
    options: &'a Options,
    plan: &'a Plan,
    links: Vec<Link>,
    targets: Targets,
    line: Option<Rate>,
    /// Pairs of rails between two members.
    rails: usize,
}

impl<'a> Sweep<'a> {
    fn start(
        options: &'a Options,
        plan: &'a Plan,
        far: &FarSide,
        mut targets: Targets,
        meter: Meter,
    ) -> Result<Self, BenchError> {
        let mut links = Vec::with_capacity(plan.peers + 1);
        for peer in 0..plan.peers {
            let side = options.to.get(peer).map_or_else(|| far.clone(), |address| FarSide::At(*address));
            let link = Link::there(&side)?;
            if let Some(pid) = link.pid() {
                targets.add(peer + 1, pid);
            }
            links.push(link);
        }
        let near = links.first().and_then(Link::near);
        if let Some(rail) = near.and_then(|near| targets.carries(near)) {
            let wanted = "a rail that the talk with the peers does not go over: give other addresses with --to";
            return Err(SettingError::new("fault", format!("rail {rail}"), wanted).into());
        }
        let host = near.unwrap_or(Place::default().host);
        let place = Place { host, rails: options.rails.clone(), rdma_rails: options.rdma_rails.clone() };
        links.insert(0, Link::here(place, meter));
        Ok(Self { options, plan, links, targets, line: None, rails: 0 })
    }

    fn ask(&mut self, member: usize, order: Order, watch: &Watch) -> Result<Word, BenchError> {
        self.links[member].tell(order)?;
        self.links[member].hear(ANSWER_MAX, &mut || watch.tick())
    }

    /// Tells all members the same at once and hears them all, in their order.
    fn ask_all(&mut self, order: &Order, within: Duration, watch: &Watch) -> Result<Vec<Word>, BenchError> {
        self.links.iter_mut().try_for_each(|link| link.tell(order.clone()))?;
        self.links.iter().map(|link| link.hear(within, &mut || watch.tick())).collect()
    }

    /// Engines, memory, leases and sessions for cells like this one.
    fn open(&mut self, cell: &Cell, pool: u64, watch: &Watch) -> Result<(), BenchError> {
        let order = Order::Start(Start {
            wire: cell.wire,
            streams: cell.streams,
            rails: self.options.rails.iter().map(ToString::to_string).collect(),
            rdma_rails: self.options.rdma_rails.iter().map(ToString::to_string).collect(),
            slices: self.plan.slices.clone(),
        });
        let words = self.ask_all(&order, ANSWER_MAX, watch)?;
        let places: Vec<(SocketAddr, usize)> = words.into_iter().map(started).collect::<Result<_, _>>()?;
        self.rails = places.iter().map(|(_, rails)| *rails).max().unwrap_or(0);
        let written = cell.op == OpKind::Write;
        for (flow, &Flow { from, to }) in self.plan.flows.iter().enumerate() {
            let (submits, lends) = if written { (from, to) } else { (to, from) };
            let flow = flow as u32;
            let Word::Lent { ticket } = self.ask(lends, Order::Lend { flow, bytes: pool, written }, watch)? else {
                return Err(BenchError::unexpected("lent"));
            };
            let open = Order::Open { flow, bytes: pool, to: places[lends].0, ticket };
            let Word::Opened { ticket } = self.ask(submits, open, watch)? else {
                return Err(BenchError::unexpected("opened"));
            };
            if written && self.options.verify {
                self.ask(lends, Order::Acknowledge { flow, to: places[submits].0, ticket }, watch)?;
            }
        }
        Ok(())
    }

    fn measure(&mut self, number: usize, cell: &Cell, watch: &Watch) -> Result<Figures, BenchError> {
        let Options { verify, seed, warm_up, .. } = *self.options;
        let shape = Shape { cell: *cell, number: number as u32, pool: self.options.pool, verify, seed };
        self.ask_all(&Order::Shape(shape), ANSWER_MAX, watch)?;
        if !warm_up.is_zero() {
            self.ask_all(&Order::Go(Limit::Time(warm_up)), warm_up + AFTER_MAX, watch)?;
            self.ask_all(&Order::Mark, ANSWER_MAX, watch)?;
        }
        let Gone { done, marks, events } = self.go(watch)?;
        let failed: u64 = done.iter().map(|flow| flow.failed).sum();
        let first = done.iter().find_map(|flow| flow.first_failure.clone());
        if let (true, Some(first)) = (self.options.fault.is_empty(), first) {
            return Err(BenchError::Failed { cell: cell.to_string(), failed, first });
        }
        let mut looked = Looked::default();
        marks.iter().for_each(|mark| looked += mark.looked);
        // Where transfers failed, what lies there is not known.
        if !verify && failed == 0 && !self.plan.acts.iter().any(|(_, act)| is_kill(act)) {
            looked += self.look(&done, watch)?;
        }
        if looked.wrong > 0 {
            let (wrong, looked_at) = (looked.wrong as usize, looked.looked_at as usize);
            return Err(BenchError::Wrong { contender: cell.to_string(), wrong, looked_at });
        }
        let (flows, rails, line) = (self.plan.flows.len(), self.rails, self.line);
        Ok(Raw { cell: *cell, flows, done, marks, looked, events, rails, line }.figures())
    }

    /// The measured time of a cell, with all that is done to it.
    fn go(&mut self, watch: &Watch) -> Result<Gone, BenchError> {
        let limit = self.plan.limit;
        let (time, within) = match limit {
            Limit::Time(time) => (time, time + AFTER_MAX),
            Limit::Count(_) => (Duration::ZERO, COUNT_MAX),
        };
        self.links.iter_mut().try_for_each(|link| link.tell(Order::Go(limit)))?;
        let start = Instant::now();
        // Undone when this returns, whichever way.
        let mut striker = Striker::new(self.targets.clone());
        let (words, events) = std::thread::scope(|scope| {
            let striking = scope.spawn(|| striker.run(&self.plan.acts, start, time));
            let words: Vec<_> = self.links.iter().map(|link| link.hear(within, &mut || watch.tick())).collect();
            (words, striking.join().unwrap_or_default())
        });
        let mut done = Vec::new();
        for (member, word) in words.into_iter().enumerate() {
            match word {
                Ok(Word::Done(flows)) => done.extend(flows),
                Err(_) if self.is_killed(member) => {}
                Ok(_) => return Err(BenchError::unexpected("done")),
                Err(error) => return Err(error),
            }
        }
        let mut marks = Vec::new();
        for member in (0..self.links.len()).filter(|member| !self.is_killed(*member)).collect::<Vec<_>>() {
            match self.ask(member, Order::Mark, watch)? {
                Word::Marked(mark) => marks.push(mark),
                _ => return Err(BenchError::unexpected("marked")),
            }
        }
        Ok(Gone { done, marks, events })
    }

    /// Whether the faults of the plan have ended a member.
    fn is_killed(&self, member: usize) -> bool {
        self.plan.acts.iter().any(|(_, act)| is_kill(act) && matches!(act, Act::Peer { peer, .. } if *peer == member))
    }

    /// What lies at the receivers.
    fn look(&mut self, done: &[FlowDone], watch: &Watch) -> Result<Looked, BenchError> {
        let mut looked = Looked::default();
        for done in done {
            let Some(flow) = self.plan.flows.get(done.flow as usize) else { continue };
            let look = Order::Look { flow: done.flow, turns: done.turns.clone() };
            match self.ask(flow.to, look, watch)? {
                Word::Looked(found) => looked += found,
                _ => return Err(BenchError::unexpected("looked")),
            }
        }
        Ok(looked)
    }
}

fn is_kill(act: &Act) -> bool {
    matches!(act, Act::Peer { signal: Signal::Kill, .. })
}
