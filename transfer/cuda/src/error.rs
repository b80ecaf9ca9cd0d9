//! What can go wrong.

use crate::driver::DevicePtr;

/// Why there is no driver to speak to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// No libcuda on this machine.
    #[error("there is no libcuda: no NVIDIA driver is installed, or the container does not pass it in")]
    NoLibrary,
    /// A libcuda that lacks what every driver since CUDA 11.4 has.
    #[error("libcuda has no {name}: the driver is too old")]
    TooOld {
        /// The function.
        name: &'static str,
    },
    /// The library is here and does not start.
    #[error("cuInit failed: {} ({code})", crate::error::name(*code))]
    Init {
        /// The driver's code.
        code: i32,
    },
}

/// Why memory cannot be taken as it was given, or exported as it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// A range of no bytes, or past the end of the address space.
    #[error("a range of {len} bytes at {address} is none")]
    Range {
        /// Its start.
        address: DevicePtr,
        /// Its length in bytes.
        len: u64,
    },
    /// Not memory of a GPU: host memory, an array, or nothing that the driver knows.
    #[error("{address} is not device memory")]
    NotDevice {
        /// The address.
        address: DevicePtr,
    },
    /// Memory of another GPU.
    #[error("the memory is on device {is}, not on {wanted}")]
    OtherDevice {
        /// Where it is.
        is: u32,
        /// Where it was said to be.
        wanted: u32,
    },
    /// The range leaves the allocation that it begins in.
    #[error("{len} bytes at {address} pass the end of their allocation, which has {allocated} bytes from {base} on")]
    OutsideAllocation {
        /// Its start.
        address: DevicePtr,
        /// Its length in bytes.
        len: u64,
        /// Start of the allocation.
        base: DevicePtr,
        /// Length of the allocation in bytes.
        allocated: u64,
    },
    /// Managed memory moves between host and devices under whoever uses it.
    #[error("managed memory has no fixed place")]
    Managed,
    /// Memory of a pool (`cudaMallocAsync`) has no handle of this kind.
    #[error("memory of a pool (cudaMallocAsync) cannot be {what}")]
    Pool {
        /// What was wanted.
        what: &'static str,
    },
    /// Memory mapped by `cuMemMap` (expandable segments of a framework, say) has no handle of this kind.
    #[error("mapped memory (cuMemMap, expandable segments) cannot be {what}")]
    Virtual {
        /// What was wanted.
        what: &'static str,
    },
    /// The range lies in several mappings; an export covers one.
    #[error("the range lies in several mappings, and an export covers one")]
    ManyMappings,
    /// The device or the driver has no DMA-BUF export.
    #[error("the device exports no DMA-BUF")]
    NoDmaBuf,
}

/// What can go wrong with a GPU.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no driver.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// The driver refused or failed.
    #[error("{call} failed: {} ({code})", name(*code))]
    Driver {
        /// Function of the driver.
        call: &'static str,
        /// Its code (`CUresult`).
        code: i32,
    },
    /// This driver does not have it.
    #[error("this driver has no {call}")]
    Unsupported {
        /// Function of the driver.
        call: &'static str,
    },
    /// No device of this number.
    #[error("there is no device {ordinal}; there are {count}")]
    NoDevice {
        /// Asked for.
        ordinal: u32,
        /// How many there are.
        count: u32,
    },
    /// The memory is not what it would have to be.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A copy did not end in time; its memory stays where it is, for ever.
    #[error("a copy did not end within {ms} ms")]
    Overdue {
        /// The bound, in milliseconds.
        ms: u64,
    },
}

impl Error {
    pub(crate) fn check(call: &'static str, code: i32) -> Result<(), Self> {
        if code == 0 { Ok(()) } else { Err(Self::Driver { call, code }) }
    }
}

/// The driver's name of its commoner codes. Not asked of the driver: an error must be told also when it is gone.
pub(crate) fn name(code: i32) -> &'static str {
    match code {
        1 => "CUDA_ERROR_INVALID_VALUE",
        2 => "CUDA_ERROR_OUT_OF_MEMORY",
        3 => "CUDA_ERROR_NOT_INITIALIZED",
        4 => "CUDA_ERROR_DEINITIALIZED",
        34 => "CUDA_ERROR_STUB_LIBRARY",
        46 => "CUDA_ERROR_DEVICE_UNAVAILABLE",
        100 => "CUDA_ERROR_NO_DEVICE",
        101 => "CUDA_ERROR_INVALID_DEVICE",
        201 => "CUDA_ERROR_INVALID_CONTEXT",
        214 => "CUDA_ERROR_ECC_UNCORRECTABLE",
        400 => "CUDA_ERROR_INVALID_HANDLE",
        700 => "CUDA_ERROR_ILLEGAL_ADDRESS",
        719 => "CUDA_ERROR_LAUNCH_FAILED",
        800 => "CUDA_ERROR_NOT_PERMITTED",
        801 => "CUDA_ERROR_NOT_SUPPORTED",
        802 => "CUDA_ERROR_SYSTEM_NOT_READY",
        803 => "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        999 => "CUDA_ERROR_UNKNOWN",
        _ => "CUDA error",
    }
}
