//! `kvrail up`: a whole pool on one machine, each role a process of its own.
//!
//! The supervisor runs on one thread, the main one: the kernel ties "end with your parent" to the thread that started a
//! child. It owns every child by its process id; nothing is found by name, and what it started it ends.
//!
//! Map: [`plan`] who is started with which arguments · [`check`] whether they would take them · [`child`] one process: start,
//! ready line, log, end · [`backoff`] when a dead one is started again (pure) · [`supervisor`] all of them, from start to
//! drain · [`show`] what people see · [`logs`] where logs go.

mod backoff;
mod check;
mod child;
mod logs;
mod plan;
mod show;
mod supervisor;

pub use child::ChildError;
pub use show::model_name;

use std::{
    io::{ErrorKind, IsTerminal},
    net::{SocketAddr, TcpListener},
    num::NonZeroU32,
    path::PathBuf,
    time::Duration,
};

use anyhow::Context;
use clap::{ArgMatches, Command};

use crate::{
    SERVICES, chat,
    config::{Service, Settings, load, table::settings, value::Transport},
    exit::Exit,
    model, node, service, signals,
};

settings! {
    /// Settings of `kvrail up`.
    pub struct UpSettings {
        /// Model: a GGUF file, a known name, which is fetched if it is not here, or mock[:key=value,...]; without one, the default model.
        model: Option<String> = "";
        /// Prefill nodes; with none the decode nodes compute prompts themselves.
        prefill: u32 = "1";
        /// Decode nodes.
        decode: NonZeroU32 = "1";
        /// Address of the OpenAI endpoint.
        http: SocketAddr = "127.0.0.1:8000";
        /// How KV moves between the nodes.
        transport: Transport = "auto";
        /// Ask one question, print the answer, and end.
        ask: Option<String> = "";
        /// Longest answer to --ask, in tokens.
        max_tokens: NonZeroU32 = "128";
        /// Directory of the log files; without one, a new directory in $XDG_STATE_HOME/kvrail/logs.
        log_dir: Option<PathBuf> = "";
        /// Log filter of the services, like info or kvrail_transfer=debug,info.
        log: String = "info";
        /// Longest wait for requests to finish on Ctrl-C; then they end with an error.
        drain: Duration = "15s";
        /// Restarts in a row after which a process that keeps dying is given up.
        restarts: u32 = "5";
    }
}

/// The service.
pub const SERVICE: Service = Service { name: "up", groups: &[UpSettings::ROWS] };

/// The subcommand.
pub fn command() -> Command {
    service::command(
        &SERVICE,
        "Start a whole pool on this machine: conductor, gateway, prefill and decode nodes",
        "kvrail up --prefill 1 --decode 1\n  kvrail up --ask \"What is the capital of France?\"",
    )
}

/// Runs it.
pub fn run(arguments: &ArgMatches) -> anyhow::Result<Exit> {
    let resolved = load(&SERVICE, &SERVICES, arguments)?;
    say!("{resolved}");
    chat::not_empty("--ask", arguments.get_one("ask").map(String::as_str))?;
    let settings = UpSettings::read(&resolved)?;
    chat::not_empty("ask", settings.ask.as_deref())?;
    let mut plan = plan::Plan::new(&settings, arguments.get_one::<String>("config").cloned())?;
    check::all(&plan, &settings)?;
    check_free(settings.http)?;
    plan.model = match &settings.model {
        Some(text) if node::mock(text)?.is_some() => text.clone(),
        text => {
            let stop = signals::flag_on_interrupt()?;
            model::ensure(text.as_deref(), &stop)?.display().to_string()
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(supervise(&settings, plan))
}

/// Finds out before minutes of downloading and loading whether the endpoint could stand; the gateway has the last word.
fn check_free(http: SocketAddr) -> anyhow::Result<()> {
    match TcpListener::bind(http) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => anyhow::bail!(
            "{http} is in use, perhaps by another `kvrail up`: end that one, or give this one another address with --http \
             (port 0 takes a free one)"
        ),
        other => other.map(drop).with_context(|| format!("cannot listen on {http}")),
    }
}

async fn supervise(settings: &UpSettings, plan: plan::Plan) -> anyhow::Result<Exit> {
    let mut termination = signals::Termination::listen()?;
    let logs = logs::Logs::create(settings.log_dir.as_deref())?;
    let mut pool = supervisor::Supervisor::new(plan, logs, settings.restarts);
    let outcome = tokio::select! {
        outcome = attend(settings, &mut pool) => outcome,
        name = termination.recv() => {
            say!("\n{name}: finishing what runs, for at most {} s (again: at once)", settings.drain.as_secs_f64());
            // Whoever waits for the one answer did not get it.
            Ok(if settings.ask.is_some() { Exit::Failure } else { Exit::Ok })
        }
    };
    // However it went, nothing stays behind.
    tokio::select! {
        () = pool.drain(settings.drain) => {}
        _ = termination.recv() => pool.kill().await,
    }
    outcome
}

/// Starts everything, shows it, and then asks the one question, or keeps everything running.
async fn attend(settings: &UpSettings, pool: &mut supervisor::Supervisor) -> anyhow::Result<Exit> {
    pool.start().await?;
    let endpoint = pool.endpoint()?;
    let counts = pool.node_counts();
    let model = tokio::select! {
        model = show::when_serving(endpoint, counts) => model?,
        failed = pool.watch() => failed.map(|never| match never {})?,
    };
    show::table(pool, endpoint, &model)?;
    let Some(question) = &settings.ask else {
        show::what_to_try(endpoint, &model)?;
        if !std::io::stdout().is_terminal() {
            show::ready_line(endpoint, &model)?;
        }
        return pool.watch().await.map(|never| match never {});
    };
    tokio::select! {
        answered = chat::ask_once(endpoint, &model, question, settings.max_tokens.get()) => answered.map(|()| Exit::Ok),
        failed = pool.watch() => failed.map(|never| match never {}),
    }
}
