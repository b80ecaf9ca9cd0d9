//! KV really moves: a wrong byte changes the answer, the checksum catches every flip, and the counters tell the truth.
//!
//! Bits are flipped where they land, before the receiver looks at the checksum, by the transfer engine's own fault plan.
//! What a flipped bit does to the logits themselves, bit by bit, is shown in the executors' tests (`engine/tests`).

use serde_json::Value;

use super::{Findings, Setting, Tier};
use crate::answer::{Answer, Ask, ask};
use crate::cluster::{Cluster, Plan};
use crate::prompts::{Shape, prompts};

/// Runs the suite.
pub async fn run(setting: &Setting) -> Findings {
    let mut findings = Findings::default();
    let count = if setting.tier == Tier::Quick { 16 } else { 100 };
    let shape = Shape { count, words: (16, 60), long: 2, max_tokens: 12 };
    let mut asks = prompts(&shape, setting.seed);
    for (i, ask) in asks.iter_mut().enumerate() {
        // No shared prefix: every prompt's blocks are moved, and each answer hangs on them.
        ask.prompt = format!("{i} {}", ask.prompt);
        ask.max_tokens = 12;
        ask.ignore_eos = true;
    }
    if let Err(e) = mock(&mut findings, setting, &asks).await {
        findings.failure(e);
    }
    if let Err(e) = accounts(&mut findings, setting, &asks).await {
        findings.failure(e);
    }
    findings
}

/// No prompt is too short to be computed by the prefill node.
fn always_move() -> Vec<String> {
    ["--local-prefill-tokens", "0"].map(str::to_owned).to_vec()
}

async fn answers(plan: &Plan, asks: &[Ask]) -> Result<(Vec<Result<Answer, String>>, Vec<Value>), String> {
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
    Ok((answers, statuses))
}

async fn mock(findings: &mut Findings, setting: &Setting, asks: &[Ask]) -> Result<(), String> {
    let alone = Plan::new(&setting.binary, "mock", 0, 1, "tcp");
    let (expected, _) = answers(&alone, asks).await?;
    let expected = expected.into_iter().collect::<Result<Vec<_>, _>>()?;
    for transport in ["tcp", "shm"] {
        for checksum in [false, true] {
            let mut plan = Plan::new(&setting.binary, "mock", 1, 1, transport);
            // One flipped bit in every slice that is received.
            plan.decode_args = ["--transfer-fault", "flip=1"].map(str::to_owned).to_vec();
            plan.node_args = vec![format!("--transfer-checksum={checksum}")];
            plan.conductor_args = always_move();
            let (answers, statuses) = answers(&plan, asks).await?;
            let wrong = |(answer, expected): (&Result<Answer, String>, &Answer)| {
                answer.as_ref().is_ok_and(|a| a.same_as(expected, 1e-4).is_err())
            };
            let wrong = answers.iter().zip(&expected).filter(|&(a, e)| wrong((a, e))).count();
            let label = format!(
                "mock over {transport}, every slice corrupted, checksum {}",
                if checksum { "on" } else { "off" }
            );
            findings.figure(&label, format!("{wrong} of {} answers wrong", answers.len()));
            if checksum {
                findings.check(wrong == 0, format!("{label}: a corrupted block got through"));
                let caught: u64 = statuses.iter().filter_map(|s| s["kv"]["checksum_failures"].as_u64()).sum();
                findings.figure(format!("{label}: flips caught at the receivers"), caught);
                findings.check(caught > 0, format!("{label}: nothing was caught, so nothing was corrupted"));
            } else {
                findings
                    .check(wrong == answers.len(), format!("{label}: an answer does not hang on its transferred KV"));
            }
        }
    }
    Ok(())
}

/// `/status` must show payload = tokens that were moved × bytes a token.
async fn accounts(findings: &mut Findings, setting: &Setting, asks: &[Ask]) -> Result<(), String> {
    for transport in ["tcp", "shm"] {
        let mut plan = Plan::new(&setting.binary, "mock", 1, 1, transport);
        plan.conductor_args = always_move();
        let (answers, statuses) = answers(&plan, asks).await?;
        let answers = answers.into_iter().collect::<Result<Vec<_>, _>>()?;
        let moved: u64 = answers.iter().filter_map(|a| a.usage["prompt_tokens"].as_u64()).sum();
        let held: u64 =
            answers.iter().filter_map(|a| a.usage.pointer("/prompt_tokens_details/cached_tokens")?.as_u64()).sum();
        let kv = &statuses[0]["kv"];
        let token_bytes = kv["token_bytes"].as_u64().ok_or("`kv.token_bytes` is missing in /status")?;
        let payload = kv["payload_bytes"].as_u64().ok_or("`kv.payload_bytes` is missing in /status")?;
        findings.figure(
            format!("payload over {transport}"),
            format!("{payload} bytes for {moved} prompt tokens ({held} cached) of {token_bytes} bytes"),
        );
        findings.check(
            payload == (moved - held) * token_bytes,
            format!("{transport}: payload is {payload}, not {} × {token_bytes}", moved - held),
        );
    }
    Ok(())
}
