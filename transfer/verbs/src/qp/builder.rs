//! Making a queue pair.

use std::mem::zeroed;
use std::ptr::{self, NonNull};

use kvrail_verbs_sys as sys;

use crate::error::Error;
use crate::memory::ProtectionDomain;
use crate::qp::QueuePair;
use crate::queue::CompletionQueue;
use crate::shared::SharedReceiveQueue;

/// What a queue pair holds at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Requests that are posted and not complete.
    pub sends: u32,
    /// Receives that are posted and not complete; without meaning where a shared queue serves.
    pub receives: u32,
    /// Segments of a request.
    pub send_segments: u32,
    /// Segments of a receive.
    pub receive_segments: u32,
    /// Bytes that can go inside a request.
    pub inline_bytes: u32,
}

impl Default for Capacity {
    fn default() -> Self {
        Self { sends: 128, receives: 128, send_segments: 4, receive_segments: 1, inline_bytes: 64 }
    }
}

impl Capacity {
    pub(crate) fn of(raw: &sys::ibv_qp_cap) -> Self {
        Self {
            sends: raw.max_send_wr,
            receives: raw.max_recv_wr,
            send_segments: raw.max_send_sge,
            receive_segments: raw.max_recv_sge,
            inline_bytes: raw.max_inline_data,
        }
    }

    fn raw(self) -> sys::ibv_qp_cap {
        sys::ibv_qp_cap {
            max_send_wr: self.sends,
            max_recv_wr: self.receives,
            max_send_sge: self.send_segments,
            max_recv_sge: self.receive_segments,
            max_inline_data: self.inline_bytes,
        }
    }
}

/// A reliable queue pair to be.
#[derive(Clone)]
pub struct QueuePairBuilder {
    domain: ProtectionDomain,
    sends: CompletionQueue,
    receives: CompletionQueue,
    shared: Option<SharedReceiveQueue>,
    capacity: Capacity,
    signal_all: bool,
}

impl ProtectionDomain {
    /// Begins a reliable queue pair whose completions go to `queue`.
    pub fn queue_pair(&self, queue: &CompletionQueue) -> QueuePairBuilder {
        QueuePairBuilder {
            domain: self.clone(),
            sends: queue.clone(),
            receives: queue.clone(),
            shared: None,
            capacity: Capacity::default(),
            signal_all: false,
        }
    }
}

impl QueuePairBuilder {
    /// Sends completions of receives to another queue.
    #[must_use]
    pub fn receives_to(mut self, queue: &CompletionQueue) -> Self {
        self.receives = queue.clone();
        self
    }

    /// Takes receives from a shared queue.
    #[must_use]
    pub fn shared(mut self, queue: &SharedReceiveQueue) -> Self {
        self.shared = Some(queue.clone());
        self
    }

    /// Sets what it holds at once. The driver may grant more.
    #[must_use]
    pub fn capacity(mut self, capacity: Capacity) -> Self {
        self.capacity = capacity;
        self
    }

    /// Has every request complete, not only those that ask to.
    #[must_use]
    pub fn signal_all(mut self, all: bool) -> Self {
        self.signal_all = all;
        self
    }

    /// Makes it, in state `Reset`.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`]: `EINVAL` or `ENOMEM` past the device's limits.
    pub fn build(self) -> Result<QueuePair, Error> {
        // SAFETY: all zeroes is a value of it.
        let mut raw: sys::ibv_qp_init_attr = unsafe { zeroed() };
        raw.send_cq = self.sends.raw();
        raw.recv_cq = self.receives.raw();
        raw.srq = self.shared.as_ref().map_or(ptr::null_mut(), SharedReceiveQueue::raw);
        raw.cap = self.capacity.raw();
        raw.qp_type = sys::ibv_qp_type::IBV_QPT_RC;
        raw.sq_sig_all = self.signal_all.into();
        let context = self.domain.context();
        // SAFETY: domain and queues live, and the queue pair keeps them alive.
        let qp = unsafe { context.library().ibv_create_qp(self.domain.raw(), &raw mut raw) };
        let qp = NonNull::new(qp).ok_or_else(|| Error::last("ibv_create_qp", context.name()))?;
        let capacity = Capacity::of(&raw.cap);
        Ok(QueuePair::adopt(qp, self.domain, self.sends, self.receives, self.shared, capacity))
    }
}
