//! Faults under load: whatever dies on the way, no stream that lives gets a wrong, lost or repeated token, every request
//! ends, nothing leaks, and the survivors go on serving.

use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde_json::Value;

use super::{Findings, Setting, Tier};
use crate::answer::{Answer, Ask, ask};
use crate::client::ClientError;
use crate::cluster::{Cluster, Plan, Process, Role, Signal, eventually};
use crate::prompts::{Shape, prompts};

/// The mock executor, slow enough that a fault hits a request half-way: a prompt takes some 200 ms, an answer some 300.
const MODEL: &str = "mock:prefill_us=400,step_us=8000";
/// Requests in flight when the fault comes.
const LOAD: usize = 12;
/// By when every request must have ended, one way or the other.
const DEADLINE: Duration = Duration::from_secs(45);
/// By when every counter must be back at zero.
const SETTLE: Duration = Duration::from_secs(15);
/// How long a frozen process stays frozen.
const FROZEN: Duration = Duration::from_secs(10);

/// What is done to the cluster while it serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    KillPrefill,
    KillDecode,
    FreezePrefill,
    KillConductor,
    KillGateway,
    Disconnect,
}

impl Fault {
    const ALL: [Self; 6] = [
        Self::KillPrefill,
        Self::KillDecode,
        Self::FreezePrefill,
        Self::KillConductor,
        Self::KillGateway,
        Self::Disconnect,
    ];

    /// Whether every request must still be answered, whole and right.
    fn all_survive(self) -> bool {
        !matches!(self, Self::KillGateway | Self::Disconnect)
    }
}

/// Runs every fault over tcp and over shm.
pub async fn run(setting: &Setting) -> Findings {
    let mut findings = Findings::default();
    let rounds = if setting.tier == Tier::Quick { 2 } else { 20 };
    let shape = Shape { count: 48, words: (20, 120), long: 4, max_tokens: 40 };
    let mut asks = prompts(&shape, setting.seed);
    for ask in &mut asks {
        ask.max_tokens = 40;
        ask.ignore_eos = true;
    }
    let expected = match colocated(setting, &asks).await {
        Ok(expected) => expected,
        Err(e) => {
            findings.failure(format!("colocated run: {e}"));
            return findings;
        }
    };
    for transport in ["tcp", "shm"] {
        for fault in Fault::ALL {
            let mut drill =
                Drill { setting, asks: &asks, expected: &expected, fault, transport, tally: Tally::default() };
            let started = Instant::now();
            if let Err(e) = drill.rounds(rounds).await {
                findings.failure(format!("{fault:?} over {transport}: {e}"));
            }
            let t = drill.tally;
            findings.figure(
                format!("{fault:?} over {transport}"),
                format!(
                    "{} rounds, {} answers right, {} broken as they may, slowest {:.1} s, {:.0} s in all",
                    t.rounds,
                    t.right,
                    t.broken,
                    t.slowest.as_secs_f64(),
                    started.elapsed().as_secs_f64()
                ),
            );
        }
    }
    findings
}

async fn colocated(setting: &Setting, asks: &[Ask]) -> Result<Vec<Answer>, String> {
    let plan = Plan::new(&setting.binary, MODEL, 0, 1, "tcp");
    let cluster = Cluster::start(&plan).await.map_err(|e| e.to_string())?;
    let model = cluster.model().await.map_err(|e| e.to_string())?;
    let mut answers = Vec::new();
    for batch in asks.chunks(LOAD) {
        let client = cluster.client();
        let running = batch.iter().map(|a| ask(&client, &model, a));
        for answer in futures::future::join_all(running).await {
            answers.push(answer.map_err(|e| format!("{e}\n{}", cluster.logs()))?);
        }
    }
    Ok(answers)
}

#[derive(Default)]
struct Tally {
    rounds: usize,
    right: usize,
    broken: usize,
    slowest: Duration,
}

struct Drill<'a> {
    setting: &'a Setting,
    asks: &'a [Ask],
    expected: &'a [Answer],
    fault: Fault,
    transport: &'a str,
    tally: Tally,
}

