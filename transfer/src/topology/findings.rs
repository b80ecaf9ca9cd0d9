//! What looks wrong with a machine: facts that cost bandwidth, each in a sentence.

use std::fmt;

use serde::Serialize;

use super::choice::Plan;
use super::eligible::{LeftOut, left_out};
use super::pci::PciAddress;
use super::rails::is_link_local;
use super::types::{Distance, LinkLayer, Nic, Topology, speed};

/// An RDMA path carries 4096 bytes a packet; on Ethernet its headers need 96 more (`iboe_get_mtu` of the kernel's
/// rdma/ib_addr.h), and with a smaller frame it falls back to 2048 or 1024.
const ROCE_MTU: u32 = 4096 + 96;
/// Names in one sentence; the rest is counted.
const NAMED: usize = 8;

/// One thing that looks wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "what", rename_all = "kebab-case")]
#[allow(missing_docs, reason = "the sentence of each is in `Display`; fields are named for what they are")]
pub enum Finding {
    AcsOn { ports: Vec<PciAddress> },
    NicOnFarSocket { nic: String, node: u32 },
    GpuWithoutNearNic { gpu: u32, nearest: Distance },
    MixedSpeeds { speeds: Vec<(String, u64)> },
    SlowNic { nic: String, its: u64, fastest: u64 },
    SmallMtu { nic: String, port: u32, mtu: u32 },
    LinkLocalOnly { nic: String, port: u32 },
    LinkDown { nic: String, port: u32 },
    NodeWithoutNic { node: u32 },
    NoNuma,
    NoSwitches,
    NoGpus,
    NoNics,
}

impl Finding {
    /// Is something to be done about it? The others are facts to know.
    #[must_use]
    pub fn is_wrong(&self) -> bool {
        !matches!(self, Self::NoGpus | Self::NoNics | Self::NodeWithoutNic { .. } | Self::SlowNic { .. })
    }

    /// What to do, where there is something.
    #[must_use]
    pub fn advice(&self) -> Option<&'static str> {
        Some(match self {
            Self::AcsOn { .. } => "without virtual machines on this host, switch ACS off (setpci, or the BIOS)",
            Self::NicOnFarSocket { .. } => {
                "put it, or a GPU, into a slot of the other socket; or give KV `use = false` for it"
            }
            Self::MixedSpeeds { .. } => {
                "slices follow the measured rates; if the slower ones are for storage, say `use = false`"
            }
            Self::SmallMtu { .. } => "ip link set its interface mtu 9000, and so on the switch",
            Self::LinkLocalOnly { .. } => "give its interface an IP address, so that RoCE v2 can be routed",
            Self::LinkDown { .. } => "see the cable, the switch port, and for InfiniBand the subnet manager",
            Self::NoNuma | Self::NoSwitches => {
                "in a virtual machine, give the cloud's NCCL topology file, or write one: kvrail doctor --topology FILE"
            }
            _ => return None,
        })
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AcsOn { ports } => write!(
                f,
                "ACS is on at {}: traffic between GPU and NIC goes up through the CPU instead of across the switch",
                listed(ports.iter().map(ToString::to_string))
            ),
            Self::NicOnFarSocket { nic, node } => {
                write!(f, "{nic} is on NUMA node {node}, where no GPU is: every GPU reaches it across the sockets")
            }
            Self::GpuWithoutNearNic { gpu, nearest: Distance::Unknown } => {
                write!(f, "how far NICs are from GPU{gpu} is not known, and is for other GPUs")
            }
            Self::GpuWithoutNearNic { gpu, nearest } => {
                write!(f, "GPU{gpu} has no NIC near it: the nearest is {} ({nearest})", nearest.word())
            }
            Self::MixedSpeeds { speeds } => {
                let each = speeds.iter().map(|(nic, bits)| format!("{nic} {}", speed(*bits)));
                write!(f, "NICs of different speeds carry KV: {}", listed(each))
            }
            Self::SlowNic { nic, its, fastest } => {
                write!(f, "{nic} is left out: {} beside {}; nothing is striped over it", speed(*its), speed(*fastest))
            }
            Self::SmallMtu { nic, port, mtu } => write!(
                f,
                "{nic} port {port} has an MTU of {mtu}: RDMA packets of 4096 bytes need {ROCE_MTU}, so they are smaller"
            ),
            Self::LinkLocalOnly { nic, port } => {
                write!(f, "{nic} port {port} has link-local GIDs alone: it reaches its own subnet at most")
            }
            Self::LinkDown { nic, port } => write!(f, "{nic} port {port} is down"),
            Self::NodeWithoutNic { node } => {
                write!(f, "NUMA node {node} has no NIC: its memory is reached through other nodes")
            }
            Self::NoNuma => f.write_str("no NUMA information: nothing tells which NIC is near which memory"),
            Self::NoSwitches => f.write_str(
                "no PCIe switch is to be seen, and there are several GPUs and NICs: a virtual machine hides them, and which NIC \
                 is beside which GPU is a guess by order",
            ),
            Self::NoGpus => f.write_str("no GPU is listed: NICs are planned for host memory alone"),
            Self::NoNics => f.write_str("no NIC is listed: KV moves within this machine alone"),
        }
    }
}

