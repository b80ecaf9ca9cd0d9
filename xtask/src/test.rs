//! `cargo xtask test`: the README's second command.

use anyhow::Result;

/// Fetches the model that the tests run on, then runs every test of the workspace.
pub fn run() -> Result<()> {
    crate::run::run("cargo", &["run", "--bin", "kvrail", "--", "model", "pull"])?;
    crate::run::run("cargo", &["test", "--workspace"])
}
