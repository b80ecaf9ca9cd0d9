//! A transfer as its caller sees it: a future of its report, a way to cancel it, and the word that memory is free again.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::memory::Region;
use crate::plan::{Cause, Class, Direction, Failure, Op, OpError, OpStatus, Refusal, TenantId, TransferId};
use crate::session::LeaseTicket;
use crate::sync::{Event, Wait};
use crate::transport::TransportKind;

/// What [`Engine::submit`](crate::Engine::submit) is asked for.
#[derive(Clone, Debug)]
pub struct TransferRequest<'a> {
    /// Local memory; `local` offsets of the ops are in it.
    pub region: &'a Region,
    /// The right to the remote memory; `remote` offsets of the ops are in the lessor's region.
    pub ticket: &'a LeaseTicket,
    /// Which way the bytes go.
    pub direction: Direction,
    /// What moves. A list can be prepared once and submitted many times.
    pub ops: Arc<Vec<Op>>,
    /// What for: it decides who goes first.
    pub class: Class,
    /// For whom.
    pub tenant: TenantId,
    /// When the report is due at the latest.
    pub deadline: Instant,
    /// CRC32 over each slice, checked where it lands; `None` takes the engine's setting.
    pub checksum: Option<bool>,
    /// Delivered to the peer's [`Notifications`](crate::Notifications) once all bytes are visible there.
    pub notify: Option<Bytes>,
}

impl<'a> TransferRequest<'a> {
    /// A KV hand-off without options, due in ten seconds.
    #[must_use]
    pub fn new(region: &'a Region, ticket: &'a LeaseTicket, direction: Direction, ops: Vec<Op>) -> Self {
        Self {
            region,
            ticket,
            direction,
            ops: Arc::new(ops),
            class: Class::KvHandoff,
            tenant: TenantId::default(),
            deadline: Instant::now() + Duration::from_secs(10),
            checksum: None,
            notify: None,
        }
    }
}

/// Why a transfer was not accepted. Nothing was posted: the memory is free.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// A descriptor is wrong.
    #[error("op {index}: {source}")]
    BadOp {
        /// Its place in the list.
        index: usize,
        /// What is wrong.
        source: OpError,
    },
    /// A descriptor reaches outside the ranges of the lease.
    #[error("op {index} lies outside the lent ranges")]
    OutsideLease {
        /// Its place in the list.
        index: usize,
    },
    /// A write under a read lease or the other way round.
    #[error("the lease does not allow this direction")]
    WrongAccess,
    /// The lease was granted by another engine than this peer, or by this one before it restarted.
    #[error("the ticket is of engine generation {ticket:#x}, the peer is {peer:#x}")]
    WrongPeer {
        /// Generation in the ticket.
        ticket: u64,
        /// Generation of the peer.
        peer: u64,
    },
    /// The notification is too long.
    #[error("a notification of {given} bytes, at most {limit} fit")]
    NotifyTooLong {
        /// Its length in bytes.
        given: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// A bound would be passed; try again when something has ended.
    #[error("would exceed the limit of {limit} {what}")]
    WouldExceed {
        /// Of what.
        what: &'static str,
        /// The bound.
        limit: u64,
    },
    /// Only shared memory joins the two, and the bytes come from memory that is private to its process.
    #[error("shared memory is the only transport with this peer, and the memory that the bytes come from is private")]
    PrivateMemory,
    /// It could not end before its deadline.
    #[error("the deadline cannot be met")]
    Hopeless,
    /// The device has not passed the mark that the transfer comes after.
    #[error("the device has not come so far")]
    NotReady,
    /// The device has failed.
    #[error("the device has failed: {0}")]
    Device(kvrail_cuda::Error),
    /// The peer is gone; connect again.
    #[error("the peer is gone")]
    PeerLost,
    /// The engine has been shut down.
    #[error("the engine is shut down")]
    Stopped,
}

