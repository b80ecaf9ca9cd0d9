//! Device memory over a stream: bytes pass through chunks of pinned host memory, which the device fills and empties by itself.
//!
//! What is received has landed when its last copy has ended on the device, and is acknowledged then and no earlier. A pin goes back when no
//! copy under it can write any more; where a device hangs, so that nothing tells, it never does, and the memory stays in quarantine.

use std::time::{Duration, Instant};

use kvrail_cuda::{Device, Error, Incoming, Lane, Outgoing, Segment, Space};

use crate::integrity::Crc;
use crate::memory::Region;
use crate::session::lease::Pin;
use crate::telemetry::count;
use crate::transport::frame::{Entry, Header, Kind, Status};
use crate::transport::stream::Stream;
use crate::transport::stream::rx::{Payload, Sink};
use crate::transport::stream::tx::Keep;

/// A device that has not copied a chunk after so long hangs.
const OVERDUE: Duration = Duration::from_secs(2);
/// Somebody who waits for a chunk looks again after so long.
pub(super) const LOOK: Duration = Duration::from_millis(1);

/// A stream's lanes, one for each device that it has met: no more than the machine has.
#[derive(Default)]
pub(super) struct Lanes(Vec<Lane>);

impl Lanes {
    pub(super) fn of(&mut self, device: &Device) -> Result<Lane, Error> {
        if let Some(lane) = self.0.iter().find(|lane| lane.device().is(device)) {
            return Ok(lane.clone());
        }
        let lane = device.lane()?;
        self.0.push(lane.clone());
        Ok(lane)
    }
}

/// Ranges (offset and length) of a region of device memory as segments; `None` if one passes the end.
pub(super) fn segments(region: &Region, ranges: impl Iterator<Item = (u64, u64)>) -> Option<Vec<Segment>> {
    let memory = region.device_memory()?;
    ranges.map(|(offset, len)| memory.at(offset, len).map(|address| Segment { address, len })).collect()
}

/// Payload on its way to a device, and what is held for it.
pub(super) struct Landing {
    /// Taken only by `drop`.
    incoming: Option<Incoming>,
    /// Taken by whoever tells how it ended.
    payload: Option<Payload>,
    id: u64,
    bytes: u64,
    /// Of the payload as it was received.
    crc: Option<Crc>,
    expected: Option<u32>,
    /// Room that was handed out and is being filled.
    filling: Option<(*mut u8, usize)>,
    /// The last word on a read of ours, if it has come.
    pub(super) ended: Option<Status>,
    /// All has been received since.
    since: Option<Instant>,
}

// SAFETY: its pointer is an address of a chunk that `incoming` holds.
unsafe impl Send for Landing {}

impl Landing {
    /// Of what a sink takes: `payload` is held until nothing of it can land any more.
    pub(super) fn new(incoming: Incoming, payload: Payload, id: u64, bytes: u64, expected: Option<u32>) -> Self {
        let crc = expected.map(|_| Crc::default());
        let (filling, ended, since) = (None, None, None);
        Self { incoming: Some(incoming), payload: Some(payload), id, bytes, crc, expected, filling, ended, since }
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Bytes that no room was handed out for.
    pub(super) fn left(&self) -> usize {
        self.incoming.as_ref().map_or(0, |incoming| incoming.left() as usize)
    }

    /// Whether it is of a read of ours.
    pub(super) fn is_read(&self) -> bool {
        matches!(self.payload, Some(Payload::Data))
    }

    pub(super) fn payload(&mut self) -> Option<&mut Payload> {
        self.payload.as_mut()
    }

    /// Nothing more is received. The payload, if nothing of it can land any more; otherwise it is held for ever.
    pub(super) fn give_up(mut self) -> Option<Payload> {
        self.settle();
        self.payload.take()
    }

    fn settle(&mut self) {
        if self.incoming.take().is_some_and(|incoming| !incoming.settle())
            && let Some(payload) = self.payload.take()
        {
            tracing::error!("a device does not end its copies: what was lent for them stays lent for ever");
            std::mem::forget(payload);
        }
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        self.settle();
    }
}

/// What comes next for a payload that goes to a device.
pub(super) enum Step {
    /// The sink has room.
    Room,
    /// Look again later.
    Wait,
    /// All has been received.
    Received,
}

impl Stream {
    /// Begins to take bytes to ranges of a region of device memory.
    pub(super) fn incoming(&mut self, region: &Region, ranges: impl Iterator<Item = (u64, u64)>) -> Option<Incoming> {
        let segments = segments(region, ranges)?;
        let memory = region.device_memory()?;
        let lane = self.lanes.of(memory.device()).inspect_err(|error| self.device_failed(error)).ok()?;
        Some(lane.incoming(memory, segments))
    }

