//! A prefill node under test, and a decode node that only lends memory and looks at every byte.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use kvrail_engine::mock::{MockExecutor, MockKv, MockOptions};
use kvrail_engine::{BlockId, Executor, KvMemory, ModelSpec};
use kvrail_kv::KvFormat;
use kvrail_node::backing::RegionBacking;
use kvrail_node::grpc::{self, GrpcConfig};
use kvrail_node::{BoundAddresses, ModelSource, NodeConfig, NodeError, PoolSize, Role};
use kvrail_prefill::PrefillConfig;
use kvrail_proto::v1;
use kvrail_proto::v1::prefill_client::PrefillClient;
use kvrail_proto::v1::prefill_reply::Message as Reply;
use kvrail_proto::v1::prefill_request::Message as Request;
use kvrail_transfer::{
    Access, ByteRange, Engine, EngineConfig, Lease, LeaseRequest, LeaseTicket, MemoryKind, Region, TransportKind,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;

/// Longest wait of any test for anything: far beyond what is needed on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// What the decode node's memory holds before anything lands.
pub const UNTOUCHED: u8 = 0xa5;

/// Fails a test that waits for ever.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("waited too long for {what}"))
}

/// A running prefill node.
pub struct Node {
    pub addresses: BoundAddresses,
    pub spec: ModelSpec,
    shutdown: Option<oneshot::Sender<Duration>>,
    pub running: JoinHandle<Result<(), NodeError>>,
}

impl Node {
    /// Starts one with the mock `model` and the given transport.
    pub async fn start(model: &str, transport: TransportKind, change: impl FnOnce(&mut PrefillConfig)) -> Self {
        let model = MockOptions::parse(model).expect("a model");
        let spec = MockExecutor::new(model.clone()).expect("a model").spec().clone();
        let mut node = NodeConfig::local("p0", Role::Prefill, ModelSource::Mock(model), PoolSize::Blocks(512));
        node.transfer.transports = vec![transport];
        let mut config = PrefillConfig::new(node);
        config.limits.chunk_tokens = 64;
        config.limits.fill_tokens = 32;
        change(&mut config);
        let (tell, ready) = oneshot::channel();
        let (shutdown, stop) = oneshot::channel();
        let running = tokio::spawn(kvrail_prefill::run(
            config,
            move |addresses| {
                let _ = tell.send(*addresses);
            },
            async move { stop.await.unwrap_or(PATIENCE) },
        ));
        let addresses = within("the node", ready).await.expect("the node starts");
        Self { addresses, spec, shutdown: Some(shutdown), running }
    }

    pub fn client(&self) -> PrefillClient<Channel> {
        let address = self.addresses.grpc.to_string();
        PrefillClient::new(grpc::channel(&GrpcConfig::default(), &address).expect("an address"))
    }

    /// `/status`.
    pub async fn status(&self) -> serde_json::Value {
        let body = get(self.addresses.admin, "/status").await;
        serde_json::from_str(&body).expect("JSON")
    }

