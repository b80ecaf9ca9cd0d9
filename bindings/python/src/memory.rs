//! Regions: memory that the engine allocates, or the caller's own.
//!
//! # Ownership
//! An allocated region is unmapped when nothing refers to it: handles here, views of it (they hold the handle), leases,
//! transfers. A registered one holds the Python object that owns the bytes, through [`Owner`], for as long as an engine may
//! touch them; views of it are not made, the caller has the memory already.
#![allow(unsafe_code, reason = "memory of Python objects is handed to the engine, and a DLPack capsule is read")]

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use kvrail_bindings::{Code, Flag};
use parking_lot::Mutex;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::pending::{Finish, Pending};
use crate::raise::{self, Raise};

/// Keeps registered memory, and says when the engine has let go of it.
struct Owner {
    // Dropped without the interpreter: pyo3 notes it, and releases it when this module is called next.
    _object: Py<PyAny>,
    gone: Arc<Flag>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.gone.raise();
    }
}

/// Memory that can be lent and moved.
#[pyclass(module = "kvrail", frozen)]
pub struct Region {
    region: Mutex<Option<kvrail_transfer::Region>>,
    address: usize,
    len: usize,
    shared: bool,
    readonly: bool,
    /// Raised when registered memory is its owner's again; allocated memory has no other owner.
    gone: Option<Arc<Flag>>,
}

impl Region {
    /// What the engine allocated.
    pub fn allocated(region: kvrail_transfer::Region) -> Self {
        let shared = region.kind() == kvrail_transfer::MemoryKind::Shared;
        let (address, len) = (region.as_ptr() as usize, region.len());
        Self { region: Mutex::new(Some(region)), address, len, shared, readonly: false, gone: None }
    }

    /// The caller's memory, kept by `owner`.
    pub fn registered(py: Python<'_>, address: usize, len: usize, readonly: bool, owner: Py<PyAny>) -> PyResult<Self> {
        let base = NonNull::new(std::ptr::with_exposed_provenance_mut(address));
        let base = base.ok_or_else(|| raise::error(py, Code::Memory, "a region at address 0 cannot be made"))?;
        let gone = Arc::new(Flag::default());
        let keeper = Owner { _object: owner, gone: Arc::clone(&gone) };
        // SAFETY: the object that describes the memory keeps it mapped while it lives, and `keeper` holds that object; for a
        // bare address it is the caller's word (`register_pointer`). Read-only memory is neither lent for writing nor read
        // into: `writable` is asked before either.
        let region = unsafe { kvrail_transfer::Region::register(base, len, keeper) }.raise(py)?;
        Ok(Self { region: Mutex::new(Some(region)), address, len, shared: false, readonly, gone: Some(gone) })
    }

    /// The engine's handle.
    pub fn get(&self) -> PyResult<kvrail_transfer::Region> {
        let region = self.region.lock().clone();
        region.ok_or_else(|| PyValueError::new_err("region: it has been unregistered"))
    }

    /// The engine's handle, for who is going to write to it.
    pub fn writable(&self) -> PyResult<kvrail_transfer::Region> {
        if self.readonly {
            return Err(PyBufferError::new_err("region: its memory is read-only"));
        }
        self.get()
    }

    fn own(&self) -> PyResult<()> {
        match self.gone {
            Some(_) => Err(PyBufferError::new_err("a registered region has no views: its owner has the memory")),
            None => Ok(()),
        }
    }
}

#[pymethods]
impl Region {
    /// Address of its first byte.
    #[getter]
    fn address(&self) -> usize {
        self.address
    }

    /// Whether peers on the same host can map it.
    #[getter]
    fn shared(&self) -> bool {
        self.shared
    }

    /// Whether its memory must not be written.
    #[getter]
    fn readonly(&self) -> bool {
        self.readonly
    }

    /// Whether it is memory of the caller.
    #[getter]
    fn registered_memory(&self) -> bool {
        self.gone.is_some()
    }

    fn __len__(&self) -> usize {
        self.len
    }

