//! kvrail beside other engines and plain code: what `bench/peers/run.py` measures, against what is promised.
//!
//! NIXL and Mooncake come from the package index into a virtual environment in the user's cache directory, this tree's wheel is
//! built and put beside them, and all take turns in one run. The full tier judges the medians of nine rounds; the quick tier
//! measures the same once and shortly, and judges no clock: it shows that the harness works and that every byte arrives.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde::Deserialize;

use super::python::{output, virtual_environment};
use super::{Findings, Setting, Tier};
use crate::stats::Interval;

/// Rounds behind every figure.
const ROUNDS: usize = 9;
/// Longest that the rounds may take; about ten minutes on a quiet machine.
const RUN_MAX: Duration = Duration::from_secs(5400);
/// Builds the wheel.
const BUILDER: &str = "maturin>=1.9.4,<2";

/// What is promised of a figure.
#[derive(Clone, Copy)]
enum Bound {
    Least(f64),
    Most(f64),
}

use Bound::{Least, Most};

/// The same to memcpy of as many bytes, for slower machines: 4 µs were promised where memcpy takes 1.1.
const SHM_LATENCY: f64 = 4.0 / 1.1;

/// Figures of `run.py` by name, what they say, and what is promised.
const BOUNDS: [(&str, &str, Bound); 16] = [
    ("tcp_kv_to_sockets", "KV shape over tcp, to two plain connections", Least(0.95)),
    ("tcp_kv_to_nixl", "KV shape over tcp, to NIXL's best", Least(2.5)),
    ("tcp_kv_to_mooncake", "KV shape over tcp, to Mooncake", Least(8.0)),
    ("tcp_kv_cpu_to_nixl", "KV shape over tcp, CPU-seconds a GB to NIXL's", Most(0.4)),
    ("tcp_small_to_sockets", "4 KiB × 128 over tcp, to plain sockets", Least(0.9)),
    ("tcp_small_to_nixl", "4 KiB × 128 over tcp, to NIXL's best", Least(4.0)),
    ("shm_kv_to_memcpy", "KV shape on the same host, to memcpy", Least(0.9)),
    ("shm_kv_to_nixl", "KV shape on the same host, to NIXL's CMA", Least(2.4)),
    ("tcp_latency_to_best", "one 4 KiB write over tcp, p50 to the better of plain sockets and NIXL", Most(1.1)),
    ("shm_latency_us", "one 4 KiB write on the same host, p50 in µs", Most(4.0)),
    ("shm_latency_to_memcpy", "one 4 KiB write on the same host, p50 to memcpy's", Most(SHM_LATENCY)),
    ("submit_scattered_ns", "caller's CPU a scattered block, ns", Most(100.0)),
    ("submit_strided_ns", "caller's CPU a block of strided descriptors, ns", Most(10.0)),
    ("submit_scattered_shm_ns", "caller's CPU a scattered block over shm, ns", Most(100.0)),
    ("submit_strided_shm_ns", "caller's CPU a block of strided descriptors over shm, ns", Most(10.0)),
    ("idle_core_share", "an idle engine with 64 connected peers, in cores", Most(0.005)),
];

/// What `run.py --json` says, as far as it is looked at here.
#[derive(Deserialize)]
struct Report {
    seconds: f64,
    blocks_verified: u64,
    machine: BTreeMap<String, serde_json::Value>,
    failures: Vec<String>,
    skipped: Vec<String>,
    figures: BTreeMap<String, Figure>,
}

#[derive(Deserialize)]
struct Figure {
    #[serde(flatten)]
    value: Interval,
    /// The best of those it is compared with.
    beside: Option<String>,
}

/// Runs the suite.
pub async fn run(setting: &Setting) -> Findings {
    let setting = setting.clone();
    tokio::task::spawn_blocking(move || {
        let mut findings = Findings::default();
        if let Err(e) = measure(&setting, &mut findings) {
            findings.failure(e);
        }
        findings
    })
    .await
    .unwrap_or_default()
}

fn measure(setting: &Setting, findings: &mut Findings) -> Result<(), String> {
    let harness = setting.root.join("bench/peers");
    let python = environment(setting, &harness, findings)?;
    let (ok, text) = output(Command::new(&python).args(["-m", "unittest", "test_ratios"]).current_dir(&harness))?;
    findings.check(ok, format!("test_ratios.py: {text}"));
    let report = rounds(setting, &python, &harness)?;
    let of = |name: &str| report.machine.get(name).map_or_else(String::new, |value| value.to_string().replace('"', ""));
    findings.figure("machine", format!("{} {} cores, {}", of("cores"), of("architecture"), of("network")));
    findings.figure("the run", format!("{:.0} s, {} blocks verified", report.seconds, report.blocks_verified));
    report.failures.iter().for_each(|failure| findings.failure(failure));
    report.skipped.iter().for_each(|skipped| findings.skip(skipped));
    findings.check(report.blocks_verified > 0, "no block was looked at");
    judge(&report, setting.tier == Tier::Full, findings);
    Ok(())
}

