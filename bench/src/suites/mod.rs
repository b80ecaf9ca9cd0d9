//! The promises of kvrail as suites: each prints its figures and closes with PASS, FAIL, or SKIPPED where a part could not run.

mod abi;
pub mod bad_input;
pub mod bindings;
pub mod clients;
pub mod doctor;
pub mod faults;
pub mod fresh;
pub mod gpu;
mod guest;
pub mod hostile;
pub mod house;
pub mod identity;
pub mod incast;
pub mod kv_moves;
pub mod late_write;
mod newcomer;
pub mod peers;
mod python;
pub mod rail_faults;
pub mod rails;
mod reference;
pub mod report;
pub mod speed;
mod tokens;
pub mod verbs;
pub mod verbs_speed;

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::Command;

/// How much of a suite to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// Seconds: what every change must pass.
    Quick,
    /// All of it, as promised in docs/verification.md.
    Full,
}

/// What a suite runs against.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The `kvrail` binary.
    pub binary: PathBuf,
    /// The real model, if it is on this machine.
    pub model: Option<PathBuf>,
    /// How much to run.
    pub tier: Tier,
    /// Seed of every random choice of the suite.
    pub seed: u64,
    /// Root of the repository, for suites that look at it.
    pub root: PathBuf,
}

/// A suite's future.
pub type Running = Pin<Box<dyn Future<Output = Findings> + Send>>;

/// A promise and what runs it.
pub struct Suite {
    /// Name on the command line.
    pub name: &'static str,
    /// What it promises, in one line.
    pub promise: &'static str,
    /// Runs it.
    pub run: fn(Setting) -> Running,
}

/// All suites.
pub const ALL: &[Suite] = &[
    Suite {
        name: "fresh",
        promise: "a fresh clone answers a question with the README's first command and passes all tests with the second",
        run: |setting| Box::pin(async move { fresh::run(&setting).await }),
    },
    Suite {
        name: "identity",
        promise: "separate prefill and decode processes say, token for token, what one process says, and that is what llama.cpp says",
        run: |setting| Box::pin(async move { identity::run(&setting).await }),
    },
    Suite {
        name: "kv-moves",
        promise: "a wrong byte of a moved block changes the answer, the checksum catches it, and /status counts the bytes",
        run: |setting| Box::pin(async move { kv_moves::run(&setting).await }),
    },
    Suite {
        name: "faults",
        promise: "whatever dies under load: no wrong, lost or repeated token, no hang, no leak, survivors serve",
        run: |setting| Box::pin(async move { faults::run(&setting).await }),
    },
    Suite {
        name: "late-write",
        promise: "memory that was lent and taken back never changes, a stale read is never believed, and the tests can fail",
        run: |setting| Box::pin(async move { late_write::run(&setting).await }),
    },
    Suite {
        name: "bad-input",
        promise: "bad input at the endpoint, the flags and the wire gets a clear typed error, and the server still answers",
        run: |setting| Box::pin(async move { bad_input::run(&setting).await }),
    },
    Suite {
        name: "clients",
        promise: "curl, the openai package and a load generator finish a hundred requests each without an error",
        run: |setting| Box::pin(async move { clients::run(&setting).await }),
    },
    Suite {
        name: "speed",
        promise: "the engine keeps up with raw sockets and memcpy, and separate pools with one process",
        run: |setting| Box::pin(async move { speed::run(&setting).await }),
    },
    Suite {
        name: "rails",
        promise: "several TCP rails carry together what plain sockets carry on the same links, and a slow one holds up no fast one",
        run: |setting| Box::pin(async move { rails::run(&setting).await }),
    },
    Suite {
        name: "rail-faults",
        promise: "a rail that is cut, swallows, slows or flaps costs its share and is back within a second; dead peers are typed errors",
        run: |setting| Box::pin(async move { rail_faults::run(&setting).await }),
    },
    Suite {
        name: "incast",
        promise: "many senders into one slow link: it stays full, is shared by weight, nothing is dropped, and who ignores its credit is cut",
        run: |setting| Box::pin(async move { incast::run(&setting).await }),
    },
    Suite {
        name: "verbs",
        promise: "RDMA on real queue pairs, in the soft-RoCE machine: every byte right over 1, 2 and 4 links, READ and WRITE, 64 queue pairs",
        run: |setting| Box::pin(async move { verbs::run(&setting).await }),
    },
    Suite {
        name: "verbs-speed",
        promise: "over verbs the engine keeps up with a bare loop, and rings fewer doorbells than there are blocks",
        run: |setting| Box::pin(async move { verbs_speed::run(&setting).await }),
    },
    Suite {
        name: "gpu",
        promise: "device memory moves with every byte right, is imported, exported and flushed as its device allows; SKIPPED without a GPU",
        run: |setting| Box::pin(async move { gpu::run(&setting).await }),
    },
    Suite {
        name: "hostile",
        promise: "whatever a stranger or a peer says to the engine, it refuses by type, in bounded memory, and serves the others",
        run: |setting| Box::pin(async move { hostile::run(&setting).await }),
    },
    Suite {
        name: "peers",
        promise: "over tcp and on one host, beside NIXL, Mooncake, plain sockets and memcpy in one run: throughput, CPU, latency, submit, idle",
        run: |setting| Box::pin(async move { peers::run(&setting).await }),
    },
    Suite {
        name: "bindings",
        promise: "the transfer engine serves C, Python and programs written for Mooncake's: header and library agree, one wheel for all Pythons",
        run: |setting| Box::pin(async move { bindings::run(&setting).await }),
    },
    Suite {
        name: "doctor",
        promise: "doctor says what this machine has and lacks, and the binary starts where there is nothing but libc",
        run: |setting| Box::pin(async move { doctor::run(&setting).await }),
    },
    Suite {
        name: "house",
        promise: "the map is true, every crate says what it is for, and CI passes on a clean clone",
        run: |setting| Box::pin(async move { house::run(&setting).await }),
    },
];

