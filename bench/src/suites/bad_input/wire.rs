//! What a stranger can send to the ports of a node: the transfer engine's handshake and the gRPC services.
//!
//! The frames of a session that is up (wrong generation, ranges outside the lease, lengths past the end) are cases of the
//! transfer engine's own `tests/hostile.rs`, where a session can be made to lie.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::Findings;
use crate::cluster::Cluster;

/// Longest a port may keep a stranger who says nothing right.
const CLOSES_WITHIN: Duration = Duration::from_secs(15);

fn cases() -> Vec<(String, Vec<u8>)> {
    let mut rng = SmallRng::seed_from_u64(7);
    let mut cases: Vec<(String, Vec<u8>)> = vec![
        ("an HTTP probe".into(), b"GET / HTTP/1.1\r\nhost: x\r\n\r\n".to_vec()),
        ("a TLS hello".into(), vec![0x16, 3, 1, 0, 0xa5, 1, 0, 0, 0xa1, 3, 3, 9, 9, 9, 9]),
        ("nothing at all".into(), Vec::new()),
        ("one byte".into(), vec![0]),
        ("a length of 4 GiB".into(), vec![0xff; 8]),
        ("zeros".into(), vec![0; 4096]),
        ("ones".into(), vec![0xff; 65_536]),
        ("our magic, then nonsense".into(), [&b"kvr\x01"[..], &[0xff; 26]].concat()),
    ];
    for length in [16, 64, 256, 1_024, 16_384, 262_144] {
        let bytes: Vec<u8> = (0..length).map(|_| rng.random::<u8>()).collect();
        cases.push((format!("{length} random bytes"), bytes));
    }
    cases
}

/// Sends every case to every port of every node; each must be closed or answered, and none may hang.
pub async fn run(cluster: &Cluster, findings: &mut Findings) {
    let mut ports = Vec::new();
    for node in cluster.prefill.iter().chain(&cluster.decode) {
        ports.extend(["transfer", "grpc", "admin"].map(|port| (format!("{} {port}", node.name), node.address(port))));
    }
    ports.push(("conductor grpc".into(), cluster.conductor.address("grpc")));
    let (mut right, mut total) = (0, 0);
    for (port, address) in &ports {
        let outcomes = cases().into_iter().map(|(name, bytes)| async move { (name, send(address, &bytes).await) });
        for (name, outcome) in futures::future::join_all(outcomes).await {
            total += 1;
            match outcome {
                Ok(()) => right += 1,
                Err(e) => findings.failure(format!("wire: {name} at {port}: {e}")),
            }
        }
    }
    findings.figure("wire", format!("{right} of {total} refused in time ({} ports)", ports.len()));
}

async fn send(address: &str, bytes: &[u8]) -> Result<(), String> {
    let mut socket = TcpStream::connect(address).await.map_err(|e| format!("cannot connect: {e}"))?;
    let _ = socket.write_all(bytes).await;
    let _ = socket.shutdown().await;
    let mut answer = Vec::new();
    match timeout(CLOSES_WITHIN, socket.read_to_end(&mut answer)).await {
        Err(_) => Err(format!("still open after {CLOSES_WITHIN:?}")),
        Ok(_) => Ok(()),
    }
}
