//! Checking a request before it is planned: shape, bounds, lease, direction, peer.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::core::{Core, kind_of};
use crate::gpu;
use crate::notify::NOTIFY_BYTES_MAX;
use crate::plan::{Direction, Op, RailId, Request};
use crate::session::peer::Session;
use crate::session::{Access, LeaseTicket};
use crate::telemetry::Fallback;
use crate::transfer::{SubmitError, Transfer, TransferRequest};
use crate::transport::{Job, TransportKind};

/// Whether all runs of the op's remote side lie in the lent ranges.
fn is_lent(ticket: &LeaseTicket, op: &Op) -> bool {
    let remote = &op.remote;
    let Some(extent) = remote.extent() else { return false };
    if extent.is_empty() || ticket.covers(extent.start, extent.end - extent.start) {
        return true;
    }
    // Runs lie apart, or the op would have been covered whole; each in a range, and ranges are no more than a ticket holds.
    (0..u64::from(remote.count)).all(|n| ticket.covers(remote.offset + remote.stride * n, remote.len))
}

pub(crate) fn submit(
    core: &Arc<Core>,
    session: &Arc<Session>,
    request: TransferRequest<'_>,
) -> Result<Transfer, SubmitError> {
    if core.stopping.load(Ordering::Acquire) {
        return Err(SubmitError::Stopped);
    }
    if !session.is_alive() {
        return Err(SubmitError::PeerLost);
    }
    let TransferRequest { region, ticket, direction, ops, class, tenant, deadline, checksum, notify } = request;
    if ticket.generation != session.generation {
        return Err(SubmitError::WrongPeer { ticket: ticket.generation, peer: session.generation });
    }
    let access = match direction {
        Direction::Write => Access::Write,
        Direction::Read => Access::Read,
    };
    if ticket.access != access {
        return Err(SubmitError::WrongAccess);
    }
    if let Some(payload) = notify.as_ref().filter(|p| p.len() > NOTIFY_BYTES_MAX) {
        return Err(SubmitError::NotifyTooLong { given: payload.len(), limit: NOTIFY_BYTES_MAX });
    }
    let (local_bytes, remote_bytes) = (region.len() as u64, u64::MAX);
    let mut bytes = 0u64;
    for (index, op) in ops.iter().enumerate() {
        op.check(local_bytes, remote_bytes).map_err(|source| SubmitError::BadOp { index, source })?;
        if !is_lent(ticket, op) {
            return Err(SubmitError::OutsideLease { index });
        }
        bytes = bytes.saturating_add(op.bytes());
    }
    // Shared memory wants the memfd of the side that the bytes come from.
    let shared = match direction {
        Direction::Write => region.share().is_some(),
        Direction::Read => ticket.shared,
    };
    if !shared && session.kinds.contains(&TransportKind::Shm) {
        if session.kinds.len() == 1 {
            return Err(SubmitError::PrivateMemory);
        }
        session.falls_back(Fallback::PrivateMemory, &core.counters);
    }
    // Where no NIC reaches a device's memory it is staged, which sockets can.
    let staged = ticket.staged || gpu::is_staged(region);
    if staged && session.kinds.contains(&TransportKind::Rdma) {
        session.falls_back(Fallback::Staged, &core.counters);
    }
    let distance = (!shared || staged).then(|| {
        let kinds = (0..RailId::MAX_RAILS as u8).map(|rail| kind_of(RailId(rail)).0);
        let is_out = |kind| match kind {
            TransportKind::Shm => !shared,
            TransportKind::Rdma | TransportKind::Sim => staged,
            TransportKind::Tcp => false,
        };
        kinds.map(|kind| if is_out(kind) { u32::MAX } else { 0 }).collect::<Arc<[u32]>>()
    });
    let job = Arc::new(Job {
        region: region.clone(),
        generation: ticket.generation,
        lease: ticket.lease,
        key: ticket.key,
        checksum: checksum.unwrap_or(core.config.checksum),
    });
    let due = core.time(deadline);
    let (peer, deadline_at) = (session.peer, deadline);
    let checksum = job.checksum;
    let request =
        Request { peer, direction, ops, local_bytes, remote_bytes, class, tenant, deadline: due, checksum, distance };
    let (id, shared) = core.submit(session, request, bytes, job, notify, deadline_at)?;
    let engine = Arc::clone(core);
    Ok(Transfer::new(shared, id, bytes, engine))
}
