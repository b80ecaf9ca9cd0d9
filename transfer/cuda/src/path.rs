//! How a NIC reaches device memory. Pure: facts in, a decision with its reasons out.
//!
//! DMA-BUF first (a file descriptor that any NIC's driver can import), `nvidia_peermem` second (the NIC's driver pins the address
//! itself), staging through pinned host memory last. Staging is never silent: the decision carries what was missing for the others.

use std::fmt;

use crate::device::DeviceFacts;
use crate::kernel::KernelFacts;
use crate::memory::AllocationKind;
use crate::order::{self, Consumer, Flush};

/// What matters of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryFacts {
    /// How it was allocated.
    pub kind: AllocationKind,
    /// The driver lets a NIC reach it.
    pub is_rdma_capable: bool,
    /// It lies in one mapping.
    pub is_one_mapping: bool,
}

/// What matters of a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NicFacts {
    /// libibverbs has `ibv_reg_dmabuf_mr`.
    pub takes_dma_buf: bool,
}

/// A way for bytes between a NIC and device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// GPUDirect RDMA, registered through a DMA-BUF.
    DmaBuf,
    /// GPUDirect RDMA, registered through the peer-memory module.
    PeerMemory,
    /// Through pinned host memory.
    Staged,
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DmaBuf => "GPUDirect by DMA-BUF",
            Self::PeerMemory => "GPUDirect by peer memory",
            Self::Staged => "staged through pinned host memory",
        })
    }
}

/// Why a path is not to be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// The device has no GPUDirect RDMA.
    DeviceRdma,
    /// Nor with memory that is mapped by `cuMemMap`.
    DeviceRdmaVmm,
    /// The memory was not made for it.
    MemoryRdma,
    /// The range lies in several mappings.
    ManyMappings,
    /// The device or its kernel module exports no DMA-BUF.
    DeviceDmaBuf,
    /// libibverbs is too old to take one.
    VerbsDmaBuf,
    /// `nvidia_peermem` is not loaded.
    PeerMemory,
    /// The device neither sees remote writes in order nor flushes them for the host: it would take a loopback READ on each NIC, which
    /// rails do not make yet.
    Flush,
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DeviceRdma => "the device has no GPUDirect RDMA",
            Self::DeviceRdmaVmm => "the device has no GPUDirect RDMA with mapped memory (cuMemMap)",
            Self::MemoryRdma => "the memory was not allocated for GPUDirect RDMA",
            Self::ManyMappings => "the range lies in several mappings",
            Self::DeviceDmaBuf => "the device exports no DMA-BUF (open kernel modules and Linux 5.12 do)",
            Self::VerbsDmaBuf => "libibverbs takes no DMA-BUF (rdma-core 34 does)",
            Self::PeerMemory => "nvidia_peermem is not loaded",
            Self::Flush => "the device has no flush for the host, and rails make no loopback READ yet",
        })
    }
}

/// A path, and what was missing for those before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The way.
    pub path: Path,
    /// Empty for the first choice.
    pub lacks: Vec<Lack>,
}

impl Choice {
    /// The reasons in words, for log and doctor.
    #[must_use]
    pub fn why(&self) -> String {
        self.lacks.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    }
}

