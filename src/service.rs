//! What all services do at start: settings shown, logs begun, the parent watched, signals heard.

use std::future::Future;

use clap::{Arg, ArgMatches, Command};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use tokio_util::sync::CancellationToken;

use crate::{
    SERVICES,
    config::{ConfigError, Settings, load},
    config_arg,
    exit::Exit,
    logging, signals,
};

/// A service's subcommand: every setting is a flag.
pub fn command<S: Settings>(about: &'static str, example: &'static str) -> Command {
    let parent = Arg::new("parent").long("parent").value_name("PID").hide(true).value_parser(clap::value_parser!(i32));
    Command::new(S::SERVICE)
        .about(about)
        .args(S::TABLE.iter().map(crate::config::Setting::arg))
        .arg(config_arg())
        .arg(parent)
        .after_help(format!("Values come from file < environment < flag.\n\nExample:\n  {example}"))
}

/// Loads and shows a service's settings, and begins its log.
///
/// # Errors
/// [`ConfigError`].
pub fn settings<S: Settings>(arguments: &ArgMatches, log: fn(&S) -> &str) -> Result<S, ConfigError> {
    let (settings, resolved) = load::<S>(&SERVICES, arguments)?;
    eprintln!("{resolved}");
    logging::start(log(&settings))?;
    Ok(settings)
}

/// Ends this process with its parent: the kernel sends SIGTERM when `kvrail up` is gone, however it went.
///
/// # Errors
/// If the parent is gone already.
pub fn follow_parent(arguments: &ArgMatches) -> anyhow::Result<()> {
    let Some(parent) = arguments.get_one::<i32>("parent").copied().and_then(Pid::from_raw) else { return Ok(()) };
    set_parent_process_death_signal(Some(Signal::TERM))?;
    // It may have died before the kernel knew that we care.
    anyhow::ensure!(getppid() == Some(parent), "the process that started this one ({parent:?}) is gone");
    Ok(())
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
