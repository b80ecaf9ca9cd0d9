//! What a client can get wrong: each case a typed error, and afterwards the gateway still answers.

use std::time::Duration;

use hyper::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::support::client::call;
use super::support::{Cluster, MODEL, Script, get, post};

const CHAT: &str = "/v1/chat/completions";
const PLAIN: &str = "/v1/completions";

/// (field to change, its value, what `param` must be): each a 400 at the chat endpoint.
fn chat_fields() -> Vec<(&'static str, Value, &'static str)> {
    let message = |message: Value| json!([message]);
    let nan_like = json!("NaN");
    vec![
        ("model", Value::Null, "model"),
        ("model", json!(7), "model"),
        ("model", json!(""), "model"),
        ("messages", Value::Null, "messages"),
        ("messages", json!([]), "messages"),
        ("messages", json!("hi"), "messages"),
        ("messages", json!({}), "messages"),
        ("messages", json!(["hi"]), "messages[0]"),
        ("messages", message(json!({"content": "x"})), "messages[0].role"),
        ("messages", message(json!({"role": "king", "content": "x"})), "messages[0].role"),
        ("messages", message(json!({"role": "tool", "content": "x", "tool_call_id": "1"})), "messages[0].role"),
        ("messages", message(json!({"role": "user"})), "messages[0].content"),
        ("messages", message(json!({"role": "user", "content": 5})), "messages[0].content"),
        (
            "messages",
            message(json!({"role": "user", "content": [{"type": "image_url"}]})),
            "messages[0].content[0].type",
        ),
        ("messages", message(json!({"role": "user", "content": [{"type": "text"}]})), "messages[0].content[0].text"),
        ("messages", message(json!({"role": "user", "content": "x", "name": "n"})), "messages[0].name"),
        ("messages", message(json!({"role": "assistant", "content": "x", "tool_calls": []})), "messages[0].tool_calls"),
        ("messages", message(json!({"role": "user", "content": "x", "mood": 1})), "messages[0].mood"),
        ("max_tokens", json!(0), "max_tokens"),
        ("max_tokens", json!(-1), "max_tokens"),
        ("max_tokens", json!(1e15), "max_tokens"),
        ("max_tokens", json!(1.5), "max_tokens"),
        ("max_tokens", json!("2"), "max_tokens"),
        ("max_tokens", json!(u64::MAX), "max_tokens"),
        ("max_tokens", json!(4096), "messages"),
        ("max_completion_tokens", json!(3), "max_completion_tokens"),
        ("min_tokens", json!(3), "min_tokens"),
        ("temperature", json!(-0.1), "temperature"),
        ("temperature", json!(2.1), "temperature"),
        ("temperature", nan_like, "temperature"),
        ("temperature", json!(1e300), "temperature"),
        ("top_p", json!(0), "top_p"),
        ("top_p", json!(1.01), "top_p"),
        ("top_k", json!(-2), "top_k"),
        ("top_k", json!(1e20), "top_k"),
        ("min_p", json!(2), "min_p"),
        ("repetition_penalty", json!(0), "repetition_penalty"),
        ("presence_penalty", json!(-2.5), "presence_penalty"),
        ("frequency_penalty", json!(true), "frequency_penalty"),
        ("n", json!(0), "n"),
        ("n", json!(100_000), "n"),
        ("stop", json!(vec!["x"; 5]), "stop"),
        ("stop", json!(vec!["x"; 10_000]), "stop"),
        ("stop", json!([""]), "stop"),
        ("stop", json!(["x".repeat(100_000)]), "stop"),
        ("stop", json!(5), "stop"),
        ("stop", json!([5]), "stop"),
        ("seed", json!("lucky"), "seed"),
        ("seed", json!(1.5), "seed"),
        ("logprobs", json!(1), "logprobs"),
        ("top_logprobs", json!(3), "top_logprobs"),
        ("stream", json!("yes"), "stream"),
        ("stream_options", json!({"include_usage": true}), "stream_options"),
        ("ignore_eos", json!(1), "ignore_eos"),
        ("logit_bias", json!({"5": 1000}), "logit_bias.5"),
        ("logit_bias", json!({"five": 1}), "logit_bias"),
        ("logit_bias", json!({"300": 1}), "logit_bias"),
        ("logit_bias", json!({"05": 1}), "logit_bias"),
        ("logit_bias", json!([1]), "logit_bias"),
        ("user", json!(5), "user"),
        ("tools", json!([{"type": "function", "function": {"name": "f"}}]), "tools"),
        ("tools", json!([]), "tools"),
        ("tool_choice", json!("none"), "tool_choice"),
        ("parallel_tool_calls", json!(false), "parallel_tool_calls"),
        ("functions", json!([]), "functions"),
        ("response_format", json!({"type": "json_object"}), "response_format"),
        ("modalities", json!(["text"]), "modalities"),
        ("reasoning_effort", json!("low"), "reasoning_effort"),
        ("store", json!(true), "store"),
        ("prompt", json!("x"), "prompt"),
        ("temprature", json!(1), "temprature"),
    ]
}

