//! The driver over libcuda: a table of function pointers, filled when it is opened.
//!
//! cudarc gives the library (it knows the names under which distributions hide it), the layouts and the constants. Its own wrappers are not
//! called: they panic where a library or a symbol is missing, and they return the driver's code as a Rust `enum`, which a newer driver
//! can leave. Here a code is a number, a missing symbol an error or a capability that is off.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr::NonNull;

use cudarc::driver::sys;

use crate::driver::{
    Attribute, Context, CopyRange, DevicePtr, Driver, EventHandle, FlushScope, IPC_HANDLE_BYTES, MemoryType,
    PointerFacts, Stream, Way,
};
use crate::error::{Error, Unavailable};

macro_rules! table {
    (required { $($name:ident($($arg:ty),*);)* } optional { $($maybe:ident($($marg:ty),*);)* }) => {
        /// Functions of the driver, under their names.
        #[allow(non_snake_case)]
        struct Table {
            $($name: unsafe extern "C" fn($($arg),*) -> c_int,)*
            $($maybe: Option<unsafe extern "C" fn($($marg),*) -> c_int>,)*
        }

        impl Table {
            fn load() -> Result<Self, Unavailable> {
                // SAFETY: opening libcuda runs its initialisers, as every program that uses CUDA does.
                if !unsafe { sys::is_culib_present() } {
                    return Err(Unavailable::NoLibrary);
                }
                // SAFETY: as above; it is present, so this does not panic.
                let library = unsafe { sys::culib() };
                Ok(Self {
                    $($name: {
                        let symbol = concat!(stringify!($name), "\0").as_bytes();
                        // SAFETY: the signature is cuda.h's for this (versioned) name; the library stays open for ever.
                        *unsafe { library.get::<unsafe extern "C" fn($($arg),*) -> c_int>(symbol) }
                            .map_err(|_| Unavailable::TooOld { name: stringify!($name) })?
                    },)*
                    $($maybe: {
                        let symbol = concat!(stringify!($maybe), "\0").as_bytes();
                        // SAFETY: as above.
                        unsafe { library.get::<unsafe extern "C" fn($($marg),*) -> c_int>(symbol) }.ok().map(|found| *found)
                    },)*
                })
            }
        }

        /// That these are the driver's arguments: cudarc's bindings, which are made of NVIDIA's header, have the same.
        #[allow(dead_code, reason = "it compiles or it does not")]
        fn signatures_are_the_headers() {
            $(let _: unsafe fn($($arg),*) -> sys::CUresult = sys::$name;)*
            $(let _: unsafe fn($($marg),*) -> sys::CUresult = sys::$maybe;)*
        }
    };
}

table! {
    required {
        cuInit(c_uint);
        cuDriverGetVersion(*mut c_int);
        cuDeviceGetCount(*mut c_int);
        cuDeviceGet(*mut c_int, c_int);
        cuDeviceGetName(*mut c_char, c_int, c_int);
        cuDeviceGetPCIBusId(*mut c_char, c_int, c_int);
        cuDeviceTotalMem_v2(*mut usize, c_int);
        cuDeviceGetAttribute(*mut c_int, sys::CUdevice_attribute, c_int);
        cuDevicePrimaryCtxRetain(*mut sys::CUcontext, c_int);
        cuDevicePrimaryCtxRelease_v2(c_int);
        cuCtxPushCurrent_v2(sys::CUcontext);
        cuCtxPopCurrent_v2(*mut sys::CUcontext);
        cuMemAlloc_v2(*mut u64, usize);
        cuMemFree_v2(u64);
        cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
        cuMemFreeHost(*mut c_void);
        cuPointerGetAttribute(*mut c_void, sys::CUpointer_attribute, u64);
        cuPointerSetAttribute(*const c_void, sys::CUpointer_attribute, u64);
        cuMemGetAddressRange_v2(*mut u64, *mut usize, u64);
        cuIpcGetMemHandle(*mut sys::CUipcMemHandle, u64);
        cuIpcOpenMemHandle_v2(*mut u64, sys::CUipcMemHandle, c_uint);
        cuIpcCloseMemHandle(u64);
        cuStreamCreate(*mut sys::CUstream, c_uint);
        cuStreamDestroy_v2(sys::CUstream);
        cuStreamWaitEvent(sys::CUstream, sys::CUevent, c_uint);
        cuEventCreate(*mut sys::CUevent, c_uint);
        cuEventDestroy_v2(sys::CUevent);
        cuEventRecord(sys::CUevent, sys::CUstream);
        cuEventQuery(sys::CUevent);
        cuMemcpyHtoDAsync_v2(u64, *const c_void, usize, sys::CUstream);
        cuMemcpyDtoHAsync_v2(*mut c_void, u64, usize, sys::CUstream);
        cuMemcpyDtoDAsync_v2(u64, u64, usize, sys::CUstream);
    }
    optional {
        cuMemGetHandleForAddressRange(*mut c_void, u64, usize, sys::CUmemRangeHandleType, u64);
        cuFlushGPUDirectRDMAWrites(sys::CUflushGPUDirectRDMAWritesTarget, sys::CUflushGPUDirectRDMAWritesScope);
        cuMemcpyBatchAsync(
            *mut u64, *mut u64, *mut usize, usize, *mut sys::CUmemcpyAttributes, *mut usize, usize, *mut usize, sys::CUstream
        );
    }
}

