//! How the process ends.

use std::process::ExitCode;

use kvrail_bench::far::BenchError;
use kvrail_bench::setting::SettingError;
use kvrail_node::NodeError;
use kvrail_transfer::topology::TopologyError;

use crate::{config::ConfigError, up::ChildError};

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

/// An error with its causes; one that the words before it end in is not said again.
pub fn chain(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |said, cause| match said.as_str() {
        "" => cause,
        before if before.ends_with(&cause) => said,
        before => format!("{before}: {cause}"),
    })
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
    say!("kvrail: {}", chain(error));
    // A model that cannot be loaded was a wrong setting, found out late; so was whatever a child says that of.
    let usage = |cause: &(dyn std::error::Error + 'static)| {
        cause.is::<ConfigError>()
            || cause.is::<TopologyError>()
            || cause.is::<SettingError>()
            || matches!(cause.downcast_ref(), Some(BenchError::Setting(_)))
            || matches!(cause.downcast_ref(), Some(NodeError::Model(_)))
            || matches!(cause.downcast_ref(), Some(ChildError::Ended { status, .. }) if status.code() == Some(Exit::Usage as i32))
    };
    if error.chain().any(usage) { Exit::Usage } else { Exit::Failure }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_said_once() {
        let cause = || std::io::Error::other("no luck");
        assert_eq!(chain(&anyhow::Error::from(cause()).context("a: no luck").context("b")), "b: a: no luck");
        assert_eq!(chain(&anyhow::Error::from(cause()).context("a")), "a: no luck");
    }
}