impl Drill<'_> {
    async fn rounds(&mut self, rounds: usize) -> Result<(), String> {
        let plan = Plan::new(&self.setting.binary, MODEL, 2, 2, self.transport);
        let mut cluster = Cluster::start(&plan).await.map_err(|e| e.to_string())?;
        let model = cluster.model().await.map_err(|e| e.to_string())?;
        let files = open_files(&cluster);
        for round in 0..rounds {
            let result = self.round(&mut cluster, &model, round).await;
            result.map_err(|e| format!("round {round}: {e}\n{}", cluster.logs()))?;
            self.tally.rounds += 1;
        }
        no_file_leaked(&cluster, &files)
    }

    async fn round(&mut self, cluster: &mut Cluster, model: &str, round: usize) -> Result<(), String> {
        let mut rng = SmallRng::seed_from_u64(self.setting.seed ^ ((round as u64) << 8));
        let indices: Vec<usize> = (0..LOAD).map(|_| rng.random_range(0..self.asks.len())).collect();
        let client = cluster.client().with_silence_max(DEADLINE);
        let started = Instant::now();
        let mut running = Vec::new();
        for &index in &indices {
            let (client, model, question) = (client.clone(), model.to_owned(), self.asks[index].clone());
            running.push(tokio::spawn(async move {
                let answer = tokio::time::timeout(DEADLINE, ask(&client, &model, &question)).await;
                (answer, Instant::now())
            }));
        }
        // Early in the window most requests are in prefill, late in it in decode.
        let wait = match self.fault {
            Fault::KillPrefill | Fault::FreezePrefill => rng.random_range(20..300),
            _ => rng.random_range(100..700),
        };
        tokio::time::sleep(Duration::from_millis(wait)).await;
        let victim = rng.random_range(0..2);
        if self.fault == Fault::Disconnect {
            for task in running.drain(..) {
                task.abort();
            }
        }
        let thaw = strike(cluster, self.fault, victim);
        for (task, &index) in running.into_iter().zip(&indices) {
            let (answer, ended) = task.await.map_err(|e| e.to_string())?;
            self.tally.slowest = self.tally.slowest.max(ended - started);
            let answer = answer.map_err(|_| format!("request {index} hung past {DEADLINE:?}"))?;
            self.judge(index, answer)?;
        }
        if let Some(thaw) = thaw {
            tokio::time::sleep_until((thaw).into()).await;
            cluster.prefill[victim].signal(Signal::Continue);
        }
        self.heal(cluster, victim)?;
        cluster.members_are(2, 2).await.map_err(|e| e.to_string())?;
        settled(cluster).await?;
        // Survivors and the newcomer serve.
        let index = indices[0];
        let again = ask(&cluster.client(), model, &self.asks[index]).await.map_err(|e| format!("afterwards: {e}"))?;
        again.same_as(&self.expected[index], 1e-4).map_err(|e| format!("afterwards: {e}"))
    }

    fn judge(&mut self, index: usize, answer: Result<Answer, ClientError>) -> Result<(), String> {
        match answer {
            Ok(answer) => {
                answer.same_as(&self.expected[index], 1e-4).map_err(|e| format!("request {index}: {e}"))?;
                self.tally.right += 1;
                Ok(())
            }
            Err(e) if self.fault.all_survive() => Err(format!("request {index} failed: {e}")),
            Err(_) => {
                self.tally.broken += 1;
                Ok(())
            }
        }
    }

    fn heal(&self, cluster: &mut Cluster, victim: usize) -> Result<(), String> {
        let role = match self.fault {
            Fault::KillPrefill => Role::Prefill,
            Fault::KillDecode => Role::Decode,
            Fault::KillConductor => Role::Conductor,
            Fault::KillGateway => Role::Gateway,
            Fault::FreezePrefill | Fault::Disconnect => return Ok(()),
        };
        cluster.restart(role, victim).map_err(|e| e.to_string())
    }
}

/// Does it; for a freeze, returns when to thaw.
fn strike(cluster: &Cluster, fault: Fault, victim: usize) -> Option<Instant> {
    match fault {
        Fault::KillPrefill => cluster.prefill[victim].signal(Signal::Kill),
        Fault::KillDecode => cluster.decode[victim].signal(Signal::Kill),
        Fault::KillConductor => cluster.conductor.signal(Signal::Kill),
        Fault::KillGateway => cluster.gateway.signal(Signal::Kill),
        Fault::Disconnect => {}
        Fault::FreezePrefill => {
            cluster.prefill[victim].signal(Signal::Stop);
            return Some(Instant::now() + FROZEN);
        }
    }
    None
}

/// Counters of a node's `/status` that must be zero when nothing runs.
const ZERO: [&str; 8] = [
    "/requests/running",
    "/requests/queued",
    "/blocks/shared",
    "/blocks/writing",
    "/blocks/reserved",
    "/blocks/quarantined",
    "/leases",
    "/transfers",
];

/// Waits until no node holds anything for a request any more.
///
/// # Errors
/// Names the node and the counter that stays.
pub async fn settled(cluster: &Cluster) -> Result<(), String> {
    for node in cluster.prefill.iter().chain(&cluster.decode) {
        eventually(&format!("{} holds nothing", node.name), SETTLE, || async {
            let status = cluster.status(node).await?;
            let held: Vec<String> = ZERO
                .iter()
                .filter_map(|&counter| match status.pointer(counter).and_then(Value::as_u64) {
                    Some(0) => None,
                    other => Some(format!("{counter} = {other:?}")),
                })
                .collect();
            if held.is_empty() { Ok(()) } else { Err(held.join(", ")) }
        })
        .await
        .map_err(|e| e.to_string())?;
    }
    Ok(())
}

fn count_files(process: &Process) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", process.pid())).map_or(0, Iterator::count)
}

fn open_files(cluster: &Cluster) -> Vec<(String, u32, usize)> {
    let nodes = cluster.prefill.iter().chain(&cluster.decode);
    nodes.map(|p| (p.name.clone(), p.pid(), count_files(p))).collect()
}

/// A process that lived through all rounds has no more open files than its connections to a few peers explain.
fn no_file_leaked(cluster: &Cluster, before: &[(String, u32, usize)]) -> Result<(), String> {
    const SLACK: usize = 64;
    for (now, (name, pid, files)) in cluster.prefill.iter().chain(&cluster.decode).zip(before) {
        let count = count_files(now);
        if now.pid() == *pid && count > files + SLACK {
            return Err(format!("{name} has {count} open files, {files} at the start"));
        }
    }
    Ok(())
}
