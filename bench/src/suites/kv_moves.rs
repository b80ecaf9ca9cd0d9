//! KV really moves: a wrong byte changes the answer, the checksum catches every one, and the counters tell the truth.
//!
//! What lands at the decode node is damaged before it looks at the checksum, by the transfer engine's own fault plan: one
//! bit of every slice for the mock executor, whose answers hang on every byte; the exponent of one number of every slice
//! for the real model. What single numbers do to the logits is shown in the executors' tests (`engine/tests`).

use futures::StreamExt;
use serde_json::Value;

use super::{Findings, Setting, Tier};
use crate::answer::{Answer, Ask, ask};
use crate::cluster::{Cluster, Plan};
use crate::prompts::{Shape, prompts};

/// Largest difference of two logprobs that are called equal.
const LOGPROB_TOLERANCE: f64 = 1e-4;

/// What answers, and how what it receives is damaged.
struct Case {
    name: &'static str,
    model: String,
    /// A fault plan of the decode node.
    damage: &'static str,
    what: &'static str,
    /// Prompts.
    count: usize,
}

/// Requests in flight at a time where they are to crowd the transfer engine.
const CROWD: usize = 8;
/// Tokens of a block, by default.
const BLOCK_TOKENS: u64 = 16;

/// Runs the suite on the mock executor and, where it is here, on the real model.
pub async fn run(setting: &Setting) -> Findings {
    let mut findings = Findings::default();
    let quick = setting.tier == Tier::Quick;
    let mut cases = vec![Case {
        name: "mock",
        model: "mock".into(),
        damage: "flip=1",
        what: "one bit of every slice flipped",
        count: if quick { 16 } else { 100 },
    }];
    match &setting.model {
        Some(model) => cases.push(Case {
            name: "real",
            model: model.display().to_string(),
            // The exponent of a half-precision number is 0x7C00.
            damage: "flip=1,mask=31744",
            what: "one exponent of every slice inverted",
            count: if quick { 3 } else { 30 },
        }),
        None if quick => findings.figure("real model", "not on this machine: `kvrail model pull` fetches it"),
        None => findings.failure("the real model is not on this machine: `kvrail model pull` fetches it"),
    }
    for case in cases {
        if let Err(e) = case.run(&mut findings, setting).await {
            findings.failure(format!("{}: {e}", case.name));
        }
    }
    findings
}

/// No shared prefix: every prompt's blocks are moved, and each answer hangs on them.
fn asks(count: usize, seed: u64) -> Vec<Ask> {
    let shape = Shape { count, words: (16, 60), long: 2, max_tokens: 12 };
    let mut asks = prompts(&shape, seed);
    for (i, ask) in asks.iter_mut().enumerate() {
        ask.prompt = format!("{i} {}", ask.prompt);
        ask.max_tokens = 12;
        ask.ignore_eos = true;
    }
    asks
}

/// What a cluster said, and what its nodes had counted afterwards.
struct Said {
    answers: Vec<Result<Answer, String>>,
    /// `/status` of the decode nodes.
    statuses: Vec<Value>,
    /// How often a prefill node found its transfer engine full.
    waits: u64,
}

impl Said {
    async fn by(plan: &Plan, asks: &[Ask], at_once: usize) -> Result<Self, String> {
        let cluster = Cluster::start(plan).await.map_err(|e| e.to_string())?;
        let model = cluster.model().await.map_err(|e| e.to_string())?;
        let client = cluster.client();
        let (client, model) = (&client, &model);
        let one = |question: Ask| async move { ask(client, model, &question).await.map_err(|e| e.to_string()) };
        let answers = futures::stream::iter(asks.to_vec()).map(one).buffered(at_once).collect().await;
        let mut statuses = Vec::new();
        for node in &cluster.decode {
            statuses.push(cluster.status(node).await?);
        }
        let mut waits = 0;
        for node in &cluster.prefill {
            waits += cluster.status(node).await?["kv"]["waits"].as_u64().unwrap_or_default();
        }
        Ok(Self { answers, statuses, waits })
    }

    /// How many answers are as expected, others, and none.
    fn against(&self, expected: &[Answer]) -> (usize, usize, usize) {
        let (mut same, mut other, mut none) = (0, 0, 0);
        for (answer, expected) in self.answers.iter().zip(expected) {
            match answer {
                Ok(answer) if answer.same_as(expected, LOGPROB_TOLERANCE).is_ok() => same += 1,
                Ok(_) => other += 1,
                Err(_) => none += 1,
            }
        }
        (same, other, none)
    }

    fn caught(&self) -> u64 {
        self.statuses.iter().filter_map(|s| s["kv"]["checksum_failures"].as_u64()).sum()
    }
}

