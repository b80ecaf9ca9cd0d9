//! A decode node in this process, a client that speaks to it, and the answers it must give.
#![allow(dead_code, reason = "each test file uses its part")]

pub mod fake;
pub mod prefill;

use std::net::SocketAddr;
use std::time::Duration;

use kvrail_decode::DecodeConfig;
use kvrail_engine::Executor;
use kvrail_engine::mock::{MockExecutor, MockOptions};
use kvrail_engine::sampling::Sampler;
use kvrail_node::grpc::{self, GrpcConfig};
use kvrail_node::{BoundAddresses, ModelSource, NodeConfig, NodeError, PoolSize, Role, convert};
use kvrail_proto::v1::decode_client::DecodeClient;
use kvrail_proto::v1::generate_reply::Message;
use kvrail_proto::v1::{self, GenerateRequest};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::Streaming;
use tonic::transport::Channel;

/// The model of every test.
pub fn model() -> MockOptions {
    MockOptions::default()
}

pub fn config(pool_blocks: u32) -> DecodeConfig {
    config_of(model(), pool_blocks)
}

pub fn config_of(model: MockOptions, pool_blocks: u32) -> DecodeConfig {
    let node = NodeConfig::local("d0", Role::Decode, ModelSource::Mock(model), PoolSize::Blocks(pool_blocks));
    DecodeConfig { queue_wait_max: Duration::from_secs(60), ..DecodeConfig::new(node) }
}

/// Time that requests get to end.
const DRAIN_MAX: Duration = Duration::from_secs(30);

/// A running decode node.
pub struct Decode {
    pub at: BoundAddresses,
    pub client: DecodeClient<Channel>,
    stop: Option<oneshot::Sender<Duration>>,
    task: JoinHandle<Result<(), NodeError>>,
}

impl Decode {
    pub async fn start(config: DecodeConfig) -> Self {
        let (stop, stopped) = oneshot::channel();
        let (ready, is_ready) = oneshot::channel();
        let task = tokio::spawn(async move {
            let shutdown = async { stopped.await.unwrap_or(DRAIN_MAX) };
            kvrail_decode::serve(config, move |at| ready.send(*at).expect("the test waits"), shutdown).await
        });
        let at = is_ready.await.expect("ready");
        let channel = grpc::channel(&GrpcConfig::default(), &at.grpc.to_string()).expect("an address");
        let client = DecodeClient::new(channel);
        Self { at, client, stop: Some(stop), task }
    }

    /// Asks for an answer and returns its stream.
    pub async fn open(&self, request: GenerateRequest) -> Streaming<v1::GenerateReply> {
        self.client.clone().generate(request).await.expect("a stream").into_inner()
    }

    /// Asks for an answer and takes it all.
    pub async fn ask(&self, request: GenerateRequest) -> Answer {
        Answer::of(self.open(request).await).await
    }

    pub async fn status(&self) -> Value {
        serde_json::from_str(&get(self.at.admin, "/status").await).expect("JSON")
    }

    /// The lines of the metrics that begin with `name`.
    pub async fn metrics(&self, name: &str) -> String {
        let all = get(self.at.admin, "/metrics").await;
        all.lines().filter(|line| line.starts_with(name)).collect::<Vec<_>>().join("\n")
    }

    /// Waits until the status is what `wanted` wants.
    pub async fn wait_for(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        for _ in 0..1000 {
            let status = self.status().await;
            if wanted(&status) {
                return status;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{what} did not come: {}", self.status().await);
    }

    /// Every counter of things held returns to zero.
    pub async fn wait_idle(&self) -> Value {
        self.wait_for("rest", is_idle).await
    }

    /// Tells it to go, as SIGTERM does.
    pub fn begin_stop(&mut self) {
        self.begin_stop_within(DRAIN_MAX);
    }

    /// Tells it to go, and how long requests may take to end.
    pub fn begin_stop_within(&mut self, drain_max: Duration) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(drain_max);
        }
    }

    pub async fn stop(mut self) {
        self.begin_stop();
        self.task.await.expect("no panic").expect("a clean end");
    }
}

/// Whether a node holds nothing for anybody.
pub fn is_idle(status: &Value) -> bool {
    let zero = |at: &str| status.pointer(at).and_then(Value::as_u64) == Some(0);
    let held = ["shared", "private", "writing", "reserved", "quarantined"];
    held.iter().all(|state| zero(&format!("/blocks/{state}")))
        && ["/requests/running", "/requests/queued", "/leases", "/transfers", "/in_flight"].into_iter().all(zero)
}

pub async fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.expect("listens");
    let request = format!("GET {path} HTTP/1.1\r\nhost: n\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("text");
    answer.split_once("\r\n\r\n").expect("a body").1.to_owned()
}

/// An answer, whole or not.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    pub tokens: Vec<v1::Token>,
    pub accepted: Option<v1::GenerateAccepted>,
    pub done: Option<v1::GenerateDone>,
    pub failure: Option<v1::Failure>,
    pub heartbeats: u32,
}

