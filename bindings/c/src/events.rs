//! A descriptor for event loops, what is watched with it, and notifications.

use std::future::Future;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use kvrail_bindings::{Code, Events, wait};
use kvrail_transfer::{NOTIFY_BYTES_MAX, Notification, Notifications};
use parking_lot::Mutex;

use crate::engine::kvrail_engine;
use crate::given::{buffer, fill, give, handle, place, timeout};
use crate::status::{Fault, free, guard, guard_value, kvrail_status};

/// Longest notification, in bytes.
pub const KVRAIL_NOTIFICATION_MAX: usize = NOTIFY_BYTES_MAX;

/// Tokens of what has ended, behind one descriptor.
pub struct kvrail_events(Arc<Events>);

/// What a handle has being watched: the future must live for as long as its waker is to be called.
#[derive(Default)]
pub(crate) struct Watched(Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>);

impl Watched {
    /// Puts `token` into `events` when `future` resolves. An older watch of the same handle ends.
    pub(crate) fn watch(&self, events: &kvrail_events, token: u64, future: impl Future<Output = ()> + Send + 'static) {
        let mut future: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(future);
        let waker = events.0.waker(token);
        if future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
            waker.wake();
        }
        // The older one goes outside of the lock: a future may hold what takes its time to drop.
        let older = self.0.lock().replace(future);
        drop(older);
    }
}

/// Notifications of an engine, for receivers that look and for one that watches.
#[derive(Default)]
pub(crate) struct Arrivals {
    watched: Watched,
    /// Taken out of the queue by a watch, which had to look.
    kept: Arc<Mutex<Vec<Notification>>>,
}

impl Arrivals {
    /// The oldest one that is there.
    fn take(&self, queue: &Notifications) -> Option<Notification> {
        self.kept.lock().pop().or_else(|| queue.try_recv())
    }
}

/// An empty list of tokens.
#[unsafe(no_mangle)]
pub extern "C" fn kvrail_events_new(events: Option<&mut MaybeUninit<*mut kvrail_events>>) -> kvrail_status {
    guard(|| {
        let events = place(events, "events")?;
        let made = Events::new().map_err(|error| Fault::new(Code::Os, format!("eventfd: {error}")))?;
        give(events, kvrail_events(made));
        Ok(Code::Ok)
    })
}

/// Descriptor that is readable while there are tokens; -1 for NULL. It is closed with the last watch after the handle was
/// freed.
#[unsafe(no_mangle)]
pub extern "C" fn kvrail_events_fd(events: Option<&kvrail_events>) -> i32 {
    guard_value(events, -1, |events| events.0.descriptor())
}

/// Takes tokens, oldest first; `count` gets their number, 0 when none is there.
///
/// # Safety
/// `tokens` must be writable for `capacity` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_events_take(
    events: Option<&kvrail_events>,
    tokens: *mut u64,
    capacity: usize,
    count: Option<&mut MaybeUninit<usize>>,
) -> kvrail_status {
    guard(|| {
        let (events, count) = (handle(events, "events")?, place(count, "count")?);
        // SAFETY: the caller's promise.
        let room = unsafe { buffer(tokens, capacity, "tokens") }?;
        let taken = events.0.take(capacity);
        fill(room, &taken);
        count.write(taken.len());
        Ok(Code::Ok)
    })
}

/// Frees the handle.
#[unsafe(no_mangle)]
pub extern "C" fn kvrail_events_free(events: Option<Box<kvrail_events>>) {
    free(events);
}

/// Takes the oldest notification; pending when none came within the bound. `from` gets the sender's generation, `len` the
/// length. `capacity` must be `KVRAIL_NOTIFICATION_MAX` at least, so that none is lost for want of room.
///
/// # Safety
/// `bytes` must be writable for `capacity` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_notification_receive(
    engine: Option<&kvrail_engine>,
    timeout_ms: i64,
    from: Option<&mut MaybeUninit<u64>>,
    bytes: *mut u8,
    capacity: usize,
    len: Option<&mut MaybeUninit<usize>>,
) -> kvrail_status {
    guard(|| {
        let (engine, len) = (handle(engine, "engine")?, place(len, "len")?);
        if capacity < KVRAIL_NOTIFICATION_MAX {
            return Err(Fault::new(Code::TooSmall, format!("bytes: {KVRAIL_NOTIFICATION_MAX} are wanted")));
        }
        // SAFETY: the caller's promise.
        let room = unsafe { buffer(bytes, capacity, "bytes") }?;
        let queue = engine.engine.notifications();
        let next = std::future::poll_fn(|context| match engine.arrivals.take(&queue) {
            Some(notification) => Poll::Ready(notification),
            None => Pin::new(&mut queue.recv()).poll(context),
        });
        let Some(notification) = wait(std::pin::pin!(next), timeout(timeout_ms)) else { return Ok(Code::Pending) };
        fill(room, &notification.payload);
        len.write(notification.payload.len());
        if let Some(from) = from {
            from.write(notification.from);
        }
        Ok(Code::Ok)
    })
}

/// Puts `token` into `events` when a notification can be received: once, then watch again.
#[unsafe(no_mangle)]
pub extern "C" fn kvrail_notification_watch(
    engine: Option<&kvrail_engine>,
    events: Option<&kvrail_events>,
    token: u64,
) -> kvrail_status {
    guard(|| {
        let (engine, events) = (handle(engine, "engine")?, handle(events, "events")?);
        let (queue, kept) = (engine.engine.notifications(), Arc::clone(&engine.arrivals.kept));
        engine.arrivals.watched.watch(events, token, async move {
            if kept.lock().is_empty() {
                let notification = queue.recv().await;
                kept.lock().push(notification);
            }
        });
        Ok(Code::Ok)
    })
}
