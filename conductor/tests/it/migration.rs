//! Streams that lose their node: token by token the same as if they had not.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::support::client::{Event, finish_reason, text};
use super::support::{Cluster, FakeNode, Fault, MODEL, Script, eventually, get, post, post_stream};

const PLAIN: &str = "/v1/completions";

fn body(changes: Value) -> Value {
    let mut body =
        json!({"model": MODEL, "prompt": "a prompt of some length", "max_tokens": 40, "seed": 11, "logprobs": 1});
    for (key, value) in changes.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

/// The chunks of a stream, joined: text, tokens and log-probabilities.
fn joined(chunks: &[Value]) -> (String, Vec<Value>, Vec<Value>) {
    let all = |key: &str| {
        let lists = chunks.iter().filter_map(|c| c.pointer(&format!("/choices/0/logprobs/{key}")));
        lists.flat_map(|l| l.as_array().unwrap().clone()).collect()
    };
    (text(chunks, 0), all("tokens"), all("token_logprobs"))
}

async fn stream(cluster: &Cluster, changes: Value) -> (Vec<Value>, Event) {
    let mut body = body(changes);
    body["stream"] = json!(true);
    body["stream_options"] = json!({"include_usage": true});
    post_stream(cluster.http(), PLAIN, &body).await.rest().await
}

#[tokio::test]
async fn whatever_becomes_of_the_node_the_stream_is_the_same() {
    let cluster = Cluster::start(Script::Letters, 3).await;
    let (expected, end) = stream(&cluster, json!({})).await;
    assert_eq!(end, Event::Done);
    let expected = joined(&expected);
    assert_eq!((expected.0.len(), expected.1.len()), (40, 40));
    let faults = [
        Fault::Break(0),
        Fault::Break(1),
        Fault::Break(17),
        Fault::Break(39),
        Fault::Silence(5),
        Fault::Skip(5),
        Fault::Fail(9, "transfer_failed", true),
        Fault::Fail(0, "queue_full", true),
        Fault::Fail(0, "draining", true),
        Fault::NoDone,
    ];
    for fault in faults {
        let before: Vec<_> = cluster.nodes.iter().map(|n| n.requests().len()).collect();
        cluster.plan(fault);
        let (chunks, end) = stream(&cluster, json!({})).await;
        assert_eq!(end, Event::Done, "{fault:?}");
        assert_eq!(joined(&chunks), expected, "{fault:?}");
        assert_eq!(finish_reason(&chunks, 0).as_deref(), Some("length"), "{fault:?}");
        let usage = &chunks.last().unwrap()["usage"];
        assert_eq!(usage["completion_tokens"], 40, "{fault:?}: tokens are counted once");
        let asked: usize = cluster.nodes.iter().zip(before).map(|(n, before)| n.requests().len() - before).sum();
        assert_eq!(asked, if fault == Fault::NoDone { 1 } else { 2 }, "{fault:?}");
    }
    eventually("all nodes are free", async || cluster.active() == 0).await;
    let metrics = get(cluster.http(), "/metrics").await;
    let metrics = std::str::from_utf8(&metrics.body).unwrap();
    for cause in ["broken", "silent", "fault", "failed", "refused"] {
        assert!(metrics.contains(&format!("kvrail_gateway_migrations_total{{cause=\"{cause}\"}}")), "{metrics}");
    }
}

#[tokio::test]
async fn a_killed_node_is_followed_by_another_and_forced_tokens_may_be_repeated() {
    let mut cluster = Cluster::start(Script::Letters, 2).await;
    for node in &cluster.nodes {
        node.shared.repeat_forced.store(true, std::sync::atomic::Ordering::SeqCst);
        node.pace(Duration::from_millis(5));
    }
    let expected = joined(&stream(&cluster, json!({})).await.0);
    for round in 0..3 {
        let mut asking = post_stream(cluster.http(), PLAIN, &body(json!({"stream": true}))).await;
        let mut chunks = Vec::new();
        while chunks.len() < 5 + 10 * round {
            let Event::Chunk(chunk) = asking.next().await else { panic!("an early end") };
            chunks.push(chunk);
        }
        let at = cluster.nodes.iter().position(|n| n.active() > 0).unwrap();
        cluster.nodes[at].kill();
        let (rest, end) = asking.rest().await;
        chunks.extend(rest);
        assert_eq!((end, joined(&chunks)), (Event::Done, expected.clone()), "round {round}");
        let last = cluster.nodes[1 - at].requests().pop().unwrap();
        assert!(last.forced.len() >= 5 + 10 * round, "the journal is forced");
        assert_eq!(last.sampling.unwrap().seed, 11);
        let name = format!("d{at}");
        let node = FakeNode::start(&name, cluster.conductor.addresses.grpc, Arc::clone(&cluster.play)).await;
        node.pace(Duration::from_millis(5));
        cluster.nodes[at] = node;
        // The new life is known when it is routed to.
        let address = cluster.nodes[at].address.to_string();
        eventually("the new node is known", async || {
            let status = get(cluster.http(), "/status").await.json();
            status["members"].as_array().unwrap().iter().any(|m| m["grpc"] == address.as_str())
        })
        .await;
    }
}

#[tokio::test]
async fn a_node_that_contradicts_the_journal_is_left() {
    let cluster = Cluster::start(Script::Letters, 3).await;
    let expected = joined(&stream(&cluster, json!({})).await.0);
    cluster.plan(Fault::Break(10));
    cluster.plan(Fault::Lie);
    let (chunks, end) = stream(&cluster, json!({})).await;
    assert_eq!((end, joined(&chunks)), (Event::Done, expected));
    let asked: Vec<_> = cluster.nodes.iter().flat_map(FakeNode::requests).map(|r| r.forced.len()).collect();
    assert_eq!(asked.iter().filter(|forced| **forced == 10).count(), 2, "both later nodes were given the journal");
}

#[tokio::test]
async fn text_that_was_held_back_survives_the_move() {
    // A stop string and a character of three bytes, both cut by the fault.
    let cluster = Cluster::start(Script::Text("ab日本ST?STOP rest"), 2).await;
    for cut in 0..16 {
        cluster.plan(Fault::Break(cut));
        let (chunks, end) = stream(&cluster, json!({"stop": "STOP"})).await;
        assert_eq!((text(&chunks, 0).as_str(), end), ("ab日本ST?", Event::Done), "cut at {cut}");
        let tokens: usize = joined(&chunks).1.len();
        assert_eq!(tokens, 11, "cut at {cut}: log-probabilities of the shown tokens, each once");
    }
}

#[tokio::test]
async fn with_nobody_left_the_stream_ends_in_a_typed_error() {
    let cluster = Cluster::start_with(Script::Letters, 1, |config| {
        config.migration_wait = Duration::from_millis(300);
    })
    .await;
    cluster.plan(Fault::Break(5));
    let (chunks, end) = stream(&cluster, json!({})).await;
    let Event::Error(error) = end else { panic!("{end:?}") };
    assert_eq!((&error["error"]["type"], &error["error"]["code"]), (&json!("server_error"), &json!("peer_lost")));
    assert_eq!((text(&chunks, 0).len(), finish_reason(&chunks, 0)), (5, None));

    cluster.plan(Fault::Break(0));
    let answer = post(cluster.http(), PLAIN, &body(json!({"stream": true}))).await;
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (503, &json!("peer_lost")), "before the first byte");
    cluster.plan(Fault::Break(5));
    let answer = post(cluster.http(), PLAIN, &body(json!({}))).await;
    assert_eq!(answer.status, 503, "an answer that is not streamed fails as a whole");
    let answer = post(cluster.http(), PLAIN, &body(json!({"n": 2}))).await;
    assert_eq!(answer.status, 200, "the node itself is well");
}