    /// Begins to copy ranges of a region of device memory to the host. A checksum has to be there before the first byte is sent, so it
    /// costs a copy of its own.
    pub(super) fn outgoing(
        &mut self,
        region: &Region,
        ranges: impl Iterator<Item = (u64, u64)>,
        crc: Option<&mut Crc>,
    ) -> Option<Outgoing> {
        let segments = segments(region, ranges)?;
        let memory = region.device_memory()?;
        let begin = |lanes: &mut Lanes| {
            let lane = lanes.of(memory.device())?;
            if let Some(crc) = crc {
                lane.pull(memory, segments.iter().copied(), |base, len| {
                    // SAFETY: a chunk of pinned memory that is ours for the call.
                    unsafe { crc.add(base, len) };
                })?;
            }
            lane.outgoing(memory, segments.iter().copied(), None)
        };
        begin(&mut self.lanes).inspect_err(|error| self.device_failed(error)).ok()
    }

    /// A peer reads device memory: its bytes follow through chunks, under the pin.
    pub(super) fn serve_device_read(&mut self, header: &Header, list: impl Iterator<Item = Entry>, pin: Pin) {
        // Nobody maps a device's memory: over shared memory it cannot be reached.
        let mut crc = header.payload_crc.map(|_| Crc::default());
        let ranges = list.map(|entry| (entry.key, u64::from(entry.value)));
        self.owner.about_to_copy();
        let staged = if self.shm.is_some() { None } else { self.outgoing(pin.region(), ranges, crc.as_mut()) };
        let Some(staged) = staged else {
            self.end(header.id, Status::Unreachable);
            return;
        };
        let mut reply = Header::new(Kind::Data, header.id);
        (reply.bytes, reply.payload_crc) = (header.bytes, crc.map(Crc::finish));
        self.tx.serving += 1;
        let mut frame = self.tx.frame();
        frame.seal(&reply);
        frame.staged = Some(staged);
        frame.keep = Keep::Pin(Some(pin));
        self.tx.queue(frame);
    }

    /// Copies out of a peer's mapping to a device, and waits until it is there.
    pub(super) fn copy_to_device(
        &mut self,
        region: &Region,
        to: impl Iterator<Item = (u64, u64)>,
        mut from: impl Iterator<Item = (*mut u8, usize)>,
        expected: Option<u32>,
    ) -> Status {
        let (Some(memory), Some(segments)) = (region.device_memory(), segments(region, to)) else {
            return Status::Unreachable;
        };
        let mut crc = expected.map(|_| Crc::default());
        let mut flipper = self.owner.flipper.as_ref();
        let mut rest: (*mut u8, usize) = (std::ptr::null_mut(), 0);
        let pushed = self.lanes.of(memory.device()).and_then(|lane| {
            lane.push(memory, segments, |base, len| {
                let mut at = 0;
                while at < len {
                    if rest.1 == 0 {
                        let Some(next) = from.next() else { return };
                        rest = next;
                    }
                    let n = rest.1.min(len - at);
                    // SAFETY: `rest` lies in a mapping of the peer's that the caller holds, `base + at` in a chunk that is ours.
                    unsafe { crate::memory::copy(rest.0, base.add(at), n) };
                    rest = (rest.0.wrapping_add(n), rest.1 - n);
                    at += n;
                }
                // SAFETY: the chunk that was just filled.
                unsafe {
                    if let Some(flipper) = flipper.take() {
                        flipper.strike(base, len);
                    }
                    if let Some(crc) = &mut crc {
                        crc.add(base, len);
                    }
                }
                count(&self.owner.counters.bytes_staged, len as u64);
            })
        });
        if let Err(error) = pushed {
            self.device_failed(&error);
            return Status::Unreachable;
        }
        if crc.map(Crc::finish) != expected {
            count(&self.owner.counters.checksum_errors, 1);
            return Status::Corrupt;
        }
        Status::Ok
    }

