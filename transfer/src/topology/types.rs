//! What a machine is made of, as far as moving bytes is concerned.
//!
//! Names are as the operating system has them. A thing that a source does not tell is `None` or empty, never guessed.

use std::collections::BTreeMap;
use std::fmt;
use std::net::Ipv6Addr;

use serde::{Deserialize, Serialize};

use super::cpus::CpuSet;
use super::pci::PciAddress;

/// Where a topology was read from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// A live or captured `/sys`.
    Sysfs,
    /// NCCL's topology XML.
    NcclXml,
    /// What `nvidia-smi topo -m` prints.
    NvidiaSmi,
    /// Our own TOML.
    #[default]
    Toml,
    /// JSON, as `kvrail doctor --json` prints it.
    Json,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sysfs => "sysfs",
            Self::NcclXml => "NCCL XML",
            Self::NvidiaSmi => "nvidia-smi topo -m",
            Self::Toml => "TOML",
            Self::Json => "JSON",
        })
    }
}

/// One machine. GPUs are in order of their index, NICs in PCIe order: the i-th NIC is the planner's
/// [`RailId`](crate::plan::RailId) i.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// Where it was read from.
    #[serde(default)]
    pub source: Source,
    /// Switch ports that send peer-to-peer traffic up to the root complex (ACS redirect).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub acs: Vec<PciAddress>,
    /// NUMA nodes, ascending.
    #[serde(default, rename = "node", skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NumaNode>,
    /// GPUs.
    #[serde(default, rename = "gpu", skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<Gpu>,
    /// NICs.
    #[serde(default, rename = "nic", skip_serializing_if = "Vec::is_empty")]
    pub nics: Vec<Nic>,
}

/// One NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NumaNode {
    /// Its number.
    pub id: u32,
    /// Its CPUs.
    #[serde(default, skip_serializing_if = "CpuSet::is_empty")]
    pub cpus: CpuSet,
    /// The firmware's distance to each node, by the order of the nodes (10 is the node itself).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub distances: Vec<u32>,
}

/// One GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// Its number among the GPUs, in PCIe order unless the source has numbers of its own.
    pub index: u32,
    /// Its address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci: Option<PciAddress>,
    /// Its NUMA node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa: Option<u32>,
    /// Its root complex (host bridge), as sysfs names it: `pci0000:17`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<String>,
    /// PCIe switches between root complex and GPU, outermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub switches: Vec<PciAddress>,
    /// Distances by NIC name that the source gives outright; they go before what the tree says.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub distances: BTreeMap<String, Distance>,
}

/// What speaks through a NIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NicKind {
    /// Verbs (InfiniBand, RoCE, EFA).
    #[default]
    Rdma,
    /// Verbs in software, over another NIC (rxe, siw).
    SoftRdma,
    /// Sockets only.
    Ethernet,
}

/// One NIC: one RDMA device, or one network interface without.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nic {
    /// `mlx5_0`, `eth2`; `nic3` where the source has no names.
    pub name: String,
    /// What speaks through it.
    #[serde(default)]
    pub kind: NicKind,
    /// Its address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci: Option<PciAddress>,
    /// Its NUMA node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa: Option<u32>,
    /// Its root complex, as sysfs names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<String>,
    /// PCIe switches between root complex and NIC, outermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub switches: Vec<PciAddress>,
    /// Its rail by hand: goes before whatever else tells rails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rail: Option<u32>,
    /// By hand: does KV move over it? Where nobody says, speed and state decide.
    #[serde(default, rename = "use", skip_serializing_if = "Option::is_none")]
    pub used: Option<bool>,
    /// Network interfaces of the device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<String>,
    /// Interfaces that it bundles, if it is a bond.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<String>,
    /// The physical function, if it is a virtual one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function_of: Option<PciAddress>,
    /// Its ports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<Port>,
}

/// What runs on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkLayer {
    /// InfiniBand.
    Infiniband,
    /// Ethernet: RoCE, iWARP, EFA, or sockets.
    Ethernet,
}

/// One port of a NIC.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Port {
    /// Counted from 1.
    #[serde(default = "first")]
    pub number: u32,
    /// Bits a second of its link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed_bit_s: Option<u64>,
    /// What runs on the wire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_layer: Option<LinkLayer>,
    /// Is the link up?
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up: Option<bool>,
    /// Bytes of a frame that its interface carries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Its GIDs, those that are set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gids: Vec<Ipv6Addr>,
}

fn first() -> u32 {
    1
}

/// How far a NIC is from a GPU, nearest first. In brackets, what `nvidia-smi topo -m` calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Distance {
    /// Behind one PCIe switch (PIX).
    SameSwitch,
    /// Behind several switches that hang together, without the host bridge (PXB).
    SwitchTree,
    /// Through one root complex, which is the CPU's host bridge (PHB).
    SameRoot,
    /// Through two root complexes of one NUMA node (NODE).
    SameNuma,
    /// Through the link between sockets, or between NUMA nodes (SYS).
    OtherSocket,
    /// The source does not tell.
    Unknown,
}

impl Distance {
    /// All, nearest first.
    pub const ALL: [Self; 6] =
        [Self::SameSwitch, Self::SwitchTree, Self::SameRoot, Self::SameNuma, Self::OtherSocket, Self::Unknown];

    /// The word of `nvidia-smi topo -m`; `?` for what is not known.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::SameSwitch => "PIX",
            Self::SwitchTree => "PXB",
            Self::SameRoot => "PHB",
            Self::SameNuma => "NODE",
            Self::OtherSocket => "SYS",
            Self::Unknown => "?",
        }
    }
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SameSwitch => "same switch",
            Self::SwitchTree => "switches that hang together",
            Self::SameRoot => "same root complex",
            Self::SameNuma => "same NUMA node",
            Self::OtherSocket => "other socket",
            Self::Unknown => "distance unknown",
        })
    }
}

/// Where a device sits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seat<'a> {
    pub numa: Option<u32>,
    pub root: Option<&'a str>,
    pub switches: &'a [PciAddress],
}

impl Gpu {
    pub(super) fn seat(&self) -> Seat<'_> {
        Seat { numa: self.numa, root: self.root.as_deref(), switches: &self.switches }
    }
}

impl Nic {
    pub(super) fn seat(&self) -> Seat<'_> {
        Seat { numa: self.numa, root: self.root.as_deref(), switches: &self.switches }
    }

    /// Bits a second of all its ports that are not known to be down; of all ports, if all are.
    #[must_use]
    pub fn speed_bit_s(&self) -> Option<u64> {
        let of = |any: bool| {
            let speeds = self.ports.iter().filter(|port| any || port.up != Some(false)).filter_map(|p| p.speed_bit_s);
            speeds.reduce(u64::saturating_add)
        };
        of(false).or_else(|| of(true))
    }

    /// Is every port known to be down?
    #[must_use]
    pub fn is_down(&self) -> bool {
        !self.ports.is_empty() && self.ports.iter().all(|port| port.up == Some(false))
    }
}

/// Bits a second as people say it: `400 Gbit/s`.
#[must_use]
pub fn speed(bit_s: u64) -> String {
    match bit_s {
        0..1_000_000_000 => format!("{} Mbit/s", bit_s / 1_000_000),
        _ => format!("{} Gbit/s", (bit_s / 100_000_000) as f64 / 10.0),
    }
}
