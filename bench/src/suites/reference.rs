//! Agreement with an implementation that nobody here wrote: what llama.cpp says at each greedy token of kvrail's answers.
//!
//! llama.cpp multiplies Q4 weights with activations of 8 bits and so misses exact arithmetic by more than what is asked
//! of the built-in executor: on the file as it is, it says another token at 20 of these 960, up to 0.44 away. The fair
//! reference is llama.cpp on the very values that the file's tensors stand for, written out as F32, with F32 keys and
//! values and without flash attention (`bench/clients/llama_tokens.py`; the wide file is five times the model's and stays
//! in the user's cache directory).
//!
//! The reference reads kvrail's own answer, so that a tie that falls the other way ends no comparison: up to the first
//! divergence what it would have said is its own greedy continuation, and past it every token is judged all the same.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use serde::Deserialize;
use serde_json::json;

use super::identity::pass;
use super::python::{cache, environment, output};
use super::tokens::Tokens;
use super::{Findings, Setting};
use crate::answer::{Answer, Ask, Sampling};
use crate::cluster::Plan;
use crate::prompts::{Shape, prompts};

/// Output tokens of every answer.
const TOKENS: u32 = 48;
/// Chat and plain prompts, some sharing prefixes, one of them long.
const SHAPE: Shape = Shape { count: 20, words: (3, 1_000), long: 1, max_tokens: TOKENS };
/// The long prompt has more tokens than this.
const LONG: usize = 1_000;
/// Where kvrail and the reference say different tokens, the reference's logprobs of the two lie at most this far apart.
const GAP_MAX: f64 = 0.05;
/// Where they say the same, their logprobs differ by at most this. Greedy tokens alone are a coarse sieve: with a rotary
/// base that is off by a twentieth all but six of 960 tokens stay, and logprobs move by a tenth. Keys and values in f16
/// have been seen to make 0.007 on these prompts and 0.016 on random tokens (in f32 0.003).
const DIFFERENCE_MAX: f64 = 0.03;

/// A prompt and what kvrail answered.
struct Question {
    prompt: Vec<u32>,
    /// Token and logprob.
    answer: Vec<(u32, f64)>,
}

/// What the reference said to it.
#[derive(Deserialize)]
struct Reply {
    /// Tokens of the prompt as the reference counts them.
    prompt_tokens: usize,
    /// For each token of the answer, the reference's best tokens after all before it: id and logprob, best first.
    best: Vec<Vec<(u32, f64)>>,
}

/// A token that the reference would not have said.
#[derive(Debug, PartialEq)]
struct Divergence {
    /// Index in the answer.
    at: usize,
    /// How far the reference's second lies behind its first.
    top_two: f64,
    /// How far the token that kvrail said lies behind the reference's first; infinite where it is not among the best.
    behind: f64,
}

/// An answer, judged.
#[derive(Debug, Default, PartialEq)]
struct Verdict {
    divergences: Vec<Divergence>,
    /// Largest difference of the two logprobs of a token that both say.
    logprob_difference: f64,
}

/// Asks kvrail, asks the reference, and compares.
///
/// # Errors
/// What kept it from comparing.
pub async fn run(findings: &mut Findings, setting: &Setting, model: &Path) -> Result<(), String> {
    let tokens = Tokens::of(&model.display().to_string())?;
    let greedy = |ask| Ask { sampling: Sampling::default(), ignore_eos: true, max_tokens: TOKENS, ..ask };
    let asks: Arc<Vec<Ask>> = Arc::new(prompts(&SHAPE, setting.seed).into_iter().map(greedy).collect());
    let plan = Plan::new(&setting.binary, &model.display().to_string(), 0, 1, "tcp");
    let answers = pass(&plan, &asks, 1).await?.remove(0);
    let questions = asks.iter().zip(&answers).map(|(ask, answer)| question(&tokens, ask, answer));
    let questions = questions.collect::<Result<Vec<_>, _>>()?;
    let longest = questions.iter().map(|question| question.prompt.len()).max().unwrap_or_default();
    findings.check(longest > LONG, format!("reference: the longest prompt has only {longest} tokens"));
    let short = questions.iter().filter(|question| question.answer.len() != TOKENS as usize).count();
    findings.check(short == 0, format!("reference: {short} answers have not {TOKENS} tokens"));

    let started = Instant::now();
    let replies = replies(setting, model, &questions)?;
    let prompt_tokens: usize = questions.iter().map(|question| question.prompt.len()).sum();
    findings.figure(
        "reference: llama.cpp in F32",
        format!(
            "{} prompts of {prompt_tokens} tokens, the longest of {longest}; {:.1} s",
            questions.len(),
            started.elapsed().as_secs_f64()
        ),
    );
    let verdicts = questions.iter().zip(&replies).map(|(question, reply)| judge(question, reply));
    report(findings, &questions, &verdicts.collect::<Result<Vec<_>, _>>()?);
    Ok(())
}

