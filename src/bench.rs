//! `kvrail bench`: measurements, as the bench crate makes them.

use clap::{ArgMatches, Command};
use kvrail_bench::command::{self, Verdict};

use crate::exit::Exit;

/// The subcommand.
pub fn command() -> Command {
    command::command()
}

/// Runs it.
pub fn run(arguments: &ArgMatches) -> anyhow::Result<Exit> {
    Ok(match command::run(arguments)? {
        Verdict::Held => Exit::Ok,
        Verdict::Missed => Exit::FloorMissed,
    })
}
