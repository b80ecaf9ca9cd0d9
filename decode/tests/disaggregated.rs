//! Prefill and decode apart, with the real prefill service and the real transfer engine: what comes out is what one node
//! alone would have said.

mod common;

use std::time::Duration;

use common::prefill::Prefill;
use common::{Answer, Decode, assert_right, config, config_of, expected, model, prompt, request, seeded};
use kvrail_engine::mock::StepModel;
use kvrail_node::{ModelSource, NodeConfig, PoolSize, Role};
use kvrail_proto::v1;
use kvrail_transfer::TransportKind;

const SHM: TransportKind = TransportKind::Shm;
const TCP: TransportKind = TransportKind::Tcp;

fn with(request: v1::GenerateRequest, prefill: &[&Prefill]) -> v1::GenerateRequest {
    v1::GenerateRequest { prefill: prefill.iter().map(|p| p.choice()).collect(), ..request }
}

async fn decode(pool_blocks: u32, transport: TransportKind) -> Decode {
    let mut config = config(pool_blocks);
    config.node.transfer.transports = vec![transport];
    Decode::start(config).await
}

#[tokio::test]
async fn answers_are_the_same_cold_and_warm_over_both_transports_and_every_byte_is_counted() {
    for transport in [SHM, TCP] {
        let p = Prefill::start("p0", vec![transport]).await;
        let d = decode(256, transport).await;
        let (token_bytes, mut moved) = (model().format.token_bytes(), 0);
        for (i, tokens) in [1, 2, 15, 16, 17, 100, 333, 1000].into_iter().enumerate() {
            let cold_request = seeded(prompt(i as u32, tokens), 12, 42);
            let cold = d.ask(with(cold_request.clone(), &[&p])).await;
            assert_right(&cold_request, &cold);
            assert_eq!(cold.done().prefill_node, "p0", "{tokens} tokens over {transport:?}");
            assert_eq!(cold.done().kv_payload_bytes, tokens as u64 * token_bytes);
            // The same prompt, other sampling: D holds the whole blocks, P sends the tail alone.
            let warm_request = request(prompt(i as u32, tokens), 12);
            let warm = d.ask(with(warm_request.clone(), &[&p])).await;
            assert_right(&warm_request, &warm);
            let held = (tokens as u64 - 1) / 16 * 16;
            assert_eq!(u64::from(warm.done().cached_tokens), held);
            assert_eq!(warm.done().kv_payload_bytes, (tokens as u64 - held) * token_bytes);
            moved += cold.done().kv_payload_bytes + warm.done().kv_payload_bytes;
        }
        let status = d.wait_idle().await;
        assert_eq!(status["kv"]["payload_bytes"], moved);
        assert_eq!(status["requests"]["prefilled_remote"], 16);
        assert_eq!(status["requests"]["prefilled_local"], 0);
        p.wait_idle().await;
        d.stop().await;
    }
}

#[tokio::test]
async fn two_thousand_requests_at_once_are_what_one_node_alone_says() {
    let (p, q) = (Prefill::start("p0", vec![SHM, TCP]).await, Prefill::start("p1", vec![SHM, TCP]).await);
    // Headroom for about thirty of them at a time.
    let d = Decode::start(config(300)).await;
    let requests: Vec<_> = (0..2000u32)
        .map(|i| {
            let mut tokens = prompt(i % 20, (i % 20) as usize * 6);
            tokens.extend(prompt(1000 + i, 1 + (i as usize * 7) % 60));
            let max_tokens = 1 + i % 24;
            let request = if i % 2 == 0 { request(tokens, max_tokens) } else { seeded(tokens, max_tokens, i.into()) };
            let order = if i % 3 == 0 { [&p, &q] } else { [&q, &p] };
            with(request, &order)
        })
        .collect();
    let answers = ask_all(&d, &requests).await;
    for (request, answer) in requests.iter().zip(&answers) {
        assert_right(request, answer);
    }
    let status = d.wait_idle().await;
    assert_eq!(status["requests"]["finished"], 2000);
    assert_eq!(status["requests"]["prefill_failures"], 0, "{}", d.metrics("kvrail_prefill_failures").await);
    let remote = answers.iter().filter(|a| !a.done().prefill_node.is_empty()).count();
    assert_eq!(remote, 2000, "every prompt came from a prefill node");
    let payload: u64 = answers.iter().map(|a| a.done().kv_payload_bytes).sum();
    assert_eq!(status["kv"]["payload_bytes"], payload);
    p.wait_idle().await;
    q.wait_idle().await;
    d.stop().await;
}

