//! Rails: the i-th NIC of every machine, on one leaf switch. Which NIC of another machine is on ours?
//!
//! By an explicit map first; else by the GIDs' subnets, where every NIC has one and they differ; else by PCIe order, so that the
//! i-th NICs of equal machines meet. Machines with different numbers of NICs are paired in proportion: no NIC of either idles.

use std::collections::BTreeSet;
use std::net::Ipv6Addr;

use serde::Serialize;

use super::eligible::left_out;
use super::types::{Nic, Topology};

/// How a rail was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RailBy {
    /// The file says so.
    Map,
    /// By the GID's subnet.
    Subnet,
    /// By PCIe order.
    Order,
    /// The other machine has another number of NICs: in proportion, and perhaps through the spine.
    Proportion,
}

/// The rail of one NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Rail {
    /// Its number, the same on every machine that is built alike.
    pub id: u32,
    /// How it was told.
    pub by: RailBy,
}

/// A local NIC and the remote one that it speaks to first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Pair {
    /// Place in the local [`Topology::nics`].
    pub local: usize,
    /// Place in the remote one.
    pub remote: usize,
    /// How they were paired; [`RailBy::Proportion`] may cross the spine, the others stay on a leaf switch.
    pub by: RailBy,
}

/// The rail of each NIC; `None` for those that KV does not move over.
#[must_use]
pub fn rails(topology: &Topology) -> Vec<Option<Rail>> {
    let used = used(topology);
    let mut rails = vec![None; topology.nics.len()];
    let subnets = subnets_apart(topology, &used);
    // Numbers that the map gives away are not given again.
    let taken: BTreeSet<u32> = used.iter().filter_map(|nic| topology.nics[*nic].rail).collect();
    let mut free = (0..).filter(|id| !taken.contains(id));
    let ranks: Vec<Subnet> = subnets.iter().flatten().copied().collect::<BTreeSet<_>>().into_iter().collect();
    let free_ranks: Vec<u32> = if subnets.is_some() { free.by_ref().take(ranks.len()).collect() } else { Vec::new() };
    for (at, nic) in used.iter().enumerate() {
        rails[*nic] = match (topology.nics[*nic].rail, &subnets) {
            (Some(id), _) => Some(Rail { id, by: RailBy::Map }),
            (None, Some(subnets)) => {
                let rank = ranks.iter().position(|subnet| *subnet == subnets[at]);
                rank.map(|rank| Rail { id: free_ranks[rank], by: RailBy::Subnet })
            }
            (None, None) => free.next().map(|id| Rail { id, by: RailBy::Order }),
        };
    }
    rails
}

/// Pairs the NICs of two machines. Each used NIC of both is in at least one pair, if both have any.
#[must_use]
pub fn pair(local: &Topology, remote: &Topology) -> Vec<Pair> {
    let (ours, theirs) = (used(local), used(remote));
    let mut pairs = Vec::new();
    let by_map = |nic: &Nic| nic.rail.map(u64::from);
    join(&mut pairs, RailBy::Map, local, remote, (&ours, &theirs), by_map);
    if subnets_apart(local, &ours).is_some() && subnets_apart(remote, &theirs).is_some() {
        join(&mut pairs, RailBy::Subnet, local, remote, (&ours, &theirs), |nic| subnet(nic).map(|(_, bits)| bits));
    }
    let alone = |all: &[usize], of: fn(&Pair) -> usize, pairs: &[Pair]| -> Vec<usize> {
        all.iter().copied().filter(|nic| pairs.iter().all(|pair| of(pair) != *nic)).collect()
    };
    let our_rest = alone(&ours, |pair| pair.local, &pairs);
    let their_rest = alone(&theirs, |pair| pair.remote, &pairs);
    let by = if our_rest.len() == their_rest.len() { RailBy::Order } else { RailBy::Proportion };
    // A side whose NICs all have a partner still serves what the other has left.
    let our_rest = if our_rest.is_empty() && !their_rest.is_empty() { ours } else { our_rest };
    let their_rest = if their_rest.is_empty() && !our_rest.is_empty() { theirs } else { their_rest };
    let most = our_rest.len().max(their_rest.len());
    if !our_rest.is_empty() && !their_rest.is_empty() {
        let at = |side: &[usize], k: usize| side[k * side.len() / most];
        pairs.extend((0..most).map(|k| Pair { local: at(&our_rest, k), remote: at(&their_rest, k), by }));
    }
    pairs.sort_by_key(|pair| (pair.local, pair.remote));
    pairs
}

/// Pairs what has the same key and no partner yet; several on one rail are paired in order, and in turn.
fn join(
    pairs: &mut Vec<Pair>,
    by: RailBy,
    local: &Topology,
    remote: &Topology,
    (ours, theirs): (&[usize], &[usize]),
    key: impl Fn(&Nic) -> Option<u64>,
) {
    let free = |side: &[usize], of: fn(&Pair) -> usize| -> Vec<usize> {
        side.iter().copied().filter(|nic| pairs.iter().all(|pair| of(pair) != *nic)).collect()
    };
    let (ours, theirs) = (free(ours, |pair| pair.local), free(theirs, |pair| pair.remote));
    let keys: BTreeSet<u64> = ours.iter().filter_map(|nic| key(&local.nics[*nic])).collect();
    for rail in keys {
        let on = |side: &[usize], of: &Topology| -> Vec<usize> {
            side.iter().copied().filter(|nic| key(&of.nics[*nic]) == Some(rail)).collect()
        };
        let (mine, yours) = (on(&ours, local), on(&theirs, remote));
        if !yours.is_empty() {
            let most = mine.len().max(yours.len());
            pairs.extend((0..most).map(|k| Pair { local: mine[k % mine.len()], remote: yours[k % yours.len()], by }));
        }
    }
}

