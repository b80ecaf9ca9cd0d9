//! What a client can get wrong at the OpenAI endpoint.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::Findings;
use crate::cluster::Cluster;

const CHAT: &str = "/v1/chat/completions";
const PLAIN: &str = "/v1/completions";

/// A request and what must come back.
struct Case {
    name: &'static str,
    path: &'static str,
    body: Body,
    /// Accepted statuses.
    status: &'static [u16],
    /// What the error's `param` or message must name: the field, or what would be right.
    names: &'static str,
}

enum Body {
    /// These bytes with a right Content-Length.
    Bytes(Vec<u8>),
    /// Half of the bytes that Content-Length promises, then the socket closes for writing.
    Truncated(Vec<u8>),
    /// Headers, then a byte now and then.
    Slow,
    /// Another method, no body.
    Method(&'static str),
    /// Right body, wrong content type.
    ContentType(&'static str),
}

fn chat(model: &str, changes: Value) -> Body {
    merged(json!({"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}), changes)
}

fn plain(model: &str, changes: Value) -> Body {
    merged(json!({"model": model, "prompt": "hi", "max_tokens": 2}), changes)
}

/// `base` with `changes` on top; a null removes.
fn merged(mut base: Value, changes: Value) -> Body {
    for (key, value) in changes.as_object().into_iter().flatten() {
        match value {
            Value::Null => drop(base.as_object_mut().and_then(|o| o.remove(key))),
            value => base[key] = value.clone(),
        }
    }
    Body::Bytes(base.to_string().into_bytes())
}

fn cases(m: &str) -> Vec<Case> {
    let case = |name, path, body, names| Case { name, path, body, status: &[400], names };
    let bytes = |b: &[u8]| Body::Bytes(b.to_vec());
    let mut cases = vec![
        case("broken JSON", CHAT, bytes(b"{\"model\":"), "JSON"),
        case("not an object", CHAT, bytes(b"[1,2]"), "object"),
        case("empty body", CHAT, bytes(b""), "JSON"),
        case("bad UTF-8", CHAT, bytes(b"{\"model\":\"\xff\xfe\"}"), "UTF-8"),
        case("a lone surrogate", CHAT, bytes(b"{\"model\":\"\\ud800\"}"), "JSON"),
        case("no model", CHAT, chat(m, json!({"model": null})), "model"),
        case("model is a number", CHAT, chat(m, json!({"model": 7})), "model"),
        case("no messages", CHAT, chat(m, json!({"messages": null})), "messages"),
        case("empty messages", CHAT, chat(m, json!({"messages": []})), "messages"),
        case("messages is a string", CHAT, chat(m, json!({"messages": "hi"})), "messages"),
        case("a message without role", CHAT, chat(m, json!({"messages": [{"content": "x"}]})), "role"),
        case("an unknown role", CHAT, chat(m, json!({"messages": [{"role": "king", "content": "x"}]})), "role"),
        case("content is a number", CHAT, chat(m, json!({"messages": [{"role": "user", "content": 5}]})), "content"),
        case(
            "an image part",
            CHAT,
            chat(
                m,
                json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}),
            ),
            "content",
        ),
        case("no prompt", PLAIN, plain(m, json!({"prompt": null})), "prompt"),
        case("an empty prompt", PLAIN, plain(m, json!({"prompt": ""})), "prompt"),
        case("prompt is an object", PLAIN, plain(m, json!({"prompt": {}})), "prompt"),
        case("an oversized prompt", PLAIN, plain(m, json!({"prompt": "word ".repeat(40_000)})), "prompt"),
        case("token ids past the vocabulary", PLAIN, plain(m, json!({"prompt": [4_000_000_000_u32]})), "prompt"),
        case("max_tokens 0", CHAT, chat(m, json!({"max_tokens": 0})), "max_tokens"),
        case("max_tokens negative", CHAT, chat(m, json!({"max_tokens": -1})), "max_tokens"),
        case("max_tokens huge", CHAT, chat(m, json!({"max_tokens": 1e15})), "max_tokens"),
        case("max_tokens a string", CHAT, chat(m, json!({"max_tokens": "2"})), "max_tokens"),
        case("max_tokens a fraction", CHAT, chat(m, json!({"max_tokens": 1.5})), "max_tokens"),
        case("temperature negative", CHAT, chat(m, json!({"temperature": -0.1})), "temperature"),
        case("temperature too high", CHAT, chat(m, json!({"temperature": 100})), "temperature"),
        case(
            "temperature overflows",
            CHAT,
            bytes(
                format!(
                    "{{\"model\":\"{m}\",\"messages\":[{{\"role\":\"user\",\"content\":\"x\"}}],\"temperature\":1e999}}"
                )
                .as_bytes(),
            ),
            "number out of range",
        ),
        case("top_p above 1", CHAT, chat(m, json!({"top_p": 1.01})), "top_p"),
        case("top_p zero", CHAT, chat(m, json!({"top_p": 0})), "top_p"),
        case("top_k negative", CHAT, chat(m, json!({"top_k": -5})), "top_k"),
        case("min_p above 1", CHAT, chat(m, json!({"min_p": 2})), "min_p"),
        case("repetition_penalty zero", CHAT, chat(m, json!({"repetition_penalty": 0})), "repetition_penalty"),
        case("n zero", CHAT, chat(m, json!({"n": 0})), "n"),
        case("n huge", CHAT, chat(m, json!({"n": 100_000})), "n"),
        case("10,000 stop strings", CHAT, chat(m, json!({"stop": vec!["x"; 10_000]})), "stop"),
        case("an empty stop string", CHAT, chat(m, json!({"stop": [""]})), "stop"),
        case("stop is a number", CHAT, chat(m, json!({"stop": 5})), "stop"),
        case("seed is a string", CHAT, chat(m, json!({"seed": "lucky"})), "seed"),
        case("top_logprobs without logprobs", CHAT, chat(m, json!({"top_logprobs": 3})), "logprobs"),
        case("top_logprobs huge", CHAT, chat(m, json!({"logprobs": true, "top_logprobs": 1_000})), "top_logprobs"),
        case("stream is a string", CHAT, chat(m, json!({"stream": "yes"})), "stream"),
        case(
            "stream_options without stream",
            CHAT,
            chat(m, json!({"stream_options": {"include_usage": true}})),
            "stream_options",
        ),
        case("tools", CHAT, chat(m, json!({"tools": [{"type": "function", "function": {"name": "f"}}]})), "tools"),
        case("response_format", CHAT, chat(m, json!({"response_format": {"type": "json_object"}})), "response_format"),
        case("logit_bias out of range", CHAT, chat(m, json!({"logit_bias": {"5": 1000}})), "logit_bias"),
        case("logit_bias of no token", CHAT, chat(m, json!({"logit_bias": {"five": 1}})), "logit_bias"),
        case("nested a thousand deep", CHAT, Body::Bytes(deep(1_000)), "recursion limit"),
        case("truncated body", CHAT, Body::Truncated(json!({"model": m}).to_string().into_bytes()), "announced length"),
    ];
    let other = |name, path, body, status, names| Case { name, path, body, status, names };
    cases.extend([
        other("unknown model", CHAT, chat("no-such", json!({})), &[404][..], "no-such"),
        other("a body of 64 MiB", CHAT, Body::Bytes(vec![b' '; 64 << 20]), &[413], "4194304 bytes"),
        other("a slow body", CHAT, Body::Slow, &[408], "1.5 s"),
        other("GET", CHAT, Body::Method("GET"), &[405], "POST"),
        other("DELETE", PLAIN, Body::Method("DELETE"), &[405], "POST"),
        other("no such path", "/v1/embeddings", chat(m, json!({})), &[404], "/v1/completions"),
        other("another content type", CHAT, Body::ContentType("text/html"), &[415], "application/json"),
    ]);
    cases
}

fn deep(levels: usize) -> Vec<u8> {
    let mut body = b"{\"messages\":".to_vec();
    body.extend(std::iter::repeat_n(b'[', levels));
    body.extend(std::iter::repeat_n(b']', levels));
    body.push(b'}');
    body
}

/// Sends every case and holds the answer against what is promised.
pub async fn run(cluster: &Cluster, model: &str, findings: &mut Findings) {
    let address = cluster.gateway.address("http");
    let cases = cases(model);
    let mut right = 0;
    for case in &cases {
        match timeout(Duration::from_secs(20), send(address, case)).await {
            Err(_) => findings.failure(format!("endpoint: {}: no answer", case.name)),
            Ok(Err(e)) => findings.failure(format!("endpoint: {}: {e}", case.name)),
            Ok(Ok((status, body))) => match judge(case, status, &body) {
                Ok(()) => right += 1,
                Err(e) => findings.failure(format!("endpoint: {}: {e}", case.name)),
            },
        }
    }
    findings.figure("endpoint", format!("{right} of {} cases answered with the right typed error", cases.len()));
}

fn judge(case: &Case, status: u16, body: &str) -> Result<(), String> {
    if !case.status.contains(&status) {
        return Err(format!("status {status}, expected {:?}: {body}", case.status));
    }
    let value: Value = serde_json::from_str(body).map_err(|e| format!("body is no JSON ({e}): {body}"))?;
    let text = |pointer: &str| value.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    if text("/error/message").is_empty() || text("/error/type").is_empty() {
        return Err(format!("not an error in OpenAI's shape: {body}"));
    }
    if !text("/error/message").contains(case.names) && !text("/error/param").contains(case.names) {
        return Err(format!("does not name `{}`: {body}", case.names));
    }
    Ok(())
}

async fn send(address: &str, case: &Case) -> Result<(u16, String), String> {
    let mut socket = TcpStream::connect(address).await.map_err(|e| e.to_string())?;
    let head = |method: &str, length: usize, kind: &str| {
        format!(
            "{method} {} HTTP/1.1\r\nhost: {address}\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n",
            case.path
        )
    };
    // A server may answer and close before it read everything: that is no failure of the sending side.
    match &case.body {
        Body::Bytes(bytes) => {
            let _ = socket.write_all(head("POST", bytes.len(), "application/json").as_bytes()).await;
            let _ = socket.write_all(bytes).await;
        }
        Body::Truncated(bytes) => {
            let _ = socket.write_all(head("POST", bytes.len() * 2, "application/json").as_bytes()).await;
            let _ = socket.write_all(bytes).await;
            let _ = socket.shutdown().await;
        }
        Body::Slow => {
            let _ = socket.write_all(head("POST", 100, "application/json").as_bytes()).await;
            let _ = socket.write_all(b"{").await;
        }
        Body::Method(method) => {
            let _ = socket.write_all(head(method, 0, "application/json").as_bytes()).await;
        }
        Body::ContentType(kind) => {
            let _ = socket.write_all(head("POST", 2, kind).as_bytes()).await;
            let _ = socket.write_all(b"hi").await;
        }
    }
    let mut answer = Vec::new();
    // A reset after the answer was read is the close of an early answer.
    let _ = socket.read_to_end(&mut answer).await;
    let text = String::from_utf8_lossy(&answer).into_owned();
    let status =
        text.split(' ').nth(1).and_then(|s| s.parse().ok()).ok_or("the connection closed without an answer")?;
    let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    Ok((status, body.to_owned()))
}
