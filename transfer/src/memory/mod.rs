//! Registered memory: regions that the engine may read and write for its peers.
//!
//! A [`Region`] is a reference-counted mapping. Everything that may still touch its bytes (a transfer in flight, a lease
//! that is not fenced yet, a peer's mapping table) holds a clone, so the mapping cannot go away under it, whatever its
//! owner drops.
//!
//! # Ownership of the bytes
//! A region has mapped its bytes itself, or holds the owner of somebody else's ([`Region::register`]); either goes with the
//! last clone. The bytes of a region are shared with other threads and, for [`MemoryKind::Shared`], with other processes. The engine
//! never makes a `&[u8]` or `&mut [u8]` over them: system calls and raw copies move them. Who may read and write which
//! range at what time is decided by leases (remote side) and by transfers that are not quiesced (local side); a caller
//! that touches a lent range gets undefined *contents*, never undefined behaviour of the engine.

mod mapping;
mod populate;
#[cfg(test)]
mod registered;
mod streaming;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;

pub(crate) use mapping::{Mapping, copy, copy_within};
pub(crate) use streaming::copy_streaming;

use kvrail_cuda::{DeviceMemory, Segment};

use crate::integrity::Crc;
use crate::transport::rdma::Registrations;

/// Where a region's bytes lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryKind {
    /// A sealed memfd: a peer on the same host can map it read-only and copy from it.
    Shared,
    /// Memory private to this process: anonymous, or [registered](Region::register).
    Host,
    /// Memory of a GPU: [`Region::device`].
    Device,
}

/// Why memory could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// A region of no bytes, or of more than the address space.
    #[error("a region of {0} bytes cannot be made")]
    Length(usize),
    /// The operating system refused.
    #[error("{what} of {len} bytes failed")]
    Os {
        /// The call that failed.
        what: &'static str,
        /// Bytes asked for.
        len: usize,
        /// Its error.
        #[source]
        source: std::io::Error,
    },
    /// [`Engine::allocate`](crate::Engine::allocate) maps host memory. A device's is allocated or imported on it, and made a region by
    /// [`Region::device`].
    #[error("device memory is allocated on a device, not here")]
    Device,
    /// A peer's file lacks the seals that keep it from shrinking under us.
    #[error("the shared file is not sealed against resizing")]
    NotSealed,
}

/// Registered memory. Clones share it; the last one unmaps it, or lets go of the owner of [registered](Self::register)
/// memory.
///
/// What [`Engine::allocate`](crate::Engine::allocate) maps is zeroed, starts on a 2 MiB boundary and asks for huge pages.
#[derive(Clone)]
pub struct Region(Arc<Inner>);

struct Inner {
    id: u64,
    kind: MemoryKind,
    /// Dropped before the mapping.
    registrations: Registrations,
    memory: Memory,
}

/// What the bytes are.
enum Memory {
    Host(Mapping),
    /// Never dereferenced: bytes move by the device's copies, or by NICs.
    Device(DeviceMemory),
}

/// A region that may be gone.
#[derive(Clone)]
pub(crate) struct WeakRegion(Weak<Inner>);

impl WeakRegion {
    pub(crate) fn upgrade(&self) -> Option<Region> {
        self.0.upgrade().map(Region)
    }
}

impl Region {
    /// Maps `len` zeroed bytes.
    ///
    /// # Errors
    /// [`MemoryError`] when the length is zero or the system refuses.
    pub(crate) fn allocate(len: usize, kind: MemoryKind) -> Result<Self, MemoryError> {
        let mapping = match kind {
            MemoryKind::Shared => Mapping::memfd(len)?,
            MemoryKind::Host => Mapping::anonymous(len)?,
            MemoryKind::Device => return Err(MemoryError::Device),
        };
        Ok(Self::of(mapping, kind))
    }

