//! A live or captured `/sys`. The root is a parameter, so that captured trees are tests.
//!
//! What of it is read: `class/infiniband`, `class/net`, `bus/pci/devices` (GPUs by class and vendor, ports' ACS),
//! `devices/system/node`, and the paths that links in these resolve to, which are the PCIe tree.

mod net;
mod place;
mod rdma;
mod tree;

use std::path::Path;

use self::place::place;
use self::tree::Tree;
use super::check::{GPUS_MAX, NODES_MAX, finish};
use super::error::TopologyError;
use super::types::{Gpu, NumaNode, Source, Topology};

/// Who makes processors that KV lives on: a management controller's display has the same class.
const GPU_VENDORS: [&str; 3] = ["0x10de", "0x1002", "0x8086"];
/// PCI base classes and subclasses of GPUs: 3D controller, display, accelerator; VGA where it is not built into the CPU.
const GPU_CLASSES: [&str; 4] = ["0x0302", "0x0380", "0x1200", "0x0300"];

/// Reads `/sys`, or a captured copy of it whose links were kept.
///
/// # Errors
/// [`TopologyError::Io`] if `root` is no directory, [`TopologyError::Link`] for links in circles or out of the tree,
/// [`TopologyError::Field`] for an attribute that is not what the kernel writes.
pub fn read_sysfs(root: &Path) -> Result<Topology, TopologyError> {
    let tree = Tree::open(root)?;
    let mut topology = Topology { source: Source::Sysfs, nodes: nodes(&tree)?, ..Topology::default() };
    topology.gpus = gpus(&tree, &mut topology.acs)?;
    let (nics, acs) = rdma::devices(&tree)?;
    topology.acs.extend(acs);
    // A software device does not take its interface away from TCP.
    let hard = nics.iter().filter(|nic| nic.kind == super::NicKind::Rdma);
    let owned: Vec<String> = hard.flat_map(|nic| nic.interfaces.iter().cloned()).collect();
    let (interfaces, acs) = net::interfaces(&tree, &owned)?;
    topology.acs.extend(acs);
    topology.nics = nics;
    topology.nics.extend(interfaces);
    // Where there is one node, all is on it, though the firmware may not say so.
    if let [node] = topology.nodes.as_slice() {
        let numas =
            topology.gpus.iter_mut().map(|gpu| &mut gpu.numa).chain(topology.nics.iter_mut().map(|nic| &mut nic.numa));
        numas.for_each(|numa| *numa = numa.or(Some(node.id)));
    }
    finish(topology)
}

fn nodes(tree: &Tree) -> Result<Vec<NumaNode>, TopologyError> {
    let mut ids: Vec<u32> =
        tree.list("devices/system/node")?.iter().filter_map(|name| name.strip_prefix("node")?.parse().ok()).collect();
    ids.sort_unstable();
    if ids.len() > NODES_MAX {
        return Err(TopologyError::too_many(Source::Sysfs, "NUMA nodes", ids.len(), NODES_MAX));
    }
    let mut nodes = Vec::new();
    for id in ids {
        let at = format!("devices/system/node/node{id}");
        let cpus = tree.value(&format!("{at}/cpulist"), "a list like 0-47,96-143")?.unwrap_or_default();
        let distances = match tree.text(&format!("{at}/distance"))? {
            None => Vec::new(),
            Some(text) => text.split_whitespace().map(str::parse).collect::<Result<_, _>>().map_err(|_| {
                let field = format!("{at}/distance");
                TopologyError::field(Source::Sysfs, None, field, &text, "numbers like `10 21`")
            })?,
        };
        nodes.push(NumaNode { id, cpus, distances });
    }
    Ok(nodes)
}

fn gpus(tree: &Tree, acs: &mut Vec<super::PciAddress>) -> Result<Vec<Gpu>, TopologyError> {
    let mut gpus = Vec::new();
    for name in tree.list("bus/pci/devices")? {
        let at = format!("bus/pci/devices/{name}");
        tree.resolve(&at)?;
        let class = tree.text(&format!("{at}/class"))?.unwrap_or_default();
        if !GPU_CLASSES.iter().any(|gpu| class.starts_with(gpu)) {
            continue;
        }
        let vendor = tree.text(&format!("{at}/vendor"))?.unwrap_or_default();
        // Displays of Intel's CPUs are no place for KV; its accelerators are no VGA.
        if !GPU_VENDORS.contains(&vendor.as_str()) || (vendor == "0x8086" && class.starts_with("0x0300")) {
            continue;
        }
        let seat = place(tree, &at)?;
        if seat.function_of.is_some() {
            continue;
        }
        acs.extend(seat.acs);
        let pci = seat.pci.or_else(|| name.parse().ok());
        gpus.push(Gpu { pci, numa: seat.numa, root: seat.root, switches: seat.switches, ..Gpu::default() });
        if gpus.len() > GPUS_MAX {
            return Err(TopologyError::too_many(Source::Sysfs, "GPUs", gpus.len(), GPUS_MAX));
        }
    }
    gpus.sort_by_key(|gpu| gpu.pci);
    for (gpu, index) in gpus.iter_mut().zip(0..) {
        gpu.index = index;
    }
    Ok(gpus)
}

#[cfg(test)]
mod tests;
