//! Who drives a worker: its own thread, or a caller that waits for a transfer and has nothing better to do.
//!
//! A thread that sleeps has to be woken for a slice, and the caller to be woken for its report: two switches that cost more than a small
//! write. So a caller that waits takes the worker's seat and moves the bytes itself. The thread then *rests*: it watches no
//! descriptor, so that nothing wakes it, and looks at short intervals whether the seat was left. Whoever kicks a worker whose thread rests
//! leaves word and makes no system call.
//!
//! Nobody waits for the seat: a caller that does not get it waits as ever, a thread that does not get it rests.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::Thread;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use crate::plan::Time;

/// How long the thread leaves a seat empty in which somebody sat: a caller that writes again at once finds it so. What comes from peers
/// meanwhile waits as long.
const KEPT_WARM: Duration = Duration::from_micros(100);
/// For how long callers' driving is given up when it made something of a peer wait.
const PENANCE: Duration = Duration::from_millis(10);

/// The right to drive what `T` is.
pub(crate) struct Seat<T> {
    occupant: Mutex<Option<T>>,
    thread: OnceLock<Thread>,
    /// Callers that drive, or would.
    callers: AtomicU32,
    /// Until when the seat is kept for the next caller.
    kept_until: AtomicU64,
    /// Until when no caller is let in.
    closed_until: AtomicU64,
    /// The thread looks for word without being woken.
    alert: AtomicBool,
}

impl<T> Default for Seat<T> {
    fn default() -> Self {
        Self {
            occupant: Mutex::new(None),
            thread: OnceLock::new(),
            callers: 0.into(),
            kept_until: 0.into(),
            closed_until: 0.into(),
            alert: false.into(),
        }
    }
}

impl<T> Seat<T> {
    /// The thread begins: what it drives is in the seat from now on.
    pub(crate) fn furnish(&self, what: T) {
        let _ = self.thread.set(std::thread::current());
        *self.occupant.lock() = Some(what);
    }

    /// The thread ends, when whoever drives has noticed that the engine stops.
    pub(crate) fn clear(&self) -> Option<T> {
        self.occupant.lock().take()
    }

    /// What is driven, if nobody drives it.
    pub(crate) fn sit(&self) -> Option<MutexGuard<'_, Option<T>>> {
        self.occupant.try_lock()
    }

    // ---- for the thread

    /// Whether the seat is a caller's for now. The clock is looked at only where a caller was there.
    pub(crate) fn is_a_callers(&self, now: impl FnOnce() -> Time) -> bool {
        let kept_until = self.kept_until.load(Ordering::SeqCst);
        self.callers.load(Ordering::SeqCst) > 0 || (kept_until > 0 && now().0 < kept_until)
    }

    /// Runs `what`, during which nobody needs to wake the thread: it looks for word afterwards, before it sleeps otherwise.
    pub(crate) fn alert<R>(&self, what: impl FnOnce() -> R) -> R {
        self.alert.store(true, Ordering::SeqCst);
        let result = what();
        self.alert.store(false, Ordering::SeqCst);
        result
    }

    /// Sleeps a little while the seat is a caller's.
    pub(crate) fn rest(&self) {
        self.alert(|| std::thread::park_timeout(KEPT_WARM));
    }

    /// The thread found the seat as a caller left it that was done, not one that gave up.
    pub(crate) fn was_left_warm(&self) -> bool {
        self.kept_until.swap(0, Ordering::SeqCst) != 0
    }

    /// Something of a peer had to wait because the thread rested.
    pub(crate) fn made_a_peer_wait(&self, now: Time) {
        self.closed_until.store((now + PENANCE).0, Ordering::SeqCst);
    }

    // ---- for others

    /// The thread will look for word by itself, soon; it need not be woken.
    pub(crate) fn is_alert(&self) -> bool {
        self.alert.load(Ordering::SeqCst)
    }

    /// A caller would drive. `None`: it had better not.
    pub(crate) fn apply(&self, now: Time) -> Option<Caller<'_, T>> {
        if now.0 < self.closed_until.load(Ordering::SeqCst) {
            return None;
        }
        self.callers.fetch_add(1, Ordering::SeqCst);
        Some(Caller { seat: self })
    }
}

/// A caller that drives, or would. Dropped, it gives the worker back to its thread.
pub(crate) struct Caller<'a, T> {
    seat: &'a Seat<T>,
}

impl<T> Caller<'_, T> {
    /// Its transfer is done: more may follow at once.
    pub(crate) fn leave_warm(self, now: Time) {
        self.seat.kept_until.store((now + KEPT_WARM).0, Ordering::SeqCst);
        self.seat.callers.fetch_sub(1, Ordering::SeqCst);
        std::mem::forget(self);
    }
}

impl<T> Drop for Caller<'_, T> {
    fn drop(&mut self) {
        self.seat.kept_until.store(0, Ordering::SeqCst);
        self.seat.callers.fetch_sub(1, Ordering::SeqCst);
        if let Some(thread) = self.seat.thread.get() {
            thread.unpark();
        }
    }
}
