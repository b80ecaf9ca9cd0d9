//! What a peer sends to one of our NICs over streams whose frames we see: counted, and held against its limit.
//!
//! The workers of its streams count, the control thread reads and sets the bounds; no lock is shared. Several streams of a peer may
//! each have one frame under way that the others do not count yet: so much more can pass than the limit, and no more.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::transport::sys::Waker;

/// One peer's bytes at one NIC.
pub(crate) struct Inflow {
    /// Payload bytes that have arrived whole frames at a time, refused ones included.
    arrived: AtomicU64,
    /// They may grow to this.
    ceiling: AtomicU64,
    /// The control thread wants to know when they reach this.
    news_at: AtomicU64,
    waker: Waker,
}

impl Inflow {
    /// Without a limit. `waker` is the control thread's.
    pub(super) fn new(waker: Waker) -> Self {
        Self { arrived: 0.into(), ceiling: u64::MAX.into(), news_at: u64::MAX.into(), waker }
    }

    /// Whether a frame of so many bytes may come in now. Asked before it touches memory.
    pub(crate) fn admits(&self, bytes: u64) -> bool {
        self.arrived() + bytes <= self.ceiling.load(Ordering::Acquire)
    }

    /// A frame has come in.
    pub(crate) fn count(&self, bytes: u64) {
        let arrived = self.arrived.fetch_add(bytes, Ordering::SeqCst) + bytes;
        self.tell(arrived);
    }

    fn tell(&self, arrived: u64) {
        if arrived >= self.news_at.load(Ordering::SeqCst) {
            self.news_at.store(u64::MAX, Ordering::SeqCst);
            self.waker.wake();
        }
    }

    /// Payload bytes so far.
    pub(super) fn arrived(&self) -> u64 {
        self.arrived.load(Ordering::SeqCst)
    }

    /// What may arrive, and at what that is to be told; `None`: anything, and never.
    pub(super) fn limit(&self, limit: Option<(u64, u64)>) {
        let (ceiling, news_at) = limit.unwrap_or((u64::MAX, u64::MAX));
        self.ceiling.store(ceiling, Ordering::Release);
        self.news_at.store(news_at, Ordering::SeqCst);
        // What came in between is news already.
        self.tell(self.arrived());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::sys::Poller;
    use std::time::Duration;

    #[test]
    fn frames_are_admitted_up_to_the_ceiling_and_news_are_told_once() {
        let (mut poller, waker) = Poller::new().unwrap();
        let mut is_woken = move || {
            let before = std::time::Instant::now();
            poller.wait(Some(Duration::from_millis(20)), |_, _| ()).unwrap();
            before.elapsed() < Duration::from_millis(15)
        };
        let inflow = Inflow::new(waker);
        assert!(inflow.admits(1 << 40));
        inflow.count(1000);
        inflow.limit(Some((5000, 2500)));
        assert!(inflow.admits(4000) && !inflow.admits(4001));
        inflow.count(1000);
        assert!(!is_woken());
        inflow.count(1000);
        assert!(is_woken() && inflow.admits(2000) && !inflow.admits(2001));
        inflow.count(1000);
        assert!(!is_woken());
        inflow.limit(Some((5000, 4000)));
        assert!(is_woken(), "it was news before it was asked for");
        inflow.limit(None);
        assert!(inflow.admits(1 << 40) && !is_woken());
    }
}
