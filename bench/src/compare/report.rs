//! What the comparison found: JSON for machines, tables for people, and whether a floor was missed.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::shape::Shape;
use crate::far::Wire;
use crate::machine::Machine;
use crate::show::table;
use crate::stats::{Interval, Measure, Rounds, Turn, coverage};

/// All that was measured.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    /// Where.
    pub machine: Machine,
    /// Blocks of a transfer.
    pub blocks: usize,
    /// Bytes of a block.
    pub block_bytes: usize,
    /// The engine beside its baselines, for each transport; the first of a transport is the one that counts.
    pub pairs: Vec<Pair>,
    /// The one big submit, for each transport.
    pub batches: Vec<Batch>,
    /// Expectations that were missed, in words.
    pub missed: Vec<String>,
}

/// The engine over one transport beside the baseline of that transport.
#[derive(Debug, Serialize, Deserialize)]
pub struct Pair {
    /// Which transport.
    pub transport: Wire,
    /// Whether the baseline has as many threads that move bytes as the engine: expectations are judged by it.
    pub judged: bool,
    /// The two contenders: kvrail, baseline.
    pub names: [String; 2],
    /// GB/s of each.
    pub gb_per_s: [Interval; 2],
    /// CPU-seconds a GB of each, both processes.
    pub cpu_s_per_gb: [Interval; 2],
    /// Throughput, kvrail to baseline, same round.
    pub ratio: Interval,
    /// CPU-seconds a GB, kvrail to baseline, same round.
    pub cpu_ratio: Interval,
    /// Threads that waited for a core, on average, of each: how crowded the machine was.
    pub waiting: [Interval; 2],
    /// Rounds that counted.
    pub kept: usize,
    /// Rounds thrown away for excess run-queue delay.
    pub discarded: usize,
    /// Blocks that the receiver looked at, byte for byte, in these rounds; none was wrong.
    pub blocks_verified: usize,
    /// Every round that counted.
    pub rounds: Vec<Vec<Measure>>,
}

/// Many small descriptors in one submit.
#[derive(Debug, Serialize, Deserialize)]
pub struct Batch {
    /// Which transport.
    pub transport: Wire,
    /// How many.
    pub descriptors: usize,
    /// Bytes of each.
    pub descriptor_bytes: usize,
    /// What `submit` takes a descriptor, in nanoseconds.
    pub submit_ns: f64,
    /// What the whole transfer takes a descriptor, in nanoseconds.
    pub total_ns: f64,
}

impl Pair {
    /// The engine, contender 0, beside contender `other`.
    pub(super) fn new(
        transport: Wire,
        names: [String; 2],
        rounds: &Rounds<Measure>,
        other: usize,
        blocks_verified: usize,
    ) -> Option<Self> {
        let both = |figure: fn(&Measure) -> f64| Some([rounds.median(0, figure)?, rounds.median(other, figure)?]);
        Some(Self {
            transport,
            judged: other == 1,
            names,
            gb_per_s: both(|m| m.rate() / 1e9)?,
            cpu_s_per_gb: both(|m| m.cost() * 1e9)?,
            ratio: rounds.ratio(0, other, Measure::rate)?,
            cpu_ratio: rounds.ratio(0, other, Measure::cost)?,
            waiting: both(Measure::waiting)?,
            kept: rounds.kept.len(),
            discarded: rounds.discarded,
            blocks_verified,
            rounds: rounds.kept.iter().map(|round| vec![round[0], round[other]]).collect(),
        })
    }
}

/// An expectation of the command line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Expect {
    /// Throughput against the baseline, at least; of one transport or of each.
    Speed(Option<Wire>, f64),
    /// CPU-seconds a GB against the baseline's, at most; of each transport.
    Cpu(f64),
}

/// Not an expectation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected RATIO, tcp=RATIO, shm=RATIO or cpu=RATIO with a positive number, not `{0}`")]
pub struct ExpectError(String);

impl FromStr for Expect {
    type Err = ExpectError;

    fn from_str(text: &str) -> Result<Self, ExpectError> {
        let (what, ratio) = text.split_once('=').unwrap_or(("", text));
        let error = || ExpectError(text.to_owned());
        let ratio: f64 = ratio.parse().ok().filter(|r: &f64| r.is_finite() && *r > 0.0).ok_or_else(error)?;
        match what {
            "" => Ok(Self::Speed(None, ratio)),
            "tcp" => Ok(Self::Speed(Some(Wire::Tcp), ratio)),
            "shm" => Ok(Self::Speed(Some(Wire::Shm), ratio)),
            "cpu" => Ok(Self::Cpu(ratio)),
            _ => Err(error()),
        }
    }
}

impl Report {
    pub(super) fn new(shape: &Shape) -> Self {
        Self {
            machine: Machine::here(),
            blocks: shape.blocks,
            block_bytes: shape.block_bytes,
            pairs: Vec::new(),
            batches: Vec::new(),
            missed: Vec::new(),
        }
    }

