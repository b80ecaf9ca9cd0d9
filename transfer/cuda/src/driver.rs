//! The functions of CUDA's driver that are used, as a trait with two sides: libcuda ([`loaded`](crate::loaded)) and host memory
//! ([`fake`](crate::fake)).
//!
//! Handles are plain numbers, so that a fake can make them up. Whoever implements the trait makes the context current for the call
//! and leaves the calling thread's own as it was.

use std::fmt;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use crate::error::Error;

/// An address in a device's memory. It is a number: nothing here makes a Rust pointer of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DevicePtr(pub u64);

impl DevicePtr {
    /// The address so many bytes further on; `None` past the end of the address space.
    #[must_use]
    pub fn plus(self, bytes: u64) -> Option<Self> {
        self.0.checked_add(bytes).map(Self)
    }
}

impl fmt::Display for DevicePtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A device's primary context (`CUcontext`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Context(pub usize);

/// A stream (`CUstream`); frameworks give theirs as this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stream(pub usize);

/// An event (`CUevent`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EventHandle(pub usize);

/// Bytes of an IPC handle.
pub const IPC_HANDLE_BYTES: usize = 64;

/// What an address points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryType {
    /// Memory of a device.
    Device,
    /// Host memory that the driver knows.
    Host,
    /// An array, or what else there may be.
    Other,
}

/// What the driver knows of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PointerFacts {
    /// What it points to.
    pub memory: MemoryType,
    /// Whether pages migrate.
    pub is_managed: bool,
    /// Ordinal of the device.
    pub device: u32,
    /// Start and bytes of the allocation, or of the reserved range of mapped memory.
    pub allocation: (DevicePtr, u64),
    /// Start and bytes of the mapping that the address lies in; the allocation where the driver does not tell.
    pub mapping: (DevicePtr, u64),
    /// `cuIpcGetMemHandle` takes it.
    pub is_ipc_capable: bool,
    /// From a memory pool.
    pub is_pooled: bool,
    /// A NIC may reach it; true where the driver does not tell.
    pub is_rdma_capable: bool,
}

/// What of remote writes a device sees in order without a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum WritesOrdering {
    /// Nothing.
    #[default]
    None,
    /// The device itself does.
    Owner,
    /// Every device does.
    AllDevices,
}

/// For whom a flush makes remote writes visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushScope {
    /// The device that owns the memory.
    Owner,
    /// Every device.
    AllDevices,
}

/// Which way a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Host to device.
    ToDevice,
    /// Device to host.
    ToHost,
    /// Device to device.
    Within,
}

/// One range of a batch of copies; of the two addresses, the host's is a pointer's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyRange {
    /// Where the bytes go.
    pub to: u64,
    /// Where they come from.
    pub from: u64,
    /// How many.
    pub len: usize,
}

/// Attributes of a device that are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Attribute {
    /// GPUDirect RDMA with mapped memory (110).
    RdmaWithVmm,
    /// GPUDirect RDMA (116).
    Rdma,
    /// Bit 0: remote writes can be flushed by the host (117).
    FlushWritesOptions,
    /// How far the order of remote writes goes, 0, 100 or 200 (118).
    WritesOrdering,
    /// DMA-BUF export (124).
    DmaBuf,
}

/// CUDA's driver, as far as it is used. All calls may be made from any thread.
///
/// # Errors
/// [`Error::Driver`] with the driver's code, [`Error::Unsupported`] where it lacks the function.
#[allow(clippy::missing_errors_doc, clippy::missing_safety_doc, reason = "said once, above and below")]
pub trait Driver: Send + Sync + 'static {
    /// Version of the driver's API, 1000 × major + 10 × minor.
    fn version(&self) -> Result<i32, Error>;
    /// How many devices there are.
    fn devices(&self) -> Result<u32, Error>;
    /// A device's name.
    fn name(&self, device: u32) -> Result<String, Error>;
    /// Its PCI address, such as `0000:44:00.0`.
    fn pci(&self, device: u32) -> Result<String, Error>;
    /// Bytes of its memory.
    fn total_bytes(&self, device: u32) -> Result<u64, Error>;
    /// An attribute; a driver that does not know it answers 0.
    fn attribute(&self, device: u32, attribute: Attribute) -> Result<i32, Error>;
    /// Retains its primary context, the one that frameworks use too.
    fn retain(&self, device: u32) -> Result<Context, Error>;
    /// Lets go of it, once for each `retain`.
    fn release(&self, device: u32) -> Result<(), Error>;

    /// Allocates device memory.
    fn allocate(&self, context: Context, bytes: u64) -> Result<DevicePtr, Error>;
    /// Frees it. Safety: allocated here, freed once, and nothing under way touches it.
    unsafe fn free(&self, context: Context, address: DevicePtr) -> Result<(), Error>;
    /// Allocates pinned host memory that every context may copy from and to.
    fn allocate_pinned(&self, context: Context, bytes: usize) -> Result<NonNull<u8>, Error>;
    /// Frees it. Safety: as `free`.
    unsafe fn free_pinned(&self, context: Context, address: NonNull<u8>) -> Result<(), Error>;
    /// What an address is.
    fn pointer(&self, context: Context, address: DevicePtr) -> Result<PointerFacts, Error>;
    /// Has synchronous memory operations on the allocation be synchronous always, as a NIC beside them needs.
    fn sync_memops(&self, context: Context, address: DevicePtr) -> Result<(), Error>;
    /// Exports a range, whole pages, as a DMA-BUF.
    fn dma_buf(&self, context: Context, address: DevicePtr, bytes: u64) -> Result<OwnedFd, Error>;

    /// Handle of the allocation at `address` for other processes.
    fn ipc_handle(&self, context: Context, address: DevicePtr) -> Result<[u8; IPC_HANDLE_BYTES], Error>;
    /// Opens another process's.
    fn ipc_open(&self, context: Context, handle: &[u8; IPC_HANDLE_BYTES]) -> Result<DevicePtr, Error>;
    /// Closes it. Safety: opened here, closed once, and nothing under way touches it.
    unsafe fn ipc_close(&self, context: Context, address: DevicePtr) -> Result<(), Error>;

    /// Makes a stream that does not wait for the default one.
    fn stream(&self, context: Context) -> Result<Stream, Error>;
    /// Destroys it. Safety: made here, destroyed once.
    unsafe fn destroy_stream(&self, context: Context, stream: Stream) -> Result<(), Error>;
    /// Makes an event without timing.
    fn event(&self, context: Context) -> Result<EventHandle, Error>;
    /// Destroys it. Safety: made here, destroyed once.
    unsafe fn destroy_event(&self, context: Context, event: EventHandle) -> Result<(), Error>;
    /// Marks what the stream has been given so far. Safety: both are alive.
    unsafe fn record(&self, context: Context, event: EventHandle, stream: Stream) -> Result<(), Error>;
    /// Whether what was marked has ended. Safety: it is alive.
    unsafe fn query(&self, context: Context, event: EventHandle) -> Result<bool, Error>;
    /// Has what the stream is given from here on wait for the event. Safety: both are alive.
    unsafe fn wait(&self, context: Context, stream: Stream, event: EventHandle) -> Result<(), Error>;

    /// Gives the stream copies, all of one way. Some may have been given when it fails. Safety: until they have ended all ranges are
    /// there, those on the host pinned, and nobody else changes them.
    unsafe fn copy(&self, context: Context, stream: Stream, way: Way, ranges: &[CopyRange]) -> Result<(), Error>;
    /// Makes remote writes that have arrived visible.
    fn flush(&self, context: Context, scope: FlushScope) -> Result<(), Error>;
}
