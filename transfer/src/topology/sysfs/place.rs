//! Where a device sits: told by its path in `/sys/devices`, which is the PCIe tree.

use std::path::Path;

use super::tree::Tree;
use crate::topology::error::TopologyError;
use crate::topology::pci::PciAddress;

/// Extended capability "Access Control Services", and where its control register is (PCI Express Base 7.7.8).
const ACS: u16 = 0x000d;
const ACS_CONTROL: usize = 6;
/// P2P Request Redirect and Completion Redirect.
const ACS_REDIRECT: u16 = 0b1100;
/// Where extended capabilities begin, and how many there may be in a page.
const EXTENDED: usize = 0x100;
const CAPABILITIES_MAX: usize = 960;

/// Where a device sits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub pci: Option<PciAddress>,
    pub numa: Option<u32>,
    pub root: Option<String>,
    pub switches: Vec<PciAddress>,
    /// Ports above it whose ACS redirects.
    pub acs: Vec<PciAddress>,
    /// The physical function, if it is a virtual one.
    pub function_of: Option<PciAddress>,
}

/// The place of the device whose directory, or a link to it, is at `path`.
pub(super) fn place(tree: &Tree, path: &str) -> Result<Place, TopologyError> {
    let Some(directory) = tree.resolve(path)? else { return Ok(Place::default()) };
    let mut place = Place::default();
    let (root, chain) = ancestry(tree.below(&directory));
    place.root = root;
    place.pci = chain.last().copied();
    if place.pci.is_none() {
        // A capture without links still has what the kernel says of the device.
        place.pci = tree.text(&format!("{path}/uevent"))?.and_then(|text| {
            let slot = text.lines().find_map(|line| line.strip_prefix("PCI_SLOT_NAME="));
            slot.and_then(|slot| slot.trim().parse().ok())
        });
    }
    let above = &chain[..chain.len().saturating_sub(1)];
    // Upwards from the device, ports come in pairs: a switch's downstream port, its upstream port. The upstream one names the
    // switch; the root port has no partner and is none.
    place.switches = above.iter().rev().skip(1).step_by(2).copied().collect();
    place.switches.reverse();
    for port in above {
        if let Some(config) = tree.bytes(&format!("bus/pci/devices/{port}/config"))?
            && acs_redirects(&config)
        {
            place.acs.push(*port);
        }
    }
    let node: Option<i64> = tree.value(&format!("{path}/numa_node"), "a NUMA node's number, or -1 for none,")?;
    place.numa = node.and_then(|node| u32::try_from(node).ok());
    if let Some(physical) = tree.resolve(&format!("{path}/physfn"))? {
        place.function_of = ancestry(tree.below(&physical)).1.last().copied();
    }
    Ok(place)
}

/// The root complex and the PCI addresses in a path like `devices/pci0000:17/0000:17:01.0/0000:18:00.0/net/eth0`.
fn ancestry(path: &Path) -> (Option<String>, Vec<PciAddress>) {
    let mut root = None;
    let mut chain = Vec::new();
    for part in path.iter().filter_map(|part| part.to_str()) {
        if root.is_none() && part.starts_with("pci") && part.contains(':') && !part.contains('.') {
            root = Some(part.to_owned());
        } else if part.contains(':')
            && let Ok(address) = part.parse()
        {
            chain.push(address);
        }
    }
    (root, chain)
}

/// Does this configuration space say that peer-to-peer traffic is redirected upwards?
fn acs_redirects(config: &[u8]) -> bool {
    let word = |at: usize| Some(u16::from_le_bytes([*config.get(at)?, *config.get(at + 1)?]));
    let mut at = EXTENDED;
    // A list that runs in a circle ends with the count.
    for _ in 0..CAPABILITIES_MAX {
        let (Some(id), Some(next)) = (word(at), word(at + 2)) else { return false };
        if id == ACS {
            return word(at + ACS_CONTROL).is_some_and(|control| control & ACS_REDIRECT != 0);
        }
        at = usize::from(next >> 4) & !3;
        if at < EXTENDED {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_in_pairs_are_switches() {
        let chain = |path: &str| ancestry(Path::new(path));
        let (root, ports) =
            chain("devices/pci0000:17/0000:17:01.0/0000:18:00.0/0000:19:00.0/0000:1a:00.0/infiniband/x");
        assert_eq!((root.as_deref(), ports.len()), (Some("pci0000:17"), 4));
        assert_eq!(chain("devices/virtual/net/bond0"), (None, vec![]));
        let vmd = chain("devices/pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:06.0");
        assert_eq!((vmd.0.as_deref(), vmd.1.len()), (Some("pci0000:00"), 2));
    }

    #[test]
    fn acs_is_found_in_the_list_of_capabilities() {
        let mut config = vec![0; 4096];
        config[0x100..0x104].copy_from_slice(&[0x01, 0x00, 0x01, 0x14]); // AER, next at 0x140
        config[0x140..0x144].copy_from_slice(&[0x0d, 0x00, 0x01, 0x00]); // ACS, the last
        assert!(!acs_redirects(&config));
        config[0x146] = 0x0c;
        assert!(acs_redirects(&config));
        assert!(!acs_redirects(&config[..256]), "what an ordinary user may read");
        let circle = [0x01, 0x00, 0x01, 0x10].repeat(1024);
        assert!(!acs_redirects(&circle));
    }
}
