//! Errors as exceptions: `kvrail.errors` has a class for each number.

use std::error::Error;

use kvrail_bindings::{Code, op_name};
use pyo3::prelude::*;

/// The exception for a number, with its words.
pub fn error(py: Python<'_>, code: Code, text: &str) -> PyErr {
    let made = py.import("kvrail.errors").and_then(|errors| errors.call_method1("make", (code as i32, text)));
    made.map_or_else(|error| error, PyErr::from_value)
}

/// The exception for a transfer that failed, with its report.
pub fn transfer_error(py: Python<'_>, code: Code, text: &str, report: Py<PyAny>) -> PyErr {
    let made = py.import("kvrail.errors").and_then(|errors| errors.call_method1("make", (code as i32, text, report)));
    made.map_or_else(|error| error, PyErr::from_value)
}

/// Turns the engine's errors into exceptions.
pub trait Raise<T> {
    /// The value, or the exception.
    fn raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T, E: Error> Raise<T> for Result<T, E>
where
    Code: for<'a> From<&'a E>,
{
    fn raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|e| {
            let source = e.source().map(|source| format!(": {source}")).unwrap_or_default();
            error(py, Code::from(&e), &format!("{e}{source}"))
        })
    }
}

/// Numbers and names of all statuses, for `kvrail.errors`.
#[pyfunction]
pub fn status_names() -> Vec<(i32, &'static str)> {
    Code::ALL.iter().map(|code| (*code as i32, code.name())).collect()
}

/// Name of an op's status; None for a number that is none.
#[pyfunction]
pub fn op_status_name(status: u8) -> Option<&'static str> {
    op_name(status)
}
