//! Completion channels: a descriptor that becomes readable when a queue has something new.
//!
//! Events must be acknowledged before their queue can be destroyed, and acknowledging takes a lock. So the channel counts
//! what it has fetched for each of its queues and acknowledges in batches; a queue that goes has the rest acknowledged.
//! The list of queues is under one lock with fetching: an event that is fetched for a queue that is leaving finds it
//! gone from the list and is acknowledged on the spot, and the destruction that waits for it goes on.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvrail_verbs_sys as sys;

use crate::context::{Context, set_nonblocking};
use crate::error::Error;

/// Events that are acknowledged together.
const ACK_BATCH: u32 = 64;

/// A completion channel. Cheap to clone.
#[derive(Clone)]
pub struct CompletionChannel(Arc<Inner>);

struct Inner {
    raw: NonNull<sys::ibv_comp_channel>,
    context: Context,
    queues: Mutex<Vec<Fetched>>,
}

/// A queue of a channel, and how many of its events have been fetched and not acknowledged.
struct Fetched {
    queue: NonNull<sys::ibv_cq>,
    handle: u32,
    events: u32,
}

// SAFETY: libibverbs allows every verb of a channel from every thread; queues in the list live, and are only named here.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: destroyed once; the queues that used it held it, and are gone.
        let code = unsafe { self.context.library().ibv_destroy_comp_channel(self.raw.as_ptr()) };
        self.context.count_undestroyed(code);
    }
}

impl Context {
    /// Makes a completion channel.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`].
    pub fn completion_channel(&self) -> Result<CompletionChannel, Error> {
        // SAFETY: the context is open.
        let raw = unsafe { self.library().ibv_create_comp_channel(self.raw()) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("ibv_create_comp_channel", self.name()))?;
        let channel = CompletionChannel(Arc::new(Inner { raw, context: self.clone(), queues: Mutex::default() }));
        set_nonblocking(channel.fd()).map_err(|source| Error::Verb {
            verb: "fcntl of a completion channel",
            on: self.name().into(),
            source,
        })?;
        Ok(channel)
    }
}

impl CompletionChannel {
    pub(crate) fn raw(&self) -> *mut sys::ibv_comp_channel {
        self.0.raw.as_ptr()
    }

    /// The next event, if there is one: the [`handle`](crate::CompletionQueue::handle) of the queue that it is of. The queue
    /// raises no other until it is asked to again.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`].
    pub fn event(&self) -> Result<Option<u32>, Error> {
        let mut queues = self.queues();
        let library = self.0.context.library();
        loop {
            let (mut queue, mut context) = (ptr::null_mut(), ptr::null_mut());
            // SAFETY: the channel lives; both pointers may be written.
            if unsafe { library.ibv_get_cq_event(self.raw(), &raw mut queue, &raw mut context) } != 0 {
                let source = io::Error::last_os_error();
                return match source.kind() {
                    io::ErrorKind::WouldBlock => Ok(None),
                    _ => Err(Error::Verb { verb: "ibv_get_cq_event", on: self.0.context.name().into(), source }),
                };
            }
            let known = queues.iter_mut().find(|fetched| fetched.queue.as_ptr() == queue);
            let Some(fetched) = known else {
                // Nobody's event any more; one that matters may be behind it.
                // SAFETY: the queue is being destroyed, which waits for this.
                unsafe { library.ibv_ack_cq_events(queue, 1) };
                continue;
            };
            fetched.events += 1;
            if fetched.events == ACK_BATCH {
                // SAFETY: the queue lives: it leaves the list before it goes. As many events were fetched.
                unsafe { library.ibv_ack_cq_events(queue, fetched.events) };
                fetched.events = 0;
            }
            return Ok(Some(fetched.handle));
        }
    }

    /// A queue of this channel was made.
    pub(crate) fn enter(&self, queue: NonNull<sys::ibv_cq>, handle: u32) {
        self.queues().push(Fetched { queue, handle, events: 0 });
    }

    /// A queue of this channel is about to be destroyed.
    pub(crate) fn leave(&self, queue: NonNull<sys::ibv_cq>) {
        let mut queues = self.queues();
        let Some(place) = queues.iter().position(|fetched| fetched.queue == queue) else { return };
        let fetched = queues.swap_remove(place);
        if fetched.events > 0 {
            // SAFETY: the queue is not destroyed yet; as many events were fetched.
            unsafe { self.0.context.library().ibv_ack_cq_events(queue.as_ptr(), fetched.events) };
        }
    }

    fn queues(&self) -> MutexGuard<'_, Vec<Fetched>> {
        self.0.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fd(&self) -> RawFd {
        // SAFETY: the channel lives.
        unsafe { self.0.raw.as_ref().fd }
    }
}

impl AsFd for CompletionChannel {
    /// Readable when [`event`](Self::event) has something.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is the channel's, which lives as long as the borrow.
        unsafe { BorrowedFd::borrow_raw(self.fd()) }
    }
}
