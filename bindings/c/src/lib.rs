//! The transfer engine for C: opaque handles, integer statuses, a text for each error. `include/kvrail.h` is the face that
//! callers read, written by hand; the tests of this crate hold it against what is here.
//!
//! # Laws
//!
//! 1. **Nothing unwinds into C.** Every function is guarded: a fault of ours is the status `KVRAIL_E_INTERNAL`.
//! 2. **`kvrail_submit` never blocks**, nor does anything else without a `timeout_ms`, but `kvrail_connect`, which is bounded by
//!    the engine's setting.
//! 3. **A handle is the caller's until it frees it**, and frees it once; what the engine still needs of it lives on inside.
//!    Handles may be used by several threads at once, and freed by one that knows that no other uses it.
//! 4. **Memory is the caller's again when the engine says so**: by the release function of registered memory, or by
//!    `kvrail_transfer_quiesce` and `kvrail_lease_revoke`.
//!
//! # Map
//!
//! | module | room |
//! |---|---|
//! | `status` | the guard around every function; statuses, their names, the text of the last error |
//! | `given` | what a caller hands in: handles, texts, arrays, places for results |
//! | `config`, `engine` | settings, starting and stopping |
//! | `region` | memory that is allocated or registered |
//! | `lease` | lending, tickets |
//! | `peer` | connecting |
//! | `transfer` | ops, submitting, waiting, reports |
//! | `events` | a descriptor for event loops; notifications |

// The names are C's.
#![allow(non_camel_case_types)]

mod config;
mod engine;
mod events;
mod given;
mod lease;
mod peer;
mod region;
mod status;
mod transfer;

pub use config::*;
pub use engine::*;
pub use events::*;
pub use lease::*;
pub use peer::*;
pub use region::*;
pub use status::*;
pub use transfer::*;
