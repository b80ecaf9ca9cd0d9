//! Protection domains and the memory that is registered in them.

use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use kvrail_verbs_sys as sys;

use crate::context::Context;
use crate::error::{Error, check};

bitflags::bitflags! {
    /// Who may do what to memory, and to a queue pair's peer's. Reading locally is always allowed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// This side's NIC may write: receives land, READs land. `REMOTE_WRITE` needs it.
        const LOCAL_WRITE = sys::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
        /// The peer may write.
        const REMOTE_WRITE = sys::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
        /// The peer may read.
        const REMOTE_READ = sys::ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
        /// The peer may use atomics.
        const REMOTE_ATOMIC = sys::ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0;
        /// Memory windows may be bound to it.
        const WINDOW_BIND = sys::ibv_access_flags::IBV_ACCESS_MW_BIND.0;
        /// The keys address from 0, not from the address of the memory.
        const ZERO_BASED = sys::ibv_access_flags::IBV_ACCESS_ZERO_BASED.0;
        /// Not pinned: pages are fetched when the NIC needs them.
        const ON_DEMAND = sys::ibv_access_flags::IBV_ACCESS_ON_DEMAND.0;
        /// The writes of a message may land in any order. Ignored where it is not known.
        const RELAXED_ORDERING = sys::ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0;
    }
}

impl Access {
    /// As verbs take it.
    pub(crate) fn int(self) -> i32 {
        self.bits().cast_signed()
    }
}

/// What belongs together: queue pairs reach regions of their own domain only. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ProtectionDomain(Arc<Domain>);

#[derive(Debug)]
struct Domain {
    raw: NonNull<sys::ibv_pd>,
    context: Context,
}

// SAFETY: libibverbs allows every verb of a domain from every thread.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: freed once; whatever was made in it held it, and is gone.
        let code = unsafe { self.context.library().ibv_dealloc_pd(self.raw.as_ptr()) };
        self.context.count_undestroyed(code);
    }
}

impl ProtectionDomain {
    pub(crate) fn new(context: &Context) -> Result<Self, Error> {
        // SAFETY: the context is open.
        let raw = unsafe { context.library().ibv_alloc_pd(context.raw()) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("ibv_alloc_pd", context.name()))?;
        Ok(Self(Arc::new(Domain { raw, context: context.clone() })))
    }

    pub(crate) fn raw(&self) -> *mut sys::ibv_pd {
        self.0.raw.as_ptr()
    }

    /// The device it is of.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// Whether two handles are of the same domain.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Registers `bytes` from `address` on. Takes milliseconds: pages are pinned and the NIC's table is written.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`]: `ENOMEM` past the limit of locked memory, `EFAULT` where the memory may not be written although
    /// that was asked for.
    ///
    /// # Safety
    ///
    /// From now until the region is gone (the last handle is dropped and [`Context::undestroyed`] has not risen, or
    /// [`MemoryRegion::deregister`] has succeeded) the memory stays mapped, and nothing in this process relies on its
    /// content while `access` or a posted request lets a NIC write it: such writes come at any time, from outside.
    pub unsafe fn register(&self, address: NonNull<u8>, bytes: usize, access: Access) -> Result<MemoryRegion, Error> {
        let library = self.context().library();
        // SAFETY: the domain lives; the caller vouches for the memory. The library reads nothing from it.
        let raw = unsafe { library.ibv_reg_mr(self.raw(), address.as_ptr().cast(), bytes, access.int()) };
        self.adopt(raw, "ibv_reg_mr")
    }

    /// The same, with keys that address from `iova` on rather than from the memory's own address.
    ///
    /// # Errors
    ///
    /// As [`register`](Self::register); [`Error::Unsupported`] before rdma-core 28.
    ///
    /// # Safety
    ///
    /// As [`register`](Self::register).
    pub unsafe fn register_at(
        &self,
        address: NonNull<u8>,
        bytes: usize,
        iova: u64,
        access: Access,
    ) -> Result<MemoryRegion, Error> {
        let context = self.context();
        let register = context.library().ibv_reg_mr_iova2.as_ref();
        let register =
            register.map_err(|_| Error::Unsupported { what: "ibv_reg_mr_iova2", on: context.name().into() })?;
        // SAFETY: the domain lives; the caller vouches for the memory.
        let raw = unsafe { register(self.raw(), address.as_ptr().cast(), bytes, iova, access.bits()) };
        self.adopt(raw, "ibv_reg_mr_iova2")
    }

