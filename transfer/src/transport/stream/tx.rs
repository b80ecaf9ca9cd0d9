//! Sending: frames with their gather lists, acknowledgements before all else.

use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Instant;

use kvrail_cuda::{Next, Outgoing};

use crate::memory::Region;
use crate::session::lease::Pin;
use crate::telemetry::count;
use crate::transport::frame::{ENTRIES_MAX, Entry, HEADER_BYTES, Header, Kind, Status, push_entry};
use crate::transport::stream::{Stream, release_revoked};
use crate::transport::sys::{self, IoVec};
use crate::transport::{Job, RailError};

/// Bytes sent before the other direction gets its turn.
const BUDGET: usize = 4 << 20;
/// Frames kept for reuse.
const SPARE_MAX: usize = 64;

/// Sent in place of memory that was lent no longer.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// What a frame keeps alive, and what happens when it has been sent.
pub(super) enum Keep {
    Nothing,
    /// Payload lies in the job's region.
    Job(#[allow(dead_code, reason = "held, never read")] Arc<Job>),
    /// Payload of a read, in leased memory; `None` once the lease was revoked.
    Pin(Option<Pin>),
    /// The region's descriptor goes first.
    Export(Region),
}

pub(super) struct Frame {
    pub(super) head: Vec<u8>,
    pub(super) iov: IoVec,
    pub(super) keep: Keep,
    kind: Kind,
    id: u64,
    pub(super) started: bool,
    /// Bytes behind the head.
    payload: usize,
    /// Where the payload comes from if it lies on a device; chunks of it follow the head one by one.
    pub(super) staged: Option<Outgoing>,
    /// The head has been sent, and what is to be sent next is payload from a device.
    headless: bool,
}

impl Frame {
    /// Seals the head and makes it the first range; payload ranges follow. The head must not change after.
    pub(super) fn seal(&mut self, header: &Header) {
        header.seal(&mut self.head);
        (self.kind, self.id) = (header.kind, header.id);
        self.iov.push(self.head.as_mut_ptr(), self.head.len());
    }
}

#[derive(Default)]
pub(super) struct Tx {
    pub(super) queue: VecDeque<Box<Frame>>,
    #[allow(clippy::vec_box, reason = "a frame is large, and moves several times from here to the queue and back")]
    spare: Vec<Box<Frame>>,
    acks: Vec<(u64, Status)>,
    /// The socket may take bytes.
    pub(super) writable: bool,
    /// Reads of the peer in the queue.
    pub(super) serving: usize,
}

impl Tx {
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    /// An empty frame with room for the header.
    pub(super) fn frame(&mut self) -> Box<Frame> {
        let mut frame = self.spare.pop().unwrap_or_else(|| {
            Box::new(Frame {
                head: Vec::with_capacity(1024),
                iov: IoVec::default(),
                keep: Keep::Nothing,
                kind: Kind::Ack,
                id: 0,
                started: false,
                payload: 0,
                staged: None,
                headless: false,
            })
        });
        frame.head.resize(HEADER_BYTES, 0);
        frame
    }

    pub(super) fn recycle(&mut self, mut frame: Box<Frame>) {
        frame.head.clear();
        frame.iov.clear();
        frame.staged = None;
        frame.keep = Keep::Nothing;
        (frame.started, frame.headless) = (false, false);
        if self.spare.len() < SPARE_MAX {
            self.spare.push(frame);
        }
    }

    pub(super) fn queue(&mut self, mut frame: Box<Frame>) {
        let staged = frame.staged.as_ref().map_or(0, |staged| staged.left() as usize);
        frame.payload = frame.iov.left() - frame.head.len() + staged;
        self.queue.push_back(frame);
    }

    /// Queues a frame of a header and whatever payload `payload` gathers.
    pub(super) fn push(&mut self, header: Header, payload: impl FnOnce(&mut IoVec), keep: Keep) {
        let mut frame = self.frame();
        frame.seal(&header);
        payload(&mut frame.iov);
        frame.keep = keep;
        self.queue(frame);
    }

    /// Says how a slice of the peer went; sent with others in one frame.
    pub(super) fn ack(&mut self, id: u64, status: Status) {
        self.acks.push((id, status));
    }

    pub(super) fn has_work(&self) -> bool {
        !self.queue.is_empty() || !self.acks.is_empty()
    }

