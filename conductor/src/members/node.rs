//! What a node says of itself and of its work, checked.

use kvrail_kv::KvFormat;

/// Longest name, address or digest that a node may register, in bytes.
const TEXT_BYTES_MAX: usize = 256;

/// What a node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Prompts to KV.
    Prefill,
    /// KV to tokens.
    Decode,
}

/// What a node is, as it registers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Stable name, unique in the pool.
    pub node_id: String,
    /// Random at every start.
    pub generation: u64,
    /// What it does.
    pub role: Role,
    /// Id of its namespace without a tenant salt.
    pub namespace_id: u64,
    /// The name clients use.
    pub model: String,
    /// Digest of the model file.
    pub model_digest: String,
    /// Numerics id.
    pub numerics: String,
    /// Shape of a block.
    pub format: KvFormat,
    /// Blocks in its pool.
    pub pool_blocks: u32,
    /// Longest sequence, prompt and answer, in tokens.
    pub context_tokens: u32,
    /// host:port of its gRPC service.
    pub grpc_address: String,
    /// host:port of its transfer engine.
    pub transfer_address: String,
    /// host:port of its admin page; empty for none.
    pub admin_address: String,
}

impl Node {
    /// Tokens that its pool holds.
    #[must_use]
    pub fn pool_tokens(&self) -> u64 {
        u64::from(self.pool_blocks) * u64::from(self.format.block_tokens)
    }

    /// Refuses what no working node registers.
    ///
    /// # Errors
    /// [`NodeError`] names the field.
    pub fn validate(&self) -> Result<(), NodeError> {
        let texts = [
            ("node_id", &self.node_id, true),
            ("model", &self.model, true),
            ("model_digest", &self.model_digest, false),
            ("numerics", &self.numerics, false),
            ("grpc_address", &self.grpc_address, true),
            ("transfer_address", &self.transfer_address, false),
            ("admin_address", &self.admin_address, false),
        ];
        for (field, text, required) in texts {
            if text.len() > TEXT_BYTES_MAX {
                return Err(NodeError { field, reason: format!("{} bytes; at most {TEXT_BYTES_MAX}", text.len()) });
            }
            if required && text.is_empty() {
                return Err(NodeError { field, reason: "empty".into() });
            }
            if text.chars().any(char::is_control) {
                return Err(NodeError { field, reason: "has control characters".into() });
            }
        }
        for (field, value) in [("pool_blocks", self.pool_blocks), ("context_tokens", self.context_tokens)] {
            if value == 0 {
                return Err(NodeError { field, reason: "zero".into() });
            }
        }
        self.format.validate().map_err(|error| NodeError { field: "kv_format", reason: error.to_string() })
    }
}

/// A field of a registration that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("registration refused: `{field}`: {reason}")]
pub struct NodeError {
    /// Name of the field.
    pub field: &'static str,
    /// What is wrong with it.
    pub reason: String,
}

/// What a node is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// Number of the report.
    pub sequence: u64,
    /// Requests being computed.
    pub running: u32,
    /// Requests waiting.
    pub queued: u32,
    /// Uncached prompt tokens waiting or being computed.
    pub queued_tokens: u64,
    /// Blocks free or evictable, less what is reserved.
    pub blocks_free: u32,
    /// Blocks reserved.
    pub blocks_reserved: u32,
    /// Blocks lent or not yet fenced.
    pub blocks_quarantined: u32,
    /// Measured prefill rate, tokens a second; 0 while unknown.
    pub prefill_tokens_per_s: f64,
    /// Measured decode step, milliseconds; 0 while unknown.
    pub step_ms: f64,
    /// Takes no new requests.
    pub draining: bool,
    /// Sequence of the next KV event it will emit; 0 where it does not say.
    pub kv_next_sequence: u64,
}

impl Load {
    /// The same with figures that are not numbers, negative or absurd taken as unknown.
    #[must_use]
    pub fn sane(self) -> Self {
        let known = |value: f64| if value.is_finite() && (0.0..1e12).contains(&value) { value } else { 0.0 };
        Self { prefill_tokens_per_s: known(self.prefill_tokens_per_s), step_ms: known(self.step_ms), ..self }
    }
}
