//! A node's parts, put together once at start: executor, KV memory in a transfer region, cache, engine, sockets.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use kvrail_engine::cache::BlockCache;
use kvrail_engine::{Executor, KvMemory, ModelSpec};
use kvrail_kv::{KvFormat, Namespace, NamespaceParts};
use kvrail_proto::v1;
use kvrail_transfer::{Engine, MemoryKind, Region, TransportKind};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::backing::RegionBacking;
use crate::cache::KvCache;
use crate::config::{NodeConfig, PoolSize, Role};
use crate::drain::Drain;
use crate::grpc::{self, GrpcError};
use crate::load::LoadReport;
use crate::membership::Membership;
use crate::metrics::Registry;
use crate::model;

/// KV events (block hashes) that wait for the conductor before a snapshot replaces them, per block of the pool.
const BACKLOG_PER_BLOCK: usize = 4;
/// And at least so many.
const BACKLOG_MIN: usize = 65_536;

/// Why a node does not start or stops.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The model cannot be loaded.
    #[error("cannot load the model")]
    Model(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A value of the configuration cannot be served.
    #[error("{0}")]
    Config(String),
    /// The transfer engine does not start.
    #[error("cannot start the transfer engine")]
    Transfer(#[from] kvrail_transfer::EngineError),
    /// The block pool cannot be allocated.
    #[error("cannot allocate {bytes} bytes for the block pool")]
    Memory {
        /// Size wanted.
        bytes: u64,
        /// What the transfer engine says.
        source: kvrail_transfer::MemoryError,
    },
    /// A socket.
    #[error(transparent)]
    Grpc(#[from] GrpcError),
    /// The admin endpoint broke.
    #[error("the admin endpoint failed")]
    Admin(#[source] std::io::Error),
    /// The service on top cannot go on.
    #[error("the service failed: {0}")]
    Service(String),
}

/// Where a running node is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoundAddresses {
    /// The service.
    pub grpc: SocketAddr,
    /// `/healthz` `/readyz` `/status` `/metrics`.
    pub admin: SocketAddr,
    /// The transfer engine's handshake.
    pub transfer: SocketAddr,
}

/// A node that is ready for its service. The parts beside [`Node`] have one owner each.
pub struct Started {
    /// What everything shares.
    pub node: Node,
    /// The model, for the one thread that runs it.
    pub executor: Box<dyn Executor>,
    /// The sockets, for [`crate::serve::run`].
    pub sockets: Sockets,
}

/// Bound sockets that nobody serves yet.
#[derive(Debug)]
pub struct Sockets {
    pub(crate) grpc: TcpListener,
    pub(crate) admin: TcpListener,
}

/// What the tasks and threads of one node share. Clones are cheap.
#[derive(Clone)]
pub struct Node {
    inner: Arc<Inner>,
}

struct Inner {
    config: NodeConfig,
    info: v1::NodeInfo,
    spec: ModelSpec,
    addresses: BoundAddresses,
    kv: KvMemory,
    region: Region,
    cache: KvCache,
    engine: Engine,
    drain: Drain,
    load: LoadReport,
    metrics: Registry,
    started: Instant,
    failed: CancellationToken,
    failure: parking_lot::Mutex<Option<String>>,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Node({} {})", self.role().as_str(), self.inner.info.node_id)
    }
}

impl Node {
    /// Loads the model, allocates and registers the pool, starts the transfer engine and binds the sockets. Nothing is
    /// served and nobody is told yet.
    ///
    /// # Errors
    /// [`NodeError`], naming the part that failed.
    pub async fn start(config: NodeConfig) -> Result<Started, NodeError> {
        let source = config.model.clone();
        let loading = tokio::task::spawn_blocking(move || model::load(source));
        let executor = loading.await.map_err(|e| NodeError::Model(Box::new(e)))??;
        let mut spec = executor.spec().clone();
        if let Some(name) = &config.model_name {
            spec.name.clone_from(name);
        }
        let blocks = pool_blocks(config.pool, &spec.format)?;
        fits_memory(spec.format.block_bytes() * u64::from(blocks))?;

        let engine = Engine::start(config.transfer.clone())?;
        let bytes = spec.format.block_bytes() * u64::from(blocks);
        let kind = if config.transfer.transports.contains(&TransportKind::Shm) {
            MemoryKind::Shared
        } else {
            MemoryKind::Host
        };
        let len =
            usize::try_from(bytes).map_err(|_| NodeError::Config(format!("a pool of {bytes} bytes is too large")))?;
        let region = engine.allocate(len, kind).map_err(|source| NodeError::Memory { bytes, source })?;
        region.populate_in_background();
        let kv = KvMemory::new(spec.format, blocks, Arc::new(RegionBacking::new(region.clone())));
        let cache = KvCache::new(BlockCache::new(blocks), BACKLOG_MIN.max(BACKLOG_PER_BLOCK * blocks as usize));

        let sockets =
            Sockets { grpc: grpc::bind(config.grpc_listen).await?, admin: grpc::bind(config.admin_listen).await? };
        let addresses = BoundAddresses {
            grpc: local_addr(&sockets.grpc, config.grpc_listen)?,
            admin: local_addr(&sockets.admin, config.admin_listen)?,
            transfer: engine.local_addr(),
        };
        let info = v1::NodeInfo {
            node_id: config.node_id.clone(),
            generation: engine.generation(),
            role: v1::Role::from(config.role).into(),
            namespace_id: namespace(&spec, "").id(),
            model: spec.name.clone(),
            model_digest: spec.digest.clone(),
            numerics: spec.numerics.clone(),
            kv_format: spec.format.to_string(),
            block_tokens: spec.format.block_tokens,
            pool_blocks: blocks,
            context_tokens: spec.context_tokens,
            grpc_address: advertised(&config, addresses.grpc)?,
            transfer_address: advertised(&config, addresses.transfer)?,
            admin_address: if config.advertise_host.is_some() && addresses.admin.ip().is_loopback() {
                // Others could not reach it.
                String::new()
            } else {
                advertised(&config, addresses.admin)?
            },
        };
        let load = LoadReport::default();
        load.update(|load| load.blocks_free = blocks);
        let inner = Inner {
            config,
            info,
            spec,
            addresses,
            kv,
            region,
            cache,
            engine,
            drain: Drain::default(),
            load,
            metrics: Registry::default(),
            started: Instant::now(),
            failed: CancellationToken::new(),
            failure: parking_lot::Mutex::new(None),
        };
        Ok(Started { node: Self { inner: Arc::new(inner) }, executor, sockets })
    }

    /// Starts the membership client, if the node has a conductor. Call it when requests can be served.
    ///
    /// # Errors
    /// [`GrpcError::Address`] if the conductor's address is none.
    pub fn join(&self) -> Result<Option<Membership>, GrpcError> {
        let inner = &self.inner;
        let Some(membership) = inner.config.membership.clone() else { return Ok(None) };
        let (source, load) = (Arc::new(inner.cache.clone()), inner.load.subscribe());
        Membership::start(membership, &inner.config.grpc, inner.info.clone(), source, load).map(Some)
    }

    /// What the node was told.
    #[must_use]
    pub fn config(&self) -> &NodeConfig {
        &self.inner.config
    }

    /// Its role.
    #[must_use]
    pub fn role(&self) -> Role {
        self.inner.config.role
    }

    /// What it registers as.
    #[must_use]
    pub fn info(&self) -> &v1::NodeInfo {
        &self.inner.info
    }

    /// The loaded model.
    #[must_use]
    pub fn spec(&self) -> &ModelSpec {
        &self.inner.spec
    }

    /// Where it is reached.
    #[must_use]
    pub fn addresses(&self) -> &BoundAddresses {
        &self.inner.addresses
    }

    /// Random at every start; the transfer engine's, so that one number names this life of the node.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.inner.info.generation
    }

    /// The pool's memory.
    #[must_use]
    pub fn kv(&self) -> &KvMemory {
        &self.inner.kv
    }

    /// The same memory as the transfer engine knows it; block `id` lies at `id × block_bytes`.
    #[must_use]
    pub fn region(&self) -> &Region {
        &self.inner.region
    }

    /// The block cache.
    #[must_use]
    pub fn cache(&self) -> &KvCache {
        &self.inner.cache
    }

    /// The transfer engine.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.inner.engine
    }

    /// The drain state.
    #[must_use]
    pub fn drain(&self) -> &Drain {
        &self.inner.drain
    }

    /// The load that the conductor hears.
    #[must_use]
    pub fn load(&self) -> &LoadReport {
        &self.inner.load
    }

    /// The node's metrics.
    #[must_use]
    pub fn metrics(&self) -> &Registry {
        &self.inner.metrics
    }

    /// When it started.
    #[must_use]
    pub fn started(&self) -> Instant {
        self.inner.started
    }

    /// The namespace under a tenant's salt; an empty salt gives the node's own. Cheap: one short hash.
    #[must_use]
    pub fn namespace(&self, salt: &str) -> Namespace {
        namespace(&self.inner.spec, salt)
    }

    /// The service cannot go on: [`crate::serve::run`] ends with this reason. The first one counts.
    pub fn fail(&self, reason: impl Into<String>) {
        self.inner.failure.lock().get_or_insert_with(|| reason.into());
        self.inner.failed.cancel();
    }

    /// Why the service cannot go on, once [`Node::fail`] was called.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.inner.failure.lock().clone()
    }

    /// Resolves when [`Node::fail`] was called.
    pub async fn failed(&self) -> String {
        self.inner.failed.cancelled().await;
        self.failure().unwrap_or_default()
    }
}