impl Answer {
    pub async fn of(mut stream: Streaming<v1::GenerateReply>) -> Self {
        let mut answer = Self::default();
        answer.take(&mut stream).await;
        answer
    }

    /// Takes what is left of a stream; dropped before its end, it has what came until then.
    pub async fn take(&mut self, stream: &mut Streaming<v1::GenerateReply>) {
        while self.take_next(stream).await {}
    }

    /// Takes the next message; false at the end.
    pub async fn take_next(&mut self, stream: &mut Streaming<v1::GenerateReply>) -> bool {
        let Some(reply) = stream.message().await.expect("an open stream") else { return false };
        assert!(self.done.is_none() && self.failure.is_none(), "nothing follows the end");
        match reply.message.expect("a message") {
            Message::Token(token) => self.tokens.push(token),
            Message::Done(done) => self.done = Some(done),
            Message::Failure(failure) => self.failure = Some(failure),
            Message::Accepted(accepted) => self.accepted = Some(accepted),
            Message::Heartbeat(_) => self.heartbeats += 1,
        }
        true
    }

    pub fn ids(&self) -> Vec<u32> {
        self.tokens.iter().map(|t| t.token).collect()
    }

    pub fn done(&self) -> &v1::GenerateDone {
        self.done.as_ref().unwrap_or_else(|| panic!("not whole: {self:?}"))
    }

    pub fn failure_code(&self) -> &str {
        &self.failure.as_ref().unwrap_or_else(|| panic!("no failure: {self:?}")).code
    }
}

/// `tokens` pseudo-random tokens.
pub fn prompt(seed: u32, tokens: usize) -> Vec<u32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state % 256
    };
    (0..tokens).map(|_| next()).collect()
}

pub fn namespace_id(model: &MockOptions) -> u64 {
    let executor = MockExecutor::new(model.clone()).expect("a model");
    let spec = executor.spec();
    let parts = kvrail_kv::NamespaceParts {
        model: &spec.digest,
        format: &spec.format,
        numerics: &spec.numerics,
        adapter: "",
        salt: "",
    };
    kvrail_kv::Namespace::new(&parts).id()
}

/// A greedy request.
pub fn request(prompt: Vec<u32>, max_tokens: u32) -> GenerateRequest {
    GenerateRequest {
        request_id: format!("r{}", prompt.len()),
        namespace_id: namespace_id(&model()),
        prompt,
        sampling: Some(v1::Sampling { top_p: 1.0, repetition_penalty: 1.0, ..Default::default() }),
        stop: Some(v1::StopRule { max_tokens, ignore_eos: true, ..Default::default() }),
        deadline_ms: 60_000,
        ..Default::default()
    }
}

/// The same with seeded sampling, penalties and logprobs.
pub fn seeded(prompt: Vec<u32>, max_tokens: u32, seed: u64) -> GenerateRequest {
    let sampling = v1::Sampling {
        temperature: 0.9,
        top_k: 50,
        top_p: 0.95,
        repetition_penalty: 1.2,
        frequency_penalty: 0.3,
        seed,
        logprobs: true,
        top_logprobs: 2,
        ..Default::default()
    };
    GenerateRequest { sampling: Some(sampling), ..request(prompt, max_tokens) }
}

/// The answer that is right, from the tokens alone: no blocks, no batch, no service.
pub fn expected(request: &GenerateRequest) -> (Vec<v1::Token>, v1::FinishReason) {
    let executor = MockExecutor::new(model()).expect("a model");
    let spec = executor.spec();
    let params = convert::sampling(request.sampling.clone(), spec).expect("valid");
    let stop = convert::stop_rule(request.stop.clone(), spec).expect("valid");
    let mut sampler = Sampler::new(params, stop, &request.prompt).expect("valid");
    let (mut tokens, mut answer) = (request.prompt.clone(), vec![]);
    for &token in &request.forced {
        assert_eq!(sampler.push(token), None);
        tokens.push(token);
    }
    loop {
        let sampled = sampler.sample(&executor.arithmetic().expected_logits(&tokens)).expect("a token");
        answer.push(convert::token(sampler.outputs(), &sampled));
        tokens.push(sampled.token);
        if let Some(finish) = sampler.push(sampled.token) {
            return (answer, convert::finish_reason(finish));
        }
    }
}

pub fn assert_right(request: &GenerateRequest, answer: &Answer) {
    let (tokens, reason) = expected(request);
    assert_eq!(answer.ids(), tokens.iter().map(|t| t.token).collect::<Vec<_>>(), "{:?}", request.request_id);
    assert_eq!(answer.tokens, tokens, "logprobs too");
    assert_eq!(answer.done().reason(), reason);
    assert_eq!(answer.done().output_tokens as usize, request.forced.len() + tokens.len());
}
