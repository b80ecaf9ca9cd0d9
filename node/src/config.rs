//! What a node is told at start. Plain values: files, environment and flags are read by the binary alone.

use std::net::SocketAddr;
use std::path::PathBuf;

use kvrail_engine::mock::MockOptions;
use kvrail_kv::DType;
use kvrail_proto::v1;

use crate::grpc::GrpcConfig;
use crate::membership::MembershipConfig;

/// Which service the node runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Turns prompts into KV cache.
    Prefill,
    /// Turns KV cache into tokens.
    Decode,
}

impl Role {
    /// The role in logs, status and metric labels.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }
}

impl From<Role> for v1::Role {
    fn from(role: Role) -> Self {
        match role {
            Role::Prefill => Self::Prefill,
            Role::Decode => Self::Decode,
        }
    }
}

/// What the node executes.
#[derive(Clone, Debug)]
pub enum ModelSource {
    /// A GGUF file, run by the built-in CPU executor.
    Gguf(GgufOptions),
    /// No weights: KV bytes and logits derived from token ids, time from a step model.
    Mock(MockOptions),
}

/// A model file and how to run it.
#[derive(Clone, Debug, PartialEq)]
pub struct GgufOptions {
    /// The file.
    pub path: PathBuf,
    /// Tokens a KV block.
    pub block_tokens: u32,
    /// Element type of the KV cache.
    pub kv_dtype: DType,
    /// Compute threads; 0 takes one a core.
    pub threads: usize,
    /// Caps the model's own context.
    pub context_tokens: Option<u32>,
}

/// Size of the block pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolSize {
    /// This many blocks.
    Blocks(u32),
    /// As many blocks as fit into this many bytes.
    Bytes(u64),
}

/// Everything a prefill and a decode node have in common.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Stable name, unique in the pool.
    pub node_id: String,
    /// Which service runs on top.
    pub role: Role,
    /// What is executed.
    pub model: ModelSource,
    /// Name clients use; the model's own if `None`.
    pub model_name: Option<String>,
    /// Size of the block pool.
    pub pool: PoolSize,
    /// Where the service listens; port 0 takes a free one.
    pub grpc_listen: SocketAddr,
    /// Where the admin endpoint listens.
    pub admin_listen: SocketAddr,
    /// Host that others reach this node by; the listening address if `None`, which must then not be a wildcard.
    pub advertise_host: Option<String>,
    /// The transfer engine.
    pub transfer: kvrail_transfer::EngineConfig,
    /// Limits of gRPC connections.
    pub grpc: GrpcConfig,
    /// The conductor; `None` runs alone.
    pub membership: Option<MembershipConfig>,
}

impl NodeConfig {
    /// A node on loopback with free ports and no conductor.
    #[must_use]
    pub fn local(node_id: impl Into<String>, role: Role, model: ModelSource, pool: PoolSize) -> Self {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        Self {
            node_id: node_id.into(),
            role,
            model,
            model_name: None,
            pool,
            grpc_listen: any,
            admin_listen: any,
            advertise_host: None,
            transfer: kvrail_transfer::EngineConfig { listen: any, ..Default::default() },
            grpc: GrpcConfig::default(),
            membership: None,
        }
    }
}
