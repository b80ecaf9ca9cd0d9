//! One fault over one transport, round after round on the same cluster.

use std::collections::HashSet;
use std::fmt;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde_json::Value;

use super::footprint::{Baseline, sockets_end, unix_sockets};
use super::load::{DEADLINE, Ended, Stream};
use super::settled::{nodes_settled, settled};
use super::strike::{FROZEN, Fault, Noticed, moment, strike};
use super::{Reference, Setting};
use crate::answer::{Answer, Ask, Collector, ask};
use crate::client::ClientError;
use crate::cluster::{Cluster, Plan, Signal};
use crate::prompts::{Shape, prompts};

/// The mock executor, slow enough that a fault hits a request half-way: a prompt takes some 200 ms, an answer some 300.
const MODEL: &str = "mock:prefill_us=400,step_us=8000";
/// Requests in flight when the fault comes.
const LOAD: usize = 12;
/// Requests that begin while the victim is away.
const LATE: usize = 4;
/// How often a round is begun again because the blow met nobody at work.
const TRIES_MAX: usize = 5;
/// Most batches of questions until every prefill node has spoken with every decode node.
const WARM_UPS_MAX: u64 = 50;
/// By when the socket of a killed process has broken, and nobody is let in any more.
const BREAKS_WITHIN: Duration = Duration::from_secs(2);
/// Logprobs of two runs of the same arithmetic.
const TOLERANCE: f64 = 1e-4;

/// Figures of a drill.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    rounds: usize,
    strikes: usize,
    right: usize,
    broken: usize,
    slowest: Duration,
    took: Duration,
    /// Descriptors of each kind of process, at most.
    files: String,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} rounds in mid-work ({} strikes), {} answers right, {} broken as they may and right so far, \
             slowest {:.1} s, files at most {}; {:.0} s in all",
            self.rounds,
            self.strikes,
            self.right,
            self.broken,
            self.slowest.as_secs_f64(),
            self.files,
            self.took.as_secs_f64()
        )
    }
}

pub(super) struct Drill<'a> {
    setting: &'a Setting,
    reference: &'a Reference,
    fault: Fault,
    transport: &'a str,
    rng: SmallRng,
    pub(super) tally: Tally,
}

/// The questions of a round, and the right answers.
struct Questions {
    asks: Vec<Ask>,
    expected: Vec<Answer>,
}

impl<'a> Drill<'a> {
    pub(super) fn new(setting: &'a Setting, reference: &'a Reference, fault: Fault, transport: &'a str) -> Self {
        // No two drills ask the same: what is cached is not computed, and cannot be struck.
        let salt = (fault as u64) << 1 | u64::from(transport == "shm");
        let rng = SmallRng::seed_from_u64(setting.seed ^ salt << 32);
        Self { setting, reference, fault, transport, rng, tally: Tally::default() }
    }

    /// Strikes `rounds` times.
    ///
    /// # Errors
    /// The first thing that did not hold.
    pub(super) async fn run(&mut self, rounds: usize) -> Result<(), String> {
        let started = Instant::now();
        let mut plan = Plan::new(&self.setting.binary, MODEL, 2, 2, self.transport);
        plan.gateway_args = vec!["--request-timeout".into(), format!("{}s", DEADLINE.as_secs())];
        let mut cluster = Cluster::start(&plan).await.map_err(|e| e.to_string())?;
        let result = self.rounds(&mut cluster, rounds).await;
        self.tally.took = started.elapsed();
        result.map_err(|e| format!("round {}: {e}\n{}", self.tally.rounds, cluster.logs()))
    }

