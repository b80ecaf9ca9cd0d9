//! What the C and the Python face of the transfer engine share: numbers for errors, waiting without an executor, and a
//! descriptor that becomes readable when something has ended.
//!
//! # Laws
//!
//! 1. **An error has one number**, the same in both languages and in every later version ([`Code`]); none is used twice.
//! 2. **An engine's thread never runs a caller's code and never waits for a caller's lock.** What ends is noted in
//!    [`Events`], whose descriptor becomes readable; who waits looks for himself.
//! 3. **A wait ends in time**, and a wait that ended early has changed nothing: it can be begun again.
//!
//! # Map
//!
//! | module | room |
//! |---|---|
//! | `code` | numbers and names of what can go wrong, and how each op ended |
//! | `wait` | a future's end on the caller's own thread |
//! | `events` | ended operations as tokens behind one descriptor |
//! | `addresses` | raw addresses into ops, for callers that know no regions |

#![forbid(unsafe_code)]

mod addresses;
mod code;
mod events;
mod wait;

pub use addresses::{Buffer, Buffers, Group, RunError, group};
pub use code::{Code, op_code, op_name};
pub use events::Events;
pub use wait::{Flag, Raised, wait};
