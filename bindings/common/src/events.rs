//! What has ended, as tokens behind one descriptor: for `poll`, `epoll` and the event loops above them.
//!
//! The engine's thread that ends an operation puts its token into a list and makes an eventfd readable; it runs nothing of
//! the caller's. A token is in the list once at most for each watch, so the list is no longer than what is waited for.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};

/// A list of tokens and the descriptor that tells when it is not empty.
#[derive(Debug)]
pub struct Events {
    descriptor: OwnedFd,
    tokens: Mutex<Vec<u64>>,
}

impl Events {
    /// An empty one.
    ///
    /// # Errors
    /// The system's, when it has no descriptor left.
    pub fn new() -> io::Result<Arc<Self>> {
        let descriptor = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(Self { descriptor, tokens: Mutex::default() }))
    }

    /// Readable when there are tokens; read them with [`take`](Self::take), not from it.
    #[must_use]
    pub fn descriptor(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }

    /// At most `limit` tokens, oldest first. The descriptor stays readable while some are left.
    #[must_use]
    pub fn take(&self, limit: usize) -> Vec<u64> {
        let mut tokens = self.tokens.lock();
        let count = limit.min(tokens.len());
        let taken = tokens.drain(..count).collect();
        if tokens.is_empty() {
            // Empty already is what EAGAIN says; there is no other error on a descriptor of our own.
            let _ = rustix::io::read(&self.descriptor, &mut [0; 8]);
        }
        taken
    }

    /// A waker that puts `token` into the list, once.
    #[must_use]
    pub fn waker(self: &Arc<Self>, token: u64) -> Waker {
        Waker::from(Arc::new(Watch { events: Arc::clone(self), token, told: AtomicBool::new(false) }))
    }

    /// Puts a token into the list: for what had ended when it was to be watched.
    pub fn push(&self, token: u64) {
        let mut tokens = self.tokens.lock();
        tokens.push(token);
        if tokens.len() == 1 {
            // Under the lock, so that no `take` comes between the list and the descriptor. It cannot block, and fails only
            // where the counter is full, which is as readable as it gets.
            let _ = rustix::io::write(&self.descriptor, &1u64.to_ne_bytes());
        }
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

struct Watch {
    events: Arc<Events>,
    token: u64,
    told: AtomicBool,
}

impl Wake for Watch {
    fn wake(self: Arc<Self>) {
        if !self.told.swap(true, Ordering::AcqRel) {
            self.events.push(self.token);
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn is_readable(events: &Events) -> bool {
        let mut fds = [PollFd::new(events, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    }

    #[test]
    fn the_descriptor_is_readable_exactly_while_there_are_tokens() {
        let events = Events::new().unwrap();
        assert!(!is_readable(&events));
        for token in [7, 8, 9] {
            events.push(token);
        }
        assert!(is_readable(&events));
        assert_eq!(events.take(2), [7, 8]);
        assert!(is_readable(&events), "one is left");
        assert_eq!(events.take(2), [9]);
        assert!(!is_readable(&events));
        assert!(events.take(2).is_empty());
        events.push(10);
        assert!(is_readable(&events), "and again");
    }

    #[test]
    fn a_watch_tells_its_token_once_however_often_it_is_woken() {
        let events = Events::new().unwrap();
        let waker = events.waker(3);
        waker.wake_by_ref();
        waker.wake();
        assert_eq!(events.take(9), [3]);
    }
}
