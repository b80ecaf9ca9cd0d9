//! What a sweep found, for machines; `table` shows it to people.

use serde::{Deserialize, Serialize};

use super::cell::Cell;
use super::expect::{Missed, judge};
use super::options::Options;
use super::order::{FlowDone, Looked, Mark};
use super::pattern::{Flow, Pattern, lines};
use super::plan::Plan;
use super::tally::{Event, Percentiles, STEP, Timeline, Times, jain};
use super::units::Rate;
use crate::far::Wire;
use crate::machine::Machine;
use crate::usage::Usage;

/// All that was measured.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    /// Where the command ran.
    pub machine: Machine,
    /// Who moved bytes to whom.
    pub pattern: Pattern,
    /// The flows, members by number; 0 is the process of the command.
    pub flows: Vec<Flow>,
    /// The other members.
    pub peers: usize,
    /// The model whose KV it was.
    pub preset: Option<String>,
    /// Whether every transfer was looked at when its receiver was told.
    pub verified: bool,
    /// What the rails of one machine carry together.
    pub line_rate: Option<Rate>,
    /// What the pattern carries at line rate.
    pub pattern_line_rate: Option<Rate>,
    /// The cells, in the order in which they were measured.
    pub cells: Vec<Figures>,
    /// Expectations that do not hold.
    pub missed: Vec<Missed>,
}

/// The figures of a cell.
#[derive(Debug, Serialize, Deserialize)]
pub struct Figures {
    /// What was measured.
    pub cell: Cell,
    /// Transfers that ended well.
    pub transfers: u64,
    /// Their bytes.
    pub bytes: u64,
    /// From the start to the end of the last one.
    pub seconds: f64,
    /// Throughput of all flows together.
    pub gb_per_s: f64,
    /// Blocks a second.
    pub ops_per_s: f64,
    /// The same in transfers.
    pub transfers_per_s: f64,
    /// What `submit` took.
    pub post: Percentiles,
    /// From the first slice on the wire to the last one visible.
    pub wire: Percentiles,
    /// From before `submit` to the caller's knowing that all is visible.
    pub visible: Percentiles,
    /// CPU-seconds of all members a GB.
    pub cpu_s_per_gb: f64,
    /// Threads of all members that were ready to run and had no core, on average.
    pub waiting: f64,
    /// Bytes of each rail, or stream where there are no rails.
    pub rails: Vec<RailShare>,
    /// Jain's index of these.
    pub balance: f64,
    /// Throughput of each flow, in the order of the report's flows.
    pub flow_gb_per_s: Vec<f64>,
    /// Jain's index of these.
    pub fairness: f64,
    /// Part of what the pattern carries at line rate.
    pub of_line: Option<f64>,
    /// Bytes sent again.
    pub retried_bytes: u64,
    /// Transfers that did not end well.
    pub failed: u64,
    /// Why the first of them did not.
    pub first_failure: Option<String>,
    /// Blocks whose every byte was looked at at the receiver; none was wrong.
    pub blocks_verified: u64,
    /// Throughput over time.
    pub timeline: Timeline,
}

/// What one rail moved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RailShare {
    /// `rail 0`, or `stream 0` where no rails were given.
    pub name: String,
    /// Payload bytes that landed.
    pub bytes: u64,
}

/// What members said of a cell.
pub(super) struct Raw {
    pub(super) cell: Cell,
    pub(super) flows: usize,
    pub(super) done: Vec<FlowDone>,
    pub(super) marks: Vec<Mark>,
    pub(super) looked: Looked,
    pub(super) events: Vec<Event>,
    /// Pairs of rails; 0 where none were given.
    pub(super) rails: usize,
    pub(super) line: Option<Rate>,
}

impl Raw {
    /// Makes the figures.
    pub(super) fn figures(self) -> Figures {
        let Self { cell, done, marks, .. } = &self;
        let sum = |what: fn(&FlowDone) -> u64| done.iter().map(what).sum::<u64>();
        let (transfers, bytes) = (sum(|flow| flow.transfers), sum(|flow| flow.bytes));
        let seconds = done.iter().map(|flow| flow.seconds).fold(0.0, f64::max);
        let a_second = |amount: f64| if seconds > 0.0 { amount / seconds } else { 0.0 };
        let all = |times: fn(&FlowDone) -> &Times| {
            let mut sum = Times::default();
            done.iter().for_each(|flow| sum.add(times(flow)));
            sum.percentiles()
        };
        let usage: Usage = marks.iter().map(|mark| mark.usage).sum();
        let mut flow_gb_per_s = vec![0.0; self.flows];
        for flow in done {
            if let Some(rate) = flow_gb_per_s.get_mut(flow.flow as usize) {
                *rate = a_second(flow.bytes as f64) / 1e9;
            }
        }
        let rails = rails(cell, done, self.rails);
        let landed: Vec<Vec<u64>> = marks.iter().map(|mark| within(&mark.landed, seconds)).collect();
        Figures {
            cell: *cell,
            transfers,
            bytes,
            seconds,
            gb_per_s: a_second(bytes as f64) / 1e9,
            ops_per_s: a_second(transfers as f64 * cell.batch as f64),
            transfers_per_s: a_second(transfers as f64),
            post: all(|flow| &flow.post),
            wire: all(|flow| &flow.wire),
            visible: all(|flow| &flow.visible),
            cpu_s_per_gb: if bytes > 0 { usage.cpu.as_secs_f64() / bytes as f64 * 1e9 } else { 0.0 },
            waiting: a_second(usage.delay.as_secs_f64()),
            balance: jain(&rails.iter().map(|rail| rail.bytes as f64).collect::<Vec<_>>()).unwrap_or(0.0),
            rails,
            fairness: jain(&flow_gb_per_s).unwrap_or(0.0),
            flow_gb_per_s,
            of_line: self.line.map(|line| a_second(bytes as f64) / line.0),
            retried_bytes: sum(|flow| flow.retried_bytes),
            failed: sum(|flow| flow.failed),
            first_failure: done.iter().find_map(|flow| flow.first_failure.clone()),
            blocks_verified: self.looked.looked_at,
            timeline: Timeline::sum(&landed, self.events),
        }
    }
}

