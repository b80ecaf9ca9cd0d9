//! Logs go to standard error; standard output belongs to the ready line and to answers.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::config::ConfigError;

/// Starts logging with a filter like `info` or `kvrail_transfer=debug,info`.
///
/// # Errors
/// [`ConfigError::Conflict`] for a filter that is none.
pub fn start(filter: &str) -> Result<(), ConfigError> {
    let filter = parse(filter)?;
    // A second start is a second call in one process, which no subcommand makes.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        // A full disk must not be the end of a service that could do without its log.
        .log_internal_errors(false)
        .try_init();
    Ok(())
}

/// Reads a filter.
///
/// # Errors
/// [`ConfigError::Conflict`] for what is none.
pub fn parse(filter: &str) -> Result<EnvFilter, ConfigError> {
    let bad = |why: String| ConfigError::Conflict(format!("log: `{filter}` is not a filter, like info or warn: {why}"));
    EnvFilter::try_new(filter).map_err(|error| bad(error.to_string()))
}
