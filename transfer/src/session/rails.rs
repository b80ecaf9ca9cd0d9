//! TCP over several rails: local addresses, those of a peer, and which goes with which.
//!
//! Pure: addresses in, pairs out. The dialler of a session decides, because it dials the streams.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use crate::session::codec::{DecodeError, Reader, Writer};

/// Rails that an engine has at most; as many streams go to a peer.
pub const TCP_RAILS_MAX: usize = 32;
/// Longest name of an interface (`IFNAMSIZ` without its end).
const DEVICE_BYTES_MAX: usize = 15;

/// A local address over which TCP moves data. Without any, the system routes all streams over the session's addresses.
///
/// Written `ADDRESS[/PREFIX][@DEVICE][#RAIL]`:
///
/// ```
/// use kvrail_transfer::TcpRail;
///
/// let rail: TcpRail = "10.0.3.7/24@eth3#3".parse().unwrap();
/// assert_eq!((rail.prefix, rail.device.as_deref(), rail.rail), (24, Some("eth3"), Some(3)));
/// assert_eq!(rail.to_string(), "10.0.3.7/24@eth3#3");
/// assert!("10.0.3.7/33".parse::<TcpRail>().unwrap_err().to_string().contains("prefix"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpRail {
    /// Streams are bound to it, and peers dial it.
    pub address: IpAddr,
    /// Bits of its subnet: rails of one subnet are paired. All of them where none was given.
    pub prefix: u8,
    /// Interface that its streams are bound to as well: where rails share a subnet, the address alone does not choose it.
    pub device: Option<String>,
    /// Number of the rail in the fabric; equal numbers are paired before subnets are looked at.
    pub rail: Option<u16>,
}

/// A text that names no rail.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no rail: {what} is wrong; ADDRESS[/PREFIX][@DEVICE][#RAIL] is wanted, say 10.0.3.7/24@eth3#3")]
pub struct TcpRailError {
    text: String,
    what: &'static str,
}

impl FromStr for TcpRail {
    type Err = TcpRailError;

    fn from_str(text: &str) -> Result<Self, TcpRailError> {
        let wrong = |what| TcpRailError { text: text.to_owned(), what };
        let (rest, rail) = text.split_once('#').map_or((text, None), |(rest, rail)| (rest, Some(rail)));
        let (rest, device) = rest.split_once('@').map_or((rest, None), |(rest, device)| (rest, Some(device)));
        let (address, prefix) = rest.split_once('/').map_or((rest, None), |(a, prefix)| (a, Some(prefix)));
        let address: IpAddr = address.parse().map_err(|_| wrong("the address"))?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.map_or(Some(bits), |p| p.parse().ok().filter(|p| *p <= bits));
        let device_fits = |d: &str| !d.is_empty() && d.len() <= DEVICE_BYTES_MAX && !d.contains(['/', ' ']);
        Ok(Self {
            address,
            prefix: prefix.ok_or_else(|| wrong("the prefix"))?,
            device: match device {
                Some(name) if !device_fits(name) => return Err(wrong("the device")),
                device => device.map(str::to_owned),
            },
            rail: rail.map(|number| number.parse().map_err(|_| wrong("the rail's number"))).transpose()?,
        })
    }
}

impl fmt::Display for TcpRail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)?;
        if let Some(device) = &self.device {
            write!(f, "@{device}")?;
        }
        self.rail.map_or(Ok(()), |rail| write!(f, "#{rail}"))
    }
}

/// A rail as its engine tells a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FarRail {
    pub(crate) address: SocketAddr,
    pub(crate) prefix: u8,
    pub(crate) rail: Option<u16>,
}

pub(crate) fn put_rails(w: &mut Writer, rails: &[FarRail]) {
    w.u8(rails.len().min(TCP_RAILS_MAX) as u8);
    for rail in rails.iter().take(TCP_RAILS_MAX) {
        match rail.address.ip() {
            IpAddr::V4(ip) => w.bytes(&ip.octets()),
            IpAddr::V6(ip) => w.bytes(&ip.octets()),
        }
        w.u16(rail.address.port());
        w.u8(rail.prefix);
        w.u32(rail.rail.map_or(u32::MAX, u32::from));
    }
}