    /// Notes what the pairs that count miss. A median counts; its interval says how sure it is.
    pub(super) fn judge(&mut self, expectations: &[Expect]) {
        for expectation in expectations {
            let mut judged = 0;
            for pair in self.pairs.iter().filter(|pair| pair.judged) {
                let (holds, is, wanted) = match *expectation {
                    Expect::Speed(wire, floor) if wire.is_none_or(|w| w == pair.transport) => {
                        (pair.ratio.median >= floor, pair.ratio, format!("throughput ≥ {floor} × the baseline's"))
                    }
                    Expect::Cpu(ceiling) => {
                        let wanted = format!("CPU-seconds a GB ≤ {ceiling} × the baseline's");
                        (pair.cpu_ratio.median <= ceiling, pair.cpu_ratio, wanted)
                    }
                    Expect::Speed(..) => continue,
                };
                judged += 1;
                if !holds {
                    self.missed.push(format!("{}: {wanted} was expected, it is {is}", pair.transport));
                }
            }
            if judged == 0 {
                self.missed.push(format!("{expectation:?} was expected of a transport that was not measured"));
            }
        }
    }

    /// Tables for people.
    #[must_use]
    pub fn text(&self) -> String {
        let machine = &self.machine;
        let mut out = format!(
            "{} blocks of {} bytes, scattered on both sides; {} cores, Linux {}, TCP {}, huge pages {} (shared: {})\n",
            self.blocks,
            self.block_bytes,
            machine.cores,
            machine.kernel,
            machine.congestion_control,
            machine.huge_pages,
            machine.huge_pages_shared,
        );
        let likely = coverage(self.pairs.iter().flat_map(|pair| [pair.ratio, pair.cpu_ratio]));
        let ratios = [format!("ratio [{likely}]"), format!("CPU ratio [{likely}]")];
        let mut table = table(&["", "GB/s", "CPU s/GB", &ratios[0], &ratios[1], "rounds", "waiting"]);
        for pair in &self.pairs {
            for side in 0..2 {
                let ratio = |of: &Interval| if side == 0 { of.to_string() } else { String::new() };
                table.add_row([
                    pair.names[side].clone(),
                    format!("{:.2}", pair.gb_per_s[side].median),
                    format!("{:.3}", pair.cpu_s_per_gb[side].median),
                    ratio(&pair.ratio),
                    ratio(&pair.cpu_ratio),
                    if side == 0 { format!("{} (−{})", pair.kept, pair.discarded) } else { String::new() },
                    format!("{:.2}", pair.waiting[side].median),
                ]);
            }
        }
        out += &format!("{table}\nratio: kvrail to the baseline of the same round; rounds: kept (− disturbed)\n");
        if self.pairs.iter().any(|pair| !pair.judged) {
            out += "what counts is the first baseline of a transport, which has as many threads that move bytes\n";
        }
        for batch in &self.batches {
            out += &format!(
                "{}: {} descriptors of {} bytes in one submit: {:.0} ns a descriptor to submit, {:.0} ns to move\n",
                batch.transport, batch.descriptors, batch.descriptor_bytes, batch.submit_ns, batch.total_ns,
            );
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let measure = |work: f64, cpu_seconds: f64| Measure { work, seconds: 1.0, cpu_seconds, delay_seconds: 0.0 };
        // Two baselines: the first counts, the second is far slower.
        let round = vec![measure(8e9, 3.0), measure(1e10, 2.5), measure(1e9, 9.0)];
        let rounds = Rounds { kept: vec![round; 9], discarded: 2 };
        let shape = Shape { slots: 1, blocks: 1, block_bytes: 8, seed: 0 };
        let mut report = Report::new(&shape);
        for (other, name) in [(1, "plain"), (2, "slow")] {
            let names = ["kvrail over tcp".into(), name.into()];
            report.pairs.push(Pair::new(Wire::Tcp, names, &rounds, other, 9).unwrap());
        }
        report
    }

    #[test]
    fn floors_and_ceilings_are_read_or_refused() {
        assert_eq!("0.9".parse(), Ok(Expect::Speed(None, 0.9)));
        assert_eq!("shm=0.85".parse(), Ok(Expect::Speed(Some(Wire::Shm), 0.85)));
        assert_eq!("cpu=1.3".parse(), Ok(Expect::Cpu(1.3)));
        for bad in ["", "tcp=", "udp=1", "rdma=1", "-1", "nan", "0", "cpu=inf"] {
            assert!(bad.parse::<Expect>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_missed_floor_is_told_and_a_met_one_is_not() {
        // 0.8 of the throughput, 0.375 against 0.25 CPU-seconds a GB.
        let missed = |expectations: &[&str]| {
            let mut report = report();
            let expectations: Vec<Expect> = expectations.iter().map(|e| e.parse().unwrap()).collect();
            report.judge(&expectations);
            report.missed
        };
        assert!(missed(&["0.8", "tcp=0.79", "cpu=1.5"]).is_empty());
        assert_eq!(missed(&["0.81"]).len(), 1);
        assert_eq!(missed(&["cpu=1.49"]).len(), 1);
        assert_eq!(missed(&["shm=0.1"]).len(), 1, "what was not measured does not hold");
    }

    #[test]
    fn the_report_shows_ratio_and_rounds() {
        let text = report().text();
        assert!(text.contains("0.800 [0.800, 0.800]") && text.contains("9 (−2)"), "{text}");
        assert!(text.contains("slow") && text.contains("8.000 [8.000, 8.000]"), "{text}");
        assert!(serde_json::to_string(&report()).unwrap().contains("\"transport\":\"tcp\""));
    }
}
