//! `kvrail decode`: a node that computes answers.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use clap::{ArgMatches, Command};
use kvrail_decode::DecodeConfig;
use kvrail_node::{BoundAddresses, Role};

use crate::{
    config::{Service, Settings, table::settings, value::Share},
    exit::Exit,
    node::NodeSettings,
    service::{self, CommonSettings},
};

settings! {
    /// Settings of a decode node alone.
    pub struct DecodeSettings {
        /// Requests that wait for room, past which more are refused.
        queue_requests: NonZeroU32 = "4096";
        /// Answers computed in one step, at most.
        batch: NonZeroU32 = "256";
        /// Prompt tokens in one step, where this node computes a prompt itself.
        chunk_tokens: NonZeroU32 = "512";
        /// Time that a step should take at most; the batch is bounded by it.
        step_target: Option<Duration> = "500ms";
        /// Share of an answer's longest growth that is reserved beforehand, from 0 to 1.
        growth_reserved: Share = "1";
        /// Prompts of which at most so many tokens are missing are computed here, whatever prefill nodes there are.
        local_prefill_tokens: u32 = "0";
        /// Time that running requests get when the node goes away.
        drain: Duration = "30s";
    }
}

/// The service.
pub const SERVICE: Service =
    Service { name: "decode", groups: &[NodeSettings::ROWS, DecodeSettings::ROWS, CommonSettings::ROWS] };

/// The subcommand.
pub fn command() -> Command {
    service::command(
        &SERVICE,
        "Run a node that computes answers, from KV cache that prefill nodes hand over",
        "kvrail decode --conductor 127.0.0.1:8700 --model smollm2-135m-instruct",
    )
}

/// Runs it.
pub fn run(arguments: &ArgMatches) -> anyhow::Result<Exit> {
    let resolved = service::begin(&SERVICE, arguments)?;
    let node = NodeSettings::read(&resolved)?.config(Role::Decode)?;
    let own = DecodeSettings::read(&resolved)?;
    let node_id = node.node_id.clone();
    let mut config = DecodeConfig::new(node);
    config.queue_max = own.queue_requests.get() as usize;
    config.batch_max = own.batch.get();
    config.prefill_tokens_max = own.chunk_tokens.get();
    config.step_target = own.step_target;
    config.growth_reserved = own.growth_reserved.0;
    config.local_prefill_tokens = own.local_prefill_tokens;
    service::block_on(arguments, own.drain, async |life| {
        let ready = |at: &BoundAddresses| life.node_ready("decode", &node_id, at);
        Ok(kvrail_decode::serve(config, ready, Arc::clone(&life).ending()).await?)
    })
}
