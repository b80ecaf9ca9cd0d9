//! What the serving bench found.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{COLOCATED, Interval, Machine, Options, Rounds, SEPARATE, Served, Wire};
use crate::show::table;
use crate::stats::coverage;

/// All that was measured.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    /// Where.
    pub machine: Machine,
    /// Model.
    pub model: String,
    /// How the KV moved.
    pub transport: Wire,
    /// Separate beside colocated, for each number of streams.
    pub streams: Vec<Streams>,
    /// How well the prefill hides the wire, by length of the prompt.
    pub wire: Vec<WireHidden>,
    /// Expectations that were missed, in words.
    pub missed: Vec<String>,
}

/// Separate pools beside one process at a number of streams; pairs are separate, colocated.
#[derive(Debug, Serialize, Deserialize)]
pub struct Streams {
    /// Streams at a time.
    pub streams: usize,
    /// Words of a prompt.
    pub words: usize,
    /// Output tokens of an answer.
    pub tokens: u32,
    /// Mean time to first token, seconds.
    pub ttft_s: [Interval; 2],
    /// Output tokens a second.
    pub tokens_per_s: [Interval; 2],
    /// CPU-seconds an output token.
    pub cpu_s_per_token: [Interval; 2],
    /// Time to first token, separate to colocated, same round.
    pub ttft_ratio: Interval,
    /// Output tokens a second, separate to colocated, same round.
    pub tokens_ratio: Interval,
    /// Rounds that counted.
    pub kept: usize,
    /// Rounds thrown away for excess run-queue delay.
    pub discarded: usize,
    /// Every round that counted.
    pub rounds: Vec<Vec<Served>>,
}

impl Streams {
    pub(super) fn new(streams: usize, options: &Options, rounds: &Rounds<Served>) -> Option<Self> {
        let both =
            |figure: fn(&Served) -> f64| Some([rounds.median(SEPARATE, figure)?, rounds.median(COLOCATED, figure)?]);
        Some(Self {
            streams,
            words: options.words,
            tokens: options.tokens,
            ttft_s: both(|s| s.ttft)?,
            tokens_per_s: both(|s| s.tokens_per_s)?,
            cpu_s_per_token: both(|s| s.cpu_s_per_token)?,
            ttft_ratio: rounds.ratio(SEPARATE, COLOCATED, |s| s.ttft)?,
            tokens_ratio: rounds.ratio(SEPARATE, COLOCATED, |s| s.tokens_per_s)?,
            kept: rounds.kept.len(),
            discarded: rounds.discarded,
            rounds: rounds.kept.clone(),
        })
    }
}

/// The end of a hand-off beside all of it at once.
#[derive(Debug, Serialize, Deserialize)]
pub struct WireHidden {
    /// KV bytes of the prompt.
    pub bytes: u64,
    /// From the last computed layer to the last visible block.
    pub last_layer_to_visible_s: Interval,
    /// Moving as many bytes at once on an idle path.
    pub at_once_s: Interval,
    /// The first to the second, same round.
    pub ratio: Interval,
    /// Rounds that counted.
    pub kept: usize,
    /// Rounds thrown away for excess run-queue delay.
    pub discarded: usize,
}

/// An expectation of the command line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Expect {
    /// Time to first token at one stream against colocated, at most.
    Ttft(f64),
    /// Last layer to visible against moving all at once, at most.
    Wire(f64),
}

/// Not an expectation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected ttft=RATIO or wire=RATIO with a positive number, not `{0}`")]
pub struct ExpectError(String);

impl FromStr for Expect {
    type Err = ExpectError;

    fn from_str(text: &str) -> Result<Self, ExpectError> {
        let error = || ExpectError(text.to_owned());
        let (what, ratio) = text.split_once('=').ok_or_else(error)?;
        let ratio: f64 = ratio.parse().ok().filter(|r: &f64| r.is_finite() && *r > 0.0).ok_or_else(error)?;
        match what {
            "ttft" => Ok(Self::Ttft(ratio)),
            "wire" => Ok(Self::Wire(ratio)),
            _ => Err(error()),
        }
    }
}

