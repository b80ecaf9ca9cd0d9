//! KV really moves: a wrong byte changes the answer, the checksum catches every one, and the counters tell the truth.
//!
//! What lands at the decode node is damaged before it looks at the checksum, by the transfer engine's own fault plan: one
//! bit of every slice for the mock executor, whose answers hang on every byte; the exponent of one number of every slice
//! for the real model. What single numbers do to the logits is shown in the executors' tests (`engine/tests`).

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

/// What a cluster said, and the `/status` of its decode nodes afterwards.
struct Said {
    answers: Vec<Result<Answer, String>>,
    statuses: Vec<Value>,
}

impl Said {
    async fn by(plan: &Plan, asks: &[Ask]) -> Result<Self, String> {
        let cluster = Cluster::start(plan).await.map_err(|e| e.to_string())?;
        let model = cluster.model().await.map_err(|e| e.to_string())?;
        let mut answers = Vec::new();
        for question in asks {
            answers.push(ask(&cluster.client(), &model, question).await.map_err(|e| e.to_string()));
        }
        let mut statuses = Vec::new();
        for node in &cluster.decode {
            statuses.push(cluster.status(node).await?);
        }
        Ok(Self { answers, statuses })
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
        let alone = Said::by(&Plan::new(&setting.binary, &self.model, 0, 1, "tcp"), &asks).await?;
        let expected = alone.answers.into_iter().collect::<Result<Vec<_>, _>>()?;
        for transport in ["tcp", "shm"] {
            let mut plan = Plan::new(&setting.binary, &self.model, 1, 1, transport);
            // No prompt is too short to be computed by the prefill node.
            plan.conductor_args = ["--local-prefill-tokens", "0"].map(str::to_owned).to_vec();
            self.undamaged(findings, &plan, &asks, &expected).await?;
            plan.decode_args = ["--transfer-fault", self.damage].map(str::to_owned).to_vec();
            for checksum in [false, true] {
                plan.node_args = vec![format!("--transfer-checksum={checksum}")];
                self.damaged(findings, &plan, checksum, &asks, &expected).await?;
            }
            // So little that what is sent again arrives: a receiver that damages all is given up, and nothing is moved.
            let little = self.damage.replacen("flip=1", "flip=5", 1);
            plan.decode_args = vec!["--transfer-fault".into(), little];
            self.repaired(findings, &plan, &asks, &expected).await?;
        }
        Ok(())
    }

    /// Without damage every answer is the same, or a difference would prove nothing; and `/status` shows a payload of
    /// tokens that were moved × bytes a token.
    async fn undamaged(
        &self,
        findings: &mut Findings,
        plan: &Plan,
        asks: &[Ask],
        expected: &[Answer],
    ) -> Result<(), String> {
        let said = Said::by(plan, asks).await?;
        let label = format!("{} over {}, nothing damaged", self.name, plan.transport);
        let (same, ..) = said.against(expected);
        findings.figure(&label, format!("{same} of {} answers the same", asks.len()));
        findings.check(same == asks.len(), format!("{label}: an answer is not what one process alone says"));

        self.counters(findings, &said, &label)
    }

    /// Where a slice in five is damaged and the checksum is on, all is moved, and what was sent again counts apart.
    async fn repaired(
        &self,
        findings: &mut Findings,
        plan: &Plan,
        asks: &[Ask],
        expected: &[Answer],
    ) -> Result<(), String> {
        let said = Said::by(plan, asks).await?;
        let label = format!("{} over {}, a slice in five damaged, checksum on", self.name, plan.transport);
        let (same, ..) = said.against(expected);
        findings.figure(&label, format!("{same} of {} answers the same, {} caught", asks.len(), said.caught()));
        findings.check(same == asks.len(), format!("{label}: damage reached an answer"));
        findings.check(said.caught() > 0, format!("{label}: nothing was caught, so nothing was damaged"));
        self.counters(findings, &said, &label)
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
        let retried = number("retried_bytes")?;
        let expected = said.caught() > 0;
        findings.check((retried > 0) == expected, format!("{label}: {retried} bytes are told as sent again"));
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
        let said = Said::by(plan, asks).await?;
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
