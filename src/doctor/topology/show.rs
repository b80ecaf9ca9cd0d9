//! The matrix of distances, the NICs, and what was chosen for each memory and why.

use std::io::{Result, Write};

use kvrail_transfer::topology::{Choice, MemoryPlan, Nic, Plan, RailBy, Topology, rails, speed};

use super::name;

/// Columns of the matrix on one line; the rest comes in a block of its own.
const COLUMNS: usize = 16;
/// NICs of one memory that are told with their reason; what comes after is named.
const REASONS: usize = 8;

/// `8 GPUs, 8 NICs, 2 NUMA nodes (from NCCL XML)`.
pub fn counts(machine: &Topology) -> String {
    let count = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let (gpus, nics) = (count(machine.gpus.len(), "GPU"), count(machine.nics.len(), "NIC"));
    format!("{gpus}, {nics}, {} (from {})", count(machine.nodes.len(), "NUMA node"), machine.source)
}

/// Prints a whole machine.
///
/// # Errors
/// If the output is gone.
pub fn machine(out: &mut impl Write, path: &str, machine: &Topology) -> Result<()> {
    let plan = Plan::of(machine);
    writeln!(out, "{path}: {}\n", counts(machine))?;
    matrix(out, machine, &plan)?;
    nics(out, machine, &plan)?;
    let memories = || plan.gpus.iter().chain(&plan.hosts);
    let width = memories().map(|memory| name(memory.memory).len()).max().unwrap_or(0);
    writeln!(out, "chosen, in order")?;
    memories().try_for_each(|memory| chosen(out, memory, width))?;
    writeln!(out)
}

fn matrix(out: &mut impl Write, machine: &Topology, plan: &Plan) -> Result<()> {
    let rails: Vec<usize> = (0..machine.nics.len()).collect();
    let first = plan.gpus.iter().chain(&plan.hosts).map(|memory| name(memory.memory).len()).max().unwrap_or(0).max(6);
    for rails in rails.chunks(COLUMNS) {
        let width = |rail: usize| machine.nics[rail].name.len().max(5);
        let names = rails.iter().map(|rail| format!("  {:w$}", machine.nics[*rail].name, w = width(*rail)));
        let header = format!("{:first$}{}", "", names.collect::<String>());
        writeln!(out, "{}", header.trim_end())?;
        for memory in plan.gpus.iter().chain(&plan.hosts) {
            let mut line = format!("{:first$}", name(memory.memory));
            for rail in rails {
                let cell = match memory.nics.iter().find(|choice| choice.rail == *rail) {
                    Some(choice) if choice.own => format!("{}*", choice.distance.word()),
                    Some(choice) => choice.distance.word().to_owned(),
                    None => "-".to_owned(),
                };
                line += &format!("  {cell:w$}", w = width(*rail));
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        writeln!(out)?;
    }
    if !machine.nics.is_empty() {
        writeln!(
            out,
            "PIX one switch · PXB several switches · PHB root complex · NODE NUMA node · SYS other socket · ? not known · * its \
             own share · - left out\n"
        )?;
    }
    Ok(())
}

fn nics(out: &mut impl Write, machine: &Topology, plan: &Plan) -> Result<()> {
    let width = machine.nics.iter().map(|nic| nic.name.len()).max().unwrap_or(0);
    for (nic, rail) in machine.nics.iter().zip(rails(machine)) {
        let out_of = plan.left_out.iter().find(|(name, _)| *name == nic.name).map(|(_, why)| why);
        let state = match (out_of, rail) {
            (Some(why), _) => format!("left out: {why}"),
            (None, Some(rail)) => {
                let by = match rail.by {
                    RailBy::Map => "by hand",
                    RailBy::Subnet => "subnet",
                    RailBy::Order | RailBy::Proportion => "order",
                };
                format!("rail {} ({by})  {}", rail.id, facts(nic))
            }
            (None, None) => facts(nic),
        };
        writeln!(out, "{:width$}  {state}", nic.name)?;
    }
    if machine.nics.is_empty() { Ok(()) } else { writeln!(out) }
}

fn facts(nic: &Nic) -> String {
    let mut facts = vec![nic.speed_bit_s().map_or_else(|| "speed unknown".to_owned(), speed)];
    if nic.ports.len() > 1 {
        facts.push(format!("{} ports", nic.ports.len()));
    }
    if !nic.members.is_empty() {
        facts.push(format!("a bond of {}", nic.members.join(" and ")));
    }
    facts.extend(nic.numa.map(|node| format!("NUMA node {node}")));
    facts.extend(nic.pci.map(|pci| pci.to_string()));
    facts.join(", ")
}

fn chosen(out: &mut impl Write, memory: &MemoryPlan, width: usize) -> Result<()> {
    let mut who = name(memory.memory);
    // What stands for the same reason is said together.
    let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
    for Choice { nic, why, .. } in &memory.nics {
        match groups.last_mut() {
            Some((reason, names)) if reason == why => names.push(nic),
            _ => groups.push((why, vec![nic])),
        }
    }
    for (why, names) in groups.iter().take(REASONS) {
        writeln!(out, "{who:w$}  {}: {why}", names.join(", "), w = width.max(6))?;
        who.clear();
    }
    let rest: usize = groups.iter().skip(REASONS).map(|(_, names)| names.len()).sum();
    match (memory.nics.is_empty(), rest) {
        (true, _) => writeln!(out, "{who:w$}  no NIC", w = width.max(6)),
        (false, 0) => Ok(()),
        (false, rest) => writeln!(out, "{who:w$}  and {rest} more", w = width.max(6)),
    }
}
