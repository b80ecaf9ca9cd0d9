//! `/sys/class/infiniband`: RDMA devices and their ports.

use std::net::Ipv6Addr;

use super::place::place;
use super::tree::Tree;
use crate::topology::check::{GIDS_MAX, PORTS_MAX, SPEED_MAX};
use crate::topology::error::TopologyError;
use crate::topology::pci::PciAddress;
use crate::topology::types::{LinkLayer, Nic, NicKind, Port, Source};

/// All RDMA devices, and the switch ports above them whose ACS redirects.
pub(super) fn devices(tree: &Tree) -> Result<(Vec<Nic>, Vec<PciAddress>), TopologyError> {
    let mut acs = Vec::new();
    let mut nics = Vec::new();
    for name in tree.list("class/infiniband")? {
        let at = format!("class/infiniband/{name}");
        tree.resolve(&at)?;
        let mut seat = place(tree, &format!("{at}/device"))?;
        let mut kind = NicKind::Rdma;
        let mut interfaces = tree.list(&format!("{at}/device/net"))?;
        let parent = tree.text(&format!("{at}/parent"))?;
        if !tree.has(&format!("{at}/device")) {
            // In software, over an interface: it sits where that does.
            kind = NicKind::SoftRdma;
            if let Some(parent) = parent.filter(|parent| is_plain(parent)) {
                seat = place(tree, &format!("class/net/{parent}/device"))?;
                interfaces.push(parent);
            }
        }
        let mtu = match interfaces.first() {
            Some(interface) => tree.value(&format!("class/net/{interface}/mtu"), "bytes")?,
            None => None,
        };
        let mut nic = Nic { name, kind, pci: seat.pci, numa: seat.numa, root: seat.root, ..Nic::default() };
        nic.switches = seat.switches;
        nic.function_of = seat.function_of;
        // Two physical functions under one RDMA device: their ports are bundled, and their interfaces are the members.
        if nic.name.contains("bond") {
            nic.members.clone_from(&interfaces);
        }
        nic.interfaces = interfaces;
        nic.ports = ports(tree, &at, mtu)?;
        acs.extend(seat.acs);
        nics.push(nic);
    }
    Ok((nics, acs))
}

/// A name without a way out of its directory.
pub(super) fn is_plain(name: &str) -> bool {
    !name.is_empty() && !name.contains('/') && name != "." && name != ".."
}

fn ports(tree: &Tree, device: &str, mtu: Option<u32>) -> Result<Vec<Port>, TopologyError> {
    let names = tree.list(&format!("{device}/ports"))?;
    if names.len() > PORTS_MAX {
        return Err(TopologyError::too_many(Source::Sysfs, "ports of a NIC", names.len(), PORTS_MAX));
    }
    let mut ports = Vec::new();
    for name in names {
        let at = format!("{device}/ports/{name}");
        let wrong = |field: &str, found: &str, wants: &str| {
            TopologyError::field(Source::Sysfs, None, format!("{at}{field}"), found, wants)
        };
        let number = name.parse().map_err(|_| wrong("", &name, "a port's number"))?;
        let state = tree.text(&format!("{at}/state"))?;
        let rate = match tree.text(&format!("{at}/rate"))? {
            None => None,
            Some(text) => Some(bits(&text).ok_or_else(|| wrong("/rate", &text, "a rate like `400 Gb/sec (4X NDR)`"))?),
        };
        let link_layer = match tree.text(&format!("{at}/link_layer"))?.as_deref() {
            Some("InfiniBand") => Some(LinkLayer::Infiniband),
            Some("Ethernet") => Some(LinkLayer::Ethernet),
            _ => None,
        };
        ports.push(Port {
            number,
            speed_bit_s: rate.filter(|rate| *rate > 0),
            link_layer,
            up: state.map(|state| state.contains("ACTIVE")),
            mtu: mtu.filter(|_| link_layer == Some(LinkLayer::Ethernet)),
            gids: gids(tree, &at)?,
        });
    }
    Ok(ports)
}

/// `400 Gb/sec (4X NDR)`, `2.5 Gb/sec (1X SDR)`.
fn bits(text: &str) -> Option<u64> {
    let (number, unit) = text.split_once(' ')?;
    let gigabits: f64 = number.parse().ok()?;
    let bits = gigabits * 1e9;
    (unit.starts_with("Gb/sec") && bits.is_finite() && (0.0..=SPEED_MAX as f64).contains(&bits)).then_some(bits as u64)
}

fn gids(tree: &Tree, port: &str) -> Result<Vec<Ipv6Addr>, TopologyError> {
    let mut gids = Vec::new();
    for name in tree.list(&format!("{port}/gids"))?.iter().take(GIDS_MAX) {
        let at = format!("{port}/gids/{name}");
        let gid: Option<Ipv6Addr> = tree.value(&at, "a GID like fe80:0000:0000:0000:0000:0000:0000:0001")?;
        gids.extend(gid.filter(|gid| !gid.is_unspecified() && gid.octets()[8..] != [0; 8]));
    }
    gids.sort();
    gids.dedup();
    Ok(gids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_as_the_kernel_writes_them() {
        assert_eq!(bits("400 Gb/sec (4X NDR)"), Some(400_000_000_000));
        assert_eq!(bits("2.5 Gb/sec (1X SDR)"), Some(2_500_000_000));
        for wrong in ["", "400", "fast Gb/sec", "-1 Gb/sec", "1e300 Gb/sec", "NaN Gb/sec", "400 kb/sec"] {
            assert_eq!(bits(wrong), None, "{wrong}");
        }
    }
}
