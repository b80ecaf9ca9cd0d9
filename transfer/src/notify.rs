//! Notifications: small payloads that arrive after the bytes they speak of are visible.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use parking_lot::Mutex;

/// Longest notification, in bytes.
pub const NOTIFY_BYTES_MAX: usize = 4096;

/// A peer's word that a transfer's bytes are visible here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notification {
    /// Generation of the engine that sent it.
    pub from: u64,
    /// What it says.
    pub payload: Bytes,
}

struct Queue {
    items: VecDeque<Notification>,
    limit: usize,
    wakers: Vec<Waker>,
}

/// The engine's notification queue; clones share it, each notification goes to one receiver.
///
/// It is bounded: when it is full the sender's transfer fails with `NotifyRefused`.
#[derive(Clone)]
pub struct Notifications(Arc<Mutex<Queue>>);

impl Notifications {
    pub(crate) fn new(limit: usize) -> Self {
        Self(Arc::new(Mutex::new(Queue { items: VecDeque::new(), limit, wakers: Vec::new() })))
    }

    /// False when there is no room.
    pub(crate) fn push(&self, notification: Notification) -> bool {
        let wakers = {
            let mut queue = self.0.lock();
            if queue.items.len() >= queue.limit {
                return false;
            }
            queue.items.push_back(notification);
            std::mem::take(&mut queue.wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
        true
    }

    /// The oldest one, if any.
    #[must_use]
    pub fn try_recv(&self) -> Option<Notification> {
        self.0.lock().items.pop_front()
    }

    /// Waits for the next one.
    pub fn recv(&self) -> Recv<'_> {
        Recv(self)
    }
}

/// Future of [`Notifications::recv`]; dropping it loses nothing.
#[must_use = "futures do nothing unless awaited"]
pub struct Recv<'a>(&'a Notifications);

impl Future for Recv<'_> {
    type Output = Notification;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Notification> {
        let mut queue = self.0.0.lock();
        match queue.items.pop_front() {
            Some(item) => Poll::Ready(item),
            None => {
                if !queue.wakers.iter().any(|w| w.will_wake(cx.waker())) {
                    queue.wakers.push(cx.waker().clone());
                }
                Poll::Pending
            }
        }
    }
}