#[tokio::test]
async fn a_node_that_comes_back_under_its_name_takes_the_stream() {
    let mut cluster = Cluster::start(Script::Letters, 1).await;
    let expected = joined(&stream(&cluster, json!({})).await.0);
    cluster.plan(Fault::Die(7));
    let request = body(json!({"stream": true}));
    let mut asking = post_stream(cluster.http(), PLAIN, &request).await;
    let mut chunks = Vec::new();
    while chunks.len() < 7 {
        let Event::Chunk(chunk) = asking.next().await else { panic!("an early end") };
        chunks.push(chunk);
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    cluster.nodes[0] = FakeNode::start("d0", cluster.conductor.addresses.grpc, Arc::clone(&cluster.play)).await;
    let (rest, end) = asking.rest().await;
    chunks.extend(rest);
    assert_eq!((end, joined(&chunks)), (Event::Done, expected));
    assert_eq!(cluster.nodes[0].requests()[0].forced.len(), 7);
}

#[tokio::test]
async fn refusals_are_passed_on_at_once_with_their_status() {
    let cluster = Cluster::start(Script::Letters, 1).await;
    for (code, retryable, status) in [
        ("queue_full", true, 429),
        ("no_capacity", true, 429),
        ("too_long", false, 400),
        ("invalid_request", false, 400),
        ("draining", true, 503),
        ("internal", false, 500),
        ("deadline_exceeded", false, 504),
    ] {
        cluster.plan(Fault::Fail(0, code, retryable));
        let started = std::time::Instant::now();
        let answer = post(cluster.http(), PLAIN, &body(json!({"stream": true}))).await;
        assert_eq!(answer.status, status, "{code}");
        assert!(answer.json()["error"]["message"].as_str().unwrap().contains("planned"), "{code}");
        assert_eq!(answer.header("retry-after").is_some(), retryable, "{code}");
        assert!(started.elapsed() < Duration::from_secs(2), "{code}: at once");
    }
    cluster.plan(Fault::Fail(3, "internal", false));
    let (chunks, end) = stream(&cluster, json!({})).await;
    assert!(matches!(end, Event::Error(_)) && text(&chunks, 0).len() == 3, "{end:?}");
}

#[tokio::test]
async fn heartbeats_keep_a_slow_node_and_the_deadline_ends_it() {
    let cluster = Cluster::start_with(Script::Letters, 1, |config| {
        config.request_timeout = Duration::from_millis(2500);
    })
    .await;
    // Longer than the silence that makes a node dead (0.8 s), but not silent.
    cluster.plan(Fault::Slow(Duration::from_millis(1500)));
    let (chunks, end) = stream(&cluster, json!({})).await;
    assert_eq!((text(&chunks, 0).len(), end), (40, Event::Done));
    assert_eq!(cluster.nodes[0].requests().len(), 2 - 1);

    cluster.plan(Fault::Slow(Duration::from_secs(60)));
    let (chunks, end) = stream(&cluster, json!({})).await;
    let Event::Error(error) = end else { panic!("{end:?}") };
    assert_eq!((text(&chunks, 0).len(), &error["error"]["code"]), (1, &json!("deadline_exceeded")));
    cluster.plan(Fault::Slow(Duration::from_secs(60)));
    let answer = post(cluster.http(), PLAIN, &body(json!({}))).await;
    assert_eq!(answer.status, 504);
    eventually("the node is free", async || cluster.active() == 0).await;
}
