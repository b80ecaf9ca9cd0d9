//! A session as both threads and handles see it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use parking_lot::Mutex;

use crate::engine::ConnectError;
use crate::plan::PeerId;
use crate::session::vouches::Place;
use crate::sync::Event;
use crate::telemetry::{Counters, Fallback, count};
use crate::transport::TransportKind;

/// One session with one generation of a remote engine.
pub(crate) struct Session {
    /// Number that both sides use.
    pub(crate) id: u64,
    /// The remote engine's.
    pub(crate) generation: u64,
    /// Where it was reached, or where it came from.
    pub(crate) address: SocketAddr,
    /// The planner's name for it.
    pub(crate) peer: PeerId,
    /// We dialled, so we dial its streams.
    pub(crate) dialler: bool,
    /// Transports that both sides may use.
    pub(crate) kinds: Vec<TransportKind>,
    /// Set when it is over.
    pub(crate) ended: Arc<Event>,
    /// Reasons to fall back that were logged, one bit each.
    pub(crate) told: AtomicU8,
    /// The last word of each rail that has vouched and has not been heard yet.
    pub(crate) vouched: Mutex<HashMap<Place, u32>>,
}

impl Session {
    pub(crate) fn is_alive(&self) -> bool {
        !self.ended.is_set()
    }

    /// Notes a rail's word. True: whoever listens is to be told.
    pub(crate) fn has_vouched(&self, place: Place, word: u32) -> bool {
        let mut vouched = self.vouched.lock();
        let was_empty = vouched.is_empty();
        vouched.insert(place, word);
        was_empty
    }

    /// Something of it goes over TCP that was to go through shared memory: counted each time, logged once a reason.
    pub(crate) fn falls_back(&self, why: Fallback, counters: &Counters) {
        count(&counters.fallbacks[why as usize], 1);
        let bit = 1 << why as u8;
        if self.told.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
            let peer = self.generation;
            let (wanted, used) = why.which();
            tracing::warn!(peer, address = %self.address, wanted, used, why = why.why(), "a transport is not used");
        }
    }
}

/// Answer to a connect; the first one counts.
#[derive(Default)]
pub(crate) struct Reply {
    result: Mutex<Option<Result<Arc<Session>, ConnectError>>>,
    pub(crate) ready: Arc<Event>,
}

impl Reply {
    pub(crate) fn give(&self, result: Result<Arc<Session>, ConnectError>) {
        self.result.lock().get_or_insert(result);
        self.ready.set();
    }

    pub(crate) fn take(&self) -> Option<Result<Arc<Session>, ConnectError>> {
        self.result.lock().clone()
    }
}
