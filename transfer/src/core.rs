//! What the engine's threads and handles share.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use crate::config::EngineConfig;
use crate::engine::EngineError;
use crate::notify::Notifications;
use crate::session::lease::{LeaseState, LeaseTable};
use crate::session::ticket::RANGES_MAX;
use crate::session::{LeaseError, LeaseRequest};
use crate::telemetry::{Counters, EngineStats};

pub(crate) struct Core {
    pub(crate) generation: u64,
    pub(crate) local_addr: SocketAddr,
    pub(crate) leases: Arc<LeaseTable>,
    pub(crate) notifications: Notifications,
    pub(crate) counters: Counters,
}

impl Core {
    pub(crate) fn start(config: EngineConfig) -> Result<Arc<Self>, EngineError> {
        Ok(Arc::new(Self {
            generation: crate::random::u64(),
            local_addr: config.listen,
            leases: LeaseTable::new(config.leases_max),
            notifications: Notifications::new(config.notifications_max),
            counters: Counters::default(),
        }))
    }

    pub(crate) fn grant(&self, request: LeaseRequest<'_>) -> Result<Arc<LeaseState>, LeaseError> {
        self.leases.grant(request, RANGES_MAX, Instant::now())
    }

    pub(crate) fn revoke(&self, lease: &LeaseState) {
        lease.revoke();
    }

    pub(crate) fn stats(&self) -> EngineStats {
        let mut stats = EngineStats {
            leases: self.leases.len() as u64,
            leases_quarantined: self.leases.quarantined() as u64,
            ..EngineStats::default()
        };
        self.counters.read_into(&mut stats);
        stats
    }
}
