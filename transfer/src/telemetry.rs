//! What the engine counts.

use std::collections::BTreeMap;
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
    /// Payload bytes that passed through pinned host memory on their way from or to a device.
    pub bytes_staged: u64,
    /// Frames turned away because of their lease.
    pub frames_refused: u64,
    /// Work requests posted to RDMA NICs.
    pub work_requests: u64,
    /// Doorbells rung for them: one a slice.
    pub doorbells: u64,
    /// How often a sender to a NIC of this engine was put under a limit, because others had work for it too.
    pub senders_limited: u64,
    /// Slices whose checksum did not fit.
    pub checksum_errors: u64,
    /// Connections dropped for what they said: the sum of `rejections`.
    pub protocol_errors: u64,
    /// Peers that died or fell silent.
    pub peers_lost: u64,
    /// How often TCP was used where shared memory was wanted.
    pub fallbacks: Fallbacks,
    /// Connections and streams dropped for what they said, by reason.
    pub rejections: BTreeMap<&'static str, u64>,
}

/// Why a connection or a stream was dropped: for what it said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rejection {
    /// Not a message of this protocol, or one out of turn.
    NotAnEngine,
    /// No version of the protocol in common.
    Version,
    /// More peers, or more connections that have not said who they are, than the engine keeps.
    TooMany,
    /// No transport in common.
    NoTransport,
    /// The engine itself.
    Myself,
    /// A stream of no session here.
    UnknownSession,
    /// An opening of a stream that is over.
    Fenced,
    /// Silent in the handshake.
    Timeout,
    /// Another user's process at the shared-memory listener.
    OtherUser,
    /// The peer of a session broke the protocol.
    Session,
    /// The peer of a data stream broke the protocol.
    Stream,
    /// The peer sent more than its limit.
    Overdrawn,
}

impl Rejection {
    /// All, in the order of the counters.
    const NAMES: [&'static str; 12] = [
        "not_an_engine",
        "version",
        "too_many",
        "no_transport",
        "myself",
        "unknown_session",
        "fenced",
        "timeout",
        "other_user",
        "session",
        "stream",
        "overdrawn",
    ];

    /// Its name in counts and log.
    pub(crate) fn as_str(self) -> &'static str {
        Self::NAMES[self as usize]
    }
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
    /// Transfers of device memory that no NIC reaches, although the session has NICs: they pass through host memory.
    pub staged: u64,
}

/// One reason of [`Fallbacks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fallback {
    PrivateMemory,
    OtherUser,
    NotOpened,
    Staged,
}

impl Fallback {
    /// What was wanted, and what is used.
    pub(crate) fn which(self) -> (&'static str, &'static str) {
        match self {
            Self::PrivateMemory | Self::OtherUser | Self::NotOpened => ("shm", "tcp"),
            Self::Staged => ("GPUDirect RDMA", "staging through host memory"),
        }
    }

    /// For people.
    pub(crate) fn why(self) -> &'static str {
        match self {
            Self::PrivateMemory => "the memory that the bytes come from is private to its process",
            Self::OtherUser => "the two engines run as different users",
            Self::NotOpened => "a stream through shared memory did not come up",
            Self::Staged => "no NIC reaches the device's memory (kvrail doctor says why)",
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
    pub(crate) bytes_staged: AtomicU64,
    pub(crate) frames_refused: AtomicU64,
    pub(crate) work_requests: AtomicU64,
    pub(crate) doorbells: AtomicU64,
    pub(crate) senders_limited: AtomicU64,
    pub(crate) checksum_errors: AtomicU64,
    pub(crate) rejections: [AtomicU64; Rejection::NAMES.len()],
    pub(crate) peers_lost: AtomicU64,
    pub(crate) fallbacks: [AtomicU64; 4],
}

/// Adds to a counter.
pub(crate) fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

impl Counters {
    /// A connection is dropped for what it said.
    pub(crate) fn reject(&self, why: Rejection) {
        count(&self.rejections[why as usize], 1);
    }

    pub(crate) fn read_into(&self, stats: &mut EngineStats) {
        let get = |c: &AtomicU64| c.load(Ordering::Relaxed);
        stats.streams = get(&self.streams);
        stats.bytes_moved = get(&self.bytes_moved);
        stats.bytes_retried = get(&self.bytes_retried);
        stats.bytes_received = get(&self.bytes_received);
        stats.bytes_staged = get(&self.bytes_staged);
        stats.frames_refused = get(&self.frames_refused);
        stats.work_requests = get(&self.work_requests);
        stats.doorbells = get(&self.doorbells);
        stats.senders_limited = get(&self.senders_limited);
        stats.checksum_errors = get(&self.checksum_errors);
        stats.peers_lost = get(&self.peers_lost);
        let [private_memory, other_user, not_opened, staged] = self.fallbacks.each_ref().map(get);
        stats.fallbacks = Fallbacks { private_memory, other_user, not_opened, staged };
        stats.rejections = Rejection::NAMES.into_iter().zip(self.rejections.each_ref().map(get)).collect();
        stats.protocol_errors = stats.rejections.values().sum();
    }
}
