//! Word from any thread to a thread that sleeps in its poller. For rare events; of the data path it carries the word alone.

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
        self.leave(message);
        self.wake();
    }

    /// Posts without waking the owner.
    pub(crate) fn leave(&self, message: T) {
        self.queue.lock().push_back(message);
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
        if self.mark() {
            self.rouse();
        }
    }

    /// Leaves the owner word to look around. True: nobody had, so it is to be roused, unless it will look without.
    pub(crate) fn mark(&self) -> bool {
        !self.woken.swap(true, Ordering::SeqCst)
    }

    /// Ends the owner's sleep.
    pub(crate) fn rouse(&self) {
        self.waker.wake();
    }

    /// Whether there is word to look around.
    pub(crate) fn is_marked(&self) -> bool {
        self.woken.load(Ordering::SeqCst)
    }

    /// For the owner, before it looks at what the wakers changed: wake-ups from here on are new ones.
    pub(crate) fn listen(&self) -> bool {
        self.woken.swap(false, Ordering::SeqCst)
    }

    pub(crate) fn take(&self) -> VecDeque<T> {
        std::mem::take(&mut *self.queue.lock())
    }
}