    fn __repr__(&self) -> String {
        let kind = if self.gone.is_some() { "registered" } else { "allocated" };
        format!("<kvrail.Region {kind}, {} bytes at {:#x}>", self.len, self.address)
    }

    /// A writable memoryview of an allocated region, without a copy; it keeps the region.
    fn view(this: Py<Self>, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let region = this.get();
        region.own()?;
        let (address, len) = (region.address, region.len);
        Ok(py.import("kvrail._memory")?.call_method1("view", (address, len, this))?.unbind())
    }

    /// By which NumPy sees an allocated region as bytes, without a copy.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.own().map_err(|e| pyo3::exceptions::PyAttributeError::new_err(e.to_string()))?;
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("typestr", "|u1")?;
        interface.set_item("shape", (self.len,))?;
        interface.set_item("data", (self.address, false))?;
        Ok(interface)
    }

    /// Gives registered memory back to its owner: the result is there when no engine touches it any more. Leases on it must be
    /// revoked for that, and transfers end.
    fn unregister(&self) -> PyResult<Pending> {
        let gone = self.gone.as_ref().ok_or_else(|| PyValueError::new_err("region: it was not registered"))?;
        let region = self.region.lock().take();
        // What is left of it may be dropped here, with the object that owns the bytes.
        drop(region);
        let raised = gone.raised();
        Ok(Pending::new(async move {
            raised.await;
            Box::new(|py: Python<'_>| Ok(py.None())) as Finish
        }))
    }
}

/// `DLTensor` of the DLPack specification, the part that both its versions share.
#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

/// Where a DLPack capsule's tensor lies: address, length in bytes, kind of device, whether it is dense in C order. The capsule
/// stays whole: who keeps it keeps the tensor.
#[pyfunction]
pub fn dlpack(capsule: &Bound<'_, PyAny>) -> PyResult<(usize, usize, i32, bool)> {
    const NAME: &CStr = c"dltensor";
    // SAFETY: a live object; the call checks that it is a capsule of that name and raises otherwise.
    let tensor = unsafe { pyo3::ffi::PyCapsule_GetPointer(capsule.as_ptr(), NAME.as_ptr()) };
    if tensor.is_null() {
        return Err(PyErr::fetch(capsule.py()));
    }
    // SAFETY: a capsule of that name holds a `DLManagedTensor`, whose first member this is, until it is consumed; `capsule`
    // is held meanwhile.
    let tensor = unsafe { &*tensor.cast::<DlTensor>() };
    let Ok(ndim) = usize::try_from(tensor.ndim) else {
        return Err(PyValueError::new_err("dlpack: a negative number of dimensions"));
    };
    let dimensions = |pointer: *const i64| match ndim {
        0 => &[][..],
        // SAFETY: the specification promises `ndim` elements where the pointer is not NULL, which was asked before.
        _ => unsafe { std::slice::from_raw_parts(pointer, ndim) },
    };
    if ndim > 0 && tensor.shape.is_null() {
        return Err(PyValueError::new_err("dlpack: a tensor without a shape"));
    }
    let shape = dimensions(tensor.shape);
    let bits = usize::from(tensor.bits) * usize::from(tensor.lanes);
    let elements = shape.iter().try_fold(1usize, |all, n| all.checked_mul(usize::try_from(*n).ok()?));
    let bytes = elements.and_then(|n| n.checked_mul(bits)).map(|bits| bits.div_ceil(8));
    let bytes = bytes.ok_or_else(|| PyValueError::new_err("dlpack: a size that no memory has"))?;
    let dense = tensor.strides.is_null() || {
        let mut expected = 1i64;
        shape.iter().zip(dimensions(tensor.strides)).rev().all(|(n, stride)| {
            let fits = *n == 1 || *stride == expected;
            expected = expected.saturating_mul(*n);
            fits
        })
    };
    let address = (tensor.data as usize).wrapping_add(tensor.byte_offset as usize);
    Ok((address, bytes, tensor.device_type, dense))
}
