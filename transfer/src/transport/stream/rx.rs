//! Receiving: heads through a small staging buffer, payload straight to where it belongs.
//!
//! A receive asks for the rest of the current payload and, behind it, a few KiB into the staging buffer, so that the next
//! head usually comes along without a call of its own. What of a payload ended up in the staging buffer (at most
//! [`TAIL`] bytes a frame) is copied. Over shared memory heads alone come, out of the ring.

use std::os::fd::AsRawFd;
use std::time::Instant;

use crate::integrity::Crc;
use crate::session::lease::Pin;
use crate::telemetry::count;
use crate::transport::RailError;
use crate::transport::frame::{HEAD_MAX, HEADER_BYTES, Header, Status, sealed};
use crate::transport::stream::staged::{Landing, Step};
use crate::transport::stream::{Stream, release_revoked, tx::push_scratch};
use crate::transport::sys::{self, IoVec, Received};

/// Bytes received before the other direction gets its turn.
const BUDGET: usize = 4 << 20;
/// Bytes asked for beyond a payload.
const TAIL: usize = 4096;
const STAGE: usize = HEAD_MAX + TAIL;
/// Where unwanted payload goes.
const SCRATCH: usize = 64 << 10;

/// Whose payload it is.
pub(super) enum Payload {
    /// A peer's write under a lease; without a pin it is turned away.
    Write {
        /// Keeps the lease from being fenced.
        pin: Option<Pin>,
        /// What the acknowledgement will say.
        status: Status,
    },
    /// Bytes of one of our reads.
    Data,
    /// Either of them, for device memory.
    Device(Box<Landing>),
    /// Already settled.
    Nobody,
}

/// Where the rest of the current payload goes.
pub(super) struct Sink {
    pub(super) id: u64,
    pub(super) payload: Payload,
    pub(super) crc: Option<u32>,
    pub(super) bytes: u64,
}

pub(super) struct Rx {
    stage: Box<[u8]>,
    start: usize,
    end: usize,
    pub(super) sink: Option<Sink>,
    pub(super) iov: IoVec,
    /// Ranges of the payload, kept where a checksum will be taken over them.
    pub(super) ranges: IoVec,
    scratch: Vec<u8>,
    pub(super) fds: Vec<std::os::fd::OwnedFd>,
    pub(super) readable: bool,
    /// Its end has been told of: it is read until that comes.
    pub(super) ended: bool,
}

impl Default for Rx {
    fn default() -> Self {
        Self {
            stage: vec![0; STAGE].into_boxed_slice(),
            start: 0,
            end: 0,
            sink: None,
            iov: IoVec::default(),
            ranges: IoVec::default(),
            scratch: Vec::new(),
            fds: Vec::new(),
            readable: false,
            ended: false,
        }
    }
}

impl Rx {
    /// Sends the next `bytes` of the stream nowhere.
    pub(super) fn discard(&mut self, bytes: usize) {
        self.scratch.resize(SCRATCH, 0);
        self.iov.clear();
        push_scratch(&mut self.iov, self.scratch.as_mut_ptr(), SCRATCH, bytes);
    }

    /// Whether a payload goes to a device under a lease that has been revoked.
    pub(super) fn is_revoked_on_a_device(&mut self) -> bool {
        let Some(Sink { payload: Payload::Device(landing), .. }) = &mut self.sink else { return false };
        matches!(landing.payload(), Some(Payload::Write { pin: Some(pin), .. }) if pin.lease().is_revoked())
    }

    /// Turns the rest of a payload away from host memory whose lease has been revoked.
    pub(super) fn fence(&mut self) {
        if let Some(Sink { payload: Payload::Write { pin, status }, crc, .. }) = &mut self.sink
            && release_revoked(pin)
        {
            *status = Status::Stale;
            *crc = None;
            let left = self.iov.left();
            self.discard(left);
        }
    }

    /// Length of the head at the front of the stage, if its header is there; the header with it.
    fn head(&self) -> Result<Option<(Header, usize)>, RailError> {
        let staged = &self.stage[self.start..self.end];
        let Some(header) = staged.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let header = Header::parse(header).map_err(RailError::Protocol)?;
        Ok(Some((header, HEADER_BYTES + header.list_bytes())))
    }
}

