//! The leases that a stream has met, so that the table's lock is taken once a lease and not once a frame.

use std::sync::Arc;
use std::time::Instant;

use foldhash::HashMap;

use crate::plan::Refusal;
use crate::session::lease::{Access, LeaseState, Pin};
use crate::transport::Owner;
use crate::transport::frame::{Entry, Header};

/// Leases remembered at most; past it the cache starts anew.
const CACHE_MAX: usize = 1024;

#[derive(Default)]
pub(super) struct LeaseCache(HashMap<u64, Arc<LeaseState>>);

impl LeaseCache {
    fn find(&mut self, owner: &Owner, id: u64, key: u64) -> Option<Arc<LeaseState>> {
        if let Some(lease) = self.0.get(&id) {
            if lease.is_revoked() {
                // Also lets go of the region.
                self.0.remove(&id);
                return None;
            }
            return (lease.key == key).then(|| Arc::clone(lease));
        }
        let lease = owner.leases.find(id, key)?;
        if self.0.len() >= CACHE_MAX {
            self.0.clear();
        }
        self.0.insert(id, Arc::clone(&lease));
        Some(lease)
    }

    /// Forgets leases that have ended, so that their regions can be unmapped.
    pub(super) fn sweep(&mut self) {
        self.0.retain(|_, lease| !lease.is_revoked());
    }

    /// Everything that must hold before a frame may touch memory: generation, lease, key, access, every range. The pin
    /// keeps the lease from being fenced while it lives.
    pub(super) fn admit(
        &mut self,
        owner: &Owner,
        header: &Header,
        access: Access,
        ranges: impl Iterator<Item = Entry>,
        now: Instant,
    ) -> Result<Pin, Refusal> {
        if !owner.is_meant(header.generation) {
            return Err(Refusal::Stale);
        }
        let lease = self.find(owner, header.lease, header.key).ok_or(Refusal::Stale)?;
        lease.admit(access, ranges.map(|r| (r.key, u64::from(r.value))), now)
    }
}
