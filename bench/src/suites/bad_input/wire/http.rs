//! The admin endpoints of nodes and conductor.

use super::{Outcome, exchange};
use crate::cluster::Cluster;

/// What is sent, and the status that comes back; `None`: the connection is closed without one.
fn cases() -> Vec<(&'static str, Vec<u8>, Option<u16>)> {
    let long = format!("GET /status HTTP/1.1\r\nhost: x\r\nx: {}\r\n\r\n", "y".repeat(1 << 20));
    vec![
        ("random bytes", vec![0xa7; 256], Some(400)),
        ("a TLS hello", vec![0x16, 3, 1, 0, 0xa5, 1, 0, 0, 0xa1, 3, 3, 9, 9, 9, 9], Some(400)),
        ("a wrong version", b"GET /status HTTP/9.9\r\nhost: x\r\n\r\n".to_vec(), Some(400)),
        ("a header of 1 MiB", long.into_bytes(), Some(431)),
        (
            "a length that is no number",
            b"GET /status HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n".to_vec(),
            Some(400),
        ),
        (
            "another method",
            b"POST /status HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 0\r\n\r\n".to_vec(),
            Some(405),
        ),
        ("another path", b"GET /etc/passwd HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".to_vec(), Some(404)),
        ("nothing, then the end", Vec::new(), None),
    ]
}

/// Every case at every admin endpoint.
pub(super) async fn requests(cluster: &Cluster) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for process in cluster.processes().filter(|p| !p.address("admin").is_empty()) {
        for (name, bytes, expected) in cases() {
            let status = send(process.address("admin"), &bytes).await;
            let outcome = match status {
                Ok(status) if status == expected => Ok(()),
                other => Err(format!("was answered {other:?}, expected {expected:?}")),
            };
            outcomes.push((format!("{name} at {}", process.name), outcome));
        }
    }
    outcomes
}

async fn send(address: &str, bytes: &[u8]) -> Result<Option<u16>, String> {
    let answer = exchange(address, bytes).await?;
    if answer.is_empty() {
        return Ok(None);
    }
    let text = String::from_utf8_lossy(&answer);
    let status = text.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
    status.map(Some).ok_or_else(|| format!("not HTTP: {text}"))
}
