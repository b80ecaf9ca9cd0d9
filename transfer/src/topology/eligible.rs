//! Which NICs KV moves over, and why the others do not.

use std::fmt;

use serde::{Serialize, Serializer};

use super::types::{Nic, NicKind, Topology, speed};

/// Why a NIC is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeftOut {
    /// The file says so (`use = false`).
    ByHand,
    /// There are NICs with RDMA, and this one has none.
    NoRdma,
    /// Its RDMA is in software: the interface beneath moves the same with less work for the CPU.
    SoftRdma,
    /// It is a virtual function of a NIC that is here itself: both share one wire.
    VirtualFunction,
    /// It is a member of this bond, or the bond's members are used themselves.
    Bond(String),
    /// Its link is down, and there are NICs whose link is not.
    Down,
    /// It has less than half the speed of the fastest: a management or storage NIC. A stripe would wait for it.
    Slow {
        /// Its bits a second.
        its: u64,
        /// Those of the fastest.
        fastest: u64,
    },
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ByHand => f.write_str("the file says `use = false`"),
            Self::NoRdma => f.write_str("it has no RDMA, and others have"),
            Self::SoftRdma => f.write_str("its RDMA is in software, and others need none"),
            Self::VirtualFunction => f.write_str("it is a virtual function of a NIC that is used itself"),
            Self::Bond(other) => write!(f, "it shares its wires with {other}"),
            Self::Down => f.write_str("its link is down"),
            Self::Slow { its, fastest } => {
                write!(f, "{} beside {}: nothing is striped over it", speed(*its), speed(*fastest))
            }
        }
    }
}

impl Serialize for LeftOut {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// For each NIC, `None` if KV moves over it. Each rule holds only while it leaves a NIC: with nothing but a slow one, that one
/// is used. What is decided by hand goes before all rules.
pub(super) fn left_out(topology: &Topology) -> Vec<Option<LeftOut>> {
    let nics = &topology.nics;
    let mut out: Vec<Option<LeftOut>> =
        nics.iter().map(|nic| (nic.used == Some(false)).then_some(LeftOut::ByHand)).collect();
    let fastest_kind = in_use(nics, &out).map(|nic| kind_rank(nic.kind)).min();
    strike(nics, &mut out, |nic, _| {
        let why = if nic.kind == NicKind::SoftRdma { LeftOut::SoftRdma } else { LeftOut::NoRdma };
        (Some(kind_rank(nic.kind)) > fastest_kind).then_some(why)
    });
    strike(nics, &mut out, |nic, all| {
        let physical = nic.function_of?;
        all.iter().any(|other| other.pci == Some(physical)).then_some(LeftOut::VirtualFunction)
    });
    strike(nics, &mut out, |nic, all| {
        let bond = all.iter().find(|bond| bond.name != nic.name && is_member(nic, bond))?;
        Some(LeftOut::Bond(bond.name.clone()))
    });
    strike(nics, &mut out, |nic, _| nic.is_down().then_some(LeftOut::Down));
    let fastest = in_use(nics, &out).filter_map(Nic::speed_bit_s).max();
    strike(nics, &mut out, |nic, _| {
        let (its, fastest) = (nic.speed_bit_s()?, fastest?);
        (its.saturating_mul(2) < fastest).then_some(LeftOut::Slow { its, fastest })
    });
    out
}

fn kind_rank(kind: NicKind) -> u8 {
    match kind {
        NicKind::Rdma => 0,
        NicKind::Ethernet => 1,
        NicKind::SoftRdma => 2,
    }
}

/// Is `nic` one of what `bond` bundles?
fn is_member(nic: &Nic, bond: &Nic) -> bool {
    nic.members.is_empty() && bond.members.iter().any(|member| *member == nic.name || nic.interfaces.contains(member))
}

fn in_use<'n>(nics: &'n [Nic], out: &[Option<LeftOut>]) -> impl Iterator<Item = &'n Nic> {
    nics.iter().zip(out).filter(|(_, out)| out.is_none()).map(|(nic, _)| nic)
}

/// Applies a rule to those still in use, unless none would be left. `use = true` stands above it.
fn strike(nics: &[Nic], out: &mut [Option<LeftOut>], rule: impl Fn(&Nic, &[&Nic]) -> Option<LeftOut>) {
    let used: Vec<&Nic> = in_use(nics, out).collect();
    let verdicts: Vec<Option<LeftOut>> =
        nics.iter().map(|nic| if nic.used == Some(true) { None } else { rule(nic, &used) }).collect();
    let left = out.iter().zip(&verdicts).any(|(out, verdict)| out.is_none() && verdict.is_none());
    if left {
        for (out, verdict) in out.iter_mut().zip(verdicts) {
            if out.is_none() {
                *out = verdict;
            }
        }
    }
}
