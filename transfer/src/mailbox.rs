//! Word from any thread to a thread that sleeps in its poller. For rare events: the data path has none.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::transport::sys::Waker;

/// A queue with a wake-up.
///
/// It has no limit of its own: every kind of message that is posted says why there can only be so many of it.
pub(crate) struct Mailbox<T> {
    queue: Mutex<VecDeque<T>>,
    waker: Waker,
    /// A wake-up is on its way already.
    woken: AtomicBool,
}

impl<T> Mailbox<T> {
    pub(crate) fn new(waker: Waker) -> Self {
        Self { queue: Mutex::default(), waker, woken: AtomicBool::new(false) }
    }

    pub(crate) fn post(&self, message: T) {
        self.queue.lock().push_back(message);
        self.wake();
    }

    /// Posts unless `limit` messages wait; gives the message back then.
    pub(crate) fn try_post(&self, message: T, limit: usize) -> Result<(), T> {
        let mut queue = self.queue.lock();
        if queue.len() >= limit {
            return Err(message);
        }
        queue.push_back(message);
        drop(queue);
        self.wake();
        Ok(())
    }

    /// Makes the owner look around, without a message.
    pub(crate) fn wake(&self) {
        if !self.woken.swap(true, Ordering::AcqRel) {
            self.waker.wake();
        }
    }

    /// For the owner, before it looks at what the wakers changed: wake-ups from here on are new ones.
    pub(crate) fn listen(&self) -> bool {
        self.woken.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn take(&self) -> VecDeque<T> {
        std::mem::take(&mut *self.queue.lock())
    }
}
