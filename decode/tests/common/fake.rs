//! A prefill node that follows a script instead of computing.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use kvrail_node::Failure;
use kvrail_node::FailureCode;
use kvrail_node::grpc::{self, GrpcConfig};
use kvrail_proto::v1::prefill_reply::Message;
use kvrail_proto::v1::prefill_server::{Prefill, PrefillServer};
use kvrail_proto::v1::{self, prefill_request};
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// What the node does with every request.
#[derive(Clone, Copy, Debug)]
pub enum Script {
    /// Refuses it.
    Refuse(FailureCode),
    /// Never says a word.
    Mute,
    /// Takes it into its queue for ever.
    Queue,
    /// Asks for blocks, then breaks the stream.
    BreakAfterLease,
    /// Asks for blocks, sends the right first token, then breaks the stream.
    BreakAfterToken,
    /// Sends the right first token and claims to be done, without a byte.
    ClaimDone,
    /// Sends a message out of turn.
    OutOfTurn,
    /// Asks for blocks and falls silent.
    SilentAfterLease,
}

/// What it saw.
#[derive(Debug, Default)]
pub struct Seen {
    pub started: AtomicU32,
    pub cancelled: AtomicU32,
    pub closed: AtomicU32,
}

pub struct Fake {
    pub address: SocketAddr,
    pub seen: Arc<Seen>,
}

impl Fake {
    pub async fn start(script: Script) -> Self {
        let listener = grpc::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.expect("free port");
        let address = listener.local_addr().expect("bound");
        let seen = Arc::new(Seen::default());
        let server = PrefillServer::new(Service { script, seen: Arc::clone(&seen) });
        tokio::spawn(async move {
            let routes = tonic::service::Routes::new(server);
            let config = GrpcConfig::default();
            grpc::serve(&config, listener, routes, std::future::pending(), Duration::ZERO).await
        });
        Self { address, seen }
    }

    pub fn choice(&self) -> v1::PrefillChoice {
        choice(self.address)
    }
}

pub fn choice(address: SocketAddr) -> v1::PrefillChoice {
    v1::PrefillChoice { node_id: "p0".into(), grpc_address: address.to_string() }
}

struct Service {
    script: Script,
    seen: Arc<Seen>,
}

type Replies = Pin<Box<dyn Stream<Item = Result<v1::PrefillReply, Status>> + Send>>;

#[tonic::async_trait]
impl Prefill for Service {
    type RunStream = Replies;

    async fn run(&self, request: Request<Streaming<v1::PrefillRequest>>) -> Result<Response<Replies>, Status> {
        let mut requests = request.into_inner();
        let (tx, rx) = mpsc::channel(8);
        let (script, seen) = (self.script, Arc::clone(&self.seen));
        tokio::spawn(async move {
            let Ok(Some(v1::PrefillRequest { message: Some(prefill_request::Message::Start(start)) })) =
                requests.message().await
            else {
                panic!("a start comes first")
            };
            seen.started.fetch_add(1, Ordering::Relaxed);
            act(script, &start, &tx, &mut requests).await;
            let ends = matches!(script, Script::BreakAfterLease | Script::BreakAfterToken | Script::Refuse(_));
            if ends {
                drop(tx);
                return;
            }
            while let Ok(Some(message)) = requests.message().await {
                if matches!(message.message, Some(prefill_request::Message::Cancel(_))) {
                    seen.cancelled.fetch_add(1, Ordering::Relaxed);
                }
            }
            seen.closed.fetch_add(1, Ordering::Relaxed);
            drop(tx);
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(rx))))
    }
}

async fn act(
    script: Script,
    start: &v1::PrefillStart,
    tx: &mpsc::Sender<Result<v1::PrefillReply, Status>>,
    requests: &mut Streaming<v1::PrefillRequest>,
) {
    let say = async |message| drop(tx.send(Ok(v1::PrefillReply { message: Some(message) })).await);
    let queued = Message::Queued(v1::PrefillQueued::default());
    let block_tokens = super::model().format.block_tokens;
    let wanted = v1::LeaseWanted {
        first_block: start.blocks_held,
        count: (start.tokens.len() as u32).div_ceil(block_tokens) - start.blocks_held,
    };
    let first = || {
        let forced = start.tokens[start.prompt_tokens as usize..].to_vec();
        let request = v1::GenerateRequest {
            prompt: start.tokens[..start.prompt_tokens as usize].to_vec(),
            forced,
            sampling: start.sampling.clone(),
            stop: start.stop.clone(),
            ..Default::default()
        };
        let token = super::expected(&request).0.swap_remove(0);
        Message::FirstToken(v1::FirstToken { token: Some(token), ..Default::default() })
    };
    match script {
        Script::Refuse(code) => say(Message::Failure(Failure::new(code, "scripted").into())).await,
        Script::Mute => {}
        Script::Queue => say(queued).await,
        Script::OutOfTurn => {
            say(queued).await;
            say(Message::Progress(v1::PrefillProgress { blocks_visible: 1 })).await;
        }
        Script::BreakAfterLease | Script::SilentAfterLease | Script::BreakAfterToken | Script::ClaimDone => {
            say(queued).await;
            say(Message::LeaseWanted(wanted)).await;
            let granted = requests.message().await.expect("open").expect("a message").message;
            let Some(prefill_request::Message::LeaseGranted(granted)) = granted else { panic!("{granted:?}") };
            assert_eq!((granted.first_block, granted.count), (wanted.first_block, wanted.count));
            assert_eq!(granted.block_ids.len(), wanted.count as usize);
            if matches!(script, Script::BreakAfterToken | Script::ClaimDone) {
                say(first()).await;
            }
            if let Script::ClaimDone = script {
                let tokens = start.tokens.len() as u64 - u64::from(start.blocks_held * block_tokens);
                let payload_bytes = tokens * super::model().format.token_bytes();
                say(Message::Done(v1::PrefillDone { payload_bytes, ..Default::default() })).await;
            }
        }
    }
}
