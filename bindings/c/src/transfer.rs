//! Transfers: descriptors, submitting, waiting, reports.

use std::mem::MaybeUninit;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::kvrail_transfer::{Class, Direction, Op, Report, Strided, TenantId, Transfer, TransferRequest};
use bytes::Bytes;
use kvrail_bindings::{Code, op_code, wait};

use crate::engine::kvrail_engine;
use crate::events::{Watched, kvrail_events};
use crate::given::{array, buffer, fill, give, handle, place, timeout};
use crate::lease::kvrail_ticket;
use crate::peer::kvrail_peer;
use crate::region::kvrail_region;
use crate::status::{Fault, free, guard, guard_value, kvrail_status};

/// `kvrail_request.direction`: local to remote.
pub const KVRAIL_WRITE: u32 = 0;
/// `kvrail_request.direction`: remote to local.
pub const KVRAIL_READ: u32 = 1;
/// `kvrail_request.transfer_class`: KV cache that a request waits for.
pub const KVRAIL_CLASS_KV: u32 = 0;
/// `kvrail_request.transfer_class`: small and urgent, before all others.
pub const KVRAIL_CLASS_CONTROL: u32 = 1;
/// `kvrail_request.transfer_class`: prefixes copied ahead of demand.
pub const KVRAIL_CLASS_REPLICATION: u32 = 2;
/// `kvrail_request.transfer_class`: model weights.
pub const KVRAIL_CLASS_WEIGHTS: u32 = 3;
/// `kvrail_request.checksum`: as the engine is set.
pub const KVRAIL_CHECKSUM_DEFAULT: i32 = -1;

/// One side of a descriptor: `count` runs of `len` bytes, `stride` bytes from start to start.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct kvrail_strided {
    /// Bytes from the region's start to the first run.
    pub offset: u64,
    /// Bytes of one run.
    pub len: u64,
    /// Bytes from the start of one run to the start of the next; of no meaning for one run.
    pub stride: u64,
    /// Number of runs.
    pub count: u32,
    /// Zero.
    pub reserved: u32,
}

/// A descriptor: the same run length and count on both sides.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct kvrail_op {
    /// In the caller's region.
    pub local: kvrail_strided,
    /// In the lessor's region.
    pub remote: kvrail_strided,
}

/// A list of descriptors that is prepared once and submitted many times.
pub struct kvrail_ops(Arc<Vec<Op>>);

/// What is to be moved.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct kvrail_request {
    /// `sizeof(kvrail_request)` of the caller.
    pub size: u32,
    /// `KVRAIL_WRITE` or `KVRAIL_READ`.
    pub direction: u32,
    /// Local memory.
    pub region: *const kvrail_region,
    /// The right to the remote memory.
    pub ticket: *const kvrail_ticket,
    /// What moves.
    pub ops: *const kvrail_ops,
    /// When the report is due at the latest, milliseconds from now; 0 is ten seconds.
    pub deadline_ms: u64,
    /// One of `KVRAIL_CLASS_…`.
    pub transfer_class: u32,
    /// For whom; 0 is everybody who is not told apart.
    pub tenant: u32,
    /// 1 or 0, or `KVRAIL_CHECKSUM_DEFAULT`.
    pub checksum: i32,
    /// Bytes of `notification`.
    pub notification_len: u32,
    /// Delivered to the peer once all bytes are visible there; NULL for none.
    pub notification: *const u8,
}

/// How a transfer ended.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct kvrail_report {
    /// As `kvrail_transfer_wait` says it.
    pub status: kvrail_status,
    /// Not 0: the local memory may be used again. Otherwise wait for `kvrail_transfer_quiesce`.
    pub memory_is_free: u32,
    /// Payload bytes that landed, each counted once.
    pub bytes: u64,
    /// Bytes that were sent again.
    pub retried_bytes: u64,
    /// From submission to the first slice on the wire, nanoseconds.
    pub queued_ns: u64,
    /// From there to the last slice visible, nanoseconds.
    pub wire_ns: u64,
    /// Descriptors of the request.
    pub ops: u64,
}

/// A transfer under way. Freeing the handle cancels what has not been sent.
pub struct kvrail_transfer {
    transfer: Transfer,
    watched: Watched,
}