    pub(super) fn flush_acks(&mut self) {
        while !self.acks.is_empty() && self.queue.front().is_none_or(|f| !f.started) {
            let mut frame = self.frame();
            let n = self.acks.len().min(ENTRIES_MAX);
            for (id, status) in self.acks.drain(..n) {
                push_entry(&mut frame.head, Kind::Ack, Entry { key: id, value: status as u32, source: 0 });
            }
            let mut header = Header::new(Kind::Ack, 0);
            header.entries = n as u16;
            frame.seal(&header);
            self.queue.push_front(frame);
        }
    }

    /// Turns what is left of frames with a revoked lease into zeros: the stream keeps its framing, memory is let go.
    pub(super) fn fence(&mut self) {
        for frame in &mut self.queue {
            if let Keep::Pin(pin) = &mut frame.keep
                && release_revoked(pin)
            {
                // What is still to be sent of the head comes first, and stays. A device only reads: whoever gives up waits for its copies.
                let (payload, head) = match frame.staged.take() {
                    Some(staged) if frame.headless => (frame.iov.left() + staged.left() as usize, 0),
                    Some(_) => (frame.payload, frame.iov.left()),
                    None => {
                        let payload = frame.iov.left().min(frame.payload);
                        (payload, frame.iov.left() - payload)
                    }
                };
                let base = frame.iov.rest().next().map_or(std::ptr::null_mut(), |(base, _)| base);
                frame.iov.clear();
                frame.iov.push(base, head);
                push_scratch(&mut frame.iov, ZEROS.as_ptr().cast_mut(), ZEROS.len(), payload);
            }
        }
    }
}

/// Appends `total` bytes' worth of the same `len` bytes.
pub(super) fn push_scratch(iov: &mut IoVec, base: *mut u8, len: usize, total: usize) {
    let mut left = total;
    while left > 0 {
        iov.push(base, left.min(len));
        left -= left.min(len);
    }
}

impl Stream {
    /// Sends what the socket takes. True: the budget ran out first.
    pub(super) fn transmit(&mut self, now: Instant) -> Result<bool, RailError> {
        let mut budget = BUDGET;
        while self.tx.writable && budget > 0 {
            self.tx.flush_acks();
            let Some(frame) = self.tx.queue.front_mut() else { return Ok(false) };
            if frame.iov.left() == 0
                && let Some(staged) = &mut frame.staged
            {
                frame.headless = true;
                frame.iov.clear();
                match staged.next().map_err(|error| RailError::Device(error.to_string()))? {
                    Next::Bytes { base, len } => {
                        frame.iov.push(base, len);
                        count(&self.owner.counters.bytes_staged, len as u64);
                    }
                    Next::Wait => {
                        let pause_from = (!staged.is_copying()).then_some(now);
                        self.look_again(pause_from);
                        return Ok(false);
                    }
                    Next::End => {
                        if let Some(frame) = self.tx.queue.pop_front() {
                            self.sent(frame);
                        }
                        continue;
                    }
                }
            }
            // SAFETY: the ranges are the frame's own head, zeros, and mapped memory that `keep` holds: a job's region, or
            // a lease's while its pin lives (`fence` replaces the ranges in the same step that gives the pin back), or a chunk of
            // `staged`, which it keeps until it is asked for the next.
            match unsafe { sys::send(self.fd.as_raw_fd(), &mut frame.iov, None) }? {
                None => self.tx.writable = false,
                Some(sent) => {
                    frame.started = true;
                    budget = budget.saturating_sub(sent);
                    if frame.iov.left() == 0
                        && frame.staged.is_none()
                        && let Some(frame) = self.tx.queue.pop_front()
                    {
                        self.sent(frame);
                    }
                }
            }
        }
        Ok(self.tx.writable && self.tx.has_work())
    }

    fn sent(&mut self, mut frame: Box<Frame>) {
        if frame.kind == Kind::Data {
            self.tx.serving -= 1;
            // The kernel has its copy: the lease may end now, and the confirmation says how it stood until here.
            let held = match std::mem::replace(&mut frame.keep, Keep::Nothing) {
                Keep::Pin(Some(pin)) => pin.lease().holds(Instant::now()),
                _ => false,
            };
            let mut end = Header::new(Kind::End, frame.id);
            end.status = if held { Status::Ok } else { Status::Stale } as u32;
            let mut last = self.tx.frame();
            last.seal(&end);
            self.tx.queue.push_front(last);
        }
        self.tx.recycle(frame);
    }
}