pub(crate) fn take_rails(r: &mut Reader<'_>) -> Result<Vec<FarRail>, DecodeError> {
    let count = usize::from(r.u8()?);
    if count > TCP_RAILS_MAX {
        return Err(DecodeError);
    }
    let one = |_| {
        let octets = r.bytes()?;
        let v4 = <[u8; 4]>::try_from(octets).map(IpAddr::from);
        let ip = v4.or_else(|_| <[u8; 16]>::try_from(octets).map(IpAddr::from)).map_err(|_| DecodeError)?;
        let address = SocketAddr::new(ip, r.u16()?);
        let prefix = r.u8()?;
        let rail = match r.u32()? {
            u32::MAX => None,
            number => Some(u16::try_from(number).map_err(|_| DecodeError)?),
        };
        Ok(FarRail { address, prefix, rail })
    };
    (0..count).map(one).collect()
}

/// The way of one stream: the local rail that it is bound to and the remote one that it dials, by their places in the lists.
/// None: as the system routes, to where the session goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Way {
    pub(crate) near: Option<u8>,
    pub(crate) far: Option<u8>,
}

/// The ways of a session's TCP streams, stream by stream: every rail of both sides has a part in at least one, and `streams`
/// or more are there in all where there is room.
///
/// Each rail of the side that has more of them gets a partner: of its number, else of its subnet, else of its family, and of
/// those the one that has the fewest partners so far, the first in the list among equals.
pub(crate) fn ways(near: &[TcpRail], far: &[FarRail], streams: u8) -> Vec<Way> {
    let at = |index: usize| Some(index as u8);
    let pairs: Vec<Way> = match (near.len(), far.len()) {
        (0, 0) => vec![Way::default()],
        (0, _) => (0..far.len()).map(|j| Way { near: None, far: at(j) }).collect(),
        (_, 0) => (0..near.len()).map(|i| Way { near: at(i), far: None }).collect(),
        (n, f) => self::pairs(n, f, |i, j| closeness(&near[i], &far[j])),
    };
    lanes(pairs, streams)
}

/// A NIC of ours as ways are planned: its rail number, and the queue pairs that it wants to one of the peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NearNic {
    pub(crate) rail: u16,
    pub(crate) queue_pairs: u8,
}

/// The ways of a session's RDMA streams, by the rail numbers of both sides' NICs: as for TCP, but nothing goes without a NIC of both, and a
/// fast NIC gets more.
pub(crate) fn nic_ways(near: &[NearNic], far: &[u16], streams: u8) -> Vec<Way> {
    if near.is_empty() || far.is_empty() {
        return Vec::new();
    }
    let close = |i: usize, j: usize| Some(u8::from(near[i].rail != far[j]));
    let pairs = pairs(near.len(), far.len(), close);
    let least = (usize::from(streams) / pairs.len()).max(1);
    let lanes = |way: &Way| least.max(way.near.map_or(1, |i| usize::from(near[usize::from(i)].queue_pairs)));
    // Round by round, so that what a limit cuts off is everybody's.
    let rounds = pairs.iter().map(lanes).max().unwrap_or(0);
    let all = (0..rounds).flat_map(|round| pairs.iter().filter(move |way| lanes(way) > round));
    all.copied().take(TCP_RAILS_MAX).collect()
}

/// Queue pairs to a peer's NIC over a link of so many bit/s (0: nobody knows): what one of them carries at small sizes is bound by its packets.
pub(crate) fn queue_pairs(bits_per_second: u64, mtu_bytes: u32) -> u8 {
    let lanes = bits_per_second.div_ceil(100_000_000_000).clamp(1, 4) as u8;
    if lanes > 1 && mtu_bytes < 4096 { 2 * lanes } else { lanes }
}

/// Pairs of `near` and `far` rails: each of the side that has more of them gets a partner.
fn pairs(near: usize, far: usize, closeness: impl Fn(usize, usize) -> Option<u8>) -> Vec<Way> {
    let way = |i: usize, j: usize| Way { near: Some(i as u8), far: Some(j as u8) };
    if near >= far {
        partners(near, far, closeness).map(|(i, j)| way(i, j)).collect()
    } else {
        partners(far, near, |j, i| closeness(i, j)).map(|(j, i)| way(i, j)).collect()
    }
}

/// So many streams over these pairs, and one each at least.
fn lanes(pairs: Vec<Way>, streams: u8) -> Vec<Way> {
    let lanes = (usize::from(streams) / pairs.len().max(1)).max(1);
    let all = std::iter::repeat_n(pairs, lanes).flatten();
    all.take(TCP_RAILS_MAX).collect()
}

