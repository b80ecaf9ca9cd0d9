//! Memory windows: a second, narrower and revocable key to registered memory.
//!
//! A window of type 2 is bound by a request on a queue pair ([`Operation::Bind`](crate::Operation::Bind)) under a key whose last
//! byte the binder chooses, and made void by [`Operation::Invalidate`](crate::Operation::Invalidate) or by destroying it. Each is done once
//! it has completed.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use kvrail_verbs_sys as sys;

use crate::error::Error;
use crate::memory::ProtectionDomain;

/// How a window is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowKind {
    /// By the library, on any queue pair of the domain.
    One,
    /// By a request of the queue pair that it then holds for.
    Two,
}

/// A memory window. Cheap to clone; the last handle destroys it, which makes its key void.
#[derive(Clone, Debug)]
pub struct MemoryWindow(Arc<Window>);

#[derive(Debug)]
struct Window {
    raw: NonNull<sys::ibv_mw>,
    domain: ProtectionDomain,
    /// The key of the last bind.
    rkey: AtomicU32,
}

// SAFETY: libibverbs allows every verb of a window from every thread.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: freed once, by the last to have it.
        let code = unsafe { sys::ibv_dealloc_mw(self.raw.as_ptr()) };
        self.domain.context().count_undestroyed(code);
    }
}

impl ProtectionDomain {
    /// Makes a memory window.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`]: `EOPNOTSUPP` where the device has none of this kind.
    pub fn window(&self, kind: WindowKind) -> Result<MemoryWindow, Error> {
        let kind = match kind {
            WindowKind::One => sys::ibv_mw_type::IBV_MW_TYPE_1,
            WindowKind::Two => sys::ibv_mw_type::IBV_MW_TYPE_2,
        };
        // SAFETY: the context of the domain is open.
        let has_windows = unsafe { (*self.context().raw()).ops.alloc_mw.is_some() };
        if !has_windows {
            return Err(Error::Unsupported { what: "ibv_alloc_mw", on: self.context().name().into() });
        }
        // SAFETY: the domain lives.
        let raw = unsafe { sys::ibv_alloc_mw(self.raw(), kind) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("ibv_alloc_mw", self.context().name()))?;
        // SAFETY: the window was just made.
        let rkey = AtomicU32::new(unsafe { raw.as_ref().rkey });
        Ok(MemoryWindow(Arc::new(Window { raw, domain: self.clone(), rkey })))
    }
}

impl MemoryWindow {
    pub(crate) fn raw(&self) -> *mut sys::ibv_mw {
        self.0.raw.as_ptr()
    }

    /// The key that it was last bound under; before that, one that opens nothing.
    pub fn rkey(&self) -> u32 {
        self.0.rkey.load(Ordering::Relaxed)
    }

    /// A key that it was not bound under last: what to bind it under next. Keys come around after 256.
    pub fn next_rkey(&self) -> u32 {
        sys::ibv_inc_rkey(self.rkey())
    }

    /// Notes the key that a bind was posted with.
    pub(crate) fn bound_under(&self, rkey: u32) {
        self.0.rkey.store(rkey, Ordering::Relaxed);
    }
}
