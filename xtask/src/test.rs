//! `cargo xtask test`: the README's second command.

use anyhow::Result;

use crate::run::{output, run, run_with};

/// Fetches the model that the tests run on, then runs every test of the workspace on it.
pub fn run_all() -> Result<()> {
    // Without naming the binary, as the README's first command.
    let kvrail = ["run", "--quiet", "--", "model"];
    run("cargo", &[&kvrail[..], &["pull"]].concat())?;
    let model = output("cargo", &[&kvrail[..], &["path"]].concat())?;
    run_with("cargo", &["test", "--workspace"], &[("KVRAIL_TEST_MODEL", &model)])
}
