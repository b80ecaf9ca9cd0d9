//! Late writes and stale reads: memory that was lent and taken back never changes, and the tests of that can fail.
//!
//! The tests are the transfer engine's own: slices delayed past cancel and deadline, peers that are killed, frozen between
//! check and copy, and restarted, owners that evict under a read, and thousands of seeded schedules in virtual time. They
//! are run twice: as they are, and in a build whose fence is switched off, where they must find what it keeps out.

use std::process::Command;

use super::{Findings, Setting, Tier};

/// Tests that must find a late write or a stale read once the fence is off.
const CATCHERS: [&str; 2] = ["revocation_never_lands", "eviction_under_a_read"];
/// What they say then.
const CAUGHT: [&str; 2] = ["a late write landed in reused memory", "evicted bytes were believed"];

/// Runs the suite.
pub async fn run(setting: &Setting) -> Findings {
    let setting = setting.clone();
    let checks = move || {
        let mut findings = Findings::default();
        for check in [fenced, unfenced] {
            if let Err(e) = check(&setting, &mut findings) {
                findings.failure(e);
            }
        }
        findings
    };
    tokio::task::spawn_blocking(checks).await.unwrap_or_default()
}

/// Runs tests of the transfer engine; their output, and how many passed and failed.
fn tests(setting: &Setting, args: &[&str], env: &[(&str, &str)]) -> Result<(String, u64, u64), String> {
    let mut cargo = Command::new("cargo");
    cargo.args(["test", "--package", "kvrail-transfer"]).args(args).envs(env.iter().copied());
    let output = cargo.current_dir(&setting.root).output().map_err(|e| format!("cargo: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    let sum = |what: &str| -> u64 {
        let results = text.lines().filter(|l| l.starts_with("test result:"));
        results.filter_map(|l| l.split(what).next()?.split_whitespace().last()?.parse::<u64>().ok()).sum()
    };
    let (passed, failed) = (sum(" passed"), sum(" failed"));
    if passed + failed == 0 {
        return Err(format!("no test ran: {text}"));
    }
    Ok((text.into_owned(), passed, failed))
}

fn fenced(setting: &Setting, findings: &mut Findings) -> Result<(), String> {
    let seeds = if setting.tier == Tier::Quick { "40" } else { "1000" };
    let seed_env = [("KVRAIL_SEEDS", seeds)];
    let (text, passed, failed) = tests(setting, &["--test", "plan_sim"], &seed_env)?;
    findings.figure("simulated schedules", format!("{passed} properties held, {failed} failed, {seeds} seeds each"));
    findings.check(failed == 0, format!("in simulation: {text}"));
    let (text, passed, failed) = tests(setting, &["--test", "faults", "--test", "processes"], &[])?;
    findings.figure("real engines and processes", format!("{passed} tests passed, {failed} failed"));
    findings.check(failed == 0, format!("with real engines: {text}"));
    Ok(())
}

fn unfenced(setting: &Setting, findings: &mut Findings) -> Result<(), String> {
    let mut args = vec!["--features", "no-fence", "--test", "faults", "--"];
    args.extend(CATCHERS);
    let (text, passed, failed) = tests(setting, &args, &[("KVRAIL_TEST_NO_FENCE", "1")])?;
    findings.figure("with fencing off", format!("{failed} of {} tests found it", passed + failed));
    findings.check(passed == 0, format!("with fencing off {passed} tests saw nothing wrong: they prove nothing"));
    for caught in CAUGHT {
        findings.check(text.contains(caught), format!("with fencing off nobody said \"{caught}\": {text}"));
    }
    Ok(())
}
