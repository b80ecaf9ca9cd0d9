//! `kvrail gateway`: the OpenAI endpoint.

use std::{net::SocketAddr, num::NonZeroU32, sync::Arc, time::Duration};

use clap::{ArgMatches, Command};
use kvrail_conductor::{ApiKey, GatewayConfig, serve_gateway};
use kvrail_text::TextModel;

use crate::{
    config::{
        ConfigError, Service, Settings,
        table::settings,
        value::{ByteSize, HostPort, Value},
    },
    exit::Exit,
    model, node,
    ready::Ready,
    service::{self, CommonSettings},
};

settings! {
    /// Settings of a gateway.
    pub struct GatewaySettings {
        /// Where clients connect.
        http: SocketAddr = "127.0.0.1:8000";
        /// The conductor's gRPC address.
        conductor: HostPort = "";
        /// Model whose tokenizer and chat template are used: a GGUF file, a known name, or mock[:key=value,...].
        model: String = "";
        /// Name clients use for the model, as the nodes register it; without one, that of the list or of the file.
        model_name: Option<String> = "";
        /// Name of this gateway in the conductor's log.
        gateway_id: String = "gateway";
        /// Keys that let clients in, each as TENANT:SHA256, separated by commas; without any, everybody is let in.
        api_keys: Vec<ApiKey> = "";
        /// Requests served at once; one more is refused with 429.
        requests: NonZeroU32 = "256";
        /// Largest request body.
        body_bytes: ByteSize = "4MiB";
        /// Memory for all bodies that are arriving, beyond the first 64 KiB of each.
        bodies_bytes: ByteSize = "256MiB";
        /// Time that a request's body may take to arrive, in milliseconds.
        body_timeout_ms: NonZeroU32 = "10000";
        /// Time that a request may take.
        request_timeout: Duration = "10m";
        /// Longest answer of a request that does not say, in tokens.
        max_tokens: NonZeroU32 = "1024";
        /// Time that open requests get when the gateway goes away.
        drain: Duration = "30s";
    }
}

impl Value for ApiKey {
    const WHAT: &'static str =
        "TENANT:SHA256, with the hash of the key in 64 hexadecimal digits (printf %s KEY | sha256sum)";
    const PLACEHOLDER: &'static str = "TENANT:SHA256";
    const SECRET: bool = true;

    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

/// The service.
pub const SERVICE: Service = Service { name: "gateway", groups: &[GatewaySettings::ROWS, CommonSettings::ROWS] };

/// The subcommand.
pub fn command() -> Command {
    service::command(
        &SERVICE,
        "Run a gateway: the OpenAI endpoint",
        "kvrail gateway --conductor 127.0.0.1:8700 --model smollm2-135m-instruct",
    )
}

/// Runs it.
pub fn run(arguments: &ArgMatches) -> anyhow::Result<Exit> {
    let resolved = service::begin(&SERVICE, arguments)?;
    let own = GatewaySettings::read(&resolved)?;
    let config = config(&own)?;
    service::block_on(arguments, own.drain, async |life| {
        let ready = |at: SocketAddr| life.ready(&Ready { http: Some(at), ..Ready::new("gateway") });
        Ok(serve_gateway(config, ready, Arc::clone(&life).ending()).await?)
    })
}

fn config(own: &GatewaySettings) -> anyhow::Result<GatewayConfig> {
    let (name, text, digest) = match node::mock(&own.model)? {
        Some(options) => (options.name.clone(), TextModel::mock(options.vocab)?, Some(options.digest())),
        None => {
            let path = model::existing(&own.model)?;
            let text = TextModel::open(&path).map_err(|error| {
                let why = anyhow::Error::from(error);
                ConfigError::Conflict(format!("model: {}: {why:#}", path.display()))
            })?;
            let digest = text.digest().to_owned();
            (node::name_of_file(&path), text, Some(digest))
        }
    };
    let name = own.model_name.clone().unwrap_or(name);
    let mut config = GatewayConfig::new(own.conductor.to_string(), name, text);
    config.http = own.http;
    config.gateway_id.clone_from(&own.gateway_id);
    config.model_digest = digest;
    config.api_keys.clone_from(&own.api_keys);
    config.requests_max = own.requests.get() as usize;
    config.body_bytes_max = usize::try_from(own.body_bytes.0).unwrap_or(usize::MAX);
    config.bodies_bytes_max = usize::try_from(own.bodies_bytes.0).unwrap_or(usize::MAX);
    config.body_timeout = Duration::from_millis(own.body_timeout_ms.get().into());
    config.request_timeout = own.request_timeout;
    // Requests at work never take all connections: there is one for a probe.
    config.server.connections_max = config.server.connections_max.max(2 * config.requests_max);
    config.server.write_timeout = config.server.write_timeout.min(own.request_timeout);
    config.max_tokens_default = own.max_tokens.get();
    Ok(config)
}
