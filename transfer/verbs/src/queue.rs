//! Completion queues.

use std::ptr::{self, NonNull};
use std::sync::Arc;

use kvrail_verbs_sys as sys;

use crate::channel::CompletionChannel;
use crate::completion::Completion;
use crate::context::Context;
use crate::error::{Error, check, fits};

/// A completion queue. Cheap to clone.
#[derive(Clone)]
pub struct CompletionQueue(Arc<Inner>);

struct Inner {
    raw: NonNull<sys::ibv_cq>,
    context: Context,
    channel: Option<CompletionChannel>,
}

// SAFETY: libibverbs allows every verb of a queue from every thread.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(channel) = &self.channel {
            channel.leave(self.raw);
        }
        // SAFETY: destroyed once; the queue pairs that used it held it, and are gone. All its events are acknowledged.
        let code = unsafe { self.context.library().ibv_destroy_cq(self.raw.as_ptr()) };
        self.context.count_undestroyed(code);
    }
}

impl Context {
    /// Makes a completion queue for at least `entries`; it must hold as many as can be under way at once, for one that
    /// overruns takes its queue pairs with it. With a channel it can raise events.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`]: `EINVAL` past the device's limit.
    pub fn completion_queue(
        &self,
        entries: u32,
        channel: Option<&CompletionChannel>,
    ) -> Result<CompletionQueue, Error> {
        let entries = Self::int("entries of a completion queue", entries)?;
        let to = channel.map_or(ptr::null_mut(), CompletionChannel::raw);
        // SAFETY: the context is open and the channel lives.
        let raw = unsafe { self.library().ibv_create_cq(self.raw(), entries, ptr::null_mut(), to, 0) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("ibv_create_cq", self.name()))?;
        let queue = CompletionQueue(Arc::new(Inner { raw, context: self.clone(), channel: channel.cloned() }));
        if let Some(channel) = channel {
            channel.enter(raw, queue.handle());
        }
        Ok(queue)
    }
}

impl CompletionQueue {
    pub(crate) fn raw(&self) -> *mut sys::ibv_cq {
        self.0.raw.as_ptr()
    }

    /// Its number on the device: what events name it by.
    pub fn handle(&self) -> u32 {
        // SAFETY: the queue lives; its number does not change.
        unsafe { (*self.raw()).handle }
    }

    /// Entries that it holds.
    pub fn entries(&self) -> u32 {
        // SAFETY: the queue lives; its size does not change.
        u32::try_from(unsafe { (*self.raw()).cqe }).unwrap_or(0)
    }

    /// Takes what has completed off the queue, as much as `room` holds.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`]: the queue overran, or the device failed.
    pub fn poll<'a>(&self, room: &'a mut [Completion]) -> Result<&'a [Completion], Error> {
        let entries = fits::<i32>("completions to poll", room.len() as u64, i32::MAX as u64)?;
        // SAFETY: the queue lives; a `Completion` is an `ibv_wc`, and there is room for as many.
        let count = unsafe { sys::ibv_poll_cq(self.raw(), entries, room.as_mut_ptr().cast()) };
        let count = usize::try_from(count).map_err(|_| Error::code("ibv_poll_cq", self.0.context.name(), count))?;
        Ok(&room[..count.min(room.len())])
    }

    /// Asks for one event with the next completion that comes after this call; with `solicited_only`, the next that the peer asked for,
    /// or that failed. Poll once more afterwards: what came before raises none.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`].
    pub fn request_event(&self, solicited_only: bool) -> Result<(), Error> {
        // SAFETY: the queue lives.
        let code = unsafe { sys::ibv_req_notify_cq(self.raw(), solicited_only.into()) };
        check(code, "ibv_req_notify_cq", self.0.context.name())
    }
}
