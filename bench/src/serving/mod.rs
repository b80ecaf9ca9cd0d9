//! Serving benchmark (`kvrail bench serve`): separate prefill and decode processes beside one process that does both,
//! asked the same things in turns, through the gateway.
//!
//! Three figures a stream count: time to first token, output tokens a second, CPU-seconds a token; each as the median of
//! the same-round ratios. And one that tells whether the prefill hides the wire: the time from the last computed layer
//! to the last visible block, beside what moving the same bytes at once takes on an idle path.
//!
//! No prompt is asked twice of the same processes, so nothing comes out of a prefix cache; that the KV of every prompt
//! was moved is checked with the counters, or there is no figure.

use std::path::{Path, PathBuf};
use std::time::Instant;

use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;

use crate::answer::{Answer, Ask, ask};
use crate::client::ClientError;
use crate::cluster::{Cluster, ClusterError, Plan, Process};
use crate::compare::AtOnce;
use crate::far::{BenchError, FarSide, Wire};
use crate::machine::Machine;
use crate::prompts::text;
use crate::show::progress;
use crate::stats::{Interval, Rounds, Turn, interleave};
use crate::usage::Usage;

mod report;

pub use report::{Expect, Report, Streams, WireHidden};

/// Transfers of a turn that moves everything at once.
const AT_ONCE_TRANSFERS: u64 = 9;
/// Prompts of a turn at least: with few streams each asks several, one after the other. The median of some says more
/// than one, which a single tick of the host moves by a tenth.
const PROMPTS_A_TURN: usize = 4;
/// Prompts of a turn whose hand-off is timed.
const HAND_OFFS: usize = 5;
/// Number of the contender with separate pools.
const SEPARATE: usize = 0;
/// Number of the contender in one process.
const COLOCATED: usize = 1;

/// Why the bench gave no figures.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The processes.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The endpoint.
    #[error("{who}: {source}\n{logs}")]
    Endpoint {
        /// Which contender.
        who: &'static str,
        /// What happened.
        source: ClientError,
        /// The end of the logs of its processes.
        logs: String,
    },
    /// Moving the same bytes at once.
    #[error(transparent)]
    Transfer(#[from] BenchError),
    /// A counter is missing or says that the work was not done.
    #[error("{0}")]
    Counters(String),
    /// The operating system.
    #[error("system")]
    Io(#[from] std::io::Error),
}

/// Settings of the bench.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// GGUF file, or mock[:KEY=VALUE,…]
    #[arg(long, value_name = "MODEL", default_value = "mock:context=16384")]
    pub model: String,
    /// Streams at a time; 0 leaves it out
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,4,16")]
    pub streams: Vec<usize>,
    /// Words of a prompt
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub words: usize,
    /// Words of the prompts with which the hand-off is timed, shortest first; 0 leaves it out
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "600,1600")]
    pub wire_words: Vec<usize>,
    /// Output tokens of an answer
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub tokens: u32,
    /// Calm rounds to collect for each comparison; three times as many are tried at most
    #[arg(long, value_name = "N", default_value_t = 9)]
    pub rounds: usize,
    /// How the KV moves
    #[arg(long, value_name = "TRANSPORT", default_value_t = Wire::Tcp, value_parser = Wire::plain)]
    pub transport: Wire,
    /// Print JSON on stdout instead of tables
    #[arg(long)]
    pub json: bool,
    /// Exit with status 3 when missed: ttft=CEILING (time to first token at one stream against colocated), wire=CEILING
    /// (last layer to visible against moving all at once, of the last of the hand-offs)
    #[arg(long, value_name = "WHAT=RATIO")]
    pub expect: Vec<Expect>,
    /// Seed of the prompts
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

/// One turn: all streams ask at once, each one prompt after the other, until all have their whole answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Served {
    /// Median time to first token, seconds.
    pub ttft: f64,
    /// Output tokens a second, all streams together.
    pub tokens_per_s: f64,
    /// CPU-seconds of all processes, an output token.
    pub cpu_s_per_token: f64,
    /// Threads that had no core, on average.
    pub waiting: f64,
}

impl Turn for Served {
    fn waiting(&self) -> f64 {
        self.waiting
    }
}

/// Time of the last bytes of a hand-off, or of all of them at once.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Moved {
    /// Seconds.
    pub seconds: f64,
    /// Threads that had no core, on average.
    pub waiting: f64,
}

impl Turn for Moved {
    fn waiting(&self) -> f64 {
        self.waiting
    }
}

/// A cluster and what asks it.
struct Side {
    who: &'static str,
    cluster: Cluster,
    model: String,
}

/// What a node says of the KV that it has received.
struct Handed {
    payload_bytes: u64,
    token_bytes: u64,
    /// Hand-offs, and the sum of their times from the last layer to visible in microseconds.
    hand_offs: u64,
    micros: u64,
}

impl Side {
    async fn start(who: &'static str, plan: &Plan) -> Result<Self, ServeError> {
        let cluster = Cluster::start(plan).await?;
        let model = cluster.model().await?;
        Ok(Self { who, cluster, model })
    }

