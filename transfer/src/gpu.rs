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

pub use kvrail_cuda::{
    AllocationKind, Device, DeviceFacts, DeviceMemory, DevicePtr, Driver, Error, Event, FlushScope, Gpus, IpcHandle,
    IpcMemory, KernelFacts, Refusal, StagingOptions, Stream, Unavailable, WritesOrdering, fake, order, path,
};

/// What the kernel of this machine has; read once.
fn kernel() -> KernelFacts {
    static FACTS: OnceLock<KernelFacts> = OnceLock::new();
    *FACTS.get_or_init(|| KernelFacts::read(std::path::Path::new("/")))
}

/// How a NIC with libibverbs of today reaches device memory on this machine.
#[must_use]
pub fn direct(memory: &DeviceMemory) -> Choice {
    direct_by(memory, NicFacts { takes_dma_buf: true })
}

/// How this NIC does.
pub(crate) fn direct_by(memory: &DeviceMemory, nic: NicFacts) -> Choice {
    let facts: &MemoryFacts = memory.facts();
    path::choose(memory.device().facts(), facts, &nic, &kernel())
}
