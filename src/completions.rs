//! `kvrail completions SHELL`: a completion script on standard output.

use clap::{Arg, ArgMatches, Command, value_parser};
use clap_complete::{Shell, generate};

use crate::exit::Exit;

/// The subcommand.
pub fn command() -> Command {
    Command::new("completions")
        .about("Print a completion script for a shell")
        .arg(Arg::new("shell").value_name("SHELL").required(true).value_parser(value_parser!(Shell)).help("The shell"))
        .after_help("Example:\n  kvrail completions bash > ~/.local/share/bash-completion/completions/kvrail")
}

/// Runs it.
pub fn run(arguments: &ArgMatches) -> anyhow::Result<Exit> {
    if let Some(shell) = arguments.get_one::<Shell>("shell") {
        let mut script = Vec::new();
        generate(*shell, &mut crate::command(), "kvrail", &mut script);
        std::io::Write::write_all(&mut std::io::stdout(), &script)?;
    }
    Ok(Exit::Ok)
}