    /// Registers memory of another device that is exported as a dma-buf: `bytes` from `offset` on, addressed from `iova`.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] before rdma-core 34; [`Error::Verb`]: `EOPNOTSUPP` where the driver does not have it.
    ///
    /// # Safety
    ///
    /// As [`register`](Self::register), for the memory behind the descriptor.
    pub unsafe fn register_dmabuf(
        &self,
        dmabuf: BorrowedFd<'_>,
        offset: u64,
        bytes: usize,
        iova: u64,
        access: Access,
    ) -> Result<MemoryRegion, Error> {
        let context = self.context();
        let register = context.library().ibv_reg_dmabuf_mr.as_ref();
        let register =
            register.map_err(|_| Error::Unsupported { what: "ibv_reg_dmabuf_mr", on: context.name().into() })?;
        // SAFETY: the domain lives; the caller vouches for the memory.
        let raw = unsafe { register(self.raw(), offset, bytes, iova, dmabuf.as_raw_fd(), access.int()) };
        self.adopt(raw, "ibv_reg_dmabuf_mr")
    }

    fn adopt(&self, raw: *mut sys::ibv_mr, verb: &'static str) -> Result<MemoryRegion, Error> {
        let raw = NonNull::new(raw).ok_or_else(|| Error::last(verb, self.context().name()))?;
        // SAFETY: the region was just made.
        let (lkey, rkey) = unsafe { (raw.as_ref().lkey, raw.as_ref().rkey) };
        Ok(MemoryRegion(Arc::new(Region { raw, domain: self.clone(), lkey, rkey })))
    }
}

/// Registered memory. Cheap to clone; the last handle takes the registration away.
#[derive(Clone, Debug)]
pub struct MemoryRegion(Arc<Region>);

#[derive(Debug)]
struct Region {
    raw: NonNull<sys::ibv_mr>,
    domain: ProtectionDomain,
    lkey: u32,
    rkey: u32,
}

// SAFETY: libibverbs allows every verb of a region from every thread; its keys do not change.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Drop for Region {
    fn drop(&mut self) {
        let code = self.deregister();
        self.domain.context().count_undestroyed(code);
    }
}

impl Region {
    /// Takes the registration away; 0 or an errno, after which it is still there.
    fn deregister(&self) -> i32 {
        // SAFETY: called once with success: `Drop` is the last to have it, and the other caller forgets it then.
        unsafe { self.domain.context().library().ibv_dereg_mr(self.raw.as_ptr()) }
    }
}

impl MemoryRegion {
    pub(crate) fn raw(&self) -> *mut sys::ibv_mr {
        self.0.raw.as_ptr()
    }

    /// What this side's requests name it by.
    pub fn lkey(&self) -> u32 {
        self.0.lkey
    }

    /// What the peer's requests name it by.
    pub fn rkey(&self) -> u32 {
        self.0.rkey
    }

    /// The domain it is registered in.
    pub fn domain(&self) -> &ProtectionDomain {
        &self.0.domain
    }

    /// Takes the registration away and says whether that worked, which dropping does not.
    ///
    /// # Errors
    ///
    /// The region, still registered, and why: `EBUSY` while a memory window is bound to it or another handle is alive.
    pub fn deregister(self) -> Result<(), (Self, Error)> {
        let on = self.0.domain.context().name().to_owned();
        let region = Arc::try_unwrap(self.0).map_err(|shared| {
            let error = Error::code("ibv_dereg_mr", &on, libc::EBUSY);
            (Self(shared), error)
        })?;
        if let Err(error) = check(region.deregister(), "ibv_dereg_mr", &on) {
            return Err((Self(Arc::new(region)), error));
        }
        let region = ManuallyDrop::new(region);
        // SAFETY: the region is not dropped, so its domain is taken out of it once.
        drop(unsafe { std::ptr::read(&raw const region.domain) });
        Ok(())
    }
}