/// The last layers of a prompt are handed over when there is room at last: only then, and not when they are computed, may
/// the decode node be told that all is there. A token of the mock hangs on every byte of the KV before it.
#[tokio::test]
async fn a_full_transfer_engine_delays_the_answer_and_changes_nothing() {
    for (transport, transfers_max) in [(SHM, 1), (TCP, 1), (SHM, 3), (TCP, 3)] {
        let mut node = NodeConfig::local("p0", Role::Prefill, ModelSource::Mock(model()), PoolSize::Blocks(512));
        node.transfer.transports = vec![transport];
        node.transfer.transfers_max = transfers_max;
        let p = Prefill::start_node(node).await;
        let d = decode(512, transport).await;
        let requests: Vec<_> =
            (0..100u32).map(|i| with(seeded(prompt(i, 1 + i as usize * 37 % 400), 6, i.into()), &[&p])).collect();
        let answers = ask_all(&d, &requests).await;
        for (request, answer) in requests.iter().zip(&answers) {
            assert_right(request, answer);
            assert_eq!(answer.done().prefill_node, "p0", "{:?}", request.request_id);
            let payload = request.prompt.len() as u64 * model().format.token_bytes();
            assert_eq!(answer.done().kv_payload_bytes, payload, "{:?}", request.request_id);
        }
        p.wait_idle().await;
        let status = p.status().await;
        assert!(status["kv"]["waits"].as_u64() > Some(0), "the engine was never full: {status}");
        d.wait_idle().await;
        d.stop().await;
    }
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

/// A prefill node that takes this long for a token.
async fn slow_prefill(node_id: &str, prefill_per_token: Duration) -> Prefill {
    let mut model = model();
    model.step = StepModel::Constant { prefill_per_token, decode_step: Duration::from_millis(1) };
    Prefill::start_with(node_id, model, vec![SHM, TCP]).await
}

#[tokio::test]
async fn the_first_token_does_not_wait_for_the_second() {
    let p = Prefill::start("p0", vec![SHM]).await;
    let mut slow = model();
    slow.step = StepModel::Constant { prefill_per_token: Duration::ZERO, decode_step: Duration::from_millis(400) };
    let d = Decode::start(config_of(slow, 64)).await;
    let asked = request(prompt(1, 50), 3);
    let mut stream = d.open(with(asked, &[&p])).await;
    let began = std::time::Instant::now();
    loop {
        let reply = stream.message().await.expect("open").expect("a message");
        if let Some(v1::generate_reply::Message::Token(token)) = reply.message {
            assert_eq!(token.index, 0);
            break;
        }
    }
    assert!(began.elapsed() < Duration::from_millis(350), "before the first decode step ends: {:?}", began.elapsed());
    assert_eq!(Answer::of(stream).await.tokens.len(), 2);
    d.stop().await;
}

#[tokio::test]
async fn prefill_nodes_that_die_cost_time_and_nothing_else() {
    let mut config = config(256);
    config.prefill_silence_max = Duration::from_secs(5);
    config.node.grpc.keepalive = Duration::from_millis(200);
    config.node.grpc.keepalive_timeout = Duration::from_millis(300);
    let d = Decode::start(config).await;
    for round in 0..5u32 {
        let mut p = slow_prefill("p0", Duration::from_millis(1)).await;
        let q = Prefill::start("p1", vec![SHM, TCP]).await;
        let requests: Vec<_> = (0..6)
            .map(|i| {
                let request = seeded(prompt(100 * round + i, 400), 10, 3);
                if i % 2 == 0 { with(request, &[&p, &q]) } else { with(request, &[&p]) }
            })
            .collect();
        let asked = tokio::spawn({
            let (client, requests) = (d.client.clone(), requests.clone());
            async move {
                let mut asking = vec![];
                for request in requests {
                    let mut client = client.clone();
                    asking.push(tokio::spawn(async move {
                        Answer::of(client.generate(request).await.expect("a stream").into_inner()).await
                    }));
                }
                let mut answers = vec![];
                for one in asking {
                    answers.push(one.await.expect("no panic"));
                }
                answers
            }
        });
        d.wait_for("blocks on loan", |s| s["leases"].as_u64() > Some(0)).await;
        tokio::time::sleep(Duration::from_millis(u64::from(round) * 150)).await;
        p.kill();
        let answers = asked.await.expect("no panic");
        for (request, answer) in requests.iter().zip(&answers) {
            assert_right(request, answer);
        }
        d.wait_idle().await;
        q.wait_idle().await;
    }
    d.stop().await;
}

#[tokio::test]
async fn a_cancelled_hand_off_leaves_nothing_on_either_side() {
    // Long enough that a busy machine cannot miss the loan.
    let p = slow_prefill("p0", Duration::from_millis(10)).await;
    let d = Decode::start(config(256)).await;
    for round in 0..5u64 {
        let stream = d.open(with(seeded(prompt(round as u32, 500), 10, 3), &[&p])).await;
        d.wait_for("blocks on loan", |s| s["leases"].as_u64() > Some(0)).await;
        tokio::time::sleep(Duration::from_millis(round * 60)).await;
        drop(stream);
        d.wait_idle().await;
        p.wait_idle().await;
    }
    let asked = seeded(prompt(0, 50), 10, 3);
    assert_right(&asked, &d.ask(with(asked.clone(), &[&p])).await);
    assert_eq!(d.status().await["requests"]["cancelled"], 5);
    d.stop().await;
}

#[tokio::test]
async fn a_stream_moves_between_decode_nodes_with_a_prefill_node_in_between() {
    let p = Prefill::start("p0", vec![SHM, TCP]).await;
    let (a, b) = (Decode::start(config(64)).await, Decode::start(config(64)).await);
    let asked = seeded(prompt(5, 70), 30, 8);
    let whole = expected(&asked).0;
    let mut stream = a.open(with(asked.clone(), &[&p])).await;
    let mut forced = vec![];
    while forced.len() < 11 {
        let reply = stream.message().await.expect("open").expect("a message");
        if let Some(v1::generate_reply::Message::Token(token)) = reply.message {
            forced.push(token.token);
        }
    }
    drop(stream);
    let moved = v1::GenerateRequest { forced, ..asked };
    let rest = b.ask(with(moved, &[&p])).await;
    assert_eq!(rest.tokens, whole[11..]);
    assert_eq!(rest.done().prefill_node, "p0");
    for d in [a, b] {
        d.wait_idle().await;
        d.stop().await;
    }
}
