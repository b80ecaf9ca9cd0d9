//! A decode node alone: prompts computed here, many at once, and every way to be refused.

mod common;

use std::time::{Duration, Instant};

use common::{Answer, Decode, assert_right, config, config_of, expected, model, prompt, request, seeded};
use kvrail_engine::mock::StepModel;
use kvrail_proto::v1;

#[tokio::test]
async fn an_answer_alone_is_right_cold_and_warm() {
    let d = Decode::start(config(64)).await;
    for tokens in [1, 2, 15, 16, 17, 100, 333] {
        for request in [request(prompt(7, tokens), 20), seeded(prompt(7, tokens), 20, 42)] {
            let cold = d.ask(request.clone()).await;
            assert_right(&request, &cold);
            let warm = d.ask(request.clone()).await;
            assert_right(&request, &warm);
            let whole_blocks = (tokens as u32 - 1) / 16 * 16;
            assert_eq!(warm.done().cached_tokens, whole_blocks, "{tokens} tokens");
            assert_eq!(warm.accepted.expect("accepted").cached_tokens, whole_blocks);
        }
    }
    d.wait_idle().await;
    d.stop().await;
}

#[tokio::test]
async fn the_models_end_token_ends_the_answer_and_is_part_of_it() {
    let d = Decode::start(config(64)).await;
    let mut stops = 0;
    for seed in 0..40 {
        let mut request = request(prompt(seed, 30), 40);
        request.stop = Some(v1::StopRule { max_tokens: 40, stop_tokens: (0..16).collect(), ..Default::default() });
        let answer = d.ask(request.clone()).await;
        assert_right(&request, &answer);
        stops += u32::from(answer.done().reason() == v1::FinishReason::Stop);
    }
    assert!(stops > 10, "{stops} of 40 answers ended with a stop token");
    d.wait_idle().await;
    d.stop().await;
}

#[tokio::test]
async fn an_answer_is_the_same_in_any_batch_under_any_pressure() {
    // A pool that holds about four of these at once, small chunks, and prompts that share prefixes.
    let mut config = config(48);
    (config.prefill_tokens_max, config.batch_max) = (32, 3);
    let d = Decode::start(config).await;
    let requests: Vec<_> = (0..120u32)
        .map(|i| {
            let mut tokens = prompt(i % 5, 40);
            tokens.extend(prompt(i, (i as usize * 13) % 90));
            if i % 2 == 0 { request(tokens, 1 + i % 40) } else { seeded(tokens, 1 + i % 40, i.into()) }
        })
        .collect();
    let answers = ask_all(&d, &requests).await;
    for (request, answer) in requests.iter().zip(&answers) {
        assert_right(request, answer);
    }
    let status = d.wait_idle().await;
    assert_eq!(status["requests"]["finished"], 120);
    assert_eq!(status["requests"]["preempted"], 0, "reserved whole, nobody is preempted");
    d.stop().await;
}

#[tokio::test]
async fn preempted_requests_are_recomputed_and_none_starves() {
    // Slow enough that all ten are here before the first has grown.
    let mut config = slow(20, Duration::from_millis(2));
    config.growth_reserved = 0.0;
    let d = Decode::start(config).await;
    // Each grows from 2 to 10 blocks; ten of them fit only at first.
    let requests: Vec<_> = (0..10).map(|i| seeded(prompt(i, 30), 120, i.into())).collect();
    let answers = ask_all(&d, &requests).await;
    for (request, answer) in requests.iter().zip(&answers) {
        assert_right(request, answer);
        assert!(answer.done().preempted <= 1, "once at most");
    }
    let status = d.wait_idle().await;
    let preempted = status["requests"]["preempted"].as_u64().expect("a number");
    assert!(preempted > 0, "the test must press");
    assert_eq!(u64::from(answers.iter().map(|a| a.done().preempted).sum::<u32>()), preempted, "and it is told");
    d.stop().await;
}

async fn ask_all(d: &Decode, requests: &[v1::GenerateRequest]) -> Vec<Answer> {
    let mut asking = vec![];
    for request in requests {
        let (mut client, request) = (d.client.clone(), request.clone());
        asking.push(tokio::spawn(async move {
            Answer::of(client.generate(request).await.expect("a stream").into_inner()).await
        }));
    }
    let mut answers = vec![];
    for asked in asking {
        answers.push(asked.await.expect("no panic"));
    }
    answers
}

