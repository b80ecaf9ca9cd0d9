//! GIDs: addresses of a port.

use std::fmt;
use std::mem::size_of;
use std::net::Ipv6Addr;

use kvrail_verbs_sys as sys;

use crate::context::Context;
use crate::error::Error;

/// An address of a port: 16 bytes, written as an IPv6 address. RoCE v2 puts an IPv4 address in as `::ffff:a.b.c.d`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// As an IP address, which it is with RoCE.
    pub fn ip(self) -> Ipv6Addr {
        Ipv6Addr::from(self.0)
    }

    /// Whether it only holds on one link (`fe80::/10`).
    pub fn is_link_local(self) -> bool {
        self.0[0] == 0xfe && self.0[1] & 0xc0 == 0x80
    }

    /// Whether it is an IPv4 address.
    pub fn is_ipv4(self) -> bool {
        self.ip().to_ipv4_mapped().is_some()
    }

    pub(crate) fn raw(self) -> sys::ibv_gid {
        sys::ibv_gid { raw: self.0 }
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ip().fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ip().fmt(f)
    }
}

/// What a GID belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GidKind {
    /// InfiniBand.
    InfiniBand,
    /// RoCE over Ethernet frames: does not leave its segment.
    RoceV1,
    /// RoCE over UDP: routable.
    RoceV2,
    /// A value that is newer than this code.
    Other(u32),
}

/// An entry of a port's GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// The address.
    pub gid: Gid,
    /// Its place in the table: what a queue pair's path names.
    pub index: u32,
    /// The port.
    pub port: u32,
    /// What it belongs to.
    pub kind: GidKind,
    /// Index of the network interface behind it; 0 where there is none.
    pub interface: u32,
}

impl GidEntry {
    fn of(raw: &sys::ibv_gid_entry) -> Self {
        Self {
            // SAFETY: every view of the union is 16 plain bytes.
            gid: Gid(unsafe { raw.gid.raw }),
            index: raw.gid_index,
            port: raw.port_num,
            kind: match sys::ibv_gid_type(raw.gid_type) {
                sys::ibv_gid_type::IBV_GID_TYPE_IB => GidKind::InfiniBand,
                sys::ibv_gid_type::IBV_GID_TYPE_ROCE_V1 => GidKind::RoceV1,
                sys::ibv_gid_type::IBV_GID_TYPE_ROCE_V2 => GidKind::RoceV2,
                other => GidKind::Other(other.0),
            },
            interface: raw.ndev_ifindex,
        }
    }
}

/// The entries of a port that are in use.
pub(crate) fn table(context: &Context, port: u8) -> Result<Vec<GidEntry>, Error> {
    let Ok(query) = context.library()._ibv_query_gid_table.as_ref() else {
        return Err(Error::Unsupported { what: "ibv_query_gid_table", on: context.name().into() });
    };
    let ports = context.attributes()?.ports;
    let mut room = 0;
    for port in 1..=ports.min(u8::MAX.into()) {
        room += context.port(port as u8)?.gids_max as usize;
    }
    // SAFETY: all zeroes is a value of it.
    let mut raw = vec![unsafe { std::mem::zeroed::<sys::ibv_gid_entry>() }; room];
    // SAFETY: the context is open; `raw` has the room that is named, in entries of the size that is named.
    let count = unsafe { query(context.raw(), raw.as_mut_ptr(), room, 0, size_of::<sys::ibv_gid_entry>()) };
    let count = usize::try_from(count)
        .map_err(|_| Error::code("ibv_query_gid_table", context.name(), i32::try_from(count).unwrap_or(libc::EIO)))?;
    Ok(raw.iter().take(count).filter(|entry| entry.port_num == u32::from(port)).map(GidEntry::of).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gid_is_written_and_read_as_an_address() {
        let mapped = Gid("::ffff:10.0.0.2".parse::<Ipv6Addr>().expect("an address").octets());
        assert!(mapped.is_ipv4() && !mapped.is_link_local());
        assert_eq!(mapped.to_string(), "::ffff:10.0.0.2");
        let local = Gid("fe80::1".parse::<Ipv6Addr>().expect("an address").octets());
        assert!(local.is_link_local() && !local.is_ipv4());
    }
}
