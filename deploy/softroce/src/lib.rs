//! The soft-RoCE machine: real verbs on a machine without RDMA hardware.
//!
//! A User-Mode Linux kernel with the software RDMA device `rxe` built in boots in about half a second as a process of this
//! host, sees the host's files, runs one command and passes its exit status on.
//!
//! # Laws
//!
//! - **Nothing of a run survives it**: no process, directory or file, whether the command ended, the guest died, the time was
//!   up or someone asked it to end. The guest is the first process of a process namespace, its memory lies in a mount
//!   namespace, and both go with it.
//! - **The guest changes nothing of the host** but the shared directories: the working directory and those that were named.
//! - **The exit status is the command's own**, or one of three that say why there is none.
//! - **A kernel is built once** for a configuration and a package version, and is there completely or not at all.
//!
//! # Map
//!
//! - [`kernel`] builds the kernel and finds it again.
//! - [`run`] boots it with a command, and takes care of the ends.
//! - `control` is what the guest is told, `packages` what must be installed here.
//! - `guest/` runs inside: `init` lays out files and consoles, `links` the network; `rail` is for whoever wants to break it.
//!
//! It is a crate of its own and not a part of `xtask`, so that test suites can run commands in the machine too, and because it
//! needs no other crate of the workspace.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Subcommand;

mod control;
pub mod kernel;
mod packages;
pub mod run;

/// What can be done with the machine.
#[derive(Subcommand)]
pub enum Task {
    /// Builds the machine's kernel from Debian's kernel source, once; minutes on an idle machine.
    Build(kernel::Args),
    /// Runs a command in the machine. Example: cargo xtask softroce run --hosts 3 -- ibv_devices
    Run(run::Args),
}

/// Does it; errors are told on stderr.
pub fn perform(task: &Task) -> ExitCode {
    match task {
        Task::Build(args) => match kernel::build(args) {
            Ok(()) => ExitCode::SUCCESS,
            Err(e) => {
                eprintln!("error: {e:#}");
                ExitCode::FAILURE
            }
        },
        Task::Run(args) => {
            let ended = run::run(args, std::io::stdout(), std::io::stderr());
            ended
                .unwrap_or_else(|e| {
                    eprintln!("error: {e:#}");
                    run::SET_UP_FAILED
                })
                .into()
        }
    }
}
