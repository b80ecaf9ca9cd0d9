//! Connections that wait for their client, the longest first: those that yield when places are short.
//!
//! A connection waits from its beginning until it has read a whole request, body included, and again once it has sent the
//! answer. Idle and slow clients cannot shut others out: past the bound each newcomer costs the longest waiting its place.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// Nobody yields before this: a burst of good clients must not push one another out.
pub(super) const YIELDS_AFTER: Duration = Duration::from_secs(1);

/// All connections that wait.
#[derive(Clone, Default)]
pub(super) struct Waiting(Arc<Mutex<Queue>>);

#[derive(Default)]
struct Queue {
    next: u64,
    by_age: BTreeMap<u64, (Instant, CancellationToken)>,
}

impl Waiting {
    /// A new connection, which waits for its first request.
    pub(super) fn enter(&self) -> Connection {
        let connection = Connection { waiting: self.clone(), key: Mutex::new(None), yields: CancellationToken::new() };
        connection.waits();
        connection
    }

    /// Ends the connection that has waited longest. Otherwise says when one may yield.
    pub(super) fn make_room(&self, now: Instant) -> Result<(), Duration> {
        let mut queue = self.0.lock();
        let Some(longest) = queue.by_age.first_entry() else { return Err(YIELDS_AFTER) };
        let waited = now.saturating_duration_since(longest.get().0);
        if waited < YIELDS_AFTER {
            return Err(YIELDS_AFTER.saturating_sub(waited));
        }
        let (_, yields) = longest.remove();
        yields.cancel();
        Ok(())
    }
}

/// One connection's place in the queue, while it has one.
pub(super) struct Connection {
    waiting: Waiting,
    key: Mutex<Option<u64>>,
    yields: CancellationToken,
}

impl Connection {
    /// It waits for its client from now on.
    pub(super) fn waits(&self) {
        let mut key = self.key.lock();
        let mut queue = self.waiting.0.lock();
        if let Some(before) = *key {
            queue.by_age.remove(&before);
        }
        queue.next += 1;
        let new = queue.next;
        queue.by_age.insert(new, (Instant::now(), self.yields.clone()));
        *key = Some(new);
    }

    /// It has all of a request.
    pub(super) fn works(&self) {
        if let Some(key) = self.key.lock().take() {
            self.waiting.0.lock().by_age.remove(&key);
        }
    }

    /// Resolves when its place is wanted.
    pub(super) async fn yields(&self) {
        self.yields.cancelled().await;
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.works();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_waiting_yields_and_only_after_a_while() {
        let waiting = Waiting::default();
        let (first, second, third) = (waiting.enter(), waiting.enter(), waiting.enter());
        assert!(waiting.make_room(Instant::now()).is_err(), "all have just come");
        first.works();
        second.waits();
        let later = Instant::now() + YIELDS_AFTER;
        assert_eq!(waiting.make_room(later), Ok(()));
        assert!(third.yields.is_cancelled() && !first.yields.is_cancelled() && !second.yields.is_cancelled());
        drop(second);
        assert_eq!(waiting.make_room(later), Err(YIELDS_AFTER), "one works, the others are gone");
        first.waits();
        assert_eq!(waiting.make_room(later + YIELDS_AFTER), Ok(()));
        assert!(first.yields.is_cancelled());
    }
}
