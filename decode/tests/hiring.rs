//! Prefill nodes that refuse, lie, fall silent or die: the answer is right all the same, and nothing stays lent.

mod common;

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use common::fake::{Fake, Script, choice};
use common::{Answer, Decode, assert_right, config, expected, prompt, seeded};
use kvrail_decode::DecodeConfig;
use kvrail_node::FailureCode;
use kvrail_proto::v1;

fn impatient() -> DecodeConfig {
    let mut config = config(128);
    config.prefill_answer_max = Duration::from_millis(300);
    config.prefill_silence_max = Duration::from_millis(300);
    config.prefill_suspect = Duration::ZERO;
    config
}

fn with(request: v1::GenerateRequest, prefill: Vec<v1::PrefillChoice>) -> v1::GenerateRequest {
    v1::GenerateRequest { prefill, ..request }
}

/// Nobody listens there.
async fn dead() -> v1::PrefillChoice {
    let listener = tokio::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.expect("free port");
    choice(listener.local_addr().expect("bound"))
}

#[tokio::test]
async fn whatever_a_prefill_node_does_the_answer_is_right() {
    let d = Decode::start(impatient()).await;
    let scripts = [
        Script::Refuse(FailureCode::QueueFull),
        Script::Mute,
        Script::BreakAfterLease,
        Script::BreakAfterToken,
        Script::ClaimDone,
        Script::OutOfTurn,
        Script::SilentAfterLease,
    ];
    for (i, script) in scripts.into_iter().enumerate() {
        let fake = Fake::start(script).await;
        let request = seeded(prompt(100 + i as u32, 75), 12, 5);
        let answer = d.ask(with(request.clone(), vec![fake.choice()])).await;
        assert_right(&request, &answer);
        assert_eq!(answer.done().prefill_node, "", "{script:?}: computed here");
        assert_eq!(answer.done().kv_payload_bytes, 0);
        assert_eq!(fake.seen.started.load(Ordering::Relaxed), 1, "{script:?}");
        d.wait_idle().await;
    }
    let status = d.status().await;
    assert_eq!(status["requests"]["prefill_failures"], scripts.len());
    assert_eq!(status["kv"]["payload_bytes"], 0);
    d.stop().await;
}

#[tokio::test]
async fn the_next_node_is_asked_and_the_number_of_tries_is_bounded() {
    let mut config = impatient();
    config.prefill_attempts_max = 3;
    let d = Decode::start(config).await;
    let mut fakes = vec![];
    for _ in 0..4 {
        fakes.push(Fake::start(Script::BreakAfterToken).await);
    }
    let request = seeded(prompt(1, 75), 12, 5);
    let choices = fakes.iter().map(Fake::choice).collect();
    let answer = d.ask(with(request.clone(), choices)).await;
    // Each node was given the tokens before it as forced, and sampled the next.
    assert_right(&request, &answer);
    let started: Vec<_> = fakes.iter().map(|f| f.seen.started.load(Ordering::Relaxed)).collect();
    assert_eq!(started, [1, 1, 1, 0]);
    d.wait_idle().await;
    d.stop().await;
}

#[tokio::test]
async fn a_lost_node_is_avoided_for_a_while() {
    let mut config = impatient();
    config.prefill_suspect = Duration::from_secs(600);
    let d = Decode::start(config).await;
    let gone = dead().await;
    for i in 0..5 {
        let request = seeded(prompt(i, 40), 3, 5);
        let answer = d.ask(with(request.clone(), vec![gone.clone()])).await;
        assert_right(&request, &answer);
    }
    assert_eq!(d.status().await["requests"]["prefill_failures"], 1, "asked once, then avoided");
    d.stop().await;
}

#[tokio::test]
async fn an_answer_that_ends_with_its_first_token_ends_its_lease() {
    let d = Decode::start(impatient()).await;
    let fake = Fake::start(Script::ClaimDone).await;
    let request = seeded(prompt(1, 75), 1, 5);
    let answer = d.ask(with(request.clone(), vec![fake.choice()])).await;
    assert_right(&request, &answer);
    assert_eq!(answer.done().prefill_node, "p0");
    d.wait_idle().await;
    d.stop().await;
}

#[tokio::test]
async fn a_cancelled_request_cancels_its_prefill_node_and_frees_its_blocks() {
    for script in [Script::Queue, Script::Mute, Script::SilentAfterLease] {
        let mut config = config(128);
        config.prefill_answer_max = Duration::from_secs(60);
        let d = Decode::start(config).await;
        let fake = Fake::start(script).await;
        let stream = d.open(with(seeded(prompt(1, 75), 12, 5), vec![fake.choice()])).await;
        while fake.seen.started.load(Ordering::Relaxed) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        if let Script::SilentAfterLease = script {
            d.wait_for("a lease", |s| s["leases"] == 1).await;
        }
        drop(stream);
        d.wait_idle().await;
        let began = Instant::now();
        while fake.seen.closed.load(Ordering::Relaxed) == 0 && began.elapsed() < Duration::from_secs(10) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(fake.seen.closed.load(Ordering::Relaxed), 1, "{script:?}: the node saw the end");
        d.stop().await;
    }
}

#[tokio::test]
async fn a_deadline_holds_while_a_node_is_hired() {
    let d = Decode::start(config(128)).await;
    let fake = Fake::start(Script::Queue).await;
    let asked = v1::GenerateRequest { deadline_ms: 200, ..seeded(prompt(1, 75), 12, 5) };
    let began = Instant::now();
    let answer = d.ask(with(asked, vec![fake.choice()])).await;
    assert_eq!(answer.failure_code(), "deadline_exceeded");
    assert!(began.elapsed() < Duration::from_secs(5));
    d.wait_idle().await;
    d.stop().await;
}

#[tokio::test]
async fn a_request_that_waits_for_kv_holds_no_batch() {
    let d = Decode::start(config(128)).await;
    let fake = Fake::start(Script::Queue).await;
    let mut waiting = d.open(with(seeded(prompt(1, 75), 12, 5), vec![fake.choice()])).await;
    waiting.message().await.expect("open").expect("accepted");
    let request = seeded(prompt(2, 75), 12, 5);
    let answer: Answer = d.ask(request.clone()).await;
    assert_right(&request, &answer);
    assert_eq!(d.status().await["requests"]["remote"], 1, "the other still waits");
    drop(waiting);
    d.wait_idle().await;
    d.stop().await;
}

#[tokio::test]
async fn a_token_that_a_client_has_is_never_sampled_again() {
    let d = Decode::start(impatient()).await;
    let fake = Fake::start(Script::BreakAfterToken).await;
    let request = seeded(prompt(4, 75), 12, 5);
    let (tokens, _) = expected(&request);
    let answer = d.ask(with(request, vec![fake.choice()])).await;
    let indices: Vec<_> = answer.tokens.iter().map(|t| t.index).collect();
    assert_eq!(indices, (0..12).collect::<Vec<_>>(), "each output once, in order");
    assert_eq!(answer.tokens, tokens);
    d.stop().await;
}