#[tokio::test]
async fn a_moved_stream_goes_on_as_if_nothing_had_happened() {
    let d = Decode::start(config(64)).await;
    let whole = seeded(prompt(3, 50), 30, 9);
    let (tokens, _) = expected(&whole);
    for moved_at in [1, 2, 14, 29] {
        let forced = tokens[..moved_at].iter().map(|t| t.token).collect();
        let answer = d.ask(v1::GenerateRequest { forced, ..whole.clone() }).await;
        assert_eq!(answer.tokens, tokens[moved_at..], "from output {moved_at} on");
        assert_eq!(answer.done().output_tokens, 30);
    }
    let forced: Vec<u32> = tokens.iter().map(|t| t.token).collect();
    let answer = d.ask(v1::GenerateRequest { forced: forced.clone(), ..whole.clone() }).await;
    assert_eq!(
        (answer.tokens.len(), answer.done().reason()),
        (0, v1::FinishReason::Length),
        "only the end was missing"
    );
    let too_many = v1::GenerateRequest { forced: [forced, vec![1]].concat(), ..whole };
    assert_eq!(d.ask(too_many).await.failure_code(), "invalid_request");
    d.wait_idle().await;
    d.stop().await;
}

#[tokio::test]
async fn tenants_do_not_share_blocks() {
    let d = Decode::start(config(64)).await;
    let request = |salt: &str| v1::GenerateRequest { salt: salt.into(), ..request(prompt(1, 64), 2) };
    for (salt, cached) in [("a", 0), ("a", 48), ("b", 0), ("", 0), ("b", 48)] {
        assert_eq!(d.ask(request(salt)).await.done().cached_tokens, cached, "tenant `{salt}`");
    }
    d.stop().await;
}

#[tokio::test]
async fn what_cannot_be_served_is_refused_by_name() {
    let d = Decode::start(config(20)).await;
    let refused = async |change: fn(&mut v1::GenerateRequest)| {
        let mut request = request(prompt(1, 10), 5);
        change(&mut request);
        let answer = d.ask(request).await;
        assert!(answer.tokens.is_empty() && answer.accepted.is_none());
        answer.failure.expect("refused")
    };
    type Case = (fn(&mut v1::GenerateRequest), &'static str, &'static str);
    let cases: [Case; 10] = [
        (|r| r.namespace_id ^= 1, "wrong_namespace", "this node is of"),
        (|r| r.prompt.clear(), "invalid_request", "prompt"),
        (|r| r.prompt.push(259), "invalid_request", "vocabulary"),
        (|r| r.forced.push(u32::MAX), "invalid_request", "forced"),
        (|r| r.stop = None, "invalid_request", "max_tokens"),
        (|r| r.stop.as_mut().unwrap().max_tokens = 9000, "too_long", "context_tokens is 8192"),
        (|r| r.stop.as_mut().unwrap().max_tokens = u32::MAX, "too_long", "context_tokens"),
        (|r| r.prompt = vec![1; 330], "too_long", "the pool has 20"),
        (|r| r.sampling.as_mut().unwrap().temperature = f32::NAN, "invalid_request", "temperature"),
        (|r| r.salt = "x".repeat(300), "invalid_request", "salt"),
    ];
    for (change, code, words) in cases {
        let failure = refused(change).await;
        assert_eq!(failure.code, code, "{}", failure.message);
        assert!(failure.message.contains(words), "{}", failure.message);
    }
    assert_eq!(d.ask(request(prompt(1, 10), 5)).await.tokens.len(), 5, "and it still answers");
    d.wait_idle().await;
    d.stop().await;
}

/// A node whose steps take long enough to act between them.
fn slow(pool_blocks: u32, step: Duration) -> kvrail_decode::DecodeConfig {
    let mut model = model();
    model.step = StepModel::Constant { prefill_per_token: Duration::ZERO, decode_step: step };
    config_of(model, pool_blocks)
}

#[tokio::test]
async fn a_dropped_stream_frees_everything_and_the_queue_moves_on() {
    let d = Decode::start(slow(20, Duration::from_millis(5))).await;
    let mut running = d.open(request(prompt(1, 160), 150)).await;
    let waiting = d.open(request(prompt(2, 160), 150)).await;
    let next = tokio::spawn({
        let mut client = d.client.clone();
        async move { Answer::of(client.generate(request(prompt(3, 100), 3)).await.expect("a stream").into_inner()).await }
    });
    for _ in 0..5 {
        running.message().await.expect("open").expect("a message");
    }
    d.wait_for("a queue of two", |s| s["requests"]["queued"] == 2).await;
    drop(waiting);
    d.wait_for("a queue of one", |s| s["requests"]["queued"] == 1).await;
    drop(running);
    assert_right(&request(prompt(3, 100), 3), &next.await.expect("no panic"));
    let status = d.wait_idle().await;
    assert_eq!(status["requests"]["cancelled"], 2);
    d.stop().await;
}

