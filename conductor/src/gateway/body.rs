//! A request's body: bounded in size and time.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, header};
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout_at};

use super::error::ApiError;

/// How long a body that is not wanted is read on, so that the client hears why instead of a reset.
const LINGER: Duration = Duration::from_secs(5);

/// Reads a JSON body of at most `bytes_max` within `time_max`.
///
/// # Errors
/// 400, 408, 413, 415.
pub(super) async fn read(
    headers: &HeaderMap,
    mut body: Body,
    bytes_max: usize,
    time_max: Duration,
) -> Result<Bytes, ApiError> {
    if let Err(error) = check_content_type(headers) {
        refuse(headers, body).await;
        return Err(error);
    }
    let announced =
        headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()).and_then(|v| v.parse::<u64>().ok());
    if announced.is_some_and(|length| length > bytes_max as u64) {
        refuse(headers, body).await;
        return Err(ApiError::body_too_large(bytes_max));
    }
    let deadline = Instant::now() + time_max;
    let mut bytes = Vec::with_capacity(announced.unwrap_or(0) as usize);
    loop {
        let frame = timeout_at(deadline, body.frame()).await.map_err(|_| ApiError::slow_body(time_max))?;
        let Some(frame) = frame else { return Ok(bytes.into()) };
        let frame = frame.map_err(|_| ApiError::body("The body ended before its announced length"))?;
        if let Ok(data) = frame.into_data() {
            if bytes.len() + data.len() > bytes_max {
                linger(body).await;
                return Err(ApiError::body_too_large(bytes_max));
            }
            bytes.extend_from_slice(&data);
        }
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
    let essence = value.to_str().ok().and_then(|v| v.split(';').next()).map(str::trim);
    if essence.is_some_and(|e| e.eq_ignore_ascii_case("application/json")) {
        Ok(())
    } else {
        Err(ApiError::content_type())
    }
}
