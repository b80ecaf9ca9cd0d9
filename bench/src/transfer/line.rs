//! How fast the rails of this machine are, where something trustworthy says so.
//!
//! `/sys/class/net/DEVICE/speed` counts only where a device of a bus is behind it: virtual ones say a number that means nothing.

use std::net::IpAddr;
use std::path::Path;
use std::process::Command;

use kvrail_transfer::{RdmaRail, TcpRail};
use serde::Deserialize;

use super::units::Rate;

/// The interface that has an address, as `ip` tells it.
#[derive(Deserialize)]
struct Link {
    ifname: String,
    #[serde(default)]
    flags: Vec<String>,
}

/// An interface of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// It carries what stays on this machine.
    pub loopback: bool,
}

/// The interface that a rail's streams go over: the one it names, else the one that has its address.
#[must_use]
pub fn device(address: IpAddr, named: Option<&str>) -> Option<Device> {
    let mut command = Command::new("ip");
    command.args(["-json", "address", "show"]);
    match named {
        Some(name) => command.args(["dev", name]),
        None => command.args(["to", &address.to_string()]),
    };
    let output = command.output().ok().filter(|output| output.status.success())?;
    first(&output.stdout)
}

/// The first interface that `ip -json address show` lists.
fn first(json: &[u8]) -> Option<Device> {
    // Interfaces that do not fit the question are listed as empty objects.
    let links: Vec<serde_json::Value> = serde_json::from_slice(json).ok()?;
    let link = links.into_iter().find_map(|link| serde_json::from_value::<Link>(link).ok())?;
    Some(Device { loopback: link.flags.iter().any(|flag| flag == "LOOPBACK"), name: link.ifname })
}

/// What all these TCP rails carry together; nothing where one of them does not say.
#[must_use]
pub fn of_tcp(rails: &[TcpRail]) -> Option<Rate> {
    total(rails.iter().map(|rail| {
        let device = device(rail.address, rail.device.as_deref())?;
        let class = Path::new("/sys/class/net").join(device.name);
        class
            .join("device")
            .exists()
            .then(|| std::fs::read_to_string(class.join("speed")).ok())
            .flatten()?
            .trim()
            .parse()
            .ok()
    }))
}

/// What all these NICs carry together; nothing where one of them does not say.
#[must_use]
pub fn of_rdma(rails: &[RdmaRail]) -> Option<Rate> {
    total(rails.iter().map(|rail| {
        let port = format!("/sys/class/infiniband/{}/ports/{}/rate", rail.device, rail.port);
        rdma_mbit(&std::fs::read_to_string(port).ok()?)
    }))
}

/// `100 Gb/sec (4X EDR)`, in Mbit/s.
fn rdma_mbit(text: &str) -> Option<f64> {
    let (number, rest) = text.trim().split_once(' ')?;
    rest.starts_with("Gb/sec").then(|| number.parse::<f64>().ok()).flatten().map(|gbit| gbit * 1e3)
}

fn total(mbits: impl Iterator<Item = Option<f64>>) -> Option<Rate> {
    let mbits: Vec<f64> = mbits.map(|mbit| mbit.filter(|m| *m > 0.0)).collect::<Option<_>>()?;
    (!mbits.is_empty()).then(|| Rate(mbits.iter().sum::<f64>() * 1e6 / 8.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_is_found_in_what_ip_says() {
        let json = br#"[{},{"ifindex":1,"ifname":"lo","flags":["LOOPBACK","UP"],"addr_info":[]}]"#;
        assert_eq!(first(json), Some(Device { name: "lo".into(), loopback: true }));
        let json = br#"[{"ifname":"eth1","flags":["UP"]}]"#;
        assert_eq!(first(json), Some(Device { name: "eth1".into(), loopback: false }));
        assert_eq!(first(b"[{}]"), None);
        assert_eq!(first(b"no"), None);
    }

    #[test]
    fn rates_add_up_and_one_unknown_makes_all_unknown() {
        assert_eq!(rdma_mbit("100 Gb/sec (4X EDR)\n"), Some(100_000.0));
        assert_eq!(rdma_mbit("fast"), None);
        assert_eq!(total([Some(100_000.0), Some(100_000.0)].into_iter()), Some(Rate(25e9)));
        assert_eq!(total([Some(100_000.0), None].into_iter()), None);
        assert_eq!(total([Some(-1.0)].into_iter()), None, "the kernel's word for a link that is down");
        assert_eq!(total(std::iter::empty()), None);
    }
}
