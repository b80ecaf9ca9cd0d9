//! The ready line: the one line of JSON that a service prints on standard output when it can serve.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// What a service says when it is ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// Always true: what tells this line from any other.
    pub ready: bool,
    /// Which service.
    pub role: String,
    /// Name of a node in its pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_id: Option<String>,
    /// Its process.
    pub pid: u32,
    /// Address of its gRPC service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grpc: Option<SocketAddr>,
    /// Address of its transfer engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transfer: Option<SocketAddr>,
    /// Address of `/healthz`, `/readyz`, `/status` and `/metrics`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admin: Option<SocketAddr>,
    /// Address of the OpenAI endpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<SocketAddr>,
}

impl Ready {
    /// A service of this process, with no address yet.
    pub fn new(role: &str) -> Self {
        Self {
            ready: true,
            role: role.to_owned(),
            node_id: None,
            pid: std::process::id(),
            grpc: None,
            transfer: None,
            admin: None,
            http: None,
        }
    }

    /// Reads a line of output; `None` if it is any other line.
    pub fn parse(line: &str) -> Option<Self> {
        serde_json::from_str(line).ok().filter(|ready: &Self| ready.ready)
    }

    /// Prints the line. A reader that is gone does not stop a service: it serves whoever finds it.
    pub fn tell(&self) {
        use std::io::Write;
        let mut out = std::io::stdout().lock();
        let line = serde_json::to_string(self).unwrap_or_default();
        if let Err(error) = writeln!(out, "{line}").and_then(|()| out.flush()) {
            tracing::warn!(%error, "nobody reads the ready line");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_told_from_all_others() {
        let mut ready = Ready::new("decode");
        ready.grpc = Some(([127, 0, 0, 1], 7).into());
        assert_eq!(Ready::parse(&serde_json::to_string(&ready).unwrap()), Some(ready));
        for other in ["", "ready", "{}", "[1]", r#"{"ready":false,"role":"x","pid":1}"#, r#"{"ready":true}"#] {
            assert_eq!(Ready::parse(other), None, "{other}");
        }
    }
}
