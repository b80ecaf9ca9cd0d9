//! Repository tasks.
//!
//! `cargo xtask verify NAME` runs one promise of docs/verification.md as a suite; `cargo xtask tidy` checks the
//! repository itself; `cargo xtask test` is what a newcomer and CI run; `cargo xtask verbs-bindings` writes the bindings of
//! libibverbs; `cargo xtask softroce` is a machine with RDMA.

#![forbid(unsafe_code)]

mod bindings;
mod run;
mod test;
mod tidy;
mod verify;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Tasks of the kvrail repository.
#[derive(Parser)]
#[command(name = "cargo xtask", about)]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Fetches the test model and runs all tests.
    Test,
    /// Runs the suite of one promise. Example: cargo xtask verify identity --tier quick
    Verify(verify::Args),
    /// Checks the repository itself: file lengths, crate heads, stray names.
    Tidy,
    /// Writes the bindings of libibverbs anew, or compares them. Needs libclang, which it fetches unless LIBCLANG_PATH says where.
    VerbsBindings(bindings::Args),
    /// Real verbs without RDMA hardware: a guest with soft-RoCE, up to eight hosts with eight rails each.
    #[command(subcommand)]
    Softroce(kvrail_softroce::Task),
}

fn main() -> ExitCode {
    let result = match Args::parse().task {
        Task::Test => test::run_all(),
        Task::Verify(args) => verify::run(&args),
        Task::Tidy => tidy::run(),
        Task::VerbsBindings(args) => bindings::run_generator(&args),
        Task::Softroce(task) => return kvrail_softroce::perform(&task),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e:#}");
            ExitCode::FAILURE
        }
    }
}
