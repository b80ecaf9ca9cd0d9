//! Regions registered with NICs, part by part, on demand. What has been made lies with the region and goes before its mapping
//! does: so it is made once, for as long as there is something to reach.

use std::collections::BTreeMap;
use std::ptr::NonNull;

use kvrail_verbs::{Access, Error, MemoryRegion};
use parking_lot::Mutex;

use crate::memory::Region;
use crate::transport::onesided::Side;
use crate::transport::rdma::{CHUNK_BYTES, Nic};

/// What NICs have registered of one region, by NIC and part.
#[derive(Default)]
pub(crate) struct Registrations(Mutex<BTreeMap<(u64, u32), MemoryRegion>>);

impl Registrations {
    /// The key of a part, if it is registered with that NIC.
    pub(super) fn key(&self, nic: &Nic, chunk: u32, side: Side) -> Option<u32> {
        let made = self.0.lock();
        let region = made.get(&(nic.id, chunk))?;
        Some(if side == Side::Local { region.lkey() } else { region.rkey() })
    }
}

/// Registers a part, unless it is. Takes as long as its pages take to be there and to be pinned.
pub(super) fn register(region: &Region, nic: &Nic, chunk: u32) -> Result<(), Error> {
    let made = region.registrations();
    if made.key(nic, chunk, Side::Local).is_some() {
        return Ok(());
    }
    let start = u64::from(chunk) * CHUNK_BYTES;
    let bytes = (region.len() as u64).saturating_sub(start).min(CHUNK_BYTES);
    let place = region.mapping().at(start, bytes).and_then(NonNull::new);
    let (Some(place), 1..) = (place, bytes) else {
        return Err(Error::TooMuch { what: "part of a region", value: start, max: region.len() as u64 });
    };
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    // SAFETY: the registration is kept in the region itself and is dropped before the mapping is. The engine relies on no byte of
    // a region: they are shared with the outside, and contents are moved by raw copies alone (see `memory`).
    let registered = unsafe { nic.domain.register_at(place, bytes as usize, start, access) }?;
    made.0.lock().insert((nic.id, chunk), registered);
    Ok(())
}
