//! Members to and from the wire.

use kvrail_proto::convert::Malformed;
use kvrail_proto::v1;

use crate::members::{Load, Member, Node, Role};

impl TryFrom<v1::NodeInfo> for Node {
    type Error = Malformed;

    fn try_from(info: v1::NodeInfo) -> Result<Self, Malformed> {
        let role = match info.role() {
            v1::Role::Prefill => Role::Prefill,
            v1::Role::Decode => Role::Decode,
            v1::Role::Unspecified => return Err(Malformed("role")),
        };
        let format: kvrail_kv::KvFormat = info.kv_format.parse().map_err(|_| Malformed("kv_format"))?;
        if format.block_tokens != info.block_tokens {
            return Err(Malformed("block_tokens"));
        }
        Ok(Self {
            node_id: info.node_id,
            generation: info.generation,
            role,
            namespace_id: info.namespace_id,
            model: info.model,
            model_digest: info.model_digest,
            numerics: info.numerics,
            format,
            pool_blocks: info.pool_blocks,
            context_tokens: info.context_tokens,
            grpc_address: info.grpc_address,
            transfer_address: info.transfer_address,
            admin_address: info.admin_address,
        })
    }
}

impl From<&Node> for v1::NodeInfo {
    fn from(node: &Node) -> Self {
        let role = match node.role {
            Role::Prefill => v1::Role::Prefill,
            Role::Decode => v1::Role::Decode,
        };
        Self {
            node_id: node.node_id.clone(),
            generation: node.generation,
            role: role.into(),
            namespace_id: node.namespace_id,
            model: node.model.clone(),
            model_digest: node.model_digest.clone(),
            numerics: node.numerics.clone(),
            kv_format: node.format.to_string(),
            block_tokens: node.format.block_tokens,
            pool_blocks: node.pool_blocks,
            context_tokens: node.context_tokens,
            grpc_address: node.grpc_address.clone(),
            transfer_address: node.transfer_address.clone(),
            admin_address: node.admin_address.clone(),
        }
    }
}

impl From<v1::Load> for Load {
    fn from(load: v1::Load) -> Self {
        Self {
            sequence: load.sequence,
            running: load.running,
            queued: load.queued,
            queued_tokens: load.queued_tokens,
            blocks_free: load.blocks_free,
            blocks_reserved: load.blocks_reserved,
            blocks_quarantined: load.blocks_quarantined,
            prefill_tokens_per_s: load.prefill_tokens_per_s,
            step_ms: load.step_ms,
            draining: load.draining,
            kv_next_sequence: load.kv_next_sequence,
        }
        .sane()
    }
}

impl From<&Load> for v1::Load {
    fn from(load: &Load) -> Self {
        Self {
            sequence: load.sequence,
            running: load.running,
            queued: load.queued,
            queued_tokens: load.queued_tokens,
            blocks_free: load.blocks_free,
            blocks_reserved: load.blocks_reserved,
            blocks_quarantined: load.blocks_quarantined,
            prefill_tokens_per_s: load.prefill_tokens_per_s,
            step_ms: load.step_ms,
            draining: load.draining,
            kv_next_sequence: load.kv_next_sequence,
        }
    }
}

impl From<&Member> for v1::Member {
    fn from(member: &Member) -> Self {
        Self { info: Some((&member.node).into()), load: Some((&member.load).into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::node;

    #[test]
    fn nodes_and_loads_survive_the_wire() {
        let node = Node { role: Role::Prefill, admin_address: "x:3".into(), ..node("a") };
        assert_eq!(Node::try_from(v1::NodeInfo::from(&node)), Ok(node));
        let load = Load {
            sequence: 1,
            running: 2,
            queued: 3,
            queued_tokens: 4,
            blocks_free: 5,
            blocks_reserved: 6,
            blocks_quarantined: 7,
            prefill_tokens_per_s: 8.5,
            step_ms: 9.5,
            draining: true,
            kv_next_sequence: 10,
        };
        assert_eq!(Load::from(v1::Load::from(&load)), load);
    }

    #[test]
    fn what_is_malformed_names_its_field() {
        let good = v1::NodeInfo::from(&node("a"));
        let refused = |info| Node::try_from(info).unwrap_err();
        assert_eq!(refused(v1::NodeInfo { role: 77, ..good.clone() }), Malformed("role"));
        assert_eq!(refused(v1::NodeInfo { kv_format: "f16".into(), ..good.clone() }), Malformed("kv_format"));
        assert_eq!(refused(v1::NodeInfo { block_tokens: 32, ..good }), Malformed("block_tokens"));
    }
}