    /// The room handed out before is full: sends it to the device, and makes room for what comes.
    pub(super) fn next_room(&mut self, now: Instant) -> Step {
        let Some(Sink { payload: Payload::Device(landing), .. }) = &mut self.rx.sink else { return Step::Received };
        if let Some((base, len)) = landing.filling.take() {
            if let Some(flipper) = &self.owner.flipper
                && matches!(landing.payload, Some(Payload::Write { status: Status::Ok, .. }))
            {
                // SAFETY: a chunk of ours that has just been filled.
                unsafe { flipper.strike(base, len) };
            }
            if let Some(crc) = &mut landing.crc {
                // SAFETY: as above.
                unsafe { crc.add(base, len) };
            }
            count(&self.owner.counters.bytes_staged, len as u64);
        }
        let Some(incoming) = &mut landing.incoming else { return Step::Received };
        match incoming.space() {
            Ok(Space::Bytes { base, len }) => {
                landing.filling = Some((base, len));
                self.rx.iov.clear();
                self.rx.iov.push(base, len);
                Step::Room
            }
            Ok(Space::Wait) => {
                self.look_again(incoming_is_short(&self.rx.sink).then_some(now));
                Step::Wait
            }
            Ok(Space::Full) => {
                landing.since = Some(now);
                Step::Received
            }
            Err(error) => {
                self.device_failed(&error);
                // The rest goes nowhere; what it says then is that memory cannot be reached.
                self.turn_away(Status::Unreachable);
                if self.rx.iov.left() > 0 { Step::Room } else { Step::Received }
            }
        }
    }

    /// Turns the rest of a payload away from a device.
    pub(super) fn turn_away(&mut self, status: Status) {
        let Some(sink) = &mut self.rx.sink else { return };
        let Payload::Device(landing) = std::mem::replace(&mut sink.payload, Payload::Nobody) else { return };
        let left = landing.left() + self.rx.iov.left();
        let (id, was_read) = (landing.id, matches!(landing.payload, Some(Payload::Data)));
        // What is held goes back, or never does.
        drop(landing.give_up());
        sink.crc = None;
        sink.payload = if was_read { Payload::Data } else { Payload::Write { pin: None, status } };
        if was_read && let Some(flight) = self.flights.get_mut(&id) {
            flight.corrupt = true;
        }
        self.rx.discard(left);
    }

    pub(super) fn device_failed(&self, error: &Error) {
        tracing::warn!(%error, "a device cannot take or give bytes");
    }

    /// Tells what has landed, in any order. True: some may be about to.
    pub(super) fn land(&mut self, now: Instant) -> bool {
        let mut at = 0;
        while at < self.landings.len() {
            let landing = &mut self.landings[at];
            let overdue = landing.since.is_some_and(|since| now.saturating_duration_since(since) >= OVERDUE);
            match landing.incoming.as_mut().map_or(Ok(true), Incoming::has_landed) {
                Ok(false) if !overdue => at += 1,
                Ok(landed) => {
                    let landing = self.landings.swap_remove(at);
                    self.landed(landing, landed);
                }
                Err(error) => {
                    self.device_failed(&error);
                    let landing = self.landings.swap_remove(at);
                    self.landed(landing, false);
                }
            }
        }
        !self.landings.is_empty()
    }

    /// A payload is on its device, or will never be.
    fn landed(&mut self, mut landing: Landing, landed: bool) {
        let intact = landing.crc.take().map(Crc::finish) == landing.expected;
        if !intact {
            count(&self.owner.counters.checksum_errors, 1);
        }
        let (id, bytes, ended) = (landing.id, landing.bytes, landing.ended);
        let was_read = matches!(landing.payload, Some(Payload::Data));
        let payload = landing.give_up();
        if was_read {
            if let Some(flight) = self.flights.get_mut(&id) {
                flight.corrupt |= !intact || !landed;
            }
            if let Some(status) = ended {
                self.complete(id, status);
            }
            return;
        }
        let status = match (landed, intact) {
            (false, _) => Status::Unreachable,
            (true, false) => Status::Corrupt,
            (true, true) => Status::Ok,
        };
        if let Some(Payload::Write { pin: Some(pin), .. }) = &payload
            && status == Status::Ok
        {
            pin.lease().add_landed(bytes);
            count(&self.owner.counters.bytes_received, bytes);
        }
        self.tx.ack(id, status);
    }

    /// When progress is to be made although no descriptor is ready: at once while a device copies, else after a pause.
    pub(super) fn look_again(&mut self, pause_from: Option<Instant>) {
        match pause_from {
            None => self.spinning = true,
            Some(now) => self.look_at = Some(self.look_at.map_or(now + LOOK, |at| at.min(now + LOOK))),
        }
    }
}

/// Whether what a sink waits for is a chunk and not a copy of its own.
fn incoming_is_short(sink: &Option<Sink>) -> bool {
    match sink {
        Some(Sink { payload: Payload::Device(landing), .. }) => {
            landing.incoming.as_ref().is_some_and(|incoming| !incoming.is_copying())
        }
        _ => false,
    }
}
