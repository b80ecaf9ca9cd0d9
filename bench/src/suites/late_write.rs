//! Late writes and stale reads: memory that was lent and taken back never changes, and the tests of that can fail.
//!
//! The transfer engine's own tests: slices delayed past cancel, deadline, the lease's time and restarts, a sender and a copy
//! frozen between check and copy, owners that evict under a read, and thousands of seeded schedules in virtual time. And seeded
//! schedules of the main job, through real prefill and decode services, whose answers hang on every byte. Both are run
//! twice: as they are, and in a build whose fence is switched off, where they must find what it keeps out: each test of
//! [`SITUATIONS`] over each transport, in its own words.

use std::collections::BTreeMap;
use std::process::Command;

use super::guest::{self, Guest, path};
use super::{Findings, Setting, Tier};

/// What tests say that find a late write, or a read that was believed after its memory was evicted.
const LATE_WRITE: &str = "a late write landed in reused memory";
const STALE_READ: &str = "evicted bytes were believed";

/// What the fence must keep out: what happens, the test that makes it happen, what that test says once the fence is off.
const SITUATIONS: [(&str, &str, &str); 10] = [
    ("slice past cancel", "a_slice_delayed_past_cancel_never_lands", LATE_WRITE),
    ("slice past the deadline", "a_slice_delayed_past_the_deadline_never_lands", LATE_WRITE),
    ("slice past the lease's time", "a_slice_delayed_past_the_leases_time_never_lands", LATE_WRITE),
    ("slice past revocation", "a_slice_delayed_past_revocation_never_lands", LATE_WRITE),
    ("slice past the sender's restart", "a_slice_delayed_past_its_senders_restart_never_lands", LATE_WRITE),
    ("slice past the owner's restart", "a_slice_delayed_past_its_owners_restart_never_lands", LATE_WRITE),
    (
        "sender frozen between check and copy",
        "a_sender_frozen_between_its_check_and_its_copy_does_no_harm_when_it_wakes",
        LATE_WRITE,
    ),
    ("copy frozen after its check", "a_copy_stopped_after_its_check_holds_up_the_fence", LATE_WRITE),
    ("read frozen, memory evicted", "a_read_stopped_after_its_check_is_stale_once_its_memory_is_evicted", STALE_READ),
    ("eviction under a read", "eviction_under_a_read_is_stale_or_whole", STALE_READ),
];
/// Each must have been tried over these; over others as they come.
const TRANSPORTS: [&str; 2] = ["shm", "tcp"];

/// Switches the fence off, in a build that can.
const NO_FENCE: (&str, &str) = ("KVRAIL_TEST_NO_FENCE", "1");
/// Number of seeds of tests that take their schedules from one.
const SEEDS: &str = "KVRAIL_SEEDS";

/// Runs the suite.
pub async fn run(setting: &Setting) -> Findings {
    let setting = setting.clone();
    let checks = move || {
        let mut findings = Findings::default();
        for check in [simulated, engine, rdma, main_job, main_job_unfenced, main_job_rdma] {
            if let Err(e) = check(&setting, &mut findings) {
                findings.failure(e);
            }
        }
        findings
    };
    tokio::task::spawn_blocking(checks).await.unwrap_or_default()
}

/// What tests said.
struct Ran {
    text: String,
    /// Whether each passed, by its path.
    verdicts: BTreeMap<String, bool>,
    passed: u64,
    failed: u64,
}