fn strided(side: &kvrail_strided) -> Strided {
    Strided { offset: side.offset, len: side.len, stride: side.stride, count: side.count }
}

/// Prepares a list.
///
/// # Safety
/// `ops` must hold `count` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_ops_new(
    ops: *const kvrail_op,
    count: usize,
    list: Option<&mut MaybeUninit<*mut kvrail_ops>>,
) -> kvrail_status {
    guard(|| {
        let list = place(list, "list")?;
        // SAFETY: the caller's promise.
        let ops = unsafe { array(ops, count, "ops") }?;
        let ops = ops.iter().map(|op| Op { local: strided(&op.local), remote: strided(&op.remote) }).collect();
        give(list, kvrail_ops(Arc::new(ops)));
        Ok(Code::Ok)
    })
}

/// Frees the handle; transfers that use the list keep it.
#[unsafe(no_mangle)]
pub extern "C" fn kvrail_ops_free(list: Option<Box<kvrail_ops>>) {
    free(list);
}

/// Accepts a transfer, or refuses it; never blocks.
///
/// # Safety
/// The handles in `request` must be live, and `notification` hold `notification_len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_submit(
    engine: Option<&kvrail_engine>,
    peer: Option<&kvrail_peer>,
    request: Option<&kvrail_request>,
    transfer: Option<&mut MaybeUninit<*mut kvrail_transfer>>,
) -> kvrail_status {
    guard(|| {
        let (engine, peer) = (handle(engine, "engine")?, handle(peer, "peer")?);
        let (request, transfer) = (handle(request, "request")?, place(transfer, "transfer")?);
        if request.size as usize != size_of::<kvrail_request>() {
            return Err(Fault::argument("request.size", "is not sizeof(kvrail_request)"));
        }
        // SAFETY: the caller's promise: NULL, or a live handle.
        let (region, ticket, ops) = unsafe { (request.region.as_ref(), request.ticket.as_ref(), request.ops.as_ref()) };
        let (region, ticket) = (handle(region, "request.region")?, handle(ticket, "request.ticket")?);
        let ops = Arc::clone(&handle(ops, "request.ops")?.0);
        let direction = match request.direction {
            KVRAIL_WRITE => Direction::Write,
            KVRAIL_READ => Direction::Read,
            _ => return Err(Fault::argument("request.direction", "is neither KVRAIL_WRITE nor KVRAIL_READ")),
        };
        let class = match request.transfer_class {
            KVRAIL_CLASS_KV => Class::KvHandoff,
            KVRAIL_CLASS_CONTROL => Class::Control,
            KVRAIL_CLASS_REPLICATION => Class::Replication,
            KVRAIL_CLASS_WEIGHTS => Class::Weights,
            _ => return Err(Fault::argument("request.transfer_class", "is no KVRAIL_CLASS_…")),
        };
        let len = request.notification_len as usize;
        // SAFETY: the caller's promise.
        let notification = unsafe { array(request.notification, len, "request.notification") }?;
        let notify = (!request.notification.is_null()).then(|| Bytes::copy_from_slice(notification));
        let due = Duration::from_millis(if request.deadline_ms == 0 { 10_000 } else { request.deadline_ms });
        let deadline = Instant::now()
            .checked_add(due)
            .ok_or_else(|| Fault::argument("request.deadline_ms", "is past the end of time"))?;
        let submitted = engine.engine.submit(
            &peer.0,
            TransferRequest {
                region: &region.0,
                ticket: &ticket.0,
                direction,
                ops,
                class,
                tenant: TenantId(request.tenant),
                deadline,
                checksum: (request.checksum >= 0).then_some(request.checksum != 0),
                notify,
            },
        )?;
        give(transfer, kvrail_transfer { transfer: submitted, watched: Watched::default() });
        Ok(Code::Ok)
    })
}

/// How the transfer ended, as a status with its text.
fn ended(report: &Report) -> Result<Code, Fault> {
    match &report.status {
        Ok(()) => Ok(Code::Ok),
        Err(error) => Err(Fault::from(*error)),
    }
}

