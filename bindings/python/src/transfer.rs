//! What moves, and how it went.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kvrail_bindings::{Code, op_code};
use kvrail_transfer::{Op, Strided, TransportKind};
use pyo3::exceptions::{PyResourceWarning, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::pending::{Finish, Pending, awaiting, blocked_on, late};
use crate::raise::transfer_error;

/// A list of descriptors that is prepared once and submitted as often as wanted.
#[pyclass(module = "kvrail", frozen)]
pub struct Ops(pub Arc<Vec<Op>>);

/// One length for all runs, or one for each.
#[derive(FromPyObject)]
enum Lengths {
    One(u64),
    Each(Vec<u64>),
}

#[pymethods]
impl Ops {
    /// From runs: `(local offset, remote offset, length)` each.
    #[new]
    fn new(runs: Vec<(u64, u64, u64)>) -> Self {
        Self::of(runs.into_iter().map(|(local, remote, len)| Op::contiguous(local, remote, len)))
    }

    /// From lists of offsets, and of lengths or one length for all.
    #[staticmethod]
    fn lists(local: Vec<u64>, remote: Vec<u64>, length: Lengths) -> PyResult<Self> {
        let lens = match length {
            Lengths::One(len) => vec![len; local.len()],
            Lengths::Each(lens) => lens,
        };
        if local.len() != remote.len() || local.len() != lens.len() {
            let text = format!("{} local offsets, {} remote ones, {} lengths", local.len(), remote.len(), lens.len());
            return Err(PyValueError::new_err(text));
        }
        Ok(Self::of(local.iter().zip(&remote).zip(&lens).map(|((a, b), len)| Op::contiguous(*a, *b, *len))))
    }

    /// From strided descriptors: `(local offset, local stride, remote offset, remote stride, length of a run, runs)` each.
    #[staticmethod]
    fn strided(descriptors: Vec<(u64, u64, u64, u64, u64, u32)>) -> Self {
        Self::of(descriptors.into_iter().map(|(local, local_stride, remote, remote_stride, len, count)| Op {
            local: Strided { offset: local, len, stride: local_stride, count },
            remote: Strided { offset: remote, len, stride: remote_stride, count },
        }))
    }

    /// Payload bytes.
    #[getter]
    fn bytes(&self) -> u64 {
        self.0.iter().filter_map(|op| op.local.bytes()).fold(0, u64::saturating_add)
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn __repr__(&self) -> String {
        format!("<kvrail.Ops: {} descriptors, {} bytes>", self.0.len(), self.bytes())
    }
}

impl Ops {
    /// From what the engine knows.
    pub fn of(ops: impl IntoIterator<Item = Op>) -> Self {
        Self(Arc::new(ops.into_iter().collect()))
    }
}

/// A prepared list, or runs to make one of.
#[derive(FromPyObject)]
pub enum SomeOps<'py> {
    /// Prepared.
    List(PyRef<'py, Ops>),
    /// `(local offset, remote offset, length)` each.
    Runs(Vec<(u64, u64, u64)>),
}

impl SomeOps<'_> {
    /// The list.
    pub fn list(self) -> Arc<Vec<Op>> {
        match self {
            Self::List(list) => Arc::clone(&list.0),
            Self::Runs(runs) => Ops::new(runs).0,
        }
    }
}

/// How a transfer ended.
#[pyclass(module = "kvrail", frozen)]
pub struct Report(kvrail_transfer::Report);

#[pymethods]
impl Report {
    /// Whether all bytes are visible.
    #[getter]
    fn ok(&self) -> bool {
        self.0.status.is_ok()
    }

    /// Number of the status, 0 if all is well; `kvrail.errors` has a class for each other.
    #[getter]
    fn status(&self) -> i32 {
        self.0.status.as_ref().err().map_or(Code::Ok, Code::from) as i32
    }

    /// Whether local memory may be used again; otherwise when `Transfer.quiesce` says so.
    #[getter]
    fn memory_is_free(&self) -> bool {
        self.0.status.as_ref().err().is_none_or(|error| error.memory_is_free())
    }

    /// Payload bytes that landed, each counted once.
    #[getter]
    fn bytes(&self) -> u64 {
        self.0.bytes
    }

    /// Bytes that were sent again.
    #[getter]
    fn retried_bytes(&self) -> u64 {
        self.0.retried_bytes
    }

    /// Seconds from submission to the first slice on the wire.
    #[getter]
    fn queued(&self) -> f64 {
        self.0.queued.as_secs_f64()
    }

    /// Seconds from there to the last slice visible.
    #[getter]
    fn wire(&self) -> f64 {
        self.0.wire.as_secs_f64()
    }

    /// Landed bytes by rail: (transport, number of the stream, bytes) each.
    #[getter]
    fn rails(&self) -> Vec<(&'static str, u8, u64)> {
        let name = |kind| match kind {
            TransportKind::Shm => "shm",
            TransportKind::Tcp => "tcp",
            TransportKind::Rdma => "rdma",
            TransportKind::Sim => "sim",
        };
        self.0.bytes_by_rail.iter().map(|rail| (name(rail.transport), rail.stream, rail.bytes)).collect()
    }

    /// One byte for each op, 0 where it landed; `kvrail.op_status_name` has their names.
    #[getter]
    fn statuses<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.ops.iter().map(|status| op_code(*status)).collect::<Vec<_>>())
    }

    /// A `kvrail.OpError` for each op that has not landed.
    fn errors(&self, py: Python<'_>) -> PyResult<Vec<Py<PyAny>>> {
        let errors = py.import("kvrail.errors")?;
        let failed = self.0.ops.iter().map(|status| op_code(*status)).enumerate().filter(|(_, code)| *code != 0);
        failed.map(|(index, code)| Ok(errors.call_method1("make_op", (index, code))?.unbind())).collect()
    }

    fn __repr__(&self) -> String {
        let end = self.0.status.as_ref().map_or_else(|error| error.to_string(), |()| "landed".into());
        format!("<kvrail.Report: {end}, {} bytes of {} descriptors>", self.0.bytes, self.0.ops.len())
    }
}

