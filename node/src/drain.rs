//! Going away without dropping what runs: serving → draining → drained.
//!
//! ```text
//! Serving ──begin()──▶ Draining ──last guard dropped──▶ Drained
//! ```
//! A request holds an [`InFlight`] from admission to its last byte. After [`Drain::begin`] no new one is given out.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;

/// Set while draining; the low bits count what is in flight. One word, so that admission and drain cannot miss each other.
const DRAINING: u64 = 1 << 63;

/// Where a node is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainState {
    /// Takes requests.
    Serving,
    /// Takes none; this many are still running.
    Draining(u64),
    /// Takes none and runs none.
    Drained,
}

/// The node's drain state. Clones share it.
#[derive(Clone, Debug)]
pub struct Drain {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    word: AtomicU64,
    changed: watch::Sender<()>,
}

/// One request in flight; dropping it ends it.
#[derive(Debug)]
pub struct InFlight {
    inner: Arc<Inner>,
}

impl Default for Drain {
    fn default() -> Self {
        Self { inner: Arc::new(Inner { word: AtomicU64::new(0), changed: watch::Sender::new(()) }) }
    }
}

impl Drain {
    /// Admits one request, unless the node drains.
    #[must_use]
    pub fn enter(&self) -> Option<InFlight> {
        let admitted = self
            .inner
            .word
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| (word & DRAINING == 0).then(|| word + 1));
        admitted.ok().map(|_| InFlight { inner: Arc::clone(&self.inner) })
    }

    /// Stops admission. Idempotent.
    pub fn begin(&self) {
        self.inner.word.fetch_or(DRAINING, Ordering::AcqRel);
        self.inner.changed.send_replace(());
    }

    /// Where the node is.
    #[must_use]
    pub fn state(&self) -> DrainState {
        match self.inner.word.load(Ordering::Acquire) {
            word if word & DRAINING == 0 => DrainState::Serving,
            DRAINING => DrainState::Drained,
            word => DrainState::Draining(word & !DRAINING),
        }
    }

    /// Requests in flight.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.inner.word.load(Ordering::Acquire) & !DRAINING
    }

    /// Whether admission has stopped.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.state() != DrainState::Serving
    }

    /// Resolves when the drain has begun.
    pub async fn begun(&self) {
        self.wait(|state| state != DrainState::Serving).await;
    }

    /// Resolves when the drain has begun and nothing is in flight.
    pub async fn drained(&self) {
        self.wait(|state| state == DrainState::Drained).await;
    }

    async fn wait(&self, reached: impl Fn(DrainState) -> bool) {
        let mut changed = self.inner.changed.subscribe();
        while !reached(self.state()) {
            // The sender lives in `self`, so this cannot fail.
            let _ = changed.changed().await;
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.inner.word.fetch_sub(1, Ordering::AcqRel);
        self.inner.changed.send_replace(());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_runs_ends_and_nothing_new_begins() {
        let drain = Drain::default();
        let first = drain.enter().expect("serving");
        assert_eq!(drain.state(), DrainState::Serving);
        drain.begin();
        assert!(drain.enter().is_none());
        assert_eq!(drain.state(), DrainState::Draining(1));
        let waiting = tokio::spawn({
            let drain = drain.clone();
            async move { drain.drained().await }
        });
        drain.begun().await;
        assert!(!waiting.is_finished());
        drop(first);
        waiting.await.expect("drained");
        assert_eq!(drain.state(), DrainState::Drained);
    }
}
