//! `kvrail prefill`: a node that computes prompts.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use clap::{ArgMatches, Command};
use kvrail_node::{BoundAddresses, Role};
use kvrail_prefill::PrefillConfig;

use crate::{
    config::{Service, Settings, table::settings},
    exit::Exit,
    node::NodeSettings,
    service::{self, CommonSettings},
};

settings! {
    /// Settings of a prefill node alone.
    pub struct PrefillSettings {
        /// Tokens computed at once.
        chunk_tokens: NonZeroU32 = "512";
        /// Tokens in the line, past which requests are refused.
        queue_tokens: u64 = "65536";
        /// Requests in the line, past which more are refused.
        queue_requests: NonZeroU32 = "1024";
        /// Time that running requests get when the node goes away.
        drain: Duration = "30s";
    }
}

/// The service.
pub const SERVICE: Service =
    Service { name: "prefill", groups: &[NodeSettings::ROWS, PrefillSettings::ROWS, CommonSettings::ROWS] };

/// The subcommand.
pub fn command() -> Command {
    service::command(
        &SERVICE,
        "Run a node that computes prompts and hands the KV cache to decode nodes",
        "kvrail prefill --conductor 127.0.0.1:8700 --model smollm2-135m-instruct",
    )
}

/// Runs it.
pub fn run(arguments: &ArgMatches) -> anyhow::Result<Exit> {
    let resolved = service::begin(&SERVICE, arguments)?;
    let node = NodeSettings::read(&resolved)?.config(Role::Prefill)?;
    let own = PrefillSettings::read(&resolved)?;
    let node_id = node.node_id.clone();
    let mut config = PrefillConfig::new(node);
    config.limits.chunk_tokens = own.chunk_tokens.get();
    config.limits.tokens_max = own.queue_tokens;
    config.limits.requests_max = own.queue_requests.get() as usize;
    service::block_on(arguments, own.drain, async |life| {
        let ready = |at: &BoundAddresses| life.node_ready("prefill", &node_id, at);
        Ok(kvrail_prefill::run(config, ready, Arc::clone(&life).ending()).await?)
    })
}
