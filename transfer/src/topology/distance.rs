//! How far a NIC is from a GPU, and from the memory of a NUMA node.

use super::types::{Distance, Gpu, Nic, NumaNode, Seat, Topology};

/// A distance with what decides between equal ones: the firmware's figure for two NUMA nodes.
pub(super) type Reach = (Distance, u32);

impl Topology {
    /// The distance of a GPU and a NIC: what the source says outright, else what the PCIe tree and NUMA nodes say.
    #[must_use]
    pub fn distance(&self, gpu: &Gpu, nic: &Nic) -> Distance {
        gpu.distances.get(&nic.name).copied().unwrap_or_else(|| between(gpu.seat(), nic.seat()))
    }

    pub(super) fn gpu_reach(&self, gpu: &Gpu, nic: &Nic) -> Reach {
        let distance = self.distance(gpu, nic);
        (distance, if distance == Distance::OtherSocket { self.apart(gpu.numa, nic.numa) } else { 0 })
    }

    pub(super) fn host_reach(&self, node: Option<u32>, nic: &Nic) -> Reach {
        let seat = Seat { numa: node, root: None, switches: &[] };
        let distance = between(seat, nic.seat());
        (distance, if distance == Distance::OtherSocket { self.apart(node, nic.numa) } else { 0 })
    }

    /// The firmware's distance of two nodes; 0 where it is not known.
    fn apart(&self, from: Option<u32>, to: Option<u32>) -> u32 {
        let at = |id: Option<u32>| self.nodes.iter().position(|node: &NumaNode| Some(node.id) == id);
        let (Some(from), Some(to)) = (at(from), at(to)) else { return 0 };
        self.nodes[from].distances.get(to).copied().unwrap_or(0)
    }
}

fn between(a: Seat<'_>, b: Seat<'_>) -> Distance {
    if let (Some(first), Some(other)) = (a.switches.first(), b.switches.first()) {
        if a.switches.last() == b.switches.last() {
            return Distance::SameSwitch;
        }
        if first == other {
            return Distance::SwitchTree;
        }
    }
    if a.root.is_some() && a.root == b.root {
        return Distance::SameRoot;
    }
    match (a.numa, b.numa) {
        (Some(a), Some(b)) if a == b => Distance::SameNuma,
        (Some(_), Some(_)) => Distance::OtherSocket,
        _ => Distance::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(numa: Option<u32>, root: Option<&'static str>, switches: &[&str]) -> Nic {
        let switches = switches.iter().map(|s| s.parse().unwrap()).collect();
        Nic { numa, root: root.map(str::to_owned), switches, ..Nic::default() }
    }

    #[test]
    fn each_rung_is_told() {
        let me = at(Some(0), Some("pci0000:10"), &["0000:11:00.0", "0000:14:00.0"]);
        let rungs = [
            at(Some(0), Some("pci0000:10"), &["0000:11:00.0", "0000:14:00.0"]),
            at(Some(0), Some("pci0000:10"), &["0000:11:00.0", "0000:18:00.0"]),
            at(Some(0), Some("pci0000:10"), &[]),
            at(Some(0), Some("pci0000:60"), &["0000:61:00.0"]),
            at(Some(1), None, &[]),
            at(None, None, &[]),
        ];
        assert_eq!(rungs.map(|nic| between(me.seat(), nic.seat())), Distance::ALL);
        let flat = at(None, Some("pci0000:00"), &[]);
        assert_eq!(between(flat.seat(), flat.seat()), Distance::SameRoot, "a flat VM without NUMA");
    }
}
