//! The conductor's gRPC face: what nodes tell it, what it answers.

use std::time::Duration;

use kvrail_proto::v1;
use kvrail_proto::v1::conductor_client::ConductorClient;
use kvrail_proto::v1::{conductor_message, kv_event, node_message, route_reply};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

use super::support::node::connect;
use super::support::{Conductor, MODEL, conductor, conductor_config, eventually, get, node_info};

struct Node {
    send: mpsc::Sender<v1::NodeMessage>,
    replies: Streaming<v1::ConductorMessage>,
}

fn wrap(message: node_message::Message) -> v1::NodeMessage {
    v1::NodeMessage { message: Some(message) }
}

async fn client(conductor: &Conductor) -> ConductorClient<Channel> {
    ConductorClient::new(connect(conductor.addresses.grpc).await.unwrap())
}

async fn open(conductor: &Conductor, first: node_message::Message) -> Result<Node, Status> {
    let (send, messages) = mpsc::channel(64);
    send.send(wrap(first)).await.unwrap();
    let replies = client(conductor).await.join(ReceiverStream::new(messages)).await?.into_inner();
    Ok(Node { send, replies })
}

impl Node {
    async fn join(conductor: &Conductor, info: v1::NodeInfo) -> Self {
        let mut node = open(conductor, node_message::Message::Register(info)).await.unwrap();
        let Some(conductor_message::Message::Registered(registered)) = node.reply().await.unwrap() else {
            panic!("not registered")
        };
        assert_eq!(registered.lease_ms, 1000);
        node
    }

    async fn say(&self, message: node_message::Message) {
        self.send.send(wrap(message)).await.unwrap();
    }

    async fn snapshot(&self, next_sequence: u64, blocks: &[u64]) {
        let stored = vec![v1::KvStored { parent: None, blocks: blocks.to_vec(), tier: 0 }];
        self.say(node_message::Message::Snapshot(v1::KvSnapshot { next_sequence, stored, last: true })).await;
    }

    async fn stored(&self, first_sequence: u64, blocks: &[u64]) {
        let stored = v1::KvStored { parent: None, blocks: blocks.to_vec(), tier: 0 };
        let events = vec![v1::KvEvent { event: Some(kv_event::Event::Stored(stored)) }];
        self.say(node_message::Message::Events(v1::KvEvents { first_sequence, events })).await;
    }

    async fn load(&self, load: v1::Load) {
        self.say(node_message::Message::Load(load)).await;
    }

    async fn reply(&mut self) -> Result<Option<conductor_message::Message>, Status> {
        let reply = tokio::time::timeout(Duration::from_secs(10), self.replies.message()).await.expect("a reply")?;
        Ok(reply.and_then(|r| r.message))
    }
}

fn info(name: &str, role: v1::Role) -> v1::NodeInfo {
    node_info(name, role, "127.0.0.1:9".parse().unwrap())
}

fn wanted() -> v1::RouteRequest {
    v1::RouteRequest {
        request_id: "r".into(),
        model: MODEL.into(),
        namespace_id: info("x", v1::Role::Decode).namespace_id,
        chain: (1..=10).collect(),
        prompt_tokens: 170,
        max_tokens: 10,
        exclude: vec![],
    }
}

async fn route(conductor: &Conductor, request: v1::RouteRequest) -> Result<v1::RouteChoice, v1::Failure> {
    match client(conductor).await.route(request).await.unwrap().into_inner().reply.unwrap() {
        route_reply::Reply::Choice(choice) => Ok(choice),
        route_reply::Reply::Failure(failure) => Err(failure),
    }
}

#[tokio::test]
async fn events_make_the_index_and_a_gap_asks_for_a_snapshot() {
    let conductor = conductor(conductor_config()).await;
    let decode = Node::join(&conductor, info("d", v1::Role::Decode)).await;
    let (mut p0, p1) = (
        Node::join(&conductor, info("p0", v1::Role::Prefill)).await,
        Node::join(&conductor, info("p1", v1::Role::Prefill)).await,
    );
    decode.snapshot(0, &[]).await;
    p1.snapshot(0, &[1, 2]).await;
    p0.snapshot(0, &[]).await;
    p0.stored(0, &[1, 2, 3, 4, 5]).await;
    let first = async || route(&conductor, wanted()).await.unwrap().prefill[0].clone();
    eventually("p0 holds most", async || first().await.node_id == "p0" && first().await.cached_blocks == 5).await;
    let choice = route(&conductor, wanted()).await.unwrap();
    assert_eq!((choice.decode_node.as_str(), choice.prefill.len()), ("d", 2));
    let excluded = v1::RouteRequest { exclude: vec!["p0".into()], ..wanted() };
    let choice = route(&conductor, excluded).await.unwrap();
    assert_eq!((choice.prefill[0].node_id.as_str(), choice.prefill[0].cached_blocks), ("p1", 2));

    p0.load(v1::Load { sequence: 1, blocks_free: 1000, kv_next_sequence: 3, ..v1::Load::default() }).await;
    eventually("the lag is told", async || {
        let status = get(conductor.addresses.admin, "/status").await.json();
        status["members"].as_array().unwrap().iter().any(|m| m["node_id"] == "p0" && m["index_lag_events"] == 2)
    })
    .await;
    p0.stored(2, &[6]).await;
    let Some(conductor_message::Message::Resync(resync)) = p0.reply().await.unwrap() else { panic!("no resync") };
    assert_eq!(resync.expected_sequence, 1);
    assert_eq!(
        route(&conductor, wanted()).await.unwrap().prefill.iter().find(|p| p.node_id == "p0").map(|p| p.cached_blocks),
        Some(0)
    );
    p0.snapshot(3, &[1, 2, 3, 4, 5, 6]).await;
    eventually("the snapshot is in", async || first().await.cached_blocks == 6).await;
    let status = get(conductor.addresses.admin, "/status").await.json();
    assert_eq!((&status["events"]["gaps"], &status["events"]["snapshots"]), (&1.into(), &4.into()));
}

