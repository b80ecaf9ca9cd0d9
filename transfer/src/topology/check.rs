//! The last step of every reader: bounds, names, order.

use std::collections::HashSet;

use super::error::{TopologyError, quote};
use super::types::{Nic, Source, Topology};
use crate::plan::RailId;

/// GPUs of one machine.
pub(super) const GPUS_MAX: usize = 256;
/// NICs of one machine: the planner's rails.
pub(super) const NICS_MAX: usize = RailId::MAX_RAILS;
/// NUMA nodes of one machine.
pub(super) const NODES_MAX: usize = 1024;
/// Switches above a device.
pub(super) const SWITCHES_MAX: usize = 32;
/// Ports of a NIC (the kernel's own bound is 255).
pub(super) const PORTS_MAX: usize = 255;
/// GIDs of a port.
pub(super) const GIDS_MAX: usize = 1024;
/// Bytes of a name.
const NAME_MAX: usize = 64;
/// Names in a list (interfaces, members, distances).
const NAMES_MAX: usize = 256;
/// Faster than any port.
pub(super) const SPEED_MAX: u64 = 100_000_000_000_000;
/// Switch ports in a machine.
const PORTS_ACS_MAX: usize = 4096;

/// Sorts what was read and refuses what no machine can be.
pub(super) fn finish(mut topology: Topology) -> Result<Topology, TopologyError> {
    let source = topology.source;
    let within = |what, found: usize, limit| match found <= limit {
        true => Ok(()),
        false => Err(TopologyError::too_many(source, what, found, limit)),
    };
    within("GPUs", topology.gpus.len(), GPUS_MAX)?;
    within("NICs", topology.nics.len(), NICS_MAX)?;
    within("NUMA nodes", topology.nodes.len(), NODES_MAX)?;
    within("switch ports", topology.acs.len(), PORTS_ACS_MAX)?;
    for node in &topology.nodes {
        within("distances of a NUMA node", node.distances.len(), NODES_MAX)?;
    }
    for gpu in &topology.gpus {
        within("switches above a GPU", gpu.switches.len(), SWITCHES_MAX)?;
        within("distances of a GPU", gpu.distances.len(), NAMES_MAX)?;
        gpu.distances.keys().try_for_each(|name| name_is_sound(source, "gpu.distances", name))?;
        gpu.root.iter().try_for_each(|root| name_is_sound(source, "gpu.root", root))?;
    }
    for nic in &topology.nics {
        within("switches above a NIC", nic.switches.len(), SWITCHES_MAX)?;
        within("ports of a NIC", nic.ports.len(), PORTS_MAX)?;
        within("interfaces of a NIC", nic.interfaces.len().max(nic.members.len()), NAMES_MAX)?;
        name_is_sound(source, "nic.name", &nic.name)?;
        let others = nic.interfaces.iter().chain(&nic.members).chain(&nic.root);
        others.into_iter().try_for_each(|name| name_is_sound(source, "nic", name))?;
        for port in &nic.ports {
            within("GIDs of a port", port.gids.len(), GIDS_MAX)?;
            if let Some(speed) = port.speed_bit_s.filter(|speed| *speed == 0 || *speed > SPEED_MAX) {
                let wants = format!("bits a second, 1 to {SPEED_MAX},");
                return Err(TopologyError::field(
                    source,
                    None,
                    format!("{}.speed_bit_s", nic.name),
                    &speed.to_string(),
                    wants,
                ));
            }
        }
    }
    topology.nodes.sort_by_key(|node| node.id);
    topology.gpus.sort_by_key(|gpu| gpu.index);
    topology.nics.sort_by(|a, b| order(a).cmp(&order(b)));
    topology.acs.sort_unstable();
    topology.acs.dedup();
    apart(source, "NUMA nodes", topology.nodes.iter().map(|node| node.id.to_string()))?;
    apart(source, "GPUs", topology.gpus.iter().map(|gpu| gpu.index.to_string()))?;
    apart(source, "NICs", topology.nics.iter().map(|nic| nic.name.clone()))?;
    Ok(topology)
}

/// PCIe order; what has no address comes after, by name with its number as a number (`mlx5_2` before `mlx5_10`).
fn order(nic: &Nic) -> impl Ord + '_ {
    let digits = nic.name.len() - nic.name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    let (stem, number) = nic.name.split_at(nic.name.len() - digits);
    (nic.pci.is_none(), nic.pci, stem, number.parse::<u64>().ok(), nic.name.as_str())
}

fn name_is_sound(source: Source, field: &str, name: &str) -> Result<(), TopologyError> {
    if (1..=NAME_MAX).contains(&name.len()) && name.chars().all(|c| c.is_ascii_graphic()) {
        return Ok(());
    }
    Err(TopologyError::field(source, None, field, name, format!("1 to {NAME_MAX} visible ASCII characters")))
}

fn apart(source: Source, what: &'static str, names: impl Iterator<Item = String>) -> Result<(), TopologyError> {
    let mut seen = HashSet::new();
    for name in names {
        if !seen.insert(name.clone()) {
            let quoted = quote(&name);
            return Err(TopologyError::Twice { format: source, what, name: quoted.trim_matches('`').to_owned() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nic(name: &str, pci: Option<&str>) -> Nic {
        Nic { name: name.into(), pci: pci.map(|pci| pci.parse().unwrap()), ..Nic::default() }
    }

    #[test]
    fn nics_are_in_pcie_order_and_names_count_as_numbers() {
        let nics =
            vec![nic("a10", None), nic("a9", None), nic("z0", Some("0000:41:00.0")), nic("y1", Some("0000:09:00.0"))];
        let sorted = finish(Topology { nics, ..Topology::default() }).unwrap();
        assert_eq!(sorted.nics.iter().map(|nic| nic.name.as_str()).collect::<Vec<_>>(), ["y1", "z0", "a9", "a10"]);
    }

    #[test]
    fn what_no_machine_can_be_is_refused_by_name() {
        let refused = |nics: Vec<Nic>| finish(Topology { nics, ..Topology::default() }).unwrap_err().to_string();
        assert!(refused(vec![nic("a", None), nic("a", None)]).contains("two NICs are called `a`"));
        assert!(refused((0..=NICS_MAX).map(|i| nic(&i.to_string(), None)).collect()).contains("at most 128"));
        assert!(refused(vec![nic("a b", None)]).contains("visible ASCII"));
        assert!(refused(vec![nic("", None)]).contains("nic.name"));
    }
}
