//! Regions registered with NICs, part by part, on demand. What has been made lies with the region and goes before its mapping
//! does: so it is made once, for as long as there is something to reach.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

use kvrail_cuda::DeviceMemory;
use kvrail_verbs::{Access, Error, MemoryRegion};
use parking_lot::Mutex;

use crate::gpu::{
    self,
    path::{NicFacts, Path},
};

use crate::memory::Region;
use crate::session::lease::{Access as LeaseAccess, ByteRange, LeaseState};
use crate::transport::onesided::{Key, Side};
use crate::transport::rdma::guard::{GUARDS_MAX, stretches};
use crate::transport::rdma::{CHUNK_BYTES, Nic};

/// A stretch of a lease, registered for it alone.
struct Guard {
    nic: u64,
    range: ByteRange,
    region: MemoryRegion,
    address: u64,
}

/// What NICs have registered of one region, by NIC and part.
#[derive(Default)]
pub(crate) struct Registrations {
    made: Mutex<BTreeMap<(u64, u32), MemoryRegion>>,
    /// Registered for one lease alone, by its key, until its fence.
    guards: Mutex<BTreeMap<u64, Vec<Guard>>>,
    /// NICs reach it on a device: what they write there may want a flush.
    on_device: AtomicBool,
}

impl Registrations {
    /// Whether NICs reach the region on a device.
    pub(crate) fn reach_device(&self) -> bool {
        self.on_device.load(Ordering::Acquire)
    }

    /// From here on they do.
    pub(crate) fn note_device(&self) {
        self.on_device.store(true, Ordering::Release);
    }

    /// Keys by which a NIC opens one lease, if they have been made.
    pub(super) fn guard(&self, nic: &Nic, lease: &LeaseState) -> Option<Vec<Key>> {
        let guards = self.guards.lock();
        let own = guards.get(&lease.key)?.iter().filter(|guard| guard.nic == nic.id);
        let keys = own.map(|Guard { range, region, address, .. }| Key {
            offset: range.offset,
            len: range.len,
            key: region.rkey(),
            address: *address,
        });
        Some(keys.collect::<Vec<_>>()).filter(|keys| !keys.is_empty())
    }

    /// A lease has ended: its keys open nothing.
    pub(crate) fn unguard(&self, lease: u64) {
        let ended = self.guards.lock().remove(&lease);
        // Outside of the lock: it takes a while.
        drop(ended);
    }

    /// The key of a part, if it is registered with that NIC.
    pub(super) fn key(&self, nic: &Nic, chunk: u32, side: Side) -> Option<u32> {
        let made = self.made.lock();
        let region = made.get(&(nic.id, chunk))?;
        Some(if side == Side::Local { region.lkey() } else { region.rkey() })
    }
}

/// Why memory is not registered.
#[derive(Debug, thiserror::Error)]
pub(super) enum RegisterError {
    #[error("verbs")]
    Verbs(#[from] Error),
    #[error("the device")]
    Device(#[from] kvrail_cuda::Error),
    #[error("no NIC reaches it: {0}")]
    Staged(String),
}

/// Registers a part (start and bytes) of a device's memory: through a DMA-BUF, or by its address where the kernel pins those.
fn register_device(
    memory: &DeviceMemory,
    nic: &Nic,
    (start, bytes): (u64, u64),
    access: Access,
) -> Result<MemoryRegion, RegisterError> {
    let choice = gpu::direct_by(memory, NicFacts { takes_dma_buf: nic.context.verbs().takes_dma_buf() });
    tracing::info!(nic = %nic.name, device = memory.device().pci(), path = %choice.path, lacks = choice.why(), "device memory");
    if choice.path == Path::Staged {
        return Err(RegisterError::Staged(choice.why()));
    }
    memory.share_with_nic()?;
    if choice.path == Path::DmaBuf {
        let exported = memory.export(start, bytes)?;
        let (fd, offset) = (exported.fd.as_fd(), exported.offset);
        // SAFETY: as for host memory: the registration goes before the memory does, and nobody relies on its content. The NIC's driver
        // keeps what it needs of the descriptor.
        return Ok(unsafe { nic.domain.register_dmabuf(fd, offset, bytes as usize, start, access) }?);
    }
    let address = memory.at(start, bytes).and_then(|at| NonNull::new(std::ptr::without_provenance_mut(at.0 as usize)));
    let address = address.ok_or(Error::TooMuch { what: "part of a region", value: start, max: memory.len() })?;
    // SAFETY: as above; the peer-memory module pins the address on the device.
    Ok(unsafe { nic.domain.register_at(address, bytes as usize, start, access) }?)
}

/// Registers what a lease is of, for it alone, with keys that allow what it does.
pub(super) fn guard(region: &Region, nic: &Nic, lease: &LeaseState) -> Result<(), RegisterError> {
    let made = region.registrations();
    if made.guard(nic, lease).is_some() {
        return Ok(());
    }
    let access = match lease.access {
        LeaseAccess::Write => Access::LOCAL_WRITE | Access::REMOTE_WRITE,
        LeaseAccess::Read => Access::REMOTE_READ,
    };
    let mut guards = Vec::new();
    for range in stretches(&lease.ranges, GUARDS_MAX, CHUNK_BYTES) {
        let registered = register_range(region, nic, (range.offset, range.len), access)?;
        guards.push(Guard { nic: nic.id, range, region: registered, address: seen_at(region, range.offset) });
    }
    made.guards.lock().entry(lease.key).or_default().extend(guards);
    Ok(())
}

/// Registers a part, unless it is. Takes as long as its pages take to be there and to be pinned.
pub(super) fn register(region: &Region, nic: &Nic, chunk: u32) -> Result<(), RegisterError> {
    let made = region.registrations();
    if made.key(nic, chunk, Side::Local).is_some() {
        return Ok(());
    }
    let start = u64::from(chunk) * CHUNK_BYTES;
    let bytes = (region.len() as u64).saturating_sub(start).min(CHUNK_BYTES);
    let outside = || Error::TooMuch { what: "part of a region", value: start, max: region.len() as u64 };
    if bytes == 0 {
        return Err(outside().into());
    }
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let registered = register_range(region, nic, (start, bytes), access)?;
    made.made.lock().insert((nic.id, chunk), registered);
    Ok(())
}

/// Where NICs see an offset of a region. Nothing but the page's own offset is added: a NIC's page and the memory's begin together, which
/// the kernel demands, and memory that somebody else allocated begins anywhere.
pub(super) fn seen_at(region: &Region, offset: u64) -> u64 {
    let base = region.at(0, 0).map_or(0, |base| base.addr());
    offset + (base % rustix::param::page_size()) as u64
}

/// Registers a range (start and bytes) of a region, to be kept with the region.
fn register_range(
    region: &Region,
    nic: &Nic,
    (start, bytes): (u64, u64),
    access: Access,
) -> Result<MemoryRegion, RegisterError> {
    if let Some(memory) = region.device_memory() {
        let registered = register_device(memory, nic, (start, bytes), access)?;
        region.registrations().note_device();
        return Ok(registered);
    }
    let outside = || Error::TooMuch { what: "part of a region", value: start, max: region.len() as u64 };
    let place = region.at(start, bytes).and_then(NonNull::new).ok_or_else(outside)?;
    // SAFETY: the registration is kept in the region itself and is dropped before the mapping is. The engine relies on no byte of
    // a region: they are shared with the outside, and contents are moved by raw copies alone (see `memory`).
    Ok(unsafe { nic.domain.register_at(place, bytes as usize, seen_at(region, start), access) }?)
}
