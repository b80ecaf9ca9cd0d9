//! `cargo xtask verify NAME`: a promise, run.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Result, bail};
use kvrail_bench::suites::report::{self, Run};
use kvrail_bench::suites::{self, Findings, Setting, Tier};
use tokio::signal::unix::{SignalKind, signal};

use crate::run::release_binary;

/// Arguments of `verify`.
#[derive(clap::Args)]
pub struct Args {
    /// Name of the suite; several run one after the other.
    names: Vec<String>,
    /// Tell the suites and what each promises.
    #[arg(long)]
    list: bool,
    /// `quick` (seconds to minutes) or `full` (as promised).
    #[arg(long, default_value = "full")]
    tier: String,
    /// Seed of every random choice.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Directory that gets the report of each suite, NAME.json and NAME.md; without it target/verify.
    #[arg(long)]
    report: Option<PathBuf>,
    /// Take this binary rather than build one.
    #[arg(long)]
    binary: Option<PathBuf>,
}

/// Runs the suites that were named.
pub fn run(args: &Args) -> Result<()> {
    if args.list {
        for suite in suites::ALL {
            println!("{:<12} {}", suite.name, suite.promise);
        }
        return Ok(());
    }
    let tier = match args.tier.as_str() {
        "quick" => Tier::Quick,
        "full" => Tier::Full,
        other => bail!("--tier is `{other}`; it must be `quick` or `full`"),
    };
    if args.names.is_empty() {
        bail!("name a suite; `cargo xtask verify --list` tells them");
    }
    let chosen = args.names.iter().map(|name| suites::find(name)).collect::<Result<Vec<_>, _>>()?;
    let binary = match &args.binary {
        Some(binary) => binary.clone(),
        None => release_binary()?,
    };
    let model = suites::model_of(&binary);
    let setting = Setting { binary, model, tier, seed: args.seed, root: crate::run::root().into() };
    let directory = args.report.clone().unwrap_or_else(|| setting.root.join("target/verify"));
    let commit = commit(&setting.root);
    let mut failed = Vec::new();
    for suite in chosen {
        println!("{}: {}", suite.name, suite.promise);
        let started = Instant::now();
        let findings = run_suite(suite, &setting)?;
        let (verdict, seconds) = (findings.verdict(), started.elapsed().as_secs_f64());
        println!("{verdict} {} ({tier:?}, seed {}, {seconds:.1} s)", suite.name, args.seed);
        let run = Run { suite: suite.name, tier: &args.tier, seed: args.seed, commit: &commit, seconds };
        println!("report: {}", report::write(&directory, &run, &findings)?.display());
        if verdict != "PASS" {
            failed.push(suite.name);
        }
    }
    if !failed.is_empty() {
        bail!("{} of {} suites did not pass: {}", failed.len(), args.names.len(), failed.join(", "));
    }
    Ok(())
}

/// The commit that is checked out, and whether something was changed since.
fn commit(root: &Path) -> String {
    let told = Command::new("git").args(["describe", "--always", "--dirty", "--exclude=*"]).current_dir(root).output();
    let told = told.ok().filter(|output| output.status.success());
    told.map_or("no commit".into(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Runs a suite; asked to end, it ends what the suite has started first.
fn run_suite(suite: &suites::Suite, setting: &Setting) -> Result<Findings> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let findings = runtime.block_on(async {
        let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        tokio::select! {
            findings = (suite.run)(setting.clone()) => Ok(findings),
            _ = terminate.recv() => bail!("{} was told to end", suite.name),
            _ = interrupt.recv() => bail!("{} was interrupted", suite.name),
        }
    });
    // Whoever still waits for a program of its own would keep this process for as long.
    runtime.shutdown_background();
    findings
}
