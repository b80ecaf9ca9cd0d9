//! Settings of a gateway.

use std::net::SocketAddr;
use std::time::Duration;

use kvrail_text::TextModel;

use super::auth::ApiKey;
use crate::http::HttpConfig;
use crate::route::RouteConfig;

/// Everything a gateway needs to know. The binary parses it; nothing here reads the environment.
#[derive(Clone, Debug)]
pub struct GatewayConfig {
    /// Where clients connect.
    pub http: SocketAddr,
    /// The conductor's gRPC service, host:port.
    pub conductor: String,
    /// Name of this gateway in the conductor's log.
    pub gateway_id: String,
    /// Name of the model, as clients ask for it.
    pub model: String,
    /// Digest of the model file: nodes that loaded the same one serve it. `None`: those that register it by that name.
    pub model_digest: Option<String>,
    /// Its tokenizer and chat template.
    pub text: TextModel,
    /// Keys that let clients in; empty lets in everybody.
    pub api_keys: Vec<ApiKey>,
    /// Connections and request heads.
    pub server: HttpConfig,
    /// Largest request body, in bytes.
    pub body_bytes_max: usize,
    /// Memory that all bodies may take while they arrive, beyond the first 64 KiB of each; at least one gets through.
    pub bodies_bytes_max: usize,
    /// Time a body may take to arrive.
    pub body_timeout: Duration,
    /// Requests served at once; one more is refused with 429.
    pub requests_max: usize,
    /// Choices of one request, over all its prompts.
    pub choices_max: u32,
    /// Output tokens of a request that does not say how many; less where the prompt leaves less room.
    pub max_tokens_default: u32,
    /// A request ends after this long, whatever it has.
    pub request_timeout: Duration,
    /// Time for a routing decision before the gateway decides by itself.
    pub route_timeout: Duration,
    /// Time to connect to a node or the conductor.
    pub connect_timeout: Duration,
    /// Time without traffic after which a node is pinged, and again until it counts as dead.
    pub keepalive: Duration,
    /// A node that says nothing for so long (not even a heartbeat, sent every second) is dead to a stream.
    pub silence_max: Duration,
    /// How many times one stream may move to another node.
    pub migrations_max: u32,
    /// How long a stream that has lost its node waits for one that takes it.
    pub migration_wait: Duration,
    /// How long members are kept that a newly started conductor does not know yet.
    pub members_keep: Duration,
    /// The routing policy for when the conductor does not answer.
    pub route: RouteConfig,
}

impl GatewayConfig {
    /// Defaults around what has none: the conductor's address, the model's name and its text.
    #[must_use]
    pub fn new(conductor: impl Into<String>, model: impl Into<String>, text: TextModel) -> Self {
        Self {
            http: SocketAddr::from(([127, 0, 0, 1], 8000)),
            conductor: conductor.into(),
            gateway_id: "gateway".into(),
            model: model.into(),
            model_digest: None,
            text,
            api_keys: Vec::new(),
            server: HttpConfig::default(),
            body_bytes_max: 4 << 20,
            bodies_bytes_max: 256 << 20,
            body_timeout: Duration::from_secs(10),
            requests_max: 256,
            choices_max: 16,
            max_tokens_default: 1024,
            request_timeout: Duration::from_secs(600),
            route_timeout: Duration::from_secs(1),
            connect_timeout: Duration::from_secs(2),
            keepalive: Duration::from_secs(2),
            silence_max: Duration::from_secs(5),
            migrations_max: 4,
            migration_wait: Duration::from_secs(15),
            members_keep: Duration::from_secs(5),
            route: RouteConfig::default(),
        }
    }
}
