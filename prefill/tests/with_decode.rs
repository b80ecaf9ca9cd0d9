//! Real prefill nodes and a real decode node in one process: what a client hears is what the model alone would have said,
//! token by token with its log-probabilities, over both transports, cold and warm, with forced outputs, in a crowd.

mod support;

use std::sync::Arc;

use kvrail_decode::DecodeConfig;
use kvrail_engine::mock::{MockExecutor, MockOptions};
use kvrail_engine::sampling::Sampler;
use kvrail_engine::{Executor, ModelSpec};
use kvrail_node::grpc::{self, GrpcConfig};
use kvrail_node::{ModelSource, NodeConfig, PoolSize, Role, convert};
use kvrail_proto::v1;
use kvrail_proto::v1::decode_client::DecodeClient;
use kvrail_proto::v1::generate_reply::Message;
use kvrail_transfer::TransportKind;
use support::{Node, PATIENCE, get, prompt, within};
use tokio::sync::oneshot;
use tonic::transport::Channel;

const MODEL: &str = "mock:layers=3,kv_heads=2,head_dim=8,block_tokens=16";
/// More requests than the pools hold at once.
const REQUESTS: u32 = 60;

/// The answer from the tokens alone: no blocks, no batch, no service.
fn expected(executor: &MockExecutor, request: &v1::GenerateRequest) -> Vec<v1::Token> {
    let spec: &ModelSpec = executor.spec();
    let params = convert::sampling(request.sampling.clone(), spec).expect("valid");
    let stop = convert::stop_rule(request.stop.clone(), spec).expect("valid");
    let mut sampler = Sampler::new(params, stop, &request.prompt).expect("valid");
    let mut tokens = request.prompt.clone();
    for &token in &request.forced {
        sampler.push(token);
        tokens.push(token);
    }
    let mut answer = Vec::new();
    loop {
        let sampled = sampler.sample(&executor.arithmetic().expected_logits(&tokens)).expect("a token");
        answer.push(convert::token(sampler.outputs(), &sampled));
        tokens.push(sampled.token);
        if sampler.push(sampled.token).is_some() {
            return answer;
        }
    }
}

/// Prompts of 1 to 300 tokens from a few families that share prefixes; greedy and seeded; some with a forced output.
fn request(i: u32, namespace_id: u64, prefill: &[&Node]) -> v1::GenerateRequest {
    let mut tokens = prompt(i % 7, 1 + i * 53 % 300);
    if i.is_multiple_of(4)
        && let Some(token) = tokens.get_mut(40)
    {
        *token ^= 1;
    }
    let greedy = v1::Sampling { top_p: 1.0, repetition_penalty: 1.0, ..Default::default() };
    let seeded = v1::Sampling {
        temperature: 0.8,
        top_p: 0.9,
        repetition_penalty: 1.2,
        presence_penalty: 0.4,
        seed: u64::from(i),
        logprobs: true,
        top_logprobs: 2,
        ..greedy.clone()
    };
    let mut choices: Vec<v1::PrefillChoice> = prefill
        .iter()
        .map(|p| v1::PrefillChoice {
            node_id: p.addresses.grpc.to_string(),
            grpc_address: p.addresses.grpc.to_string(),
        })
        .collect();
    choices.rotate_left(i as usize % prefill.len());
    v1::GenerateRequest {
        request_id: i.to_string(),
        namespace_id,
        prompt: tokens,
        forced: if i.is_multiple_of(5) { prompt(i, 6) } else { vec![] },
        sampling: Some(if i.is_multiple_of(2) { greedy } else { seeded }),
        stop: Some(v1::StopRule { max_tokens: 8, ignore_eos: true, ..Default::default() }),
        deadline_ms: PATIENCE.as_millis() as u64,
        prefill: choices,
        ..Default::default()
    }
}

