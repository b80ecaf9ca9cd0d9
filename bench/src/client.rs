//! A small OpenAI client: enough to drive an endpoint, read every token of a stream, and notice every way it can end.
//!
//! One connection a request, on purpose: a killed gateway or a dropped client is then one broken socket and nothing else.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Why a call gave no whole answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The endpoint could not be reached, or the connection broke.
    #[error("connection to {url}: {reason}")]
    Connection {
        /// Where to.
        url: String,
        /// What happened.
        reason: String,
    },
    /// Nothing came for too long.
    #[error("nothing from the server for {after:?}")]
    TimedOut {
        /// How long.
        after: Duration,
    },
    /// An HTTP error before the first byte of the answer.
    #[error("HTTP {status}: {body}")]
    Http {
        /// Status code.
        status: u16,
        /// The body, OpenAI's error object where the server keeps its word.
        body: String,
    },
    /// An `error` event after the first byte.
    #[error("error event: {0}")]
    ErrorEvent(Value),
    /// The stream ended without `[DONE]`.
    #[error("the stream ended without [DONE]")]
    Truncated,
    /// Something that is not the protocol.
    #[error("malformed answer: {0}")]
    Malformed(String),
}

impl ClientError {
    /// HTTP status, where there was one.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Http { status, .. } => Some(*status),
            _ => None,
        }
    }
}

/// A client of one endpoint.
#[derive(Clone, Debug)]
pub struct Client {
    authority: String,
    api_key: Option<String>,
    silence_max: Duration,
}

/// Status, headers and whole body of a plain call.
#[derive(Debug)]
pub struct Reply {
    /// HTTP status.
    pub status: u16,
    /// Body.
    pub body: Bytes,
    /// `Retry-After`, where given.
    pub retry_after: Option<String>,
}

impl Reply {
    /// The body as JSON.
    ///
    /// # Errors
    /// If it is none.
    pub fn json(&self) -> Result<Value, ClientError> {
        serde_json::from_slice(&self.body)
            .map_err(|e| ClientError::Malformed(format!("{e}: {}", String::from_utf8_lossy(&self.body))))
    }
}

impl Client {
    /// A client of `url` (`http://host:port` or `host:port`).
    ///
    /// # Errors
    /// If the URL names another scheme or no host.
    pub fn new(url: &str) -> Result<Self, ClientError> {
        let authority = url.strip_prefix("http://").unwrap_or(url).trim_end_matches('/');
        if authority.is_empty() || authority.contains("://") || authority.contains('/') {
            return Err(ClientError::Connection { url: url.into(), reason: "expected http://HOST:PORT".into() });
        }
        Ok(Self { authority: authority.into(), api_key: None, silence_max: Duration::from_secs(120) })
    }

    /// Sends `Authorization: Bearer KEY`.
    #[must_use]
    pub fn with_api_key(mut self, key: Option<String>) -> Self {
        self.api_key = key;
        self
    }

    /// How long nothing may come before a call is given up.
    #[must_use]
    pub fn with_silence_max(mut self, silence_max: Duration) -> Self {
        self.silence_max = silence_max;
        self
    }

    fn broken(&self, reason: impl std::fmt::Display) -> ClientError {
        ClientError::Connection { url: self.authority.clone(), reason: reason.to_string() }
    }

    async fn within<T>(&self, future: impl Future<Output = T>) -> Result<T, ClientError> {
        timeout(self.silence_max, future).await.map_err(|_| ClientError::TimedOut { after: self.silence_max })
    }

    async fn call(&self, method: Method, path: &str, body: Bytes) -> Result<Response<Incoming>, ClientError> {
        let socket = self.within(TcpStream::connect(&self.authority)).await?.map_err(|e| self.broken(e))?;
        let _ = socket.set_nodelay(true);
        let (mut sender, connection) = self
            .within(hyper::client::conn::http1::handshake(TokioIo::new(socket)))
            .await?
            .map_err(|e| self.broken(e))?;
        tokio::spawn(connection);
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", &self.authority)
            .header("content-type", "application/json");
        if let Some(key) = &self.api_key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let request = request.body(Full::new(body)).map_err(|e| ClientError::Malformed(e.to_string()))?;
        self.within(sender.send_request(request)).await?.map_err(|e| self.broken(e))
    }

    /// A plain call; any status is an answer.
    ///
    /// # Errors
    /// If no whole answer came.
    pub async fn raw(&self, method: Method, path: &str, body: Bytes) -> Result<Reply, ClientError> {
        let response = self.call(method, path, body).await?;
        let status = response.status().as_u16();
        let retry_after =
            response.headers().get("retry-after").and_then(|v| v.to_str().ok()).map(std::borrow::ToOwned::to_owned);
        let body = self.within(response.into_body().collect()).await?.map_err(|e| self.broken(e))?.to_bytes();
        Ok(Reply { status, body, retry_after })
    }

