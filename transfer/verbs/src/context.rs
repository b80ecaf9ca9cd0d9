//! A device in use.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use kvrail_verbs_sys as sys;

use crate::error::{Error, check, fits};
use crate::event::AsyncEvent;
use crate::gid::{self, GidEntry};
use crate::library::Verbs;
use crate::memory::ProtectionDomain;
use crate::port::PortAttributes;

/// An open device. Cheap to clone; closed with the last object that was made from it.
#[derive(Clone)]
pub struct Context(Arc<Inner>);

struct Inner {
    raw: NonNull<sys::ibv_context>,
    verbs: Verbs,
    name: String,
    undestroyed: AtomicUsize,
}

// SAFETY: libibverbs allows every verb of a context from every thread.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: closed once; whatever was made from it held it, and is gone.
        unsafe { self.verbs.raw.ibv_close_device(self.raw.as_ptr()) };
    }
}

impl Context {
    pub(crate) fn new(raw: NonNull<sys::ibv_context>, verbs: Verbs, name: String) -> Result<Self, Error> {
        let context = Self(Arc::new(Inner { raw, verbs, name, undestroyed: AtomicUsize::new(0) }));
        set_nonblocking(context.async_fd()).map_err(|source| Error::Verb {
            verb: "fcntl of the event descriptor",
            on: context.name().into(),
            source,
        })?;
        Ok(context)
    }

    pub(crate) fn raw(&self) -> *mut sys::ibv_context {
        self.0.raw.as_ptr()
    }

    /// The library that it was opened through.
    pub fn verbs(&self) -> &Verbs {
        &self.0.verbs
    }

    pub(crate) fn library(&self) -> &sys::IbVerbs {
        &self.0.verbs.raw
    }

    /// Counts an object that could not be destroyed when its handle was dropped.
    pub(crate) fn count_undestroyed(&self, code: i32) {
        if code != 0 {
            self.0.undestroyed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Name of the device when it was opened.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Objects that libibverbs refused to destroy when they were dropped: 0 unless a region went before a window that was
    /// bound to it, or a device has failed.
    pub fn undestroyed(&self) -> usize {
        self.0.undestroyed.load(Ordering::Relaxed)
    }

    /// What the device can do.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`].
    pub fn attributes(&self) -> Result<DeviceAttributes, Error> {
        let mut attr = MaybeUninit::uninit();
        // SAFETY: the context is open and `attr` may be written.
        let code = unsafe { sys::ibv_query_device_ex(self.library(), self.raw(), attr.as_mut_ptr()) };
        check(code, "ibv_query_device", self.name())?;
        // SAFETY: it was zeroed and filled.
        Ok(DeviceAttributes::of(&unsafe { attr.assume_init() }))
    }

    /// State of a port; the first is 1.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`]; `EINVAL` if there is no such port.
    pub fn port(&self, port: u8) -> Result<PortAttributes, Error> {
        let mut attr = MaybeUninit::uninit();
        // SAFETY: the context is open and `attr` may be written.
        let code = unsafe { sys::query_port(self.library(), self.raw(), port, attr.as_mut_ptr()) };
        check(code, "ibv_query_port", self.name())?;
        // SAFETY: it was zeroed and filled.
        Ok(PortAttributes::of(&unsafe { attr.assume_init() }, self.effective_speed(port)))
    }

    /// Speed in bit/s as the driver tells it, where library and driver do.
    fn effective_speed(&self, port: u8) -> Option<u64> {
        let query = *self.library().ibv_query_port_speed.as_ref().ok()?;
        let mut hundreds_of_megabits = 0;
        // SAFETY: the context is open and the number may be written.
        let code = unsafe { query(self.raw(), port.into(), &raw mut hundreds_of_megabits) };
        (code == 0 && hundreds_of_megabits > 0).then_some(hundreds_of_megabits * 100_000_000)
    }

    /// The GIDs of a port that are in use, with their type.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] before rdma-core 32, which cannot tell the type; [`Error::Verb`].
    pub fn gids(&self, port: u8) -> Result<Vec<GidEntry>, Error> {
        gid::table(self, port)
    }

    /// Makes a protection domain.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`].
    pub fn protection_domain(&self) -> Result<ProtectionDomain, Error> {
        ProtectionDomain::new(self)
    }

    /// What the device has reported, if anything; the event is acknowledged. The descriptor of the context (`AsFd`) becomes
    /// readable when there is one.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`].
    pub fn event(&self) -> Result<Option<AsyncEvent>, Error> {
        let mut event = MaybeUninit::uninit();
        // SAFETY: the context is open and the event may be written.
        if unsafe { self.library().ibv_get_async_event(self.raw(), event.as_mut_ptr()) } != 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock => Ok(None),
                _ => Err(Error::Verb { verb: "ibv_get_async_event", on: self.name().into(), source: error }),
            };
        }
        // SAFETY: an event was fetched. What it points to is destroyed only once it is acknowledged, which is after its
        // number was taken.
        unsafe {
            let mut event = event.assume_init();
            let told = AsyncEvent::of(&event);
            self.library().ibv_ack_async_event(&raw mut event);
            Ok(Some(told))
        }
    }

