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
    /// How often TCP was used where shared memory was wanted.
    pub fallbacks: Fallbacks,
}

/// How often something went over TCP although both sides speak shared memory, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Fallbacks {
    /// Transfers whose bytes come from memory that is private to its process
    /// ([`MemoryKind::Host`](crate::MemoryKind::Host)).
    pub private_memory: u64,
    /// Sessions of two engines on one machine that run as different users.
    pub other_user: u64,
    /// Streams through shared memory that did not come up, each attempt.
    pub not_opened: u64,
}

/// One reason of [`Fallbacks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fallback {
    PrivateMemory,
    OtherUser,
    NotOpened,
}

impl Fallback {
    /// For people.
    pub(crate) fn why(self) -> &'static str {
        match self {
            Self::PrivateMemory => "the memory that the bytes come from is private to its process",
            Self::OtherUser => "the two engines run as different users",
            Self::NotOpened => "a stream through shared memory did not come up",
        }
    }
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
    pub(crate) fallbacks: [AtomicU64; 3],
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
        let [private_memory, other_user, not_opened] = self.fallbacks.each_ref().map(get);
        stats.fallbacks = Fallbacks { private_memory, other_user, not_opened };
    }
}
