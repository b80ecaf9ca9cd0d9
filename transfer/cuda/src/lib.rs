//! GPU memory for the transfer engine: CUDA's driver, opened at run time, and what it takes to move device memory.
//!
//! ```no_run
//! use kvrail_cuda::Gpus;
//!
//! let gpus = Gpus::open()?;                         // a typed error where there is no driver
//! let device = gpus.device(0)?;
//! let memory = device.allocate(1 << 20)?;           // or `device.import(...)` of what a framework has allocated
//! println!("{} bytes on {}", memory.len(), device.name());
//! # Ok::<(), kvrail_cuda::Error>(())
//! ```
//!
//! # Laws
//!
//! - The same binary starts everywhere: libcuda is looked for when it is asked for, each of its functions by name. What is missing
//!   is a typed error or a capability that is off, never a panic.
//! - A device address is never dereferenced here: device bytes move by the driver's copies or by a NIC.
//! - Memory under a copy stays until the copy has ended: a [`Copying`] holds both ends of it, and waits or leaks, but never lets go.
//! - No call changes which context is current for the calling thread.
//! - Which path memory takes ([`path`]) and which flush makes it visible ([`order`]) are pure functions of facts.
//! - Staging is bounded, by chunk, by stream and by device; past the bound callers wait.
//!
//! # Map
//!
//! | file | room |
//! |---|---|
//! | `driver` | the functions of the driver that are used, as a trait; its words |
//! | `loaded` | the trait over libcuda |
//! | [`fake`] | the trait over host memory, for tests: asynchronous, failing on demand, strict about lifetimes |
//! | `device`, `event` | devices with their facts; points in a stream's work |
//! | `memory`, `ipc` | device memory: allocated, imported, exported as DMA-BUF; opened from another process |
//! | `copy`, `staging` | batches of copies and what they hold; pinned chunks, and pipelines through them |
//! | [`path`], [`order`], `kernel` | how a NIC reaches memory; when it is visible; what the kernel has |
//! | `error` | what can go wrong |

mod copy;
mod device;
mod driver;
mod error;
mod event;
pub mod fake;
mod ipc;
mod kernel;
mod loaded;
mod memory;
pub mod order;
pub mod path;
mod staging;
#[cfg(test)]
mod tests;

pub use copy::Copying;
pub use device::{Device, DeviceFacts, Gpus};
pub use driver::{
    Attribute, Context, CopyRange, DevicePtr, Driver, EventHandle, FlushScope, IPC_HANDLE_BYTES, MemoryType,
    PointerFacts, Stream, Way, WritesOrdering,
};
pub use error::{Error, Refusal, Unavailable};
pub use event::Event;
pub use ipc::{IpcHandle, IpcMemory};
pub use kernel::KernelFacts;
pub use memory::{AllocationKind, DeviceMemory, DmaBuf};
pub use staging::{Chunk, Incoming, Lane, Next, Outgoing, Segment, Space, StagingOptions};