    fn usage(&self) -> Usage {
        let cluster = &self.cluster;
        let nodes = cluster.prefill.iter().chain(&cluster.decode);
        nodes.chain([&cluster.gateway, &cluster.conductor]).map(|p: &Process| Usage::of(p.pid())).sum()
    }

    async fn handed(&self) -> Result<Handed, ServeError> {
        let mut all = Handed { payload_bytes: 0, token_bytes: 0, hand_offs: 0, micros: 0 };
        for node in &self.cluster.decode {
            let status = self.cluster.status(node).await.map_err(ServeError::Counters)?;
            let number = |path: &str| {
                let value = status.pointer(path).and_then(serde_json::Value::as_u64);
                value.ok_or_else(|| ServeError::Counters(format!("{path} is missing in {}'s /status", node.name)))
            };
            all.token_bytes = number("/kv/token_bytes")?;
            all.payload_bytes += number("/kv/payload_bytes")?;
            all.hand_offs += number("/kv/last_layer_to_visible_us/count")?;
            all.micros += number("/kv/last_layer_to_visible_us/sum")?;
        }
        Ok(all)
    }

    /// Asks with that many streams at once.
    async fn ask_all(&self, asks: &[Ask], streams: usize) -> Result<Vec<Answer>, ServeError> {
        let client = self.cluster.client();
        let one = async |stream: &[Ask]| {
            let mut answers = Vec::with_capacity(stream.len());
            for question in stream {
                answers.push(ask(&client, &self.model, question).await?);
            }
            Ok(answers)
        };
        let answers = futures::future::try_join_all(asks.chunks(asks.len() / streams).map(one)).await;
        answers.map(|all| all.concat()).map_err(|source| ServeError::Endpoint {
            who: self.who,
            source,
            logs: self.cluster.logs(),
        })
    }

    async fn serve(&self, asks: &[Ask], streams: usize) -> Result<Served, ServeError> {
        let (before, own) = (self.usage(), Usage::own());
        let started = Instant::now();
        let answers = self.ask_all(asks, streams).await?;
        let seconds = started.elapsed().as_secs_f64();
        let used = self.usage() - before + (Usage::own() - own);
        let tokens = answers.iter().map(|a| a.tokens.len()).sum::<usize>() as f64;
        Ok(Served {
            ttft: median(answers.iter().map(|a| a.ttft.as_secs_f64())),
            tokens_per_s: tokens / seconds,
            cpu_s_per_token: used.cpu.as_secs_f64() / tokens,
            waiting: used.delay.as_secs_f64() / seconds,
        })
    }
}

/// Runs the bench on `binary`, a `kvrail`. `far` starts the receiving process of the transfer that is done at once.
///
/// # Errors
/// [`ServeError`]; a missed ceiling is none, [`Report::missed`] tells it.
pub fn run(options: &Options, binary: &Path, far: &FarSide) -> Result<Report, ServeError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let transport = options.transport.to_string();
    let plan = |prefill| {
        let mut plan = Plan::new(&PathBuf::from(binary), &options.model, prefill, 1, &transport);
        // Every prompt is moved, however short.
        plan.conductor_args = vec!["--local-prefill-tokens".into(), "0".into()];
        plan
    };
    let separate = runtime.block_on(Side::start("1 prefill, 1 decode", &plan(1)))?;
    let colocated = runtime.block_on(Side::start("colocated", &plan(0)))?;
    let sides = [separate, colocated];

    let mut report = Report::new(Machine::here(), &options.model, options.transport);
    for &streams in options.streams.iter().filter(|streams| **streams > 0) {
        report.streams.push(compare(options, streams, &runtime, &sides)?);
    }
    for &words in options.wire_words.iter().filter(|words| **words > 0) {
        report.wire.push(hidden(options, words, &runtime, &sides[SEPARATE], far)?);
    }
    for side in sides {
        let bad = side.cluster.drain();
        if !bad.is_empty() {
            return Err(ServeError::Counters(format!("{} did not drain cleanly: {}", side.who, bad.join("; "))));
        }
    }
    progress("");
    report.judge(&options.expect);
    Ok(report)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Prompts that so many streams ask in a turn.
fn prompts_a_turn(streams: usize) -> usize {
    PROMPTS_A_TURN.div_ceil(streams) * streams
}

/// Questions that were never asked before: the turn of `streams` streams in a round.
fn questions(options: &Options, streams: usize, round: usize, words: usize) -> Vec<Ask> {
    let question = |prompt: usize| {
        let number = (streams << 32 | round << 8 | prompt) as u64;
        let mut rng = SmallRng::seed_from_u64(options.seed << 48 ^ number);
        let mut ask = Ask::plain(format!("{number} {}", text(&mut rng, words)), options.tokens);
        ask.ignore_eos = true;
        ask
    };
    (0..prompts_a_turn(streams)).map(question).collect()
}