    /// Makes a region of memory that is mapped already: no byte is copied, and none changes hands.
    ///
    /// Engines can write it and send from it; no peer on the same host can map it, so its bytes leave over TCP. `owner` is
    /// what keeps the memory where it is. It is dropped once, by whichever thread lets go of the last clone of the region;
    /// from then on no engine touches the memory. Its drop must not block and must not call into an engine.
    ///
    /// ```
    /// use std::ptr::NonNull;
    /// use kvrail_transfer::Region;
    ///
    /// let mut bytes = vec![7u8; 4096];
    /// let base = NonNull::new(bytes.as_mut_ptr()).unwrap();
    /// // SAFETY: the vector's heap block is valid until the vector is dropped, and it goes with the region.
    /// let region = unsafe { Region::register(base, 4096, bytes) }.unwrap();
    /// assert_eq!(region.as_ptr(), base.as_ptr());
    /// ```
    ///
    /// # Safety
    /// For as long as `owner` lives, the `len` bytes from `base` must stay mapped in place, readable, and writable if the
    /// region is lent for writing, read into or written through [`write`](Self::write); and no Rust reference to any of
    /// them may be used: threads of engines, and peers under a lease, change and read them.
    ///
    /// # Errors
    /// [`MemoryError::Length`] when the range is empty or does not fit the address space; `owner` is dropped then.
    pub unsafe fn register(
        base: NonNull<u8>,
        len: usize,
        owner: impl Send + Sync + 'static,
    ) -> Result<Self, MemoryError> {
        // SAFETY: the caller's promise.
        let mapping = unsafe { Mapping::foreign(base, len, Box::new(owner)) }?;
        Ok(Self::of(mapping, MemoryKind::Host))
    }

    /// Makes a region of device memory, allocated on the device or imported from whoever allocated it: no byte is copied.
    ///
    /// It can be lent and moved as any other. Over TCP and from shared memory its bytes pass through pinned host memory; a NIC reaches
    /// them directly where the device, the kernel and libibverbs allow (docs/transfer.md). Peers on the same host cannot map it.
    ///
    /// ```no_run
    /// use kvrail_transfer::{Region, gpu::Gpus};
    ///
    /// let memory = Gpus::open()?.device(0)?.allocate(1 << 30)?; // typed errors where there is no driver, no device, no room
    /// let region = Region::device(memory);
    /// # Ok::<(), kvrail_transfer::gpu::Error>(())
    /// ```
    #[must_use]
    pub fn device(memory: DeviceMemory) -> Self {
        Self::with(Memory::Device(memory), MemoryKind::Device)
    }

    /// A region over memory that stays for ever, and an owner to watch.
    #[cfg(test)]
    pub(crate) fn of_static(bytes: &'static mut [u8], owner: impl Send + Sync + 'static) -> Self {
        let base = NonNull::from(&mut *bytes).cast();
        // SAFETY: the one reference to it ends here.
        unsafe { Self::register(base, bytes.len(), owner) }.expect("a range of memory")
    }

    fn of(mapping: Mapping, kind: MemoryKind) -> Self {
        Self::with(Memory::Host(mapping), kind)
    }

    fn with(memory: Memory, kind: MemoryKind) -> Self {
        // Ids are unique in the process, not only in an engine, so that a region handed to a wrong engine is noticed.
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Self(Arc::new(Inner { id, kind, registrations: Registrations::default(), memory }))
    }

    /// Number of the region, unique in this process.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// What kind of memory it is.
    #[must_use]
    pub fn kind(&self) -> MemoryKind {
        self.0.kind
    }

