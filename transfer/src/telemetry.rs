//! What the engine counts.

use std::sync::atomic::{AtomicU64, Ordering};

/// What an engine holds and has done; [`Engine::stats`](crate::Engine::stats).
///
/// When nothing is going on, `leases`, `leases_quarantined`, `transfers` and `transfers_lent` are zero.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct EngineStats {
    /// Live sessions.
    pub peers: u64,
    /// Leases out or waiting for their fence.
    pub leases: u64,
    /// Of these, ended but not fenced.
    pub leases_quarantined: u64,
    /// Transfers without a report.
    pub transfers: u64,
    /// Transfers with a report whose memory is still lent.
    pub transfers_lent: u64,
    /// Data streams that are up.
    pub streams: u64,
    /// Payload bytes that landed at peers for our writes, and here for our reads.
    pub bytes_moved: u64,
    /// Bytes sent again after a failed attempt.
    pub bytes_retried: u64,
    /// Payload bytes that landed here for peers' writes.
    pub bytes_received: u64,
    /// Frames turned away because of their lease.
    pub frames_refused: u64,
    /// Slices whose checksum did not fit.
    pub checksum_errors: u64,
    /// Connections dropped for what they said.
    pub protocol_errors: u64,
    /// Peers that died or fell silent.
    pub peers_lost: u64,
}

/// The counters behind [`EngineStats`].
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) streams: AtomicU64,
    pub(crate) bytes_moved: AtomicU64,
    pub(crate) bytes_retried: AtomicU64,
    pub(crate) bytes_received: AtomicU64,
    pub(crate) frames_refused: AtomicU64,
    pub(crate) checksum_errors: AtomicU64,
    pub(crate) protocol_errors: AtomicU64,
    pub(crate) peers_lost: AtomicU64,
}

/// Adds to a counter.
pub(crate) fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

impl Counters {
    pub(crate) fn read_into(&self, stats: &mut EngineStats) {
        let get = |c: &AtomicU64| c.load(Ordering::Relaxed);
        stats.streams = get(&self.streams);
        stats.bytes_moved = get(&self.bytes_moved);
        stats.bytes_retried = get(&self.bytes_retried);
        stats.bytes_received = get(&self.bytes_received);
        stats.frames_refused = get(&self.frames_refused);
        stats.checksum_errors = get(&self.checksum_errors);
        stats.protocol_errors = get(&self.protocol_errors);
        stats.peers_lost = get(&self.peers_lost);
    }
}
