//! Parts of messages, as bytes.

use crate::core::STREAMS_MAX;
use crate::plan::{Demand, Limit, PortId, TenantId};
use crate::session::codec::{DecodeError, Reader, Writer};
use crate::session::ports::PORTS;
use crate::session::wire::{Borrow, Check, HostId, Identity, StreamId};
use crate::transport::TransportKind;
use crate::transport::onesided::Key;

/// Counts of bytes are below it.
pub(super) const BYTES_END: u64 = 1 << 62;

pub(super) fn kind_byte(kind: TransportKind) -> u8 {
    match kind {
        TransportKind::Shm => 0,
        TransportKind::Tcp => 1,
        TransportKind::Sim => 2,
        TransportKind::Rdma => 3,
    }
}

pub(super) fn kind_of(byte: u8) -> Result<TransportKind, DecodeError> {
    match byte {
        0 => Ok(TransportKind::Shm),
        1 => Ok(TransportKind::Tcp),
        2 => Ok(TransportKind::Sim),
        3 => Ok(TransportKind::Rdma),
        _ => Err(DecodeError),
    }
}

/// The bit of a transport in [`Identity::transports`].
pub(crate) fn transport_bit(kind: TransportKind) -> u8 {
    1 << kind_byte(kind)
}

pub(super) fn put_identity(w: &mut Writer, me: &Identity) {
    w.u64(me.generation);
    w.raw(&me.host.boot);
    w.u32(me.host.user);
    w.u16(me.port);
    w.u8(me.transports);
    w.u8(me.streams);
}

pub(super) fn take_identity(r: &mut Reader<'_>) -> Result<Identity, DecodeError> {
    Ok(Identity {
        generation: r.u64()?,
        host: HostId { boot: r.array()?, user: r.u32()? },
        port: r.u16()?,
        transports: r.u8()?,
        streams: r.u8()?,
    })
}

pub(super) fn put_stream(w: &mut Writer, stream: &StreamId) {
    w.u8(kind_byte(stream.kind));
    w.u8(stream.index);
    w.u32(stream.incarnation);
}

pub(super) fn take_stream(r: &mut Reader<'_>) -> Result<StreamId, DecodeError> {
    Ok(StreamId { kind: kind_of(r.u8()?)?, index: take_index(r)?, incarnation: r.u32()? })
}

/// Number of a stream: there are only so many of a transport.
pub(super) fn take_index(r: &mut Reader<'_>) -> Result<u8, DecodeError> {
    let index = r.u8()?;
    if index < STREAMS_MAX { Ok(index) } else { Err(DecodeError) }
}

pub(super) fn put_check(w: &mut Writer, check: &Check) {
    w.u64(check.id);
    w.u64(check.generation);
    w.u64(check.lease);
    w.u64(check.key);
    w.u8(u8::from(check.read) | u8::from(check.crc.is_some()) << 1);
    w.u32(check.crc.unwrap_or(0));
    w.u16(check.ranges.len() as u16);
    for (offset, len) in &check.ranges {
        w.u64(*offset);
        w.u32(*len);
    }
}

pub(super) fn take_check(r: &mut Reader<'_>) -> Result<Check, DecodeError> {
    let (id, generation, lease, key) = (r.u64()?, r.u64()?, r.u64()?, r.u64()?);
    let (flags, crc) = (r.u8()?, r.u32()?);
    // The list ends with the body, or this does, by its error.
    let ranges = (0..r.u16()?).map(|_| Ok((r.u64()?, r.u32()?))).collect::<Result<_, DecodeError>>()?;
    Ok(Check { id, generation, lease, key, read: flags & 1 != 0, crc: (flags & 2 != 0).then_some(crc), ranges })
}

pub(super) fn take_port(r: &mut Reader<'_>) -> Result<PortId, DecodeError> {
    let port = r.u8()?;
    if port < PORTS { Ok(PortId(port)) } else { Err(DecodeError) }
}

pub(super) fn take_demand(r: &mut Reader<'_>) -> Result<Demand, DecodeError> {
    let (sequence, epoch) = (r.u64()?, r.u32()?);
    let (used, settled, lost, wanted) = (r.u64()?, r.u64()?, r.u64()?, r.u64()?);
    if lost <= settled && settled <= used && used <= wanted && wanted < BYTES_END {
        Ok(Demand { sequence, epoch, used, settled, lost, wanted, tenant: TenantId(r.u32()?) })
    } else {
        Err(DecodeError)
    }
}

pub(super) fn take_limit(r: &mut Reader<'_>) -> Result<Limit, DecodeError> {
    let limit = Limit { epoch: r.u32()?, total: r.u64()?, quantum: r.u32()?, at_once: r.u32()? };
    if limit.total < BYTES_END || limit.total == Limit::NONE { Ok(limit) } else { Err(DecodeError) }
}

pub(super) fn take_borrow(r: &mut Reader<'_>) -> Result<Borrow, DecodeError> {
    Ok(Borrow { generation: r.u64()?, lease: r.u64()?, key: r.u64()?, read: r.u8()? != 0 })
}

pub(super) fn take_keys(r: &mut Reader<'_>) -> Result<Vec<Key>, DecodeError> {
    // The list ends with the body, or this does, by its error.
    (0..r.u16()?).map(|_| Ok(Key { offset: r.u64()?, len: r.u64()?, key: r.u32()?, address: r.u64()? })).collect()
}
