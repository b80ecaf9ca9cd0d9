//! Two hosts joined by several rails, or many at one switch, out of network namespaces: made for a test, gone after it.
//!
//! Each rail is a pair of virtual Ethernet devices, one end a host, and each end sends no faster than a token bucket lets
//! it. Host A has 10.77.RAIL.1, host B 10.77.RAIL.2, every rail a subnet of its own.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes that a bucket holds: some milliseconds of the slowest rail.
const BURST: &str = "128kb";
/// Bytes that may queue before a rail.
const QUEUE: &str = "1mb";

/// A host of the pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// Sends.
    A,
    /// Receives.
    B,
}

/// Two hosts and the rails between them.
#[derive(Debug)]
pub struct Fabric {
    names: [String; 2],
    rails: usize,
}

impl Fabric {
    /// Makes two hosts with one rail for each of `mbits`, Mbit/s.
    ///
    /// # Errors
    /// What the system said, where it does not let us, or lacks a part.
    pub fn new(mbits: &[u32]) -> Result<Self, String> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let tag = format!("kvr{}x{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let fabric = Self { names: [format!("{tag}a"), format!("{tag}b")], rails: mbits.len() };
        for name in &fabric.names {
            run(&["ip", "netns", "add", name])?;
        }
        for host in [Host::A, Host::B] {
            fabric.run(host, &["ip", "link", "set", "lo", "up"])?;
        }
        let [a, b] = &fabric.names;
        for (rail, mbit) in mbits.iter().enumerate() {
            let device = format!("rail{rail}");
            run(&["ip", "link", "add", &device, "netns", a, "type", "veth", "peer", "name", &device, "netns", b])?;
            let rate = format!("{mbit}mbit");
            for host in [Host::A, Host::B] {
                let address = fabric.rail(host, rail);
                let shape = ["root", "tbf", "rate", &rate, "burst", BURST, "limit", QUEUE];
                fabric.run(host, &["ip", "address", "add", &address, "dev", &device])?;
                fabric.run(host, &["ip", "link", "set", &device, "up"])?;
                fabric.run(host, &[&["tc", "qdisc", "add", "dev", &device][..], &shape[..]].concat())?;
            }
        }
        Ok(fabric)
    }

    /// A rail's address at a host, with its prefix.
    pub fn rail(&self, host: Host, rail: usize) -> String {
        format!("10.77.{rail}.{}/24", if host == Host::A { 1 } else { 2 })
    }

    /// All of them, as `--rails` takes them.
    pub fn rails(&self, host: Host) -> String {
        (0..self.rails).map(|rail| self.rail(host, rail)).collect::<Vec<_>>().join(",")
    }

    /// A program that will run at a host.
    pub fn command(&self, host: Host, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[host as usize]]).arg(program);
        command
    }

    fn run(&self, host: Host, words: &[&str]) -> Result<(), String> {
        output(self.command(host, words[0]).args(&words[1..]))
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        for name in &self.names {
            // It may not have come to be; its devices go with it.
            let _ = run(&["ip", "netns", "delete", name]);
        }
    }
}

/// Hosts at one switch, whose port to the first is slow: host `i` has 10.78.0.`i + 1` and the namespace of that number.
#[derive(Debug)]
pub struct Switch {
    /// The switch's own, and those of the hosts.
    names: Vec<String>,
}

impl Switch {
    /// So many hosts. The port to the first forwards no more than `mbit`, Mbit/s.
    ///
    /// # Errors
    /// What the system said, where it does not let us, or lacks a part.
    pub fn new(hosts: usize, mbit: u32) -> Result<Self, String> {
        let tag = format!("kvs{}", std::process::id());
        let mut switch = Self { names: Vec::new() };
        for number in 0..=hosts {
            let name = format!("{tag}n{number}");
            run(&["ip", "netns", "add", &name])?;
            switch.names.push(name);
        }
        let center = switch.names[0].clone();
        let at = |name: &str, words: &[&str]| run(&[&["ip", "netns", "exec", name][..], words].concat());
        at(&center, &["ip", "link", "add", "br0", "type", "bridge"])?;
        at(&center, &["ip", "link", "set", "br0", "up"])?;
        for (number, host) in switch.names[1..].iter().enumerate() {
            let (port, address) = (format!("port{number}"), format!("10.78.0.{}/24", number + 1));
            run(&[
                "ip", "link", "add", &port, "netns", &center, "type", "veth", "peer", "name", "rail0", "netns", host,
            ])?;
            at(&center, &["ip", "link", "set", &port, "master", "br0", "up"])?;
            at(host, &["ip", "address", "add", &address, "dev", "rail0"])?;
            at(host, &["ip", "link", "set", "lo", "up"])?;
            at(host, &["ip", "link", "set", "rail0", "up"])?;
        }
        let rate = format!("{mbit}mbit");
        let shape = ["root", "tbf", "rate", &rate, "burst", BURST, "limit", QUEUE];
        at(&center, &[&["tc", "qdisc", "add", "dev", "port0"][..], &shape[..]].concat())?;
        Ok(switch)
    }

    /// `NAMESPACE=ADDRESS` of all, the one behind the slow port first.
    pub fn hosts(&self) -> String {
        let hosts = self.names[1..].iter().zip(1..);
        hosts.map(|(name, number)| format!("{name}=10.78.0.{number}")).collect::<Vec<_>>().join(",")
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = run(&["ip", "netns", "delete", name]);
        }
    }
}

fn run(words: &[&str]) -> Result<(), String> {
    output(Command::new(words[0]).args(&words[1..]))
}

fn output(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("{command:?}: {}", said.trim())) }
}
