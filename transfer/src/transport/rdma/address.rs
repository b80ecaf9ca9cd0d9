//! Addresses of queue pairs, as their peers are told them.

use kvrail_verbs::{Gid, GidEntry, GidKind, Mtu};

use crate::session::codec::{DecodeError, Reader, Writer};

/// How a GID is reached. Only equal ones reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reachability {
    InfiniBand,
    RoceV1,
    RoceV2Ipv4,
    RoceV2Ipv6,
}

impl Reachability {
    pub(super) fn of(entry: &GidEntry) -> Option<Self> {
        Some(match entry.kind {
            GidKind::InfiniBand => Self::InfiniBand,
            GidKind::RoceV1 => Self::RoceV1,
            GidKind::RoceV2 if entry.gid.is_ipv4() => Self::RoceV2Ipv4,
            GidKind::RoceV2 => Self::RoceV2Ipv6,
            _ => return None,
        })
    }

    fn from_byte(byte: u8) -> Result<Self, DecodeError> {
        let all = [Self::InfiniBand, Self::RoceV1, Self::RoceV2Ipv4, Self::RoceV2Ipv6];
        all.into_iter().find(|kind| *kind as u8 == byte).ok_or(DecodeError)
    }
}

/// One end of a queue pair, and what it can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address {
    /// Number of the queue pair, 24 bits.
    pub(super) number: u32,
    /// First packet number, 24 bits.
    pub(super) sequence: u32,
    pub(super) gid: Gid,
    pub(super) reach: Reachability,
    /// On InfiniBand.
    pub(super) lid: u16,
    pub(super) mtu: Mtu,
    /// READs that it starts (requester) or answers (responder) at once.
    pub(super) reads: u8,
}

impl Address {
    pub(super) fn to_bytes(self) -> Vec<u8> {
        let mut w = Writer::with_capacity(32);
        w.u32(self.number);
        w.u32(self.sequence);
        w.raw(&self.gid.0);
        w.u8(self.reach as u8);
        w.u16(self.lid);
        w.u8(self.mtu as u8);
        w.u8(self.reads);
        w.into_inner()
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut r = Reader::new(bytes);
        let address = Self {
            number: r.u32()?,
            sequence: r.u32()?,
            gid: Gid(r.array()?),
            reach: Reachability::from_byte(r.u8()?)?,
            lid: r.u16()?,
            mtu: {
                let byte = r.u8()?;
                Mtu::ALL.into_iter().find(|mtu| *mtu as u8 == byte).ok_or(DecodeError)?
            },
            reads: r.u8()?,
        };
        let fits = address.number < 1 << 24 && address.sequence < 1 << 24;
        if fits && r.remaining() == 0 { Ok(address) } else { Err(DecodeError) }
    }
}

/// The GID to use, of those of one reachability if the peer has told its: routable ones before link-local ones, and of those
/// RoCE v2 over IPv4, then IPv6, then v1; the first of equals.
pub(super) fn best(entries: &[GidEntry], wanted: Option<Reachability>) -> Option<(GidEntry, Reachability)> {
    let rank = |entry: &GidEntry, reach: Reachability| {
        let local = entry.gid.is_link_local()
            || entry.gid.ip().to_ipv4_mapped().is_some_and(|ip| ip.is_link_local() || ip.is_unspecified());
        let kind = match reach {
            Reachability::InfiniBand | Reachability::RoceV2Ipv4 => 0,
            Reachability::RoceV2Ipv6 => 1,
            Reachability::RoceV1 => 2,
        };
        // Version 1 does not leave its segment, whatever its address.
        (kind == 2, local, kind, entry.index)
    };
    let usable = entries.iter().filter_map(|entry| Some((*entry, Reachability::of(entry)?)));
    let fitting = usable.filter(|(_, reach)| wanted.is_none_or(|wanted| wanted == *reach));
    fitting.min_by_key(|(entry, reach)| rank(entry, *reach))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u32, kind: GidKind, ip: &str) -> GidEntry {
        let gid = Gid(ip.parse::<std::net::Ipv6Addr>().unwrap().octets());
        GidEntry { gid, index, port: 1, kind, interface: 2 }
    }

    #[test]
    fn an_address_comes_back_and_cut_or_wrong_ones_are_refused() {
        let gid = entry(0, GidKind::RoceV2, "::ffff:10.0.0.2").gid;
        let reach = Reachability::RoceV2Ipv4;
        let address = Address { number: 17, sequence: 0xff_ffff, gid, reach, lid: 3, mtu: Mtu::B4096, reads: 16 };
        let bytes = address.to_bytes();
        assert_eq!(Address::from_bytes(&bytes), Ok(address));
        for cut in 0..bytes.len() {
            assert_eq!(Address::from_bytes(&bytes[..cut]), Err(DecodeError));
        }
        for (at, byte) in [(3, 1), (7, 1), (24, 9), (27, 0), (27, 6)] {
            let mut bad = bytes.clone();
            bad[at] = byte;
            assert_eq!(Address::from_bytes(&bad), Err(DecodeError), "byte {at}");
        }
    }

    #[test]
    fn gids_that_reach_far_go_first_and_the_peers_kind_decides() {
        let table = [
            entry(0, GidKind::RoceV1, "fe80::1"),
            entry(1, GidKind::RoceV2, "fe80::1"),
            entry(2, GidKind::RoceV1, "::ffff:10.0.0.1"),
            entry(3, GidKind::RoceV2, "::ffff:10.0.0.1"),
            entry(4, GidKind::RoceV2, "fd00::1"),
            entry(5, GidKind::RoceV2, "::ffff:169.254.1.1"),
        ];
        let index = |entries: &[GidEntry], wanted| best(entries, wanted).map(|(entry, _)| entry.index);
        assert_eq!(index(&table, None), Some(3));
        assert_eq!(index(&table, Some(Reachability::RoceV2Ipv6)), Some(4), "not the link-local one before it");
        assert_eq!(index(&table, Some(Reachability::RoceV1)), Some(2));
        assert_eq!(index(&table, Some(Reachability::InfiniBand)), None);
        assert_eq!(index(&table[..2], None), Some(1), "link-local is better than nothing, and v2 than v1");
        assert_eq!(index(&[table[5], table[4]], None), Some(4), "169.254 does not leave the link");
        assert_eq!(index(&[], None), None);
    }
}
