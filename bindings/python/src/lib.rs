//! The transfer engine for Python: the native half of the package `kvrail`, imported by it as `kvrail._native`.
//!
//! # Laws
//!
//! 1. **No thread of an engine runs Python or waits for the interpreter.** What ends becomes a token behind a descriptor that an
//!    event loop reads; Python objects that an engine lets go of are released by the next call into this module.
//! 2. **Whoever waits lets others run**: a blocking wait is detached from the interpreter, and hears Ctrl-C.
//! 3. **Memory stays while an engine may touch it**: a region keeps the object that owns its bytes until then.
//! 4. **Every error is an exception of its own type** (`kvrail.errors`), chosen by the same number as in C.
//!
//! # Map
//!
//! | module | room |
//! |---|---|
//! | `engine` | engines and peers |
//! | `memory` | regions: allocated, or over the caller's memory |
//! | `lease` | leases and tickets |
//! | `transfer` | ops, transfers, reports |
//! | `pending` | what is waited for: blocking, or in an event loop |
//! | `raise` | errors as exceptions |
//! | `addresses` | raw addresses into ops, for `kvrail.compat` |
//! | `_native` | what the package sees of all this |

#![deny(unsafe_code)]

mod addresses;
mod engine;
mod lease;
mod memory;
mod pending;
mod raise;
mod transfer;

/// The native half of `kvrail`.
#[pyo3::pymodule]
mod _native {
    #[pymodule_export]
    use crate::addresses::{Buffers, group};
    #[pymodule_export]
    use crate::engine::{Engine, Notification, Peer, Prepared, rdma_nics};
    #[pymodule_export]
    use crate::lease::{Lease, Ticket};
    #[pymodule_export]
    use crate::memory::{Region, dlpack};
    #[pymodule_export]
    use crate::pending::{Events, Pending};
    #[pymodule_export]
    use crate::raise::{op_status_name, status_names};
    #[pymodule_export]
    use crate::transfer::{Ops, Report, Transfer};

    #[pymodule_export]
    #[allow(non_upper_case_globals)]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
