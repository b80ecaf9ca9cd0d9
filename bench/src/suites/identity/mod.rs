//! Token identity: what comes out of separate prefill and decode processes is what one process alone would have said, and
//! that is what an independent implementation says (`reference`, in the full tier).

mod questions;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;

use self::questions::{Lengths, check_kinds, check_lengths, questions};
use super::tokens::Tokens;
use super::{Findings, Setting, Tier, reference};
use crate::answer::{Answer, Ask, ask};
use crate::client::Client;
use crate::cluster::{Cluster, Plan};
use crate::prompts::Shape;

/// Requests in flight at a time.
const CONCURRENCY: usize = 16;
/// Longest silence of the endpoint: what is said matters here, not when, and a busy machine takes minutes to the first
/// token of sixteen long prompts.
const SILENCE_MAX: Duration = Duration::from_secs(600);
/// Largest difference of two logprobs that are called equal.
const LOGPROB_TOLERANCE: f64 = 1e-4;
/// Of the prompt tokens that no decode node had, the share whose KV must have come from a prefill node.
const MOVED_FLOOR: f64 = 0.9;

/// Runs the suite on the mock executor and, where it is here, on the real model.
pub async fn run(setting: &Setting) -> Findings {
    let mut findings = Findings::default();
    let full = setting.tier == Tier::Full;
    let shape = Shape { count: 2_000, words: (1, 360), long: 0, max_tokens: 16 };
    compare(&mut findings, setting, "mock", "mock", &shape, None).await;
    let Some(model) = &setting.model else {
        let missing = "the real model is not on this machine: `kvrail model pull` fetches it";
        if full {
            findings.failure(missing);
        } else {
            findings.figure("real model", missing);
        }
        return findings;
    };
    let (shape, more) = if full {
        let more = Lengths { mean_max: 400.0, above: (5, 2_000) };
        (Shape { count: 200, words: (1, 3_000), long: 0, max_tokens: 32 }, Some(more))
    } else {
        (Shape { count: 20, words: (1, 350), long: 1, max_tokens: 8 }, None)
    };
    compare(&mut findings, setting, "real", &model.display().to_string(), &shape, more).await;
    if full && let Err(e) = reference::run(&mut findings, setting, model).await {
        findings.failure(format!("reference: {e}"));
    }
    findings
}

async fn compare(
    findings: &mut Findings,
    setting: &Setting,
    name: &str,
    model: &str,
    shape: &Shape,
    more: Option<Lengths>,
) {
    let Prepared { tokens, asks, lengths } = match prepare(model, shape, setting.seed) {
        Ok(prepared) => prepared,
        Err(e) => return findings.failure(format!("{name}: {e}")),
    };
    check_lengths(findings, name, &lengths, shape.words, more);
    check_kinds(findings, name, &asks, shape, shape.count >= 200);
    let alone = Plan::new(&setting.binary, model, 0, 1, "tcp");
    let expected = match pass(&alone, &asks, 1).await {
        Ok(mut passes) => passes.remove(0),
        Err(e) => return findings.failure(format!("{name}: colocated run: {e}")),
    };
    let output: usize = expected.iter().map(|a| a.tokens.len()).sum();
    findings.figure(
        format!("{name}: colocated"),
        format!("{} answers, {} prompt tokens, {output} output tokens", expected.len(), prompt_tokens(&expected)),
    );
    let told = expected.iter().map(|answer| answer.usage["prompt_tokens"].as_u64().unwrap_or(0) as usize);
    findings
        .check(told.eq(lengths), format!("{name}: the endpoint counts other tokens in a prompt than the tokenizer"));
    for transport in ["tcp", "shm"] {
        let started = Instant::now();
        let mut plan = Plan::new(&setting.binary, model, 2, 2, transport);
        // No prompt is too short to be computed by a prefill node.
        plan.conductor_args = ["--local-prefill-tokens", "0"].map(str::to_owned).to_vec();
        match pass(&plan, &asks, 2).await {
            Err(e) => findings.failure(format!("{name} over {transport}: {e}")),
            Ok(passes) => {
                for (cache, answers) in ["cold", "warm"].iter().zip(&passes) {
                    let label = format!("{name} over {transport}, {cache}");
                    let differing = differences(findings, &expected, answers, &tokens, &label);
                    let equal = answers.len() - differing;
                    findings.figure(
                        format!("{name} over {transport}, cache {cache}"),
                        format!("{equal} of {} answers equal, {} cached tokens", answers.len(), cached(answers)),
                    );
                }
                findings
                    .check(cached(&passes[1]) > 0, format!("{name} over {transport}: the warm pass reused nothing"));
                findings
                    .figure(format!("{name} over {transport}"), format!("{:.1} s", started.elapsed().as_secs_f64()));
            }
        }
    }
}