fn compare(options: &Options, streams: usize, runtime: &Runtime, sides: &[Side; 2]) -> Result<Streams, ServeError> {
    // Round 0 of the questions warms both up.
    let warm_up = questions(options, streams, 0, options.words);
    for side in sides {
        runtime.block_on(side.ask_all(&warm_up, streams))?;
    }
    let rounds = interleave(2, options.rounds, |contender, round| {
        progress(&format!("{streams} streams, round {}: {}", round + 1, sides[contender].who));
        let asks = questions(options, streams, round + 1, options.words);
        runtime.block_on(turn(&sides[contender], contender, &asks, streams))
    })?;
    Streams::new(streams, options, &rounds).ok_or_else(|| ServeError::Counters("no round was calm".into()))
}

async fn turn(side: &Side, contender: usize, asks: &[Ask], streams: usize) -> Result<Served, ServeError> {
    if contender == COLOCATED {
        return side.serve(asks, streams).await;
    }
    let before = side.handed().await?;
    let served = side.serve(asks, streams).await?;
    let after = side.handed().await?;
    if after.hand_offs - before.hand_offs != asks.len() as u64 || after.payload_bytes == before.payload_bytes {
        let what = format!("{} hand-offs for {} prompts", after.hand_offs - before.hand_offs, asks.len());
        return Err(ServeError::Counters(format!("a prompt's KV was not moved: {what}")));
    }
    Ok(served)
}

/// Some milliseconds say little about who waited: a turn is several transfers, and their median counts.
fn all_at_once(at_once: &mut AtOnce, round: u64) -> Result<Moved, ServeError> {
    let first = 1 + round * AT_ONCE_TRANSFERS;
    let measures: Result<Vec<_>, _> =
        (first..first + AT_ONCE_TRANSFERS).map(|number| at_once.measure(number)).collect();
    let measures = measures?;
    let delay: f64 = measures.iter().map(|m| m.delay_seconds).sum();
    let all: f64 = measures.iter().map(|m| m.seconds).sum();
    Ok(Moved { seconds: median(measures.iter().map(|m| m.seconds)), waiting: delay / all })
}

/// Hands over one prompt after the other, and takes the median of the times from the last layer to visible.
async fn hand_offs(options: &Options, words: usize, side: &Side, round: usize) -> Result<(Moved, u64), ServeError> {
    let (mut tails, mut waiting, mut bytes) = (Vec::new(), Vec::new(), 0);
    for ask in questions(options, HAND_OFFS, (1 << 16) + round, words).chunks(1) {
        let before = side.handed().await?;
        waiting.push(side.serve(ask, 1).await?.waiting);
        let after = side.handed().await?;
        if after.hand_offs != before.hand_offs + 1 {
            return Err(ServeError::Counters("the prompt's KV was not moved".into()));
        }
        tails.push((after.micros - before.micros) as f64 / 1e6);
        bytes = after.payload_bytes - before.payload_bytes;
    }
    Ok((Moved { seconds: median(tails.into_iter()), waiting: median(waiting.into_iter()) }, bytes))
}

/// Times the end of hand-offs, one prompt at a time, beside moving as many bytes at once.
fn hidden(
    options: &Options,
    words: usize,
    runtime: &Runtime,
    side: &Side,
    far: &FarSide,
) -> Result<WireHidden, ServeError> {
    // The first turn tells how many bytes such a prompt has.
    let (_, bytes) = runtime.block_on(hand_offs(options, words, side, 0))?;
    let token_bytes = runtime.block_on(side.handed())?.token_bytes;
    let block_bytes = usize::try_from(token_bytes * 16).unwrap_or(usize::MAX);
    let blocks = (bytes as usize).div_ceil(block_bytes).max(1);
    let mut at_once = AtOnce::start(options.transport, blocks, block_bytes, far)?;
    let rounds: Rounds<Moved> = interleave(2, options.rounds, |contender, round| {
        progress(&format!("hand-off of {words} words, round {}", round + 1));
        if contender == 1 {
            return all_at_once(&mut at_once, round as u64);
        }
        Ok::<_, ServeError>(runtime.block_on(hand_offs(options, words, side, round + 1))?.0)
    })?;
    let missing = || ServeError::Counters("no round was calm".into());
    let seconds = |contender| rounds.median(contender, |m| m.seconds).ok_or_else(missing);
    Ok(WireHidden {
        bytes,
        last_layer_to_visible_s: seconds(0)?,
        at_once_s: seconds(1)?,
        ratio: rounds.ratio(0, 1, |m| m.seconds).ok_or_else(missing)?,
        kept: rounds.kept.len(),
        discarded: rounds.discarded,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use clap::Parser;

    use super::*;

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn no_question_is_asked_twice_and_the_contenders_get_the_same() {
        let options = Command::parse_from(["bench"]).options;
        let mut all = HashSet::new();
        for streams in [1, 4, 16] {
            for round in 0..20 {
                let asks = questions(&options, streams, round, 20);
                assert_eq!(asks.len(), prompts_a_turn(streams));
                let again = questions(&options, streams, round, 20);
                assert!(asks.iter().zip(&again).all(|(a, b)| a.prompt == b.prompt));
                assert!(asks.into_iter().all(|a| all.insert(a.prompt[..12].to_owned())), "a shared beginning");
            }
        }
    }
}