    /// `GET path` as JSON; an HTTP error is an error.
    ///
    /// # Errors
    /// [`ClientError`], of any kind.
    pub async fn get(&self, path: &str) -> Result<Value, ClientError> {
        let reply = self.raw(Method::GET, path, Bytes::new()).await?;
        if reply.status != 200 {
            let body = String::from_utf8_lossy(&reply.body).into_owned();
            return Err(ClientError::Http { status: reply.status, body });
        }
        reply.json()
    }

    /// `POST path` with a JSON body; an HTTP error is an error.
    ///
    /// # Errors
    /// [`ClientError`], of any kind.
    pub async fn post(&self, path: &str, body: &Value) -> Result<Value, ClientError> {
        let reply = self.raw(Method::POST, path, body.to_string().into()).await?;
        if reply.status != 200 {
            let body = String::from_utf8_lossy(&reply.body).into_owned();
            return Err(ClientError::Http { status: reply.status, body });
        }
        reply.json()
    }

    /// Opens a stream: `body` should say `"stream": true`.
    ///
    /// # Errors
    /// [`ClientError::Http`] where the server refuses before the first byte.
    pub async fn stream(&self, path: &str, body: &Value) -> Result<EventStream, ClientError> {
        let sent = Instant::now();
        let response = self.call(Method::POST, path, body.to_string().into()).await?;
        if response.status() != StatusCode::OK {
            let status = response.status().as_u16();
            let body = self.within(response.into_body().collect()).await?.map_err(|e| self.broken(e))?.to_bytes();
            return Err(ClientError::Http { status, body: String::from_utf8_lossy(&body).into_owned() });
        }
        Ok(EventStream { client: self.clone(), body: response.into_body(), buffer: Vec::new(), done: false, sent })
    }
}

/// Server-sent events of one answer. Dropping it closes the connection, which cancels the request.
pub struct EventStream {
    client: Client,
    body: Incoming,
    buffer: Vec<u8>,
    done: bool,
    /// When the request was sent.
    pub sent: Instant,
}

impl EventStream {
    /// The next event, or `None` after `[DONE]`.
    ///
    /// # Errors
    /// An `error` event, a connection that breaks, silence, or an end without `[DONE]`.
    pub async fn next(&mut self) -> Result<Option<Value>, ClientError> {
        loop {
            if self.done {
                return Ok(None);
            }
            if let Some(end) = find(&self.buffer, b"\n\n") {
                let event: Vec<u8> = self.buffer.drain(..end + 2).collect();
                match parse_event(&event)? {
                    Parsed::Nothing => continue,
                    Parsed::Done => {
                        self.done = true;
                        return Ok(None);
                    }
                    Parsed::Data(value) if value.get("error").is_some() => return Err(ClientError::ErrorEvent(value)),
                    Parsed::Data(value) => return Ok(Some(value)),
                }
            }
            let frame = timeout(self.client.silence_max, self.body.frame())
                .await
                .map_err(|_| ClientError::TimedOut { after: self.client.silence_max })?;
            match frame {
                None => return Err(ClientError::Truncated),
                Some(Err(e)) => return Err(self.client.broken(e)),
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        self.buffer.extend_from_slice(data);
                    }
                }
            }
        }
    }
}

enum Parsed {
    Nothing,
    Done,
    Data(Value),
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|w| w == needle)
}

/// One event: its `data:` lines joined; comments and other fields are skipped (WHATWG HTML, server-sent events).
fn parse_event(event: &[u8]) -> Result<Parsed, ClientError> {
    let text = std::str::from_utf8(event).map_err(|e| ClientError::Malformed(e.to_string()))?;
    let data: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("data:")).map(|d| d.strip_prefix(' ').unwrap_or(d)).collect();
    if data.is_empty() {
        return Ok(Parsed::Nothing);
    }
    let data = data.join("\n");
    if data == "[DONE]" {
        return Ok(Parsed::Done);
    }
    serde_json::from_str(&data).map(Parsed::Data).map_err(|e| ClientError::Malformed(format!("{e}: {data}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_url_must_name_a_host_and_nothing_else() {
        for bad in ["", "https://x:1", "http://x:1/v1", "http:///"] {
            assert!(Client::new(bad).is_err(), "{bad}");
        }
        assert_eq!(Client::new("http://127.0.0.1:8000/").unwrap().authority, "127.0.0.1:8000");
    }

    #[test]
    fn events_are_told_apart() {
        assert!(matches!(parse_event(b": ping\n\n"), Ok(Parsed::Nothing)));
        assert!(matches!(parse_event(b"data: [DONE]\n\n"), Ok(Parsed::Done)));
        assert!(matches!(parse_event(b"data: {\"a\":1}\n\n"), Ok(Parsed::Data(_))));
        assert!(parse_event(b"data: {\n\n").is_err());
        assert!(parse_event(b"data: \xff\n\n").is_err());
    }
}
