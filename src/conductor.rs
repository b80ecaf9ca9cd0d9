//! `kvrail conductor`: members, the prefix index, routing.

use std::{net::SocketAddr, num::NonZeroU32, sync::Arc, time::Duration};

use clap::{ArgMatches, Command};
use kvrail_conductor::{ConductorAddresses, ConductorConfig, serve_conductor};

use crate::{
    config::{ConfigError, Service, Settings, table::settings},
    exit::Exit,
    ready::Ready,
    service::{self, CommonSettings},
};

/// A node reports three times a lease; below this one a busy machine is taken for a dead one.
const LEASE_MIN: Duration = Duration::from_secs(1);

settings! {
    /// Settings of a conductor.
    pub struct ConductorSettings {
        /// Where nodes and gateways connect.
        grpc: SocketAddr = "127.0.0.1:8700";
        /// Where it listens for /healthz, /readyz, /status and /metrics.
        admin: SocketAddr = "127.0.0.1:8701";
        /// A node that does not report for so long is gone; at least 1s.
        lease: Duration = "5s";
        /// Nodes, at most.
        members: NonZeroU32 = "4096";
        /// Uncached prompt tokens up to which a decode node computes the prompt itself; 0 always hands over.
        local_prefill_tokens: u32 = "32";
        /// Seed of the choice between equals.
        seed: u64 = "1";
    }
}

impl ConductorSettings {
    /// The conductor that these settings describe.
    ///
    /// # Errors
    /// [`ConfigError::Conflict`] for a lease that no node could keep.
    pub fn config(&self) -> Result<ConductorConfig, ConfigError> {
        if self.lease < LEASE_MIN {
            let message =
                format!("lease: {} ms is less than 1s, and a node that is well would lose it", self.lease.as_millis());
            return Err(ConfigError::Conflict(message));
        }
        let mut config = ConductorConfig { grpc: self.grpc, admin: self.admin, ..ConductorConfig::default() };
        config.core.lease = self.lease;
        config.core.members_max = self.members.get() as usize;
        config.core.route.local_prefill_tokens_max = self.local_prefill_tokens;
        config.core.route.seed = self.seed;
        Ok(config)
    }
}

/// The service.
pub const SERVICE: Service = Service { name: "conductor", groups: &[ConductorSettings::ROWS, CommonSettings::ROWS] };

/// The subcommand.
pub fn command() -> Command {
    service::command(
        &SERVICE,
        "Run the conductor: who is there, who holds which KV, who serves a request",
        "kvrail conductor --grpc 127.0.0.1:8700",
    )
}

/// Runs it.
pub fn run(arguments: &ArgMatches) -> anyhow::Result<Exit> {
    let resolved = service::begin(&SERVICE, arguments)?;
    let own = ConductorSettings::read(&resolved)?;
    let config = own.config()?;
    service::block_on(arguments, Duration::ZERO, async |life| {
        let ready = |at: &ConductorAddresses| {
            life.ready(&Ready { grpc: Some(at.grpc), admin: Some(at.admin), ..Ready::new("conductor") });
        };
        let shutdown = async {
            let _ = Arc::clone(&life).ending().await;
        };
        Ok(serve_conductor(config, ready, shutdown).await?)
    })
}