    /// Waits until nothing is held: no request, no block but cached ones, no lease, no transfer. Returns the status.
    pub async fn idle(&self) -> serde_json::Value {
        let held = |status: &serde_json::Value| {
            let at = |path: &str| status.pointer(path).and_then(serde_json::Value::as_u64).expect("a number");
            let paths = ["/requests/running", "/requests/queued", "/leases", "/transfers", "/in_flight"];
            let blocks = ["shared", "private", "writing", "reserved", "quarantined"];
            paths.iter().map(|p| at(p)).sum::<u64>()
                + blocks.iter().map(|state| at(&format!("/blocks/{state}"))).sum::<u64>()
        };
        within("the counters to return to zero", async {
            loop {
                let status = self.status().await;
                if held(&status) == 0 {
                    return status;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await
    }

    /// Begins the drain; requests get so long to end.
    pub fn begin_shutdown(&mut self, drain_max: Duration) {
        let _ = self.shutdown.take().map(|shutdown| shutdown.send(drain_max));
    }

    /// Drains the node, which must end well.
    pub async fn stop(mut self) {
        self.begin_shutdown(PATIENCE);
        within("the node to stop", &mut self.running).await.expect("no panic").expect("a clean end");
    }
}

/// One HTTP GET; the body.
pub async fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.expect("the admin endpoint listens");
    let request = format!("GET {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("written");
    let mut response = String::new();
    stream.read_to_string(&mut response).await.expect("read");
    response.split_once("\r\n\r\n").expect("a response").1.to_owned()
}

/// The decode side: an engine, memory, and the mock's arithmetic.
pub struct Decode {
    pub engine: Engine,
    pub region: Region,
    pub kv: KvMemory,
    pub format: KvFormat,
    pub arithmetic: MockKv,
    pub namespace_id: u64,
}

impl Decode {
    pub fn new(node: &Node, transport: TransportKind, blocks: u32) -> Self {
        let config = EngineConfig { transports: vec![transport], ..EngineConfig::default() };
        let engine = Engine::start(config).expect("an engine");
        let format = node.spec.format;
        let kind = if transport == TransportKind::Shm { MemoryKind::Shared } else { MemoryKind::Host };
        let len = (format.block_bytes() * u64::from(blocks)) as usize;
        let region = engine.allocate(len, kind).expect("memory");
        let kv = KvMemory::new(format, blocks, Arc::new(RegionBacking::new(region.clone())));
        let fill = vec![UNTOUCHED; format.block_bytes() as usize];
        (0..blocks).for_each(|block| kv.write(BlockId(block), 0, &fill));
        let spec = &node.spec;
        let namespace_id = kvrail_kv::Namespace::new(&kvrail_kv::NamespaceParts {
            model: &spec.digest,
            format: &format,
            numerics: &spec.numerics,
            adapter: "",
            salt: "",
        })
        .id();
        Self { engine, region, kv, format, arithmetic: MockKv::new(spec), namespace_id }
    }

    /// A request for greedy sampling of at most 16 tokens.
    pub fn start(&self, tokens: &[u32]) -> v1::PrefillStart {
        v1::PrefillStart {
            request_id: "test".into(),
            namespace_id: self.namespace_id,
            tokens: tokens.to_vec(),
            prompt_tokens: tokens.len() as u32,
            stop: Some(v1::StopRule { max_tokens: 16, ignore_eos: true, ..Default::default() }),
            deadline_ms: PATIENCE.as_millis() as u64 / 2,
            decode_transfer_address: self.engine.local_addr().to_string(),
            decode_generation: self.engine.generation(),
            ..Default::default()
        }
    }

    /// Lends blocks.
    pub fn lend(&self, ids: &[BlockId]) -> Lease {
        let len = self.format.block_bytes();
        let ranges = ids.iter().map(|id| ByteRange { offset: u64::from(id.0) * len, len }).collect();
        let request = LeaseRequest { region: &self.region, ranges, access: Access::Write, ttl: PATIENCE };
        self.engine.grant(request).expect("a lease")
    }

    /// Demands that the blocks `from..` of a sequence in `table` hold exactly the KV of `tokens`, with nothing written past
    /// the last valid token.
    pub fn check(&self, tokens: &[u32], table: &[BlockId], from: u32) {
        let mut actual = vec![0; self.format.block_bytes() as usize];
        for (index, &block) in (0..).zip(table).skip(from as usize) {
            self.arithmetic.check_block(&self.kv, block, tokens, index).unwrap_or_else(|wrong| panic!("{wrong}"));
            let (_, valid) = self.arithmetic.expected_block(tokens, index);
            self.kv.read(block, 0, &mut actual);
            for (row, bytes) in actual.chunks(self.format.row_bytes() as usize).enumerate() {
                let free = row as u32 % self.format.block_tokens >= valid;
                assert!(!free || bytes.iter().all(|&b| b == UNTOUCHED), "block {index}: written past its valid tokens");
            }
        }
    }

    /// Demands that these blocks are as they were at first.
    pub fn check_untouched(&self, ids: impl IntoIterator<Item = BlockId>) {
        let mut actual = vec![0; self.format.block_bytes() as usize];
        for id in ids {
            self.kv.read(id, 0, &mut actual);
            assert!(actual.iter().all(|&b| b == UNTOUCHED), "block {} was written", id.0);
        }
    }
}

/// One stream to the prefill node, as the decode node sees it.
pub struct Call {
    pub requests: mpsc::Sender<v1::PrefillRequest>,
    pub replies: Streaming<v1::PrefillReply>,
}

impl Call {
    pub async fn open(client: &mut PrefillClient<Channel>, start: v1::PrefillStart) -> Self {
        Self::open_with(client, v1::PrefillRequest { message: Some(Request::Start(start)) }).await
    }

    pub async fn open_with(client: &mut PrefillClient<Channel>, first: v1::PrefillRequest) -> Self {
        let (requests, stream) = mpsc::channel(64);
        requests.send(first).await.expect("open");
        let replies = within("the stream", client.run(ReceiverStream::new(stream))).await.expect("a stream");
        Self { requests, replies: replies.into_inner() }
    }

    /// Sends a message; in vain if the node has ended the stream already, which its replies tell.
    pub async fn send(&self, message: Request) {
        let _ = self.requests.send(v1::PrefillRequest { message: Some(message) }).await;
    }

    /// The next reply; `None` at the end of the stream.
    pub async fn next(&mut self) -> Option<Reply> {
        let reply = within("a reply", self.replies.message()).await.expect("no transport error")?;
        Some(reply.message.expect("a message has content"))
    }

    /// The failure that ends the stream; other replies before it are passed over.
    pub async fn failure(&mut self) -> v1::Failure {
        loop {
            match self.next().await.expect("a failure comes before the end") {
                Reply::Failure(failure) => {
                    assert!(self.next().await.is_none(), "a failure is the last message");
                    return failure;
                }
                Reply::Done(_) => panic!("done, where a failure was expected"),
                _ => {}
            }
        }
    }

    /// Grants `ids`, from block `first` on, under a lease.
    pub async fn grant(&self, first: u32, ids: &[BlockId], ticket: &LeaseTicket) {
        self.send(Request::LeaseGranted(v1::LeaseGranted {
            first_block: first,
            count: ids.len() as u32,
            ticket: ticket.to_bytes(),
            block_ids: ids.iter().map(|id| id.0).collect(),
        }))
        .await;
    }
}

/// What a whole hand-off gave.
pub struct Outcome {
    pub first: v1::FirstToken,
    pub done: v1::PrefillDone,
    pub leases: Vec<Lease>,
}

/// Plays the decode node for one request to its end: lends what is asked for, checks the order of messages.
pub async fn hand_off(
    decode: &Decode,
    client: &mut PrefillClient<Channel>,
    start: v1::PrefillStart,
    table: &[BlockId],
) -> Outcome {
    let held = start.blocks_held;
    let mut call = Call::open(client, start).await;
    let Some(Reply::Queued(_)) = call.next().await else { panic!("queued first") };
    let (mut first, mut leases, mut wanted, mut visible) = (None, Vec::new(), held, held);
    loop {
        match call.next().await.expect("done comes before the end") {
            Reply::LeaseWanted(lease) => {
                assert_eq!(lease.first_block, wanted, "leases are asked for in order");
                wanted += lease.count;
                let ids = &table[lease.first_block as usize..wanted as usize];
                // In two grants where there are several blocks: a lease is lent piece by piece.
                let (a, b) = ids.split_at(ids.len().div_ceil(2));
                for (first, ids) in [(lease.first_block, a), (lease.first_block + a.len() as u32, b)] {
                    if !ids.is_empty() {
                        let lease = decode.lend(ids);
                        call.grant(first, ids, &lease.ticket()).await;
                        leases.push(lease);
                    }
                }
            }
            Reply::FirstToken(token) => assert!(first.replace(token).is_none(), "one first token"),
            Reply::Progress(progress) => {
                assert!(progress.blocks_visible > visible, "progress grows");
                visible = progress.blocks_visible;
            }
            Reply::Done(done) => {
                let first = first.expect("the first token comes before done");
                assert!(call.next().await.is_none(), "done is the last message");
                return Outcome { first, done, leases };
            }
            Reply::Failure(failure) => panic!("failed: {failure:?}"),
            Reply::Queued(_) => panic!("queued twice"),
        }
    }
}

/// A deterministic prompt; different salts share no block.
pub fn prompt(salt: u32, len: u32) -> Vec<u32> {
    (0..len).map(|i| (i * 31 + salt * 97 + i * i % 13) % 256).collect()
}

/// Blocks for `tokens` tokens, scattered: every third id from `first` on, downwards.
pub fn table(decode: &Decode, tokens: usize, first: u32) -> Vec<BlockId> {
    (0..decode.format.blocks_for(tokens as u32)).rev().map(|i| BlockId(first + 3 * i)).collect()
}

/// The greedy token after `tokens`.
pub fn greedy(decode: &Decode, tokens: &[u32]) -> u32 {
    let logits = decode.arithmetic.expected_logits(tokens);
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)));
    best.expect("logits").0 as u32
}
