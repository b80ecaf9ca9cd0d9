//! Network interfaces and TCP.

use serde_json::json;

use super::{
    finding::{Finding, State},
    root::Root,
};

/// Socket buffer below which one TCP stream cannot fill a fast path.
const BUFFER_WANTED: u64 = 4 << 20;
/// `type` of a loopback interface (ARPHRD_LOOPBACK, linux/if_arp.h).
const LOOPBACK: u32 = 772;

/// One interface.
#[derive(Debug)]
struct Nic {
    name: String,
    /// Mbit/s, where the driver knows.
    speed: Option<u64>,
    mtu: u32,
    up: bool,
    numa_node: Option<u32>,
    driver: Option<String>,
    loopback: bool,
}

/// Looks at interfaces and at the kernel's TCP settings.
pub fn examine(root: &Root) -> Vec<Finding> {
    let nics: Vec<Nic> = root.list("sys/class/net").into_iter().filter_map(|name| read(root, name)).collect();
    let mut findings: Vec<Finding> = nics.iter().filter(|nic| !nic.loopback).map(describe).collect();
    if findings.is_empty() {
        let says = "none but loopback: processes of this machine reach each other, other machines do not";
        findings.push(Finding::new("nic", State::Note, says));
    }
    findings.push(tcp(root));
    findings
}

fn read(root: &Root, name: String) -> Option<Nic> {
    let at = |file: &str| format!("sys/class/net/{name}/{file}");
    // Virtual devices that only shape traffic have no hardware behind them, unless they bundle some that has.
    let hardware = root.exists(&at("device")) || root.exists(&at("bonding"));
    let loopback = root.number::<u32>(&at("type")) == Some(LOOPBACK);
    if !hardware && !loopback {
        return None;
    }
    Some(Nic {
        // A driver that does not know says -1.
        speed: root.number::<i64>(&at("speed")).and_then(|speed| u64::try_from(speed).ok()).filter(|speed| *speed > 0),
        mtu: root.number(&at("mtu")).unwrap_or(0),
        up: root.read(&at("operstate")).as_deref() == Some("up"),
        numa_node: root.number::<i64>(&at("device/numa_node")).and_then(|node| u32::try_from(node).ok()),
        driver: root.link_name(&at("device/driver")),
        loopback,
        name,
    })
}

fn describe(nic: &Nic) -> Finding {
    let speed = match nic.speed {
        Some(speed) if speed >= 1000 => format!("{} Gbit/s", speed as f64 / 1000.0),
        Some(speed) => format!("{speed} Mbit/s"),
        None => "speed unknown".into(),
    };
    let driver = nic.driver.as_deref().map_or_else(String::new, |driver| format!(", driver {driver}"));
    let numa = nic.numa_node.map_or_else(String::new, |node| format!(", NUMA node {node}"));
    let facts = json!({
        "name": nic.name, "speed_mbit_per_s": nic.speed, "mtu": nic.mtu, "up": nic.up, "numa_node": nic.numa_node,
        "driver": nic.driver,
    });
    let says = format!("{}: {speed}, MTU {}{driver}{numa}", nic.name, nic.mtu);
    if !nic.up {
        return Finding::new("nic", State::Note, format!("{says}; it is down and will not be used")).facts(facts);
    }
    let says = format!("{says}; up: KV between machines can go over it by TCP");
    let fast = nic.speed.is_some_and(|speed| speed >= 10_000);
    if fast && nic.mtu < 9000 {
        let advice =
            format!("at this speed jumbo frames save CPU: ip link set {} mtu 9000, if the switch has them", nic.name);
        return Finding::new("nic", State::Missing, says).advise(advice).facts(facts);
    }
    Finding::new("nic", State::Good, says).facts(facts)
}

fn tcp(root: &Root) -> Finding {
    let setting = |name: &str| root.read(&format!("proc/sys/net/ipv4/{name}"));
    let Some(control) = setting("tcp_congestion_control") else {
        return Finding::new("tcp", State::Note, "the kernel's TCP settings cannot be read");
    };
    let largest = |name: &str| setting(name)?.split_whitespace().nth(2)?.parse::<u64>().ok();
    let (receive, send) = (largest("tcp_rmem"), largest("tcp_wmem"));
    let facts = json!({
        "congestion_control": control,
        "available": setting("tcp_available_congestion_control"),
        "receive_buffer_max_bytes": receive,
        "send_buffer_max_bytes": send,
    });
    let shown = |bytes: Option<u64>| bytes.map_or_else(|| "unknown".into(), crate::model::progress::size);
    let says = format!("congestion control {control}, buffers up to {} in and {} out", shown(receive), shown(send));
    match receive.into_iter().chain(send).min() {
        Some(least) if least < BUFFER_WANTED => {
            let advice = "on fast paths between machines: sysctl net.ipv4.tcp_rmem='4096 131072 33554432' \
                          net.ipv4.tcp_wmem='4096 65536 33554432'";
            Finding::new("tcp", State::Missing, says).advise(advice).facts(facts)
        }
        _ => Finding::new("tcp", State::Good, says).facts(facts),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::root::tree;

    #[test]
    fn interfaces_are_told_apart() {
        let (dir, root) = tree(&[
            ("sys/class/net/lo/type", "772"),
            ("sys/class/net/lo/mtu", "65536"),
            ("sys/class/net/ifb0/mtu", "1500"),
            ("sys/class/net/eth0/device/numa_node", "1"),
            ("sys/class/net/eth0/speed", "100000"),
            ("sys/class/net/eth0/mtu", "1500"),
            ("sys/class/net/eth0/operstate", "up"),
            ("sys/class/net/eth1/device/numa_node", "-1"),
            ("sys/class/net/eth1/speed", "-1"),
            ("sys/class/net/eth1/mtu", "1400"),
            ("sys/class/net/eth1/operstate", "down"),
        ]);
        std::os::unix::fs::symlink(
            "../../bus/pci/drivers/mlx5_core",
            dir.path().join("sys/class/net/eth0/device/driver"),
        )
        .unwrap();
        let findings = examine(&root);
        let says: Vec<_> = findings.iter().filter(|finding| finding.subject == "nic").collect();
        assert_eq!(says.len(), 2, "{says:?}");
        assert!(
            says[0].says.starts_with("eth0: 100 Gbit/s, MTU 1500, driver mlx5_core, NUMA node 1"),
            "{}",
            says[0].says
        );
        assert!(says[0].advice.as_ref().unwrap().contains("mtu 9000"));
        assert!(says[1].says.contains("eth1: speed unknown, MTU 1400; it is down"), "{}", says[1].says);
    }

    #[test]
    fn small_tcp_buffers_are_told() {
        let state = |wmem: &str| {
            let (_dir, root) = tree(&[
                ("proc/sys/net/ipv4/tcp_congestion_control", "cubic"),
                ("proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t33554432"),
                ("proc/sys/net/ipv4/tcp_wmem", wmem),
            ]);
            tcp(&root).state
        };
        assert_eq!((state("4096\t16384\t212992"), state("4096\t16384\t16777216")), (State::Missing, State::Good));
    }
}
