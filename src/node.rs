//! What prefill and decode nodes are told alike, and how it becomes a [`NodeConfig`].

use std::{net::SocketAddr, num::NonZeroU32, path::Path};

use kvrail_engine::mock::MockOptions;
use kvrail_kv::DType;
use kvrail_node::{GgufOptions, ModelSource, NodeConfig, PoolSize, Role, membership::MembershipConfig};
use kvrail_text::catalogue;
use kvrail_transfer::{FaultPlan, TransportKind, active_rdma_rails};

use crate::{
    config::{
        ConfigError,
        table::settings,
        value::{ByteSize, HostPort, KvDtype, RdmaRails, TcpRails, Transport},
    },
    model,
};

settings! {
    /// Settings of a node, whatever its role.
    pub struct NodeSettings {
        /// The conductor's gRPC address.
        conductor: HostPort = "";
        /// Model: a GGUF file, a known name, or mock[:key=value,...].
        model: String = "";
        /// Name clients use for the model; without one, that of the list or of the file.
        model_name: Option<String> = "";
        /// Name of the node, unique in the pool; without one, role, host and process id.
        node_id: Option<String> = "";
        /// Where it listens for requests; port 0 takes a free one.
        grpc: SocketAddr = "127.0.0.1:0";
        /// Where it listens for /healthz, /readyz, /status and /metrics.
        admin: SocketAddr = "127.0.0.1:0";
        /// Where its transfer engine listens.
        transfer: SocketAddr = "127.0.0.1:0";
        /// Host that others reach it by, where that is not the one it listens on.
        advertise: Option<String> = "";
        /// How KV moves.
        transport: Transport = "auto";
        /// Addresses of this machine over which KV goes by TCP, one a NIC; without, as the system routes.
        tcp_rails: Option<TcpRails> = "";
        /// NICs over which KV goes by RDMA, DEVICE[:PORT][@GID][#RAIL] each; without, auto and rdma take all with an active port.
        rdma_rails: Option<RdmaRails> = "";
        /// Streams to a peer, each of its own connection.
        transfer_streams: NonZeroU32 = "2";
        /// Check each slice that moves with a CRC32.
        transfer_checksum: bool = "false";
        /// Give each lease over RDMA keys of its own, so that peers reach nothing else (docs/transfer.md).
        transfer_guard_leases: bool = "false";
        /// Congestion control of KV over TCP, by the system's name for it; without, the system's own.
        transfer_tcp_congestion: Option<String> = "";
        /// Transfers of this node under way at most; what is to be sent beyond them waits for room.
        transfers_max: NonZeroU32 = "65536";
        /// Damage on purpose, for tests: key=number,... of drop, delay, flip and others; never in production.
        transfer_fault: Option<FaultPlan> = "";
        /// Blocks of KV in the pool; without a number, as many as fit pool-bytes.
        pool_blocks: Option<NonZeroU32> = "";
        /// Memory of the pool, where pool-blocks is not given.
        pool_bytes: ByteSize = "512MiB";
        /// Tokens a KV block.
        block_tokens: NonZeroU32 = "16";
        /// Numbers in the KV cache.
        kv_dtype: KvDtype = "f16";
        /// Compute threads; 0 takes one a core.
        threads: usize = "0";
        /// Longest sequence, in tokens, where that is to be less than the model's own.
        context_tokens: Option<NonZeroU32> = "";
    }
}

