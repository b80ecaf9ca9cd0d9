//! Shared receive queues: receives that several queue pairs take from.

use std::mem::zeroed;
use std::ptr::NonNull;
use std::sync::Arc;

use kvrail_verbs_sys as sys;

use crate::error::{Error, PostError, check};
use crate::memory::ProtectionDomain;
use crate::receive::ReceiveChain;

/// A shared receive queue. Cheap to clone.
#[derive(Clone)]
pub struct SharedReceiveQueue(Arc<Inner>);

struct Inner {
    raw: NonNull<sys::ibv_srq>,
    domain: ProtectionDomain,
}

// SAFETY: libibverbs allows every verb of a shared queue from every thread.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        let context = self.domain.context();
        // SAFETY: destroyed once; the queue pairs that used it held it, and are gone.
        let code = unsafe { context.library().ibv_destroy_srq(self.raw.as_ptr()) };
        context.count_undestroyed(code);
    }
}

impl ProtectionDomain {
    /// Makes a shared receive queue for so many receives of so many segments each.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`]: `EINVAL` past the device's limits.
    pub fn shared_receive_queue(&self, receives: u32, segments: u32) -> Result<SharedReceiveQueue, Error> {
        // SAFETY: all zeroes is a value of it.
        let mut raw: sys::ibv_srq_init_attr = unsafe { zeroed() };
        raw.attr.max_wr = receives;
        raw.attr.max_sge = segments;
        let context = self.context();
        // SAFETY: the domain lives.
        let raw = unsafe { context.library().ibv_create_srq(self.raw(), &raw mut raw) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("ibv_create_srq", context.name()))?;
        Ok(SharedReceiveQueue(Arc::new(Inner { raw, domain: self.clone() })))
    }
}

impl SharedReceiveQueue {
    pub(crate) fn raw(&self) -> *mut sys::ibv_srq {
        self.0.raw.as_ptr()
    }

    /// Its number on the device: what events name it by.
    pub fn handle(&self) -> u32 {
        // SAFETY: the queue lives; its number does not change.
        unsafe { self.0.raw.as_ref().handle }
    }

    /// Has one [`SharedQueueLimit`](crate::AsyncEvent::SharedQueueLimit) raised when fewer receives than this are left.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`]: `EINVAL` above what it holds.
    pub fn request_event_below(&self, receives: u32) -> Result<(), Error> {
        // SAFETY: all zeroes is a value of it.
        let mut attr: sys::ibv_srq_attr = unsafe { zeroed() };
        attr.srq_limit = receives;
        let mask = sys::ibv_srq_attr_mask::IBV_SRQ_LIMIT.0.cast_signed();
        let context = self.0.domain.context();
        // SAFETY: the queue lives; what the mask names is set.
        let code = unsafe { context.library().ibv_modify_srq(self.raw(), &raw mut attr, mask) };
        check(code, "ibv_modify_srq", context.name())
    }

    /// Posts receives with one doorbell. The chain is not emptied.
    ///
    /// # Errors
    ///
    /// [`PostError`] with how many were posted before one was refused.
    pub fn post_receive(&self, chain: &mut ReceiveChain) -> Result<(), PostError> {
        let raw = self.raw();
        // SAFETY: the queue lives; the chain is linked and its segments lie in it.
        chain.post(|first, bad| unsafe { sys::ibv_post_srq_recv(raw, first, bad) })
    }
}