    async fn rounds(&mut self, cluster: &mut Cluster, rounds: usize) -> Result<(), String> {
        let model = cluster.model().await.map_err(|e| e.to_string())?;
        self.everybody_meets(cluster, &model).await?;
        settled(cluster).await?;
        let baseline = Baseline::of(cluster).await;
        self.tally.files = baseline.to_string();
        while self.tally.rounds < rounds {
            let mut tries = 1..=TRIES_MAX;
            loop {
                tries.next().ok_or_else(|| format!("{TRIES_MAX} blows met nobody at work"))?;
                self.tally.strikes += 1;
                if self.round(cluster, &model, &baseline).await? {
                    break;
                }
            }
            self.tally.rounds += 1;
        }
        // A newcomer that has not met everybody has connections to spare, behind which a leak could hide.
        self.everybody_meets(cluster, &model).await?;
        settled(cluster).await?;
        baseline.holds(cluster).await.map_err(|e| format!("after all rounds: {e}"))?;
        if cluster.panicked() { Err("a process panicked".into()) } else { Ok(()) }
    }

    async fn questions(&mut self, count: usize) -> Result<Questions, String> {
        let shape = Shape { count, words: (20, 120), long: 2, max_tokens: 40 };
        let mut asks = prompts(&shape, self.rng.random());
        for ask in &mut asks {
            ask.max_tokens = shape.max_tokens;
            ask.ignore_eos = true;
        }
        let expected = self.reference.answers(&asks).await?;
        Ok(Questions { asks, expected })
    }

    /// Asks until every prefill node has a session with every decode node, so that all connections are there.
    async fn everybody_meets(&mut self, cluster: &Cluster, model: &str) -> Result<(), String> {
        for _ in 0..WARM_UPS_MAX {
            let questions = self.questions(LOAD).await?;
            let client = cluster.client();
            let answers = futures::future::join_all(questions.asks.iter().map(|a| ask(&client, model, a))).await;
            for (answer, expected) in answers.into_iter().zip(&questions.expected) {
                answer.map_err(|e| format!("warm-up: {e}"))?.same_as(expected, TOLERANCE)?;
            }
            let mut met = true;
            for (nodes, others) in [(&cluster.prefill, &cluster.decode), (&cluster.decode, &cluster.prefill)] {
                for node in nodes {
                    let status = cluster.status(node).await?;
                    met &= status.pointer("/sessions/open").and_then(Value::as_u64) == Some(others.len() as u64);
                }
            }
            if met {
                return Ok(());
            }
        }
        Err("some nodes never met".into())
    }

    /// One blow, and all that must hold after it. False: it met nobody at work.
    async fn round(&mut self, cluster: &mut Cluster, model: &str, baseline: &Baseline) -> Result<bool, String> {
        let fault = self.fault;
        let questions = self.questions(LOAD + LATE + 1).await?;
        let client = cluster.client();
        let open = |index: usize| Stream::open(&client, model, index, &questions.asks[index]);
        let victim = self.rng.random_range(0..2);
        let noticed = Noticed::now(cluster, fault).await?;

        let mut streams: Vec<Stream> = (0..LOAD).map(open).collect();
        let mut hit = moment(cluster, fault, victim, &streams, &mut self.rng).await?;
        let struck = Instant::now();
        let came: Vec<usize> = streams.iter().map(Stream::tokens).collect();
        let mut sockets = HashSet::new();
        let mut leavers = 1;
        if let Some(process) = fault.victim(cluster, victim) {
            sockets = unix_sockets(process.pid());
            strike(fault, process);
        } else {
            let gone = leave(&mut streams);
            leavers = gone.len();
            for (index, collected) in gone {
                self.broken(&questions, index, &collected)?;
            }
        }
        match fault {
            Fault::KillGateway => gateway_is_away(&client, model, &questions.asks[LOAD]).await?,
            // New requests are what shows that the conductor is missed.
            Fault::KillConductor => {
                streams.extend((LOAD..LOAD + LATE).map(open));
                hit &= noticed.rises(cluster, fault, LATE).await? >= LATE;
            }
            _ => {
                let risen = noticed.rises(cluster, fault, leavers).await?;
                if fault == Fault::Disconnect && hit && risen != leavers {
                    return Err(format!("{leavers} clients left, the gateway counts {risen}"));
                }
                hit &= risen > 0;
                streams.extend((LOAD..LOAD + LATE).map(open));
            }
        }

        let mut interrupted = 0;
        for stream in streams {
            let ended = stream.end().await?;
            let before = came.get(ended.index).copied().unwrap_or(0);
            if fault == Fault::KillConductor && ended.index < LOAD && ended.collected.tokens.len() > before {
                interrupted += 1;
            }
            interrupted += usize::from(self.judge(&questions, ended, struck)?);
        }
        if matches!(fault, Fault::KillConductor | Fault::KillGateway) {
            hit &= interrupted > 0;
        }

        if fault == Fault::FreezePrefill {
            tokio::time::sleep_until((struck + FROZEN).into()).await;
            cluster.prefill[victim].signal(Signal::Continue);
        }
        if fault == Fault::KillGateway {
            // Its broken sockets alone tell the nodes.
            nodes_settled(cluster).await?;
        }
        if let Some(role) = fault.kills() {
            cluster.restart(role, victim).map_err(|e| e.to_string())?;
            sockets_end(&sockets).await?;
        }
        cluster.all_joined().await.map_err(|e| e.to_string())?;
        // Survivors and the newcomer serve, and hold nothing afterwards.
        let (last, expected) = (&questions.asks[LOAD + LATE], &questions.expected[LOAD + LATE]);
        let again = ask(&cluster.client(), model, last).await.map_err(|e| format!("afterwards: {e}"))?;
        again.same_as(expected, TOLERANCE).map_err(|e| format!("afterwards: {e}"))?;
        settled(cluster).await?;
        baseline.holds(cluster).await?;
        Ok(hit)
    }