/// The report, or the exception that says why it is none of success.
fn outcome(py: Python<'_>, report: kvrail_transfer::Report) -> PyResult<Py<PyAny>> {
    let error = report.status.err();
    let report = Py::new(py, Report(report))?.into_any();
    match error {
        None => Ok(report),
        Some(error) => Err(transfer_error(py, Code::from(&error), &error.to_string(), report)),
    }
}

/// Waits for a transfer that nobody else has: its report, or the exception.
pub fn over(py: Python<'_>, transfer: kvrail_transfer::Transfer) -> PyResult<Py<PyAny>> {
    py.detach(|| transfer.drive());
    if !transfer.is_done() && !blocked_on(py, transfer.finished(), None)? {
        return Err(late(None));
    }
    outcome(py, transfer.into_report().ok_or_else(|| late(None))?)
}

/// A transfer under way. Await it, or `wait`: its report, or an exception that has it. Garbage that was a transfer is cancelled,
/// with a ResourceWarning.
#[pyclass(module = "kvrail", frozen)]
pub struct Transfer {
    transfer: Arc<kvrail_transfer::Transfer>,
    /// Cancelled by the caller, who knows.
    cancelled: AtomicBool,
}

impl Transfer {
    /// What the engine accepted.
    pub fn new(transfer: kvrail_transfer::Transfer) -> Self {
        Self { transfer: Arc::new(transfer), cancelled: AtomicBool::new(false) }
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        // Something that is awaited has another hold on it.
        let is_last = Arc::strong_count(&self.transfer) == 1;
        if is_last && !self.transfer.is_done() && !self.cancelled.load(Ordering::Relaxed) {
            // Objects are dropped attached to the interpreter; what it is at with an exception must not change.
            let _ = Python::try_attach(|py| {
                let current = PyErr::take(py);
                let words = c"a kvrail.Transfer is cancelled because nothing refers to it: keep it until it has ended";
                if let Err(error) = PyErr::warn(py, &py.get_type::<PyResourceWarning>(), words, 1) {
                    error.write_unraisable(py, None);
                }
                if let Some(current) = current {
                    current.restore(py);
                }
            });
        }
    }
}

#[pymethods]
impl Transfer {
    /// Blocks until it has ended; other threads run meanwhile. TimeoutError after `timeout` seconds, and it goes on.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        if timeout.is_none_or(|timeout| timeout > 0.0) {
            py.detach(|| self.transfer.drive());
        }
        if !self.transfer.is_done() && !blocked_on(py, self.transfer.finished(), timeout)? {
            return Err(late(timeout));
        }
        outcome(py, self.transfer.report().ok_or_else(|| late(timeout))?)
    }

    fn __await__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let (transfer, cancelled) = (Arc::clone(&self.transfer), Arc::clone(&self.transfer));
        let pending = Pending::new(async move {
            transfer.finished().await;
            Box::new(move |py: Python<'_>| match transfer.report() {
                Some(report) => outcome(py, report),
                None => Err(late(None)),
            }) as Finish
        });
        awaiting(py, Py::new(py, pending.cancelled_by(move || cancelled.cancel()))?.into_any())
    }

    /// Stops what has not been sent.
    fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
        self.transfer.cancel();
    }

    /// Whether it has ended.
    #[getter]
    fn done(&self) -> bool {
        self.transfer.is_done()
    }

    /// Its report, well or not; None while it has not ended.
    #[getter]
    fn report(&self) -> Option<Report> {
        self.transfer.report().map(Report)
    }

    /// A result when nothing of it can touch local memory any more.
    fn quiesce(&self) -> Pending {
        let quiesce = self.transfer.quiesce();
        Pending::new(async move {
            quiesce.await;
            Box::new(|py: Python<'_>| Ok(py.None())) as Finish
        })
    }
}
