//! Device memory: allocated here, or somebody else's that is kept where it is; exported as DMA-BUF.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::device::Device;
use crate::driver::{DevicePtr, FlushScope, MemoryType, PointerFacts};
use crate::error::{Error, Refusal};
use crate::path::MemoryFacts;

/// Pages that an export is aligned to: the host's, which is what the driver asks for.
fn page() -> u64 {
    // SAFETY: asks for a constant of the system.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(bytes).unwrap_or(4096).max(4096)
}

/// How device memory was allocated, which decides what can be done with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocationKind {
    /// `cuMemAlloc`, `cudaMalloc`: everything can be done with it.
    Plain,
    /// From a pool (`cudaMallocAsync`): no IPC handle.
    Pool,
    /// Mapped by `cuMemMap` (expandable segments, say): no IPC handle, a DMA-BUF for each mapping.
    Virtual,
}

/// What keeps the bytes where they are.
enum Backing {
    /// Allocated here, freed with the last handle.
    Own,
    /// Somebody else's.
    Foreign { _owner: Box<dyn Send + Sync> },
}

struct Inner {
    base: DevicePtr,
    len: u64,
    /// Of the allocation that the range lies in.
    allocation: (DevicePtr, u64),
    facts: MemoryFacts,
    kind: AllocationKind,
    is_ipc_capable: bool,
    backing: Backing,
    device: Device,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if matches!(self.backing, Backing::Own) {
            // SAFETY: allocated in `allocate`, freed once. Copies hold a handle until they have ended; NICs deregister before.
            let freed = unsafe { self.device.driver().free(self.device.context(), self.base) };
            // Only a driver that is gone refuses, and the memory with it.
            drop(freed);
        }
    }
}

/// A range of device memory. Clones share it; the last one frees it, or lets go of its owner.
#[derive(Clone)]
pub struct DeviceMemory(Arc<Inner>);

/// A range exported as a DMA-BUF: whole pages, of which the range is a part.
#[derive(Debug)]
pub struct DmaBuf {
    /// What a NIC's driver imports.
    pub fd: OwnedFd,
    /// Where in it the range begins, in bytes.
    pub offset: u64,
}

impl Device {
    /// What the driver knows of an address; nothing is touched.
    ///
    /// # Errors
    /// What the driver says.
    pub fn pointer(&self, address: DevicePtr) -> Result<PointerFacts, Error> {
        self.driver().pointer(self.context(), address)
    }

    /// Allocates `len` bytes. They are not cleared.
    ///
    /// # Errors
    /// [`Refusal::Range`] for none; what the driver says: `CUDA_ERROR_OUT_OF_MEMORY`.
    pub fn allocate(&self, len: u64) -> Result<DeviceMemory, Error> {
        if len == 0 {
            return Err(Refusal::Range { address: DevicePtr(0), len }.into());
        }
        let base = self.driver().allocate(self.context(), len)?;
        // Own from here on: an error below frees it.
        let facts = MemoryFacts { kind: AllocationKind::Plain, is_rdma_capable: true, is_one_mapping: true };
        let mut inner = Inner {
            base,
            len,
            allocation: (base, len),
            facts,
            kind: AllocationKind::Plain,
            is_ipc_capable: true,
            backing: Backing::Own,
            device: self.clone(),
        };
        let pointer = self.driver().pointer(self.context(), base)?;
        inner.facts.is_rdma_capable = pointer.is_rdma_capable;
        inner.is_ipc_capable = pointer.is_ipc_capable;
        inner.allocation = pointer.allocation;
        Ok(DeviceMemory(Arc::new(inner)))
    }

    /// Takes `len` bytes that somebody else has allocated on this device, a framework's tensor say. No byte is copied, and none changes
    /// hands. `owner` is what keeps the memory allocated; it is dropped once, by whichever thread lets go of the last handle. Its drop
    /// must not block.
    ///
    /// # Safety
    /// For as long as `owner` lives the range stays allocated, and nobody else relies on its content while it is lent for writing.
    ///
    /// # Errors
    /// [`Error::Refused`] for what is no device memory, another device's, managed, or passes the end of its allocation; `owner` is
    /// dropped then.
    pub unsafe fn import(
        &self,
        address: DevicePtr,
        len: u64,
        owner: impl Send + Sync + 'static,
    ) -> Result<DeviceMemory, Error> {
        let last = len.checked_sub(1).and_then(|n| address.plus(n)).ok_or(Refusal::Range { address, len })?;
        let pointer = |at| self.driver().pointer(self.context(), at);
        let (first, end) = (pointer(address)?, pointer(last)?);
        for (at, facts) in [(address, &first), (last, &end)] {
            if facts.memory != MemoryType::Device {
                return Err(Refusal::NotDevice { address: at }.into());
            }
            if facts.is_managed {
                return Err(Refusal::Managed.into());
            }
            if facts.device != self.ordinal() {
                return Err(Refusal::OtherDevice { is: facts.device, wanted: self.ordinal() }.into());
            }
        }
        let (base, allocated) = first.allocation;
        let inside = address >= base && base.plus(allocated).is_some_and(|end| last < end);
        if !inside {
            return Err(Refusal::OutsideAllocation { address, len, base, allocated }.into());
        }
        let kind = match (first.is_pooled, first.is_ipc_capable) {
            (true, _) => AllocationKind::Pool,
            (false, true) => AllocationKind::Plain,
            (false, false) => AllocationKind::Virtual,
        };
        let facts = MemoryFacts {
            kind,
            is_rdma_capable: first.is_rdma_capable && end.is_rdma_capable,
            is_one_mapping: kind != AllocationKind::Virtual || first.mapping == end.mapping,
        };
        Ok(DeviceMemory(Arc::new(Inner {
            base: address,
            len,
            allocation: first.allocation,
            facts,
            kind,
            is_ipc_capable: first.is_ipc_capable,
            backing: Backing::Foreign { _owner: Box::new(owner) },
            device: self.clone(),
        })))
    }
}

