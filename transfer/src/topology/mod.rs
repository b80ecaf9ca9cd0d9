//! What a machine is made of, and which NICs serve which memory.
//!
//! A [`Topology`] is a value: GPUs, NICs, NUMA nodes and the PCIe tree between them. It is read from text by [`read`] or from a
//! live or captured `/sys` by [`read_sysfs`], the one place here that touches a file; all else is pure. A [`Plan`] says for each
//! GPU, and for the memory of each NUMA node, which NICs serve it in which order and why, and gives the planner its table of
//! penalties. [`findings`] tells what looks wrong.
//!
//! *Invariant*: whatever the bytes, a reader ends with a [`Topology`] or a [`TopologyError`], in time linear in the input up to
//! its bounds (`check`).
//!
//! | module | room |
//! |---|---|
//! | `types`, `pci`, `cpus` | the values |
//! | `format`, `nccl`, `smi`, `ours` | text in, topology out; ours also out again |
//! | `sysfs` | a live or captured `/sys` |
//! | `check` | bounds, names and order, for all readers |
//! | `overlay` | a file laid over what was read live |
//! | `distance` | how far a NIC is from a GPU |
//! | `eligible`, `share`, `choice` | the plan: which NICs count, whose is which, in which order |
//! | `rails` | which NIC of another machine is on the same rail |
//! | `findings` | what looks wrong |

mod check;
mod choice;
mod cpus;
mod distance;
mod eligible;
mod error;
mod findings;
mod format;
mod nccl;
mod ours;
mod overlay;
mod pci;
mod rails;
mod share;
mod smi;
mod sysfs;
mod types;

#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod oddities;
#[cfg(test)]
mod owners;

pub use choice::{Choice, Memory, MemoryPlan, Plan};
pub use cpus::{CpuSet, NotCpus};
pub use eligible::LeftOut;
pub use error::TopologyError;
pub use findings::{Finding, findings};
pub use format::{BYTES_MAX, read, read_file};
pub use pci::{NotAnAddress, PciAddress};
pub use rails::{Pair, Rail, RailBy, pair, rails};
pub use sysfs::read_sysfs;
pub use types::{Distance, Gpu, LinkLayer, Nic, NicKind, NumaNode, Port, Source, Topology, speed};