async fn ask(mut client: DecodeClient<Channel>, request: v1::GenerateRequest) -> (Vec<v1::Token>, v1::GenerateDone) {
    let mut stream = client.generate(request).await.expect("a stream").into_inner();
    let (mut tokens, mut end) = (Vec::new(), None);
    while let Some(reply) = stream.message().await.expect("an open stream") {
        match reply.message.expect("content") {
            Message::Token(token) => tokens.push(token),
            Message::Done(done) => end = Some(done),
            Message::Failure(failure) => panic!("failed: {failure:?}"),
            Message::Accepted(_) | Message::Heartbeat(_) => {}
        }
    }
    (tokens, end.expect("done"))
}

async fn answers_are_those_of_the_model_alone(transport: TransportKind) {
    let small = |config: &mut kvrail_prefill::PrefillConfig| config.node.pool = PoolSize::Blocks(80);
    let (p0, p1) = (Node::start(MODEL, transport, small).await, Node::start(MODEL, transport, small).await);
    let options = MockOptions::parse(MODEL).expect("a model");
    let executor = Arc::new(MockExecutor::new(options.clone()).expect("a model"));
    let mut node = NodeConfig::local("d0", Role::Decode, ModelSource::Mock(options), PoolSize::Blocks(120));
    node.transfer.transports = vec![transport];
    let (tell, ready) = oneshot::channel();
    let (stop, stopped) = oneshot::channel::<()>();
    let decode = tokio::spawn(kvrail_decode::serve(
        DecodeConfig { queue_wait_max: PATIENCE, ..DecodeConfig::new(node) },
        move |at| {
            let _ = tell.send(*at);
        },
        async move {
            drop(stopped.await);
            PATIENCE
        },
    ));
    let at = within("the decode node", ready).await.expect("it starts");
    let client = DecodeClient::new(grpc::channel(&GrpcConfig::default(), &at.grpc.to_string()).expect("an address"));
    let status = async || -> serde_json::Value { serde_json::from_str(&get(at.admin, "/status").await).expect("JSON") };
    let namespace =
        status().await["namespace"].as_str().map(|id| u64::from_str_radix(id, 16)).expect("told").expect("hex");

    for round in ["cold", "warm"] {
        let asked: Vec<_> = (0..REQUESTS)
            .map(|i| {
                let request = request(i, namespace, &[&p0, &p1]);
                tokio::spawn(is_right(client.clone(), Arc::clone(&executor), request))
            })
            .collect();
        let mut remote = 0;
        for answer in asked {
            remote += u32::from(within("an answer", answer).await.expect("it is right"));
        }
        assert!(round == "warm" || remote > REQUESTS / 2, "only {remote} of {REQUESTS} were prefilled remotely");
    }

    let (mut sent, mut computed) = (0, 0);
    for node in [&p0, &p1] {
        let status = node.idle().await;
        sent += status["kv"]["payload_bytes"].as_u64().expect("a number");
        computed += status["prefill"]["computed_tokens"].as_u64().expect("a number");
    }
    assert!(computed > 0);
    let status = within("the decode node to rest", async {
        loop {
            let status = status().await;
            if status["requests"]["running"] == 0 && status["leases"] == 0 && status["blocks"]["shared"] == 0 {
                return status;
            }
        }
    })
    .await;
    assert_eq!(status["kv"]["payload_bytes"], sent, "what the prefill nodes sent is what the decode node counts");
    assert_eq!(status["requests"]["prefill_failures"], 0);
    let _ = stop.send(());
    within("the decode node to stop", decode).await.expect("no panic").expect("a clean end");
    p0.stop().await;
    p1.stop().await;
}

/// Asks, compares; whether a prefill node did it.
async fn is_right(client: DecodeClient<Channel>, executor: Arc<MockExecutor>, request: v1::GenerateRequest) -> bool {
    let expected = expected(&executor, &request);
    let (tokens, done) = ask(client, request.clone()).await;
    assert_eq!(tokens, expected, "request {}", request.request_id);
    !done.prefill_node.is_empty()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_those_of_the_model_alone_over_tcp() {
    answers_are_those_of_the_model_alone(TransportKind::Tcp).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_those_of_the_model_alone_over_shared_memory() {
    answers_are_those_of_the_model_alone(TransportKind::Shm).await;
}