/// The same at the plain endpoint.
fn plain_fields() -> Vec<(&'static str, Value, &'static str)> {
    vec![
        ("prompt", Value::Null, "prompt"),
        ("prompt", json!(""), "prompt"),
        ("prompt", json!({}), "prompt"),
        ("prompt", json!([]), "prompt"),
        ("prompt", json!(["a", ""]), "prompt[1]"),
        ("prompt", json!(["a", 5]), "prompt[1]"),
        ("prompt", json!([1, "a"]), "prompt[1]"),
        ("prompt", json!([300]), "prompt[0]"),
        ("prompt", json!([[1, -1]]), "prompt[0][1]"),
        ("prompt", json!([4_000_000_000_u32]), "prompt[0]"),
        ("prompt", json!(vec!["a"; 17]), "prompt"),
        ("prompt", json!("word ".repeat(40_000)), "prompt"),
        ("echo", json!(true), "echo"),
        ("suffix", json!("x"), "suffix"),
        ("best_of", json!(2), "best_of"),
        ("logprobs", json!(true), "logprobs"),
        ("logprobs", json!(1000), "logprobs"),
        ("messages", json!([]), "messages"),
        ("max_completion_tokens", json!(5), "max_completion_tokens"),
    ]
}

#[tokio::test]
async fn every_wrong_field_is_named() {
    let cluster = Cluster::start(Script::Letters, 1).await;
    let chat = json!({"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 2});
    let plain = json!({"model": MODEL, "prompt": "x", "max_tokens": 2});
    let cases = chat_fields().into_iter().map(|case| (CHAT, &chat, case));
    let cases = cases.chain(plain_fields().into_iter().map(|case| (PLAIN, &plain, case)));
    for (path, base, (field, value, param)) in cases {
        let mut body = base.clone();
        body[field] = value;
        let answer = post(cluster.http(), path, &body).await;
        let error = answer.json()["error"].clone();
        let shown: String = body.to_string().chars().take(300).collect();
        assert_eq!((answer.status, &error["type"]), (400, &json!("invalid_request_error")), "{shown}: {error}");
        assert_eq!(error["param"], param, "{shown}: {error}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(param.split('[').next().unwrap()) && message.len() < 400, "{shown}: {message}");
        assert!(error["code"].is_string(), "{error}");
    }
    assert!(cluster.nodes[0].requests().is_empty(), "none of these reaches a node");
    assert_eq!(post(cluster.http(), CHAT, &chat).await.status, 200);
    assert_eq!(post(cluster.http(), PLAIN, &plain).await.status, 200);
}

#[tokio::test]
async fn the_error_says_how_many_stop_strings_are_allowed() {
    let cluster = Cluster::start(Script::Letters, 1).await;
    let body = json!({"model": MODEL, "prompt": "x", "stop": vec!["x"; 10_000]});
    let message = post(cluster.http(), PLAIN, &body).await.json()["error"]["message"].clone();
    assert_eq!(message, "`stop` has 10000 strings; at most 4 are allowed");
}

#[tokio::test]
async fn bodies_that_are_no_request() {
    let cluster = Cluster::start_with(Script::Letters, 1, |config| config.body_bytes_max = 10_000).await;
    let json_type = [("content-type", "application/json")];
    let deep = format!("{{\"messages\":{}{}}}", "[".repeat(5000), "]".repeat(4000));
    let cases: Vec<(&str, Vec<u8>, u16, &str)> = vec![
        ("broken JSON", b"{\"model\":".to_vec(), 400, "JSON"),
        ("empty", b"".to_vec(), 400, "JSON"),
        ("two objects", b"{} {}".to_vec(), 400, "JSON"),
        ("an array", b"[1,2]".to_vec(), 400, "object"),
        ("a string", b"\"hi\"".to_vec(), 400, "object"),
        ("null", b"null".to_vec(), 400, "object"),
        ("bad UTF-8", b"{\"model\":\"\xff\xfe\"}".to_vec(), 400, "UTF-8"),
        ("a lone surrogate", b"{\"model\":\"\\ud800\"}".to_vec(), 400, "JSON"),
        ("a number that overflows", b"{\"temperature\":1e999}".to_vec(), 400, "JSON"),
        ("NaN", b"{\"temperature\":NaN}".to_vec(), 400, "JSON"),
        ("deep nesting", deep.into_bytes(), 400, "JSON"),
        ("a key twice", b"{\"seed\":1,\"seed\":2}".to_vec(), 400, "`seed` is given twice"),
        ("too large", vec![b' '; 10_001], 413, "10000 bytes"),
        ("far too large", vec![b' '; 20 << 20], 413, "10000 bytes"),
    ];
    for (name, body, status, says) in cases {
        let answer = call(cluster.http(), Method::POST, CHAT, &json_type, body).await;
        let error = answer.json()["error"].clone();
        assert_eq!(answer.status, status, "{name}: {error}");
        assert!(error["message"].as_str().unwrap().contains(says), "{name}: {error}");
    }
    let unknown = json!({"model": "gpt-9", "messages": [{"role": "user", "content": "x"}]});
    let answer = post(cluster.http(), CHAT, &unknown).await;
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (404, &json!("model_not_found")));
    assert!(answer.json()["error"]["message"].as_str().unwrap().contains("gpt-9"));
    for wrong_type in ["text/html", "application/json; charset=utf-16"] {
        assert_eq!(call(cluster.http(), Method::POST, CHAT, &[("content-type", wrong_type)], "{}").await.status, 415);
    }
    let (first, rest) = MODEL.split_at(1);
    let encoded = format!("/v1/models/%{:02X}{rest}", first.as_bytes()[0]);
    assert_eq!(get(cluster.http(), &encoded).await.json()["id"], MODEL);
    assert_eq!(get(cluster.http(), "/v1/models/%ff").await.status, 404);
    for (method, path, status) in [
        (Method::GET, CHAT, 405),
        (Method::DELETE, PLAIN, 405),
        (Method::POST, "/v1/models", 405),
        (Method::POST, "/v1/embeddings", 404),
        (Method::GET, "/", 404),
    ] {
        let answer = call(cluster.http(), method, path, &[], "").await;
        assert_eq!(
            (answer.status, &answer.json()["error"]["type"]),
            (status, &json!("invalid_request_error")),
            "{path}"
        );
    }
    assert_eq!(get(cluster.http(), "/healthz").await.status, 200);
}

/// Sends bytes as they are; what comes back until the connection ends.
async fn raw(cluster: &Cluster, bytes: &[u8], shut: bool) -> String {
    let mut socket = TcpStream::connect(cluster.http()).await.unwrap();
    socket.write_all(bytes).await.unwrap();
    if shut {
        socket.shutdown().await.unwrap();
    }
    let mut answer = Vec::new();
    tokio::time::timeout(Duration::from_secs(5), socket.read_to_end(&mut answer)).await.expect("an end").unwrap();
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn bodies_that_do_not_come() {
    let cluster = Cluster::start(Script::Letters, 1).await;
    let head =
        format!("POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{{");
    let slow = raw(&cluster, head.as_bytes(), false).await;
    assert!(slow.starts_with("HTTP/1.1 408") && slow.contains("body_timeout"), "{slow}");
    let truncated = raw(&cluster, head.as_bytes(), true).await;
    assert!(truncated.starts_with("HTTP/1.1 400") && truncated.contains("ended before"), "{truncated}");
    let garbage = raw(&cluster, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n", false).await;
    assert!(garbage.is_empty() || garbage.starts_with("HTTP/1.1 400"), "{garbage}");
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(200_000));
    let mut socket = TcpStream::connect(cluster.http()).await.unwrap();
    let _ = socket.write_all(long.as_bytes()).await;
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer).await;
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 4"), "{}", String::from_utf8_lossy(&answer));
    assert_eq!(get(cluster.http(), "/readyz").await.status, 200);
}
