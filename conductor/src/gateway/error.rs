//! Errors in OpenAI's shape. docs/errors.md lists the codes.

use std::time::Duration;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use kvrail_proto::v1;
use serde_json::{Value, json};

/// What a client is told, before the first byte as an HTTP error and after it as an `error` event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// HTTP status.
    pub status: StatusCode,
    /// OpenAI's `type`.
    pub kind: &'static str,
    /// Machine-readable reason.
    pub code: &'static str,
    /// The field that is wrong, as a path.
    pub param: Option<String>,
    /// For people: what is wrong and what would be right.
    pub message: String,
    /// When to try again.
    pub retry_after: Option<Duration>,
}

const INVALID: &str = "invalid_request_error";
const SERVER: &str = "server_error";
/// What a client that asked for another path may have meant.
const PATHS: &str = "/v1/chat/completions, /v1/completions and /v1/models";

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, code, param: None, message: message.into(), retry_after: None }
    }

    fn retry(self, after: Duration) -> Self {
        Self { retry_after: Some(after), ..self }
    }

    /// 400: this field is wrong.
    pub fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        let error = Self::new(StatusCode::BAD_REQUEST, INVALID, "invalid_value", message);
        Self { param: Some(param.into()), ..error }
    }

    /// 400: the field is not supported, and so not ignored.
    pub fn unsupported(param: impl Into<String>, why: &str) -> Self {
        let param = param.into();
        let message = format!("`{param}` is not supported here{why}");
        Self { code: "unsupported_parameter", ..Self::field(param, message) }
    }

    /// 400: the body as a whole is wrong.
    pub fn body(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, INVALID, "invalid_body", message)
    }

    /// 400: longer than the pool takes.
    pub fn too_long(param: &'static str, message: impl Into<String>) -> Self {
        Self { code: "context_length_exceeded", ..Self::field(param, message) }
    }

    /// 401.
    pub fn unauthorized(message: &str) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "authentication_error", "invalid_api_key", message)
    }

    /// 404: no such model.
    pub fn model_not_found(asked: &str, served: &str) -> Self {
        let asked: String = asked.chars().take(200).collect();
        let message = format!("The model `{asked}` does not exist here; this endpoint serves `{served}`");
        let error = Self::new(StatusCode::NOT_FOUND, INVALID, "model_not_found", message);
        Self { param: Some("model".into()), ..error }
    }

    /// 404: no such path.
    pub fn no_such_path(path: &str) -> Self {
        let path: String = path.chars().take(200).collect();
        Self::new(
            StatusCode::NOT_FOUND,
            INVALID,
            "unknown_url",
            format!("There is nothing at {path}; {PATHS} are here"),
        )
    }

    /// 405.
    pub fn method(method: &str, path: &str, allowed: &str) -> Self {
        let message = format!("{method} is not allowed at {path}; {allowed} is");
        Self::new(StatusCode::METHOD_NOT_ALLOWED, INVALID, "method_not_allowed", message)
    }

    /// 408: the body came too slowly.
    pub fn slow_body(limit: Duration) -> Self {
        let message = format!("The request body did not arrive within {} s", limit.as_secs_f64());
        Self::new(StatusCode::REQUEST_TIMEOUT, INVALID, "body_timeout", message)
    }

    /// 413.
    pub fn body_too_large(limit: usize) -> Self {
        let message = format!("The request body is larger than {limit} bytes, the most this endpoint takes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, INVALID, "body_too_large", message)
    }

    /// 415.
    pub fn content_type() -> Self {
        let message = "The content type must be application/json, in UTF-8";
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, INVALID, "unsupported_media_type", message)
    }

    /// 429: this gateway serves as many requests as it may.
    pub fn too_many_requests(max: usize) -> Self {
        let message = format!("This gateway serves {max} requests already, the most it takes at once");
        Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", "too_many_requests", message)
            .retry(Duration::from_secs(1))
    }

    /// 429: what is arriving takes as much memory as it may.
    pub fn too_many_bodies() -> Self {
        let message = "Too many large request bodies are arriving at this gateway at once";
        Self { message: message.into(), ..Self::too_many_requests(0) }
    }

    /// 503: going away.
    pub fn draining() -> Self {
        let message = "This gateway is shutting down and takes no new requests";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, SERVER, "draining", message).retry(Duration::from_secs(1))
    }

    /// 503: did not end before this gateway had to.
    pub fn cut_off() -> Self {
        Self {
            message: "This gateway is shutting down, and the request did not end in time".into(),
            ..Self::draining()
        }
    }

    /// 503: nobody can serve it.
    pub fn no_nodes(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, SERVER, "no_nodes", message).retry(Duration::from_secs(1))
    }

    /// 504.
    pub fn deadline(limit: Duration) -> Self {
        let message = format!("The request did not end within {} s", limit.as_secs_f64());
        Self::new(StatusCode::GATEWAY_TIMEOUT, "timeout_error", "deadline_exceeded", message)
    }

    /// 500: a fault of this side.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, SERVER, "internal", message)
    }

    /// What a failure of a node or of routing means to the client. `prompt_param` is the field that holds the prompt.
    pub fn from_failure(failure: &v1::Failure, prompt_param: &'static str) -> Self {
        let message = failure.message.as_str();
        let after = Duration::from_millis(u64::from(failure.retry_after_ms)).max(Duration::from_secs(1));
        let unavailable = |code| Self::new(StatusCode::SERVICE_UNAVAILABLE, SERVER, code, message).retry(after);
        match failure.code.as_str() {
            "invalid_request" => Self::new(StatusCode::BAD_REQUEST, INVALID, "invalid_value", message),
            "too_long" => Self::too_long(prompt_param, message),
            "queue_full" => {
                Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", "queue_full", message).retry(after)
            }
            "no_capacity" => {
                Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", "no_capacity", message).retry(after)
            }
            "deadline_exceeded" => {
                Self::new(StatusCode::GATEWAY_TIMEOUT, "timeout_error", "deadline_exceeded", message)
            }
            "no_nodes" => unavailable("no_nodes"),
            "draining" => unavailable("draining"),
            "wrong_namespace" => unavailable("wrong_namespace"),
            "lease_expired" => unavailable("lease_expired"),
            "peer_lost" => unavailable("peer_lost"),
            "transfer_failed" => unavailable("transfer_failed"),
            "cancelled" => unavailable("cancelled"),
            _ => Self::internal(message),
        }
    }

    /// The `error` object in its envelope.
    pub fn to_json(&self) -> Value {
        json!({"error": {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.code,
        }})
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.to_json())).into_response();
        let headers = response.headers_mut();
        if let Some(after) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(after.as_secs_f64().ceil() as u64));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        // What is left of a body that was not read must not be taken for the next request.
        if matches!(self.status, StatusCode::REQUEST_TIMEOUT | StatusCode::PAYLOAD_TOO_LARGE) {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_code_has_its_status() {
        let table = [
            ("invalid_request", 400, "invalid_request_error"),
            ("too_long", 400, "invalid_request_error"),
            ("queue_full", 429, "rate_limit_error"),
            ("no_capacity", 429, "rate_limit_error"),
            ("deadline_exceeded", 504, "timeout_error"),
            ("no_nodes", 503, "server_error"),
            ("draining", 503, "server_error"),
            ("wrong_namespace", 503, "server_error"),
            ("lease_expired", 503, "server_error"),
            ("peer_lost", 503, "server_error"),
            ("transfer_failed", 503, "server_error"),
            ("cancelled", 503, "server_error"),
            ("internal", 500, "server_error"),
            ("never heard of", 500, "server_error"),
        ];
        for (code, status, kind) in table {
            let failure = v1::Failure { code: code.into(), message: "m".into(), retryable: true, retry_after_ms: 1500 };
            let error = ApiError::from_failure(&failure, "prompt");
            assert_eq!((error.status.as_u16(), error.kind), (status, kind), "{code}");
            let response = error.into_response();
            assert_eq!(response.headers().contains_key(header::RETRY_AFTER), matches!(status, 429 | 503), "{code}");
        }
    }
}
