//! `kvrail doctor`: what this machine has, what will be used of it and why, and what to do about what is missing.
//!
//! Each topic is a pure collector: it reads `/proc` and `/sys` under a root directory that is a parameter, so that a
//! captured tree is a test, and gives findings. It changes nothing, needs no privilege, and ends with status 0 whatever it
//! finds: a machine without RDMA is not broken. (A topology file that cannot be read is; that is status 2.)
//!
//! Map: [`finding`] what is said · [`root`] files under a root · [`cpu`] · [`memory`] · [`nics`] · [`rdma`] · [`gpu`] · [`gpudirect`] how NICs reach GPU memory ·
//! [`topology`] which NICs serve which memory · [`tools`] pip and the model.

mod cpu;
mod finding;
mod gpu;
mod gpudirect;
mod memory;
mod nics;
mod rdma;
mod root;
mod tools;
mod topology;

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
    let topology = Arg::new("topology").long("topology").value_name("PATH").help(
        "Show a machine's topology and the plan of its NICs instead: a file (NCCL's XML, TOML, JSON, what `nvidia-smi topo -m` \
         prints), or a directory (a captured /sys)",
    );
    Command::new("doctor")
        .about("Say what this machine has, what will be used and why, and what to do about what is missing")
        .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print one JSON object"))
        .arg(topology)
        .arg(root.help("Look at a captured tree of /proc and /sys"))
        .after_help(
            "Ends with status 0 whatever it finds, and with 2 if the file of --topology cannot be read.\n\nExamples:\n  \
             kvrail doctor --json | jq '.findings[] | select(.state != \"good\")'\n  \
             kvrail doctor --topology ndv5-topo.xml",
        )
}

/// Runs it.
pub fn run(arguments: &ArgMatches) -> anyhow::Result<Exit> {
    if let Some(path) = arguments.get_one::<String>("topology") {
        return topology::run(path, arguments.get_flag("json"));
    }
    let path = arguments.get_one::<String>("root").map_or("/", String::as_str);
    let root = Root::new(path);
    let mut findings = collect(&root);
    let (section, machine) = topology::examine(&root);
    findings.extend(section);
    if path == "/" {
        findings.extend(gpudirect::examine());
        findings.extend(tools::examine());
    }
    let mut out = std::io::stdout().lock();
    if arguments.get_flag("json") {
        let mut report = machine.as_ref().map_or_else(|| json!({}), topology::report);
        report["version"] = json!(env!("CARGO_PKG_VERSION"));
        report["findings"] = json!(findings);
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
