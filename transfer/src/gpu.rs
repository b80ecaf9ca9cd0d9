//! Memory of GPUs for an engine: a device's memory becomes a region by [`Region::device`](crate::Region::device).
//!
//! | from | to | way |
//! |---|---|---|
//! | device | peer over TCP | chunk by chunk through pinned memory: the device copies the next while one is sent |
//! | peer over TCP | device | the same, the other way round; acknowledged when the last chunk is on the device |
//! | peer's memfd | device | the receiver copies it into chunks, the device out of them |
//! | device | peer over RDMA | by the NIC itself, where [`path::choose`] says so |
//!
//! Everything else is the crate's below: see [`kvrail_cuda`].

use std::sync::OnceLock;

use path::{Choice, MemoryFacts, NicFacts};

use crate::memory::Region;

pub use kvrail_cuda::{
    AllocationKind, Device, DeviceFacts, DeviceMemory, DevicePtr, Driver, Error, Event, FlushScope, Gpus, IpcHandle,
    IpcMemory, KernelFacts, MemoryType, PointerFacts, Refusal, StagingOptions, Stream, Unavailable, WritesOrdering,
    fake, order, path,
};

/// What the kernel of this machine has; read once.
fn kernel() -> KernelFacts {
    static FACTS: OnceLock<KernelFacts> = OnceLock::new();
    *FACTS.get_or_init(|| KernelFacts::read(std::path::Path::new("/")))
}

/// What libibverbs of this machine can do for NICs; none without it.
#[must_use]
pub fn nic_facts() -> Option<NicFacts> {
    let verbs = kvrail_verbs::Verbs::open().ok()?;
    Some(NicFacts { takes_dma_buf: verbs.takes_dma_buf() })
}

/// How a NIC with libibverbs of today reaches device memory on this machine.
#[must_use]
pub fn direct(memory: &DeviceMemory) -> Choice {
    direct_by(memory, NicFacts { takes_dma_buf: true })
}

/// Whether a region is a device's memory that no NIC reaches.
pub(crate) fn is_staged(region: &Region) -> bool {
    region.device_memory().is_some_and(|memory| direct(memory).path == path::Path::Staged)
}

/// How this NIC does.
pub(crate) fn direct_by(memory: &DeviceMemory, nic: NicFacts) -> Choice {
    let facts: &MemoryFacts = memory.facts();
    path::choose(memory.device().facts(), facts, &nic, &kernel())
}

impl Region {
    /// Makes what NICs have written to the region visible to kernels that are launched on its device from here on: by the device's own
    /// word nothing at all, or a flush by its driver. Nothing is to be done for host memory, and for bytes that were staged.
    ///
    /// The engine does it before it delivers a notification and before it tells that a lease is fenced. Whoever learns on another way that
    /// bytes have landed calls it before the consumer is launched.
    ///
    /// # Errors
    /// What the driver says: the bytes must not be used then.
    pub fn make_visible(&self) -> Result<(), Error> {
        let Some(memory) = self.device_memory().filter(|_| self.registrations().reach_device()) else { return Ok(()) };
        match order::flush(memory.device().facts(), path::Path::DmaBuf, order::Consumer::Owner) {
            order::Flush::None => Ok(()),
            order::Flush::Driver(scope) => memory.flush(scope),
            // Such a device is staged: `path::choose` knows.
            order::Flush::LoopbackRead => Err(Error::Unsupported { call: "cuFlushGPUDirectRDMAWrites" }),
        }
    }
}