/// Questions for a model, and how many tokens each prompt has.
struct Prepared {
    tokens: Tokens,
    asks: Arc<Vec<Ask>>,
    lengths: Vec<usize>,
}

fn prepare(model: &str, shape: &Shape, seed: u64) -> Result<Prepared, String> {
    let tokens = Tokens::of(model)?;
    let asks = questions(shape, seed, &tokens)?;
    let lengths = asks.iter().map(|ask| Ok(tokens.prompt(ask)?.len())).collect::<Result<_, String>>()?;
    Ok(Prepared { tokens, asks: Arc::new(asks), lengths })
}

fn prompt_tokens(answers: &[Answer]) -> u64 {
    answers.iter().filter_map(|a| a.usage["prompt_tokens"].as_u64()).sum()
}

fn cached(answers: &[Answer]) -> u64 {
    answers.iter().filter_map(|a| a.usage.pointer("/prompt_tokens_details/cached_tokens")?.as_u64()).sum()
}

/// Counts the answers that differ; the first few are told in full.
fn differences(
    findings: &mut Findings,
    expected: &[Answer],
    answers: &[Answer],
    tokens: &Tokens,
    label: &str,
) -> usize {
    let mut differing = 0;
    for (i, (answer, expected)) in answers.iter().zip(expected).enumerate() {
        if let Err(why) = same(answer, expected, tokens) {
            differing += 1;
            if differing <= 3 {
                findings.failure(format!("{label}: answer {i}: {why}"));
            }
        }
    }
    if differing > 3 {
        findings.failure(format!("{label}: and {} answers more", differing - 3));
    }
    differing
}

/// Token id by token id, then all that was said of them.
fn same(answer: &Answer, expected: &Answer, tokens: &Tokens) -> Result<(), String> {
    let (ids, expected_ids) = (tokens.answer(answer)?, tokens.answer(expected)?);
    if ids != expected_ids {
        return Err(format!("tokens {ids:?}, expected {expected_ids:?}"));
    }
    answer.same_as(expected, LOGPROB_TOLERANCE)
}

/// Starts a cluster and asks everything `times` times over; every pass in the order of the prompts.
pub(super) async fn pass(plan: &Plan, asks: &Arc<Vec<Ask>>, times: usize) -> Result<Vec<Vec<Answer>>, String> {
    let cluster = Cluster::start(plan).await.map_err(|e| e.to_string())?;
    let model = cluster.model().await.map_err(|e| e.to_string())?;
    let client = cluster.client().with_silence_max(SILENCE_MAX);
    let mut passes = Vec::new();
    for _ in 0..times {
        let answers = ask_all(&client, &model, asks).await.map_err(|e| format!("{e}\n{}", cluster.logs()))?;
        passes.push(answers);
    }
    if plan.prefill > 0 {
        moved_kv(&cluster, &passes.concat()).await?;
    }
    let bad = cluster.drain();
    if bad.is_empty() { Ok(passes) } else { Err(format!("did not drain cleanly: {}", bad.join("; "))) }
}

/// A comparison proves nothing of prompts that were computed where they were decoded, as those are whose hand-off fails.
async fn moved_kv(cluster: &Cluster, answers: &[Answer]) -> Result<(), String> {
    let (mut moved, mut token_bytes) = (0, 1);
    for node in &cluster.decode {
        let status = cluster.status(node).await?;
        moved += status["kv"]["payload_bytes"].as_u64().unwrap_or_default();
        token_bytes = status["kv"]["token_bytes"].as_u64().unwrap_or(1).max(1);
    }
    let (moved, wanted) = (moved / token_bytes, prompt_tokens(answers) - cached(answers));
    println!("  KV of {moved} tokens was moved, {wanted} were not cached");
    if (moved as f64) < MOVED_FLOOR * wanted as f64 {
        return Err(format!(
            "KV of {moved} tokens was moved, and {wanted} were not cached: decode nodes computed the rest"
        ));
    }
    Ok(())
}

async fn ask_all(client: &Client, model: &str, asks: &Arc<Vec<Ask>>) -> Result<Vec<Answer>, String> {
    let permits = Arc::new(Semaphore::new(CONCURRENCY));
    let mut running = Vec::new();
    for index in 0..asks.len() {
        let permit = Arc::clone(&permits).acquire_owned().await.map_err(|e| e.to_string())?;
        let (client, model, asks) = (client.clone(), model.to_owned(), Arc::clone(asks));
        running.push(tokio::spawn(async move {
            let answer = ask(&client, &model, &asks[index]).await;
            drop(permit);
            answer.map_err(|e| format!("answer {index}: {e}"))
        }));
    }
    let mut answers = Vec::new();
    for task in running {
        answers.push(task.await.map_err(|e| e.to_string())??);
    }
    Ok(answers)
}
