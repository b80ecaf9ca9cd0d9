//! The one binary: subcommands only. What a subcommand does is in the module of its name.

#![forbid(unsafe_code)]
// Both panic where nobody reads: `say!`, or `writeln!` and its error.
#![deny(clippy::print_stdout, clippy::print_stderr)]

#[macro_use]
mod say;

mod bench;
mod chat;
mod completions;
mod conductor;
mod config;
mod decode;
mod doctor;
mod exit;
mod gateway;
mod logging;
mod model;
mod node;
mod prefill;
mod ready;
mod service;
mod signals;
mod up;

use std::process::ExitCode;

use clap::{Arg, ArgMatches, Command};

use crate::{config::Service, exit::Exit};

const EXIT_STATUSES: &str = "Exit status: 0 it worked · 1 it failed · 2 usage or configuration is wrong, nothing was \
                             started · 3 a benchmark missed its floor";

/// A subcommand: how it is called, and what runs it.
type Subcommand = (fn() -> Command, fn(&ArgMatches) -> anyhow::Result<Exit>);

const SUBCOMMANDS: &[Subcommand] = &[
    (up::command, up::run),
    (conductor::command, conductor::run),
    (gateway::command, gateway::run),
    (prefill::command, prefill::run),
    (decode::command, decode::run),
    (chat::command, chat::run),
    (model::command, model::run),
    (doctor::command, doctor::run),
    (bench::command, bench::run),
    (completions::command, completions::run),
];

/// Everything that takes settings: the sections of the configuration file.
const SERVICES: [&Service; 6] =
    [&up::SERVICE, &conductor::SERVICE, &gateway::SERVICE, &prefill::SERVICE, &decode::SERVICE, &chat::SERVICE];

fn command() -> Command {
    Command::new("kvrail")
        .about("Prefill/decode disaggregated LLM serving")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .after_help(format!("Example:\n  kvrail up --ask \"What is the capital of France?\"\n\n{EXIT_STATUSES}"))
        .subcommands(SUBCOMMANDS.iter().map(|(command, _)| command()))
}

/// The flag that names the configuration file.
fn config_arg() -> Arg {
    Arg::new("config").long("config").value_name("FILE").help("Configuration file, TOML [env: KVRAIL_CONFIG]")
}

fn main() -> ExitCode {
    let matches = command().get_matches();
    let Some((name, arguments)) = matches.subcommand() else { return Exit::Usage.into() };
    let run = SUBCOMMANDS.iter().find(|(command, _)| command().get_name() == name).map(|(_, run)| run);
    let outcome = run.map_or(Ok(Exit::Usage), |run| run(arguments));
    outcome.unwrap_or_else(|error| exit::report(&error)).into()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_line_is_sound() {
        super::command().debug_assert();
    }

    #[test]
    fn every_help_text_has_an_example() {
        fn check(command: &clap::Command) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(command.is_hide_set() || help.contains("Example"), "{}", command.get_name());
            command.get_subcommands().for_each(check);
        }
        check(&super::command());
    }
}
