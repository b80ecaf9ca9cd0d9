//! Transports by the names that the command line uses.

use std::str::FromStr;

use kvrail_transfer::TransportKind;
use serde::{Deserialize, Serialize};

/// A transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wire {
    /// TCP streams.
    Tcp,
    /// Shared memory.
    Shm,
    /// NICs with RDMA.
    Rdma,
}

/// Not a transport, or none that the bench in question has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is no transport here; there is {there}")]
pub struct WireError {
    given: String,
    there: &'static str,
}

impl Wire {
    /// The engine's name for it.
    #[must_use]
    pub fn kind(self) -> TransportKind {
        match self {
            Self::Tcp => TransportKind::Tcp,
            Self::Shm => TransportKind::Shm,
            Self::Rdma => TransportKind::Rdma,
        }
    }

    /// Reads those that go without a NIC: what has a plain counterpart, and what `kvrail bench serve` starts nodes with.
    ///
    /// # Errors
    /// [`WireError`] for any other text.
    pub fn plain(text: &str) -> Result<Self, WireError> {
        let refused = || WireError { given: text.to_owned(), there: "tcp and shm" };
        text.parse().ok().filter(|wire| *wire != Self::Rdma).ok_or_else(refused)
    }
}

impl FromStr for Wire {
    type Err = WireError;

    fn from_str(text: &str) -> Result<Self, WireError> {
        match text {
            "tcp" => Ok(Self::Tcp),
            "shm" => Ok(Self::Shm),
            "rdma" => Ok(Self::Rdma),
            _ => Err(WireError { given: text.to_owned(), there: "tcp, shm and rdma" }),
        }
    }
}

impl std::fmt::Display for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Shm => "shm",
            Self::Rdma => "rdma",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transport_is_read_back_from_its_name_and_another_is_told_what_there_is() {
        for wire in [Wire::Tcp, Wire::Shm, Wire::Rdma] {
            assert_eq!(wire.to_string().parse(), Ok(wire));
        }
        let error = "udp".parse::<Wire>().unwrap_err().to_string();
        assert!(error.contains("udp") && error.contains("rdma"), "{error}");
        assert_eq!(Wire::plain("shm"), Ok(Wire::Shm));
        assert!(Wire::plain("rdma").is_err() && Wire::plain("").is_err());
    }
}
