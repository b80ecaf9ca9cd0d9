//! How a NIC is named in settings.

use std::fmt;
use std::str::FromStr;

/// A NIC over which RDMA moves data.
///
/// Written `DEVICE[:PORT][@GID][#RAIL]`:
///
/// ```
/// use kvrail_transfer::RdmaRail;
///
/// let rail: RdmaRail = "mlx5_3:1@3#3".parse().unwrap();
/// assert_eq!((rail.device.as_str(), rail.port, rail.gid, rail.rail), ("mlx5_3", 1, Some(3), Some(3)));
/// assert_eq!(rail.to_string(), "mlx5_3:1@3#3");
/// assert!("mlx5_3:x".parse::<RdmaRail>().unwrap_err().to_string().contains("port"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaRail {
    /// Name of the RDMA device, as `ibv_devices` tells it.
    pub device: String,
    /// Its port; the first is 1.
    pub port: u8,
    /// Place of the address to use in the port's GID table; the best one where none is given.
    pub gid: Option<u8>,
    /// Number of the rail in the fabric: rails of one number are paired. The place in the list where none is given.
    pub rail: Option<u16>,
}

/// A text that names no NIC.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no RDMA rail: {what} is wrong; DEVICE[:PORT][@GID][#RAIL] is wanted, say mlx5_3:1#3")]
pub struct RdmaRailError {
    text: String,
    what: &'static str,
}

/// Longest name of a device (`IB_DEVICE_NAME_MAX` without its end).
const DEVICE_BYTES_MAX: usize = 63;

impl FromStr for RdmaRail {
    type Err = RdmaRailError;

    fn from_str(text: &str) -> Result<Self, RdmaRailError> {
        let wrong = |what| RdmaRailError { text: text.to_owned(), what };
        let (rest, rail) = text.split_once('#').map_or((text, None), |(rest, rail)| (rest, Some(rail)));
        let (rest, gid) = rest.split_once('@').map_or((rest, None), |(rest, gid)| (rest, Some(gid)));
        let (device, port) = rest.split_once(':').map_or((rest, None), |(device, port)| (device, Some(port)));
        if device.is_empty() || device.len() > DEVICE_BYTES_MAX || device.contains(['/', ' ']) {
            return Err(wrong("the device"));
        }
        let port = port.map_or(Some(1), |port| port.parse().ok().filter(|port| *port > 0));
        Ok(Self {
            device: device.to_owned(),
            port: port.ok_or_else(|| wrong("the port"))?,
            gid: gid.map(|gid| gid.parse().map_err(|_| wrong("the place of the GID"))).transpose()?,
            rail: rail.map(|rail| rail.parse().map_err(|_| wrong("the rail's number"))).transpose()?,
        })
    }
}

impl fmt::Display for RdmaRail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.device, self.port)?;
        self.gid.map_or(Ok(()), |gid| write!(f, "@{gid}"))?;
        self.rail.map_or(Ok(()), |rail| write!(f, "#{rail}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_rail_is_told_by_its_part() {
        for (text, what) in [
            ("", "the device"),
            (":1", "the device"),
            ("a/b", "the device"),
            ("rxe0:0", "the port"),
            ("rxe0:256", "the port"),
            ("rxe0@x", "the place of the GID"),
            ("rxe0#65536", "the rail's number"),
        ] {
            let error = text.parse::<RdmaRail>().unwrap_err();
            assert_eq!((error.text.as_str(), error.what), (text, what));
        }
        assert_eq!("rxe0".parse::<RdmaRail>().unwrap().to_string(), "rxe0:1");
    }
}
