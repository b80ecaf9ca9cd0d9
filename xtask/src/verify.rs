//! `cargo xtask verify NAME`: a promise, run.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, bail};
use kvrail_bench::suites::{self, Findings, Setting, Tier};

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
    let mut failed = Vec::new();
    for suite in chosen {
        println!("{}: {}", suite.name, suite.promise);
        let started = Instant::now();
        let findings = run_suite(suite, &setting)?;
        let verdict = if findings.pass() { "PASS" } else { "FAIL" };
        println!("{verdict} {} ({:?}, seed {}, {:.1} s)", suite.name, tier, args.seed, started.elapsed().as_secs_f64());
        if !findings.pass() {
            failed.push(suite.name);
        }
    }
    if !failed.is_empty() {
        bail!("{} of {} suites failed: {}", failed.len(), args.names.len(), failed.join(", "));
    }
    Ok(())
}

fn run_suite(suite: &suites::Suite, setting: &Setting) -> Result<Findings> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    Ok(runtime.block_on((suite.run)(setting.clone())))
}
