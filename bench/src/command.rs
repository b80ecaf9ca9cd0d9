//! `kvrail bench …` as the binary embeds it: [`command`] is the subcommand, [`run`] runs what it parsed.

use clap::{ArgMatches, FromArgMatches, Subcommand};
use serde::Serialize;

use crate::far::{self, FarSide};
use crate::{compare, serving, show, transfer};

/// Measure this machine: the transfer engine between processes, separate pools beside one process
#[derive(Clone, Debug, Subcommand)]
enum Bench {
    /// The transfer engine between processes, of this machine or of several: shapes, patterns, faults
    #[command(after_help = TRANSFER_EXAMPLES)]
    Transfer(Box<transfer::Options>),
    /// The transfer engine beside plain sockets and memcpy, in turns, between two processes of this machine or of two
    #[command(
        after_help = "Examples:\n  kvrail bench compare --expect tcp=0.9 --expect shm=0.85\n\nTwo machines, two rails:\n  \
        there$ kvrail bench transfer --serve 10.0.0.2:7000 --rails 10.0.0.2/24,10.0.1.2/24\n  \
        here$  kvrail bench compare --to 10.0.0.2:7000 --rails 10.0.0.1/24,10.0.1.1/24"
    )]
    Compare(compare::Options),
    /// Separate prefill and decode processes beside one process that does both, through the gateway
    #[command(after_help = "Example:\n  kvrail bench serve --model \"$(kvrail model path)\" --expect ttft=1.1")]
    Serve(serving::Options),
    /// The receiving process of a bench; a bench starts it by itself
    #[command(hide = true)]
    FarSide,
}

const TRANSFER_EXAMPLES: &str = "Examples:
  kvrail bench transfer --block 4K..4M --batch 1,64 --in-flight 1,8 --threads 1,2 --streams 1,4
  kvrail bench transfer --preset llama-3-70b --tokens 1024 --transports shm --in-flight 1
  kvrail bench transfer --pattern many-to-one --peers 4 --block 64K --transports tcp --verify
  kvrail bench transfer --block 1M --transports tcp --seconds 6 --fault peer:1:stop@2s --fault peer:1:continue@3s

Two machines, two rails of 100 Gb/s:
  there$ kvrail bench transfer --serve 10.0.0.2:7000 --rails 10.0.0.2/24,10.0.1.2/24
  here$  kvrail bench transfer --to 10.0.0.2:7000 --rails 10.0.0.1/24,10.0.1.1/24 --line-rate 200Gb/s --expect 0.9line
  here$  kvrail bench transfer --to 10.0.0.2:7000 --rails 10.0.0.1/24,10.0.1.1/24 --block 1M --seconds 8 \\
           --fault rail:1:down@3s --fault rail:1:up@5s

RDMA:
  there$ kvrail bench transfer --serve 10.0.0.2:7000 --rdma-rails mlx5_0,mlx5_1
  here$  kvrail bench transfer --to 10.0.0.2:7000 --transports rdma --rdma-rails mlx5_0,mlx5_1 --op write,read

Exit status: 0 measured · 1 no figures · 2 a flag is wrong, nothing was started · 3 a floor was missed";

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
        .after_help("Examples:\n  kvrail bench transfer\n  kvrail bench compare\n  kvrail bench serve --streams 1,4");
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
                far::serve(listen, &options.rails, &options.rdma_rails)?;
                return Ok(Verdict::Held);
            }
            let report = transfer::run(&options, &far_command()?)?;
            let missed: Vec<String> = report.missed.iter().map(ToString::to_string).collect();
            print(&report, options.json, report.text(options.timeline), &missed)
        }
        Bench::Compare(options) => {
            let report = compare::run(&options, &far_command()?)?;
            print(&report, options.json, report.text(), &report.missed)
        }
        Bench::Serve(options) => {
            let report = serving::run(&options, &std::env::current_exe()?, &far_command()?)?;
            print(&report, options.json, report.text(), &report.missed)
        }
        Bench::FarSide => {
            far::far_side()?;
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
        for good in [
            "bench compare --blocks 64 --transports shm --expect tcp=0.9 --expect cpu=1.3",
            "bench serve --streams 1,4 --expect ttft=1.1",
            "bench transfer --block 4K..1M,3000 --transports tcp,rdma --rdma-rails mlx5_0:1 --expect 0.9line --line-rate 100Gb/s",
            "bench transfer --pattern all-to-all --peers 3 --fault peer:1:kill@500ms --op write,read --seconds 2",
            "bench transfer --preset deepseek-v3 --tokens 100 --dtype fp8 --to 10.0.0.2:1,10.0.0.3:1",
            "bench transfer --serve 10.0.0.2:1 --rails 10.0.0.2/24",
        ] {
            assert!(parse(good).is_ok(), "{good}");
        }
        for (bad, told) in [
            ("bench", "Usage"),
            ("bench compare --expect fast", "expected RATIO"),
            ("bench compare --transports rdma", "tcp and shm"),
            ("bench serve --transport rdma", "tcp and shm"),
            ("bench serve --streams x", "x"),
            ("bench transfer --transports udp", "tcp, shm and rdma"),
            ("bench transfer --block 4X", "64K"),
            ("bench transfer --seconds 0", "250ms"),
            ("bench transfer --expect 0.9", "0.9line"),
            ("bench transfer --line-rate 5gb", "40Gb/s"),
            ("bench transfer --preset gpt-2", "deepseek-v3"),
            ("bench transfer --preset qwen3-32b --batch 2", "--batch"),
            ("bench transfer --tokens 10", "--preset"),
            ("bench transfer --fault rail:1:flap@1s", "rail:1:down@3s"),
            ("bench transfer --rails eth0", "10.0.3.7/24"),
            ("bench transfer --rdma-rails a/b", "mlx5_3:1#3"),
            ("bench transfer --peers 2 --to 10.0.0.2:1", "--to"),
            ("bench transfer --serve 10.0.0.2:1 --to 10.0.0.3:1", "--to"),
            ("bench transfer --count 2 --seconds 2s", "--seconds"),
            ("bench transfer --pattern star", "all-to-all"),
        ] {
            let error = parse(bad).expect_err(bad).to_string();
            assert!(error.contains(told), "{bad}: {error}");
        }
    }
}