/// Decides for one device, one piece of memory, one NIC and this kernel.
#[must_use]
pub fn choose(device: &DeviceFacts, memory: &MemoryFacts, nic: &NicFacts, kernel: &KernelFacts) -> Choice {
    let staged = |lacks| Choice { path: Path::Staged, lacks };
    if !device.has_rdma {
        return staged(vec![Lack::DeviceRdma]);
    }
    if memory.kind == AllocationKind::Virtual && !device.has_rdma_vmm {
        return staged(vec![Lack::DeviceRdmaVmm]);
    }
    if !memory.is_rdma_capable {
        return staged(vec![Lack::MemoryRdma]);
    }
    // Done means visible, or it is not done this way.
    if order::flush(device, Path::DmaBuf, Consumer::Owner) == Flush::LoopbackRead {
        return staged(vec![Lack::Flush]);
    }
    let mut lacks = Vec::new();
    let mut lack = |missing: bool, what| {
        if missing {
            lacks.push(what);
        }
        !missing
    };
    let dma_buf = [
        lack(!device.has_dma_buf, Lack::DeviceDmaBuf),
        lack(!nic.takes_dma_buf, Lack::VerbsDmaBuf),
        lack(!memory.is_one_mapping, Lack::ManyMappings),
    ];
    if dma_buf.iter().all(|has| *has) {
        return Choice { path: Path::DmaBuf, lacks };
    }
    if lack(!kernel.has_peer_memory, Lack::PeerMemory) {
        return Choice { path: Path::PeerMemory, lacks };
    }
    staged(lacks)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> (DeviceFacts, MemoryFacts, NicFacts, KernelFacts) {
        let device = DeviceFacts {
            has_rdma: true,
            has_rdma_vmm: true,
            has_dma_buf: true,
            flushes_by_host: true,
            ..DeviceFacts::default()
        };
        let memory = MemoryFacts { kind: AllocationKind::Plain, is_rdma_capable: true, is_one_mapping: true };
        (device, memory, NicFacts { takes_dma_buf: true }, KernelFacts { has_peer_memory: true })
    }

    #[test]
    fn dma_buf_goes_before_peer_memory_and_that_before_staging() {
        let (device, memory, nic, kernel) = all();
        assert_eq!(choose(&device, &memory, &nic, &kernel), Choice { path: Path::DmaBuf, lacks: vec![] });
        let closed = DeviceFacts { has_dma_buf: false, ..device };
        let second = choose(&closed, &memory, &nic, &kernel);
        assert_eq!(second, Choice { path: Path::PeerMemory, lacks: vec![Lack::DeviceDmaBuf] });
        let old = NicFacts { takes_dma_buf: false };
        let last = choose(&closed, &memory, &old, &KernelFacts { has_peer_memory: false });
        assert_eq!(last.path, Path::Staged);
        assert_eq!(
            last.lacks,
            [Lack::DeviceDmaBuf, Lack::VerbsDmaBuf, Lack::PeerMemory],
            "all that was missing is told"
        );
        assert!(last.why().contains("nvidia_peermem is not loaded"));
    }

    #[test]
    fn what_no_nic_may_reach_is_staged_whatever_the_kernel_has() {
        let (device, memory, nic, kernel) = all();
        let of = |device: DeviceFacts, memory: MemoryFacts| choose(&device, &memory, &nic, &kernel).lacks;
        assert_eq!(of(DeviceFacts { has_rdma: false, ..device }, memory), [Lack::DeviceRdma]);
        assert_eq!(of(DeviceFacts { flushes_by_host: false, ..device }, memory), [Lack::Flush]);
        assert_eq!(of(device, MemoryFacts { is_rdma_capable: false, ..memory }), [Lack::MemoryRdma]);
        let mapped = MemoryFacts { kind: AllocationKind::Virtual, ..memory };
        assert_eq!(of(DeviceFacts { has_rdma_vmm: false, ..device }, mapped), [Lack::DeviceRdmaVmm]);
        assert!(of(device, mapped).is_empty());
    }

    #[test]
    fn an_export_covers_one_mapping() {
        let (device, memory, nic, kernel) = all();
        let many = MemoryFacts { is_one_mapping: false, kind: AllocationKind::Virtual, ..memory };
        let choice = choose(&device, &many, &nic, &kernel);
        assert_eq!(choice, Choice { path: Path::PeerMemory, lacks: vec![Lack::ManyMappings] });
    }

    #[test]
    fn there_is_a_decision_for_every_set_of_facts_and_a_reason_for_each_that_is_not_the_first() {
        for bits in 0..1u32 << 9 {
            let bit = |n: u32| bits & 1 << n != 0;
            let device = DeviceFacts {
                has_rdma: bit(0),
                has_rdma_vmm: bit(1),
                has_dma_buf: bit(2),
                flushes_by_host: bit(8),
                ..DeviceFacts::default()
            };
            let kind = if bit(3) { AllocationKind::Virtual } else { AllocationKind::Plain };
            let memory = MemoryFacts { kind, is_rdma_capable: bit(4), is_one_mapping: bit(5) };
            let nic = NicFacts { takes_dma_buf: bit(6) };
            let choice = choose(&device, &memory, &nic, &KernelFacts { has_peer_memory: bit(7) });
            assert_eq!(choice.lacks.is_empty(), choice.path == Path::DmaBuf, "{bits:#b}");
            assert!(
                choice.path != Path::DmaBuf || bit(0) && bit(2) && bit(4) && bit(5) && bit(6) && bit(8),
                "{bits:#b}"
            );
            assert!(choice.path != Path::PeerMemory || bit(0) && bit(4) && bit(7) && bit(8), "{bits:#b}");
        }
    }
}
