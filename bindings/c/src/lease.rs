//! Lending memory, and tickets: what the owner of memory hands to a peer.

use std::mem::MaybeUninit;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use kvrail_bindings::{Code, wait};
use kvrail_transfer::{Access, ByteRange, Lease, LeaseRequest, LeaseTicket};

use crate::engine::kvrail_engine;
use crate::events::{Watched, kvrail_events};
use crate::given::{array, buffer, fill, give, handle, place, timeout};
use crate::region::kvrail_region;
use crate::status::{Fault, free, guard, guard_value, kvrail_status};

/// `kvrail_lease_grant`: the holder may write.
pub const KVRAIL_ACCESS_WRITE: u32 = 0;
/// `kvrail_lease_grant`: the holder may read.
pub const KVRAIL_ACCESS_READ: u32 = 1;

/// A range of a region.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct kvrail_range {
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
}

/// Memory that is lent. Freeing the handle revokes the lease and does not wait for its fence.
pub struct kvrail_lease {
    lease: Arc<Lease>,
    watched: Watched,
}

/// The right to a lease of some engine.
pub struct kvrail_ticket(pub(crate) LeaseTicket);

/// Lends ranges of a region for `ttl_ms` milliseconds.
///
/// # Safety
/// `ranges` must hold `count` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_lease_grant(
    engine: Option<&kvrail_engine>,
    region: Option<&kvrail_region>,
    ranges: *const kvrail_range,
    count: usize,
    access: u32,
    ttl_ms: u64,
    lease: Option<&mut MaybeUninit<*mut kvrail_lease>>,
) -> kvrail_status {
    guard(|| {
        let (engine, region) = (handle(engine, "engine")?, handle(region, "region")?);
        let lease = place(lease, "lease")?;
        let access = match access {
            KVRAIL_ACCESS_WRITE => Access::Write,
            KVRAIL_ACCESS_READ => Access::Read,
            _ => return Err(Fault::argument("access", "is neither KVRAIL_ACCESS_WRITE nor KVRAIL_ACCESS_READ")),
        };
        // SAFETY: the caller's promise.
        let ranges = unsafe { array(ranges, count, "ranges") }?;
        let ranges = ranges.iter().map(|range| ByteRange { offset: range.offset, len: range.len }).collect();
        let ttl = Duration::from_millis(ttl_ms);
        let granted = engine.engine.grant(LeaseRequest { region: &region.0, ranges, access, ttl })?;
        give(lease, kvrail_lease { lease: Arc::new(granted), watched: Watched::default() });
        Ok(Code::Ok)
    })
}

/// The ticket, as bytes. `len` gets their number, also where `capacity` is too small for them and nothing is written.
///
/// # Safety
/// `bytes` must be writable for `capacity` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_lease_ticket(
    lease: Option<&kvrail_lease>,
    bytes: *mut u8,
    capacity: usize,
    len: Option<&mut MaybeUninit<usize>>,
) -> kvrail_status {
    guard(|| {
        let (lease, len) = (handle(lease, "lease")?, place(len, "len")?);
        let ticket = lease.lease.ticket().to_bytes();
        len.write(ticket.len());
        if capacity < ticket.len() {
            return Err(Fault::new(Code::TooSmall, format!("bytes: {} are wanted", ticket.len())));
        }
        // SAFETY: the caller's promise.
        fill(unsafe { buffer(bytes, capacity, "bytes") }?, &ticket);
        Ok(Code::Ok)
    })
}

/// Ends the lease, and waits until no byte can land under it any more; pending if that takes longer than the bound.
/// `bytes_landed`, if it is given, gets the payload bytes that have landed under it so far.
#[unsafe(no_mangle)]
pub extern "C" fn kvrail_lease_revoke(
    lease: Option<&kvrail_lease>,
    timeout_ms: i64,
    bytes_landed: Option<&mut MaybeUninit<u64>>,
) -> kvrail_status {
    guard(|| {
        let lease = &handle(lease, "lease")?.lease;
        lease.begin_revoke();
        let fenced = wait(pin!(lease.fenced()), timeout(timeout_ms));
        if let Some(place) = bytes_landed {
            place.write(fenced.map_or_else(|| lease.bytes_landed(), |fenced| fenced.bytes_landed));
        }
        Ok(fenced.map_or(Code::Pending, |_| Code::Ok))
    })
}

/// Payload bytes that have landed under it.
#[unsafe(no_mangle)]
pub extern "C" fn kvrail_lease_bytes_landed(lease: Option<&kvrail_lease>) -> u64 {
    guard_value(lease, 0, |lease| lease.lease.bytes_landed())
}

/// Not 0 when it has ended, by revocation or by its time.
#[unsafe(no_mangle)]
pub extern "C" fn kvrail_lease_is_over(lease: Option<&kvrail_lease>) -> i32 {
    guard_value(lease, 1, |lease| lease.lease.is_over().into())
}

/// Puts `token` into `events` when the lease has ended and is fenced, whoever ended it.
#[unsafe(no_mangle)]
pub extern "C" fn kvrail_lease_watch(
    lease: Option<&kvrail_lease>,
    events: Option<&kvrail_events>,
    token: u64,
) -> kvrail_status {
    guard(|| {
        let (handle, events) = (handle(lease, "lease")?, handle(events, "events")?);
        let lease = Arc::clone(&handle.lease);
        handle.watched.watch(events, token, async move {
            lease.fenced().await;
        });
        Ok(Code::Ok)
    })
}

/// Frees the handle; a lease that has not ended is revoked.
#[unsafe(no_mangle)]
pub extern "C" fn kvrail_lease_free(lease: Option<Box<kvrail_lease>>) {
    free(lease);
}

/// Reads a ticket.
///
/// # Safety
/// `bytes` must hold `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_ticket_read(
    bytes: *const u8,
    len: usize,
    ticket: Option<&mut MaybeUninit<*mut kvrail_ticket>>,
) -> kvrail_status {
    guard(|| {
        let ticket = place(ticket, "ticket")?;
        // SAFETY: the caller's promise.
        let read = LeaseTicket::from_bytes(unsafe { array(bytes, len, "bytes") }?)?;
        give(ticket, kvrail_ticket(read));
        Ok(Code::Ok)
    })
}

/// Generation of the engine that lends; 0 for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn kvrail_ticket_generation(ticket: Option<&kvrail_ticket>) -> u64 {
    guard_value(ticket, 0, |ticket| ticket.0.generation())
}

/// Frees the handle.
#[unsafe(no_mangle)]
pub extern "C" fn kvrail_ticket_free(ticket: Option<Box<kvrail_ticket>>) {
    free(ticket);
}