#[tokio::test]
async fn a_lease_that_is_not_renewed_ends_and_the_node_may_return() {
    let conductor = conductor(conductor_config()).await;
    let mut silent = Node::join(&conductor, info("d0", v1::Role::Decode)).await;
    let alive = Node::join(&conductor, info("d1", v1::Role::Decode)).await;
    silent.snapshot(0, &[1, 2, 3]).await;
    let mut watch = client(&conductor).await.watch(v1::WatchRequest::default()).await.unwrap().into_inner();
    let mut sequence = 0;
    let mut names = Vec::new();
    for _ in 0..50 {
        sequence += 1;
        alive.load(v1::Load { sequence, blocks_free: 1000, ..v1::Load::default() }).await;
        let members = tokio::time::timeout(Duration::from_secs(5), watch.message()).await.unwrap().unwrap().unwrap();
        names = members.members.iter().map(|m| m.info.clone().unwrap().node_id).collect();
        if names == ["d1"] {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(names, ["d1"]);
    let status = get(conductor.addresses.admin, "/status").await.json();
    assert_eq!(status["index"]["memberships"], 0, "its entries went with it");
    silent.load(v1::Load { sequence: 1, ..v1::Load::default() }).await;
    assert_eq!(silent.reply().await.unwrap_err().code(), Code::FailedPrecondition, "it must register again");
    let back = Node::join(&conductor, info("d0", v1::Role::Decode)).await;
    alive.load(v1::Load { sequence: sequence + 1, draining: true, ..v1::Load::default() }).await;
    eventually("who drains gets nothing", async || {
        route(&conductor, wanted()).await.is_ok_and(|choice| choice.decode_node == "d0")
    })
    .await;
    back.say(node_message::Message::Leave(v1::Leave {})).await;
    eventually("who left gets nothing", async || {
        route(&conductor, wanted()).await.is_err_and(|f| f.code == "no_nodes" && f.retryable)
    })
    .await;
}

#[tokio::test]
async fn a_newer_registration_replaces_the_older() {
    let conductor = conductor(conductor_config()).await;
    let mut old = Node::join(&conductor, info("d0", v1::Role::Decode)).await;
    old.snapshot(0, &[1, 2, 3]).await;
    let memberships = async || get(conductor.addresses.admin, "/status").await.json()["index"]["memberships"].clone();
    eventually("its blocks are known", async || memberships().await == 3).await;
    let new = Node::join(&conductor, info("d0", v1::Role::Decode)).await;
    old.stored(0, &[4]).await;
    assert_eq!(old.reply().await.unwrap_err().code(), Code::FailedPrecondition);
    new.snapshot(0, &[7]).await;
    eventually("only the new one's blocks are known", async || memberships().await == 1).await;
    drop(old);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(route(&conductor, wanted()).await.unwrap().decode_node, "d0", "the old stream's end changes nothing");
}

#[tokio::test]
async fn refusals_are_typed() {
    let mut config = conductor_config();
    config.core.members_max = 1;
    let conductor = conductor(config).await;
    let too_long = v1::RouteRequest { prompt_tokens: 5000, ..wanted() };
    assert_eq!(route(&conductor, too_long.clone()).await.unwrap_err().code, "no_nodes");

    let refused = async |message| open(&conductor, message).await.err().map(|s| s.code());
    let load = node_message::Message::Load(v1::Load::default());
    assert_eq!(refused(load).await, Some(Code::InvalidArgument), "the first message must register");
    let bad = v1::NodeInfo { kv_format: "nonsense".into(), ..info("d", v1::Role::Decode) };
    assert_eq!(refused(node_message::Message::Register(bad)).await, Some(Code::InvalidArgument));
    let bad = v1::NodeInfo { node_id: "x".repeat(1000), ..info("d", v1::Role::Decode) };
    assert_eq!(refused(node_message::Message::Register(bad)).await, Some(Code::InvalidArgument));

    let mut node = Node::join(&conductor, info("d", v1::Role::Decode)).await;
    let second = node_message::Message::Register(info("e", v1::Role::Decode));
    assert_eq!(refused(second.clone()).await, Some(Code::ResourceExhausted), "there is room for one");
    let failure = route(&conductor, too_long).await.unwrap_err();
    assert_eq!((failure.code.as_str(), failure.retryable), ("too_long", false));
    assert!(failure.message.contains("4096"), "{}", failure.message);
    let full = v1::Load { sequence: 9, queued: 10_000, ..v1::Load::default() };
    node.load(full).await;
    eventually("a full queue is refused", async || {
        route(&conductor, wanted()).await.is_err_and(|f| f.code == "queue_full" && f.retry_after_ms >= 1000)
    })
    .await;
    let hostile = v1::RouteRequest { chain: vec![0; 1000], prompt_tokens: 10, ..wanted() };
    let status = client(&conductor).await.route(hostile).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    node.say(second).await;
    assert_eq!(node.reply().await.unwrap_err().code(), Code::InvalidArgument, "registered already");
}

#[tokio::test]
async fn it_stops_with_streams_open() {
    let mut conductor = conductor(conductor_config()).await;
    let mut node = Node::join(&conductor, info("d", v1::Role::Decode)).await;
    let mut watch = client(&conductor).await.watch(v1::WatchRequest::default()).await.unwrap().into_inner();
    watch.message().await.unwrap().unwrap();
    let started = std::time::Instant::now();
    conductor.process.stop().await;
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    assert_eq!(node.reply().await.unwrap_err().code(), Code::Unavailable);
}