fn question(tokens: &Tokens, ask: &Ask, answer: &Answer) -> Result<Question, String> {
    let prompt = tokens.prompt(ask)?;
    if answer.usage["prompt_tokens"].as_u64() != Some(prompt.len() as u64) {
        return Err(format!("a prompt of {} tokens, the endpoint says {}", prompt.len(), answer.usage));
    }
    let logprobs = answer.tokens.iter().map(|token| token.logprob);
    Ok(Question { prompt, answer: tokens.answer(answer)?.into_iter().zip(logprobs).collect() })
}

fn replies(setting: &Setting, model: &Path, questions: &[Question]) -> Result<Vec<Reply>, String> {
    let python = environment(setting, "reference.txt")?;
    let scratch = tempfile::tempdir().map_err(|e| e.to_string())?;
    let file = scratch.path().join("questions.jsonl");
    let mut lines = String::new();
    for Question { prompt, answer } in questions {
        let answer: Vec<u32> = answer.iter().map(|&(id, _)| id).collect();
        let _ = writeln!(lines, "{}", json!({ "prompt": prompt, "answer": answer }));
    }
    std::fs::write(&file, lines).map_err(|e| e.to_string())?;
    let script = setting.root.join("bench/clients/llama_tokens.py");
    let (ok, told) = output(Command::new(python).arg(script).arg(model).arg(cache()?.join("reference")).arg(&file))?;
    if !ok {
        return Err(format!("llama_tokens.py: {told}"));
    }
    let replies = told.lines().map(|line| serde_json::from_str(line).map_err(|e| format!("{e}: {line}")));
    let replies: Vec<Reply> = replies.collect::<Result<_, _>>()?;
    let whole = replies.len() == questions.len();
    if whole { Ok(replies) } else { Err(format!("{} replies to {} questions", replies.len(), questions.len())) }
}

/// Compares token by token.
fn judge(question: &Question, reply: &Reply) -> Result<Verdict, String> {
    if (reply.prompt_tokens, reply.best.len()) != (question.prompt.len(), question.answer.len()) {
        return Err("the reference has read something else than what it was asked".into());
    }
    let mut verdict = Verdict::default();
    for (at, (&(id, logprob), best)) in question.answer.iter().zip(&reply.best).enumerate() {
        let &[(first, first_logprob), (_, second_logprob), ..] = &best[..] else {
            return Err(format!("the reference told {} of its best tokens", best.len()));
        };
        if id == first {
            let difference = (logprob - first_logprob).abs();
            // What is no number is no agreement.
            let difference = if difference.is_nan() { f64::INFINITY } else { difference };
            verdict.logprob_difference = verdict.logprob_difference.max(difference);
        } else {
            let behind = best.iter().find(|one| one.0 == id).map_or(f64::INFINITY, |one| first_logprob - one.1);
            verdict.divergences.push(Divergence { at, top_two: first_logprob - second_logprob, behind });
        }
    }
    Ok(verdict)
}

