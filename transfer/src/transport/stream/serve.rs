//! Frames of the peer: each is checked whole before it touches memory.

use std::sync::Arc;
use std::time::Instant;

use crate::integrity::Crc;
use crate::plan::Direction;
use crate::session::lease::{Access, Pin};
use crate::telemetry::count;
use crate::transport::RailError;
use crate::transport::frame::{Entry, Header, Kind, Status, entries};
use crate::transport::stream::rx::{Payload, Sink};
use crate::transport::stream::staged::Landing;
use crate::transport::stream::tx::Keep;
use crate::transport::stream::{SERVING_MAX, Stream};

impl Stream {
    /// Serves one frame whose seal held.
    pub(super) fn serve(&mut self, header: &Header, list: &[u8], now: Instant) -> Result<(), RailError> {
        let list = || entries(list, header.kind);
        if matches!(header.kind, Kind::Write | Kind::WriteRef | Kind::Read) {
            // The framing depends on it, and so does what a pin covers.
            let sum: u64 = list().map(|e| u64::from(e.value)).sum();
            if sum != u64::from(header.bytes) || header.bytes == 0 {
                return Err(RailError::Protocol("a frame's ranges do not add up to its bytes"));
            }
        }
        match header.kind {
            Kind::Write | Kind::Data if self.shm.is_some() => {
                return Err(RailError::Protocol("payload where heads alone go"));
            }
            Kind::Write if self.inflow.as_ref().is_some_and(|inflow| !inflow.admits(u64::from(header.bytes))) => {
                return Err(RailError::Overdrawn);
            }
            Kind::Write => self.serve_write(header, list(), now),
            Kind::WriteRef => self.serve_write_ref(header, list(), now)?,
            Kind::Read => self.serve_read(header, list(), now)?,
            Kind::Data => self.take_data(header)?,
            Kind::End => {
                let status = Status::from_code(header.status).ok_or(RailError::Protocol("unknown status"))?;
                match self.landings.iter_mut().find(|landing| landing.id() == header.id && landing.is_read()) {
                    // Its bytes are not where they belong yet.
                    Some(landing) => landing.ended = Some(status),
                    None => self.complete(header.id, status),
                }
            }
            Kind::Ack => {
                for entry in list() {
                    let status = Status::from_code(entry.value).ok_or(RailError::Protocol("unknown status"))?;
                    // An acknowledgement of a read would vouch for bytes that never came.
                    if self.flights.get(&entry.key).is_some_and(|f| f.direction == Direction::Write) {
                        self.complete(entry.key, status);
                    }
                }
            }
            Kind::Export => {
                let fd = self.passed()?;
                match (&mut self.shm, fd) {
                    (Some(shm), Some(fd)) => shm.import(header.region, header.id, &fd).map_err(RailError::Protocol)?,
                    _ => return Err(RailError::Protocol("an export without a descriptor")),
                }
            }
            Kind::Ref => self.take_ref(header)?,
            Kind::Confirm => {
                let held = self.leases.admit(&self.owner, header, Access::Read, std::iter::empty(), now);
                let status = held.map_or_else(Status::from, |_pin| Status::Ok);
                self.end(header.id, status);
            }
        }
        Ok(())
    }

    fn refused(&mut self, status: Status) -> Status {
        if status != Status::Ok {
            count(&self.owner.counters.frames_refused, 1);
        }
        status
    }

    pub(super) fn end(&mut self, id: u64, status: Status) {
        let mut header = Header::new(Kind::End, id);
        header.status = self.refused(status) as u32;
        self.tx.push(header, |_| {}, Keep::Nothing);
    }

    /// A write whose payload follows in the stream.
    fn serve_write(&mut self, header: &Header, list: impl Iterator<Item = Entry> + Clone, now: Instant) {
        let mut crc = header.payload_crc;
        self.rx.iov.clear();
        self.rx.ranges.clear();
        let payload = match self.leases.admit(&self.owner, header, Access::Write, list.clone(), now) {
            Ok(pin) if pin.region().device_memory().is_some() => {
                self.owner.about_to_copy();
                let ranges = list.map(|entry| (entry.key, u64::from(entry.value)));
                match self.incoming(pin.region(), ranges) {
                    Some(incoming) => {
                        let (id, bytes) = (header.id, u64::from(header.bytes));
                        let payload = Payload::Write { pin: Some(pin), status: Status::Ok };
                        Payload::Device(Box::new(Landing::new(incoming, payload, id, bytes, crc.take())))
                    }
                    None => {
                        crc = None;
                        self.rx.discard(header.bytes as usize);
                        Payload::Write { pin: None, status: Status::Unreachable }
                    }
                }
            }
            Ok(pin) => {
                self.owner.about_to_copy();
                for entry in list {
                    let base = range(&pin, &entry);
                    self.rx.iov.push(base, entry.value as usize);
                    if crc.is_some() || self.owner.flipper.is_some() {
                        self.rx.ranges.push(base, entry.value as usize);
                    }
                }
                Payload::Write { pin: Some(pin), status: Status::Ok }
            }
            Err(refusal) => {
                let status = self.refused(refusal.into());
                crc = None;
                self.rx.discard(header.bytes as usize);
                Payload::Write { pin: None, status }
            }
        };
        self.rx.sink = Some(Sink { id: header.id, payload, crc, bytes: u64::from(header.bytes) });
    }

