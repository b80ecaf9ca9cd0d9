//! Waiting for a future on the caller's own thread, for languages without an executor.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Unparks the thread that waits.
struct Unpark {
    thread: Thread,
    /// Parking has spurious ends; polling for each would be wrong about nothing, and slow.
    woken: AtomicBool,
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// The future's result, or `None` when it did not come within `timeout` (no bound where that is `None`). The future can be
/// waited for again then.
pub fn wait<F: Future + ?Sized>(mut future: Pin<&mut F>, timeout: Option<Duration>) -> Option<F::Output> {
    let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let unpark = Arc::new(Unpark { thread: std::thread::current(), woken: AtomicBool::new(true) });
    let waker = Waker::from(Arc::clone(&unpark));
    let mut context = Context::from_waker(&waker);
    loop {
        if unpark.woken.swap(false, Ordering::Acquire)
            && let Poll::Ready(output) = future.as_mut().poll(&mut context)
        {
            return Some(output);
        }
        match until.map(|until| until.saturating_duration_since(Instant::now())) {
            // Woken at the last moment: one more look, or a result that is there would be called late.
            Some(left) if left.is_zero() => match future.as_mut().poll(&mut context) {
                Poll::Ready(output) => return Some(output),
                Poll::Pending => return None,
            },
            Some(left) => std::thread::park_timeout(left),
            None => std::thread::park(),
        }
    }
}

/// A word that is given once and heard by whoever waits for it: memory is its owner's again, say.
#[derive(Default)]
pub struct Flag {
    raised: AtomicBool,
    waiting: Mutex<Vec<Waker>>,
}

impl Flag {
    /// Gives the word.
    pub fn raise(&self) {
        self.raised.store(true, Ordering::Release);
        let waiting = std::mem::take(&mut *self.waiting.lock());
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Whether it was given.
    #[must_use]
    pub fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Acquire)
    }

    /// Resolves when it is given.
    pub fn raised(self: &Arc<Self>) -> Raised {
        Raised(Arc::clone(self))
    }
}

/// Future of [`Flag::raised`].
#[must_use = "futures do nothing unless awaited"]
pub struct Raised(Arc<Flag>);

impl Future for Raised {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut waiting = self.0.waiting.lock();
        if self.0.is_raised() {
            return Poll::Ready(());
        }
        if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            waiting.push(cx.waker().clone());
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    #[test]
    fn a_result_that_is_there_needs_no_time_and_one_that_never_comes_takes_no_more_than_its_bound() {
        assert_eq!(wait(pin!(async { 7 }), Some(Duration::ZERO)), Some(7));
        let started = Instant::now();
        let mut never = pin!(std::future::pending::<()>());
        assert_eq!(wait(never.as_mut(), Some(Duration::from_millis(20))), None);
        assert!(started.elapsed() >= Duration::from_millis(20));
        assert_eq!(wait(never, Some(Duration::ZERO)), None, "and can be waited for again");
    }

    #[test]
    fn a_flag_raised_elsewhere_wakes_every_waiter() {
        let flag = Arc::new(Flag::default());
        let waiters: Vec<_> = (0..3)
            .map(|_| {
                let flag = Arc::clone(&flag);
                std::thread::spawn(move || wait(pin!(flag.raised()), Some(Duration::from_secs(20))))
            })
            .collect();
        assert!(!flag.is_raised());
        flag.raise();
        assert!(waiters.into_iter().all(|waiter| waiter.join().unwrap() == Some(())));
        assert_eq!(wait(pin!(flag.raised()), Some(Duration::ZERO)), Some(()), "for ever");
    }
}