/// A partner out of `few` for each of `many`, where one has any.
fn partners(
    many: usize,
    few: usize,
    closeness: impl Fn(usize, usize) -> Option<u8>,
) -> impl Iterator<Item = (usize, usize)> {
    let mut load = vec![0usize; few];
    (0..many).filter_map(move |i| {
        let near = (0..few).filter_map(|j| closeness(i, j).map(|close| (close, load[j], j)));
        let (_, _, j) = near.min()?;
        load[j] += 1;
        Some((i, j))
    })
}

/// How well two rails go together, best first; not at all between families.
fn closeness(near: &TcpRail, far: &FarRail) -> Option<u8> {
    let far_ip = far.address.ip();
    if near.address.is_ipv4() != far_ip.is_ipv4() {
        return None;
    }
    let same_number = near.rail.is_some() && near.rail == far.rail;
    let same_subnet = near.prefix == far.prefix && network(near.address, near.prefix) == network(far_ip, far.prefix);
    Some(if same_number { 0 } else { 1 + u8::from(!same_subnet) })
}

/// The first `prefix` bits.
fn network(ip: IpAddr, prefix: u8) -> u128 {
    let (bits, width) = match ip {
        IpAddr::V4(ip) => (u128::from(ip.to_bits()), 32),
        IpAddr::V6(ip) => (ip.to_bits(), 128),
    };
    let host = width - u32::from(prefix).min(width);
    bits.checked_shr(host).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(texts: &[&str]) -> Vec<TcpRail> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn far(texts: &[&str]) -> Vec<FarRail> {
        let told = |r: TcpRail| FarRail { address: (r.address, 7).into(), prefix: r.prefix, rail: r.rail };
        near(texts).into_iter().map(told).collect()
    }

    fn pairs(near_texts: &[&str], far_texts: &[&str], streams: u8) -> Vec<(i16, i16)> {
        let number = |place: Option<u8>| place.map_or(-1, i16::from);
        let ways = ways(&near(near_texts), &far(far_texts), streams);
        ways.into_iter().map(|way| (number(way.near), number(way.far))).collect()
    }

    #[test]
    fn without_rails_the_system_routes_every_stream() {
        assert_eq!(pairs(&[], &[], 3), [(-1, -1); 3]);
        assert_eq!(pairs(&[], &["10.0.0.2/24", "10.0.1.2/24"], 2), [(-1, 0), (-1, 1)]);
        assert_eq!(pairs(&["10.0.0.1/24", "10.0.1.1/24"], &[], 1), [(0, -1), (1, -1)]);
    }

    #[test]
    fn rails_are_paired_by_number_then_by_subnet_then_in_order() {
        let a = ["10.0.0.1/24", "10.0.1.1/24"];
        assert_eq!(pairs(&a, &["10.0.1.2/24", "10.0.0.2/24"], 2), [(0, 1), (1, 0)], "by subnet");
        assert_eq!(pairs(&a, &["10.5.1.2/24", "10.5.0.2/24"], 2), [(0, 0), (1, 1)], "in order");
        let b = ["10.0.0.1/24#7", "10.0.1.1/24#8"];
        assert_eq!(pairs(&b, &["10.0.0.2/24#8", "10.0.1.2/24#7"], 2), [(0, 1), (1, 0)], "by number");
        let flat = ["10.0.0.1/16", "10.0.1.1/16", "10.0.2.1/16"];
        assert_eq!(
            pairs(&flat, &["10.0.0.2/16", "10.0.1.2/16", "10.0.2.2/16"], 2),
            [(0, 0), (1, 1), (2, 2)],
            "one subnet"
        );
        assert_eq!(pairs(&["fd00:0:0:1::1/64"], &["fd00:0:0:1::2/64"], 1), [(0, 0)]);
        assert_eq!(pairs(&["10.0.0.1/24"], &["fd00::2/64"], 1), [], "no family in common");
    }

    #[test]
    fn every_rail_of_the_side_with_more_has_a_stream() {
        let four = ["10.0.0.1/24", "10.0.1.1/24", "10.0.2.1/24", "10.0.3.1/24"];
        let two = ["10.0.1.2/24", "10.0.3.2/24"];
        assert_eq!(pairs(&four, &two, 2), [(0, 0), (1, 0), (2, 1), (3, 1)]);
        assert_eq!(pairs(&two, &four, 2), [(0, 0), (0, 1), (1, 2), (1, 3)]);
    }

    #[test]
    fn streams_beyond_the_rails_are_lanes_and_all_is_bounded() {
        assert_eq!(
            pairs(&["10.0.0.1/24", "10.0.1.1/24"], &["10.0.0.2/24", "10.0.1.2/24"], 5),
            [(0, 0), (1, 1), (0, 0), (1, 1)]
        );
        let many: Vec<String> = (0..40).map(|i| format!("10.0.{i}.1/24")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(pairs(&many, &many, 32).len(), TCP_RAILS_MAX);
    }

    #[test]
    fn nics_are_paired_by_number_and_all_of_them_have_a_part() {
        let pairs = |near: &[u16], far: &[u16], streams| {
            let near: Vec<NearNic> = near.iter().map(|rail| NearNic { rail: *rail, queue_pairs: 1 }).collect();
            let ways = nic_ways(&near, far, streams).into_iter();
            ways.map(|way| (way.near.unwrap(), way.far.unwrap())).collect::<Vec<_>>()
        };
        assert_eq!(pairs(&[0, 1], &[1, 0], 2), [(0, 1), (1, 0)]);
        assert_eq!(pairs(&[0, 1], &[1, 0], 4), [(0, 1), (1, 0), (0, 1), (1, 0)], "two queue pairs each way and path");
        assert_eq!(pairs(&[0], &[5, 6], 1), [(0, 0), (0, 1)]);
        assert_eq!(pairs(&[0, 1, 2], &[2], 1), [(0, 0), (1, 0), (2, 0)]);
        assert!(pairs(&[], &[1], 2).is_empty() && pairs(&[1], &[], 2).is_empty());
    }

    #[test]
    fn fast_nics_get_more_queue_pairs_and_a_limit_cuts_the_last_round() {
        let near = |queue_pairs: &[u8]| -> Vec<NearNic> {
            (0..).zip(queue_pairs).map(|(rail, queue_pairs)| NearNic { rail, queue_pairs: *queue_pairs }).collect()
        };
        let pairs = |near: &[NearNic], far: &[u16], streams| {
            nic_ways(near, far, streams).iter().map(|way| way.near.unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(pairs(&near(&[1, 3]), &[0, 1], 2), [0, 1, 1, 1]);
        assert_eq!(pairs(&near(&[1, 3]), &[0, 1], 4), [0, 1, 0, 1, 1], "as many as are asked for, or more");
        let eight = pairs(&near(&[8; 8]), &(0..8).collect::<Vec<_>>(), 2);
        assert_eq!(eight.len(), TCP_RAILS_MAX);
        assert!((0..8).all(|nic| eight.iter().filter(|near| **near == nic).count() == 4));
        let gigabit: u64 = 1_000_000_000;
        let told = |gigabits, mtu| queue_pairs(gigabits * gigabit, mtu);
        assert_eq!([told(0, 1024), told(25, 1024), told(100, 1024)], [1, 1, 1]);
        assert_eq!([told(200, 4096), told(200, 1024), told(400, 4096), told(800, 1024)], [2, 4, 4, 8]);
    }

    #[test]
    fn what_is_told_of_rails_comes_back_and_too_much_is_refused() {
        let rails = far(&["10.0.0.2/24#65535", "fd00::1/64"]);
        let mut w = Writer::default();
        put_rails(&mut w, &rails);
        let bytes = w.into_inner();
        assert_eq!(take_rails(&mut Reader::new(&bytes)), Ok(rails));
        (0..bytes.len()).for_each(|cut| assert_eq!(take_rails(&mut Reader::new(&bytes[..cut])), Err(DecodeError)));
        assert_eq!(take_rails(&mut Reader::new(&[33])), Err(DecodeError));
    }

    #[test]
    fn a_wrong_rail_is_told_by_its_part() {
        for (text, what) in [
            ("", "the address"),
            ("eth0", "the address"),
            ("10.0.0.1/33", "the prefix"),
            ("10.0.0.1/-1", "the prefix"),
            ("10.0.0.1@", "the device"),
            ("10.0.0.1@an-interface-of-sixteen", "the device"),
            ("10.0.0.1#x", "the rail's number"),
            ("10.0.0.1#65536", "the rail's number"),
        ] {
            let error = text.parse::<TcpRail>().unwrap_err();
            assert_eq!((error.text.as_str(), error.what), (text, what));
        }
    }
}
