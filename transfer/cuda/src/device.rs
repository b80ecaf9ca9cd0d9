//! Devices, with what they can do.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::driver::{Attribute, Context, Driver, Stream, WritesOrdering};
use crate::error::Error;
use crate::loaded::Loaded;
use crate::staging::{Pool, StagingOptions};

/// The opened driver. Cheap to clone.
#[derive(Clone)]
pub struct Gpus {
    driver: Arc<dyn Driver>,
    count: u32,
    options: StagingOptions,
    open: Arc<Mutex<Vec<Device>>>,
}

/// What a device can do for NICs beside it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceFacts {
    /// GPUDirect RDMA (attribute 116).
    pub has_rdma: bool,
    /// And with memory that is mapped by `cuMemMap` (110).
    pub has_rdma_vmm: bool,
    /// Its memory can be exported as a DMA-BUF (124).
    pub has_dma_buf: bool,
    /// `cuFlushGPUDirectRDMAWrites` works for it (117, bit 0).
    pub flushes_by_host: bool,
    /// What of remote writes it sees in order by itself (118).
    pub ordering: WritesOrdering,
}

impl DeviceFacts {
    fn read(driver: &dyn Driver, device: u32) -> Result<Self, Error> {
        let has = |attribute| driver.attribute(device, attribute).map(|value| value != 0);
        Ok(Self {
            has_rdma: has(Attribute::Rdma)?,
            has_rdma_vmm: has(Attribute::RdmaWithVmm)?,
            has_dma_buf: has(Attribute::DmaBuf)?,
            flushes_by_host: driver.attribute(device, Attribute::FlushWritesOptions)? & 1 != 0,
            ordering: match driver.attribute(device, Attribute::WritesOrdering)? {
                100..200 => WritesOrdering::Owner,
                200.. => WritesOrdering::AllDevices,
                _ => WritesOrdering::None,
            },
        })
    }
}

impl Gpus {
    /// Opens libcuda under its usual names.
    ///
    /// # Errors
    /// [`Error::Unavailable`] on a machine without a driver, or with one that does not start.
    pub fn open() -> Result<Self, Error> {
        Self::with(Arc::new(Loaded::open()?), StagingOptions::default())
    }

    /// Over a driver of the caller's choice.
    ///
    /// # Errors
    /// What the driver says to being asked for its devices.
    pub fn with(driver: Arc<dyn Driver>, options: StagingOptions) -> Result<Self, Error> {
        let count = driver.devices()?;
        Ok(Self { driver, count, options, open: Arc::default() })
    }

    /// How many devices this process sees.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Version of the driver's API, 1000 × major + 10 × minor.
    ///
    /// # Errors
    /// What the driver says.
    pub fn version(&self) -> Result<i32, Error> {
        self.driver.version()
    }

    /// Name, PCI address, bytes and facts of a device, without retaining its context (which takes device memory).
    ///
    /// # Errors
    /// What the driver says.
    pub fn describe(&self, ordinal: u32) -> Result<(String, String, u64, DeviceFacts), Error> {
        let driver = &*self.driver;
        let facts = DeviceFacts::read(driver, ordinal)?;
        Ok((driver.name(ordinal)?, driver.pci(ordinal)?, driver.total_bytes(ordinal)?, facts))
    }

    /// A device of this process: CUDA's ordinal, after `CUDA_VISIBLE_DEVICES`. Always the same one for a number; its primary context is
    /// retained as long as there is a handle of `self` or of the device.
    ///
    /// # Errors
    /// [`Error::NoDevice`]; what the driver says.
    pub fn device(&self, ordinal: u32) -> Result<Device, Error> {
        if ordinal >= self.count {
            return Err(Error::NoDevice { ordinal, count: self.count });
        }
        let mut open = self.open.lock();
        if let Some(device) = open.iter().find(|device| device.ordinal() == ordinal) {
            return Ok(device.clone());
        }
        let (name, pci, _, facts) = self.describe(ordinal)?;
        let context = self.driver.retain(ordinal)?;
        let raw = Raw { driver: Arc::clone(&self.driver), ordinal, context };
        let raw = Arc::new(raw);
        let pool = Pool::new(Arc::clone(&raw), self.options);
        let device = Device(Arc::new(Inner { name, pci, facts, pool, raw }));
        open.push(device.clone());
        Ok(device)
    }
}

impl std::fmt::Debug for Gpus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gpus").field("count", &self.count).finish_non_exhaustive()
    }
}

/// A retained primary context, and the driver that it is of.
pub(crate) struct Raw {
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) ordinal: u32,
    pub(crate) context: Context,
}

impl Drop for Raw {
    fn drop(&mut self) {
        // Nothing to be done about an error: the context goes with the process.
        let _ = self.driver.release(self.ordinal);
    }
}

struct Inner {
    name: String,
    pci: String,
    facts: DeviceFacts,
    pool: Arc<Pool>,
    raw: Arc<Raw>,
}

/// A device in use. Cheap to clone.
#[derive(Clone)]
pub struct Device(Arc<Inner>);

impl Device {
    /// CUDA's ordinal in this process.
    #[must_use]
    pub fn ordinal(&self) -> u32 {
        self.0.raw.ordinal
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Its PCI address, such as `0000:44:00.0`: what joins it to the topology.
    #[must_use]
    pub fn pci(&self) -> &str {
        &self.0.pci
    }

    /// What it can do.
    #[must_use]
    pub fn facts(&self) -> &DeviceFacts {
        &self.0.facts
    }

    /// Bytes of pinned host memory that are out for staging now.
    #[must_use]
    pub fn staging_bytes(&self) -> u64 {
        self.0.pool.bytes_out()
    }

    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.0.pool
    }

    pub(crate) fn driver(&self) -> &dyn Driver {
        &*self.0.raw.driver
    }

    pub(crate) fn context(&self) -> Context {
        self.0.raw.context
    }

    /// Whether two handles are of the same device under the same driver.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// A stream of our own: copies on it wait for nobody's kernels but those that an event says.
    pub(crate) fn queue(&self) -> Result<Queue, Error> {
        let raw = self.driver().stream(self.context())?;
        Ok(Queue { raw, device: self.clone() })
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device").field("ordinal", &self.ordinal()).field("name", &self.0.name).finish_non_exhaustive()
    }
}

/// A stream that was made here.
pub(crate) struct Queue {
    pub(crate) raw: Stream,
    pub(crate) device: Device,
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: made in `queue`, destroyed once. The driver finishes what the stream was given; who gave it copies waits for
        // those by their events.
        let _ = unsafe { self.device.driver().destroy_stream(self.device.context(), self.raw) };
    }
}
