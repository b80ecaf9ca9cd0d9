//! A small HTTP client that sees everything: status, headers, and each event of a stream.

use std::net::SocketAddr;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::HeaderMap;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

const PATIENCE: Duration = Duration::from_secs(30);

pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {:?}", self.body))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|v| v.to_str().unwrap())
    }
}

async fn send(
    address: SocketAddr,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: impl Into<Bytes>,
) -> Response<Incoming> {
    let socket = TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(socket)).await.unwrap();
    tokio::spawn(connection);
    let mut request = Request::builder().method(method).uri(path).header("host", "test");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Full::new(body.into())).unwrap();
    tokio::time::timeout(PATIENCE, sender.send_request(request)).await.expect("an answer in time").unwrap()
}

pub async fn call(
    address: SocketAddr,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: impl Into<Bytes>,
) -> Answer {
    let response = send(address, method, path, headers, body).await;
    let (parts, body) = response.into_parts();
    let body = tokio::time::timeout(PATIENCE, body.collect()).await.expect("a body in time").unwrap().to_bytes();
    Answer { status: parts.status.as_u16(), headers: parts.headers, body }
}

pub async fn get(address: SocketAddr, path: &str) -> Answer {
    call(address, Method::GET, path, &[], "").await
}

pub async fn post(address: SocketAddr, path: &str, body: &Value) -> Answer {
    call(address, Method::POST, path, &[("content-type", "application/json")], body.to_string()).await
}

/// Opens a stream; dropping it closes the connection.
pub async fn post_stream(address: SocketAddr, path: &str, body: &Value) -> EventStream {
    let headers = [("content-type", "application/json")];
    let response = send(address, Method::POST, path, &headers, body.to_string()).await;
    assert_eq!(response.status().as_u16(), 200, "{:?}", response.into_body().collect().await.unwrap().to_bytes());
    assert!(response.headers()["content-type"].to_str().unwrap().starts_with("text/event-stream"));
    EventStream { body: response.into_body(), buffer: String::new() }
}

pub struct EventStream {
    body: Incoming,
    buffer: String,
}

/// One event, or the end.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    Chunk(Value),
    Error(Value),
    Done,
    /// The connection ended.
    End,
}

impl EventStream {
    pub async fn next(&mut self) -> Event {
        loop {
            if let Some((event, rest)) = self.buffer.split_once("\n\n") {
                let data = event.lines().find_map(|line| line.strip_prefix("data: ")).expect("data");
                let parsed = match data {
                    "[DONE]" => Event::Done,
                    json => {
                        let value: Value = serde_json::from_str(json).unwrap();
                        let is_error = value.get("error").is_some();
                        assert_eq!(event.starts_with("event: error\n"), is_error, "{event}");
                        if is_error { Event::Error(value) } else { Event::Chunk(value) }
                    }
                };
                self.buffer = rest.to_owned();
                return parsed;
            }
            match tokio::time::timeout(PATIENCE, self.body.frame()).await.expect("an event in time") {
                None | Some(Err(_)) => return Event::End,
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer += std::str::from_utf8(&data).unwrap();
                    }
                }
            }
        }
    }

    /// All that is left: the chunks, and whether `[DONE]` or an error ended them.
    pub async fn rest(mut self) -> (Vec<Value>, Event) {
        let mut chunks = Vec::new();
        loop {
            match self.next().await {
                Event::Chunk(chunk) => chunks.push(chunk),
                end => {
                    if end != Event::End {
                        assert_eq!(self.next().await, Event::End, "nothing follows the end");
                    }
                    return (chunks, end);
                }
            }
        }
    }
}

/// Text of one choice of a chat's or a completion's chunks.
pub fn text(chunks: &[Value], index: u64) -> String {
    let choices = chunks.iter().flat_map(|c| c["choices"].as_array().unwrap());
    choices
        .filter(|c| c["index"] == index)
        .map(|c| c["delta"]["content"].as_str().or(c["text"].as_str()).unwrap_or_default())
        .collect()
}

/// The finish reason of one choice.
pub fn finish_reason(chunks: &[Value], index: u64) -> Option<String> {
    let choices = chunks.iter().flat_map(|c| c["choices"].as_array().unwrap());
    let mut reasons = choices.filter(|c| c["index"] == index).filter_map(|c| c["finish_reason"].as_str());
    let reason = reasons.next().map(str::to_owned);
    assert_eq!(reasons.next(), None, "one finish reason a choice");
    reason
}