impl Report {
    pub(super) fn new(machine: Machine, model: &str, transport: Wire) -> Self {
        Self { machine, model: model.to_owned(), transport, streams: Vec::new(), wire: Vec::new(), missed: Vec::new() }
    }

    /// Notes what was missed.
    pub(super) fn judge(&mut self, expectations: &[Expect]) {
        for expectation in expectations {
            let (what, ratio, ceiling) = match *expectation {
                Expect::Ttft(ceiling) => {
                    let one = self.streams.iter().find(|s| s.streams == 1);
                    ("time to first token at one stream", one.map(|s| s.ttft_ratio), ceiling)
                }
                Expect::Wire(ceiling) => ("last layer to visible", self.wire.last().map(|w| w.ratio), ceiling),
            };
            match ratio {
                None => self.missed.push(format!("{what} was not measured")),
                Some(ratio) if ratio.median > ceiling => {
                    self.missed.push(format!("{what}: a ratio ≤ {ceiling} was expected, it is {ratio}"));
                }
                Some(_) => {}
            }
        }
    }

    /// Tables for people.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = format!(
            "{} over {}; {} cores, Linux {}\n",
            self.model, self.transport, self.machine.cores, self.machine.kernel
        );
        let likely = coverage(self.streams.iter().flat_map(|at| [at.ttft_ratio, at.tokens_ratio]));
        let ratio = |what: &str| format!("{what} ratio [{likely}]");
        let head = ["streams", "", "TTFT ms", "tokens/s", "CPU ms/token", &ratio("TTFT"), &ratio("tokens/s"), "rounds"];
        let mut table = table(&head);
        for at in &self.streams {
            for side in [SEPARATE, COLOCATED] {
                let first = |text: String| if side == SEPARATE { text } else { String::new() };
                table.add_row([
                    first(at.streams.to_string()),
                    if side == SEPARATE { "1 P, 1 D".into() } else { "colocated".into() },
                    format!("{:.1}", at.ttft_s[side].median * 1e3),
                    format!("{:.1}", at.tokens_per_s[side].median),
                    format!("{:.2}", at.cpu_s_per_token[side].median * 1e3),
                    first(at.ttft_ratio.to_string()),
                    first(at.tokens_ratio.to_string()),
                    first(format!("{} (−{})", at.kept, at.discarded)),
                ]);
            }
        }
        out += &format!("{table}\nratio: separate to colocated of the same round; rounds: kept (− disturbed)\n");
        for wire in &self.wire {
            out += &format!(
                "{:.1} MB of KV: last layer to visible {:.0} µs, all at once on an idle path {:.0} µs: ratio {} ({} rounds, −{})\n",
                wire.bytes as f64 / 1e6,
                wire.last_layer_to_visible_s.median * 1e6,
                wire.at_once_s.median * 1e6,
                wire.ratio,
                wire.kept,
                wire.discarded,
            );
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(median: f64) -> Interval {
        Interval { median, low: median, high: median, coverage: 0.96, samples: 9 }
    }

    #[test]
    fn ceilings_are_judged_and_what_was_not_measured_is_missed() {
        let missed = |wire: Option<f64>, expectations: &[&str]| {
            let mut report = Report::new(Machine::here(), "mock", Wire::Tcp);
            report.wire.extend(wire.map(|ratio| WireHidden {
                bytes: 1,
                last_layer_to_visible_s: interval(ratio),
                at_once_s: interval(1.0),
                ratio: interval(ratio),
                kept: 9,
                discarded: 0,
            }));
            let expectations: Vec<Expect> = expectations.iter().map(|e| e.parse().unwrap()).collect();
            report.judge(&expectations);
            report.missed.len()
        };
        assert_eq!(missed(Some(0.15), &["wire=0.15"]), 0);
        assert_eq!(missed(Some(0.16), &["wire=0.15"]), 1);
        assert_eq!(missed(None, &["wire=0.15", "ttft=1.1"]), 2);
        for bad in ["0.1", "wire", "ttft=-1", "x=1"] {
            assert!(bad.parse::<Expect>().is_err(), "{bad}");
        }
    }
}
