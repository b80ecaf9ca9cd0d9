//! The requester's end of a queue pair: a send queue that is carried out in order, and what became of it.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::mailbox::Mailbox;
use crate::transport::onesided::{Key, Request, VOUCH, WorkStatus};
use crate::transport::sim::responder::{Nak, Responder};

/// An entry of a completion queue; one for each request that was posted, so a send queue's depth bounds them.
pub(super) struct WorkCompletion {
    /// Number of the queue pair.
    pub(super) pair: u64,
    pub(super) id: u64,
    pub(super) status: WorkStatus,
}

/// What a device hears of its NIC.
pub(super) enum Word {
    Completed(WorkCompletion),
    /// The peer's requester vouches; one at a time, of one that behaves.
    Vouched(u32),
}

/// An entry of a send queue.
pub(super) enum Posted {
    Request {
        request: Arc<Request>,
        /// Of the parts of the peer's memory, where the NIC does not look at leases.
        keys: Vec<Key>,
    },
    Vouch(u32),
}

impl Posted {
    fn id(&self) -> u64 {
        match self {
            Self::Request { request, .. } => request.id,
            Self::Vouch(_) => VOUCH,
        }
    }
}

/// One send queue to one responder.
pub(super) struct QueuePair {
    number: u64,
    responder: Arc<Responder>,
    completions: Arc<Mailbox<Word>>,
    queue: Mutex<SendQueue>,
    /// Held while a request is carried out, so that destroying waits for it.
    engine: Mutex<()>,
}

#[derive(Default)]
struct SendQueue {
    requests: VecDeque<Posted>,
    /// Takes nothing more, carries out nothing more; there is no way back but another queue pair.
    error: bool,
}

impl QueuePair {
    pub(super) fn new(number: u64, responder: Arc<Responder>, completions: Arc<Mailbox<Word>>) -> Self {
        Self { number, responder, completions, queue: Mutex::default(), engine: Mutex::default() }
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    fn complete(&self, id: u64, status: WorkStatus) {
        self.completions.post(Word::Completed(WorkCompletion { pair: self.number, id, status }));
    }

    /// Queues a request. In error it is flushed at once, as everything is.
    pub(super) fn post(&self, posted: Posted) {
        let mut queue = self.queue.lock();
        if queue.error {
            self.complete(posted.id(), WorkStatus::Flushed);
        } else {
            queue.requests.push_back(posted);
        }
    }

    /// Carries out the oldest request, if there is one. For the NIC's thread.
    pub(super) fn carry_out_next(&self) {
        let _engine = self.engine.lock();
        let Some(posted) = self.queue.lock().requests.pop_front() else { return };
        let status = match self.responder.serve(self.number, &posted) {
            Ok(()) => WorkStatus::Success,
            Err(Nak::RemoteAccess) => WorkStatus::RemoteAccess,
            // The socket says that the other end is gone.
            Err(Nak::NoResponder) => WorkStatus::Flushed,
        };
        let mut queue = self.queue.lock();
        self.complete(posted.id(), status);
        if status != WorkStatus::Success {
            queue.error = true;
            for flushed in queue.requests.drain(..) {
                self.complete(flushed.id(), WorkStatus::Flushed);
            }
        }
    }

    /// Ends it: when this returns, nothing of it touches memory on either side. What was outstanding gets no completion.
    pub(super) fn destroy(&self) {
        let mut queue = self.queue.lock();
        queue.error = true;
        queue.requests.clear();
        drop(queue);
        drop(self.engine.lock());
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        self.destroy();
    }
}