impl Stream {
    /// Receives and serves what is there. True: the budget ran out first.
    pub(super) fn receive(&mut self, now: Instant) -> Result<bool, RailError> {
        let mut budget = BUDGET;
        loop {
            // First what is staged.
            if self.rx.sink.is_some() {
                let n = (self.rx.end - self.rx.start).min(self.rx.iov.left());
                let (start, rx) = (self.rx.start, &mut self.rx);
                // SAFETY: the ranges are mapped memory held by the sink's pin or the flight's job, or our scratch;
                // none overlaps the staging buffer.
                unsafe { rx.iov.fill(&rx.stage[start..start + n]) };
                rx.start += n;
                if rx.iov.left() == 0 {
                    match self.next_room(now) {
                        Step::Room => {}
                        Step::Wait => return Ok(false),
                        Step::Received => self.finish_payload(),
                    }
                    continue;
                }
            } else if let Some((header, len)) = self.rx.head()?
                && self.rx.end - self.rx.start >= len
            {
                let at = self.rx.start;
                self.rx.start += len;
                // Taken out for the call, so that the list can be read while the stream changes.
                let stage = std::mem::take(&mut self.rx.stage);
                let head = &stage[at..at + len];
                let served = if sealed(head) {
                    self.serve(&header, &head[HEADER_BYTES..], now)
                } else {
                    Err(RailError::Protocol("header checksum does not match"))
                };
                self.rx.stage = stage;
                served?;
                if self.shm.is_some() {
                    // Bytes that were copied count as received: acknowledgements are not to wait for all that may follow.
                    budget = budget.saturating_sub(header.bytes as usize);
                    if budget == 0 {
                        return self.pause();
                    }
                }
                continue;
            }
            if budget == 0 || !self.has_more() {
                return self.pause();
            }
            budget = budget.saturating_sub(self.fill()?);
        }
    }

    /// Whether there is something to receive.
    fn has_more(&self) -> bool {
        self.shm.as_ref().map_or(self.rx.readable, |shm| shm.ring.has_more())
    }

    /// The other direction's turn. True: there is more.
    fn pause(&self) -> Result<bool, RailError> {
        let Some(shm) = &self.shm else { return Ok(self.rx.readable) };
        let is_whole = |(_, len)| self.rx.end - self.rx.start >= len;
        let more = shm.ring.has_more() || self.rx.head()?.is_some_and(is_whole);
        // Each is followed by its head before the next is sent.
        if !more && self.rx.fds.len() > 1 {
            return Err(RailError::Protocol("descriptors that no head names"));
        }
        // What a peer put into the ring before it ended counts.
        if shm.ended && !more {
            return Err(RailError::Closed);
        }
        Ok(more)
    }

    /// One receive call.
    fn fill(&mut self) -> Result<usize, RailError> {
        let rx = &mut self.rx;
        if rx.start > 0 {
            rx.stage.copy_within(rx.start..rx.end, 0);
            rx.end -= rx.start;
            rx.start = 0;
        }
        let wanted = match rx.head()? {
            Some((_, len)) if rx.sink.is_none() => len.saturating_sub(rx.end).max(1),
            _ => TAIL,
        };
        let until = (rx.end + wanted.max(TAIL)).min(STAGE);
        if let Some(shm) = &mut self.shm {
            let got = shm.ring.take(&mut rx.stage[rx.end..until])?;
            rx.end += got;
            return Ok(got);
        }
        // SAFETY: as in `receive`: held by pin or job, or our scratch; the staging buffer is ours alone.
        let got = unsafe { sys::recv(self.fd.as_raw_fd(), &mut rx.iov, &mut rx.stage[rx.end..until], None) }?;
        match got {
            None => {
                rx.readable = false;
                Ok(0)
            }
            Some(Received { direct: 0, staged: 0, .. }) => Err(RailError::Closed),
            Some(Received { direct, staged, more }) => {
                rx.end += staged;
                // Where there is no more, what comes next is told.
                rx.readable = more || rx.ended;
                Ok(direct + staged)
            }
        }
    }

    /// All bytes of the current payload are where they belong.
    pub(super) fn finish_payload(&mut self) {
        let Some(sink) = self.rx.sink.take() else { return };
        let sink = match sink {
            // It has been received, and is told when it is on the device.
            Sink { payload: Payload::Device(landing), .. } => {
                self.rx.iov.clear();
                self.landings.push(*landing);
                return;
            }
            sink => sink,
        };
        if let Some(flipper) = &self.owner.flipper
            && let Payload::Write { pin: Some(_), status: Status::Ok } = &sink.payload
            && let Some((base, len)) = self.rx.ranges.rest().next()
        {
            // SAFETY: a range that the payload was received into, still held by the pin.
            unsafe { flipper.strike(base, len) };
        }
        let intact = sink.crc.is_none_or(|expected| {
            let mut crc = Crc::default();
            for (base, len) in self.rx.ranges.rest() {
                // SAFETY: the ranges that the payload was received into, still held by pin or job.
                unsafe { crc.add(base, len) };
            }
            crc.finish() == expected
        });
        self.rx.iov.clear();
        self.rx.ranges.clear();
        if !intact {
            count(&self.owner.counters.checksum_errors, 1);
        }
        match sink.payload {
            Payload::Write { pin, mut status } => {
                if let Some(inflow) = &self.inflow {
                    inflow.count(sink.bytes);
                }
                if status == Status::Ok && !intact {
                    status = Status::Corrupt;
                }
                if let Some(pin) = pin
                    && status == Status::Ok
                {
                    pin.lease().add_landed(sink.bytes);
                    count(&self.owner.counters.bytes_received, sink.bytes);
                }
                self.tx.ack(sink.id, status);
            }
            Payload::Data => {
                if let Some(flight) = self.flights.get_mut(&sink.id) {
                    flight.corrupt |= !intact;
                }
            }
            Payload::Device(_) | Payload::Nobody => {}
        }
    }
}