/// The steps that lie whole within the measured time.
fn within(landed: &[u64], seconds: f64) -> Vec<u64> {
    let steps = (seconds / STEP.as_secs_f64() + 1e-9) as usize;
    landed[..steps.min(landed.len())].to_vec()
}

/// Bytes by rail, those that moved none among them: the engine lays streams over pairs of rails in turns.
fn rails(cell: &Cell, done: &[FlowDone], pairs: usize) -> Vec<RailShare> {
    let (name, count) = if pairs > 0 { ("rail", pairs) } else { ("stream", usize::from(cell.streams)) };
    let mut bytes = vec![0; count];
    for &(_, stream, moved) in done.iter().flat_map(|flow| &flow.streams) {
        bytes[usize::from(stream) % count] += moved;
    }
    bytes.into_iter().enumerate().map(|(n, bytes)| RailShare { name: format!("{name} {n}"), bytes }).collect()
}

impl Report {
    pub(super) fn new(plan: &Plan, options: &Options, line_rate: Option<Rate>) -> Self {
        Self {
            machine: Machine::here(),
            pattern: options.pattern,
            pattern_line_rate: line_rate.map(|rate| Rate(rate.0 * lines(&plan.flows) as f64)),
            flows: plan.flows.clone(),
            peers: plan.peers,
            preset: options.preset.map(|preset| {
                let tokens = options.tokens;
                format!("{}, {tokens} tokens ({})", preset.name, preset.source)
            }),
            verified: options.verify,
            line_rate,
            cells: Vec::new(),
            missed: Vec::new(),
        }
    }

    /// Notes what was expected and is not there.
    pub(super) fn judge(&mut self, options: &Options) {
        let mut best: Vec<(Wire, f64)> = Vec::new();
        for figures in &self.cells {
            let rate = figures.gb_per_s * 1e9;
            match best.iter_mut().find(|(wire, _)| *wire == figures.cell.wire) {
                Some((_, most)) => *most = most.max(rate),
                None => best.push((figures.cell.wire, rate)),
            }
        }
        self.missed = judge(&options.expect, &best, self.pattern_line_rate);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::transfer::OpKind;

    fn done(flow: u32, bytes: u64, seconds: f64, streams: &[(u8, u64)]) -> FlowDone {
        let mut done = FlowDone { flow, transfers: 10, bytes, seconds, ..FlowDone::default() };
        done.visible.record(Duration::from_micros(100 * (u64::from(flow) + 1)));
        streams.iter().for_each(|&(stream, bytes)| done.moved(Wire::Tcp, stream, bytes));
        done
    }

    fn raw(rails: usize) -> Raw {
        let usage = Usage { cpu: Duration::from_secs(1), delay: Duration::from_millis(500) };
        Raw {
            cell: Cell {
                wire: Wire::Tcp,
                op: OpKind::Write,
                block_bytes: 4096,
                batch: 8,
                in_flight: 1,
                threads: 1,
                streams: 4,
            },
            flows: 3,
            done: vec![done(0, 3_000_000_000, 2.0, &[(0, 1), (3, 2)]), done(1, 1_000_000_000, 1.0, &[(1, 4)])],
            marks: vec![Mark { usage, landed: vec![1; 40], looked: Looked::default() }; 2],
            looked: Looked { wrong: 0, looked_at: 7 },
            events: Vec::new(),
            rails,
            line: Some(Rate(4e9)),
        }
    }

    #[test]
    fn figures_are_sums_over_flows_and_members() {
        let figures = raw(0).figures();
        assert_eq!((figures.gb_per_s, figures.ops_per_s, figures.of_line), (2.0, 80.0, Some(0.5)));
        assert_eq!((figures.cpu_s_per_gb, figures.waiting), (0.5, 0.5));
        assert_eq!(figures.flow_gb_per_s, [1.5, 0.5, 0.0], "a flow that moved nothing is one");
        assert!((figures.fairness - 4.0 / (3.0 * 2.5)).abs() < 1e-9);
        assert_eq!(figures.visible.samples, 2);
        assert_eq!(figures.timeline.gb_per_s.len(), 20, "the idle time afterwards is none of it");
    }

    #[test]
    fn streams_are_laid_over_rails_and_idle_ones_are_told() {
        let bytes = |rails| raw(rails).figures().rails.iter().map(|rail| rail.bytes).collect::<Vec<_>>();
        assert_eq!(bytes(0), [1, 4, 0, 2]);
        assert_eq!(bytes(2), [1, 6]);
        assert_eq!(raw(2).figures().rails[1].name, "rail 1");
    }
}
