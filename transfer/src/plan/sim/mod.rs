//! A network in virtual time under the real planner: rails with rate and delay, faults by plan and by chance, memory that is checked.
//!
//! **What it is for.** Property tests of the planner, and any simulator that wants its policy: the code that runs is the engine's. One
//! [`World`] is a planner, its peers' links, and loads; everything random comes from one seed, so a failing seed is a test.
//!
//! **What it models.** A link sends slices one after another at its rate, then a delay; each rail has a worker with a bounded queue
//! that polls when it is woken or when a slice of its own ended, never else (a missing wake shows as a hang). A dark link
//! holds what is on it and says nothing; a broken one fails what is on it, part of which still lands later; a fence takes a
//! while, and slices go on landing until then. Loads with content own real bytes on both sides: each landing copies, a damaged
//! one writes wrong bytes before its checksum is looked at (every other load has checksums), and a landing after `Quiesced` is a
//! violation.
//!
//! **What it does not.** Switch queues and shared bottlenecks between links: that is the cluster simulator's business.

mod link;
mod memory;
mod world;

pub use link::{Condition, LinkOptions};
pub use world::{Load, LoadOutcome, Step, World, WorldOptions};
