//! What must go on, and what must stop: clients that leave, a conductor that dies, too many requests, the end.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::support::client::{Event, text};
use super::support::{Cluster, MODEL, Script, conductor, eventually, get, post, post_stream};

const PLAIN: &str = "/v1/completions";

fn body(changes: Value) -> Value {
    let mut body = json!({"model": MODEL, "prompt": "a prompt", "max_tokens": 60, "seed": 11});
    for (key, value) in changes.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

async fn paced(nodes: usize, pace: Duration) -> Cluster {
    let cluster = Cluster::start(Script::Letters, nodes).await;
    cluster.nodes.iter().for_each(|node| node.pace(pace));
    cluster
}

fn metric(page: &[u8], line: &str) -> f64 {
    let page = std::str::from_utf8(page).unwrap();
    page.lines().find_map(|l| l.strip_prefix(line)).map_or(0.0, |value| value.trim().parse().unwrap())
}

#[tokio::test]
async fn a_client_that_leaves_frees_its_node() {
    let cluster = paced(1, Duration::from_millis(20)).await;
    let request = body(json!({"stream": true, "n": 3, "max_tokens": 2000}));
    let mut stream = post_stream(cluster.http(), PLAIN, &request).await;
    assert!(matches!(stream.next().await, Event::Chunk(_)));
    eventually("three choices run", async || cluster.active() == 3).await;
    drop(stream);
    eventually("the node is free", async || cluster.active() == 0).await;
    assert_eq!(cluster.nodes[0].shared.cancelled.load(Ordering::SeqCst), 3);

    // The same before the first byte, and for an answer that is not streamed.
    let http = cluster.http();
    let asking = tokio::spawn(async move { post(http, PLAIN, &body(json!({"max_tokens": 2000}))).await });
    eventually("it runs", async || cluster.active() == 1).await;
    asking.abort();
    eventually("the node is free", async || cluster.active() == 0).await;
    let status = get(cluster.http(), "/status").await.json();
    assert_eq!(status["requests"]["open"], 0);
    let page = get(cluster.http(), "/metrics").await.body;
    assert_eq!(metric(&page, "kvrail_gateway_requests_ended_total{outcome=\"client_gone\"}"), 2.0);
}

/// A request as bytes.
fn raw(body: &Value) -> Vec<u8> {
    let body = body.to_string();
    let length = body.len();
    let head = format!(
        "POST {PLAIN} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    (head + &body).into_bytes()
}

#[tokio::test]
async fn a_client_that_reads_nothing_loses_its_place() {
    let patience =
        |config: &mut kvrail_conductor::GatewayConfig| config.server.write_timeout = Duration::from_millis(300);
    let cluster = Cluster::start_with(Script::Letters, 1, patience).await;
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut socket = socket.connect(cluster.http()).await.unwrap();
    // More than the socket buffers of both sides take.
    let request = body(json!({"stream": true, "n": 16, "max_tokens": 2000, "logprobs": 5}));
    socket.write_all(&raw(&request)).await.unwrap();
    let open = async || get(cluster.http(), "/status").await.json()["requests"]["open"].as_u64();
    eventually("it is served", async || open().await == Some(1)).await;
    eventually("its place is free", async || open().await == Some(0)).await;
    eventually("the node is free", async || cluster.active() == 0).await;
    drop(socket);
}

#[tokio::test]
async fn a_refused_request_hears_why_however_large_it_is() {
    let cluster = Cluster::start_with(Script::Letters, 1, |config| config.requests_max = 1).await;
    cluster.nodes.iter().for_each(|node| node.pace(Duration::from_millis(50)));
    let mut stream = post_stream(cluster.http(), PLAIN, &body(json!({"stream": true, "max_tokens": 1000}))).await;
    assert!(matches!(stream.next().await, Event::Chunk(_)));
    let request = raw(&body(json!({"prompt": "a".repeat(16 << 20)})));
    for _ in 0..5 {
        let mut socket = tokio::net::TcpStream::connect(cluster.http()).await.unwrap();
        // Nothing is read before all is written: what most clients do.
        socket.write_all(&request).await.unwrap();
        let mut answer = [0; 12];
        socket.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 429");
    }
}

#[tokio::test]
async fn slow_bodies_and_idle_connections_shut_nobody_out() {
    let few = |config: &mut kvrail_conductor::GatewayConfig| {
        config.requests_max = 4;
        config.server.connections_max = 12;
        config.body_timeout = Duration::from_secs(60);
    };
    let cluster = Cluster::start_with(Script::Letters, 1, few).await;
    let connect = async || tokio::net::TcpStream::connect(cluster.http()).await.unwrap();
    let head = format!("POST {PLAIN} HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{{");
    let mut slow = Vec::new();
    for _ in 0..8 {
        let mut socket = connect().await;
        socket.write_all(head.as_bytes()).await.unwrap();
        slow.push(socket);
    }
    // Twice as many slow bodies as there are places, and a connection is left: no request waits for them.
    let started = std::time::Instant::now();
    assert_eq!(post(cluster.http(), PLAIN, &body(json!({"max_tokens": 2}))).await.status, 200);
    assert_eq!(get(cluster.http(), "/status").await.json()["requests"]["open"], 0);

    // More idle connections than there are in all: the slow and the idle make room, the oldest first.
    let mut idle = Vec::new();
    for _ in 0..24 {
        idle.push(connect().await);
    }
    assert_eq!(get(cluster.http(), "/healthz").await.status, 200);
    assert_eq!(post(cluster.http(), PLAIN, &body(json!({"max_tokens": 2}))).await.status, 200);
    assert!(started.elapsed() < Duration::from_secs(20), "they were waited for");
    assert_eq!(slow[0].read(&mut [0; 1]).await.unwrap_or(0), 0, "the oldest has yielded");
}

#[tokio::test]
async fn bodies_share_their_memory_and_small_ones_always_get_through() {
    let one_large = |config: &mut kvrail_conductor::GatewayConfig| {
        (config.body_bytes_max, config.bodies_bytes_max) = (1 << 20, 1 << 20);
        config.body_timeout = Duration::from_secs(60);
    };
    let cluster = Cluster::start_with(Script::Letters, 1, one_large).await;
    let large = raw(&body(json!({"prompt": "a".repeat(900 << 10)})));
    let mut first = tokio::net::TcpStream::connect(cluster.http()).await.unwrap();
    first.write_all(&large[..800 << 10]).await.unwrap();
    // All of it but the head and the free beginning; before that the second could come first.
    let arrived = async || get(cluster.http(), "/status").await.json()["bodies"]["bytes"].as_u64().unwrap();
    eventually("the first has come", async || arrived().await > 700 << 10).await;
    let mut second = tokio::net::TcpStream::connect(cluster.http()).await.unwrap();
    second.write_all(&large).await.unwrap();
    let mut answer = [0; 12];
    second.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 429");
    assert_eq!(post(cluster.http(), PLAIN, &body(json!({"max_tokens": 2}))).await.status, 200);
    // What had begun ends, and gives its memory back.
    first.write_all(&large[800 << 10..]).await.unwrap();
    let mut answer = [0; 12];
    first.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 400", "the prompt is too long for the pool");
    eventually("its memory is free", async || arrived().await == 0).await;
}

#[tokio::test]
async fn with_the_conductor_dead_streams_go_on_and_new_ones_begin() {
    let mut cluster = paced(2, Duration::from_millis(10)).await;
    let expected = post(cluster.http(), PLAIN, &body(json!({}))).await.json()["choices"][0]["text"].clone();
    let mut stream = post_stream(cluster.http(), PLAIN, &body(json!({"stream": true}))).await;
    let mut chunks = Vec::new();
    while chunks.len() < 5 {
        let Event::Chunk(chunk) = stream.next().await else { panic!("an early end") };
        chunks.push(chunk);
    }
    cluster.conductor.process.kill();
    let (rest, end) = stream.rest().await;
    chunks.extend(rest);
    assert_eq!((json!(text(&chunks, 0)), end), (expected.clone(), Event::Done));

    let answers =
        futures::future::join_all((0..8).map(|_| async { post(cluster.http(), PLAIN, &body(json!({}))).await }));
    for answer in answers.await {
        assert_eq!(answer.status, 200, "{}", answer.json());
        assert_eq!(answer.json()["choices"][0]["text"], expected);
    }
    assert!(cluster.nodes.iter().all(|n| n.requests().len() >= 3), "they are spread over the nodes");
    let page = get(cluster.http(), "/metrics").await.body;
    assert!(metric(&page, "kvrail_gateway_route_fallbacks_total") >= 8.0);
    eventually("the gateway notices", async || {
        get(cluster.http(), "/status").await.json()["conductor"]["connected"] == false
    })
    .await;
    // A stream that loses its node now still finds the other.
    let mut stream = post_stream(cluster.http(), PLAIN, &body(json!({"stream": true}))).await;
    let Event::Chunk(first) = stream.next().await else { panic!("an early end") };
    let at = cluster.nodes.iter().position(|n| n.active() > 0).unwrap();
    cluster.nodes[at].kill();
    let (rest, end) = stream.rest().await;
    let chunks: Vec<_> = std::iter::once(first).chain(rest).collect();
    assert_eq!((json!(text(&chunks, 0)), end), (expected.clone(), Event::Done));

    // The conductor comes back where it was, knowing nobody: the gateway keeps its members until it knows more.
    let mut config = super::support::conductor_config();
    config.grpc = cluster.conductor.addresses.grpc;
    cluster.conductor = conductor(config).await;
    for _ in 0..20 {
        let answer = post(cluster.http(), PLAIN, &body(json!({"max_tokens": 2}))).await;
        assert_eq!(answer.status, 200, "{}", answer.json());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    eventually("the gateway follows again", async || {
        let status = get(cluster.http(), "/status").await.json();
        status["conductor"]["connected"] == true
            && status["members"].as_array().unwrap().iter().any(|m| m["known_to_conductor"] == true)
    })
    .await;
}

#[tokio::test]
async fn a_burst_is_spread_over_the_nodes() {
    let cluster = paced(4, Duration::from_millis(2)).await;
    let answers = (0..40).map(|_| async { post(cluster.http(), PLAIN, &body(json!({"max_tokens": 20}))).await });
    for answer in futures::future::join_all(answers).await {
        assert_eq!(answer.status, 200);
    }
    let counts: Vec<_> = cluster.nodes.iter().map(|n| n.requests().len()).collect();
    assert!(counts.iter().all(|n| (6..=14).contains(n)), "{counts:?}");
}

#[tokio::test]
async fn past_the_bound_requests_are_refused_and_then_taken_again() {
    let cluster = Cluster::start_with(Script::Letters, 1, |config| config.requests_max = 3).await;
    cluster.nodes[0].pace(Duration::from_millis(20));
    let answers = (0..10).map(|_| async { post(cluster.http(), PLAIN, &body(json!({"max_tokens": 20}))).await });
    let mut statuses: HashMap<u16, usize> = HashMap::new();
    for answer in futures::future::join_all(answers).await {
        *statuses.entry(answer.status).or_default() += 1;
        if answer.status == 429 {
            assert_eq!(answer.header("retry-after"), Some("1"));
            assert_eq!(answer.json()["error"]["code"], "too_many_requests");
        }
    }
    assert_eq!(statuses, HashMap::from([(200, 3), (429, 7)]));
    assert_eq!(post(cluster.http(), PLAIN, &body(json!({"max_tokens": 2}))).await.status, 200);
}

#[tokio::test]
async fn a_gateway_that_stops_lets_its_streams_end() {
    let mut cluster = paced(1, Duration::from_millis(10)).await;
    let mut stream = post_stream(cluster.http(), PLAIN, &body(json!({"stream": true}))).await;
    assert!(matches!(stream.next().await, Event::Chunk(_)));
    cluster.gateway.process.ask_to_stop();
    // Balancers and clients are told, while the stream goes on.
    eventually("it says so", async || get(cluster.http(), "/readyz").await.status == 503).await;
    assert_eq!(get(cluster.http(), "/healthz").await.status, 200);
    let late = post(cluster.http(), PLAIN, &body(json!({"max_tokens": 2}))).await;
    assert_eq!((late.status, &late.json()["error"]["code"]), (503, &json!("draining")));
    let (chunks, end) = stream.rest().await;
    assert_eq!((text(&chunks, 0).len() + 1, end), (60, Event::Done));
    eventually("no new connection is taken", async || {
        tokio::net::TcpStream::connect(cluster.gateway.address).await.is_err()
    })
    .await;
    cluster.gateway.process.stop().await;
    eventually("the node is free", async || cluster.active() == 0).await;
}

#[tokio::test]
async fn a_gateway_that_may_not_wait_longer_ends_its_requests_with_an_error() {
    let mut cluster = paced(1, Duration::from_millis(50)).await;
    let http = cluster.http();
    let mut stream = post_stream(http, PLAIN, &body(json!({"stream": true, "max_tokens": 1000}))).await;
    assert!(matches!(stream.next().await, Event::Chunk(_)));
    let whole = tokio::spawn(async move { post(http, PLAIN, &body(json!({"max_tokens": 1000}))).await });
    eventually("both run", async || cluster.active() == 2).await;
    cluster.gateway.process.ask_to_stop_within(Duration::from_millis(200));
    let (_, end) = stream.rest().await;
    let Event::Error(error) = end else { panic!("{end:?}: neither a reason nor [DONE] but an error") };
    assert_eq!(error["error"]["code"], "draining", "{error}");
    let whole = whole.await.unwrap();
    assert_eq!((whole.status, &whole.json()["error"]["code"]), (503, &json!("draining")));
    cluster.gateway.process.stop().await;
    eventually("the node is free", async || cluster.active() == 0).await;
}

#[tokio::test]
async fn a_killed_gateway_frees_its_nodes() {
    let mut cluster = paced(1, Duration::from_millis(20)).await;
    let mut stream = post_stream(cluster.http(), PLAIN, &body(json!({"stream": true, "max_tokens": 1000}))).await;
    assert!(matches!(stream.next().await, Event::Chunk(_)));
    cluster.gateway.process.kill();
    eventually("the node is free", async || cluster.active() == 0).await;
}