fn namespace(spec: &ModelSpec, salt: &str) -> Namespace {
    Namespace::new(&NamespaceParts {
        model: &spec.digest,
        format: &spec.format,
        numerics: &spec.numerics,
        adapter: "",
        salt,
    })
}

fn pool_blocks(pool: PoolSize, format: &KvFormat) -> Result<u32, NodeError> {
    let blocks = match pool {
        PoolSize::Blocks(blocks) => u64::from(blocks),
        PoolSize::Bytes(bytes) => bytes / format.block_bytes(),
    };
    match u32::try_from(blocks) {
        Ok(0) => Err(NodeError::Config(format!("the pool holds no block; one takes {} bytes", format.block_bytes()))),
        Ok(blocks) => Ok(blocks),
        Err(_) => Err(NodeError::Config(format!("the pool would have {blocks} blocks; at most {} fit", u32::MAX))),
    }
}

/// Memory is mapped when it is first touched: a pool that the machine cannot hold would be killed in the middle of a request.
fn fits_memory(pool: u64) -> Result<(), NodeError> {
    let info = rustix::system::sysinfo();
    let memory = (info.totalram as u64).saturating_mul(u64::from(info.mem_unit));
    if pool > memory {
        return Err(NodeError::Config(format!(
            "the pool would take {pool} bytes; this machine has {memory} of memory"
        )));
    }
    Ok(())
}