impl Ran {
    /// Runs tests of a crate.
    fn tests(setting: &Setting, package: &str, args: &[&str], env: &[(&str, &str)]) -> Result<Self, String> {
        let mut cargo = Command::new("cargo");
        cargo.args(["test", "--no-fail-fast", "--package", package]).args(args).envs(env.iter().copied());
        let output = cargo.current_dir(&setting.root).output().map_err(|e| format!("cargo: {e}"))?;
        let ran = Self::read(String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr));
        if ran.passed + ran.failed == 0 { Err(format!("no test ran: {}", ran.text)) } else { Ok(ran) }
    }

    fn read(text: impl Into<String>) -> Self {
        let text = text.into();
        let sum = |what: &str| -> u64 {
            let results = text.lines().filter(|l| l.starts_with("test result:"));
            results.filter_map(|l| l.split(what).next()?.split_whitespace().last()?.parse::<u64>().ok()).sum()
        };
        let (passed, failed) = (sum(" passed"), sum(" failed"));
        let verdict = |line: &str| {
            let (path, verdict) = line.strip_prefix("test ")?.split_once(" ... ")?;
            if verdict.starts_with("ignored") {
                return None;
            }
            Some((path.to_owned(), verdict == "ok"))
        };
        let verdicts = text.lines().filter_map(verdict).collect();
        Self { text, verdicts, passed, failed }
    }

    /// Transports that a test was run over.
    fn over(&self, test: &str) -> Vec<&str> {
        let paths = self.verdicts.keys().filter_map(|path| path.split_once("::"));
        paths.filter(|(_, name)| *name == test).map(|(transport, _)| transport).collect()
    }

    /// Whether a test ran and passed.
    fn held(&self, path: &str) -> bool {
        self.verdicts.get(path) == Some(&true)
    }

    /// Whether a test ran and failed, with these words among its own.
    fn failed_with(&self, path: &str, words: &str) -> bool {
        let own = self.text.split("\n---- ").find_map(|part| part.strip_prefix(path)?.strip_prefix(" stdout ----"));
        let own = own.and_then(|text| text.split("\nfailures:\n").next());
        self.verdicts.get(path) == Some(&false) && own.is_some_and(|text| text.contains(words))
    }

    /// The line that ends with `end`, without it.
    fn line(&self, end: &str) -> Option<&str> {
        self.text.lines().find_map(|line| line.strip_suffix(end))
    }
}

fn simulated(setting: &Setting, findings: &mut Findings) -> Result<(), String> {
    let seeds = if setting.tier == Tier::Quick { "40" } else { "1000" };
    let ran = Ran::tests(setting, "kvrail-transfer", &["--test", "plan_sim"], &[(SEEDS, seeds)])?;
    let Ran { text, passed, failed, .. } = ran;
    findings.figure("simulated schedules", format!("{passed} properties held, {failed} failed, {seeds} seeds each"));
    findings.check(failed == 0, format!("in simulation: {text}"));
    Ok(())
}

fn engine(setting: &Setting, findings: &mut Findings) -> Result<(), String> {
    let mut args = vec!["--test", "late_write", "--test", "restarts", "--test", "faults", "--test", "processes"];
    // `child` is what the tests with processes start; by itself it tests nothing.
    let all = [&args[..], &["--test", "hostile", "--", "--exact", "--skip", "child"]].concat();
    let fenced = Ran::tests(setting, "kvrail-transfer", &all, &[])?;
    let Ran { text, passed, failed, .. } = &fenced;
    findings.figure("real engines and processes", format!("{passed} tests passed, {failed} failed"));
    findings.check(*failed == 0, format!("with real engines: {text}"));

    args.extend(["--features", "no-fence", "--"]);
    args.extend(SITUATIONS.map(|(_, test, _)| test));
    let unfenced = Ran::tests(setting, "kvrail-transfer", &args, &[NO_FENCE])?;
    for (what, test, words) in SITUATIONS {
        let over = fenced.over(test);
        for missing in TRANSPORTS.iter().filter(|transport| !over.contains(transport)) {
            findings.failure(format!("{what}: not tried over {missing}"));
        }
        let (mut with, mut without) = (Vec::new(), Vec::new());
        for transport in over {
            let path = format!("{transport}::{test}");
            let (held, caught) = (fenced.held(&path), unfenced.failed_with(&path, words));
            with.push(format!("{transport} {}", if held { "held" } else { "FAILED" }));
            without.push(format!("{transport} {}", if caught { "caught" } else { "MISSED" }));
            let proves =
                format!("{path} proves nothing: with the fence off it does not say \"{words}\": {}", unfenced.text);
            findings.check(caught, proves);
        }
        findings.figure(what, format!("fenced: {}; unfenced: {}", with.join(", "), without.join(", ")));
    }
    Ok(())
}

