//! A prefill node that computes nothing: hired by a live decode node, it keeps the lease that it is handed.

use std::time::Duration;

use kvrail_proto::v1;
use kvrail_proto::v1::decode_client::DecodeClient;
use kvrail_proto::v1::prefill_reply::Message as Reply;
use kvrail_proto::v1::prefill_request::Message as Request;
use kvrail_proto::v1::prefill_server::{Prefill, PrefillServer};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::transport::Channel;
use tonic::{Response, Status, Streaming};

use super::channel;
use crate::cluster::{Cluster, Process};

/// Longest wait for the lease.
const GRANT_MAX: Duration = Duration::from_secs(10);
/// Tokens of the prompt, which no cache holds.
const PROMPT_TOKENS: u32 = 64;
/// Tokens of a block of the mock.
const BLOCK_TOKENS: u32 = 16;

/// A lease on a live node's memory. Dropping it ends the request that it was lent for.
pub(super) struct Hired {
    pub lease: v1::LeaseGranted,
    _running: JoinSet<()>,
}

/// Has `node` lend blocks to us.
pub(super) async fn by(cluster: &Cluster, node: &Process) -> Result<Hired, String> {
    let listener = TcpListener::bind("127.0.0.1:0").await.map_err(|e| e.to_string())?;
    let address = listener.local_addr().map_err(|e| e.to_string())?.to_string();
    let (granted, mut grants) = mpsc::channel(1);
    let mut running = JoinSet::new();
    let service = PrefillServer::new(Keeper { granted });
    running.spawn(async move {
        let server = tonic::transport::Server::builder().add_service(service);
        let _ = server.serve_with_incoming(TcpListenerStream::new(listener)).await;
    });
    let request = request(cluster, node, address).await?;
    let mut client = client(node).await?;
    running.spawn(async move {
        // Held open: the lease lives as long as the request does.
        if let Ok(replies) = client.generate(request).await {
            let mut replies = replies.into_inner();
            while let Ok(Some(_)) = replies.message().await {}
        }
    });
    let lease = timeout(GRANT_MAX, grants.recv()).await.ok().flatten();
    let lease = lease.ok_or_else(|| format!("{} lent nothing", node.name))?;
    Ok(Hired { lease, _running: running })
}

/// A client of a decode node.
pub(super) async fn client(node: &Process) -> Result<DecodeClient<Channel>, String> {
    Ok(DecodeClient::new(channel(node.address("grpc")).await?))
}

/// A request that is right, but for whom it names as prefill node.
pub(super) async fn request(cluster: &Cluster, node: &Process, prefill: String) -> Result<v1::GenerateRequest, String> {
    let status = cluster.status(node).await?;
    let namespace = u64::from_str_radix(status["namespace"].as_str().unwrap_or_default(), 16);
    Ok(v1::GenerateRequest {
        request_id: "bad-input".into(),
        namespace_id: namespace.map_err(|e| format!("namespace: {e}"))?,
        prompt: (0..PROMPT_TOKENS).map(|i| 32 + i % 64).collect(),
        stop: Some(v1::StopRule { max_tokens: 2, ..v1::StopRule::default() }),
        deadline_ms: 60_000,
        prefill: vec![v1::PrefillChoice { node_id: "keeper".into(), grpc_address: prefill }],
        ..v1::GenerateRequest::default()
    })
}

struct Keeper {
    granted: mpsc::Sender<v1::LeaseGranted>,
}

#[tonic::async_trait]
impl Prefill for Keeper {
    type RunStream = ReceiverStream<Result<v1::PrefillReply, Status>>;

    async fn run(
        &self,
        request: tonic::Request<Streaming<v1::PrefillRequest>>,
    ) -> Result<Response<Self::RunStream>, Status> {
        let (replies, stream) = mpsc::channel(4);
        let (granted, mut requests) = (self.granted.clone(), request.into_inner());
        tokio::spawn(async move {
            while let Ok(Some(request)) = requests.message().await {
                match request.message {
                    Some(Request::Start(start)) => {
                        let count = PROMPT_TOKENS / BLOCK_TOKENS - start.blocks_held;
                        let wanted = v1::LeaseWanted { first_block: start.blocks_held, count };
                        for reply in [Reply::Queued(v1::PrefillQueued::default()), Reply::LeaseWanted(wanted)] {
                            let _ = replies.send(Ok(v1::PrefillReply { message: Some(reply) })).await;
                        }
                    }
                    Some(Request::LeaseGranted(lease)) => drop(granted.send(lease).await),
                    _ => return,
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}