/// The real model, where this machine has fetched it.
#[must_use]
pub fn model_of(binary: &Path) -> Option<PathBuf> {
    let output = Command::new(binary).args(["model", "path"]).output().ok().filter(|o| o.status.success())?;
    Some(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())).filter(|path| path.is_file())
}

/// No suite has that name.
#[derive(Debug, thiserror::Error)]
#[error("no suite is called `{name}`; there are: {known}")]
pub struct Unknown {
    name: String,
    known: String,
}

/// The suite of that name.
///
/// # Errors
/// Names the ones that exist.
pub fn find(name: &str) -> Result<&'static Suite, Unknown> {
    ALL.iter()
        .find(|suite| suite.name == name)
        .ok_or_else(|| Unknown { name: name.into(), known: ALL.iter().map(|s| s.name).collect::<Vec<_>>().join(", ") })
}

/// What a suite found.
#[derive(Debug, Default)]
pub struct Findings {
    /// Figures, in order: name, value with unit.
    pub figures: Vec<(String, String)>,
    /// What did not hold.
    pub failures: Vec<String>,
    /// What could not be looked at on this machine. PASS means that there is none, and no failure.
    pub skipped: Vec<String>,
}

impl Findings {
    /// Notes a figure, and prints it at once: suites take minutes.
    pub fn figure(&mut self, name: impl Into<String>, value: impl std::fmt::Display) {
        let (name, value) = (name.into(), value.to_string());
        println!("  {name}: {value}");
        self.figures.push((name, value));
    }

    /// Notes what did not hold, and prints it.
    pub fn failure(&mut self, what: impl Into<String>) {
        let what = what.into();
        println!("  FAILED: {what}");
        self.failures.push(what);
    }

    /// Notes what could not be looked at here, and prints it.
    pub fn skip(&mut self, what: impl Into<String>) {
        let what = what.into();
        println!("  SKIPPED: {what}");
        self.skipped.push(what);
    }

    /// Notes a failure unless `holds`.
    pub fn check(&mut self, holds: bool, what: impl Into<String>) {
        if !holds {
            self.failure(what);
        }
    }

    /// PASS: everything was looked at and held. FAIL: something did not, or nothing was looked at. Else SKIPPED.
    #[must_use]
    pub fn verdict(&self) -> &'static str {
        match (self.failures.is_empty() && !self.figures.is_empty(), self.skipped.is_empty()) {
            (false, _) => "FAIL",
            (true, false) => "SKIPPED",
            (true, true) => "PASS",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_looked_at_and_held_passes() {
        let verdict = |figures: usize, failures: usize, skipped: usize| {
            let mut findings = Findings::default();
            (0..figures).for_each(|i| findings.figure("figure", i));
            (0..failures).for_each(|_| findings.failure("failure"));
            (0..skipped).for_each(|_| findings.skip("skipped"));
            findings.verdict()
        };
        assert_eq!([verdict(1, 0, 0), verdict(1, 0, 1), verdict(1, 1, 1)], ["PASS", "SKIPPED", "FAIL"]);
        assert_eq!([verdict(0, 0, 0), verdict(0, 0, 1)], ["FAIL", "FAIL"], "nothing was looked at");
    }
}