    /// A write that we carry out ourselves, out of the peer's exported region.
    fn serve_write_ref(
        &mut self,
        header: &Header,
        list: impl Iterator<Item = Entry> + Clone,
        now: Instant,
    ) -> Result<(), RailError> {
        let source = self.shm.as_mut().and_then(|s| s.imported(header.region));
        let source = source.ok_or(RailError::Protocol("a region that was not exported"))?;
        let inside = |e: &Entry| source.at(e.source, u64::from(e.value)).is_some();
        if !list.clone().all(|e| inside(&e)) {
            return Err(RailError::Protocol("a range past the end of an exported region"));
        }
        let mut status = Status::Ok;
        match self.leases.admit(&self.owner, header, Access::Write, list.clone(), now) {
            Err(refusal) => status = self.refused(refusal.into()),
            Ok(pin) if pin.region().device_memory().is_some() => {
                self.owner.about_to_copy();
                let to = list.clone().map(|entry| (entry.key, u64::from(entry.value)));
                let from =
                    list.filter_map(|e| source.at(e.source, u64::from(e.value)).map(|at| (at, e.value as usize)));
                status = self.copy_to_device(pin.region(), to, from, header.payload_crc);
                if status == Status::Ok {
                    pin.lease().add_landed(u64::from(header.bytes));
                    count(&self.owner.counters.bytes_received, u64::from(header.bytes));
                } else if status == Status::Unreachable {
                    // A device that failed may still copy: its memory is not given to anybody else.
                    std::mem::forget(pin);
                }
            }
            Ok(pin) => {
                let mut crc = header.payload_crc.map(|_| Crc::default());
                // One strike a frame, as over tcp.
                let mut flipper = self.owner.flipper.as_ref();
                for entry in list {
                    // Revoked meanwhile: the fence waits for this loop alone, one piece at most.
                    if pin.lease().is_revoked() {
                        status = Status::Stale;
                        break;
                    }
                    let (Some(from), to) = (source.at(entry.source, u64::from(entry.value)), range(&pin, &entry))
                    else {
                        continue;
                    };
                    self.owner.about_to_copy();
                    // SAFETY: `from` lies in the peer's sealed file that we map read-only, `to` in the leased region that
                    // the pin keeps mapped and lent; two mappings, so they cannot overlap as addresses.
                    unsafe {
                        crate::memory::copy_streaming(from, to, entry.value as usize);
                        if let Some(flipper) = flipper.take() {
                            flipper.strike(to, entry.value as usize);
                        }
                        if let Some(crc) = &mut crc {
                            crc.add(to, entry.value as usize);
                        }
                    }
                }
                if status == Status::Ok && crc.map(Crc::finish) != header.payload_crc {
                    count(&self.owner.counters.checksum_errors, 1);
                    status = Status::Corrupt;
                }
                if status == Status::Ok {
                    pin.lease().add_landed(u64::from(header.bytes));
                    count(&self.owner.counters.bytes_received, u64::from(header.bytes));
                }
            }
        }
        self.tx.ack(header.id, status);
        Ok(())
    }

    /// The peer wants to read: tcp sends the bytes under a pin, shm exports the region and confirms afterwards.
    fn serve_read(
        &mut self,
        header: &Header,
        list: impl Iterator<Item = Entry> + Clone,
        now: Instant,
    ) -> Result<(), RailError> {
        if self.tx.serving >= SERVING_MAX {
            return Err(RailError::Protocol("too many reads at once"));
        }
        let pin = match self.leases.admit(&self.owner, header, Access::Read, list.clone(), now) {
            Ok(pin) => pin,
            Err(refusal) => {
                self.end(header.id, refusal.into());
                return Ok(());
            }
        };
        if pin.region().device_memory().is_some() {
            self.serve_device_read(header, list, pin);
            return Ok(());
        }
        let crc = header.payload_crc.map(|_| {
            let mut crc = Crc::default();
            for entry in list.clone() {
                // SAFETY: inside the leased region, which the pin keeps mapped.
                unsafe { crc.add(range(&pin, &entry), entry.value as usize) };
            }
            crc.finish()
        });
        if self.shm.is_some() {
            let region = pin.region().clone();
            if self.export(&region).is_err() {
                self.end(header.id, Status::Unreachable);
                return Ok(());
            }
            let mut reply = Header::new(Kind::Ref, header.id);
            (reply.region, reply.payload_crc) = (region.id(), crc);
            self.tx.push(reply, |_| {}, Keep::Nothing);
            return Ok(());
        }
        self.owner.about_to_copy();
        let mut reply = Header::new(Kind::Data, header.id);
        (reply.bytes, reply.payload_crc) = (header.bytes, crc);
        self.tx.serving += 1;
        let mut frame = self.tx.frame();
        frame.seal(&reply);
        for entry in list {
            frame.iov.push(range(&pin, &entry), entry.value as usize);
        }
        frame.keep = Keep::Pin(Some(pin));
        self.tx.queue(frame);
        Ok(())
    }

