//! `kvrail bench …` as the binary embeds it.

use std::process::ExitCode;

use crate::transfer::{self, FarCommand};

/// Status when a floor that was stated on the command line is missed.
const MISSED: u8 = 3;

/// What to measure.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Bench {
    /// The transfer engine between two processes of this machine, beside plain sockets and memcpy.
    /// Example: kvrail bench transfer --expect tcp=0.9 --expect shm=0.85
    Transfer(transfer::Options),
    /// The receiving process of a bench; a bench starts it by itself
    #[command(hide = true)]
    FarSide,
}

/// Runs it and prints what it found; 0, 1 for an error, 3 for a missed floor.
#[must_use]
pub fn run(bench: &Bench) -> ExitCode {
    match execute(bench) {
        Ok(code) => code,
        Err(e) => {
            eprintln!("error: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn execute(bench: &Bench) -> anyhow::Result<ExitCode> {
    match bench {
        Bench::Transfer(options) => {
            let report = transfer::run(options, &far_command()?)?;
            if options.json {
                println!("{}", serde_json::to_string_pretty(&report)?);
            } else {
                print!("{}", report.text());
            }
            Ok(verdict(&report.missed))
        }
        Bench::FarSide => {
            transfer::far_side()?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn verdict(missed: &[String]) -> ExitCode {
    for missed in missed {
        eprintln!("missed: {missed}");
    }
    if missed.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(MISSED) }
}

/// This very program, as the other process.
fn far_command() -> std::io::Result<FarCommand> {
    Ok(FarCommand { program: std::env::current_exe()?, args: vec!["bench".into(), "far-side".into()] })
}
