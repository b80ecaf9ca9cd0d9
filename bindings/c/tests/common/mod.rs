//! A C compiler, and where the library under test lies.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The C compiler, as strict as the header promises to stand.
pub fn cc() -> Command {
    let mut cc = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    cc.args(["-std=gnu11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I"]).arg(here("include"));
    cc
}

/// A path of this crate.
pub fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Directory of `libkvrail_c.so` and `libkvrail_c.a` that this test was built with: beside it, or one above.
pub fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let all = test.ancestors().skip(1).take(2).map(Path::to_path_buf);
    let holds = |directory: &PathBuf| directory.join("libkvrail_c.so").is_file();
    all.into_iter().find(holds).expect("cargo has built libkvrail_c.so")
}

/// Runs a program to its end; its output, and its words where it failed.
pub fn run(command: &mut Command) -> Result<String, String> {
    let Output { status, stdout, stderr } = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    let text = String::from_utf8_lossy(&stdout).into_owned();
    if status.success() { Ok(text) } else { Err(format!("{status}: {text}{}", String::from_utf8_lossy(&stderr))) }
}
