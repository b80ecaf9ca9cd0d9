//! Late writes and stale reads: memory that was lent and taken back never changes, and the tests of that can fail.
//!
//! The transfer engine's own tests: slices delayed past cancel and deadline, peers that are killed, frozen between check and
//! copy, and restarted, owners that evict under a read, and thousands of seeded schedules in virtual time. And seeded
//! schedules of the main job, through real prefill and decode services, whose answers hang on every byte. Both are run
//! twice: as they are, and in a build whose fence is switched off, where they must find what it keeps out.

use std::process::Command;

use super::{Findings, Setting, Tier};

/// Tests that must find a late write or a stale read once the fence is off.
const CATCHERS: [&str; 2] = ["revocation_never_lands", "eviction_under_a_read"];
/// What they say then.
const CAUGHT: [&str; 2] = ["a late write landed in reused memory", "evicted bytes were believed"];

/// Switches the fence off, in a build that can.
const NO_FENCE: (&str, &str) = ("KVRAIL_TEST_NO_FENCE", "1");
/// Number of seeds of tests that take their schedules from one.
const SEEDS: &str = "KVRAIL_SEEDS";

/// Runs the suite.
pub async fn run(setting: &Setting) -> Findings {
    let setting = setting.clone();
    let checks = move || {
        let mut findings = Findings::default();
        for check in [engine, engine_unfenced, main_job, main_job_unfenced] {
            if let Err(e) = check(&setting, &mut findings) {
                findings.failure(e);
            }
        }
        findings
    };
    tokio::task::spawn_blocking(checks).await.unwrap_or_default()
}

/// What tests said, and how many passed and failed.
struct Ran {
    text: String,
    passed: u64,
    failed: u64,
}

impl Ran {
    /// Runs tests of a crate.
    fn tests(setting: &Setting, package: &str, args: &[&str], env: &[(&str, &str)]) -> Result<Self, String> {
        let mut cargo = Command::new("cargo");
        cargo.args(["test", "--package", package]).args(args).envs(env.iter().copied());
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
        Ok(Self { text: text.into_owned(), passed, failed })
    }

    /// The line that ends with `end`, without it.
    fn line(&self, end: &str) -> Option<&str> {
        self.text.lines().find_map(|line| line.strip_suffix(end))
    }
}

fn engine(setting: &Setting, findings: &mut Findings) -> Result<(), String> {
    let seeds = if setting.tier == Tier::Quick { "40" } else { "1000" };
    let simulated = Ran::tests(setting, "kvrail-transfer", &["--test", "plan_sim"], &[(SEEDS, seeds)])?;
    let Ran { text, passed, failed } = simulated;
    findings.figure("simulated schedules", format!("{passed} properties held, {failed} failed, {seeds} seeds each"));
    findings.check(failed == 0, format!("in simulation: {text}"));
    let real = Ran::tests(setting, "kvrail-transfer", &["--test", "faults", "--test", "processes"], &[])?;
    let Ran { text, passed, failed } = real;
    findings.figure("real engines and processes", format!("{passed} tests passed, {failed} failed"));
    findings.check(failed == 0, format!("with real engines: {text}"));
    Ok(())
}

fn engine_unfenced(setting: &Setting, findings: &mut Findings) -> Result<(), String> {
    let mut args = vec!["--features", "no-fence", "--test", "faults", "--"];
    args.extend(CATCHERS);
    let Ran { text, passed, failed } = Ran::tests(setting, "kvrail-transfer", &args, &[NO_FENCE])?;
    findings.figure("with fencing off", format!("{failed} of {} tests found it", passed + failed));
    findings.check(passed == 0, format!("with fencing off {passed} tests saw nothing wrong: they prove nothing"));
    for caught in CAUGHT {
        findings.check(text.contains(caught), format!("with fencing off nobody said \"{caught}\": {text}"));
    }
    Ok(())
}

fn main_job(setting: &Setting, findings: &mut Findings) -> Result<(), String> {
    let seeds = if setting.tier == Tier::Quick { "5" } else { "50" };
    let args = ["--test", "late_write", "--", "--nocapture"];
    let ran = Ran::tests(setting, "kvrail-decode", &args, &[(SEEDS, seeds)])?;
    let told = ran.line(" late slices refused").ok_or_else(|| format!("the main job: {}", ran.text))?;
    findings.figure("the main job", format!("{told} late slices refused"));
    findings.check(ran.failed == 0, format!("the main job: {}", ran.text));
    Ok(())
}

fn main_job_unfenced(setting: &Setting, findings: &mut Findings) -> Result<(), String> {
    // One in two finds it or more: ten do not miss it by chance.
    let seeds = "10";
    let args = ["--features", "kvrail-transfer/no-fence", "--test", "late_write", "--", "--nocapture"];
    let ran = Ran::tests(setting, "kvrail-decode", &args, &[NO_FENCE, (SEEDS, seeds)])?;
    let told = ran.line(" of them with a wrong token").and_then(|line| line.rsplit(", ").next());
    let wrong = told.and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
    findings.figure("the main job with fencing off", format!("{wrong} of {seeds} schedules told a wrong token"));
    findings.check(wrong > 0, format!("with fencing off the main job's schedules saw nothing wrong: {}", ran.text));
    Ok(())
}