impl NodeSettings {
    /// The node that these settings describe.
    ///
    /// # Errors
    /// [`ConfigError`] for a model that is not here or a mock that cannot be.
    pub fn config(&self, role: Role) -> Result<NodeConfig, ConfigError> {
        let model = self.source()?;
        let name = self.model_name.clone().or_else(|| Some(model_name(&model)));
        let pool = match self.pool_blocks {
            Some(blocks) => PoolSize::Blocks(blocks.get()),
            None => PoolSize::Bytes(self.pool_bytes.0),
        };
        let node_id = self.node_id.clone().unwrap_or_else(|| default_id(role));
        let mut config = NodeConfig::local(node_id, role, model, pool);
        config.model_name = name;
        config.grpc_listen = self.grpc;
        config.admin_listen = self.admin;
        config.advertise_host = self.advertise.clone();
        config.membership = Some(MembershipConfig::new(self.conductor.to_string()));
        config.transfer.listen = self.transfer;
        config.transfer.tcp_rails = self.tcp_rails.clone().map(|rails| rails.0).unwrap_or_default();
        let nics = self.rdma_rails.clone().map(|rails| rails.0);
        config.transfer.rdma_rails = match self.transport {
            Transport::Auto => nics.unwrap_or_else(active_rdma_rails),
            _ => nics.unwrap_or_default(),
        };
        config.transfer.guard_leases = self.transfer_guard_leases;
        config.transfer.checksum = self.transfer_checksum;
        config.transfer.tcp_congestion.clone_from(&self.transfer_tcp_congestion);
        config.transfer.transfers_max = self.transfers_max.get() as usize;
        config.transfer.faults.clone_from(&self.transfer_fault);
        config.transfer.streams_per_peer = u8::try_from(self.transfer_streams.get()).map_err(|_| {
            ConfigError::Conflict(format!("transfer-streams: {} is more than 255", self.transfer_streams))
        })?;
        config.transfer.transports = match self.transport {
            Transport::Auto if config.transfer.rdma_rails.is_empty() => vec![TransportKind::Shm, TransportKind::Tcp],
            Transport::Auto => vec![TransportKind::Shm, TransportKind::Rdma, TransportKind::Tcp],
            Transport::Rdma => vec![TransportKind::Rdma],
            Transport::Tcp => vec![TransportKind::Tcp],
            Transport::Shm => vec![TransportKind::Shm],
        };
        Ok(config)
    }

    fn source(&self) -> Result<ModelSource, ConfigError> {
        if let Some(options) = mock(&self.model)? {
            return Ok(ModelSource::Mock(options));
        }
        Ok(ModelSource::Gguf(GgufOptions {
            path: model::existing(&self.model)?,
            block_tokens: self.block_tokens.get(),
            kv_dtype: match self.kv_dtype {
                KvDtype::F16 => DType::F16,
                KvDtype::F32 => DType::F32,
            },
            threads: self.threads,
            context_tokens: self.context_tokens.map(NonZeroU32::get),
        }))
    }
}

/// Options of the mock, if `model` names it.
///
/// # Errors
/// [`ConfigError::Conflict`] for an option that the mock does not have or cannot take.
pub fn mock(model: &str) -> Result<Option<MockOptions>, ConfigError> {
    if model != "mock" && !model.starts_with("mock:") {
        return Ok(None);
    }
    MockOptions::parse(model).map(Some).map_err(|error| ConfigError::Conflict(format!("model: {error}")))
}

fn model_name(source: &ModelSource) -> String {
    match source {
        ModelSource::Mock(options) => options.name.clone(),
        ModelSource::Gguf(options) => name_of_file(&options.path),
    }
}

/// Name of the model in a file: a known one's own, else the file's name without its ending.
pub fn name_of_file(path: &Path) -> String {
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    match catalogue::MODELS.iter().find(|model| model.file == file) {
        Some(model) => model.name.to_owned(),
        None => file.strip_suffix(".gguf").unwrap_or(&file).to_owned(),
    }
}

fn default_id(role: Role) -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{}-{host}-{}", role.as_str(), std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_give_models_their_names() {
        assert_eq!(name_of_file(Path::new("/m/SmolLM2-135M-Instruct.Q4_1.gguf")), "smollm2-135m-instruct");
        assert_eq!(name_of_file(Path::new("other.gguf")), "other");
        assert_eq!(name_of_file(Path::new("/")), "");
    }

    #[test]
    fn a_mock_is_told_from_a_file_and_checked() {
        assert!(mock("mock").unwrap().is_some());
        assert!(mock("mock:step_us=5").unwrap().is_some());
        assert!(mock("mockingbird.gguf").unwrap().is_none());
        assert!(mock("mock:stepus=5").unwrap_err().to_string().contains("stepus"));
    }
}
