//! `kvrail bench …` as the binary embeds it: [`command`] is the subcommand, [`run`] runs what it parsed.

use clap::{ArgMatches, FromArgMatches, Subcommand};
use serde::Serialize;

use crate::transfer::{self, FarSide};
use crate::{serving, show};

/// Measure this machine: the transfer engine between two processes, separate pools beside one process
#[derive(Clone, Debug, Subcommand)]
enum Bench {
    /// The transfer engine between two processes, of this machine or of two, beside plain sockets and memcpy
    #[command(
        after_help = "Examples:\n  kvrail bench transfer --expect tcp=0.9 --expect shm=0.85\n\nTwo machines, two rails:\n  \
        there$ kvrail bench transfer --serve 10.0.0.2:7000 --rails 10.0.0.2/24,10.0.1.2/24\n  \
        here$  kvrail bench transfer --to 10.0.0.2:7000 --rails 10.0.0.1/24,10.0.1.1/24"
    )]
    Transfer(transfer::Options),
    /// Separate prefill and decode processes beside one process that does both, through the gateway
    #[command(after_help = "Example:\n  kvrail bench serve --model \"$(kvrail model path)\" --expect ttft=1.1")]
    Serve(serving::Options),
    /// The receiving process of a bench; a bench starts it by itself
    #[command(hide = true)]
    FarSide,
}

/// How a bench ended that gave its figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Everything that was expected on the command line holds.
    Held,
    /// Something that was expected was missed; the binary ends with status 3.
    Missed,
}

/// The subcommand `bench` and all below it.
#[must_use]
pub fn command() -> clap::Command {
    let bench = clap::Command::new("bench")
        .about("Measure this machine: the transfer engine, the services")
        .after_help("Examples:\n  kvrail bench transfer\n  kvrail bench serve --streams 1,4");
    Bench::augment_subcommands(bench.subcommand_required(true).arg_required_else_help(true))
}

/// Runs what [`command`] parsed and prints what it found.
///
/// # Errors
/// If there are no figures.
pub fn run(matches: &ArgMatches) -> anyhow::Result<Verdict> {
    match Bench::from_arg_matches(matches)? {
        Bench::Transfer(options) => {
            if let Some(listen) = options.serve {
                transfer::serve(listen, &options.rails)?;
                return Ok(Verdict::Held);
            }
            let report = transfer::run(&options, &far_command()?)?;
            print(&report, options.json, report.text(), &report.missed)
        }
        Bench::Serve(options) => {
            let report = serving::run(&options, &std::env::current_exe()?, &far_command()?)?;
            print(&report, options.json, report.text(), &report.missed)
        }
        Bench::FarSide => {
            transfer::far_side()?;
            Ok(Verdict::Held)
        }
    }
}

fn print(report: &impl Serialize, json: bool, text: String, missed: &[String]) -> anyhow::Result<Verdict> {
    show::progress("");
    if json {
        println!("{}", serde_json::to_string_pretty(report)?);
    } else {
        print!("{text}");
    }
    for missed in missed {
        eprintln!("missed: {missed}");
    }
    Ok(if missed.is_empty() { Verdict::Held } else { Verdict::Missed })
}

/// This very program, as the other process.
fn far_command() -> std::io::Result<FarSide> {
    Ok(FarSide::Start { program: std::env::current_exe()?, args: vec!["bench".into(), "far-side".into()] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound_and_refuses_what_it_does_not_know() {
        command().debug_assert();
        let parse = |line: &str| command().try_get_matches_from(line.split(' '));
        assert!(parse("bench transfer --blocks 64 --transports shm --expect tcp=0.9 --expect cpu=1.3").is_ok());
        assert!(parse("bench serve --streams 1,4 --expect ttft=1.1").is_ok());
        for bad in
            ["bench", "bench transfer --expect fast", "bench transfer --transports rdma", "bench serve --streams x"]
        {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
