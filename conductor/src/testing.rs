//! What the unit tests of several modules share.

use kvrail_kv::{DType, KvFormat};

use crate::members::{Node, Role};

/// A small decode node of model `m`.
pub(crate) fn node(node_id: &str) -> Node {
    Node {
        node_id: node_id.into(),
        generation: 7,
        role: Role::Decode,
        namespace_id: 1,
        model: "m".into(),
        model_digest: "digest".into(),
        numerics: "mock".into(),
        format: KvFormat { layers: 2, kv_heads: 1, head_dim: 8, block_tokens: 16, dtype: DType::F16 },
        pool_blocks: 1000,
        context_tokens: 4096,
        grpc_address: format!("{node_id}:1"),
        transfer_address: format!("{node_id}:2"),
        admin_address: String::new(),
    }
}
