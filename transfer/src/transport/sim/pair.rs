//! The requester's end of a queue pair: a send queue that is carried out in order, and what became of it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use crate::mailbox::Mailbox;
use crate::plan::{Direction, Piece};
use crate::transport::Job;
use crate::transport::sim::responder::{Nak, Responder};

/// A chain of work requests, one a piece, of which the last is signalled.
pub(super) struct Request {
    /// Quoted in its completion.
    pub(super) id: u64,
    pub(super) job: Arc<Job>,
    pub(super) direction: Direction,
    pub(super) pieces: Vec<Piece>,
    pub(super) bytes: u64,
    /// When it is carried out.
    pub(super) due: Instant,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkStatus {
    Success,
    /// The owner's side turned it away. The queue pair is in error.
    RemoteAccess,
    /// The other end is gone. The queue pair is in error.
    RetryExceeded,
    /// Outstanding behind one that failed: it was not carried out.
    Flushed,
}

/// An entry of a completion queue; one for each request that was posted, so a send queue's depth bounds them.
pub(super) struct WorkCompletion {
    /// Number of the queue pair.
    pub(super) pair: u64,
    pub(super) id: u64,
    pub(super) status: WorkStatus,
}

/// One send queue to one responder.
pub(super) struct QueuePair {
    number: u64,
    responder: Arc<Responder>,
    completions: Arc<Mailbox<WorkCompletion>>,
    queue: Mutex<SendQueue>,
    /// Held while a request is carried out, so that destroying waits for it.
    engine: Mutex<()>,
}

#[derive(Default)]
struct SendQueue {
    requests: VecDeque<Arc<Request>>,
    /// Takes nothing more, carries out nothing more; there is no way back but another queue pair.
    error: bool,
}

impl QueuePair {
    pub(super) fn new(number: u64, responder: Arc<Responder>, completions: Arc<Mailbox<WorkCompletion>>) -> Self {
        Self { number, responder, completions, queue: Mutex::default(), engine: Mutex::default() }
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    fn complete(&self, id: u64, status: WorkStatus) {
        self.completions.post(WorkCompletion { pair: self.number, id, status });
    }

    /// Queues a request. In error it is flushed at once, as everything is.
    pub(super) fn post(&self, request: Arc<Request>) {
        let mut queue = self.queue.lock();
        if queue.error {
            self.complete(request.id, WorkStatus::Flushed);
        } else {
            queue.requests.push_back(request);
        }
    }

    /// Carries out the oldest request, if there is one. For the NIC's thread.
    pub(super) fn carry_out_next(&self) {
        let _engine = self.engine.lock();
        let Some(request) = self.queue.lock().requests.pop_front() else { return };
        let status = match self.responder.serve(self.number, &request) {
            Ok(()) => WorkStatus::Success,
            Err(Nak::RemoteAccess) => WorkStatus::RemoteAccess,
            Err(Nak::NoResponder) => WorkStatus::RetryExceeded,
        };
        let mut queue = self.queue.lock();
        self.complete(request.id, status);
        if status != WorkStatus::Success {
            queue.error = true;
            for flushed in queue.requests.drain(..) {
                self.complete(flushed.id, WorkStatus::Flushed);
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
