//! `cargo xtask verbs-bindings`: the committed bindings of libibverbs, written anew or compared.

use std::path::PathBuf;

use anyhow::Result;

use crate::run::{root, run, run_with};

/// The wheel that libclang is taken from where none is named. What bindgen writes does not depend on its version.
const LIBCLANG: &str = "libclang==18.1.1";

/// Arguments of `verbs-bindings`.
#[derive(clap::Args)]
pub struct Args {
    /// Write nothing; fail if what is committed is not what would be written.
    #[arg(long)]
    check: bool,
}

/// Runs the generator, a crate that is no member: it needs libclang, in `LIBCLANG_PATH` or else from a wheel, and a C compiler.
pub fn run_generator(args: &Args) -> Result<()> {
    let generator = root().join("transfer/verbs-sys/generate");
    let (manifest, build) = (generator.join("Cargo.toml"), root().join("target/verbs-generate"));
    let libclang = match std::env::var_os("LIBCLANG_PATH") {
        Some(path) => PathBuf::from(path),
        None => fetch_libclang(build.join("libclang"))?,
    };
    let (manifest, build) = (manifest.display().to_string(), build.display().to_string());
    let mut command = vec!["run", "--quiet", "--locked", "--manifest-path", &manifest, "--target-dir", &build, "--"];
    if args.check {
        command.push("--check");
    }
    run_with("cargo", &command, &[("LIBCLANG_PATH", &libclang.display().to_string())])
}

/// Unpacks the wheel, unless it is there; the directory with the library.
fn fetch_libclang(into: PathBuf) -> Result<PathBuf> {
    let inside = into.join("clang/native");
    if !inside.join("libclang.so").is_file() {
        let target = into.display().to_string();
        run("python3", &["-m", "pip", "install", "--quiet", "--no-deps", "--target", &target, LIBCLANG])?;
    }
    Ok(inside)
}