impl Case {
    async fn run(&self, findings: &mut Findings, setting: &Setting) -> Result<(), String> {
        let asks = asks(self.count, setting.seed);
        let alone = Said::by(&Plan::new(&setting.binary, &self.model, 0, 1, "tcp"), &asks, 1).await?;
        let expected = alone.answers.into_iter().collect::<Result<Vec<_>, _>>()?;
        for transport in ["tcp", "shm"] {
            let mut plan = Plan::new(&setting.binary, &self.model, 1, 1, transport);
            // No prompt is too short to be computed by the prefill node.
            plan.conductor_args = ["--local-prefill-tokens", "0"].map(str::to_owned).to_vec();
            // Without damage every answer is the same, or a difference would prove nothing.
            let label = format!("{} over {transport}, nothing damaged", self.name);
            let said = self.moved(findings, &plan, &label, &asks, &expected).await?;
            findings.check(said.caught() == 0, format!("{label}: slices were refused"));
            self.crowded(findings, &plan, &asks, &expected).await?;

            plan.decode_args = ["--transfer-fault", self.damage].map(str::to_owned).to_vec();
            for checksum in [false, true] {
                plan.node_args = vec![format!("--transfer-checksum={checksum}")];
                self.damaged(findings, &plan, checksum, &asks, &expected).await?;
            }
            // So little that what is sent again arrives: a receiver that damages all is given up, and nothing is moved.
            let little = self.damage.replacen("flip=1", "flip=5", 1);
            plan.decode_args = vec!["--transfer-fault".into(), little];
            let label = format!("{} over {transport}, a slice in five damaged, checksum on", self.name);
            let said = self.moved(findings, &plan, &label, &asks, &expected).await?;
            findings.check(said.caught() > 0, format!("{label}: nothing was caught, so nothing was damaged"));
        }
        Ok(())
    }

    /// All KV arrives: every answer is the same, and the counters say what was moved.
    async fn moved(
        &self,
        findings: &mut Findings,
        plan: &Plan,
        label: &str,
        asks: &[Ask],
        expected: &[Answer],
    ) -> Result<Said, String> {
        let said = Said::by(plan, asks, 1).await?;
        let (same, other, none) = said.against(expected);
        let counts = format!("{same} of {} answers the same, {other} others, {none} broken off", asks.len());
        findings.figure(label, format!("{counts}, {} slices caught", said.caught()));
        findings.check(same == asks.len(), format!("{label}: an answer is not what one process alone says"));
        self.counters(findings, &said, label)?;
        Ok(said)
    }

    /// What finds no room in a full transfer engine goes last of all: it must be there before it is told to be.
    async fn crowded(
        &self,
        findings: &mut Findings,
        plan: &Plan,
        asks: &[Ask],
        expected: &[Answer],
    ) -> Result<(), String> {
        let prefill_args = ["--transfers-max", "1"].map(str::to_owned).to_vec();
        let said = Said::by(&Plan { prefill_args, ..plan.clone() }, asks, CROWD).await?;
        let label = format!("{} over {}, one transfer at a time, {CROWD} requests", self.name, plan.transport);
        let (same, other, none) = said.against(expected);
        let counts = format!("{same} of {} answers the same, {other} others, {none} broken off", asks.len());
        findings.figure(&label, format!("{counts}, {} waits for room", said.waits));
        findings.check(same == asks.len(), format!("{label}: an answer is not what one process alone says"));
        // A real model computes longer than a layer moves, and may find room each time.
        let full = said.waits > 0 || self.name == "real";
        findings.check(full, format!("{label}: the transfer engine was never full"));
        Ok(())
    }

    /// `/status` shows a payload of tokens that were moved × bytes a token, and the blocks that they fill.
    fn counters(&self, findings: &mut Findings, said: &Said, label: &str) -> Result<(), String> {
        let usage = |answer: &Answer, pointer: &str| answer.usage.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
        let (mut prompt, mut held, mut blocks) = (0, 0, 0);
        for answer in said.answers.iter().flatten() {
            let tokens = usage(answer, "/prompt_tokens");
            let cached = usage(answer, "/prompt_tokens_details/cached_tokens");
            (prompt, held) = (prompt + tokens, held + cached);
            blocks += tokens.div_ceil(BLOCK_TOKENS) - cached / BLOCK_TOKENS;
        }
        let number = |name: &str| {
            said.statuses[0]["kv"][name].as_u64().ok_or_else(|| format!("`kv.{name}` is missing in /status"))
        };
        let (token_bytes, payload, moved) = (number("token_bytes")?, number("payload_bytes")?, number("blocks")?);
        findings.figure(
            format!("{label}: payload"),
            format!(
                "{payload} bytes in {moved} blocks for {prompt} prompt tokens ({held} cached) of {token_bytes} bytes; {} bytes again",
                number("retried_bytes")?
            ),
        );
        findings.check(
            payload == (prompt - held) * token_bytes,
            format!("{label}: payload is {payload}, not {} × {token_bytes}", prompt - held),
        );
        findings.check(moved == blocks, format!("{label}: {moved} blocks, not {blocks}"));
        // A path that stalls on a busy machine is left for another: something may be sent again without damage as well.
        let retried = number("retried_bytes")?;
        findings.check(retried > 0 || said.caught() == 0, format!("{label}: no bytes are told as sent again"));
        Ok(())
    }

    /// Damage changes every answer; with the checksum it is caught and changes none.
    async fn damaged(
        &self,
        findings: &mut Findings,
        plan: &Plan,
        checksum: bool,
        asks: &[Ask],
        expected: &[Answer],
    ) -> Result<(), String> {
        let said = Said::by(plan, asks, 1).await?;
        let option = if checksum { "on" } else { "off" };
        let label = format!("{} over {}, {}, checksum {option}", self.name, plan.transport, self.what);
        let (same, other, none) = said.against(expected);
        let counts = format!("{same} of {} answers the same, {other} others, {none} broken off", asks.len());
        findings.figure(&label, counts);
        if checksum {
            let caught = said.caught();
            findings.figure(format!("{label}: caught at the receiver"), caught);
            findings.check(caught > 0, format!("{label}: nothing was caught, so nothing was damaged"));
            findings.check(same == asks.len(), format!("{label}: damage reached an answer"));
        } else {
            findings.check(same == 0, format!("{label}: an answer does not hang on its transferred KV"));
            findings.check(none == 0, format!("{label}: {none} requests failed, which says nothing of their KV"));
        }
        Ok(())
    }
}
