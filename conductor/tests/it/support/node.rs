//! A decode node whose tokens are scripted and whose faults are planned.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::Stream;
use kvrail_kv::{DType, KvFormat, Namespace, NamespaceParts};
use kvrail_proto::v1;
use kvrail_proto::v1::conductor_client::ConductorClient;
use kvrail_proto::v1::decode_server::{Decode, DecodeServer};
use kvrail_proto::v1::{generate_reply, node_message};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};

use super::{MODEL, Process};

pub const EOS: u32 = 257;
const FORMAT: KvFormat = KvFormat { layers: 2, kv_heads: 1, head_dim: 8, block_tokens: 16, dtype: DType::F16 };

/// What the nodes say: a function of the request, the same on every node.
#[derive(Clone, Debug)]
pub enum Script {
    /// These bytes, a token each, then EOS; choice n begins at byte n.
    Text(&'static str),
    /// Letters by (seed, choice, index), for ever. Greedy requests have seed 0.
    Letters,
}

impl Script {
    pub fn token(&self, request: &v1::GenerateRequest, index: u32) -> u32 {
        let sampling = request.sampling.clone().unwrap_or_default();
        match self {
            Self::Text(text) => {
                let at = index as usize + sampling.choice as usize;
                text.as_bytes().get(at).map_or(EOS, |byte| u32::from(*byte))
            }
            Self::Letters => {
                let seed = if sampling.temperature == 0.0 { 0 } else { sampling.seed };
                let mut x = seed ^ (u64::from(sampling.choice) << 40) ^ (u64::from(index) << 20);
                x = x.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                97 + (x >> 40) as u32 % 26
            }
        }
    }
}

/// What goes wrong with one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The whole node dies after that many new tokens.
    Die(u32),
    /// The stream breaks.
    Break(u32),
    /// Nothing comes any more, not even heartbeats.
    Silence(u32),
    /// It sends what was forced again, and one token of it is another.
    Lie,
    /// A token is missing.
    Skip(u32),
    /// The last token comes, but not the word that it was the last.
    NoDone,
    /// It fails with this code after that many tokens; retryable or not.
    Fail(u32, &'static str, bool),
    /// Heartbeats for that long, and then it goes on.
    Slow(Duration),
}

/// What all nodes of a cluster have in common: the next requests, wherever they go, meet the planned faults in order.
pub struct Play {
    pub script: Script,
    pub faults: Mutex<VecDeque<Fault>>,
}

impl Play {
    pub fn new(script: Script) -> Arc<Self> {
        Arc::new(Self { script, faults: Mutex::default() })
    }
}

pub struct Shared {
    play: Arc<Play>,
    pub requests: Mutex<Vec<v1::GenerateRequest>>,
    active: AtomicUsize,
    /// Streams that ended before their end was sent.
    pub cancelled: AtomicUsize,
    pub pace: Mutex<Duration>,
    pub repeat_forced: std::sync::atomic::AtomicBool,
    /// Dropped to kill the node.
    life: Mutex<Option<std::sync::mpsc::Sender<()>>>,
}

impl Shared {
    fn kill(&self) {
        self.life.lock().take();
    }
}

pub struct FakeNode {
    pub shared: Arc<Shared>,
    pub address: SocketAddr,
}

pub fn node_info(name: &str, role: v1::Role, grpc: SocketAddr) -> v1::NodeInfo {
    let parts = NamespaceParts { model: "mock-digest", format: &FORMAT, numerics: "mock", adapter: "", salt: "" };
    v1::NodeInfo {
        node_id: name.into(),
        generation: rand::random(),
        role: role.into(),
        namespace_id: Namespace::new(&parts).id(),
        model: MODEL.into(),
        model_digest: "mock-digest".into(),
        numerics: "mock".into(),
        kv_format: FORMAT.to_string(),
        block_tokens: FORMAT.block_tokens,
        pool_blocks: 1000,
        context_tokens: 4096,
        grpc_address: grpc.to_string(),
        transfer_address: "127.0.0.1:1".into(),
        admin_address: String::new(),
    }
}

impl FakeNode {
    pub async fn start(name: &str, conductor: SocketAddr, play: Arc<Play>) -> Self {
        let (life, death) = std::sync::mpsc::channel();
        let shared = Arc::new(Shared {
            play,
            requests: Mutex::default(),
            active: AtomicUsize::new(0),
            cancelled: AtomicUsize::new(0),
            pace: Mutex::new(Duration::ZERO),
            repeat_forced: false.into(),
            life: Mutex::new(Some(life)),
        });
        let (ready, address) = oneshot::channel();
        let name = name.to_owned();
        let mut process = Process::start(|_| {
            let shared = Arc::clone(&shared);
            async move {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                let address = listener.local_addr().unwrap();
                let _ = ready.send(address);
                tokio::spawn(member(node_info(&name, v1::Role::Decode, address), conductor, Arc::clone(&shared)));
                let server = tonic::transport::Server::builder().add_service(DecodeServer::new(Rpc(shared)));
                server.serve_with_incoming(TcpIncoming::from(listener)).await.unwrap();
            }
        });
        let address = address.await.unwrap();
        // A node that plans its own death is killed from outside: its sockets break, its tasks are dropped.
        std::thread::spawn(move || {
            let _ = death.recv();
            process.kill();
        });
        Self { shared, address }
    }

