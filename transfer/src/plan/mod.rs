//! The sans-I/O planner: descriptors in, slices out; completions and faults in, retries, fences and reports out.
//!
//! **Structure.** One [`Planner`] an engine knows all peers and paths. A worker of a local rail that has room calls
//! `poll_slices` and gets slices bound to paths at that moment (late binding), in a buffer of its own; what became of them goes back by
//! `handle_completions`. Four kinds of method, as in quinn-proto: getters, `handle_*` (something happened), mutators (`submit`, `cancel`),
//! `poll_*` (what to do now).
//!
//! **Threading.** None here: no clock, no socket, no lock, no tokio. The engine puts the planner behind one lock that workers
//! take once for a batch.
//!
//! | file | what |
//! |---|---|
//! | `op`, `time`, `types` | the boundary: descriptors, ids, slices, completions, actions, reports |
//! | `planner` | state, peers and paths, submit, cancel, timeouts |
//! | `poll` | handing out slices: source, path, size, or leaving it to a faster rail |
//! | `flight` | completions, faults, stalls, fences |
//! | `coalesce` | descriptors → pieces, lazily |
//! | `slice` | size of a slice, cost of a path, when a rail steps back |
//! | `rate`, `window`, `path` | estimates, bytes in flight, life of a path with its circuit |
//! | `credit` | the receiver's side of credits: who may send how much to one of our NICs |
//! | `account` | the sender's side: what was used of a NIC, what may be, what is to be told; `accounts` in the planner |
//! | `sim` | a network in virtual time under the real planner, for tests and simulators |
//! | `retry`, `classes`, `transfer` | where failures go, whose turn it is, what is left of one transfer |
//!
//! **Invariants.** Each op is reported exactly once. A transfer is `Quiesced` only when each attempt of it has completed or its path
//! was fenced after. Memory does not grow with the number of runs in a descriptor.

mod account;
mod accounts;
mod classes;
mod coalesce;
mod config;
mod credit;
mod flight;
mod op;
mod path;
mod planner;
mod poll;
mod rate;
mod retry;
pub mod sim;
mod slice;
mod slots;
mod time;
mod transfer;
mod types;
mod window;

pub use account::{Account, Demand, Limit};
pub use coalesce::{Side, runs};
pub use config::Config;
pub use credit::{CreditConfig, Ledger};
pub use op::{Op, OpError, Strided};
use path::PathIx;
pub use planner::{Gauges, PathError, PathView, Planner};
pub use retry::Backoff;
pub(crate) use retry::Rng;
pub use time::Time;
pub use types::{
    Action, Cause, Class, Completion, Direction, Event, Failure, Fate, OpStatus, Outcome, PathId, PathLimits, PathSpec,
    PeerId, Piece, PortId, RailId, RailSet, Refusal, Report, Request, Slice, SliceBatch, SliceId, SubmitError,
    TenantId, TransferId,
};