fn report(findings: &mut Findings, questions: &[Question], verdicts: &[Verdict]) {
    let tokens: usize = questions.iter().map(|question| question.answer.len()).sum();
    let divergences: usize = verdicts.iter().map(|verdict| verdict.divergences.len()).sum();
    let equal = verdicts.iter().filter(|verdict| verdict.divergences.is_empty()).count();
    let difference = verdicts.iter().map(|verdict| verdict.logprob_difference).fold(0.0, f64::max);
    findings.figure(
        "reference: greedy tokens",
        format!(
            "{} of {tokens} equal, {equal} of {} answers throughout; logprobs of equal tokens to {difference:.4}",
            tokens - divergences,
            verdicts.len()
        ),
    );
    findings.check(
        difference <= DIFFERENCE_MAX,
        format!("reference: logprobs of equal tokens differ by {difference:.4} > {DIFFERENCE_MAX}"),
    );
    for (answer, verdict) in verdicts.iter().enumerate() {
        for Divergence { at, top_two, behind } in &verdict.divergences {
            findings.figure(
                format!("reference: answer {answer} parts at token {at}"),
                format!("the reference's best two {top_two:.4} apart, what kvrail said {behind:.4} behind"),
            );
            // What kvrail said is no better than the reference's second, so this bounds the best two as well.
            findings.check(
                *behind <= GAP_MAX,
                format!("reference: answer {answer}, token {at}: {behind:.4} behind the reference's best, > {GAP_MAX}"),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(answer: &[(u32, f64)], best: &[&[(u32, f64)]]) -> Result<Verdict, String> {
        let question = Question { prompt: vec![1, 2, 3], answer: answer.to_vec() };
        judge(&question, &Reply { prompt_tokens: 3, best: best.iter().map(|best| best.to_vec()).collect() })
    }

    fn failures(verdict: Verdict) -> usize {
        let mut findings = Findings::default();
        let question = Question { prompt: vec![1], answer: vec![(7, -1.0); 4] };
        report(&mut findings, &[question], &[verdict]);
        findings.failures.len()
    }

    #[test]
    fn the_same_tokens_agree_and_tell_their_largest_difference() {
        let best: [&[(u32, f64)]; 2] = [&[(7, -1.015625), (8, -2.0)], &[(8, -0.5), (7, -0.75)]];
        let verdict = judged(&[(7, -1.0), (8, -0.5)], &best).unwrap();
        assert_eq!(verdict, Verdict { divergences: vec![], logprob_difference: 0.015625 });
        assert_eq!(failures(verdict), 0);
        assert_eq!(failures(judged(&[(7, -1.0), (8, -0.5625)], &best).unwrap()), 1, "logprobs too far apart");
        assert_eq!(failures(judged(&[(7, f64::NAN), (8, -0.5)], &best).unwrap()), 1);
    }

    #[test]
    fn only_a_tie_of_the_reference_excuses_another_token() {
        let tie = judged(&[(8, -1.0)], &[&[(7, -1.0), (8, -1.03125), (9, -1.5)]]).unwrap();
        assert_eq!(tie.divergences, [Divergence { at: 0, top_two: 0.03125, behind: 0.03125 }]);
        assert_eq!(failures(tie), 0);
        let wrong: [&[(u32, f64)]; 3] =
            [&[(7, -1.0), (8, -1.25)], &[(7, -1.0), (9, -1.03125), (8, -1.5)], &[(7, -1.0), (9, -1.03125)]];
        for best in wrong {
            assert_eq!(failures(judged(&[(8, -1.0)], &[best]).unwrap()), 1, "{best:?}");
        }
        assert_eq!(failures(judged(&[(8, -1.0)], &[&[(7, f64::NAN), (8, -1.0)]]).unwrap()), 1);
    }

    #[test]
    fn a_reply_to_something_else_is_no_comparison() {
        let best: &[(u32, f64)] = &[(7, -1.0), (8, -2.0)];
        assert!(judged(&[(7, -1.0)], &[best, best]).is_err());
        assert!(judged(&[(7, -1.0)], &[&best[..1]]).is_err());
        let question = Question { prompt: vec![1, 2], answer: vec![(7, -1.0)] };
        assert!(judge(&question, &Reply { prompt_tokens: 3, best: vec![best.to_vec()] }).is_err());
    }
}