    fn async_fd(&self) -> RawFd {
        // SAFETY: the context is open.
        unsafe { (*self.raw()).async_fd }
    }

    /// A number for the other end of a verb that takes a C `int`.
    pub(crate) fn int(what: &'static str, value: u32) -> Result<i32, Error> {
        fits(what, value.into(), i32::MAX as u64)
    }
}

impl AsFd for Context {
    /// Readable when [`event`](Context::event) has something.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is the context's, which lives as long as the borrow.
        unsafe { BorrowedFd::borrow_raw(self.async_fd()) }
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Context").field(&self.name()).finish()
    }
}

/// Makes reads of a descriptor return at once.
pub(crate) fn set_nonblocking(fd: RawFd) -> io::Result<()> {
    // SAFETY: flags of a descriptor; nothing is pointed to.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        if flags < 0 || libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// What a device can do, as it says.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceAttributes {
    /// Version of its firmware.
    pub firmware: String,
    /// Node GUID.
    pub node_guid: u64,
    /// PCI vendor.
    pub vendor_id: u32,
    /// Vendor's number of the part.
    pub vendor_part_id: u32,
    /// Ports; they count from 1.
    pub ports: u32,
    /// Queue pairs, at most.
    pub qp_max: u32,
    /// Requests that wait in one queue of a queue pair, at most.
    pub qp_requests_max: u32,
    /// Segments of a request, at most.
    pub segments_max: u32,
    /// Completion queues, at most.
    pub cq_max: u32,
    /// Entries of a completion queue, at most.
    pub cq_entries_max: u32,
    /// Memory regions, at most.
    pub mr_max: u32,
    /// Bytes of a memory region, at most.
    pub mr_bytes_max: u64,
    /// Memory windows, at most; 0 where there are none.
    pub mw_max: u32,
    /// Protection domains, at most.
    pub pd_max: u32,
    /// Shared receive queues, at most; 0 where there are none.
    pub srq_max: u32,
    /// READs that a queue pair answers at once, at most.
    pub qp_reads_answered_max: u8,
    /// READs that a queue pair has under way at once, at most.
    pub qp_reads_started_max: u8,
    /// Whether there are windows of type 2 that are bound to a queue pair's number (2A).
    pub windows_2a: bool,
    /// Whether there are windows of type 2 that are bound to a queue pair (2B).
    pub windows_2b: bool,
    /// Whether memory can be registered without being pinned.
    pub on_demand_paging: bool,
}

impl DeviceAttributes {
    fn of(raw: &sys::ibv_device_attr_ex) -> Self {
        let attr = &raw.orig_attr;
        let has = |flag: sys::ibv_device_cap_flags| attr.device_cap_flags & flag.0 != 0;
        let firmware: Vec<u8> = attr.fw_ver.iter().map(|c| *c as u8).take_while(|byte| *byte != 0).collect();
        let number = |value: i32| u32::try_from(value).unwrap_or(0);
        let small = |value: i32| u8::try_from(value).unwrap_or(if value < 0 { 0 } else { u8::MAX });
        Self {
            firmware: String::from_utf8_lossy(&firmware).into_owned(),
            node_guid: u64::from_be(attr.node_guid),
            vendor_id: attr.vendor_id,
            vendor_part_id: attr.vendor_part_id,
            ports: raw.phys_port_cnt_ex.max(attr.phys_port_cnt.into()),
            qp_max: number(attr.max_qp),
            qp_requests_max: number(attr.max_qp_wr),
            segments_max: number(attr.max_sge),
            cq_max: number(attr.max_cq),
            cq_entries_max: number(attr.max_cqe),
            mr_max: number(attr.max_mr),
            mr_bytes_max: attr.max_mr_size,
            mw_max: number(attr.max_mw),
            pd_max: number(attr.max_pd),
            srq_max: number(attr.max_srq),
            qp_reads_answered_max: small(attr.max_qp_rd_atom),
            qp_reads_started_max: small(attr.max_qp_init_rd_atom),
            windows_2a: has(sys::ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2A),
            windows_2b: has(sys::ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2B),
            on_demand_paging: raw.odp_caps.general_caps & 1 != 0,
        }
    }
}
