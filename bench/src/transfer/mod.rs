//! The transfer engine swept over shapes, patterns and faults (`kvrail bench transfer`): what a network engineer runs to know
//! what a network carries for KV, and what it costs.
//!
//! A process is a *member*; the one that the command was given to is member 0 and coordinates, its *peers* are processes that it
//! starts or that serve on other machines. A *flow* is one member's transfers to one other. A *cell* is one combination of the
//! lists that are swept.
//!
//! Pure: `units` · `preset` · `pattern` who to whom · `cell` what is moved and where it lies · `fault` · `expect` · `options`
//! and `plan` the checked command line · `tally` distributions, fairness, timelines · `report`, `table` what was found.
//! With a world around them: `line` rates of devices · `order` what members are told · `member` an engine and its ends of flows ·
//! `submit` threads and lanes · `checker` looks at what arrives · `link` a member from afar · `strike` faults done · `watch`
//! progress · `run` the coordinator.

mod cell;
mod checker;
mod expect;
mod fault;
mod line;
mod link;
mod member;
mod options;
mod order;
mod pattern;
mod plan;
mod preset;
mod report;
mod run;
mod strike;
mod submit;
mod table;
mod tally;
mod units;
mod watch;

pub use cell::{Cell, OpKind};
pub use expect::{Expect, Missed};
pub use fault::Fault;
pub use member::Member;
pub use options::Options;
pub use order::{Order, Word};
pub use pattern::{Flow, Pattern};
pub use preset::{PRESETS, Preset};
pub use report::{Figures, RailShare, Report};
pub use run::run;
pub use tally::{Dip, Event, Percentiles, Timeline};
