//! Channels to prefill nodes, and which of them were lost a moment ago. Bounded in both.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use kvrail_node::grpc::{self, GrpcConfig, GrpcError};
use kvrail_proto::v1::prefill_client::PrefillClient;
use parking_lot::Mutex;
use tonic::transport::Channel;

/// Most prefill nodes remembered; the one used least recently goes first.
const PEERS_MAX: usize = 1024;

#[derive(Debug)]
struct Peer {
    channel: Channel,
    used: Instant,
    suspect_until: Option<Instant>,
}

/// The prefill nodes that this node has talked to, by address.
#[derive(Debug)]
pub struct Peers {
    grpc: GrpcConfig,
    suspect: Duration,
    known: Mutex<HashMap<String, Peer>>,
}

impl Peers {
    /// Nobody is known; one that is lost is avoided for `suspect`.
    #[must_use]
    pub fn new(grpc: GrpcConfig, suspect: Duration) -> Self {
        Self { grpc, suspect, known: Mutex::new(HashMap::new()) }
    }

    /// A client of the node at `address`. Connects when used.
    ///
    /// # Errors
    /// [`GrpcError::Address`].
    pub fn client(&self, address: &str, now: Instant) -> Result<PrefillClient<Channel>, GrpcError> {
        let mut known = self.known.lock();
        let channel = match known.get_mut(address) {
            Some(peer) => {
                peer.used = now;
                peer.channel.clone()
            }
            None => {
                let channel = grpc::channel(&self.grpc, address)?;
                if known.len() >= PEERS_MAX
                    && let Some(oldest) = known.iter().min_by_key(|(_, p)| p.used).map(|(a, _)| a.clone())
                {
                    known.remove(&oldest);
                }
                known.insert(address.into(), Peer { channel: channel.clone(), used: now, suspect_until: None });
                channel
            }
        };
        let bytes = self.grpc.message_bytes_max;
        Ok(PrefillClient::new(channel).max_decoding_message_size(bytes).max_encoding_message_size(bytes))
    }

    /// The node was lost: avoid it for a while, and connect anew after.
    pub fn lost(&self, address: &str, now: Instant) {
        if let Some(peer) = self.known.lock().get_mut(address) {
            peer.suspect_until = Some(now + self.suspect);
        }
    }

    /// Whether the node was lost a moment ago.
    #[must_use]
    pub fn is_suspect(&self, address: &str, now: Instant) -> bool {
        self.known.lock().get(address).and_then(|p| p.suspect_until).is_some_and(|until| now < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn suspicion_passes_and_memory_is_bounded() {
        let (peers, now) = (Peers::new(GrpcConfig::default(), Duration::from_secs(2)), Instant::now());
        assert!(peers.client("nonsense", now).is_err());
        peers.client("127.0.0.1:1", now).expect("an address");
        peers.lost("127.0.0.1:1", now);
        assert!(peers.is_suspect("127.0.0.1:1", now + Duration::from_secs(1)));
        assert!(!peers.is_suspect("127.0.0.1:1", now + Duration::from_secs(3)));
        for port in 2..2 + PEERS_MAX as u64 {
            peers.client(&format!("127.0.0.1:{port}"), now + Duration::from_millis(port)).expect("an address");
        }
        assert_eq!(peers.known.lock().len(), PEERS_MAX);
        assert!(!peers.known.lock().contains_key("127.0.0.1:1"), "the least recently used one went");
    }
}
