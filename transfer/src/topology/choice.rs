//! The plan: for each memory, its NICs in order, each with the reason, and the planner's table of penalties.
//!
//! Penalties are policy, not measurements: what another rail's queue must be ahead by before a slice goes the longer way. A
//! slice takes about 200 µs, so a far socket is used when the near NICs are a whole slice behind, and a neighbour's NIC behind
//! the same root when they are a twentieth of one behind.

use std::sync::Arc;

use serde::{Serialize, Serializer};

use super::distance::Reach;
use super::eligible::{LeftOut, left_out};
use super::share::shares;
use super::types::{Distance, Nic, Topology};

/// A NIC that is as near as the memory's own, and is another GPU's share.
const NEIGHBOURS_NS: u32 = 5_000;
/// A NIC that KV does not move over.
const NEVER: u32 = u32::MAX;

fn penalty_ns(distance: Distance) -> u32 {
    match distance {
        Distance::SameSwitch => 0,
        Distance::SwitchTree => 2_000,
        Distance::SameRoot => 10_000,
        Distance::SameNuma => 40_000,
        Distance::Unknown => 100_000,
        Distance::OtherSocket => 200_000,
    }
}

/// Whose memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Memory {
    /// That of the GPU with this index.
    Gpu(u32),
    /// Host memory of this NUMA node; `None` where nodes are not known.
    Host(Option<u32>),
}

/// One NIC for one memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Choice {
    /// Its place in [`Topology::nics`]: the planner's [`RailId`](crate::plan::RailId).
    pub rail: usize,
    /// Its name.
    pub nic: String,
    /// How far it is.
    pub distance: Distance,
    /// Is it the memory's own share? Others are used when those are busy or gone.
    pub own: bool,
    /// Why it stands where it does, in words.
    pub why: String,
}

/// The NICs of one memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryPlan {
    /// Whose.
    pub memory: Memory,
    /// In order of preference; those that are left out are not among them.
    pub nics: Vec<Choice>,
    /// Penalty in nanoseconds by [`RailId`](crate::plan::RailId), as [`Request::distance`](crate::plan::Request) takes it; the
    /// nearest is 0, what is left out is `u32::MAX`.
    #[serde(serialize_with = "as_list")]
    pub penalty_ns: Arc<[u32]>,
}

fn as_list<S: Serializer>(numbers: &Arc<[u32]>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(numbers.iter())
}

impl MemoryPlan {
    /// Names of the NICs that are the memory's own share, in order.
    pub fn own(&self) -> impl Iterator<Item = &str> {
        self.nics.iter().filter(|choice| choice.own).map(|choice| choice.nic.as_str())
    }
}

/// Which NICs serve which memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// One for each GPU, in their order.
    pub gpus: Vec<MemoryPlan>,
    /// One for each NUMA node, in their order; one for all host memory where nodes are not known.
    pub hosts: Vec<MemoryPlan>,
    /// NICs that no KV moves over, by name, and why.
    pub left_out: Vec<(String, LeftOut)>,
}

impl Plan {
    /// Draws the plan of a machine. Every memory gets NICs, if there are any to be had.
    ///
    /// ```
    /// use kvrail_transfer::topology::{Plan, read};
    /// let machine = read(br#"
    /// gpu = [{ index = 0, numa = 0 }, { index = 1, numa = 0 }]
    /// nic = [{ name = "mlx5_0", numa = 0 }, { name = "mlx5_1", numa = 0 }]
    /// "#)?;
    /// let plan = Plan::of(&machine);
    /// assert_eq!(plan.gpus[1].own().collect::<Vec<_>>(), ["mlx5_1"]);
    /// assert_eq!(*plan.gpus[1].penalty_ns, [5_000, 0]);
    /// # Ok::<(), kvrail_transfer::topology::TopologyError>(())
    /// ```
    #[must_use]
    pub fn of(topology: &Topology) -> Self {
        let nics = &topology.nics;
        let out = left_out(topology);
        let used: Vec<bool> = out.iter().map(Option::is_none).collect();
        let reach: Vec<Vec<Reach>> =
            topology.gpus.iter().map(|gpu| nics.iter().map(|nic| topology.gpu_reach(gpu, nic)).collect()).collect();
        let shares = shares(&reach, &used);
        let sharers: Vec<usize> =
            (0..nics.len()).map(|nic| shares.iter().filter(|share| share.contains(&nic)).count()).collect();
        let gpus = topology.gpus.iter().zip(&shares).zip(&reach).map(|((gpu, share), reach)| {
            let seat = (gpu.numa, gpu.root.as_deref(), gpu.switches.as_slice());
            let words = |nic: &Nic, distance| words(seat, nic, distance, gpu.distances.contains_key(&nic.name));
            memory_plan(Memory::Gpu(gpu.index), topology, &used, reach, (share, &sharers), &words)
        });
        let gpus = gpus.collect();
        let nodes: Vec<Option<u32>> = match topology.nodes.as_slice() {
            [] => vec![None],
            nodes => nodes.iter().map(|node| Some(node.id)).collect(),
        };
        let hosts = nodes.into_iter().map(|node| {
            let reach: Vec<Reach> = nics.iter().map(|nic| topology.host_reach(node, nic)).collect();
            let counted = || (0..nics.len()).filter(|nic| used[*nic]);
            let nearest = counted().map(|nic| reach[nic]).min();
            // Host memory is striped over all that are nearest.
            let share: Vec<usize> = counted().filter(|nic| Some(reach[*nic]) == nearest).collect();
            let words = |nic: &Nic, distance| words((node, None, &[]), nic, distance, false);
            memory_plan(Memory::Host(node), topology, &used, &reach, (&share, &[]), &words)
        });
        let hosts = hosts.collect();
        let named = nics.iter().map(|nic| nic.name.clone()).zip(out);
        Self { gpus, hosts, left_out: named.filter_map(|(name, out)| Some((name, out?))).collect() }
    }
}