    /// Payload of one of our reads begins: where it goes was decided here, not by the peer.
    fn take_data(&mut self, header: &Header) -> Result<(), RailError> {
        let flight = self.flights.get(&header.id).filter(|f| f.direction == Direction::Read);
        let flight = flight.ok_or(RailError::Protocol("data that nobody asked for"))?;
        if flight.bytes != u64::from(header.bytes) || self.shm.is_some() {
            return Err(RailError::Protocol("data of another length than asked for"));
        }
        self.rx.iov.clear();
        self.rx.ranges.clear();
        if flight.job.region.device_memory().is_some() {
            // The first would still be on its way when the last word on the second counts.
            if self.landings.iter().any(|landing| landing.id() == header.id && landing.is_read()) {
                return Err(RailError::Protocol("data of a read twice"));
            }
            let (id, bytes, job) = (header.id, flight.bytes, Arc::clone(&flight.job));
            let ranges: Vec<_> = flight.pieces.iter().map(|piece| (piece.local, piece.len)).collect();
            let payload = match self.incoming(&job.region, ranges.into_iter()) {
                Some(incoming) => {
                    Payload::Device(Box::new(Landing::new(incoming, Payload::Data, id, bytes, header.payload_crc)))
                }
                None => {
                    if let Some(flight) = self.flights.get_mut(&id) {
                        flight.corrupt = true;
                    }
                    self.rx.discard(header.bytes as usize);
                    Payload::Data
                }
            };
            self.rx.sink = Some(Sink { id, payload, crc: None, bytes });
            return Ok(());
        }
        for piece in &flight.pieces {
            if let Some(base) = flight.job.region.at(piece.local, piece.len) {
                self.rx.iov.push(base, piece.len as usize);
                if header.payload_crc.is_some() {
                    self.rx.ranges.push(base, piece.len as usize);
                }
            }
        }
        let (id, crc, bytes) = (header.id, header.payload_crc, flight.bytes);
        self.rx.sink = Some(Sink { id, payload: Payload::Data, crc, bytes });
        Ok(())
    }

    /// One of our reads may be copied; whether it counts, the owner says afterwards.
    fn take_ref(&mut self, header: &Header) -> Result<(), RailError> {
        let source = self.shm.as_mut().and_then(|s| s.imported(header.region));
        let source = source.ok_or(RailError::Protocol("a region that was not exported"))?;
        let flight = self.flights.get_mut(&header.id).filter(|f| f.direction == Direction::Read);
        let flight = flight.ok_or(RailError::Protocol("data that nobody asked for"))?;
        self.owner.about_to_copy();
        if flight.job.region.device_memory().is_some() {
            let (id, job) = (header.id, Arc::clone(&flight.job));
            let pieces = flight.pieces.clone();
            let from: Option<Vec<_>> =
                pieces.iter().map(|p| source.at(p.remote, p.len).map(|at| (at, p.len as usize))).collect();
            let from = from.ok_or(RailError::Protocol("an exported region that is too short"))?;
            let to = pieces.iter().map(|piece| (piece.local, piece.len));
            let status = self.copy_to_device(&job.region, to, from.into_iter(), header.payload_crc);
            if let Some(flight) = self.flights.get_mut(&id) {
                flight.corrupt |= status != Status::Ok;
            }
            let mut confirm = Header::new(Kind::Confirm, id);
            (confirm.lease, confirm.key, confirm.generation) = (job.lease, job.key, job.generation);
            self.tx.push(confirm, |_| {}, Keep::Nothing);
            return Ok(());
        }
        let mut crc = header.payload_crc.map(|_| Crc::default());
        for piece in &flight.pieces {
            let from = source.at(piece.remote, piece.len);
            let to = flight.job.region.at(piece.local, piece.len);
            let (Some(from), Some(to)) = (from, to) else {
                return Err(RailError::Protocol("an exported region that is too short"));
            };
            // SAFETY: both ranges were proved by `at`; the job and the import keep them mapped, and they are distinct
            // mappings.
            unsafe {
                crate::memory::copy_streaming(from, to, piece.len as usize);
                if let Some(crc) = &mut crc {
                    crc.add(to, piece.len as usize);
                }
            }
        }
        if crc.map(Crc::finish) != header.payload_crc {
            count(&self.owner.counters.checksum_errors, 1);
            flight.corrupt = true;
        }
        let mut confirm = Header::new(Kind::Confirm, header.id);
        (confirm.lease, confirm.key, confirm.generation) = (flight.job.lease, flight.job.key, flight.job.generation);
        self.tx.push(confirm, |_| {}, Keep::Nothing);
        Ok(())
    }
}

/// Address of a range that [`admit`](super::leases::LeaseCache::admit) found inside the lease.
fn range(pin: &Pin, entry: &Entry) -> *mut u8 {
    pin.region().as_ptr().wrapping_add(entry.key as usize)
}
