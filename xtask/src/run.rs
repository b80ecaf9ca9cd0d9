//! Running other programs, and finding the repository.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, ensure};

/// Root of the repository. Cargo says at run time where it is: a build directory that several checkouts share may hold an
/// `xtask` that another of them built.
pub fn root() -> &'static Path {
    static ROOT: OnceLock<PathBuf> = OnceLock::new();
    ROOT.get_or_init(|| {
        let here =
            std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
        here.parent().expect("xtask lies in the repository").to_owned()
    })
}

/// Runs `program` in the repository's root with its output shown; fails if it does.
pub fn run(program: &str, args: &[&str]) -> Result<()> {
    run_with(program, args, &[])
}

/// The same, with more in the environment.
pub fn run_with(program: &str, args: &[&str], env: &[(&str, &str)]) -> Result<()> {
    eprintln!("+ {program} {}", args.join(" "));
    let status = Command::new(program).args(args).envs(env.iter().copied()).current_dir(root()).status();
    let status = status.with_context(|| format!("cannot start {program}"))?;
    ensure!(status.success(), "{program} {} ended with {status}", args.join(" "));
    Ok(())
}

/// Runs `program` and returns what it printed.
pub fn output(program: &str, args: &[&str]) -> Result<String> {
    let output = Command::new(program).args(args).current_dir(root()).output();
    let output = output.with_context(|| format!("cannot start {program}"))?;
    ensure!(
        output.status.success(),
        "{program} {} ended with {}: {}",
        args.join(" "),
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Builds the release binary and returns its path.
pub fn release_binary() -> Result<PathBuf> {
    run("cargo", &["build", "--release", "--bin", "kvrail"])?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    Ok(target.join("release/kvrail"))
}
