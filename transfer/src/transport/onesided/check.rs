//! Checksums of one-sided transfers: a NIC does not look at memory, so the initiator asks the owner's worker to, once the bytes have
//! landed. For a read the initiator compares.

use std::time::Instant;

use crate::plan::Direction;
use crate::session::lease::Access;
use crate::session::wire::{Check, Message};
use crate::telemetry::count;
use crate::transport::Owner;
use crate::transport::frame::Status;
use crate::transport::onesided::Request;

/// Over the bytes on our side; none where a device does not give them.
pub(super) fn local_crc(request: &Request) -> Option<u32> {
    request.job.region.crc(request.pieces.iter().map(|piece| (piece.local, piece.len)))
}

/// The question, quoting what was sent if it was written.
pub(super) fn question(request: &Request, crc: Option<u32>) -> Message {
    let (job, pieces) = (&request.job, &request.pieces);
    Message::Check(Check {
        id: request.id,
        generation: job.generation,
        lease: job.lease,
        key: job.key,
        read: request.direction == Direction::Read,
        crc,
        ranges: pieces.iter().map(|piece| (piece.remote, piece.len as u32)).collect(),
    })
}

/// The owner's side: what do the bytes that a peer wrote or read look like here?
pub(super) fn answer(owner: &Owner, check: &Check, now: Instant) -> (Status, u32) {
    let access = if check.read { Access::Read } else { Access::Write };
    let ranges = check.ranges.iter().map(|(offset, len)| (*offset, u64::from(*len)));
    let pin = match owner.admit(check.generation, check.lease, check.key, access, ranges.clone(), now) {
        Ok(pin) => pin,
        Err(refusal) => {
            count(&owner.counters.frames_refused, 1);
            return (refusal.into(), 0);
        }
    };
    let Some(crc) = pin.region().crc(ranges) else { return (Status::Unreachable, 0) };
    if check.crc.is_some_and(|expected| expected != crc) {
        count(&owner.counters.checksum_errors, 1);
        return (Status::Corrupt, crc);
    }
    (Status::Ok, crc)
}

/// The initiator's side: a read compares what has come with what was there.
pub(super) fn verdict(owner: &Owner, request: &Request, status: Status, crc: u32) -> Status {
    if status != Status::Ok || request.direction == Direction::Write || local_crc(request) == Some(crc) {
        return status;
    }
    count(&owner.counters.checksum_errors, 1);
    Status::Corrupt
}
