//! Faults as they are done: devices down and up, processes stopped, continued and killed.
//!
//! What was done is undone when the cell is over, also where this process dies before: a rail's device is taken up again by a
//! small process of its own that waits for the end of its input.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, kill_process};

use super::fault::{Act, Signal};
use super::line::device;
use super::options::Options;
use super::plan::Plan;
use super::tally::Event;
use crate::setting::SettingError;

/// What acts hit.
#[derive(Clone, Debug, Default)]
pub struct Targets {
    /// Devices by place in `--rails`.
    devices: BTreeMap<usize, String>,
    /// Processes of the peers that were started here, by number.
    pids: BTreeMap<usize, u32>,
}

impl Targets {
    /// Finds the devices of the rails that are to be hit.
    ///
    /// # Errors
    /// [`SettingError`] where a rail has no device of its own, or may not be taken down.
    pub fn find(plan: &Plan, options: &Options) -> Result<Self, SettingError> {
        let mut devices = BTreeMap::new();
        for (_, act) in &plan.acts {
            let Act::Rail { rail, .. } = *act else { continue };
            let refuse = |wanted: String| SettingError::new("fault", act, wanted);
            let at = &options.rails[rail];
            let found = device(at.address, at.device.as_deref());
            let found = found.ok_or_else(|| refuse(format!("no device here has the address {}", at.address)))?;
            if found.loopback {
                return Err(refuse(format!("{} is on {}, which carries all of this machine", at.address, found.name)));
            }
            if !rustix::process::geteuid().is_root() {
                return Err(refuse("taking a device down wants root".into()));
            }
            devices.insert(rail, found.name);
        }
        Ok(Self { devices, pids: BTreeMap::new() })
    }

    /// A peer that was started here.
    pub fn add(&mut self, peer: usize, pid: u32) {
        self.pids.insert(peer, pid);
    }

    /// Whether a rail's device is the one with this address: then the talk between the machines goes over it.
    #[must_use]
    pub fn carries(&self, address: std::net::IpAddr) -> Option<usize> {
        let carrier = device(address, None)?;
        self.devices.iter().find(|(_, name)| **name == carrier.name).map(|(rail, _)| *rail)
    }
}

/// Does what is planned, each at its time since `start`, and says when it was done. Undoes all of it when it is dropped.
#[derive(Debug)]
pub struct Striker {
    targets: Targets,
    down: BTreeMap<usize, Child>,
    stopped: Vec<u32>,
}

impl Striker {
    /// One that has done nothing.
    #[must_use]
    pub fn new(targets: Targets) -> Self {
        Self { targets, down: BTreeMap::new(), stopped: Vec::new() }
    }

    /// Does all acts, waits for the end of the cell's time, and has those go on that were stopped, so that they can end.
    pub fn run(&mut self, acts: &[(Duration, Act)], start: Instant, time: Duration) -> Vec<Event> {
        let mut events = Vec::new();
        for &(at, act) in acts {
            std::thread::sleep((start + at).saturating_duration_since(Instant::now()));
            let did = self.strike(act);
            let what = did.unwrap_or_else(|error| format!("{act}: {error}"));
            events.push(Event { at_s: start.elapsed().as_secs_f64(), what });
        }
        if !self.stopped.is_empty() {
            std::thread::sleep((start + time).saturating_duration_since(Instant::now()));
            self.go_on();
        }
        events
    }

    fn strike(&mut self, act: Act) -> io::Result<String> {
        match act {
            Act::Rail { rail, up } => {
                let device = self.targets.devices.get(&rail).ok_or(io::ErrorKind::NotFound)?;
                if up {
                    if let Some(guard) = self.down.remove(&rail) {
                        finish(guard)?;
                    }
                } else {
                    let guard = guard(device)?;
                    self.down.insert(rail, guard);
                    let status = Command::new("ip").args(["link", "set", "dev", device, "down"]).status()?;
                    if !status.success() {
                        return Err(io::Error::other(format!("ip link set dev {device} down: {status}")));
                    }
                }
                Ok(format!("{act} (ip link set dev {device} {})", if up { "up" } else { "down" }))
            }
            Act::Peer { peer, signal } => {
                let raw = *self.targets.pids.get(&peer).ok_or(io::ErrorKind::NotFound)?;
                let pid = i32::try_from(raw).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::NotFound)?;
                let (number, name) = match signal {
                    Signal::Stop => (rustix::process::Signal::STOP, "SIGSTOP"),
                    Signal::Continue => (rustix::process::Signal::CONT, "SIGCONT"),
                    Signal::Kill => (rustix::process::Signal::KILL, "SIGKILL"),
                };
                kill_process(pid, number)?;
                self.stopped.retain(|stopped| *stopped != raw);
                if signal == Signal::Stop {
                    self.stopped.push(raw);
                }
                Ok(format!("{act} ({name})"))
            }
        }
    }

    fn go_on(&mut self) {
        for pid in self.stopped.drain(..) {
            if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
                // It may have ended.
                let _ = kill_process(pid, rustix::process::Signal::CONT);
            }
        }
    }
}

impl Drop for Striker {
    fn drop(&mut self) {
        self.go_on();
        for guard in std::mem::take(&mut self.down).into_values() {
            let _ = finish(guard);
        }
    }
}

/// A process that takes a device up when its input ends: by our word, or by our death. In a group of its own, so that an
/// interrupt from the keyboard does not reach it.
fn guard(device: &str) -> io::Result<Child> {
    Command::new("sh")
        .args(["-c", "read -r _; exec ip link set dev \"$0\" up", device])
        .stdin(Stdio::piped())
        .process_group(0)
        .spawn()
}

fn finish(mut guard: Child) -> io::Result<()> {
    drop(guard.stdin.take());
    guard.wait().map(drop)
}
