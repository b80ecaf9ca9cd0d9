//! How the process ends.

use std::process::ExitCode;

use kvrail_node::NodeError;

use crate::config::ConfigError;

/// Exit statuses; documented in `kvrail --help`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It worked.
    Ok = 0,
    /// It failed.
    Failure = 1,
    /// Usage or configuration is wrong: nothing was started.
    Usage = 2,
    /// A benchmark ran and missed its floor.
    FloorMissed = 3,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Prints an error with its causes, once, and chooses the status.
pub fn report(error: &anyhow::Error) -> Exit {
    // A reader that closed the pipe wants no complaint: `kvrail model list | head -1`.
    let broken_pipe = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
    };
    if error.chain().any(broken_pipe) {
        return Exit::Ok;
    }
    say!("kvrail: {error:#}");
    // A model that cannot be loaded was a wrong setting, found out late.
    let usage = |cause: &(dyn std::error::Error + 'static)| {
        cause.is::<ConfigError>() || matches!(cause.downcast_ref(), Some(NodeError::Model(_)))
    };
    if error.chain().any(usage) { Exit::Usage } else { Exit::Failure }
}
