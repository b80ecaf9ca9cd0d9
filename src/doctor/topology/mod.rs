//! Which NICs serve which memory: of this machine, or of one whose topology file somebody sent.
//!
//! Map: [`show`] the matrix and the plan, for people.

mod show;

use std::io::{IsTerminal, Write};
use std::path::Path;

use kvrail_transfer::topology::{self, Memory, MemoryPlan, Plan, Topology, TopologyError};
use serde_json::{Value, json};

use super::{
    finding::{Finding, State},
    root::Root,
};
use crate::exit::Exit;

/// Reads a topology: a directory as a captured `/sys`, a file by its content.
fn read(path: &Path) -> Result<Topology, TopologyError> {
    if path.is_dir() { topology::read_sysfs(path) } else { topology::read_file(path) }
}

/// `kvrail doctor --topology PATH`.
///
/// # Errors
/// If it cannot be read, with what would be right; or if the output is gone.
pub fn run(path: &str, as_json: bool) -> anyhow::Result<Exit> {
    let machine = read(Path::new(path)).map_err(|error| match error {
        // These name what they are about.
        TopologyError::Io { .. } | TopologyError::Link { .. } => error.into(),
        error => anyhow::Error::from(error).context(path.to_owned()),
    })?;
    let mut out = std::io::stdout().lock();
    if as_json {
        let mut report = report(&machine);
        report["version"] = json!(env!("CARGO_PKG_VERSION"));
        report["findings"] = machine_findings(&machine).iter().map(|finding| json!(finding)).collect();
        writeln!(out, "{report:#}")?;
        return Ok(Exit::Ok);
    }
    show::machine(&mut out, path, &machine)?;
    let color = out.is_terminal();
    for finding in machine_findings(&machine) {
        finding.print(&mut out, color)?;
    }
    Ok(Exit::Ok)
}

/// The topology, its plan and rails as data; a file of it can be given to `--topology`.
pub fn report(machine: &Topology) -> Value {
    json!({"topology": machine, "plan": Plan::of(machine), "rails": topology::rails(machine)})
}

/// A short section on the machine under `root`, and its topology, if it could be read.
pub fn examine(root: &Root) -> (Vec<Finding>, Option<Topology>) {
    if !root.exists("sys/class") {
        return (vec![Finding::new("topology", State::Note, "/sys is not here: it is not known")], None);
    }
    let machine = match topology::read_sysfs(&root.at("sys")) {
        Ok(machine) => machine,
        Err(error) => {
            let advice = "the plan of NICs needs it; `kvrail doctor --topology FILE` shows that of a file";
            return (vec![Finding::new("topology", State::Missing, error.to_string()).advise(advice)], None);
        }
    };
    let plan = Plan::of(&machine);
    let mut findings = vec![Finding::new("topology", State::Note, show::counts(&machine))];
    findings.extend(plan.gpus.iter().filter(|memory| !memory.nics.is_empty()).map(chosen));
    if plan.gpus.is_empty() {
        findings.extend(plan.hosts.iter().filter(|memory| !memory.nics.is_empty()).map(chosen));
    }
    findings.extend(machine_findings(&machine));
    (findings, Some(machine))
}

/// `GPU0 → mlx5_0 (PIX: same PCIe switch 0000:21:00.0)`.
fn chosen(memory: &MemoryPlan) -> Finding {
    let own: Vec<&str> = memory.own().collect();
    let first = &memory.nics[0];
    let says = format!("{} → {} ({}: {})", name(memory.memory), own.join(", "), first.distance.word(), first.why);
    Finding::new("topology", State::Good, says)
}

fn name(memory: Memory) -> String {
    match memory {
        Memory::Gpu(index) => format!("GPU{index}"),
        Memory::Host(Some(node)) => format!("node {node}"),
        Memory::Host(None) => "host memory".into(),
    }
}

fn machine_findings(machine: &Topology) -> Vec<Finding> {
    let of = |finding: &topology::Finding| {
        let state = if finding.is_wrong() { State::Missing } else { State::Note };
        let told = Finding::new("topology", state, finding.to_string()).facts(json!(finding));
        match finding.advice() {
            Some(advice) => told.advise(advice),
            None => told,
        }
    };
    topology::findings(machine).iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::root::tree;

    const MACHINE: &str = r#"
        gpu = [{ index = 0, numa = 0, switches = ["0000:11:00.0"] }, { index = 1, numa = 0 }]
        node = [{ id = 0, cpus = "0-3" }]
        [[nic]]
        name = "mlx5_0"
        numa = 0
        switches = ["0000:11:00.0"]
        ports = [{ speed_bit_s = 400_000_000_000 }]
        [[nic]]
        name = "manage"
        kind = "ethernet"
    "#;

    #[test]
    fn a_machine_is_shown_with_its_matrix_plan_and_findings() {
        let machine = topology::read(MACHINE.as_bytes()).unwrap();
        let mut out = Vec::new();
        show::machine(&mut out, "rack.toml", &machine).unwrap();
        let text = String::from_utf8(out).unwrap();
        for part in [
            "rack.toml: 2 GPUs, 2 NICs, 1 NUMA node (from TOML)",
            "GPU0    -       PIX*",
            "GPU1    -       NODE*",
            "mlx5_0  rail 0 (order)  400 Gbit/s, NUMA node 0",
            "manage  left out: it has no RDMA, and others have",
            "GPU0    mlx5_0: same PCIe switch 0000:11:00.0",
            "node 0  mlx5_0: same NUMA node 0",
        ] {
            assert!(text.contains(part), "`{part}` is not in\n{text}");
        }
        let says = machine_findings(&machine).remove(0).says;
        assert!(says.starts_with("GPU1 has no NIC near it: the nearest is NODE"), "{says}");
    }

    #[test]
    fn a_report_can_be_given_back() {
        let machine = topology::read(MACHINE.as_bytes()).unwrap();
        let report = report(&machine);
        assert_eq!(report["plan"]["gpus"][1]["nics"][0]["nic"], "mlx5_0");
        assert_eq!(topology::read(report.to_string().as_bytes()).unwrap(), machine);
    }

    #[test]
    fn this_machines_section_is_short() {
        let (_dir, root) = tree(&[
            ("sys/class/net/eth0/device/numa_node", "0"),
            ("sys/class/net/eth0/type", "1"),
            ("sys/class/net/eth0/mtu", "1500"),
            ("sys/devices/system/node/node0/cpulist", "0-1"),
        ]);
        let (findings, machine) = examine(&root);
        assert_eq!(machine.unwrap().nics.len(), 1);
        let says: Vec<&str> = findings.iter().map(|finding| finding.says.as_str()).collect();
        assert_eq!(says[..2], ["0 GPUs, 1 NIC, 1 NUMA node (from sysfs)", "node 0 → eth0 (NODE: same NUMA node 0)"]);
        let (_dir, root) = tree(&[]);
        assert!(examine(&root).0[0].says.contains("not known"));
    }

    #[test]
    fn what_cannot_be_read_is_a_wrong_setting() {
        let error = run("/nonexistent/topology.xml", false).unwrap_err();
        assert_eq!(crate::exit::report(&error), Exit::Usage);
    }
}