fn local_addr(listener: &TcpListener, asked: SocketAddr) -> Result<SocketAddr, GrpcError> {
    listener.local_addr().map_err(|source| GrpcError::Bind { address: asked, source })
}

fn advertised(config: &NodeConfig, bound: SocketAddr) -> Result<String, NodeError> {
    match &config.advertise_host {
        Some(host) if host.contains(':') => Ok(format!("[{host}]:{}", bound.port())),
        Some(host) => Ok(format!("{host}:{}", bound.port())),
        None if bound.ip().is_unspecified() => Err(NodeError::Config(format!(
            "{bound} listens on every address; tell which host others reach it by (advertise_host)"
        ))),
        None => Ok(bound.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use kvrail_kv::DType;

    use super::*;

    #[test]
    fn the_pool_is_sized_in_blocks_or_bytes() {
        let format = KvFormat { layers: 2, kv_heads: 1, head_dim: 8, block_tokens: 16, dtype: DType::F16 };
        let block = format.block_bytes();
        assert_eq!(pool_blocks(PoolSize::Bytes(3 * block + 1), &format).expect("fits"), 3);
        assert_eq!(pool_blocks(PoolSize::Blocks(7), &format).expect("fits"), 7);
        assert!(pool_blocks(PoolSize::Bytes(block - 1), &format).is_err());
        assert!(pool_blocks(PoolSize::Bytes(u64::MAX), &format).is_err());
        assert!(fits_memory(u64::MAX).is_err() && fits_memory(1 << 20).is_ok());
    }
}
