//! Typed refusals and failures, as every service answers them.

use std::time::Duration;

use kvrail_proto::v1;

/// Why a request was refused or failed. The strings are the wire's; `docs/errors.md` lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureCode {
    /// A field is missing, out of range or contradicts another.
    InvalidRequest,
    /// The request's namespace is not the node's: other weights, KV format or numerics.
    WrongNamespace,
    /// Longer than a limit, which the message names.
    TooLong,
    /// The waiting line is full.
    QueueFull,
    /// No KV headroom within the time that a request may wait for it.
    NoCapacity,
    /// The request's own deadline has passed.
    DeadlineExceeded,
    /// Whoever asked has gone.
    Cancelled,
    /// The node is going away and takes nothing new.
    Draining,
    /// A lease ended before its writes did.
    LeaseExpired,
    /// A peer is gone or silent.
    PeerLost,
    /// A peer is there, but its KV did not arrive whole.
    TransferFailed,
    /// Nobody is there to serve the request.
    NoNodes,
    /// A bug or a broken machine; the log has the cause.
    Internal,
}

impl FailureCode {
    /// Every code, in the order of their definition.
    pub const ALL: [Self; 13] = [
        Self::InvalidRequest,
        Self::WrongNamespace,
        Self::TooLong,
        Self::QueueFull,
        Self::NoCapacity,
        Self::DeadlineExceeded,
        Self::Cancelled,
        Self::Draining,
        Self::LeaseExpired,
        Self::PeerLost,
        Self::TransferFailed,
        Self::NoNodes,
        Self::Internal,
    ];

    /// The code on the wire, in logs and as a metric label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InvalidRequest => "invalid_request",
            Self::WrongNamespace => "wrong_namespace",
            Self::TooLong => "too_long",
            Self::QueueFull => "queue_full",
            Self::NoCapacity => "no_capacity",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::Cancelled => "cancelled",
            Self::Draining => "draining",
            Self::LeaseExpired => "lease_expired",
            Self::PeerLost => "peer_lost",
            Self::TransferFailed => "transfer_failed",
            Self::NoNodes => "no_nodes",
            Self::Internal => "internal",
        }
    }

    /// The code of a wire string; what is not known is [`FailureCode::Internal`].
    #[must_use]
    pub fn parse(code: &str) -> Self {
        Self::ALL.into_iter().find(|c| c.as_str() == code).unwrap_or(Self::Internal)
    }

    /// Whether another node may do better.
    #[must_use]
    pub const fn retryable(self) -> bool {
        !matches!(self, Self::InvalidRequest | Self::TooLong | Self::DeadlineExceeded | Self::Cancelled)
    }
}

impl std::fmt::Display for FailureCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A failure with what a person needs to act on it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct Failure {
    /// What kind.
    pub code: FailureCode,
    /// What is wrong and what would be right.
    pub message: String,
    /// How long to wait before another try here, where that can be said.
    pub retry_after: Option<Duration>,
}

impl Failure {
    /// A failure without advice on when to come back.
    #[must_use]
    pub fn new(code: FailureCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), retry_after: None }
    }

    /// Adds when to come back.
    #[must_use]
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }
}

impl From<Failure> for v1::Failure {
    fn from(failure: Failure) -> Self {
        Self {
            code: failure.code.as_str().into(),
            message: failure.message,
            retryable: failure.code.retryable(),
            retry_after_ms: failure.retry_after.map_or(0, |d| u32::try_from(d.as_millis()).unwrap_or(u32::MAX).max(1)),
        }
    }
}

impl From<v1::Failure> for Failure {
    fn from(wire: v1::Failure) -> Self {
        Self {
            code: FailureCode::parse(&wire.code),
            message: wire.message,
            retry_after: (wire.retry_after_ms > 0).then(|| Duration::from_millis(wire.retry_after_ms.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_survive_the_wire_and_are_distinct() {
        let mut seen = std::collections::HashSet::new();
        for code in FailureCode::ALL {
            assert!(seen.insert(code.as_str()));
            let failure = Failure::new(code, "m").retry_after(Duration::from_millis(20));
            assert_eq!(Failure::from(v1::Failure::from(failure.clone())), failure);
        }
        assert_eq!(FailureCode::parse("from the future"), FailureCode::Internal);
    }

    #[test]
    fn a_wait_below_a_millisecond_is_still_a_wait() {
        let wire = v1::Failure::from(Failure::new(FailureCode::QueueFull, "m").retry_after(Duration::from_micros(1)));
        assert_eq!(wire.retry_after_ms, 1);
    }
}
