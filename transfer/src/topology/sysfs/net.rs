//! `/sys/class/net`: interfaces that TCP can use and that no RDMA device owns.

use super::place::place;
use super::rdma::is_plain;
use super::tree::Tree;
use crate::topology::error::TopologyError;
use crate::topology::pci::PciAddress;
use crate::topology::types::{LinkLayer, Nic, NicKind, Port};

/// `type` of an Ethernet interface (ARPHRD_ETHER, linux/if_arp.h).
const ETHERNET: u32 = 1;

/// All Ethernet interfaces with hardware behind them, and bonds, save what is in `owned`.
pub(super) fn interfaces(tree: &Tree, owned: &[String]) -> Result<(Vec<Nic>, Vec<PciAddress>), TopologyError> {
    let mut acs = Vec::new();
    let mut nics = Vec::new();
    for name in tree.list("class/net")? {
        let at = format!("class/net/{name}");
        tree.resolve(&at)?;
        // `bonding_masters` is a file among the directories.
        if owned.contains(&name) || !tree.has(&format!("{at}/mtu")) {
            continue;
        }
        let of_type: Option<u32> = tree.value(&format!("{at}/type"), "a number")?;
        let members: Vec<String> = tree
            .text(&format!("{at}/bonding/slaves"))?
            .map(|slaves| slaves.split_whitespace().filter(|name| is_plain(name)).map(str::to_owned).collect())
            .unwrap_or_default();
        let hardware = tree.has(&format!("{at}/device"));
        if of_type.is_some_and(|of_type| of_type != ETHERNET) || (!hardware && members.is_empty()) {
            continue;
        }
        let seat = match members.first() {
            Some(member) if !hardware => place(tree, &format!("class/net/{member}/device"))?,
            _ => place(tree, &format!("{at}/device"))?,
        };
        let mut nic =
            Nic { name: name.clone(), kind: NicKind::Ethernet, numa: seat.numa, root: seat.root, ..Nic::default() };
        nic.switches = seat.switches;
        nic.function_of = seat.function_of;
        if members.is_empty() {
            nic.pci = seat.pci;
        } else {
            // Members on several sockets: the bond is on none.
            for member in &members {
                let other = place(tree, &format!("class/net/{member}/device"))?;
                if other.numa != nic.numa {
                    nic.numa = None;
                }
                if other.switches != nic.switches {
                    nic.switches.clear();
                }
            }
        }
        nic.members = members;
        nic.interfaces = vec![name];
        nic.ports = vec![port(tree, &at)?];
        acs.extend(seat.acs);
        nics.push(nic);
    }
    Ok((nics, acs))
}

fn port(tree: &Tree, at: &str) -> Result<Port, TopologyError> {
    // A driver that does not know says -1, or fails to answer.
    let mbit: Option<i64> = tree.value(&format!("{at}/speed"), "Mbit/s, or -1 where it is not known,")?;
    let speed = mbit.and_then(|mbit| u64::try_from(mbit).ok()).filter(|mbit| *mbit > 0 && *mbit < u64::from(u32::MAX));
    let state = tree.text(&format!("{at}/operstate"))?;
    Ok(Port {
        number: 1,
        speed_bit_s: speed.map(|mbit| mbit * 1_000_000),
        link_layer: Some(LinkLayer::Ethernet),
        up: state.filter(|state| state != "unknown").map(|state| state == "up"),
        mtu: tree.value(&format!("{at}/mtu"), "bytes")?,
        gids: Vec::new(),
    })
}
