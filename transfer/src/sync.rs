//! One-shot events that any executor can await and any thread can set.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use slab::Slab;

/// Set once, seen by every waiter, for ever.
#[derive(Default)]
pub(crate) struct Event {
    set: AtomicBool,
    wakers: Mutex<Slab<Waker>>,
}

impl Event {
    pub(crate) fn is_set(&self) -> bool {
        self.set.load(Ordering::Acquire)
    }

    /// Sets the event and wakes every waiter; a second call does nothing.
    pub(crate) fn set(&self) {
        if self.set.swap(true, Ordering::AcqRel) {
            return;
        }
        // Taken out first: a waker may run anything, the lock must not be held.
        let wakers = std::mem::take(&mut *self.wakers.lock());
        for (_, waker) in wakers {
            waker.wake();
        }
    }

    /// Resolves when the event is set.
    pub(crate) fn wait(self: &Arc<Self>) -> Wait {
        Wait { event: Arc::clone(self), slot: None }
    }
}

/// Future of [`Event::wait`]; dropping it leaves nothing behind.
pub(crate) struct Wait {
    event: Arc<Event>,
    slot: Option<usize>,
}

impl Future for Wait {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.event.is_set() {
            return Poll::Ready(());
        }
        let event = Arc::clone(&self.event);
        let mut wakers = event.wakers.lock();
        match self.slot {
            Some(slot) if wakers.contains(slot) => wakers[slot].clone_from(cx.waker()),
            _ => self.slot = Some(wakers.insert(cx.waker().clone())),
        }
        drop(wakers);
        // Set between the check and the registration: the setter may have missed this waker.
        if event.is_set() { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        if let Some(slot) = self.slot
            && !self.event.is_set()
        {
            let mut wakers = self.event.wakers.lock();
            if wakers.contains(slot) {
                wakers.remove(slot);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Count(std::sync::atomic::AtomicUsize);
    impl std::task::Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_waiter_is_woken_once_and_a_dropped_one_never() {
        let event = Arc::new(Event::default());
        let count = Arc::new(Count(Default::default()));
        let waker = Waker::from(Arc::clone(&count));
        let mut cx = Context::from_waker(&waker);
        let mut kept = Box::pin(event.wait());
        let mut dropped = Box::pin(event.wait());
        assert!(kept.as_mut().poll(&mut cx).is_pending());
        assert!(dropped.as_mut().poll(&mut cx).is_pending());
        drop(dropped);
        event.set();
        event.set();
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        assert!(kept.as_mut().poll(&mut cx).is_ready());
        assert!(Box::pin(event.wait()).as_mut().poll(&mut cx).is_ready());
    }
}
