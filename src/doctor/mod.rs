//! `kvrail doctor`: what this machine has, what will be used of it and why, and what to do about what is missing.
//!
//! Each topic is a pure collector: it reads `/proc` and `/sys` under a root directory that is a parameter, so that a
//! captured tree is a test, and gives findings. It changes nothing, needs no privilege, and always ends with status 0: a
//! machine without RDMA is not broken.
//!
//! Map: [`finding`] what is said · [`root`] files under a root · [`cpu`] · [`memory`] · [`nics`] · [`rdma`] · [`gpu`] ·
//! [`tools`] pip and the model.

mod cpu;
mod finding;
mod gpu;
mod memory;
mod nics;
mod rdma;
mod root;
mod tools;

use std::io::{IsTerminal, Write};

use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::json;

use self::{
    finding::{Finding, State},
    root::Root,
};
use crate::exit::Exit;

/// The subcommand.
pub fn command() -> Command {
    let root = Arg::new("root").long("root").value_name("PATH").default_value("/").hide(true);
    Command::new("doctor")
        .about("Say what this machine has, what will be used and why, and what to do about what is missing")
        .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print one JSON object"))
        .arg(root.help("Look at a captured tree of /proc and /sys"))
        .after_help("Always ends with status 0.\n\nExample:\n  kvrail doctor --json | jq '.findings[] | select(.state != \"good\")'")
}

/// Runs it.
pub fn run(arguments: &ArgMatches) -> anyhow::Result<Exit> {
    let path = arguments.get_one::<String>("root").map_or("/", String::as_str);
    let mut findings = collect(&Root::new(path));
    if path == "/" {
        findings.extend(tools::examine());
    }
    let mut out = std::io::stdout().lock();
    if arguments.get_flag("json") {
        let report = json!({"version": env!("CARGO_PKG_VERSION"), "findings": findings});
        writeln!(out, "{report:#}")?;
    } else {
        let color = out.is_terminal();
        for finding in &findings {
            finding.print(&mut out, color)?;
        }
        let missing = findings.iter().filter(|finding| finding.state == State::Missing).count();
        writeln!(out, "\n{} findings, {missing} of them missing something that would help", findings.len())?;
    }
    Ok(Exit::Ok)
}

/// All findings about the machine under `root`, topic by topic.
fn collect(root: &Root) -> Vec<Finding> {
    let mut findings = cpu::examine(root);
    findings.extend(memory::examine(root));
    findings.extend(nics::examine(root));
    findings.extend(rdma::examine(root));
    findings.extend(gpu::examine(root));
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_machine_is_described_and_nothing_is_made_up() {
        let dir = tempfile::tempdir().unwrap();
        let findings = collect(&Root::new(dir.path()));
        for subject in ["cpu", "memory", "huge pages", "memlock", "shared memory", "nic", "tcp", "rdma", "gpu"] {
            assert!(findings.iter().any(|finding| finding.subject == subject), "silent about {subject}");
        }
        assert!(findings.iter().all(|finding| !finding.says.is_empty()));
    }
}
