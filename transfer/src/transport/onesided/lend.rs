//! The owner's side of loans: leases that are out over a rail, each with its pin.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::session::lease::Pin;
use crate::telemetry::{Counters, count};

/// How long a borrower may take to give a lease back. Longer than a worker is ever away from its rails, short for an owner that
/// waits for its memory; past it the borrower loses its queue pairs, and with them a few milliseconds.
const RECALL_WITHIN: Duration = Duration::from_millis(100);

struct Lent {
    pin: Pin,
    /// The borrower has the keys.
    told: bool,
    /// Wanted back by then.
    due: Option<Instant>,
}

/// Leases that are out over one rail.
#[derive(Default)]
pub(super) struct Lending {
    by_lease: HashMap<u64, Lent>,
    /// There may be some whose keys are still being made.
    pub(super) has_untold: bool,
}

impl Lending {
    /// Lends one, for now without its keys.
    pub(super) fn lend(&mut self, pin: Pin) {
        self.has_untold = true;
        self.by_lease.insert(pin.lease().id, Lent { pin, told: false, due: None });
    }

    pub(super) fn is_lent(&self, lease: u64) -> bool {
        self.by_lease.contains_key(&lease)
    }

    /// Goes through those whose borrowers have not been told their keys. `tell` answers whether it told; one that it refuses
    /// (`None`) is not lent any more.
    pub(super) fn tell<E>(&mut self, mut tell: impl FnMut(&Pin) -> Result<Option<bool>, E>) -> Result<(), E> {
        self.has_untold = false;
        let mut refused = Vec::new();
        for (id, lent) in self.by_lease.iter_mut().filter(|(_, lent)| !lent.told) {
            match tell(&lent.pin)? {
                Some(told) => lent.told = told,
                None => refused.push(*id),
            }
            self.has_untold |= !lent.told;
        }
        refused.iter().for_each(|id| drop(self.by_lease.remove(id)));
        Ok(())
    }

    /// Leases that have been revoked and whose borrowers have not been told so.
    pub(super) fn recall(&mut self, now: Instant) -> Vec<u64> {
        let revoked = |lent: &&mut Lent| lent.told && lent.due.is_none() && lent.pin.lease().is_revoked();
        let recalled = self.by_lease.values_mut().filter(revoked).map(|lent| {
            lent.due = Some(now + RECALL_WITHIN);
            lent.pin.lease().id
        });
        recalled.collect()
    }

    /// A borrower has given one back, having moved so many bytes; false if it had none.
    pub(super) fn returned(&mut self, lease: u64, landed: u64, counters: &Counters) -> bool {
        let Some(lent) = self.by_lease.remove(&lease) else { return false };
        lent.pin.lease().add_landed(landed);
        count(&counters.bytes_received, landed);
        true
    }

    /// When the first of those that are wanted back is overdue.
    pub(super) fn due(&self) -> Option<Instant> {
        self.by_lease.values().filter_map(|lent| lent.due).min()
    }

    /// Nothing of the rail's peer reaches memory any more: all come back. Where that is not certain they never do.
    pub(super) fn end(&mut self, is_certain: bool) {
        for (_, lent) in self.by_lease.drain() {
            if !is_certain {
                std::mem::forget(lent.pin);
            }
        }
    }
}