/// Waits for the end of the transfer: OK when all bytes are visible, pending when the bound came first, else why it failed.
/// A bound of 0 only looks.
#[unsafe(no_mangle)]
pub extern "C" fn kvrail_transfer_wait(transfer: Option<&kvrail_transfer>, timeout_ms: i64) -> kvrail_status {
    guard(|| {
        let transfer = &handle(transfer, "transfer")?.transfer;
        if timeout_ms != 0 {
            transfer.drive();
        }
        if !transfer.is_done() && wait(pin!(transfer.finished()), timeout(timeout_ms)).is_none() {
            return Ok(Code::Pending);
        }
        transfer.report().as_ref().map_or(Ok(Code::Pending), ended)
    })
}

/// Stops what has not been sent.
#[unsafe(no_mangle)]
pub extern "C" fn kvrail_transfer_cancel(transfer: Option<&kvrail_transfer>) {
    guard_value(transfer, (), |transfer| transfer.transfer.cancel());
}

/// Waits until nothing of the transfer can touch local memory any more; pending when the bound came first.
#[unsafe(no_mangle)]
pub extern "C" fn kvrail_transfer_quiesce(transfer: Option<&kvrail_transfer>, timeout_ms: i64) -> kvrail_status {
    guard(|| {
        let quiesce = pin!(handle(transfer, "transfer")?.transfer.quiesce());
        Ok(wait(quiesce, timeout(timeout_ms)).map_or(Code::Pending, |()| Code::Ok))
    })
}

/// How the transfer ended; pending while it has not.
#[unsafe(no_mangle)]
pub extern "C" fn kvrail_transfer_report(
    transfer: Option<&kvrail_transfer>,
    report: Option<&mut MaybeUninit<kvrail_report>>,
) -> kvrail_status {
    guard(|| {
        let (transfer, place) = (&handle(transfer, "transfer")?.transfer, place(report, "report")?);
        let Some(report) = transfer.report() else { return Ok(Code::Pending) };
        let nanos = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        place.write(kvrail_report {
            status: report.status.as_ref().err().map_or(Code::Ok, Code::from) as kvrail_status,
            memory_is_free: report.status.as_ref().err().is_none_or(|error| error.memory_is_free()).into(),
            bytes: report.bytes,
            retried_bytes: report.retried_bytes,
            queued_ns: nanos(report.queued),
            wire_ns: nanos(report.wire),
            ops: report.ops.len() as u64,
        });
        Ok(Code::Ok)
    })
}

/// How each op ended, one byte each, in order; pending while the transfer has not. `count` gets their number, also where
/// `capacity` is too small for all and only the first are written.
///
/// # Safety
/// `statuses` must be writable for `capacity` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_transfer_ops(
    transfer: Option<&kvrail_transfer>,
    statuses: *mut u8,
    capacity: usize,
    count: Option<&mut MaybeUninit<usize>>,
) -> kvrail_status {
    guard(|| {
        let (transfer, count) = (&handle(transfer, "transfer")?.transfer, place(count, "count")?);
        let Some(report) = transfer.report() else { return Ok(Code::Pending) };
        let codes: Vec<u8> = report.ops.iter().map(|status| op_code(*status)).collect();
        count.write(codes.len());
        // SAFETY: the caller's promise.
        if !fill(unsafe { buffer(statuses, capacity, "statuses") }?, &codes) {
            return Err(Fault::new(Code::TooSmall, format!("statuses: {} are there", codes.len())));
        }
        Ok(Code::Ok)
    })
}

/// Puts `token` into `events` when the transfer has ended.
#[unsafe(no_mangle)]
pub extern "C" fn kvrail_transfer_watch(
    transfer: Option<&kvrail_transfer>,
    events: Option<&kvrail_events>,
    token: u64,
) -> kvrail_status {
    guard(|| {
        let (transfer, events) = (handle(transfer, "transfer")?, handle(events, "events")?);
        transfer.watched.watch(events, token, transfer.transfer.finished());
        Ok(Code::Ok)
    })
}

/// Frees the handle; a transfer that has not ended is cancelled. The engine keeps its region until nothing can touch it.
#[unsafe(no_mangle)]
pub extern "C" fn kvrail_transfer_free(transfer: Option<Box<kvrail_transfer>>) {
    free(transfer);
}
