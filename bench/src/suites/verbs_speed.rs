//! The engine over RDMA beside a bare loop over verbs, interleaved, in the soft-RoCE machine. Speeds there say nothing of a NIC; the
//! ratio says what the engine adds.

use super::guest::{self, Guest, path};
use super::{Findings, Setting, Tier};

/// Of the bare loop's throughput, at least.
const FLOORS: [(&str, f64); 3] = [("64 KiB", 0.95), ("1 MiB", 0.95), ("scattered 32 KiB", 0.9)];

/// Runs the suite.
pub async fn run(setting: &Setting) -> Findings {
    guest::suite(setting, check).await
}

fn check(setting: &Setting, findings: &mut Findings) -> Result<(), String> {
    let engine = guest::build(setting, "kvrail-transfer", &["--release"])?;
    let guest = Guest::new(setting, 2, 1);
    let said = guest.tests(path(&engine, "verbs_speed")?, &[], &[])?;
    said.figures().for_each(|(name, value)| findings.figure(name, value));
    findings.check(said.ok, &said.text);
    for (name, floor) in FLOORS {
        let told = said.text.lines().find_map(|line| line.strip_prefix(&format!("ratio {name}: "))?.parse().ok());
        let ratio: f64 = told.ok_or_else(|| format!("no ratio for {name}: {}", said.text))?;
        // The quick tier judges no clock.
        let holds = ratio >= floor || setting.tier == Tier::Quick;
        findings.check(holds, format!("{name}: {ratio:.3} of a bare loop, {floor} promised"));
    }
    perftest(&guest, findings)
}

/// What `ib_write_bw` says there, for those who know it. Never judged: its clock is too coarse in the guest.
fn perftest(guest: &Guest<'_>, findings: &mut Findings) -> Result<(), String> {
    let script = "ib_write_bw -d rxb0 -x 1 -s 65536 -n 1000 >/dev/null 2>&1 & sleep 1; ib_write_bw -d rxa0 -x 1 -s 65536 -n 1000 10.0.0.2";
    let said = guest.run(&["sh", "-c", script], &[])?;
    let line = said.text.lines().find(|line| line.trim_start().starts_with("65536")).map(str::trim);
    findings.figure("perftest, 64 KiB", line.unwrap_or("not installed, or without a result"));
    Ok(())
}
