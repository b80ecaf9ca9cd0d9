//! What all services do at start: settings shown, logs begun, the parent watched, signals heard.

use std::future::Future;

use clap::{Arg, ArgMatches, Command};
use kvrail_node::BoundAddresses;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use tokio_util::sync::CancellationToken;

use crate::{
    SERVICES,
    config::{Resolved, Service, Settings, load, table::settings},
    config_arg,
    exit::Exit,
    logging,
    ready::Ready,
    signals,
};

settings! {
    /// What every service has.
    pub struct CommonSettings {
        /// Log filter, like info or kvrail_transfer=debug,info.
        log: String = "info";
    }
}

/// A service's subcommand: every setting is a flag.
pub fn command(service: &'static Service, about: &'static str, example: &'static str) -> Command {
    let parent = Arg::new("parent").long("parent").value_name("PID").hide(true).value_parser(clap::value_parser!(i32));
    Command::new(service.name)
        .about(about)
        .args(service.settings().map(|row| row.arg(service.name)))
        .arg(config_arg())
        .arg(parent)
        .after_help(format!("Values come from file < environment < flag.\n\nExample:\n  {example}"))
}

/// Begins a service: loads and shows its settings, starts its log, and ties it to its parent if it was given one.
///
/// # Errors
/// [`crate::config::ConfigError`], or if the parent is gone already.
pub fn begin(service: &'static Service, arguments: &ArgMatches) -> anyhow::Result<Resolved> {
    follow_parent(arguments)?;
    let resolved = load(service, &SERVICES, arguments)?;
    eprintln!("{resolved}");
    logging::start(&CommonSettings::read(&resolved)?.log)?;
    Ok(resolved)
}

/// Ends this process with its parent: the kernel sends SIGTERM when `kvrail up` is gone, however it went.
fn follow_parent(arguments: &ArgMatches) -> anyhow::Result<()> {
    let Some(parent) = arguments.get_one::<i32>("parent").copied().and_then(Pid::from_raw) else { return Ok(()) };
    set_parent_process_death_signal(Some(Signal::TERM))?;
    // It may have died before the kernel knew that we care.
    anyhow::ensure!(getppid() == Some(parent), "the process that started this one ({parent:?}) is gone");
    Ok(())
}

/// Tells that a node is ready, and where.
pub fn node_ready(role: &str, node_id: &str, at: &BoundAddresses) {
    let ready = Ready {
        node_id: Some(node_id.to_owned()),
        grpc: Some(at.grpc),
        transfer: Some(at.transfer),
        admin: Some(at.admin),
        ..Ready::new(role)
    };
    ready.tell();
}

/// Runs a service on a runtime of its own until it ends; the token is cancelled by the first Ctrl-C or SIGTERM.
///
/// # Errors
/// Those of the service.
pub fn block_on<F: Future<Output = anyhow::Result<()>>>(
    serve: impl FnOnce(CancellationToken) -> F,
) -> anyhow::Result<Exit> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let shutdown = CancellationToken::new();
        let mut termination = signals::Termination::listen()?;
        let cancel = shutdown.clone();
        tokio::spawn(async move {
            let name = termination.recv().await;
            tracing::info!("{name}: draining");
            cancel.cancel();
            // Whoever asks twice does not want to wait.
            let name = termination.recv().await;
            tracing::warn!("{name} again: ending at once");
            std::process::exit(Exit::Failure as i32);
        });
        serve(shutdown).await
    })?;
    Ok(Exit::Ok)
}
