//! The gRPC services of nodes and conductor: what is no HTTP/2, what is no gRPC, and messages that are wrong.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use kvrail_proto::v1;
use kvrail_proto::v1::conductor_client::ConductorClient;
use kvrail_proto::v1::generate_reply::Message as Generated;
use kvrail_proto::v1::prefill_client::PrefillClient;
use kvrail_proto::v1::prefill_reply::Message as Prefilled;
use tokio::time::timeout;
use tonic::Code;
use tonic::body::Body;
use tonic::codegen::Service;

use super::{ANSWERS_WITHIN, Outcome, channel, exchange, hired};
use crate::cluster::{Cluster, Process};

/// What a client says first (RFC 9113, section 3.4), and settings of none.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// Type of the frame that a server says first (RFC 9113, section 6.5).
const SETTINGS: u8 = 4;
/// Type of the frame that ends a connection with a reason (RFC 9113, section 6.8).
const GOAWAY: u8 = 7;

/// Every case at every gRPC port.
pub(super) async fn calls(cluster: &Cluster) -> Vec<Outcome> {
    let (Some(prefill), Some(decode)) = (cluster.prefill.first(), cluster.decode.first()) else {
        return vec![("nodes of both roles".into(), Err("there are none".into()))];
    };
    let ports = [
        (prefill, "/kvrail.v1.Prefill/Run", true),
        (decode, "/kvrail.v1.Decode/Generate", false),
        (&cluster.conductor, "/kvrail.v1.Conductor/Route", false),
    ];
    let mut outcomes = Vec::new();
    for (process, method, streams) in ports {
        let at = process.address("grpc");
        let mut add = |name: &str, outcome| outcomes.push((format!("{name} at {}", process.name), outcome));
        add("an HTTP/1.1 request", settings_alone(at, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await);
        add("random bytes", settings_alone(at, &[0xa7; 256]).await);
        add("a preface, then a frame of 16 MiB", goes_away(at, &[PREFACE, &[0xff; 64]].concat()).await);
        add(
            "a preface, then data of no stream",
            goes_away(at, &[PREFACE, &[0, 0, 1, 0, 0, 0, 0, 0, 9, 7]].concat()).await,
        );
        add("nothing, then the end", closes(at).await);
        let nobody = "/kvrail.v1.Nobody/Run";
        add("a method that nobody knows", call(at, nobody, framed(0, &[]), Says::Status(Code::Unimplemented)).await);
        // A stream of requests is answered in its replies, a single one by its status.
        let says = |code| if streams { Says::Failure("invalid_request") } else { Says::Status(code) };
        add("a message that is no protobuf", call(at, method, framed(4, &[0xff; 4]), says(Code::Internal)).await);
        add("a length past the end", call(at, method, framed(1000, &[0; 4]), says(Code::Internal)).await);
        add("a message of 4 GiB", call(at, method, framed(u32::MAX, &[0; 4]), says(Code::OutOfRange)).await);
    }
    outcomes.extend(at_prefill(cluster, prefill, decode).await);
    outcomes.extend(at_decode(cluster, decode).await);
    outcomes.extend(at_conductor(&cluster.conductor).await);
    outcomes
}

/// A gRPC message that says it has `length` bytes.
fn framed(length: u32, bytes: &[u8]) -> Bytes {
    [&[0][..], &length.to_be_bytes(), bytes].concat().into()
}

/// A client of another protocol is told which one this is, and the connection is closed: whoever does not speak HTTP/2 would
/// not understand the reason (RFC 9113, section 3.4, lets it be left out).
async fn settings_alone(address: &str, bytes: &[u8]) -> Result<(), String> {
    match &frames(&exchange(address, bytes).await?)[..] {
        [(SETTINGS, _)] => Ok(()),
        other => Err(format!("was answered {other:?}, expected settings and the end")),
    }
}

/// Who speaks HTTP/2, but wrongly, is told the reason before the connection is closed.
async fn goes_away(address: &str, bytes: &[u8]) -> Result<(), String> {
    let answer = frames(&exchange(address, bytes).await?);
    let reason = |(kind, payload): &(u8, Vec<u8>)| *kind == GOAWAY && payload.get(4..8).is_some_and(|r| r != [0; 4]);
    if answer.iter().any(reason) { Ok(()) } else { Err(format!("no reason was given: {answer:?}")) }
}

/// Types and payloads of HTTP/2 frames: length in three bytes, type, flags, stream in four (RFC 9113, section 4.1).
fn frames(mut bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut frames = Vec::new();
    while let [_, high, low, kind, _, _, _, _, _, rest @ ..] = bytes {
        let length = (usize::from(*high) << 8 | usize::from(*low)).min(rest.len());
        frames.push((*kind, rest[..length].to_vec()));
        bytes = &rest[length..];
    }
    frames
}

/// Nobody who says nothing is answered.
async fn closes(address: &str) -> Result<(), String> {
    exchange(address, &[]).await.map(drop)
}

/// How a call is answered that cannot be read.
#[derive(Debug)]
enum Says {
    /// With this status.
    Status(Code),
    /// With a `Failure` of this code.
    Failure(&'static str),
}

/// Calls a method with these very bytes.
async fn call(address: &str, method: &str, body: Bytes, expected: Says) -> Result<(), String> {
    let mut channel = channel(address).await?;
    let request = Request::post(format!("http://{address}{method}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Body::new(Full::new(body)))
        .map_err(|e| e.to_string())?;
    std::future::poll_fn(|cx| channel.poll_ready(cx)).await.map_err(|e| e.to_string())?;
    let response = channel.call(request).await.map_err(|e| e.to_string())?;
    let mut headers = response.headers().clone();
    let (mut body, mut replies) = (response.into_body(), Vec::new());
    while let Some(frame) = timeout(ANSWERS_WITHIN, body.frame()).await.map_err(|_| "no answer")? {
        match frame.map_err(|e| e.to_string())?.into_data() {
            Ok(data) => replies.extend_from_slice(&data),
            Err(frame) => headers.extend(frame.into_trailers().unwrap_or_default()),
        }
    }
    let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let right = match &expected {
        Says::Status(code) => text("grpc-status") == (*code as i32).to_string(),
        // Its text stands in the reply as it is.
        Says::Failure(code) => replies.windows(code.len()).any(|w| w == code.as_bytes()),
    };
    if right {
        return Ok(());
    }
    let replies = String::from_utf8_lossy(&replies);
    Err(format!("status {:?} ({}), {replies:?}, expected {expected:?}", text("grpc-status"), text("grpc-message")))
}

/// Holds a failure against the code and the word that were to be in it.
fn failed(failure: Option<&v1::Failure>, code: &str, names: &str) -> Result<(), String> {
    match failure {
        Some(failure) if failure.code == code && failure.message.contains(names) => Ok(()),
        other => Err(format!("was answered {other:?}, expected {code} that names `{names}`")),
    }
}

async fn at_prefill(cluster: &Cluster, node: &Process, decode: &Process) -> Vec<Outcome> {
    let good = match hired::request(cluster, node, String::new()).await {
        Ok(request) => v1::PrefillStart {
            request_id: "bad-input".into(),
            namespace_id: request.namespace_id,
            tokens: request.prompt.clone(),
            prompt_tokens: request.prompt.len() as u32,
            stop: request.stop,
            deadline_ms: 10_000,
            decode_transfer_address: decode.address("transfer").into(),
            ..v1::PrefillStart::default()
        },
        Err(e) => return vec![("a request for prefill".into(), Err(e))],
    };
    let with = |change: fn(&mut v1::PrefillStart)| {
        let mut start = good.clone();
        change(&mut start);
        Some(v1::prefill_request::Message::Start(start))
    };
    let cancel = v1::PrefillCancel { reason: "before it began".into() };
    let cases = [
        (
            "a first message that is not `start`",
            Some(v1::prefill_request::Message::Cancel(cancel)),
            "invalid_request",
            "start",
        ),
        ("an empty message", None, "invalid_request", "start"),
        ("another namespace", with(|s| s.namespace_id ^= 1), "wrong_namespace", "namespace"),
        ("a token past the vocabulary", with(|s| s.tokens[3] = u32::MAX), "invalid_request", "tokens"),
        ("more prompt than tokens", with(|s| s.prompt_tokens = u32::MAX), "invalid_request", "prompt_tokens"),
        ("more blocks held than there are", with(|s| s.blocks_held = u32::MAX), "invalid_request", "blocks_held"),
        ("no address", with(|s| s.decode_transfer_address.clear()), "invalid_request", "decode_transfer_address"),
        ("another generation", with(|s| s.decode_generation = 1), "peer_lost", "generation"),
    ];
    let mut outcomes = Vec::new();
    for (name, message, code, names) in cases {
        outcomes.push((format!("{name} at {}", node.name), prefill(node, message, code, names).await));
    }
    outcomes
}

async fn prefill(
    node: &Process,
    message: Option<v1::prefill_request::Message>,
    code: &str,
    names: &str,
) -> Result<(), String> {
    let mut client = PrefillClient::new(channel(node.address("grpc")).await?);
    // Held open: a request whose stream has ended would be cancelled.
    let (requests, stream) = tokio::sync::mpsc::channel(1);
    let _ = requests.send(v1::PrefillRequest { message }).await;
    let replies = client.run(tokio_stream::wrappers::ReceiverStream::new(stream)).await;
    let mut replies = replies.map_err(|status| status.to_string())?.into_inner();
    loop {
        let reply = timeout(ANSWERS_WITHIN, replies.message()).await.map_err(|_| "no answer")?;
        match reply.map_err(|status| status.to_string())?.and_then(|reply| reply.message) {
            Some(Prefilled::Failure(failure)) => return failed(Some(&failure), code, names),
            Some(Prefilled::Queued(_) | Prefilled::LeaseWanted(_) | Prefilled::FirstToken(_)) => {}
            other => return Err(format!("was answered {other:?}")),
        }
    }
}

async fn at_decode(cluster: &Cluster, node: &Process) -> Vec<Outcome> {
    let good = match hired::request(cluster, node, String::new()).await {
        Ok(request) => v1::GenerateRequest { prefill: Vec::new(), ..request },
        Err(e) => return vec![("a request for decode".into(), Err(e))],
    };
    type Case = (&'static str, fn(&mut v1::GenerateRequest), &'static str, &'static str);
    let cases: [Case; 7] = [
        ("another namespace", |r| r.namespace_id ^= 1, "wrong_namespace", "namespace"),
        ("no prompt", |r| r.prompt.clear(), "invalid_request", "prompt"),
        ("a token past the vocabulary", |r| r.prompt[3] = u32::MAX, "invalid_request", "prompt"),
        ("a forced token past the vocabulary", |r| r.forced = vec![u32::MAX], "invalid_request", "forced"),
        ("no rule for its end", |r| r.stop = None, "invalid_request", "stop"),
        (
            "more tokens than any node takes",
            |r| r.stop.get_or_insert_default().max_tokens = u32::MAX,
            "too_long",
            "max_tokens",
        ),
        (
            "a temperature that is no number",
            |r| r.sampling = Some(v1::Sampling { temperature: f32::NAN, ..v1::Sampling::default() }),
            "invalid_request",
            "temperature",
        ),
    ];
    let mut outcomes = Vec::new();
    for (name, change, code, names) in cases {
        let mut request = good.clone();
        change(&mut request);
        outcomes.push((format!("{name} at {}", node.name), generate(node, request, code, names).await));
    }
    outcomes
}

async fn generate(node: &Process, request: v1::GenerateRequest, code: &str, names: &str) -> Result<(), String> {
    let replies = hired::client(node).await?.generate(request).await;
    let mut replies = replies.map_err(|status| status.to_string())?.into_inner();
    let reply = timeout(ANSWERS_WITHIN, replies.message()).await.map_err(|_| "no answer")?;
    match reply.map_err(|status| status.to_string())?.and_then(|reply| reply.message) {
        Some(Generated::Failure(failure)) => failed(Some(&failure), code, names),
        other => Err(format!("was answered {other:?}")),
    }
}

async fn at_conductor(conductor: &Process) -> Vec<Outcome> {
    let register = |info| Some(v1::node_message::Message::Register(info));
    let nobody = v1::NodeInfo { role: 1, ..v1::NodeInfo::default() };
    let cases = [
        ("a first message that is not `register`", Some(v1::node_message::Message::Leave(v1::Leave {})), "register"),
        ("a node that says nothing of itself", register(nobody.clone()), "kv_format"),
        ("a role that nobody knows", register(v1::NodeInfo { node_id: "x".into(), role: 77, ..nobody }), "role"),
    ];
    let mut outcomes = Vec::new();
    for (name, message, names) in cases {
        outcomes.push((format!("{name} at {}", conductor.name), join(conductor, message, names).await));
    }
    outcomes
}

async fn join(conductor: &Process, message: Option<v1::node_message::Message>, names: &str) -> Result<(), String> {
    let mut client = ConductorClient::new(channel(conductor.address("grpc")).await?);
    let messages = tokio_stream::iter([v1::NodeMessage { message }]);
    let status = match client.join(messages).await {
        Err(status) => status,
        Ok(replies) => match timeout(ANSWERS_WITHIN, replies.into_inner().message()).await.map_err(|_| "no answer")? {
            Err(status) => status,
            Ok(message) => return Err(format!("was answered {message:?}")),
        },
    };
    if status.code() == Code::InvalidArgument && status.message().contains(names) {
        return Ok(());
    }
    Err(format!("was answered {status:?}, expected InvalidArgument that names `{names}`"))
}
