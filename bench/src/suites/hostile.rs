//! Peers that mean no good: the tests of what is refused, and fuzzing from outside of all that a stranger, a peer and an answering machine
//! can say to a running engine.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::guest::{self, Guest};
use super::python::output;
use super::verbs::tests;
use super::{Findings, Setting, Tier};

/// What is fuzzed, and for how long in full: `transfer/fuzz`.
const TARGETS: [&str; 4] = ["strangers", "session", "frames", "answers"];
const SECONDS: u32 = 600;
const SECONDS_QUICK: u32 = 10;
/// Most that a fuzzed engine, with the fuzzer and its sanitizer around it, may have in memory.
const MEMORY_MIB: u32 = 1024;
/// Connections of which the half is never said.
const HALF_OPEN: &str = "10000 half-open connections";

/// Runs the suite.
pub async fn run(setting: &Setting) -> Findings {
    let setting = setting.clone();
    let checks = move || {
        let mut findings = Findings::default();
        for check in [refusals, overrun, fuzz] {
            if let Err(e) = check(&setting, &mut findings) {
                findings.failure(e);
            }
        }
        findings
    };
    tokio::task::spawn_blocking(checks).await.unwrap_or_default()
}

/// What is refused by name: versions, tokens, generations, ranges, lengths, and a crowd.
fn refusals(setting: &Setting, findings: &mut Findings) -> Result<(), String> {
    let mut cargo = Command::new("cargo");
    cargo.args(["test", "--package", "kvrail-transfer", "--test", "hostile", "--", "--nocapture"]);
    let (ok, text) = output(cargo.current_dir(&setting.root))?;
    let summed = text.lines().find_map(|line| line.split_once("test result: ok. ")).map(|(_, rest)| rest.to_owned());
    findings.check(ok && summed.is_some(), format!("tests of what is refused: {text}"));
    findings.figure("tests of what is refused", summed.unwrap_or_default());
    for (name, value) in text.lines().filter_map(|line| line.split_once("figure ")?.1.split_once(": ")) {
        findings.figure(name, value);
    }
    findings.check(text.contains(HALF_OPEN), format!("not {HALF_OPEN}: the limit of open files is too low"));
    Ok(())
}

/// A peer that writes past a lease over RDMA, where leases are guarded and where they are not.
fn overrun(setting: &Setting, findings: &mut Findings) -> Result<(), String> {
    if let Some(why) = Guest::missing(setting) {
        findings.skip(format!("a lease overrun over RDMA: the soft-RoCE machine cannot be had here: {why}"));
        return Ok(());
    }
    let engine = guest::build(setting, "kvrail-transfer", &[])?;
    tests(&Guest::new(setting, 2, 1), &engine, "kvrail_transfer", &["transport::rdma::tests"], &[], findings)
}

/// Fuzzes each target, two at a time.
fn fuzz(setting: &Setting, findings: &mut Findings) -> Result<(), String> {
    let (ok, _) = output(Command::new("cargo").args(["+nightly", "fuzz", "--version"]))?;
    if !ok {
        findings.skip("fuzzing: `rustup toolchain install nightly` and `cargo install --locked cargo-fuzz` are wanted");
        return Ok(());
    }
    let directory = setting.root.join("target/fuzz");
    let mut build = Command::new("cargo");
    build.args(["+nightly", "fuzz", "build", "--fuzz-dir", "transfer/fuzz", "--target-dir"]).arg(&directory);
    let (ok, text) = output(build.current_dir(&setting.root))?;
    if !ok {
        return Err(format!("cargo fuzz build: {text}"));
    }
    let built = built(&directory)?;
    let (ok, text) = output(Command::new(built.join("seeds")).arg(directory.join("seeds")))?;
    findings.check(ok, format!("seeds: {text}"));
    for pair in TARGETS.chunks(2) {
        let ran = std::thread::scope(|scope| {
            let running: Vec<_> =
                pair.iter().map(|target| scope.spawn(|| fuzz_one(setting, &directory, &built, target))).collect();
            running
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|_| Err("a thread of ours".into())))
                .collect::<Vec<_>>()
        });
        for (target, ran) in pair.iter().zip(ran) {
            match ran {
                Ok(figure) => findings.figure(format!("fuzzing {target}"), figure),
                Err(error) => findings.failure(format!("fuzzing {target}: {error}")),
            }
        }
    }
    Ok(())
}

/// Where cargo has put the targets: below the triple of this machine.
fn built(directory: &Path) -> Result<PathBuf, String> {
    let entries = std::fs::read_dir(directory).map_err(|e| format!("{}: {e}", directory.display()))?;
    let mut candidates = entries.flatten().map(|entry| entry.path().join("release"));
    candidates.find(|path| path.join(TARGETS[0]).is_file()).ok_or_else(|| "cargo fuzz has built nothing".into())
}

/// Fuzzes one target for its time: what it came to.
fn fuzz_one(setting: &Setting, directory: &Path, built: &Path, target: &str) -> Result<String, String> {
    let seconds = if setting.tier == Tier::Quick { SECONDS_QUICK } else { SECONDS };
    let (corpus, found) = (directory.join("corpus").join(target), directory.join("found"));
    for directory in [&corpus, &found] {
        std::fs::create_dir_all(directory).map_err(|e| format!("{}: {e}", directory.display()))?;
    }
    let mut command = Command::new("timeout");
    // It ends by itself; an engine that hangs for good must not keep it from that.
    command.arg((seconds + 120).to_string()).arg(built.join(target)).arg(&corpus);
    command.arg(directory.join("seeds").join(target)).arg(format!("-artifact_prefix={}/{target}-", found.display()));
    command.args([format!("-max_total_time={seconds}"), format!("-seed={}", setting.seed)]);
    command.args([format!("-rss_limit_mb={MEMORY_MIB}"), "-timeout=25".into(), "-max_len=8192".into()]);
    let ran = command.arg("-print_final_stats=1").output().map_err(|e| format!("timeout: {e}"))?;
    let text = String::from_utf8_lossy(&ran.stderr).into_owned();
    if !ran.status.success() {
        let tail: Vec<&str> = text.lines().rev().take(40).collect();
        return Err(tail.into_iter().rev().collect::<Vec<_>>().join("\n"));
    }
    let stat = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map_or("?", str::trim).to_owned();
    Ok(format!(
        "clean for {seconds} s: {} inputs, {} MiB at most",
        stat("stat::number_of_executed_units:"),
        stat("stat::peak_rss_mb:")
    ))
}
