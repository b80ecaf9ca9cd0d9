//! The membership client against a conductor that does nothing but listen.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use kvrail_engine::BlockId;
use kvrail_engine::cache::BlockCache;
use kvrail_kv::{Chain, DType, KvFormat, Namespace, NamespaceParts};
use kvrail_node::KvCache;
use kvrail_node::grpc::{self, GrpcConfig};
use kvrail_node::load::LoadReport;
use kvrail_node::membership::{Membership, MembershipConfig};
use kvrail_proto::v1::conductor_server::{Conductor, ConductorServer};
use kvrail_proto::v1::node_message::Message;
use kvrail_proto::v1::{self, conductor_message};
use tokio::sync::mpsc;
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

/// What a node said, and the way to answer it.
enum Heard {
    Opened(mpsc::Sender<Result<v1::ConductorMessage, Status>>),
    Said(Box<Message>),
    Closed,
}

struct Listener(mpsc::Sender<Heard>);

type Replies = Pin<Box<dyn Stream<Item = Result<v1::ConductorMessage, Status>> + Send>>;

#[tonic::async_trait]
impl Conductor for Listener {
    type JoinStream = Replies;
    type WatchStream = Pin<Box<dyn Stream<Item = Result<v1::Members, Status>> + Send>>;

    async fn join(&self, request: Request<Streaming<v1::NodeMessage>>) -> Result<Response<Replies>, Status> {
        let (answers, replies) = mpsc::channel(8);
        let heard = self.0.clone();
        let mut messages = request.into_inner();
        tokio::spawn(async move {
            let _ = heard.send(Heard::Opened(answers)).await;
            while let Ok(Some(message)) = messages.message().await {
                let _ = heard.send(Heard::Said(Box::new(message.message.expect("a message")))).await;
            }
            let _ = heard.send(Heard::Closed).await;
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(replies))))
    }

    async fn route(&self, _: Request<v1::RouteRequest>) -> Result<Response<v1::RouteReply>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn watch(&self, _: Request<v1::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        Err(Status::unimplemented(""))
    }
}

/// A conductor process of the test: dropping it breaks every connection.
struct Process {
    address: SocketAddr,
    heard: mpsc::Receiver<Heard>,
    answers: Option<mpsc::Sender<Result<v1::ConductorMessage, Status>>>,
    stop: CancellationToken,
    server: tokio::task::JoinHandle<()>,
}

impl Process {
    async fn start(address: SocketAddr) -> Self {
        let (heard_in, heard) = mpsc::channel(64);
        let listener = grpc::bind(address).await.expect("free port");
        let address = listener.local_addr().expect("bound");
        let stop = CancellationToken::new();
        let stopped = stop.clone().cancelled_owned();
        let server = tokio::spawn(async move {
            let routes = tonic::service::Routes::new(ConductorServer::new(Listener(heard_in)));
            let config = GrpcConfig::default();
            grpc::serve(&config, listener, routes, stopped, Duration::ZERO).await.expect("serves");
        });
        Self { address, heard, answers: None, stop, server }
    }

    async fn next(&mut self) -> Option<Message> {
        loop {
            match tokio::time::timeout(Duration::from_secs(10), self.heard.recv()).await.expect("news")? {
                Heard::Opened(answers) => self.answers = Some(answers),
                Heard::Said(message) if matches!(*message, Message::Load(_)) => {}
                Heard::Said(message) => return Some(*message),
                Heard::Closed => return None,
            }
        }
    }

    async fn answer(&self, message: conductor_message::Message) {
        let answers = self.answers.as_ref().expect("a node is there");
        answers.send(Ok(v1::ConductorMessage { message: Some(message) })).await.expect("the node listens");
    }

    /// Hears a registration, accepts it, and returns the snapshot that follows.
    async fn register(&mut self, lease_ms: u64) -> (u64, Vec<u64>) {
        let Some(Message::Register(info)) = self.next().await else { panic!("a registration comes first") };
        assert_eq!((info.node_id.as_str(), info.generation), ("d0", 77));
        self.answer(conductor_message::Message::Registered(v1::Registered { lease_ms, conductor_epoch: 1 })).await;
        self.snapshot().await
    }

    async fn snapshot(&mut self) -> (u64, Vec<u64>) {
        let Some(Message::Snapshot(snapshot)) = self.next().await else { panic!("a snapshot") };
        assert!(snapshot.last);
        (snapshot.next_sequence, snapshot.stored.into_iter().flat_map(|s| s.blocks).collect())
    }

    async fn stop(self) {
        self.stop.cancel();
        self.server.await.expect("stops");
    }
}

struct Pool {
    cache: KvCache,
    chain: Vec<kvrail_kv::BlockKey>,
    stored: Vec<BlockId>,
}

impl Pool {
    fn new(blocks: u32, backlog: usize) -> Self {
        let format = KvFormat { layers: 1, kv_heads: 1, head_dim: 8, block_tokens: 1, dtype: DType::F16 };
        let parts = NamespaceParts { model: "m", format: &format, numerics: "n", adapter: "", salt: "" };
        let tokens: Vec<u32> = (0..blocks).collect();
        let chain = Chain::keys(&Namespace::new(&parts), 1, &tokens);
        Self { cache: KvCache::new(BlockCache::new(blocks), backlog), chain, stored: vec![] }
    }