/// The same over RDMA, on the queue pairs of the soft-RoCE machine. Nobody can stop a NIC between its check and its copy.
fn rdma(setting: &Setting, findings: &mut Findings) -> Result<(), String> {
    if setting.tier == Tier::Quick {
        return Ok(());
    }
    if let Some(why) = Guest::missing(setting) {
        findings.skip(format!("over rdma: the soft-RoCE machine cannot be had here: {why}"));
        return Ok(());
    }
    let guest = Guest::new(setting, 2, 2);
    let nics = guest.nics();
    let run = |built: &guest::Built, off: &[(&str, &str)]| {
        let mut text = String::new();
        for binary in ["late_write", "processes", "faults"] {
            let command = [path(built, binary)?, "rdma::", "--ignored", "--test-threads", "1"];
            let env = [&[("KVRAIL_TEST_RDMA", &*nics)], off].concat();
            text += &guest.run(&command, &env)?.text;
        }
        Ok::<_, String>(Ran::read(text))
    };
    let fenced = run(&guest::build(setting, "kvrail-transfer", &[])?, &[])?;
    let unfenced = run(&guest::build(setting, "kvrail-transfer", &["--features", "no-fence"])?, &[NO_FENCE])?;
    let (mut held, mut caught, mut all) = (0, 0, 0);
    for (what, test, words) in SITUATIONS {
        let path = format!("rdma::{test}");
        if !fenced.verdicts.contains_key(&path) {
            continue;
        }
        all += 1;
        let (holds, fails) = (fenced.held(&path), unfenced.failed_with(&path, words));
        (held, caught) = (held + u32::from(holds), caught + u32::from(fails));
        findings.check(holds, format!("{what}, over rdma: {}", fenced.text));
        findings
            .check(fails, format!("{path} proves nothing: unfenced it does not say \"{words}\": {}", unfenced.text));
    }
    findings.check(all > 4, "too few situations were tried over rdma");
    findings.figure("over rdma", format!("{all} situations: {held} held with the fence, {caught} caught without"));
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

/// The same schedules with KV over RDMA, in the soft-RoCE machine; and with the fence off.
fn main_job_rdma(setting: &Setting, findings: &mut Findings) -> Result<(), String> {
    if setting.tier == Tier::Quick {
        return Ok(());
    }
    if let Some(why) = Guest::missing(setting) {
        findings.skip(format!("the main job over rdma: the soft-RoCE machine cannot be had here: {why}"));
        return Ok(());
    }
    let guest = Guest::new(setting, 2, 1);
    let nics = guest.nics();
    let run = |features: &[&str], seeds: &str, off: &[(&str, &str)]| {
        let built = guest::build(setting, "kvrail-decode", &[features, &["--test", "late_write"]].concat())?;
        let env = [&[("KVRAIL_TEST_RDMA", &*nics), (SEEDS, seeds)], off].concat();
        Ok::<_, String>(Ran::read(guest.run(&[path(&built, "late_write")?, "--nocapture"], &env)?.text))
    };
    let ran = run(&[], "50", &[])?;
    let told = ran.line(" late slices refused").ok_or_else(|| format!("the main job over rdma: {}", ran.text))?;
    findings.figure("the main job over rdma", format!("{told} late slices refused"));
    findings.check(ran.failed == 0, format!("the main job over rdma: {}", ran.text));
    let ran = run(&["--features", "kvrail-transfer/no-fence"], "10", &[NO_FENCE])?;
    let told = ran.line(" of them with a wrong token").and_then(|line| line.rsplit(", ").next());
    let wrong = told.and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
    findings.figure("the main job over rdma with fencing off", format!("{wrong} of 10 schedules told a wrong token"));
    findings.check(wrong > 0, format!("with fencing off the main job over rdma saw nothing wrong: {}", ran.text));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_counts_as_a_catcher_only_by_its_own_words() {
        let text = "test shm::late ... FAILED\ntest sim::late ... ok\ntest tcp::late ... FAILED\ntest tcp::other ... ok\n\n\
            failures:\n\n---- shm::late stdout ----\npanicked: it came late\n\n\
            ---- tcp::late stdout ----\npanicked: no such port\n\nfailures:\n    shm::late\n    tcp::late\n\n\
            test result: FAILED. 2 passed; 2 failed\n";
        let ran = Ran::read(text);
        assert_eq!((ran.passed, ran.failed), (2, 2));
        assert_eq!(ran.over("late"), ["shm", "sim", "tcp"]);
        assert!(ran.held("sim::late") && !ran.held("tcp::late") && !ran.held("tcp::missing"));
        assert!(ran.failed_with("shm::late", "it came late"));
        for path in ["sim::late", "tcp::late", "tcp::missing"] {
            assert!(!ran.failed_with(path, "it came late"), "{path}");
        }
    }
}
