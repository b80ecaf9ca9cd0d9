//! The endpoint's shapes: what a client asks for is what it gets.

use std::time::Duration;

use hyper::Method;
use serde_json::{Value, json};

use super::support::client::{Event, call, finish_reason, text};
use super::support::{Cluster, MODEL, Script, get, post, post_stream};

const CHAT: &str = "/v1/chat/completions";
const PLAIN: &str = "/v1/completions";

fn chat(changes: Value) -> Value {
    with(json!({"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 50}), changes)
}

fn plain(changes: Value) -> Value {
    with(json!({"model": MODEL, "prompt": "hi", "max_tokens": 50}), changes)
}

fn with(mut base: Value, changes: Value) -> Value {
    for (key, value) in changes.as_object().unwrap() {
        base[key] = value.clone();
    }
    base
}

#[tokio::test]
async fn a_chat_is_answered_whole() {
    let cluster = Cluster::start(Script::Text("Hello, wörld"), 1).await;
    let answer = post(cluster.http(), CHAT, &chat(json!({}))).await;
    assert_eq!(answer.status, 200);
    let body = answer.json();
    assert!(body["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert_eq!((&body["object"], &body["model"]), (&json!("chat.completion"), &json!(MODEL)));
    assert!(body["created"].as_u64().unwrap() > 1_700_000_000);
    let choice = &body["choices"][0];
    assert_eq!(choice["message"], json!({"role": "assistant", "content": "Hello, wörld", "refusal": null}));
    assert_eq!((&choice["finish_reason"], &choice["logprobs"]), (&json!("stop"), &Value::Null));
    // `<|start|>user\nhi<|end|>\n<|start|>assistant\n`: 21 tokens; 13 bytes and the end token.
    let usage = json!({"prompt_tokens": 21, "completion_tokens": 14, "total_tokens": 35,
        "prompt_tokens_details": {"cached_tokens": 16}});
    assert_eq!(body["usage"], usage);

    let request = &cluster.nodes[0].requests()[0];
    assert_eq!((request.prompt[0], request.prompt.len(), request.salt.as_str()), (256, 21, ""));
    assert!(request.forced.is_empty() && request.prefill.is_empty() && request.deadline_ms > 10_000);
    assert!(request.request_id.starts_with(answer.header("x-request-id").unwrap()));
}

#[tokio::test]
async fn a_chat_is_streamed_with_usage() {
    let cluster = Cluster::start(Script::Text("Hello, wörld"), 1).await;
    let options = json!({"include_usage": true});
    let body = chat(json!({"stream": true, "stream_options": options}));
    let (chunks, end) = post_stream(cluster.http(), CHAT, &body).await.rest().await;
    assert_eq!(end, Event::Done);
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({"role": "assistant", "content": "", "refusal": null}));
    assert!(chunks.iter().all(|c| c["object"] == "chat.completion.chunk" && c["id"] == chunks[0]["id"]));
    assert_eq!(text(&chunks, 0), "Hello, wörld");
    assert_eq!(finish_reason(&chunks, 0).as_deref(), Some("stop"));
    let (last, others) = chunks.split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], 14);
    assert!(others.iter().all(|c| c["usage"].is_null() && c.get("usage").is_some()));

    let (chunks, _) = post_stream(cluster.http(), CHAT, &chat(json!({"stream": true}))).await.rest().await;
    assert!(chunks.iter().all(|c| c.get("usage").is_none()), "usage was not asked for");

    let options = json!({"include_usage": true, "continuous_usage_stats": true});
    let body = plain(json!({"stream": true, "stream_options": options}));
    let (chunks, _) = post_stream(cluster.http(), PLAIN, &body).await.rest().await;
    assert_eq!(chunks[0]["object"], "text_completion");
    let counts: Vec<_> = chunks.iter().map(|c| c["usage"]["completion_tokens"].as_u64().unwrap()).collect();
    assert!(counts.is_sorted() && counts[0] == 1 && *counts.last().unwrap() == 14, "{counts:?}");
}

#[tokio::test]
async fn a_stop_string_over_many_tokens_ends_the_answer_and_the_work() {
    let cluster = Cluster::start(Script::Text("one two STOPPER three"), 1).await;
    for stop in [json!("STOP"), json!(["xyz", "STOP", "OPPE"])] {
        let answer = post(cluster.http(), PLAIN, &plain(json!({"stop": stop}))).await.json();
        assert_eq!(answer["choices"][0]["text"], "one two ");
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
        assert_eq!(answer["usage"]["completion_tokens"], 12, "what was generated is counted");
        let body = plain(json!({"stop": stop, "stream": true}));
        let (chunks, end) = post_stream(cluster.http(), PLAIN, &body).await.rest().await;
        assert_eq!((text(&chunks, 0).as_str(), end), ("one two ", Event::Done));
    }
    super::support::eventually("the node is free", async || cluster.active() == 0).await;
    let unmet = post(cluster.http(), PLAIN, &plain(json!({"stop": "threes"}))).await.json();
    assert_eq!(unmet["choices"][0]["text"], "one two STOPPER three", "what was held back comes in the end");
}

#[tokio::test]
async fn max_tokens_and_its_default() {
    let cluster = Cluster::start_with(Script::Letters, 1, |config| config.max_tokens_default = 30).await;
    let answer =
        post(cluster.http(), CHAT, &chat(json!({"max_tokens": null, "max_completion_tokens": 7}))).await.json();
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(answer["choices"][0]["message"]["content"].as_str().unwrap().len(), 7);
    let answer = post(cluster.http(), PLAIN, &plain(json!({"max_tokens": null}))).await.json();
    assert_eq!(answer["usage"]["completion_tokens"], 30);
    let prompt = "x".repeat(4090);
    let answer = post(cluster.http(), PLAIN, &plain(json!({"max_tokens": null, "prompt": prompt}))).await.json();
    assert_eq!(answer["usage"]["completion_tokens"], 6, "no more than the context has room for");
    let answer = post(cluster.http(), PLAIN, &plain(json!({"max_tokens": 7, "prompt": prompt}))).await;
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (400, &json!("context_length_exceeded")));
}

#[tokio::test]
async fn several_choices_and_prompts_each_have_their_own_text() {
    let cluster = Cluster::start(Script::Text("abcdef"), 2).await;
    let answer = post(cluster.http(), CHAT, &chat(json!({"n": 3}))).await.json();
    let texts: Vec<_> = (0..3).map(|i| answer["choices"][i]["message"]["content"].as_str().unwrap()).collect();
    assert_eq!(texts, ["abcdef", "bcdef", "cdef"]);
    assert_eq!(answer["usage"]["completion_tokens"], 7 + 6 + 5);
    assert_eq!(answer["usage"]["prompt_tokens"], 21, "the prompt counts once");

    let (chunks, end) = post_stream(cluster.http(), CHAT, &chat(json!({"n": 2, "stream": true}))).await.rest().await;
    assert_eq!(end, Event::Done);
    assert_eq!((text(&chunks, 0).as_str(), text(&chunks, 1).as_str()), ("abcdef", "bcdef"));
    assert_eq!(finish_reason(&chunks, 1).as_deref(), Some("stop"));

    let body = plain(json!({"prompt": ["one", [1, 2, 3, 4]], "n": 2}));
    let answer = post(cluster.http(), PLAIN, &body).await.json();
    let texts: Vec<_> = answer["choices"].as_array().unwrap().iter().map(|c| c["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["abcdef", "bcdef", "abcdef", "bcdef"]);
    assert_eq!(answer["usage"]["prompt_tokens"], 3 + 4);
    assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 3 + 4, "no more than the prompts have");
}

#[tokio::test]
async fn logprobs_have_both_shapes() {
    let cluster = Cluster::start(Script::Text("ab"), 1).await;
    let answer = post(cluster.http(), CHAT, &chat(json!({"logprobs": true, "top_logprobs": 2}))).await.json();
    let content = &answer["choices"][0]["logprobs"]["content"];
    assert_eq!(content.as_array().unwrap().len(), 3, "a report for every token that is counted");
    assert_eq!(content[2]["token"], "<|end|>");
    let top = json!([{"token": "a", "logprob": -0.5, "bytes": [97]}, {"token": "b", "logprob": -0.625, "bytes": [98]}]);
    assert_eq!(content[0], json!({"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": top}));

    let body = plain(json!({"logprobs": 1, "stream": true}));
    let (chunks, _) = post_stream(cluster.http(), PLAIN, &body).await.rest().await;
    let tokens: Vec<_> = chunks.iter().map(|c| c["choices"][0]["logprobs"]["tokens"].clone()).collect();
    assert_eq!(tokens, [json!(["a"]), json!(["b"]), json!(["<|end|>"]), Value::Null]);
    let logprobs = &chunks[1]["choices"][0]["logprobs"];
    let expected =
        json!({"tokens": ["b"], "token_logprobs": [-0.625], "top_logprobs": [{"b": -0.625}], "text_offset": [1]});
    assert_eq!(*logprobs, expected);

    let answer = post(cluster.http(), PLAIN, &plain(json!({"logprobs": 0}))).await.json();
    assert_eq!(answer["choices"][0]["logprobs"]["top_logprobs"], json!([{}, {}, {}]));
    assert_eq!(answer["choices"][0]["logprobs"]["token_logprobs"], json!([-0.5, -0.625, -0.75]));
}

#[tokio::test]
async fn what_was_asked_for_reaches_the_node() {
    let cluster = Cluster::start(Script::Letters, 1).await;
    let body = chat(json!({
        "temperature": 0.5, "top_p": 0.25, "top_k": 7, "min_p": 0.125, "repetition_penalty": 1.5,
        "presence_penalty": -1.0, "frequency_penalty": 1.25, "seed": -3, "ignore_eos": true, "min_tokens": 2,
        "max_tokens": 4, "logit_bias": {"5": -100, "7": 1.5}, "user": "someone", "tools": null, "store": false,
        "response_format": {"type": "text"},
        "messages": [
            {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "user", "content": "c"},
        ],
    }));
    let answer = post(cluster.http(), CHAT, &body).await;
    assert_eq!(answer.status, 200, "{}", answer.json());
    let request = &cluster.nodes[0].requests()[0];
    let sampling = request.sampling.clone().unwrap();
    assert_eq!((sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p), (0.5, 0.25, 7, 0.125));
    assert_eq!((sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty), (1.5, -1.0, 1.25));
    assert_eq!((sampling.seed, sampling.logit_bias.len(), sampling.logit_bias[&5]), (-3_i64 as u64, 2, -100.0));
    let stop = request.stop.clone().unwrap();
    assert_eq!((stop.max_tokens, stop.min_tokens, stop.ignore_eos), (4, 2, true));
    let prompt: String = request.prompt.iter().map(|t| char::from(u8::try_from(*t).unwrap_or(b'|'))).collect();
    assert_eq!(prompt, "|system\na\nb|\n|user\nc|\n|assistant\n");
}

#[tokio::test]
async fn a_seed_repeats_an_answer_and_none_draws_another() {
    let cluster = Cluster::start(Script::Letters, 2).await;
    let ask = async |changes: Value| {
        let answer = post(cluster.http(), CHAT, &chat(changes)).await.json();
        answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
    };
    assert_eq!(ask(json!({"seed": 5})).await, ask(json!({"seed": 5})).await);
    assert_ne!(ask(json!({"seed": 5})).await, ask(json!({"seed": 6})).await);
    assert_ne!(ask(json!({})).await, ask(json!({})).await, "each request draws its own seed");
    assert_eq!(ask(json!({"temperature": 0})).await, ask(json!({"temperature": 0})).await);
}

#[tokio::test]
async fn models_and_admin_pages() {
    let cluster = Cluster::start(Script::Letters, 1).await;
    let models = get(cluster.http(), "/v1/models").await.json();
    assert_eq!((&models["object"], &models["data"][0]["id"]), (&json!("list"), &json!(MODEL)));
    assert_eq!(get(cluster.http(), "/v1/models/mock").await.json()["object"], "model");
    assert_eq!(get(cluster.http(), "/v1/models/other/one").await.json()["error"]["code"], "model_not_found");
    assert_eq!(get(cluster.http(), "/healthz").await.status, 200);
    assert_eq!(get(cluster.http(), "/readyz").await.status, 200);
    post(cluster.http(), CHAT, &chat(json!({}))).await;
    let status = get(cluster.http(), "/status").await.json();
    assert_eq!((&status["members"][0]["role"], &status["requests"]["open"]), (&json!("decode"), &json!(0)));
    let metrics = get(cluster.http(), "/metrics").await;
    let metrics = std::str::from_utf8(&metrics.body).unwrap();
    for line in [
        "kvrail_gateway_requests_total{endpoint=\"chat\"} 1",
        "kvrail_gateway_requests_ended_total{outcome=\"ok\"} 1",
        "kvrail_gateway_tokens_total{kind=\"output\"} 50",
        "kvrail_gateway_conductor_connected 1",
    ] {
        assert!(metrics.contains(line), "{line} not in\n{metrics}");
    }
    let admin = cluster.conductor.addresses.admin;
    let status = get(admin, "/status").await.json();
    assert_eq!((&status["members"][0]["node_id"], &status["routes"]["alone"]), (&json!("d0"), &json!(1)));
    assert_eq!(get(admin, "/readyz").await.status, 200);
    let metrics = get(admin, "/metrics").await;
    assert!(std::str::from_utf8(&metrics.body).unwrap().contains("kvrail_conductor_members{role=\"decode\"} 1"));
}

#[tokio::test]
async fn keys_let_tenants_in_and_salt_their_cache() {
    // SHA-256 of `abc`.
    let key = "team:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    let cluster = Cluster::start_with(Script::Letters, 1, |config| config.api_keys = vec![key.parse().unwrap()]).await;
    let json_type = ("content-type", "application/json");
    let body = chat(json!({"max_tokens": 2})).to_string();
    for headers in [&[json_type][..], &[json_type, ("authorization", "Bearer abd")]] {
        let answer = call(cluster.http(), Method::POST, CHAT, headers, body.clone()).await;
        assert_eq!((answer.status, &answer.json()["error"]["code"]), (401, &json!("invalid_api_key")));
        assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
    }
    assert_eq!(get(cluster.http(), "/v1/models").await.status, 401);
    assert_eq!(get(cluster.http(), "/healthz").await.status, 200);
    let headers = [json_type, ("authorization", "Bearer abc")];
    assert_eq!(call(cluster.http(), Method::POST, CHAT, &headers, body).await.status, 200);
    assert_eq!(cluster.nodes[0].requests()[0].salt, "team");
}

#[tokio::test]
async fn request_ids_go_in_and_out() {
    let cluster = Cluster::start(Script::Letters, 1).await;
    let ask = async |id: &str| {
        let answer = call(cluster.http(), Method::GET, "/v1/models", &[("x-request-id", id)], "").await;
        answer.header("x-request-id").unwrap().to_owned()
    };
    assert_eq!(ask("my-id.7").await, "my-id.7");
    for unusable in ["", "has space", &"x".repeat(129)] {
        assert!(ask(unusable).await.starts_with("req-"));
    }
    let body = chat(json!({"max_tokens": 2})).to_string();
    let headers = [("content-type", "application/json; charset=utf-8"), ("x-request-id", "abc")];
    assert_eq!(call(cluster.http(), Method::POST, CHAT, &headers, body).await.status, 200);
    assert_eq!(cluster.nodes[0].requests()[0].request_id, "abc-0");
}

#[tokio::test]
async fn without_a_node_the_refusal_is_typed() {
    let cluster = Cluster::start(Script::Letters, 0).await;
    let answer = post(cluster.http(), CHAT, &chat(json!({}))).await;
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (503, &json!("no_nodes")));
    assert_eq!(answer.header("retry-after"), Some("1"));
    assert_eq!(get(cluster.http(), "/readyz").await.status, 503);
    tokio::time::sleep(Duration::from_millis(1)).await;
}