    /// First byte; 2 MiB aligned if it was allocated here, valid for [`len`](Self::len) bytes as long as a clone lives. Of device memory it
    /// is the device's address: the host must not dereference it.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        match &self.0.memory {
            Memory::Host(mapping) => mapping.base(),
            Memory::Device(memory) => std::ptr::without_provenance_mut(memory.address().0 as usize),
        }
    }

    /// Length in bytes, as asked for.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0.memory {
            Memory::Host(mapping) => mapping.len(),
            Memory::Device(memory) => memory.len() as usize,
        }
    }

    /// Never: a region has at least a byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies `to.len()` bytes out of the region.
    ///
    /// # Panics
    /// If the range passes the end, and if the region is [device memory](Self::device): its device's lanes copy that
    /// ([`try_read`](Self::try_read)).
    pub fn read(&self, offset: u64, to: &mut [u8]) {
        let from = self.at(offset, to.len() as u64).expect("range inside a region of host memory");
        // SAFETY: `at` proved the source range; the destination is an exclusive slice, so it cannot overlap a mapping
        // that is never lent out as a slice.
        unsafe { copy(from, to.as_mut_ptr(), to.len()) }
    }

    /// Copies `from` into the region.
    ///
    /// # Panics
    /// As [`read`](Self::read).
    pub fn write(&self, offset: u64, from: &[u8]) {
        let to = self.at(offset, from.len() as u64).expect("range inside a region of host memory");
        // SAFETY: as in `read`, with the roles exchanged.
        unsafe { copy(from.as_ptr(), to, from.len()) }
    }

    /// As [`read`](Self::read), of device memory too; blocks while the device copies.
    ///
    /// # Errors
    /// What the device's driver says.
    ///
    /// # Panics
    /// If the range passes the end.
    pub fn try_read(&self, offset: u64, to: &mut [u8]) -> Result<(), kvrail_cuda::Error> {
        let Some(memory) = self.device_memory() else {
            self.read(offset, to);
            return Ok(());
        };
        let address = memory.at(offset, to.len() as u64).expect("range inside the region");
        let mut rest = to;
        memory.device().lane()?.pull(memory, [Segment { address, len: rest.len() as u64 }], |from, len| {
            let (part, after) = std::mem::take(&mut rest).split_at_mut(len);
            // SAFETY: `len` bytes of a pinned chunk that is ours for the call; the destination is an exclusive slice.
            unsafe { copy(from, part.as_mut_ptr(), len) };
            rest = after;
        })
    }

    /// As [`write`](Self::write), of device memory too; blocks until the bytes are on the device.
    ///
    /// # Errors
    /// What the device's driver says.
    ///
    /// # Panics
    /// If the range passes the end.
    pub fn try_write(&self, offset: u64, from: &[u8]) -> Result<(), kvrail_cuda::Error> {
        let Some(memory) = self.device_memory() else {
            self.write(offset, from);
            return Ok(());
        };
        let address = memory.at(offset, from.len() as u64).expect("range inside the region");
        let mut rest = from;
        memory.device().lane()?.push(memory, [Segment { address, len: rest.len() as u64 }], |to, len| {
            let (part, after) = rest.split_at(len);
            // SAFETY: as in `try_read`, with the roles exchanged.
            unsafe { copy(part.as_ptr(), to, len) };
            rest = after;
        })
    }

    /// Has the kernel back the whole region with memory now, in the background, at a measured pace.
    ///
    /// Otherwise it does so page by page at first touch: the first transfers into a fresh pool of 4 KiB pages then take
    /// several times as long as the copy itself. The thread ends with its work or with the region; it is a help, so where
    /// the kernel (before 5.14) or a limit refuses, and for memory that was only registered, nothing changes.
    pub fn populate_in_background(&self) {
        populate::spawn(Arc::downgrade(&self.0));
    }

    pub(crate) fn downgrade(&self) -> WeakRegion {
        WeakRegion(Arc::downgrade(&self.0))
    }

    /// What NICs have registered of it.
    pub(crate) fn registrations(&self) -> &Registrations {
        &self.0.registrations
    }

    /// Address in host memory of `offset`, if the `len` bytes from there lie inside; none of device memory.
    pub(crate) fn at(&self, offset: u64, len: u64) -> Option<*mut u8> {
        match &self.0.memory {
            Memory::Host(mapping) => mapping.at(offset, len),
            Memory::Device(_) => None,
        }
    }

    /// Whether `len` bytes from `offset` on lie in it.
    pub(crate) fn contains(&self, offset: u64, len: u64) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.len() as u64)
    }

    /// CRC32 of ranges, offset and length each; none where one passes the end or a device does not give its bytes.
    pub(crate) fn crc(&self, mut ranges: impl Iterator<Item = (u64, u64)>) -> Option<u32> {
        let mut crc = Crc::default();
        if let Some(memory) = self.device_memory() {
            let segments = ranges.map(|(offset, len)| Some(Segment { address: memory.at(offset, len)?, len }));
            let segments: Vec<Segment> = segments.collect::<Option<_>>()?;
            let lane = memory.device().lane();
            // SAFETY: a chunk of pinned memory that is ours for the call.
            let pulled = lane.and_then(|lane| lane.pull(memory, segments, |base, len| unsafe { crc.add(base, len) }));
            pulled.inspect_err(|error| tracing::warn!(%error, "a device does not give its bytes")).ok()?;
        } else {
            ranges.try_for_each(|(offset, len)| {
                let base = self.at(offset, len)?;
                // SAFETY: `at` proved the range, and whoever calls holds the region.
                unsafe { crc.add(base, len as usize) };
                Some(())
            })?;
        }
        Some(crc.finish())
    }

    /// The device memory that it is, if it is.
    #[must_use]
    pub fn device_memory(&self) -> Option<&DeviceMemory> {
        match &self.0.memory {
            Memory::Host(_) => None,
            Memory::Device(memory) => Some(memory),
        }
    }

    /// Read-only handle of the memfd, to be passed to a peer.
    pub(crate) fn share(&self) -> Option<BorrowedFd<'_>> {
        match &self.0.memory {
            Memory::Host(mapping) => mapping.share().map(AsFd::as_fd),
            Memory::Device(_) => None,
        }
    }
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Region").field("id", &self.id()).field("kind", &self.kind()).field("len", &self.len()).finish()
    }
}
