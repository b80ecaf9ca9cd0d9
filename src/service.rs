//! What all services do at start: settings shown, logs begun, the parent watched, signals heard.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

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
    signals::Termination,
};

/// Time for open requests when the process that started this one is gone, and nobody would end this one otherwise.
const ORPHAN_DRAIN_MAX: Duration = Duration::from_secs(5);

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
    say!("{resolved}");
    logging::start(&CommonSettings::read(&resolved)?.log)?;
    Ok(resolved)
}

/// Ends this process with its parent: the kernel sends SIGTERM when `kvrail up` is gone, however it went.
fn follow_parent(arguments: &ArgMatches) -> anyhow::Result<()> {
    let Some(parent) = parent(arguments) else { return Ok(()) };
    set_parent_process_death_signal(Some(Signal::TERM))?;
    // It may have died before the kernel knew that we care.
    anyhow::ensure!(getppid() == Some(parent), "the process that started this one ({parent:?}) is gone");
    Ok(())
}

fn parent(arguments: &ArgMatches) -> Option<Pid> {
    arguments.get_one::<i32>("parent").copied().and_then(Pid::from_raw)
}

/// How a running service meets the world: it says that it is ready, and hears when it is to end.
pub struct Life {
    ready: AtomicBool,
    ending: CancellationToken,
    drain: Duration,
    parent: Option<Pid>,
}

impl Life {
    /// Tells that the service is ready, and where.
    pub fn ready(&self, ready: &Ready) {
        self.ready.store(true, Ordering::Relaxed);
        ready.tell();
    }

    /// Tells that a node is ready, and where.
    pub fn node_ready(&self, role: &str, node_id: &str, at: &BoundAddresses) {
        self.ready(&Ready {
            node_id: Some(node_id.to_owned()),
            grpc: Some(at.grpc),
            transfer: Some(at.transfer),
            admin: Some(at.admin),
            ..Ready::new(role)
        });
    }

    /// Resolves when the service is to end, with the time that open requests get.
    pub async fn ending(self: Arc<Self>) -> Duration {
        self.ending.cancelled().await;
        let orphaned = self.parent.is_some() && getppid() != self.parent;
        if orphaned { self.drain.min(ORPHAN_DRAIN_MAX) } else { self.drain }
    }

    /// The first signal begins the drain; the second ends the process at once, and so does the first where nothing was
    /// ready: a model that is still being read is nobody's request.
    async fn hear(&self, mut termination: Termination) {
        let name = termination.recv().await;
        if self.ready.load(Ordering::Relaxed) {
            tracing::info!("{name}: draining");
            self.ending.cancel();
            let name = termination.recv().await;
            tracing::warn!("{name} again: ending at once");
        } else {
            tracing::info!("{name} before this was ready: ending at once");
        }
        std::process::exit(Exit::Failure as i32);
    }
}

/// Runs a service on a runtime of its own until it ends; open requests get `drain` after the first signal.
///
/// # Errors
/// Those of the service.
pub fn block_on<F: Future<Output = anyhow::Result<()>>>(
    arguments: &ArgMatches,
    drain: Duration,
    serve: impl FnOnce(Arc<Life>) -> F,
) -> anyhow::Result<Exit> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().on_thread_start(kvrail_transfer::urgent).build()?;
    runtime.block_on(async {
        let life = Arc::new(Life {
            ready: AtomicBool::new(false),
            ending: CancellationToken::new(),
            drain,
            parent: parent(arguments),
        });
        let termination = Termination::listen()?;
        tokio::spawn({
            let life = Arc::clone(&life);
            async move { life.hear(termination).await }
        });
        serve(life).await
    })?;
    Ok(Exit::Ok)
}