    /// Holds the end of a request against what is promised; true where it broke in mid-answer, as it may.
    fn judge(&mut self, questions: &Questions, ended: Ended, struck: Instant) -> Result<bool, String> {
        let Ended { index, outcome, collected, at, took } = ended;
        self.tally.slowest = self.tally.slowest.max(took);
        match outcome {
            None => Err(format!("request {index} did not end by its deadline ({DEADLINE:?})")),
            Some(Ok(answer)) => {
                let right = answer.same_as(&questions.expected[index], TOLERANCE);
                right.map_err(|e| format!("request {index}: {e}"))?;
                self.tally.right += 1;
                Ok(false)
            }
            Some(Err(ClientError::Connection { .. } | ClientError::Truncated)) if self.fault == Fault::KillGateway => {
                if at > struck + BREAKS_WITHIN {
                    return Err(format!("request {index} broke only {:?} after its gateway", at - struck));
                }
                self.broken(questions, index, &collected)?;
                Ok(!collected.tokens.is_empty())
            }
            Some(Err(e)) => Err(format!("request {index} failed: {e}")),
        }
    }

    /// What came before a stream broke is how its answer begins.
    fn broken(&mut self, questions: &Questions, index: usize, collected: &Collector) -> Result<(), String> {
        let begins = collected.begins(&questions.expected[index], TOLERANCE);
        begins.map_err(|e| format!("request {index}, before it broke: {e}"))?;
        self.tally.broken += 1;
        Ok(())
    }
}

/// Half of the clients that wait or are in mid-answer hang up, one of each kind at least; the others stay.
fn leave(streams: &mut Vec<Stream>) -> Vec<(usize, Collector)> {
    let mut gone = Vec::new();
    let mut nth = [0, 0];
    for stream in std::mem::take(streams) {
        let kind = match (stream.is_waiting(), stream.is_answering()) {
            (true, _) => 0,
            (_, true) => 1,
            _ => {
                streams.push(stream);
                continue;
            }
        };
        nth[kind] += 1;
        if nth[kind] % 2 == 1 { gone.push(stream.disconnect()) } else { streams.push(stream) }
    }
    gone
}

/// With the gateway dead, a new client hears so at once.
async fn gateway_is_away(client: &crate::client::Client, model: &str, question: &Ask) -> Result<(), String> {
    match tokio::time::timeout(BREAKS_WITHIN, ask(client, model, question)).await {
        Ok(Err(ClientError::Connection { .. })) => Ok(()),
        other => Err(format!("a dead gateway answers {other:?}")),
    }
}
