//! When bytes that a NIC wrote into device memory are visible to the device. Pure.
//!
//! A completion says that the NIC is done, not that the GPU's own reads see the bytes: writes may still be under way on PCIe
//! behind the GPU's bus interface. Each device says how far its order goes
//! (`CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING`); where that is not enough, remote writes are flushed after the last
//! completion and before the consumer is launched: by `cuFlushGPUDirectRDMAWrites` where the device has it for the host, else by a
//! loopback READ on each NIC that wrote, which on PCIe pushes that NIC's writes before it.
//!
//! Staged bytes are copied by the device itself, and the copy's event has been seen done by the host before anybody is told: work
//! launched after that is ordered behind it, and there is nothing to flush.

use crate::device::DeviceFacts;
use crate::driver::{FlushScope, WritesOrdering};
use crate::path::Path;

/// Who reads what was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consumer {
    /// Kernels on the device that owns the memory.
    Owner,
    /// Kernels on any device.
    AnyDevice,
}

/// What makes bytes visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// Nothing: they are.
    None,
    /// `cuFlushGPUDirectRDMAWrites` with this scope.
    Driver(FlushScope),
    /// A READ through each NIC that wrote, of memory that it wrote to.
    LoopbackRead,
}

/// What follows the last completion, by the device's own word.
#[must_use]
pub fn flush(device: &DeviceFacts, path: Path, consumer: Consumer) -> Flush {
    if path == Path::Staged {
        return Flush::None;
    }
    let (enough, scope) = match consumer {
        Consumer::Owner => (WritesOrdering::Owner, FlushScope::Owner),
        Consumer::AnyDevice => (WritesOrdering::AllDevices, FlushScope::AllDevices),
    };
    if device.ordering >= enough {
        Flush::None
    } else if device.flushes_by_host {
        Flush::Driver(scope)
    } else {
        Flush::LoopbackRead
    }
}

/// NICs that have written to one device since its last flush.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Writers(Vec<u64>);

impl Writers {
    /// A NIC's write has completed.
    pub fn wrote(&mut self, nic: u64) {
        if let Err(place) = self.0.binary_search(&nic) {
            self.0.insert(place, nic);
        }
    }

    /// What has to be done before a consumer is launched, and by which NICs if by a loopback READ. Afterwards the slate is clean: the
    /// caller must have done it before it tells anybody.
    pub fn take(&mut self, device: &DeviceFacts, path: Path, consumer: Consumer) -> (Flush, Vec<u64>) {
        let nics = std::mem::take(&mut self.0);
        if nics.is_empty() {
            return (Flush::None, nics);
        }
        match flush(device, path, consumer) {
            Flush::LoopbackRead => (Flush::LoopbackRead, nics),
            other => (other, Vec::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(ordering: WritesOrdering, flushes_by_host: bool) -> DeviceFacts {
        DeviceFacts { has_rdma: true, ordering, flushes_by_host, ..DeviceFacts::default() }
    }

    #[test]
    fn the_flush_follows_the_devices_word() {
        use WritesOrdering::{AllDevices, None, Owner};
        let table = [
            (None, false, Consumer::Owner, Flush::LoopbackRead),
            (None, true, Consumer::Owner, Flush::Driver(FlushScope::Owner)),
            (None, true, Consumer::AnyDevice, Flush::Driver(FlushScope::AllDevices)),
            (Owner, false, Consumer::Owner, Flush::None),
            (Owner, true, Consumer::AnyDevice, Flush::Driver(FlushScope::AllDevices)),
            (Owner, false, Consumer::AnyDevice, Flush::LoopbackRead),
            (AllDevices, false, Consumer::AnyDevice, Flush::None),
        ];
        for (ordering, host, consumer, wanted) in table {
            for path in [Path::DmaBuf, Path::PeerMemory] {
                assert_eq!(flush(&device(ordering, host), path, consumer), wanted, "{ordering:?} {host} {consumer:?}");
            }
            assert_eq!(flush(&device(ordering, host), Path::Staged, consumer), Flush::None);
        }
    }

    #[test]
    fn each_nic_that_wrote_reads_once_and_one_that_did_not_never() {
        let mut writers = Writers::default();
        let weak = device(WritesOrdering::None, false);
        assert_eq!(writers.take(&weak, Path::DmaBuf, Consumer::Owner), (Flush::None, vec![]), "nobody wrote");
        [3, 1, 3].into_iter().for_each(|nic| writers.wrote(nic));
        assert_eq!(writers.take(&weak, Path::DmaBuf, Consumer::Owner), (Flush::LoopbackRead, vec![1, 3]));
        assert_eq!(writers.take(&weak, Path::DmaBuf, Consumer::Owner), (Flush::None, vec![]));
    }
}