    pub fn kill(&self) {
        self.shared.kill();
    }

    pub fn active(&self) -> usize {
        self.shared.active.load(Ordering::SeqCst)
    }

    pub fn requests(&self) -> Vec<v1::GenerateRequest> {
        self.shared.requests.lock().clone()
    }

    pub fn pace(&self, pace: Duration) {
        *self.shared.pace.lock() = pace;
    }
}

impl Drop for FakeNode {
    fn drop(&mut self) {
        self.kill();
    }
}

pub async fn connect(address: SocketAddr) -> Result<Channel, tonic::transport::Error> {
    Endpoint::from_shared(format!("http://{address}"))?.connect().await
}

/// Registers, reports, and comes back when the conductor does.
async fn member(info: v1::NodeInfo, conductor: SocketAddr, shared: Arc<Shared>) {
    let mut sequence = 0;
    loop {
        if let Ok(mut client) = connect(conductor).await.map(ConductorClient::new) {
            let (send, messages) = mpsc::channel(8);
            let wrap = |message| v1::NodeMessage { message: Some(message) };
            let _ = send.try_send(wrap(node_message::Message::Register(info.clone())));
            let snapshot = v1::KvSnapshot { next_sequence: 0, stored: vec![], last: true };
            let _ = send.try_send(wrap(node_message::Message::Snapshot(snapshot)));
            if let Ok(reply) = client.join(ReceiverStream::new(messages)).await {
                let mut replies = reply.into_inner();
                loop {
                    sequence += 1;
                    let running = shared.active.load(Ordering::SeqCst) as u32;
                    let load = v1::Load { sequence, running, blocks_free: 1000, ..v1::Load::default() };
                    if send.send(wrap(node_message::Message::Load(load))).await.is_err() {
                        break;
                    }
                    match tokio::time::timeout(Duration::from_millis(100), replies.message()).await {
                        Ok(Ok(Some(_))) | Err(_) => {}
                        Ok(_) => break,
                    }
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

struct Rpc(Arc<Shared>);

/// Counts a stream while it lives, and as cancelled if it ends before its end was sent.
struct Active {
    shared: Arc<Shared>,
    ended: bool,
}

impl Drop for Active {
    fn drop(&mut self) {
        self.shared.active.fetch_sub(1, Ordering::SeqCst);
        if !self.ended {
            self.shared.cancelled.fetch_add(1, Ordering::SeqCst);
        }
    }
}

type Reply = Result<v1::GenerateReply, Status>;

fn reply(message: generate_reply::Message) -> Reply {
    Ok(v1::GenerateReply { message: Some(message) })
}

#[tonic::async_trait]
impl Decode for Rpc {
    type GenerateStream = Pin<Box<dyn Stream<Item = Reply> + Send>>;

    async fn generate(&self, request: Request<v1::GenerateRequest>) -> Result<Response<Self::GenerateStream>, Status> {
        let request = request.into_inner();
        let shared = Arc::clone(&self.0);
        shared.requests.lock().push(request.clone());
        shared.active.fetch_add(1, Ordering::SeqCst);
        let fault = shared.play.faults.lock().pop_front();
        let active = Active { shared: Arc::clone(&shared), ended: false };
        let (send, replies) = mpsc::channel(4);
        tokio::spawn(async move {
            let mut active = active;
            let speaking = speak(&shared, &request, fault, &send);
            tokio::select! {
                ended = speaking => active.ended = ended.is_some(),
                () = send.closed() => {}
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(replies))))
    }
}

fn token(script: &Script, request: &v1::GenerateRequest, index: u32) -> generate_reply::Message {
    let sampling = request.sampling.clone().unwrap_or_default();
    let token = script.token(request, index);
    let logprob = |at: u32| -(0.5 + (index + at) as f32 / 8.0);
    let top = (0..sampling.top_logprobs).map(|at| v1::TokenLogprob { token: token + at, logprob: logprob(at) });
    let logprob = if sampling.logprobs { logprob(0) } else { 0.0 };
    generate_reply::Message::Token(v1::Token { index, token, logprob, top: top.collect() })
}

/// `None`: the client went away.
async fn speak(
    shared: &Shared,
    request: &v1::GenerateRequest,
    fault: Option<Fault>,
    send: &mpsc::Sender<Reply>,
) -> Option<()> {
    let fail = |code: &str, retryable| {
        let message = format!("planned: {code}");
        let failure = v1::Failure { code: code.into(), message, retryable, retry_after_ms: 2000 };
        reply(generate_reply::Message::Failure(failure))
    };
    let rule = request.stop.clone().unwrap_or_default();
    let forced = request.forced.len() as u32;
    if let Some(Fault::Fail(0, code, retryable)) = fault {
        return send.send(fail(code, retryable)).await.ok();
    }
    let accepted = v1::GenerateAccepted { cached_tokens: 16 };
    send.send(reply(generate_reply::Message::Accepted(accepted))).await.ok()?;
    for (at, known) in request.forced.iter().enumerate() {
        assert_eq!(*known, shared.play.script.token(request, at as u32), "forced tokens are those of the script");
    }
    if shared.repeat_forced.load(Ordering::SeqCst) || fault == Some(Fault::Lie) {
        for index in 0..forced {
            let mut message = token(&shared.play.script, request, index);
            if let (generate_reply::Message::Token(token), Some(Fault::Lie), 0) = (&mut message, fault, index) {
                token.token ^= 1;
            }
            send.send(reply(message)).await.ok()?;
        }
    }
    for index in forced..rule.max_tokens {
        let new = index - forced;
        match fault {
            Some(Fault::Die(n)) if n == new => {
                shared.kill();
                std::future::pending::<()>().await;
            }
            Some(Fault::Break(n)) if n == new => {
                return send.send(Err(Status::unavailable("planned break"))).await.ok();
            }
            Some(Fault::Silence(n)) if n == new => std::future::pending().await,
            Some(Fault::Skip(n)) if n == new => {
                return send.send(reply(token(&shared.play.script, request, index + 1))).await.ok();
            }
            Some(Fault::Fail(n, code, retryable)) if n == new => return send.send(fail(code, retryable)).await.ok(),
            Some(Fault::Slow(time)) if new == 1 => {
                for _ in 0..time.as_millis() / 100 {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    send.send(reply(generate_reply::Message::Heartbeat(v1::Heartbeat {}))).await.ok()?;
                }
            }
            _ => {}
        }
        let pace = *shared.pace.lock();
        if !pace.is_zero() {
            tokio::time::sleep(pace).await;
        }
        send.send(reply(token(&shared.play.script, request, index))).await.ok()?;
        let end = shared.play.script.token(request, index) == EOS && !rule.ignore_eos;
        if end || index + 1 == rule.max_tokens {
            if fault == Some(Fault::NoDone) {
                return send.send(Err(Status::unavailable("planned: no end"))).await.ok();
            }
            let reason = if end { v1::FinishReason::Stop } else { v1::FinishReason::Length };
            let done = v1::GenerateDone {
                reason: reason.into(),
                output_tokens: index + 1,
                cached_tokens: 16,
                ..v1::GenerateDone::default()
            };
            return send.send(reply(generate_reply::Message::Done(done))).await.ok();
        }
    }
    Some(())
}
