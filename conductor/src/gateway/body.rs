//! A request's body: bounded in size and time, and all bodies together in memory. It comes before the request gets a place,
//! so that slow clients keep no place from others.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, header};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use super::config::GatewayConfig;
use super::error::ApiError;

/// How long a body that is not wanted is read on, so that the client hears why instead of a reset.
const LINGER: Duration = Duration::from_secs(5);

/// Of each body so much is free: small ones are read however many large ones are on the way.
const FREE_BYTES: usize = 64 << 10;

/// Bounds of bodies, and the memory that those which are arriving share.
pub(super) struct Intake {
    bytes_max: usize,
    time_max: Duration,
    /// Bytes beyond the free ones that may be here at once, and those that may still come.
    bodies_max: usize,
    room: Arc<Semaphore>,
}

/// A body that has arrived; its memory counts until it is dropped.
pub(super) struct Arrived {
    bytes: Vec<u8>,
    room: Option<OwnedSemaphorePermit>,
}

impl Deref for Arrived {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Intake {
    pub(super) fn new(config: &GatewayConfig) -> Self {
        let (bytes_max, time_max) = (config.body_bytes_max, config.body_timeout);
        let bodies_max = config.bodies_bytes_max.max(bytes_max).min(Semaphore::MAX_PERMITS);
        Self { bytes_max, time_max, bodies_max, room: Arc::new(Semaphore::new(bodies_max)) }
    }

    /// For `/status`: what counts of the bodies that are arriving, and the most that may.
    pub(super) fn status(&self) -> Value {
        json!({"bytes": self.bodies_max - self.room.available_permits(), "max": self.bodies_max})
    }

    /// Reads a JSON body.
    ///
    /// # Errors
    /// 400, 408, 413, 415, 429.
    pub(super) async fn read(&self, headers: &HeaderMap, mut body: Body) -> Result<Arrived, ApiError> {
        if let Err(error) = self.check(headers) {
            refuse(headers, body).await;
            return Err(error);
        }
        let deadline = Instant::now() + self.time_max;
        let mut arrived = Arrived { bytes: Vec::new(), room: None };
        loop {
            let frame = timeout_at(deadline, body.frame()).await.map_err(|_| ApiError::slow_body(self.time_max))?;
            let Some(frame) = frame else { return Ok(arrived) };
            let frame = frame.map_err(|_| ApiError::body("The body ended before its announced length"))?;
            let Ok(data) = frame.into_data() else { continue };
            if let Err(error) = self.take(&mut arrived, &data) {
                drop(arrived);
                linger(body).await;
                return Err(error);
            }
        }
    }

    /// What the head says already.
    fn check(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        check_content_type(headers)?;
        let announced = headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
        if announced.is_some_and(|length| length > self.bytes_max as u64) {
            return Err(ApiError::body_too_large(self.bytes_max));
        }
        Ok(())
    }

    fn take(&self, arrived: &mut Arrived, data: &[u8]) -> Result<(), ApiError> {
        let (before, after) = (arrived.bytes.len(), arrived.bytes.len() + data.len());
        if after > self.bytes_max {
            return Err(ApiError::body_too_large(self.bytes_max));
        }
        let more = after.saturating_sub(FREE_BYTES.max(before));
        if more > 0 {
            let more = u32::try_from(more).unwrap_or(u32::MAX);
            let room = Arc::clone(&self.room).try_acquire_many_owned(more).map_err(|_| ApiError::too_many_bodies())?;
            match &mut arrived.room {
                Some(held) => held.merge(room),
                none => *none = Some(room),
            }
        }
        arrived.bytes.extend_from_slice(data);
        Ok(())
    }
}

/// Reads a body that is not wanted, for a while: a client that is still sending would meet a reset in place of the reason.
pub(super) async fn refuse(headers: &HeaderMap, body: Body) {
    // Who asks first has sent nothing yet.
    if !headers.contains_key(header::EXPECT) {
        linger(body).await;
    }
}

async fn linger(mut body: Body) {
    let deadline = Instant::now() + LINGER;
    while let Ok(Some(Ok(_))) = timeout_at(deadline, body.frame()).await {}
}

fn check_content_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(value) = headers.get(header::CONTENT_TYPE) else { return Ok(()) };
    let mut parts = value.to_str().unwrap_or_default().split(';').map(str::trim);
    let is_json = parts.next().is_some_and(|essence| essence.eq_ignore_ascii_case("application/json"));
    // JSON has one encoding (RFC 8259); a body that announces another is none.
    let charset = |part: &str| {
        let (name, value) = part.split_once('=')?;
        name.trim().eq_ignore_ascii_case("charset").then(|| value.trim().trim_matches('"').to_ascii_lowercase())
    };
    let is_utf8 = parts.filter_map(charset).all(|name| ["utf-8", "utf8", "us-ascii"].contains(&name.as_str()));
    if is_json && is_utf8 { Ok(()) } else { Err(ApiError::content_type()) }
}
