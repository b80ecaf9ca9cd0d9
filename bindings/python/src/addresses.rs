//! Raw addresses into ops, for `kvrail.compat`.

use kvrail_bindings::Buffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::transfer::Ops;

/// Registered ranges of an address space, by which addresses are looked up.
#[pyclass(module = "kvrail", frozen)]
pub struct Buffers(kvrail_bindings::Buffers);

#[pymethods]
impl Buffers {
    /// From `(address, length)` each; none may overlap. A buffer's name is its place in this list.
    #[new]
    fn new(buffers: Vec<(u64, u64)>) -> Self {
        let all: Vec<_> = buffers.into_iter().map(|(address, len)| Buffer { address, len }).collect();
        Self(kvrail_bindings::Buffers::new(&all))
    }
}

/// Groups runs by the pair of buffers that they lie in: `(local buffer, remote buffer, ops)` each. ValueError names a run that
/// lies in none.
#[pyfunction]
pub fn group(
    local: &Buffers,
    remote: &Buffers,
    source: Vec<u64>,
    target: Vec<u64>,
    lengths: Vec<u64>,
) -> PyResult<Vec<(usize, usize, Ops)>> {
    let groups = kvrail_bindings::group(&local.0, &remote.0, &source, &target, &lengths);
    let groups = groups.map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok(groups.into_iter().map(|group| (group.local, group.remote, Ops::of(group.ops))).collect())
}