impl DeviceMemory {
    /// Memory that another process has opened for us: see `ipc`.
    pub(crate) fn foreign(device: &Device, base: DevicePtr, len: u64, owner: impl Send + Sync + 'static) -> Self {
        Self(Arc::new(Inner {
            base,
            len,
            allocation: (base, len),
            // A NIC cannot register what was opened from another process by every driver; copies always work.
            facts: MemoryFacts { kind: AllocationKind::Plain, is_rdma_capable: false, is_one_mapping: true },
            kind: AllocationKind::Plain,
            is_ipc_capable: false,
            backing: Backing::Foreign { _owner: Box::new(owner) },
            device: device.clone(),
        }))
    }

    /// First byte. An address of the device: not to be dereferenced by the host.
    #[must_use]
    pub fn address(&self) -> DevicePtr {
        self.0.base
    }

    /// Length in bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> u64 {
        self.0.len
    }

    /// The device that it is on.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// How it was allocated.
    #[must_use]
    pub fn kind(&self) -> AllocationKind {
        self.0.kind
    }

    /// What matters of it for a NIC.
    #[must_use]
    pub fn facts(&self) -> &MemoryFacts {
        &self.0.facts
    }

    /// Start and bytes of the allocation that it lies in.
    #[must_use]
    pub fn allocation(&self) -> (DevicePtr, u64) {
        self.0.allocation
    }

    pub(crate) fn is_ipc_capable(&self) -> bool {
        self.0.is_ipc_capable
    }

    /// Address of `offset`, if the `len` bytes from there lie inside.
    #[must_use]
    pub fn at(&self, offset: u64, len: u64) -> Option<DevicePtr> {
        let end = offset.checked_add(len)?;
        if end > self.0.len { None } else { self.0.base.plus(offset) }
    }

    /// A part of it, judged as an import would be; it keeps the whole.
    ///
    /// # Errors
    /// As [`Device::import`].
    pub fn part(&self, offset: u64, len: u64) -> Result<Self, Error> {
        let address = self.at(offset, len).ok_or(Refusal::Range { address: self.0.base, len })?;
        // SAFETY: the part lies in the whole, which goes with it.
        unsafe { self.0.device.import(address, len, self.clone()) }
    }

    /// Exports a part as a DMA-BUF of whole pages. Each call makes a new descriptor, and each descriptor takes room in the device's BAR:
    /// one is enough for all NICs.
    ///
    /// # Errors
    /// [`Error::Refused`] where device or memory cannot; what the driver says.
    pub fn export(&self, offset: u64, len: u64) -> Result<DmaBuf, Error> {
        let outside = || Refusal::Range { address: self.0.base, len };
        let start = self.at(offset, len).filter(|_| len > 0).ok_or_else(outside)?.0;
        if !self.0.device.facts().has_dma_buf {
            return Err(Refusal::NoDmaBuf.into());
        }
        if !self.0.facts.is_rdma_capable {
            let what = "exported: it was not allocated for GPUDirect RDMA";
            return Err(match self.0.kind {
                AllocationKind::Pool => Refusal::Pool { what },
                _ => Refusal::Virtual { what },
            }
            .into());
        }
        if !self.0.facts.is_one_mapping {
            return Err(Refusal::ManyMappings.into());
        }
        let page = page();
        let first = start - start % page;
        let end = start.checked_add(len).and_then(|end| end.checked_next_multiple_of(page)).ok_or_else(outside)?;
        let device = &self.0.device;
        let fd = device.driver().dma_buf(device.context(), DevicePtr(first), end - first)?;
        Ok(DmaBuf { fd, offset: start - first })
    }

    /// Readies the allocation for a NIC that accesses it beside the driver: synchronous copies become synchronous in every case.
    ///
    /// # Errors
    /// What the driver says.
    pub fn share_with_nic(&self) -> Result<(), Error> {
        self.0.device.driver().sync_memops(self.0.device.context(), self.0.base)
    }

    /// Flushes remote writes that have arrived on the device, for this scope; see [`order`](crate::order).
    ///
    /// # Errors
    /// What the driver says.
    pub fn flush(&self, scope: FlushScope) -> Result<(), Error> {
        self.0.device.driver().flush(self.0.device.context(), scope)
    }
}

impl std::fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeviceMemory")
            .field("address", &self.0.base)
            .field("len", &self.0.len)
            .field("device", &self.0.device.ordinal())
            .field("kind", &self.0.kind)
            .finish()
    }
}