/// Tells each figure; holds it against its bound if clocks are judged.
fn judge(report: &Report, judged: bool, findings: &mut Findings) {
    for (name, what, bound) in BOUNDS {
        let Some(Figure { value, beside }) = report.figures.get(name) else {
            match report.skipped.is_empty() && report.failures.is_empty() && judged {
                true => findings.failure(format!("{what}: not measured")),
                false => findings.skip(format!("{what}: not measured")),
            }
            continue;
        };
        let beside = beside.as_ref().map_or_else(String::new, |name| format!(" ({name})"));
        let (holds, promised) = match bound {
            Least(floor) => (value.median >= floor, format!("at least {floor:.3}")),
            Most(ceiling) => (value.median <= ceiling, format!("at most {ceiling:.3}")),
        };
        findings.figure(what, format!("{value}{beside}, {promised} promised"));
        if judged {
            findings.check(holds, format!("{what}: {value}, {promised} promised"));
            findings.check(value.samples >= ROUNDS, format!("{what}: only {} rounds", value.samples));
        }
    }
}

/// A virtual environment with NumPy, the peers, and this tree's wheel. A peer that cannot be had is skipped.
fn environment(setting: &Setting, harness: &Path, findings: &mut Findings) -> Result<PathBuf, String> {
    let python = virtual_environment("peers")?;
    let pip = |words: &[&str]| {
        let mut pip = Command::new(&python);
        pip.args(["-m", "pip", "install", "-q", "--disable-pip-version-check"]).args(words).current_dir(&setting.root);
        if let (Some(bin), Some(path)) = (python.parent(), std::env::var_os("PATH")) {
            // Where pip finds the builder of the wheel.
            let all = std::iter::once(bin.to_path_buf()).chain(std::env::split_paths(&path));
            pip.env("PATH", std::env::join_paths(all).map_err(|e| e.to_string())?);
        }
        let (ok, text) = output(&pip)?;
        if ok { Ok(()) } else { Err(text) }
    };
    pip(&[BUILDER]).map_err(|e| format!("maturin: {e}"))?;
    let list = std::fs::read_to_string(harness.join("requirements.txt")).map_err(|e| e.to_string())?;
    for package in list.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Err(why) = pip(&["--no-deps", package]) {
            findings.skip(format!("{package}: {why}"));
        }
    }
    // Built where the sources are, so that cargo's own target directory is used.
    pip(&["--no-deps", "--no-build-isolation", "--force-reinstall", "./bindings/python"])
        .map_err(|e| format!("the wheel: {e}"))?;
    Ok(python)
}

/// Lets `run.py` do its rounds; its progress and its tables go where this process's own go.
fn rounds(setting: &Setting, python: &Path, harness: &Path) -> Result<Report, String> {
    let scratch = tempfile::tempdir().map_err(|e| e.to_string())?;
    let told = scratch.path().join("peers.json");
    let mut bounded = Command::new("timeout");
    bounded.arg("--kill-after=30").arg(RUN_MAX.as_secs().to_string()).arg(python);
    bounded.arg(harness.join("run.py")).args(["--seed", &setting.seed.to_string()]).arg("--json").arg(&told);
    match setting.tier {
        Tier::Full => bounded.args(["--rounds", &ROUNDS.to_string()]),
        Tier::Quick => bounded.args(["--rounds", "1", "--brief"]),
    };
    let status = bounded.stdin(Stdio::null()).status().map_err(|e| format!("timeout: {e}"))?;
    let text = std::fs::read_to_string(&told).map_err(|e| format!("run.py ended with {status} and no report: {e}"))?;
    serde_json::from_str(&text).map_err(|e| format!("run.py's report: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(median: f64, samples: usize) -> Report {
        let figure = |name: &str| {
            let value = Interval { median, low: median, high: median, coverage: 0.96, samples };
            (name.to_owned(), Figure { value, beside: None })
        };
        let figures = BOUNDS.iter().take(1).map(|(name, ..)| figure(name)).collect();
        Report {
            seconds: 1.0,
            blocks_verified: 1,
            machine: BTreeMap::new(),
            failures: Vec::new(),
            skipped: vec!["the others".into()],
            figures,
        }
    }

    #[test]
    fn a_missed_bound_and_too_few_rounds_are_failures_of_the_full_tier_alone() {
        let failures = |median: f64, samples: usize, judged: bool| {
            let mut findings = Findings::default();
            judge(&report(median, samples), judged, &mut findings);
            findings.failures.len()
        };
        assert_eq!([failures(0.95, 9, true), failures(0.9, 9, true), failures(0.9, 8, true)], [0, 1, 2]);
        assert_eq!(failures(0.1, 1, false), 0);
    }

    #[test]
    fn what_was_not_measured_is_never_a_pass() {
        let mut findings = Findings::default();
        judge(&report(1.0, 9), true, &mut findings);
        assert_eq!((findings.figures.len(), findings.skipped.len()), (1, BOUNDS.len() - 1));
        let mut alone = report(1.0, 9);
        alone.skipped.clear();
        let mut findings = Findings::default();
        judge(&alone, true, &mut findings);
        assert_eq!(findings.failures.len(), BOUNDS.len() - 1);
    }
}