fn used(topology: &Topology) -> Vec<usize> {
    let out = left_out(topology);
    (0..topology.nics.len()).filter(|nic| out[*nic].is_none()).collect()
}

/// Family and leading bits of a subnet.
type Subnet = (u8, u64);

/// The subnet of a NIC's first routable GID. GIDs do not say how long their prefix is: IPv4 counts as /24, the rest as /64.
fn subnet(nic: &Nic) -> Option<Subnet> {
    let gid = nic.ports.iter().flat_map(|port| &port.gids).find(|gid| !is_link_local(gid))?;
    Some(match gid.to_ipv4_mapped() {
        Some(address) => (4, u64::from(address.to_bits() >> 8)),
        None => (6, (gid.to_bits() >> 64) as u64),
    })
}

/// `fe80::/10`; the prefix of an InfiniBand fabric that nobody has named is of that kind as well.
pub(super) fn is_link_local(gid: &Ipv6Addr) -> bool {
    gid.segments()[0] & 0xffc0 == 0xfe80 && gid.segments()[1..4] == [0; 3]
}

/// The subnets of the used NICs, if each has one and they tell NICs apart.
fn subnets_apart(topology: &Topology, used: &[usize]) -> Option<Vec<Subnet>> {
    let subnets: Vec<Subnet> = used.iter().map(|nic| subnet(&topology.nics[*nic])).collect::<Option<_>>()?;
    let different: BTreeSet<&Subnet> = subnets.iter().collect();
    (different.len() > 1).then_some(subnets)
}

#[cfg(test)]
mod tests {
    use super::super::types::Port;
    use super::*;

    fn machine(nics: &[(Option<u32>, Option<&str>)]) -> Topology {
        let nics = nics.iter().enumerate().map(|(at, (rail, gid))| {
            let ports = vec![Port { gids: gid.iter().map(|gid| gid.parse().unwrap()).collect(), ..Port::default() }];
            Nic { name: format!("n{at}"), rail: *rail, ports, ..Nic::default() }
        });
        Topology { nics: nics.collect(), ..Topology::default() }
    }

    fn ids(topology: &Topology) -> Vec<(u32, RailBy)> {
        rails(topology).into_iter().flatten().map(|rail| (rail.id, rail.by)).collect()
    }

    fn pairs(local: &Topology, remote: &Topology) -> Vec<(usize, usize)> {
        pair(local, remote).iter().map(|pair| (pair.local, pair.remote)).collect()
    }

    #[test]
    fn a_map_goes_before_subnets_and_these_before_order() {
        use RailBy::*;
        assert_eq!(ids(&machine(&[(None, None), (None, None)])), [(0, Order), (1, Order)]);
        let crossed = machine(&[(None, Some("::ffff:10.0.7.1")), (None, Some("::ffff:10.0.3.1"))]);
        assert_eq!(ids(&crossed), [(1, Subnet), (0, Subnet)]);
        let flat = machine(&[(None, Some("::ffff:10.0.3.1")), (None, Some("::ffff:10.0.3.2"))]);
        assert_eq!(ids(&flat), [(0, Order), (1, Order)], "one subnet tells nothing apart");
        let local = machine(&[(None, Some("fe80::1")), (None, Some("fe80::2"))]);
        assert_eq!(ids(&local), [(0, Order), (1, Order)], "link-local tells nothing");
        let mapped = machine(&[(Some(5), None), (None, None), (Some(0), None)]);
        assert_eq!(ids(&mapped), [(5, Map), (1, Order), (0, Map)]);
    }

    #[test]
    fn equal_machines_meet_on_their_rails() {
        let straight = machine(&[(None, None); 3]);
        assert_eq!(pairs(&straight, &straight), [(0, 0), (1, 1), (2, 2)]);
        let here = machine(&[(None, Some("::ffff:10.0.7.1")), (None, Some("::ffff:10.0.3.1"))]);
        let there = machine(&[(None, Some("::ffff:10.0.3.9")), (None, Some("::ffff:10.0.7.9"))]);
        assert_eq!(pairs(&here, &there), [(0, 1), (1, 0)], "by subnet, whatever the order");
        let named = machine(&[(Some(1), None), (Some(0), None)]);
        let other = machine(&[(Some(0), None), (Some(1), None)]);
        assert_eq!(pairs(&named, &other), [(0, 1), (1, 0)]);
    }

    #[test]
    fn unequal_machines_leave_no_nic_idle() {
        let (two, three, eight) =
            (machine(&[(None, None); 2]), machine(&[(None, None); 3]), machine(&[(None, None); 8]));
        assert_eq!(pairs(&two, &eight), [(0, 0), (0, 1), (0, 2), (0, 3), (1, 4), (1, 5), (1, 6), (1, 7)]);
        assert_eq!(pairs(&three, &two), [(0, 0), (1, 0), (2, 1)]);
        assert!(pair(&two, &three).iter().all(|pair| pair.by == RailBy::Proportion));
        assert!(pair(&two, &machine(&[])).is_empty());
        let mapped = machine(&[(Some(0), None), (Some(9), None)]);
        assert_eq!(pairs(&mapped, &machine(&[(Some(0), None)])), [(0, 0), (1, 0)], "rail 9 is not there");
    }
}
