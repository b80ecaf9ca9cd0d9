//! Leases at the owner of memory, tickets at their holder.

use std::sync::Arc;

use kvrail_transfer::{Access, LeaseTicket};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::pending::{Finish, Pending};
use crate::raise::Raise;

/// `"write"` or `"read"`.
pub fn access(text: &str) -> PyResult<Access> {
    match text {
        "write" => Ok(Access::Write),
        "read" => Ok(Access::Read),
        other => Err(PyValueError::new_err(format!("access: {other:?} is neither \"write\" nor \"read\""))),
    }
}

/// The right to a lease; whoever has it may use the lease.
#[pyclass(module = "kvrail", frozen)]
pub struct Ticket(pub LeaseTicket);

#[pymethods]
impl Ticket {
    #[new]
    fn new(py: Python<'_>, data: &[u8]) -> PyResult<Self> {
        LeaseTicket::from_bytes(data).raise(py).map(Self)
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.to_bytes())
    }

    /// Generation of the engine that lends.
    #[getter]
    fn generation(&self) -> u64 {
        self.0.generation()
    }

    /// "write" or "read".
    #[getter]
    fn access(&self) -> &'static str {
        match self.0.access() {
            Access::Write => "write",
            Access::Read => "read",
        }
    }

    /// Lent ranges of the owner's region: (offset, length) each, sorted and merged.
    #[getter]
    fn ranges(&self) -> Vec<(u64, u64)> {
        self.0.ranges().iter().map(|range| (range.offset, range.len)).collect()
    }

    // Without the key: a log line must not grant access.
    fn __repr__(&self) -> String {
        let bytes: u64 = self.0.ranges().iter().map(|range| range.len).sum();
        format!("<kvrail.Ticket to {} {bytes} bytes>", self.access())
    }
}

/// Memory that is lent. Garbage that was a lease is revoked.
#[pyclass(module = "kvrail", frozen)]
pub struct Lease(Arc<kvrail_transfer::Lease>);

impl Lease {
    /// What the engine granted.
    pub fn new(lease: kvrail_transfer::Lease) -> Self {
        Self(Arc::new(lease))
    }
}

#[pymethods]
impl Lease {
    /// What to hand to the peer.
    #[getter]
    fn ticket(&self) -> Ticket {
        Ticket(self.0.ticket())
    }

    /// Payload bytes that have landed under it.
    #[getter]
    fn bytes_landed(&self) -> u64 {
        self.0.bytes_landed()
    }

    /// Whether it has ended, by revocation or by its time.
    #[getter]
    fn is_over(&self) -> bool {
        self.0.is_over()
    }

    /// Ends it. The result, the bytes that landed under it, is there when no byte can land any more.
    fn revoke(&self) -> Pending {
        self.0.begin_revoke();
        self.fenced()
    }

    /// The same result when it has ended and is fenced, whoever ended it.
    fn fenced(&self) -> Pending {
        let lease = Arc::clone(&self.0);
        Pending::new(async move {
            let landed = lease.fenced().await.bytes_landed;
            Box::new(move |py: Python<'_>| Ok(landed.into_pyobject(py)?.into_any().unbind())) as Finish
        })
    }
}
