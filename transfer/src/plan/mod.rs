//! The sans-I/O planner: descriptors in, slices out; completions and faults in, retries, fences and reports out.
//!
//! **Structure.** One `Planner` an engine knows all peers and paths. A worker of a local rail that has room calls
//! `poll_slices` and gets slices bound to paths at that moment (late binding), in a buffer of its own; what became of them goes back by
//! `handle_completions`. Four kinds of method, as in quinn-proto: getters, `handle_*` (something happened), mutators (`submit`, `cancel`),
//! `poll_*` (what to do now).
//!
//! **Threading.** None here: no clock, no socket, no lock, no tokio. The engine puts the planner behind one lock that workers
//! take once for a batch.
//!
//! **Invariants.** Each op is reported exactly once. A transfer is `Quiesced` only when each attempt of it has completed or its path
//! was fenced after. Memory does not grow with the number of runs in a descriptor.

mod op;
mod time;
mod types;

pub use op::{Op, OpError, Strided};
pub use time::Time;
pub use types::*;