impl From<crate::plan::SubmitError> for SubmitError {
    fn from(error: crate::plan::SubmitError) -> Self {
        use crate::plan::SubmitError as Plan;
        match error {
            Plan::BadOp { index, source } => Self::BadOp { index, source },
            Plan::WouldExceed { what, limit } => Self::WouldExceed { what, limit },
            Plan::Hopeless => Self::Hopeless,
            Plan::PeerLost => Self::PeerLost,
        }
    }
}

/// Why a transfer failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FailureKind {
    /// What the planner says: a fault that no path was left for, a refusal by the owner, the deadline, the caller.
    #[error(transparent)]
    Transfer(#[from] Failure),
    /// All bytes are visible at the peer, but its notification queue was full.
    #[error("the peer's notification queue is full")]
    NotifyRefused,
    /// The engine was shut down.
    #[error("the engine is shut down")]
    Stopped,
}

/// Why a transfer failed, and whether its local memory may be used again already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind}{}", if *memory_is_free { "" } else { " (memory still lent)" })]
pub struct TransferError {
    pub(crate) kind: FailureKind,
    pub(crate) memory_is_free: bool,
}

impl TransferError {
    /// The reason.
    #[must_use]
    pub fn kind(&self) -> FailureKind {
        self.kind
    }

    /// Whether the local memory may be reused now. Otherwise something may still read it (write) or land in it (read),
    /// until [`Transfer::quiesce`] resolves.
    #[must_use]
    pub fn memory_is_free(&self) -> bool {
        self.memory_is_free
    }

    /// The lease was gone when the owner looked: a read's bytes must not be believed, a write did not land.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        self.kind == FailureKind::Transfer(Failure::Fault(Cause::Refused(Refusal::Stale)))
    }

    /// The peer died or the session with it broke.
    #[must_use]
    pub fn is_peer_lost(&self) -> bool {
        self.kind == FailureKind::Transfer(Failure::Fault(Cause::PeerLost))
    }

    /// It did not end in time.
    #[must_use]
    pub fn is_deadline(&self) -> bool {
        matches!(self.kind, FailureKind::Transfer(Failure::Deadline | Failure::Hopeless))
    }

    /// It was cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.kind == FailureKind::Transfer(Failure::Cancelled)
    }
}

/// How a transfer ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// All bytes are visible, or why not.
    pub status: Result<(), TransferError>,
    /// One for each op, in order.
    pub ops: Vec<OpStatus>,
    /// Payload bytes that landed, each counted once.
    pub bytes: u64,
    /// Bytes that were sent again after a failed attempt.
    pub retried_bytes: u64,
    /// Landed bytes by rail.
    pub bytes_by_rail: Vec<RailBytes>,
    /// From submission to the first slice on the wire.
    pub queued: Duration,
    /// From the first slice on the wire to the last one visible.
    pub wire: Duration,
    /// When the engine heard that the last slice is visible; `None` if none is.
    pub last_landed: Option<Instant>,
}

/// Bytes that one rail moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RailBytes {
    /// By what transport.
    pub transport: TransportKind,
    /// Number of the stream within it.
    pub stream: u8,
    /// Payload bytes that landed.
    pub bytes: u64,
}

/// Shared by the caller's handle and the engine.
#[derive(Default)]
pub(crate) struct Shared {
    report: Mutex<Option<Report>>,
    done: Arc<Event>,
    quiesced: Arc<Event>,
}

impl Shared {
    /// Gives the report; only the first counts.
    pub(crate) fn finish(&self, report: Report) {
        let mut slot = self.report.lock();
        if slot.is_none() {
            *slot = Some(report);
            drop(slot);
            self.done.set();
        }
    }

    pub(crate) fn quiesced(&self) {
        self.quiesced.set();
    }

    pub(crate) fn is_done(&self) -> bool {
        self.done.is_set()
    }

    /// The engine's threads have ended: nothing moves any more.
    pub(crate) fn stopped(&self) {
        self.quiesced();
        let status = Err(TransferError { kind: FailureKind::Stopped, memory_is_free: true });
        let (ops, bytes_by_rail) = (Vec::new(), Vec::new());
        let (queued, wire) = (Duration::ZERO, Duration::ZERO);
        self.finish(Report { status, ops, bytes: 0, retried_bytes: 0, bytes_by_rail, queued, wire, last_landed: None });
    }
}