fn memory_plan(
    memory: Memory,
    topology: &Topology,
    used: &[bool],
    reach: &[Reach],
    (share, sharers): (&[usize], &[usize]),
    words: &dyn Fn(&Nic, Distance) -> String,
) -> MemoryPlan {
    let mut order: Vec<usize> = (0..used.len()).filter(|nic| used[*nic]).collect();
    // Its own first, then by distance; among equals, those after its own first, so that GPUs do not all spill on one NIC.
    let after = share.last().copied().unwrap_or(0);
    order.sort_by_key(|nic| (!share.contains(nic), reach[*nic], *nic <= after, *nic));
    let cost = |nic: usize| {
        let neighbours = if share.contains(&nic) { 0 } else { NEIGHBOURS_NS };
        penalty_ns(reach[nic].0) + neighbours
    };
    let least = order.iter().map(|nic| cost(*nic)).min().unwrap_or(0);
    let penalty_ns = (0..used.len()).map(|nic| if used[nic] { cost(nic) - least } else { NEVER }).collect();
    let alike = share.first().map_or(0, |own| order.iter().filter(|nic| reach[**nic] == reach[*own]).count());
    let nics = order.iter().map(|&rail| {
        let (nic, distance) = (&topology.nics[rail], reach[rail].0);
        let own = share.contains(&rail);
        let mut why = words(nic, distance);
        if own && alike > share.len() {
            why += &format!("; its share of {alike} that are as near");
        } else if !own && share.first().is_some_and(|own| reach[*own] == reach[rail]) {
            why += "; another GPU's share";
        }
        if let Some(others @ 2..) = sharers.get(rail).copied().filter(|_| own) {
            why += &format!("; shared by {others} GPUs");
        }
        if nic.is_down() {
            why += "; its link is down";
        }
        Choice { rail, nic: nic.name.clone(), distance, own, why }
    });
    MemoryPlan { memory, nics: nics.collect(), penalty_ns }
}

type Seat<'a> = (Option<u32>, Option<&'a str>, &'a [super::PciAddress]);

fn words((numa, root, switches): Seat<'_>, nic: &Nic, distance: Distance, told: bool) -> String {
    let node = |numa: Option<u32>| numa.map_or_else(|| "?".to_owned(), |node| node.to_string());
    if told {
        return format!("{distance}, says the file");
    }
    match distance {
        Distance::SameSwitch => {
            let switch = switches.last().map_or_else(String::new, |switch| format!(" {switch}"));
            format!("same PCIe switch{switch}")
        }
        Distance::SwitchTree => {
            let switch = switches.iter().rev().find(|switch| nic.switches.contains(switch));
            let switch = switch.map_or_else(String::new, |switch| format!(" under {switch}"));
            format!("through PCIe switches{switch}, not the CPU")
        }
        Distance::SameRoot => format!("same root complex {}", root.unwrap_or("?")),
        Distance::SameNuma => format!("same NUMA node {}", node(numa)),
        Distance::OtherSocket => format!("far: NUMA node {}, and the memory is on {}", node(nic.numa), node(numa)),
        Distance::Unknown => "its distance is not known".to_owned(),
    }
}
