//! Faults of the command line: what is done when, and whether that can be done here.
//!
//! Three kinds, each what it says and no imitation: a rail's device is taken down and up (`ip link set DEVICE down`, on this
//! machine), a process of this machine is stopped, continued or killed by signal, and slices are damaged on their way by the
//! engine's own fault plan from the first to the last.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use kvrail_transfer::FaultPlan;

use super::units::time;

/// A fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// At one time, to one thing.
    At(Duration, Act),
    /// All the time, by the engine's fault plan.
    Slices(String),
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// The device of this machine's rail of that place in `--rails` goes down, or up.
    Rail {
        /// Its place, from 0.
        rail: usize,
        /// Up, not down.
        up: bool,
    },
    /// A peer that was started here gets a signal.
    Peer {
        /// Its number, from 1.
        peer: usize,
        /// Which.
        signal: Signal,
    },
}

/// Signals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Stands still (SIGSTOP).
    Stop,
    /// Goes on (SIGCONT).
    Continue,
    /// Is gone (SIGKILL).
    Kill,
}

/// Not a fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{given}`: {why}; rail:N:down@TIME, rail:N:up@TIME (N from 0, a place in --rails), peer:N:stop@TIME, peer:N:continue@TIME, \
     peer:N:kill@TIME (N from 1) or slices:KEY=NUMBER,… is wanted, say rail:1:down@3s"
)]
pub struct FaultError {
    given: String,
    why: String,
}

impl FromStr for Fault {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<Self, FaultError> {
        let wrong = |why: &str| FaultError { given: text.to_owned(), why: why.to_owned() };
        if let Some(plan) = text.strip_prefix("slices:") {
            plan.parse::<FaultPlan>().map_err(|error| wrong(&error.to_string()))?;
            return Ok(Self::Slices(plan.to_owned()));
        }
        let (what, at) = text.split_once('@').ok_or_else(|| wrong("no time"))?;
        let at = time(at).map_err(|error| wrong(&error.to_string()))?;
        let parts: Vec<&str> = what.split(':').collect();
        let number = |text: &str| text.parse::<usize>().map_err(|_| wrong("no number"));
        let act = match parts[..] {
            ["rail", rail, "down"] => Act::Rail { rail: number(rail)?, up: false },
            ["rail", rail, "up"] => Act::Rail { rail: number(rail)?, up: true },
            ["peer", peer, "stop"] => Act::Peer { peer: number(peer)?, signal: Signal::Stop },
            ["peer", peer, "continue"] => Act::Peer { peer: number(peer)?, signal: Signal::Continue },
            ["peer", peer, "kill"] => Act::Peer { peer: number(peer)?, signal: Signal::Kill },
            _ => return Err(wrong("no fault")),
        };
        Ok(Self::At(at, act))
    }
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Rail { rail, up } => write!(f, "rail {rail} {}", if up { "up" } else { "down" }),
            Self::Peer { peer, signal } => write!(f, "peer {peer} {signal}"),
        }
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stop => "stopped",
            Self::Continue => "continued",
            Self::Kill => "killed",
        })
    }
}

/// What is done when, earliest first.
#[must_use]
pub fn schedule(faults: &[Fault]) -> Vec<(Duration, Act)> {
    let timed = |fault: &Fault| match *fault {
        Fault::At(at, act) => Some((at, act)),
        Fault::Slices(_) => None,
    };
    let mut all: Vec<_> = faults.iter().filter_map(timed).collect();
    all.sort_by_key(|(at, _)| *at);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read_and_come_in_order() {
        let faults: Vec<Fault> = ["rail:1:up@5s", "slices:drop=5,seed=2", "rail:1:down@3s", "peer:2:stop@3500ms"]
            .iter()
            .map(|text| text.parse().unwrap())
            .collect();
        let acts: Vec<String> = schedule(&faults).iter().map(|(at, act)| format!("{act} at {at:?}")).collect();
        assert_eq!(acts, ["rail 1 down at 3s", "peer 2 stopped at 3.5s", "rail 1 up at 5s"]);
        assert_eq!(faults[1], Fault::Slices("drop=5,seed=2".into()));
    }

    #[test]
    fn what_is_none_is_told_what_would_be() {
        for bad in ["", "rail:1:down", "rail:1:down@", "rail:x:down@1s", "rail:1:flap@1s", "peer:1@1s", "slices:drip=5"]
        {
            let error = bad.parse::<Fault>().unwrap_err().to_string();
            assert!(error.contains(&format!("`{bad}`")) && error.contains("say rail:1:down@3s"), "{error}");
        }
    }
}
