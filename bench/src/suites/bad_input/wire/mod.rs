//! What a stranger, or a peer that lies, can send to the ports of live nodes.
//!
//! Each case says what comes back: a typed refusal where the protocol can answer, the close of the connection where it
//! cannot, because what came is no message of it; and which count of the node's shows it afterwards.
//!
//! Map: `transfer` the transfer engine's handshake and frames · `hired` how a lease of a live node is come by · `grpc` the
//! services · `http` the admin endpoints.

mod grpc;
mod hired;
mod http;
mod transfer;

use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};

use super::Findings;
use crate::cluster::{Cluster, Process};

/// Longest a server may take over an answer, or keep a stranger who says nothing.
const ANSWERS_WITHIN: Duration = Duration::from_secs(15);

/// A case's name and what was not as promised.
type Outcome = (String, Result<(), String>);

/// Runs all cases, one after the other: what a node counts must be theirs.
pub async fn run(cluster: &Cluster, findings: &mut Findings) {
    let ports: [(&str, Vec<Outcome>); 4] = [
        ("handshake", transfer::handshakes(cluster).await),
        ("session and frames", transfer::frames(cluster).await),
        ("gRPC", grpc::calls(cluster).await),
        ("admin HTTP", http::requests(cluster).await),
    ];
    for (port, outcomes) in ports {
        let total = outcomes.len();
        let mut right = 0;
        for (name, outcome) in outcomes {
            match outcome {
                Ok(()) => right += 1,
                Err(e) => findings.failure(format!("wire: {port}: {name}: {e}")),
            }
        }
        findings.figure(format!("wire, {port}"), format!("{right} of {total} cases answered as promised"));
    }
}

/// A connection to a gRPC service.
async fn channel(address: &str) -> Result<Channel, String> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|e| e.to_string())?;
    endpoint.connect().await.map_err(|e| e.to_string())
}

/// Sends bytes, or nothing but the end, and reads what comes back until the server closes.
async fn exchange(address: &str, bytes: &[u8]) -> Result<Vec<u8>, String> {
    let mut socket = TcpStream::connect(address).await.map_err(|e| e.to_string())?;
    // A server may answer and close before it has read everything: then this fails, or the reading ends in a reset.
    let _ = socket.write_all(bytes).await;
    if bytes.is_empty() {
        let _ = socket.shutdown().await;
    }
    let mut answer = Vec::new();
    let read = timeout(ANSWERS_WITHIN, socket.read_to_end(&mut answer)).await;
    read.map_err(|_| format!("still open after {ANSWERS_WITHIN:?}")).map(|_| answer)
}

/// A count in a node's `/status`.
pub(super) async fn count(cluster: &Cluster, node: &Process, pointer: &str) -> Result<u64, String> {
    let status = cluster.status(node).await?;
    status.pointer(pointer).and_then(Value::as_u64).ok_or_else(|| format!("{} tells no {pointer}", node.name))
}