#[tokio::test]
async fn a_deadline_holds_in_the_queue_and_in_the_batch() {
    let d = Decode::start(slow(20, Duration::from_millis(5))).await;
    let with_deadline = |tokens, ms| v1::GenerateRequest { deadline_ms: ms, ..request(prompt(tokens, 160), 150) };
    let began = Instant::now();
    let (first, second) = tokio::join!(d.ask(with_deadline(1, 300)), d.ask(with_deadline(2, 200)));
    assert_eq!((first.failure_code(), second.failure_code()), ("deadline_exceeded", "deadline_exceeded"));
    assert!(!first.tokens.is_empty() && second.tokens.is_empty(), "one ran, one waited");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(
        first.ids(),
        expected(&request(prompt(1, 160), 150)).0[..first.tokens.len()].iter().map(|t| t.token).collect::<Vec<_>>()
    );
    d.wait_idle().await;
    d.stop().await;
}

#[tokio::test]
async fn a_full_queue_and_a_long_wait_are_refusals_with_advice() {
    let mut config = slow(20, Duration::from_millis(5));
    (config.queue_max, config.queue_wait_max) = (1, Duration::from_millis(100));
    let d = Decode::start(config).await;
    let mut running = d.open(request(prompt(1, 160), 150)).await;
    running.message().await.expect("open").expect("accepted");
    let waiting = tokio::spawn({
        let mut client = d.client.clone();
        async move { Answer::of(client.generate(request(prompt(2, 160), 150)).await.expect("a stream").into_inner()).await }
    });
    d.wait_for("a queue of one", |s| s["requests"]["queued"] == 1).await;
    let refused = d.ask(request(prompt(3, 160), 150)).await;
    assert_eq!(refused.failure_code(), "queue_full");
    assert!(refused.failure.expect("refused").retry_after_ms > 0);
    assert_eq!(waiting.await.expect("no panic").failure_code(), "no_capacity");
    drop(running);
    d.wait_idle().await;
    d.stop().await;
}

#[tokio::test]
async fn an_idle_stream_beats() {
    let mut config = slow(40, Duration::from_millis(250));
    config.heartbeat = Duration::from_millis(50);
    let d = Decode::start(config).await;
    let answer = d.ask(request(prompt(1, 16), 3)).await;
    assert!(answer.heartbeats >= 4, "{}", answer.heartbeats);
    assert_eq!(answer.tokens.len(), 3);
    d.stop().await;
}

#[tokio::test]
async fn a_drain_finishes_what_runs_and_refuses_the_rest() {
    let mut d = Decode::start(slow(40, Duration::from_millis(5))).await;
    let asked = request(prompt(1, 32), 40);
    let mut running = d.open(asked.clone()).await;
    running.message().await.expect("open").expect("accepted");
    d.begin_stop();
    d.wait_for("the drain", |s| s["draining"] == true).await;
    assert_eq!(d.ask(request(prompt(2, 32), 4)).await.failure_code(), "draining");
    assert_eq!(Answer::of(running).await.ids(), expected(&asked).0.iter().map(|t| t.token).collect::<Vec<_>>());
    d.stop().await;
}

#[tokio::test]
async fn a_drain_that_takes_too_long_ends_streams_so_that_they_can_move() {
    let mut d = Decode::start(slow(40, Duration::from_millis(20))).await;
    let asked = request(prompt(1, 32), 400);
    let mut running = d.open(asked.clone()).await;
    running.message().await.expect("open").expect("accepted");
    d.begin_stop_within(Duration::from_millis(100));
    let answer = Answer::of(running).await;
    let failure = answer.failure.as_ref().expect("cut off");
    assert_eq!((failure.code.as_str(), failure.retryable), ("draining", true));
    let forced = answer.ids();
    d.stop().await;

    let other = Decode::start(common::config(64)).await;
    let rest = other.ask(v1::GenerateRequest { forced: forced.clone(), ..asked.clone() }).await;
    let whole: Vec<u32> = expected(&asked).0.iter().map(|t| t.token).collect();
    assert_eq!([forced, rest.ids()].concat(), whole);
    other.stop().await;
}