/// Names with commas, the first few of many.
fn listed(names: impl Iterator<Item = String>) -> String {
    let names: Vec<String> = names.collect();
    let more = names.len().saturating_sub(NAMED);
    let shown = names[..names.len() - more].join(", ");
    if more == 0 { shown } else { format!("{shown} and {more} more") }
}

/// What looks wrong, the machine's own faults first.
#[must_use]
pub fn findings(topology: &Topology) -> Vec<Finding> {
    let mut findings = Vec::new();
    let out = left_out(topology);
    let used = || topology.nics.iter().zip(&out).filter(|(_, out)| out.is_none()).map(|(nic, _)| nic);
    if topology.nics.is_empty() {
        findings.push(Finding::NoNics);
    }
    if topology.gpus.is_empty() {
        findings.push(Finding::NoGpus);
    }
    if !topology.acs.is_empty() {
        findings.push(Finding::AcsOn { ports: topology.acs.clone() });
    }
    places(topology, used(), &mut findings);
    let speeds: Vec<(String, u64)> = used().filter_map(|nic| Some((nic.name.clone(), nic.speed_bit_s()?))).collect();
    if speeds.iter().any(|(_, speed)| *speed != speeds[0].1) {
        findings.push(Finding::MixedSpeeds { speeds });
    }
    for (nic, out) in topology.nics.iter().zip(&out) {
        match out {
            Some(LeftOut::Slow { its, fastest }) => {
                findings.push(Finding::SlowNic { nic: nic.name.clone(), its: *its, fastest: *fastest });
            }
            // A socket without a cable is no fault of an Ethernet interface that others stand beside.
            Some(LeftOut::Down) if nic.kind == super::NicKind::Ethernet => {}
            None | Some(LeftOut::Down) => ports(nic, &mut findings),
            Some(_) => {}
        }
    }
    findings
}

fn places<'n>(topology: &Topology, used: impl Iterator<Item = &'n Nic>, findings: &mut Vec<Finding>) {
    let used: Vec<&Nic> = used.collect();
    let told = topology.gpus.iter().any(|gpu| gpu.numa.is_some() || !gpu.distances.is_empty());
    let told = told || topology.nics.iter().any(|nic| nic.numa.is_some());
    // With one node and no GPU there is nothing to be told.
    let matters = !topology.nics.is_empty() && (!topology.gpus.is_empty() || topology.nodes.len() > 1);
    if matters && !told {
        findings.push(Finding::NoNuma);
    }
    let plan = Plan::of(topology);
    let nearest = plan.gpus.iter().map(|gpu| gpu.nics.iter().map(|choice| choice.distance).min());
    let nearest: Vec<Option<Distance>> = nearest.collect();
    let best = nearest.iter().flatten().min().copied();
    for (gpu, nearest) in topology.gpus.iter().zip(&nearest) {
        // Far is far; and where others have a NIC behind their own switch, it is odd to have none.
        let (Some(nearest), Some(best)) = (*nearest, best) else { continue };
        let odd = best <= Distance::SwitchTree && nearest > Distance::SwitchTree;
        if nearest == Distance::OtherSocket || odd {
            findings.push(Finding::GpuWithoutNearNic { gpu: gpu.index, nearest });
        }
    }
    let has_gpu = |node: u32| topology.gpus.iter().any(|gpu| gpu.numa == Some(node));
    if topology.gpus.iter().any(|gpu| gpu.numa.is_some()) {
        for nic in &used {
            if let Some(node) = nic.numa.filter(|node| !has_gpu(*node)) {
                findings.push(Finding::NicOnFarSocket { nic: nic.name.clone(), node });
            }
        }
    }
    if used.iter().any(|nic| nic.numa.is_some()) {
        for node in &topology.nodes {
            if used.iter().all(|nic| nic.numa != Some(node.id)) {
                findings.push(Finding::NodeWithoutNic { node: node.id });
            }
        }
    }
    if topology.gpus.len() > 1 && used.len() > 1 && best.is_some_and(|best| best >= Distance::SameRoot) {
        let visible = topology.gpus.iter().any(|gpu| !gpu.switches.is_empty());
        if !visible {
            findings.push(Finding::NoSwitches);
        }
    }
}

fn ports(nic: &Nic, findings: &mut Vec<Finding>) {
    for port in &nic.ports {
        let name = || nic.name.clone();
        if port.up == Some(false) {
            findings.push(Finding::LinkDown { nic: name(), port: port.number });
            continue;
        }
        let roce = nic.kind != super::NicKind::Ethernet && port.link_layer == Some(LinkLayer::Ethernet);
        if let Some(mtu) = port.mtu.filter(|mtu| roce && *mtu < ROCE_MTU) {
            findings.push(Finding::SmallMtu { nic: name(), port: port.number, mtu });
        }
        if roce && !port.gids.is_empty() && port.gids.iter().all(is_link_local) {
            findings.push(Finding::LinkLocalOnly { nic: name(), port: port.number });
        }
    }
}
