//! kvrail's verbs against those that others have written: layouts here, traffic in `tests/interop`.
//!
//! `rdma-sys` is what bindgen makes of the installed headers, with everything around unions typed by hand; `ibverbs-sys` is
//! what another bindgen makes of the headers of rdma-core 55. Ours come from newer headers than both.
//!
//! # Laws
//!
//! - Only names are read from text; sizes, offsets and values are the compiler's, asked of both crates.
//! - A field or constant that only the newer headers have is told, not failed. One that was renamed is failed, and so is a
//!   structure of another size without such a field.
//! - Nothing of kvrail depends on this crate.
//!
//! # Map
//!
//! | file | room |
//! |---|---|
//! | `../build` | reads the names, writes what is asked |
//! | `layouts` | what the build script wrote: both sides as values |
//! | `compare` | what counts as equal, newer or wrong |
//! | `../tests/layouts.rs` | the verdict, with its figures |
//! | `../tests/interop` | queue pairs of kvrail-verbs connected with queue pairs of `ibverbs` |
//!
//! After an upgrade of the installed headers, `cargo clean` first: rdma-sys does not look whether they changed.

mod compare;

pub use compare::{Both, Report};

/// Version of the installed libibverbs, whose headers rdma-sys has read.
pub const HEADERS: &str = env!("ABI_CHECK_HEADERS");

// Types of constants differ between the crates: `as i64` is needed for one and not for the other.
#[allow(clippy::all)]
mod layouts {
    use super::compare::{Both, Place, field, place, structure};

    include!(concat!(env!("OUT_DIR"), "/layouts.rs"));
}

pub use layouts::{ibverbs_sys, rdma_sys};
