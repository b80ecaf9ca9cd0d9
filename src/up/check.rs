//! Whether each process would take its settings: told before anything is fetched or started.

use clap::ArgMatches;

use super::{
    UpSettings,
    plan::{Plan, Role},
};
use crate::{
    SERVICES,
    conductor::{self, ConductorSettings},
    config::{ConfigError, Resolved, Settings, load},
    decode::{self, DecodeSettings},
    gateway::{self, GatewaySettings},
    logging,
    node::NodeSettings,
    prefill::{self, PrefillSettings},
    service::CommonSettings,
};

/// Resolves the settings of every role of a plan, as its processes will.
///
/// # Errors
/// The first [`ConfigError`].
pub fn all(plan: &Plan, settings: &UpSettings) -> anyhow::Result<()> {
    // Not known yet, and as good as any.
    let conductor = Some(([127, 0, 0, 1], 1).into());
    let mut roles: Vec<Role> = Vec::new();
    for spec in &plan.specs {
        if roles.contains(&spec.role) {
            continue;
        }
        roles.push(spec.role);
        let args = std::iter::once("kvrail".to_owned()).chain(plan.args(spec, conductor, None));
        let matches = crate::command().try_get_matches_from(args)?;
        if let Some((_, arguments)) = matches.subcommand() {
            one(spec.role, arguments, settings)?;
        }
    }
    Ok(())
}

fn one(role: Role, arguments: &ArgMatches, settings: &UpSettings) -> Result<(), ConfigError> {
    let begin = |service| -> Result<Resolved, ConfigError> {
        let resolved = load(service, &SERVICES, arguments)?;
        logging::parse(&CommonSettings::read(&resolved)?.log)?;
        Ok(resolved)
    };
    match role {
        Role::Conductor => ConductorSettings::read(&begin(&conductor::SERVICE)?)?.config().map(drop),
        Role::Prefill => {
            let resolved = begin(&prefill::SERVICE)?;
            NodeSettings::read(&resolved)?.config(kvrail_node::Role::Prefill)?;
            PrefillSettings::read(&resolved).map(drop)
        }
        Role::Decode => {
            let resolved = begin(&decode::SERVICE)?;
            NodeSettings::read(&resolved)?.config(kvrail_node::Role::Decode)?;
            DecodeSettings::read(&resolved).map(drop)
        }
        Role::Gateway => {
            let gateway = GatewaySettings::read(&begin(&gateway::SERVICE)?)?;
            if settings.ask.is_some() && !gateway.api_keys.is_empty() {
                let message = "ask: the gateway has api-keys, of which it knows the hashes alone; start it without --ask, \
                               and ask with `kvrail chat --api-key`";
                return Err(ConfigError::Conflict(message.into()));
            }
            Ok(())
        }
    }
}