const INVALID_VALUE: c_int = 1;
const NOT_READY: c_int = 600;
const NOT_SUPPORTED: c_int = 801;
/// Pinned memory that all contexts know (`CU_MEMHOSTALLOC_PORTABLE`).
const PORTABLE: c_uint = 1;
/// A stream that does not wait for the default one (`CU_STREAM_NON_BLOCKING`).
const NON_BLOCKING: c_uint = 1;
/// An event without timing (`CU_EVENT_DISABLE_TIMING`).
const NO_TIMING: c_uint = 2;
/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`, without which opening fails.
const LAZY_PEER_ACCESS: c_uint = 1;

/// libcuda, opened and started.
pub(crate) struct Loaded(Table);

macro_rules! call {
    ($self:ident.$name:ident($($arg:expr),*)) => {
        // SAFETY: arguments are live locals, plain numbers, or handles whose life the caller of the trait's method vouches for.
        Error::check(stringify!($name), unsafe { ($self.0.$name)($($arg),*) })
    };
}

impl Loaded {
    /// Opens and starts it.
    pub(crate) fn open() -> Result<Self, Unavailable> {
        let table = Table::load()?;
        // SAFETY: as cuda.h has it: before all others, with no flags.
        match unsafe { (table.cuInit)(0) } {
            0 => Ok(Self(table)),
            code => Err(Unavailable::Init { code }),
        }
    }

    /// Runs `f` with the context current, and leaves the thread as it was.
    fn within<R>(&self, context: Context, f: impl FnOnce() -> Result<R, Error>) -> Result<R, Error> {
        call!(self.cuCtxPushCurrent_v2(context.0 as sys::CUcontext))?;
        let result = f();
        let mut popped = std::ptr::null_mut();
        call!(self.cuCtxPopCurrent_v2(&raw mut popped))?;
        result
    }

    fn handle(&self, device: u32) -> Result<c_int, Error> {
        let mut handle = 0;
        call!(self.cuDeviceGet(&raw mut handle, device.cast_signed()))?;
        Ok(handle)
    }

    /// A text of the driver's.
    fn text(&self, get: impl FnOnce(*mut c_char, c_int) -> Result<(), Error>) -> Result<String, Error> {
        let mut text = [0u8; 256];
        get(text.as_mut_ptr().cast(), text.len() as c_int)?;
        let text = CStr::from_bytes_until_nul(&text).unwrap_or_default();
        Ok(text.to_string_lossy().into_owned())
    }

    /// An attribute of a pointer of the size that the driver writes; `None` where it does not know it (an older driver), or where the
    /// address is none of its own.
    fn pointer_attribute<T: Default>(&self, attribute: sys::CUpointer_attribute, address: DevicePtr) -> Option<T> {
        let mut value = T::default();
        call!(self.cuPointerGetAttribute((&raw mut value).cast(), attribute, address.0)).ok()?;
        Some(value)
    }
}

impl Driver for Loaded {
    fn version(&self) -> Result<i32, Error> {
        let mut version = 0;
        call!(self.cuDriverGetVersion(&raw mut version))?;
        Ok(version)
    }

    fn devices(&self) -> Result<u32, Error> {
        let mut count = 0;
        call!(self.cuDeviceGetCount(&raw mut count))?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    fn name(&self, device: u32) -> Result<String, Error> {
        let device = self.handle(device)?;
        self.text(|text, len| call!(self.cuDeviceGetName(text, len, device)))
    }

    fn pci(&self, device: u32) -> Result<String, Error> {
        let device = self.handle(device)?;
        self.text(|text, len| call!(self.cuDeviceGetPCIBusId(text, len, device)))
    }

    fn total_bytes(&self, device: u32) -> Result<u64, Error> {
        let device = self.handle(device)?;
        let mut bytes = 0;
        call!(self.cuDeviceTotalMem_v2(&raw mut bytes, device))?;
        Ok(bytes as u64)
    }

    fn attribute(&self, device: u32, attribute: Attribute) -> Result<i32, Error> {
        let device = self.handle(device)?;
        use sys::CUdevice_attribute_enum as Ask;
        let asked = match attribute {
            Attribute::RdmaWithVmm => Ask::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
            Attribute::Rdma => Ask::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED,
            Attribute::FlushWritesOptions => Ask::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS,
            Attribute::WritesOrdering => Ask::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING,
            Attribute::DmaBuf => Ask::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED,
        };
        let mut value = 0;
        match call!(self.cuDeviceGetAttribute(&raw mut value, asked, device)) {
            Ok(()) => Ok(value),
            Err(Error::Driver { code: INVALID_VALUE, .. }) => Ok(0),
            Err(error) => Err(error),
        }
    }

    fn retain(&self, device: u32) -> Result<Context, Error> {
        let device = self.handle(device)?;
        let mut context = std::ptr::null_mut();
        call!(self.cuDevicePrimaryCtxRetain(&raw mut context, device))?;
        Ok(Context(context as usize))
    }

    fn release(&self, device: u32) -> Result<(), Error> {
        let device = self.handle(device)?;
        call!(self.cuDevicePrimaryCtxRelease_v2(device))
    }

    fn allocate(&self, context: Context, bytes: u64) -> Result<DevicePtr, Error> {
        let mut address = 0;
        self.within(context, || call!(self.cuMemAlloc_v2(&raw mut address, bytes as usize)))?;
        Ok(DevicePtr(address))
    }

    unsafe fn free(&self, context: Context, address: DevicePtr) -> Result<(), Error> {
        self.within(context, || call!(self.cuMemFree_v2(address.0)))
    }

    fn allocate_pinned(&self, context: Context, bytes: usize) -> Result<NonNull<u8>, Error> {
        let mut address = std::ptr::null_mut();
        self.within(context, || call!(self.cuMemHostAlloc(&raw mut address, bytes, PORTABLE)))?;
        NonNull::new(address.cast()).ok_or(Error::Driver { call: "cuMemHostAlloc", code: 2 })
    }

    unsafe fn free_pinned(&self, context: Context, address: NonNull<u8>) -> Result<(), Error> {
        self.within(context, || call!(self.cuMemFreeHost(address.as_ptr().cast())))
    }

    fn pointer(&self, context: Context, address: DevicePtr) -> Result<PointerFacts, Error> {
        use sys::CUpointer_attribute_enum as Ask;
        self.within(context, || {
            // Of an address that it does not know the driver says `CUDA_ERROR_INVALID_VALUE` to everything.
            let memory = match self.pointer_attribute::<c_uint>(Ask::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) {
                Some(1) => MemoryType::Host,
                Some(2) => MemoryType::Device,
                _ => MemoryType::Other,
            };
            let flag = |attribute| self.pointer_attribute::<c_uint>(attribute, address).map(|value| value != 0);
            let is_ipc_capable = flag(Ask::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE).unwrap_or(false);
            let pool = self.pointer_attribute::<usize>(Ask::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address).unwrap_or(0);
            let (mut base, mut bytes) = (0, 0);
            let range = if memory == MemoryType::Device {
                call!(self.cuMemGetAddressRange_v2(&raw mut base, &raw mut bytes, address.0))?;
                (DevicePtr(base), bytes as u64)
            } else {
                (address, 0)
            };
            let whole = |start, size, other| {
                let start = self.pointer_attribute::<u64>(start, address);
                let size = self.pointer_attribute::<usize>(size, address);
                start.zip(size).filter(|(_, size)| *size > 0).map_or(other, |(a, n)| (DevicePtr(a), n as u64))
            };
            let mapping =
                whole(Ask::CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, Ask::CU_POINTER_ATTRIBUTE_MAPPING_SIZE, range);
            // Mapped memory: several mappings may make up what its user takes for one piece.
            let is_virtual = memory == MemoryType::Device && !is_ipc_capable && pool == 0;
            let allocation = if is_virtual {
                whole(Ask::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, Ask::CU_POINTER_ATTRIBUTE_RANGE_SIZE, range)
            } else {
                range
            };
            let device = self.pointer_attribute::<c_int>(Ask::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address);
            Ok(PointerFacts {
                memory,
                is_managed: flag(Ask::CU_POINTER_ATTRIBUTE_IS_MANAGED).unwrap_or(false),
                device: device.and_then(|n| u32::try_from(n).ok()).unwrap_or(u32::MAX),
                allocation,
                mapping,
                is_ipc_capable,
                is_pooled: pool != 0,
                is_rdma_capable: flag(Ask::CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE).unwrap_or(true),
            })
        })
    }

    fn sync_memops(&self, context: Context, address: DevicePtr) -> Result<(), Error> {
        let on: c_uint = 1;
        let attribute = sys::CUpointer_attribute_enum::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS;
        let value = (&raw const on).cast();
        self.within(context, || call!(self.cuPointerSetAttribute(value, attribute, address.0)))
    }

    fn dma_buf(&self, context: Context, address: DevicePtr, bytes: u64) -> Result<OwnedFd, Error> {
        const CALL: &str = "cuMemGetHandleForAddressRange";
        let export = self.0.cuMemGetHandleForAddressRange.ok_or(Error::Unsupported { call: CALL })?;
        let kind = sys::CUmemRangeHandleType_enum::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
        let mut fd: c_int = -1;
        self.within(context, || {
            // SAFETY: the driver writes an `int` for this kind of handle.
            Error::check(CALL, unsafe { export((&raw mut fd).cast(), address.0, bytes as usize, kind, 0) })
        })?;
        if fd < 0 {
            return Err(Error::Driver { call: CALL, code: NOT_SUPPORTED });
        }
        // SAFETY: just made for us, owned by nobody else.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    fn ipc_handle(&self, context: Context, address: DevicePtr) -> Result<[u8; IPC_HANDLE_BYTES], Error> {
        let mut handle = sys::CUipcMemHandle { reserved: [0; IPC_HANDLE_BYTES] };
        self.within(context, || call!(self.cuIpcGetMemHandle(&raw mut handle, address.0)))?;
        Ok(handle.reserved.map(|byte| byte as u8))
    }

    fn ipc_open(&self, context: Context, handle: &[u8; IPC_HANDLE_BYTES]) -> Result<DevicePtr, Error> {
        let handle = sys::CUipcMemHandle { reserved: handle.map(|byte| byte as c_char) };
        let mut address = 0;
        self.within(context, || call!(self.cuIpcOpenMemHandle_v2(&raw mut address, handle, LAZY_PEER_ACCESS)))?;
        Ok(DevicePtr(address))
    }

    unsafe fn ipc_close(&self, context: Context, address: DevicePtr) -> Result<(), Error> {
        self.within(context, || call!(self.cuIpcCloseMemHandle(address.0)))
    }

    fn stream(&self, context: Context) -> Result<Stream, Error> {
        let mut stream = std::ptr::null_mut();
        self.within(context, || call!(self.cuStreamCreate(&raw mut stream, NON_BLOCKING)))?;
        Ok(Stream(stream as usize))
    }

    unsafe fn destroy_stream(&self, context: Context, stream: Stream) -> Result<(), Error> {
        self.within(context, || call!(self.cuStreamDestroy_v2(stream.0 as sys::CUstream)))
    }

    fn event(&self, context: Context) -> Result<EventHandle, Error> {
        let mut event = std::ptr::null_mut();
        self.within(context, || call!(self.cuEventCreate(&raw mut event, NO_TIMING)))?;
        Ok(EventHandle(event as usize))
    }

    unsafe fn destroy_event(&self, context: Context, event: EventHandle) -> Result<(), Error> {
        self.within(context, || call!(self.cuEventDestroy_v2(event.0 as sys::CUevent)))
    }

    unsafe fn record(&self, context: Context, event: EventHandle, stream: Stream) -> Result<(), Error> {
        self.within(context, || call!(self.cuEventRecord(event.0 as sys::CUevent, stream.0 as sys::CUstream)))
    }

    unsafe fn query(&self, context: Context, event: EventHandle) -> Result<bool, Error> {
        self.within(context, || match call!(self.cuEventQuery(event.0 as sys::CUevent)) {
            Ok(()) => Ok(true),
            Err(Error::Driver { code: NOT_READY, .. }) => Ok(false),
            Err(error) => Err(error),
        })
    }

    unsafe fn wait(&self, context: Context, stream: Stream, event: EventHandle) -> Result<(), Error> {
        self.within(context, || call!(self.cuStreamWaitEvent(stream.0 as sys::CUstream, event.0 as sys::CUevent, 0)))
    }

    unsafe fn copy(&self, context: Context, stream: Stream, way: Way, ranges: &[CopyRange]) -> Result<(), Error> {
        let stream = stream.0 as sys::CUstream;
        self.within(context, || {
            if ranges.len() > 1 && self.batch(stream, ranges)? {
                return Ok(());
            }
            for &CopyRange { to, from, len } in ranges {
                match way {
                    Way::ToDevice => call!(self.cuMemcpyHtoDAsync_v2(to, from as *const c_void, len, stream))?,
                    Way::ToHost => call!(self.cuMemcpyDtoHAsync_v2(to as *mut c_void, from, len, stream))?,
                    Way::Within => call!(self.cuMemcpyDtoDAsync_v2(to, from, len, stream))?,
                }
            }
            Ok(())
        })
    }

    fn flush(&self, context: Context, scope: FlushScope) -> Result<(), Error> {
        use sys::CUflushGPUDirectRDMAWritesScope_enum as Scope;
        const CALL: &str = "cuFlushGPUDirectRDMAWrites";
        let flush = self.0.cuFlushGPUDirectRDMAWrites.ok_or(Error::Unsupported { call: CALL })?;
        let scope = match scope {
            FlushScope::Owner => Scope::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER,
            FlushScope::AllDevices => Scope::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES,
        };
        let target = sys::CUflushGPUDirectRDMAWritesTarget_enum::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX;
        // SAFETY: plain numbers.
        self.within(context, || Error::check(CALL, unsafe { flush(target, scope) }))
    }
}

impl Loaded {
    /// All ranges in one call, where the driver has it (12.8 on); false where it has not.
    fn batch(&self, stream: sys::CUstream, ranges: &[CopyRange]) -> Result<bool, Error> {
        let Some(batch) = self.0.cuMemcpyBatchAsync else { return Ok(false) };
        let mut to: Vec<u64> = ranges.iter().map(|range| range.to).collect();
        let mut from: Vec<u64> = ranges.iter().map(|range| range.from).collect();
        let mut lens: Vec<usize> = ranges.iter().map(|range| range.len).collect();
        // SAFETY: numbers and enums that have a zero.
        let mut attributes: sys::CUmemcpyAttributes = unsafe { std::mem::zeroed() };
        attributes.srcAccessOrder = sys::CUmemcpySrcAccessOrder_enum::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
        let (mut first, mut failed) = (0usize, usize::MAX);
        let (to, from, lens) = (to.as_mut_ptr(), from.as_mut_ptr(), lens.as_mut_ptr());
        let (attributes, first, failed) = (&raw mut attributes, &raw mut first, &raw mut failed);
        // SAFETY: arrays of `ranges.len()` and of one, live for the call; the ranges are the caller's promise.
        let code = unsafe { batch(to, from, lens, ranges.len(), attributes, first, 1, failed, stream) };
        if code == NOT_SUPPORTED {
            return Ok(false);
        }
        Error::check("cuMemcpyBatchAsync", code).map(|()| true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_a_driver_gets_a_typed_error_and_no_panic() {
        match Loaded::open() {
            Ok(driver) => assert!(driver.version().unwrap() >= 11_040),
            Err(error) => assert!(
                matches!(error, Unavailable::NoLibrary | Unavailable::Init { .. } | Unavailable::TooOld { .. }),
                "{error}"
            ),
        }
    }
}
