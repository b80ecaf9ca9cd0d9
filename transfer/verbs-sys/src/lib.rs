//! libibverbs as Rust sees it: types and functions of rdma-core's `infiniband/verbs.h`, the library opened at run time.
//!
//! Nothing here is safe to call and nothing here decides anything: `kvrail-verbs` is the layer for use.
//!
//! # Laws
//!
//! - Nothing is linked: a binary with this crate starts where there is no libibverbs, and [`open`] says what it tried.
//! - The environment is never read; another library is named by an argument.
//! - `bindings` and `layout` are generated and committed. `cargo xtask verbs-bindings --check` says whether they are what
//!   the generator writes; `tests/fresh.rs` notices a change of one without the other on a machine without libclang.
//! - A symbol that an older library lacks is an `Err` in its field of [`IbVerbs`]. Those of [`REQUIRED`] are there once
//!   `open` has returned; the method of any other panics where it is absent, so look at its field first.
//!
//! # Map
//!
//! | file | room |
//! |---|---|
//! | `bindings` | generated: types, constants, `IbVerbs` with what libibverbs exports |
//! | `layout` | generated: sizes and offsets as clang sees them on x86-64, asserted when this crate is compiled |
//! | `open` | finding and opening the library |
//! | `inline` | what verbs.h defines inline: calls through the provider's table of operations |
//! | `../generate` | the generator, a crate of its own |

// The names are C's.
#[allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unreachable_pub,
    clippy::all,
    clippy::undocumented_unsafe_blocks
)]
#[rustfmt::skip]
mod bindings;
mod inline;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[allow(clippy::all)]
#[rustfmt::skip]
mod layout;
mod open;

pub use bindings::*;
pub use inline::*;
pub use open::{DEFAULT_NAMES, REQUIRED, Unavailable, open};
