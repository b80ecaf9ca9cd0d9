//! The opened library, and the devices that it sees.

use std::ffi::CStr;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

use kvrail_verbs_sys as sys;
use sys::Unavailable;

use crate::context::Context;
use crate::error::Error;

/// libibverbs, opened. Cheap to clone.
#[derive(Clone)]
pub struct Verbs {
    pub(crate) raw: Arc<sys::IbVerbs>,
}

impl Verbs {
    /// Opens the library under its usual name.
    ///
    /// # Errors
    ///
    /// [`Unavailable`] with what was tried: on most machines there is none.
    pub fn open() -> Result<Self, Unavailable> {
        // SAFETY: what the dynamic linker knows by this name is libibverbs.
        unsafe { sys::open(None) }.map(|raw| Self { raw: Arc::new(raw) })
    }

    /// Opens the library that lies at `path`.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    ///
    /// # Safety
    ///
    /// The file must be libibverbs: code of it runs.
    pub unsafe fn open_at(path: &Path) -> Result<Self, Unavailable> {
        // SAFETY: the caller vouches for the file.
        unsafe { sys::open(Some(path)) }.map(|raw| Self { raw: Arc::new(raw) })
    }

    /// Whether this libibverbs has [`register_dmabuf`](crate::ProtectionDomain::register_dmabuf) (rdma-core 34 on); a device's driver may
    /// refuse it all the same.
    pub fn takes_dma_buf(&self) -> bool {
        self.raw.ibv_reg_dmabuf_mr.is_ok()
    }

    /// The devices that are there now.
    ///
    /// # Errors
    ///
    /// `ENOSYS` where the kernel has no RDMA, `EPERM` where this process may not use it.
    pub fn devices(&self) -> Result<Devices, Error> {
        let mut count = 0;
        // SAFETY: the count may be written.
        let list = unsafe { self.raw.ibv_get_device_list(&raw mut count) };
        let list = NonNull::new(list).ok_or_else(|| Error::last("ibv_get_device_list", "this machine"))?;
        let count = usize::try_from(count).unwrap_or(0);
        Ok(Devices(Arc::new(List { raw: list, count, verbs: self.clone() })))
    }
}

impl std::fmt::Debug for Verbs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Verbs")
    }
}

/// A list of devices, as they were when it was taken.
pub struct Devices(Arc<List>);

struct List {
    /// Array of `count` devices.
    raw: NonNull<*mut sys::ibv_device>,
    count: usize,
    verbs: Verbs,
}

// SAFETY: the list is not written after it was made; libibverbs counts references to its devices under a lock.
unsafe impl Send for List {}
// SAFETY: as above.
unsafe impl Sync for List {}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the list is freed once, by its only owner.
        unsafe { self.verbs.raw.ibv_free_device_list(self.raw.as_ptr()) };
    }
}

impl Devices {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.count
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Each of them, in the order in which the library lists them.
    pub fn iter(&self) -> impl Iterator<Item = Device> + '_ {
        (0..self.len()).map(|index| Device { list: Arc::clone(&self.0), index })
    }

    /// The device of this name, such as `mlx5_0`.
    pub fn find(&self, name: &str) -> Option<Device> {
        self.iter().find(|device| device.name() == name)
    }
}

/// A device that is not in use yet.
#[derive(Clone)]
pub struct Device {
    list: Arc<List>,
    index: usize,
}

impl Device {
    fn raw(&self) -> *mut sys::ibv_device {
        // SAFETY: the index lies in the list, which lives as long as `self`.
        unsafe { *self.list.raw.as_ptr().add(self.index) }
    }

    /// Its name, such as `mlx5_0`: unique on this machine, until somebody renames it.
    pub fn name(&self) -> String {
        // SAFETY: the device lives as long as its list; the name is a string inside it, or null.
        unsafe {
            let name = self.list.verbs.raw.ibv_get_device_name(self.raw());
            if name.is_null() { String::new() } else { CStr::from_ptr(name).to_string_lossy().into_owned() }
        }
    }

    /// Its node GUID; 0 where it has none.
    pub fn guid(&self) -> u64 {
        // SAFETY: the device lives as long as its list.
        u64::from_be(unsafe { self.list.verbs.raw.ibv_get_device_guid(self.raw()) })
    }

    /// Opens it.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`] with the errno of `ibv_open_device`.
    pub fn open(&self) -> Result<Context, Error> {
        let name = self.name();
        // SAFETY: the device lives as long as its list; the context keeps a reference of its own.
        let raw = unsafe { self.list.verbs.raw.ibv_open_device(self.raw()) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("ibv_open_device", &name))?;
        Context::new(raw, self.list.verbs.clone(), name)
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device").field("name", &self.name()).finish()
    }
}
