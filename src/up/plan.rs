//! Who is started, in which order, with which arguments.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::Context;

use super::UpSettings;
use crate::ready::Ready;

/// Nodes in all, at most: a laptop's worth many times over, and far from what a process table holds.
const NODES_MAX: u32 = 64;
const ANY: &str = "127.0.0.1:0";

/// What a process is for. The order is that of starting; the reverse, but for the gateway, that of ending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Knows who is there.
    Conductor,
    /// Computes prompts.
    Prefill,
    /// Computes answers.
    Decode,
    /// Talks to clients.
    Gateway,
}

impl Role {
    /// The subcommand.
    pub fn name(self) -> &'static str {
        match self {
            Self::Conductor => "conductor",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Gateway => "gateway",
        }
    }
}

/// One process to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// What for.
    pub role: Role,
    /// Its name: node id, and name of the log file.
    pub name: String,
}

/// How to start a pool.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The program: this one.
    pub program: PathBuf,
    /// All processes, in the order of starting.
    pub specs: Vec<Spec>,
    /// The model; the mock stands for it until it is here.
    pub model: String,
    transport: String,
    http: SocketAddr,
    drain: Duration,
    log: String,
    config: Option<String>,
}

impl Plan {
    /// The pool that the settings describe.
    ///
    /// # Errors
    /// For more nodes than a machine can mean, or if this program's own path is unknown.
    pub fn new(settings: &UpSettings, config: Option<String>) -> anyhow::Result<Self> {
        let (prefill, decode) = (settings.prefill, settings.decode.get());
        if prefill.saturating_add(decode) > NODES_MAX {
            let message = format!("prefill {prefill} and decode {decode}: at most {NODES_MAX} nodes together");
            return Err(crate::config::ConfigError::Conflict(message).into());
        }
        let node = |role: Role| move |index| Spec { role, name: format!("{}-{index}", role.name()) };
        let mut specs = vec![Spec { role: Role::Conductor, name: "conductor".into() }];
        specs.extend((0..prefill).map(node(Role::Prefill)));
        specs.extend((0..decode).map(node(Role::Decode)));
        specs.push(Spec { role: Role::Gateway, name: "gateway".into() });
        Ok(Self {
            program: std::env::current_exe().context("path of this program")?,
            specs,
            model: "mock".into(),
            transport: settings.transport.to_string(),
            http: settings.http,
            drain: settings.drain,
            log: settings.log.clone(),
            config,
        })
    }

    /// Arguments of a process. `conductor` is where the conductor is; `before` what this process said when it was last
    /// ready: a conductor or gateway that comes back must be where everybody looks for it.
    pub fn args(&self, spec: &Spec, conductor: Option<SocketAddr>, before: Option<&Ready>) -> Vec<String> {
        let any = |address: Option<SocketAddr>| address.map_or_else(|| ANY.to_owned(), |a| a.to_string());
        let conductor = any(conductor);
        let mut args = vec![spec.role.name().to_owned()];
        let mut flag = |name: &str, value: &str| args.extend([format!("--{name}"), value.to_owned()]);
        match spec.role {
            Role::Conductor => {
                flag("grpc", &any(before.and_then(|ready| ready.grpc)));
                flag("admin", &any(before.and_then(|ready| ready.admin)));
            }
            Role::Prefill | Role::Decode => {
                flag("node-id", &spec.name);
                flag("conductor", &conductor);
                flag("model", &self.model);
                flag("transport", &self.transport);
                for listen in ["grpc", "admin", "transfer"] {
                    flag(listen, ANY);
                }
            }
            Role::Gateway => {
                flag("conductor", &conductor);
                flag("model", &self.model);
                let http = before.and_then(|ready| ready.http).unwrap_or(self.http);
                flag("http", &http.to_string());
            }
        }
        if spec.role != Role::Conductor {
            flag("drain", &format!("{}ms", self.drain.as_millis()));
        }
        flag("log", &self.log);
        if let Some(config) = &self.config {
            flag("config", config);
        }
        flag("parent", &std::process::id().to_string());
        args
    }
}

#[cfg(test)]
pub(super) fn test_plan(program: PathBuf, specs: Vec<Spec>) -> Plan {
    Plan {
        program,
        specs,
        model: "mock".into(),
        transport: "tcp".into(),
        http: ([127, 0, 0, 1], 0).into(),
        drain: Duration::from_secs(15),
        log: "info".into(),
        config: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_that_comes_back_is_where_it_was() {
        let plan = test_plan("kvrail".into(), vec![]);
        let spec = Spec { role: Role::Gateway, name: "gateway".into() };
        let mut before = Ready::new("gateway");
        before.http = Some(([127, 0, 0, 1], 4321).into());
        let has = |args: &[String], flag: &str, value: &str| args.windows(2).any(|w| w[0] == flag && w[1] == value);
        let conductor = Some(([127, 0, 0, 1], 8700).into());
        let args = plan.args(&spec, conductor, Some(&before));
        assert!(has(&args, "--http", "127.0.0.1:4321") && has(&args, "--conductor", "127.0.0.1:8700"), "{args:?}");
        let args = plan.args(&Spec { role: Role::Decode, name: "decode-0".into() }, conductor, Some(&before));
        assert!(has(&args, "--grpc", ANY) && has(&args, "--node-id", "decode-0"), "{args:?}");
    }
}
