//! A session as both threads and handles see it.

use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::engine::ConnectError;
use crate::plan::PeerId;
use crate::sync::Event;

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
    /// Set when it is over.
    pub(crate) ended: Arc<Event>,
}

impl Session {
    pub(crate) fn is_alive(&self) -> bool {
        !self.ended.is_set()
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
