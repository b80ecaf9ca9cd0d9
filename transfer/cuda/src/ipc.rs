//! Device memory of another process on this host.
//!
//! # The fence
//! A process that has opened a handle reaches the whole allocation, unchecked, until it closes it, and freeing an allocation that
//! somebody has open is undefined. So an exported range is lent to the *process*: its owner keeps the memory (an [`IpcHandle`] holds
//! it) until the other side has closed, or its death is certain. Who opens it holds an [`IpcMemory`]; every copy out of it holds a
//! handle, so it is closed after the last copy has ended and no earlier. As on shared memory, the *receiver* copies, under its own
//! lease: revocation stays local, and what is exported is only ever read.

use std::sync::Arc;

use crate::device::Device;
use crate::driver::{DevicePtr, IPC_HANDLE_BYTES};
use crate::error::{Error, Refusal};
use crate::memory::{AllocationKind, DeviceMemory};

/// A handle that another process on this host opens, and the hold on what it opens.
#[derive(Clone, Debug)]
pub struct IpcHandle {
    /// What the other process is given, with `offset` and `len`.
    pub bytes: [u8; IPC_HANDLE_BYTES],
    /// Where in the allocation the range begins: a handle is of a whole allocation.
    pub offset: u64,
    /// Bytes of the range.
    pub len: u64,
    /// Quarantine: not to be dropped before the other process has closed it or has ended.
    _memory: DeviceMemory,
}

impl DeviceMemory {
    /// A handle of it for another process.
    ///
    /// # Errors
    /// [`Error::Refused`] for memory of pools and mappings, which has none of this kind; what the driver says.
    pub fn ipc_handle(&self) -> Result<IpcHandle, Error> {
        if !self.is_ipc_capable() {
            let what = "opened by another process through a CUDA IPC handle";
            return Err(match self.kind() {
                AllocationKind::Pool => Refusal::Pool { what },
                AllocationKind::Plain | AllocationKind::Virtual => Refusal::Virtual { what },
            }
            .into());
        }
        let device = self.device();
        let (base, _) = self.allocation();
        let bytes = device.driver().ipc_handle(device.context(), base)?;
        Ok(IpcHandle { bytes, offset: self.address().0 - base.0, len: self.len(), _memory: self.clone() })
    }
}

/// An allocation of another process, opened; closed with the last handle of any range of it.
pub struct IpcMemory(Arc<Opened>);

struct Opened {
    base: DevicePtr,
    device: Device,
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: opened in `open_ipc`, closed once; copies out of it hold a handle until they have ended.
        let _ = unsafe { self.device.driver().ipc_close(self.device.context(), self.base) };
    }
}

impl Device {
    /// Opens an allocation of another process.
    ///
    /// # Errors
    /// What the driver says: `CUDA_ERROR_INVALID_VALUE` for a handle of this same process, or of one that has ended.
    pub fn open_ipc(&self, bytes: &[u8; IPC_HANDLE_BYTES]) -> Result<IpcMemory, Error> {
        let base = self.driver().ipc_open(self.context(), bytes)?;
        Ok(IpcMemory(Arc::new(Opened { base, device: self.clone() })))
    }
}

impl IpcMemory {
    /// A range of it. What the other process says of offset and length is checked against what the driver says of the allocation.
    ///
    /// # Errors
    /// [`Refusal::OutsideAllocation`]; what the driver says.
    pub fn range(&self, offset: u64, len: u64) -> Result<DeviceMemory, Error> {
        let Opened { base, device } = &*self.0;
        let (start, allocated) = device.driver().pointer(device.context(), *base)?.allocation;
        let address = base.plus(offset).ok_or(Refusal::Range { address: *base, len })?;
        let end = address.plus(len).filter(|_| len > 0).ok_or(Refusal::Range { address, len })?;
        if start.plus(allocated).is_none_or(|limit| end > limit) {
            return Err(Refusal::OutsideAllocation { address, len, base: start, allocated }.into());
        }
        Ok(DeviceMemory::foreign(device, address, len, Arc::clone(&self.0)))
    }
}
