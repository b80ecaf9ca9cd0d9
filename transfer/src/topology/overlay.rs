//! A file laid over what was read live: what the file says stands, what it is silent about is filled in.
//!
//! Clouds' files have the switches that their machines hide, and no GPUs, names or speeds; a file by hand has rails alone.

use super::check::finish;
use super::error::TopologyError;
use super::pci::PciAddress;
use super::types::{Gpu, Nic, Topology};

impl Topology {
    /// This topology, with what `live` knows and it does not. Devices are the same by address, or by name where one of the two
    /// has no address. NICs and GPUs that only `live` has are added.
    ///
    /// # Errors
    /// If the two together have more of something than a machine can have, or two of one name.
    pub fn over(mut self, live: &Self) -> Result<Self, TopologyError> {
        let switches: Vec<(PciAddress, Vec<PciAddress>, Option<u32>)> = self.switches();
        let mut gpus = std::mem::take(&mut self.gpus);
        for gpu in &live.gpus {
            match gpus.iter_mut().find(|mine| same(mine.pci, gpu.pci, mine.index == gpu.index)) {
                Some(mine) => fill_gpu(mine, gpu),
                None => {
                    let mut gpu = gpu.clone();
                    // Its switch may stand in the file, deeper than the live tree shows it.
                    if let Some((_, path, numa)) =
                        switches.iter().rev().find(|(switch, _, _)| gpu.switches.contains(switch))
                    {
                        gpu.switches.clone_from(path);
                        gpu.numa = gpu.numa.or(*numa);
                    }
                    let taken = |index| gpus.iter().any(|gpu: &Gpu| gpu.index == index);
                    if taken(gpu.index) {
                        gpu.index = (0..).find(|index| !taken(*index)).unwrap_or(gpu.index);
                    }
                    gpus.push(gpu);
                }
            }
        }
        self.gpus = gpus;
        for nic in &live.nics {
            match self.nics.iter_mut().find(|mine| same(mine.pci, nic.pci, mine.name == nic.name)) {
                Some(mine) => fill_nic(mine, nic),
                None => self.nics.push(nic.clone()),
            }
        }
        for node in &live.nodes {
            match self.nodes.iter_mut().find(|mine| mine.id == node.id) {
                Some(mine) => {
                    or_take(&mut mine.distances, &node.distances);
                    if mine.cpus.is_empty() {
                        mine.cpus.clone_from(&node.cpus);
                    }
                }
                None => self.nodes.push(node.clone()),
            }
        }
        or_take(&mut self.acs, &live.acs);
        finish(self)
    }

    /// Each switch of the tree with the way to it, itself included, and the node beneath which it hangs.
    fn switches(&self) -> Vec<(PciAddress, Vec<PciAddress>, Option<u32>)> {
        let paths = self.nics.iter().map(|nic| (&nic.switches, nic.numa));
        let paths = paths.chain(self.gpus.iter().map(|gpu| (&gpu.switches, gpu.numa)));
        let mut all: Vec<_> = paths
            .flat_map(|(path, numa)| (1..=path.len()).map(move |len| (path[len - 1], path[..len].to_vec(), numa)))
            .collect();
        all.sort_by_key(|(switch, path, _)| (path.len(), *switch));
        all.dedup();
        all
    }
}

fn same(mine: Option<PciAddress>, other: Option<PciAddress>, named_alike: bool) -> bool {
    match (mine, other) {
        (Some(mine), Some(other)) => mine == other,
        _ => named_alike,
    }
}

fn fill_gpu(mine: &mut Gpu, live: &Gpu) {
    mine.pci = mine.pci.or(live.pci);
    mine.numa = mine.numa.or(live.numa);
    or_take_root(&mut mine.root, &mine.switches, &live.root);
    or_take(&mut mine.switches, &live.switches);
}

fn fill_nic(mine: &mut Nic, live: &Nic) {
    // `nic3` is a name for want of one.
    if mine.name.strip_prefix("nic").is_some_and(|number| number.parse::<u32>().is_ok()) {
        mine.name.clone_from(&live.name);
        mine.kind = live.kind;
    }
    mine.pci = mine.pci.or(live.pci);
    mine.numa = mine.numa.or(live.numa);
    or_take_root(&mut mine.root, &mine.switches, &live.root);
    or_take(&mut mine.switches, &live.switches);
    mine.rail = mine.rail.or(live.rail);
    mine.used = mine.used.or(live.used);
    or_take(&mut mine.interfaces, &live.interfaces);
    or_take(&mut mine.members, &live.members);
    mine.function_of = mine.function_of.or(live.function_of);
    for port in &live.ports {
        match mine.ports.iter_mut().find(|mine| mine.number == port.number) {
            Some(mine) => {
                mine.speed_bit_s = mine.speed_bit_s.or(port.speed_bit_s);
                mine.link_layer = mine.link_layer.or(port.link_layer);
                mine.up = mine.up.or(port.up);
                mine.mtu = mine.mtu.or(port.mtu);
                or_take(&mut mine.gids, &port.gids);
            }
            None => mine.ports.push(port.clone()),
        }
    }
}

fn or_take<T: Clone>(mine: &mut Vec<T>, live: &[T]) {
    if mine.is_empty() {
        mine.extend_from_slice(live);
    }
}

/// A virtual machine shows one root complex where the file has switches: the file's tree stands alone then.
fn or_take_root(mine: &mut Option<String>, switches: &[PciAddress], live: &Option<String>) {
    if mine.is_none() && switches.is_empty() {
        mine.clone_from(live);
    }
}
