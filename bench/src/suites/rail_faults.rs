//! Rails that break under a transfer, over RDMA and TCP alike: in the soft-RoCE machine, whose switch can be cut, slowed and made to drop
//! silently. And peers that die, stop or come back, in processes of their own.

use super::guest::{self, Guest, path};
use super::{Findings, Setting, Tier};

/// Rounds of each fault.
const ROUNDS: u32 = 20;

/// Runs the suite.
pub async fn run(setting: &Setting) -> Findings {
    guest::suite(setting, check).await
}

fn check(setting: &Setting, findings: &mut Findings) -> Result<(), String> {
    let engine = guest::build(setting, "kvrail-transfer", &[])?;
    let rounds = if setting.tier == Tier::Quick { 1 } else { ROUNDS };
    let guest = Guest::new(setting, 2, 2);
    let links = path(&engine, "links")?;
    for transport in ["rdma", "tcp"] {
        for fault in ["a_pulled_cable", "a_black_hole", "a_rail_ten_times_slower", "a_flapping_rail"] {
            let test = format!("{transport}::{fault}_costs_its_share");
            let said = guest.tests(links, &["--exact", &test], &[("KVRAIL_ROUNDS", &rounds.to_string())])?;
            said.figures().for_each(|(name, value)| findings.figure(name, value));
            findings.check(said.ok && said.tests() == (1, 1), format!("{test}: {}", said.text));
        }
    }
    // Each round starts processes anew, so it is the run that is repeated.
    let (mut passed, mut all) = (0, 0);
    for round in 0..rounds {
        let said = guest.tests(path(&engine, "processes")?, &["rdma::"], &[])?;
        let (ok, run) = said.tests();
        (passed, all) = (passed + ok, all + run);
        findings.check(said.ok && ok == run && run > 0, format!("round {round} of processes: {}", said.text));
    }
    findings
        .figure("peers killed, stopped, restarted, over rdma", format!("{passed} of {all} tests in {rounds} rounds"));
    let mut cargo = std::process::Command::new("cargo");
    cargo.args(["test", "--package", "kvrail-transfer", "--test", "processes", "--test", "restarts", "--", "tcp::"]);
    cargo.current_dir(&setting.root);
    for round in 0..rounds {
        let (ok, text) = super::python::output(&cargo)?;
        findings.check(ok, format!("round {round} over tcp: {text}"));
    }
    findings.figure("the same over tcp", format!("{rounds} rounds"));
    Ok(())
}