/// The engine, as the handle of a transfer needs it.
pub(crate) trait Cancel: Send + Sync {
    /// Stops a transfer.
    fn cancel(&self, id: TransferId);

    /// Moves bytes on this thread until `done` is set, or nothing moves.
    fn drive(&self, done: &Event);
}

/// A transfer in flight: a future of its [`Report`].
///
/// Dropping it cancels what has not been sent. Cancelled or failed, its memory is free when [`quiesce`](Self::quiesce)
/// resolves and not before. The engine keeps the region mapped until then, whatever is dropped.
#[must_use = "dropping a transfer cancels it"]
pub struct Transfer {
    shared: Arc<Shared>,
    wait: Wait,
    id: TransferId,
    bytes: u64,
    canceller: Arc<dyn Cancel>,
}

impl Transfer {
    pub(crate) fn new(shared: Arc<Shared>, id: TransferId, bytes: u64, canceller: Arc<dyn Cancel>) -> Self {
        let wait = shared.done.wait();
        Self { shared, wait, id, bytes, canceller }
    }

    /// For a thread that is about to block until the report is there: has it move the bytes itself meanwhile, which spares a small transfer
    /// two thread switches. Returns when the report is there, when nothing has moved for [`EngineConfig::spin`](crate::EngineConfig::spin), after
    /// ten milliseconds of others' work; at once where the transfer is large and gains nothing. Wait as usual afterwards.
    ///
    /// ```no_run
    /// # use kvrail_transfer::{Report, Transfer};
    /// # fn example(transfer: Transfer, runtime: &tokio::runtime::Runtime) -> Report {
    /// transfer.drive();
    /// runtime.block_on(transfer)
    /// # }
    /// ```
    pub fn drive(&self) {
        if is_small(self.bytes) {
            self.canceller.drive(&self.shared.done);
        }
    }

    /// Stops it: what has not been handed to a path never will be. The report says `Cancelled`, unless it was done.
    pub fn cancel(&self) {
        if !self.shared.done.is_set() {
            self.canceller.cancel(self.id);
        }
    }

    /// Resolves when nothing of this transfer can touch local memory any more. Independent of this handle: take it
    /// before awaiting the report.
    pub fn quiesce(&self) -> Quiesce {
        Quiesce { wait: self.shared.quiesced.wait() }
    }

    /// Resolves when the report is there. Independent of this handle, like [`quiesce`](Self::quiesce): for callers that
    /// wait in several places, or elsewhere than where the handle is.
    pub fn finished(&self) -> Finished {
        Finished { wait: self.shared.done.wait() }
    }

    /// Whether the report is there.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.shared.done.is_set()
    }

    /// The report, if it is there, without a copy of it.
    #[must_use]
    pub fn into_report(self) -> Option<Report> {
        self.shared.report.lock().take()
    }

    /// The report, once it is there; as often as it is asked for.
    #[must_use]
    pub fn report(&self) -> Option<Report> {
        self.shared.report.lock().clone()
    }
}

impl Future for Transfer {
    type Output = Report;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Report> {
        match Pin::new(&mut self.wait).poll(cx) {
            Poll::Pending => Poll::Pending,
            // Set after the report was stored, and a report is never taken back.
            Poll::Ready(()) => self.shared.report.lock().clone().map_or(Poll::Pending, Poll::Ready),
        }
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        self.cancel();
    }
}

/// Whether switching threads takes a noticeable part of the time that so many bytes take.
pub(crate) fn is_small(bytes: u64) -> bool {
    bytes <= 256 << 10
}

/// Future of [`Transfer::quiesce`].
#[must_use = "futures do nothing unless awaited"]
pub struct Quiesce {
    wait: Wait,
}

/// Future of [`Transfer::finished`].
#[must_use = "futures do nothing unless awaited"]
pub struct Finished {
    wait: Wait,
}

impl Future for Finished {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.wait).poll(cx)
    }
}

impl Future for Quiesce {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.wait).poll(cx)
    }
}