    /// Completes the next `count` blocks of the chain.
    fn store(&mut self, count: usize) {
        self.cache.with(|cache| {
            let mut promised = cache.reserve(count as u32).expect("room");
            for _ in 0..count {
                let id = cache.take(&mut promised).expect("promised");
                let key = self.chain[self.stored.len()];
                cache.complete(id, key, self.stored.last().copied()).expect("in order");
                self.stored.push(id);
            }
            cache.cancel(promised);
        });
    }

    fn hashes(&self, range: std::ops::Range<usize>) -> Vec<u64> {
        self.chain[range].iter().map(|k| k.hash.0).collect()
    }
}

fn join(pool: &Pool, conductor: SocketAddr, load: &LoadReport) -> Membership {
    let config =
        MembershipConfig { backoff_max: Duration::from_millis(200), ..MembershipConfig::new(conductor.to_string()) };
    let info = v1::NodeInfo { node_id: "d0".into(), generation: 77, ..Default::default() };
    Membership::start(config, &GrpcConfig::default(), info, Arc::new(pool.cache.clone()), load.subscribe())
        .expect("starts")
}

fn any_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

async fn events(conductor: &mut Process) -> (u64, Vec<u64>) {
    let Some(Message::Events(batch)) = conductor.next().await else { panic!("events") };
    let stored = batch.events.into_iter().flat_map(|e| match e.event {
        Some(v1::kv_event::Event::Stored(run)) => run.blocks,
        other => panic!("{other:?}"),
    });
    (batch.first_sequence, stored.collect())
}

#[tokio::test]
async fn a_node_registers_tells_its_blocks_and_takes_leave() {
    let mut conductor = Process::start(any_port()).await;
    let (mut pool, load) = (Pool::new(8, 1000), LoadReport::default());
    pool.store(2);
    let membership = join(&pool, conductor.address, &load);
    let (next, held) = conductor.register(60_000).await;
    assert_eq!(held, pool.hashes(0..2));

    pool.store(3);
    let (first, told) = events(&mut conductor).await;
    assert_eq!((first, told), (next, pool.hashes(2..5)));

    conductor.answer(conductor_message::Message::Resync(v1::ResyncWanted { expected_sequence: 1 })).await;
    assert_eq!(conductor.snapshot().await.1, pool.hashes(0..5));

    assert!(membership.connected().get());
    let leaving = tokio::spawn(membership.leave(Duration::from_secs(5)));
    assert!(matches!(conductor.next().await, Some(Message::Leave(_))));
    conductor.answers = None;
    leaving.await.expect("left");
}

#[tokio::test]
async fn a_conductor_that_returns_gets_a_snapshot_of_what_it_missed() {
    let mut conductor = Process::start(any_port()).await;
    let address = conductor.address;
    let (mut pool, load) = (Pool::new(64, 1000), LoadReport::default());
    let membership = join(&pool, address, &load);
    assert_eq!(conductor.register(60_000).await.1, Vec::<u64>::new());
    conductor.stop().await;

    pool.store(20);
    let mut conductor = Process::start(address).await;
    let (next, held) = conductor.register(60_000).await;
    assert_eq!(held, pool.hashes(0..20));
    pool.store(1);
    assert_eq!(events(&mut conductor).await, (next, pool.hashes(20..21)));
    membership.leave(Duration::from_millis(100)).await;
}

#[tokio::test]
async fn a_renewal_carries_the_newest_load_and_counts_up() {
    let mut conductor = Process::start(any_port()).await;
    let (pool, load) = (Pool::new(1, 1000), LoadReport::default());
    let membership = join(&pool, conductor.address, &load);
    conductor.register(90).await;
    for running in 1..=1000 {
        load.update(|l| l.running = running);
    }
    let (mut sequence, mut messages) = (0, 0);
    while let Some(Heard::Said(message)) = conductor.heard.recv().await {
        let Message::Load(told) = *message else { panic!("only loads: {message:?}") };
        assert!(told.sequence > sequence, "sequences grow");
        sequence = told.sequence;
        messages += 1;
        if told.running == 1000 && messages >= 4 {
            break;
        }
    }
    assert!(messages < 100, "a thousand changes were coalesced; {messages} messages came");
    membership.leave(Duration::from_millis(100)).await;
}

#[tokio::test]
async fn a_backlog_that_overflows_ends_in_a_snapshot() {
    let mut conductor = Process::start(any_port()).await;
    let (mut pool, load) = (Pool::new(600, 8), LoadReport::default());
    let membership = join(&pool, conductor.address, &load);
    conductor.register(60_000).await;
    // More at once than the backlog of 8 hashes holds.
    pool.store(500);
    let (_, held) = conductor.snapshot().await;
    assert_eq!(held, pool.hashes(0..500));
    assert!(pool.cache.lost_events() > 0);
    membership.leave(Duration::from_millis(100)).await;
}
