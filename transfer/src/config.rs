//! What an engine is started with.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use crate::plan::TenantId;
use crate::session::TcpRail;
use crate::transport::TransportKind;
use crate::transport::fault::FaultPlan;
use crate::transport::rdma::RdmaRail;
use crate::transport::sim::Fabric;

/// Settings of an [`Engine`](crate::Engine). Mechanism only: no environment is read.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Where peers connect to; port 0 takes a free one.
    pub listen: SocketAddr,
    /// What may be used; shared memory goes before TCP where both can reach the memory.
    pub transports: Vec<TransportKind>,
    /// Local addresses over which TCP moves data, at most [`TCP_RAILS_MAX`](crate::TCP_RAILS_MAX); each has a listener of
    /// its own. None: as the system routes, to and from where sessions go.
    pub tcp_rails: Vec<TcpRail>,
    /// NICs over which RDMA moves data, at most 32. None: every one with an active port.
    pub rdma_rails: Vec<RdmaRail>,
    /// Whether leases that are lent over RDMA have keys of their own, so that a NIC turns away what a peer writes or reads outside of them.
    /// Each is registered for itself, at a cost that grows with its ranges and its bytes. Without, a key opens its region: peers are
    /// trusted to keep to their leases.
    pub guard_leases: bool,
    /// Streams of each transport to a peer (over RDMA: queue pairs each way); over TCP and RDMA never fewer than there are pairs
    /// of rails, and over RDMA as many more as a link of over 100 Gbit/s wants. At most 32 in all.
    pub streams_per_peer: u8,
    /// Whether this engine limits those who send to it, where several have work for one of its NICs (docs/transfer.md).
    pub credits: bool,
    /// Congestion control of data over TCP, by the system's name for it; `None`: the system's own.
    pub tcp_congestion: Option<String>,
    /// Weights of tenants, for what this engine sends and for what it lets others send to it; 1 for those not named. At most 1,024.
    pub tenant_weights: Vec<(TenantId, u32)>,
    /// Threads that move bytes; stream `i` belongs to thread `i mod workers`.
    pub workers: usize,
    /// How long a worker, and a caller in [`Transfer::drive`](crate::Transfer::drive), looks for what comes next before it sleeps;
    /// zero where there is one core, and for who would rather wait than compute.
    pub spin: Duration,
    /// CRC32 over each slice unless a transfer says otherwise.
    pub checksum: bool,
    /// How often each side says that it lives.
    pub heartbeat: Duration,
    /// Silence after which a peer counts as dead.
    pub peer_timeout: Duration,
    /// Bound of a connection's handshake.
    pub connect_timeout: Duration,
    /// Sessions at most.
    pub peers_max: usize,
    /// Leases at most, those that wait for their fence included.
    pub leases_max: usize,
    /// Transfers of this engine under way at most; one more is refused with
    /// [`SubmitError::WouldExceed`](crate::SubmitError::WouldExceed).
    pub transfers_max: usize,
    /// Notifications that wait to be received, at most.
    pub notifications_max: usize,
    /// The network of [`TransportKind::Sim`]; for tests.
    pub fabric: Option<Fabric>,
    /// Faults to inject into what this engine sends; for tests.
    pub faults: Option<FaultPlan>,
}

impl Default for EngineConfig {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            transports: vec![TransportKind::Shm, TransportKind::Tcp],
            tcp_rails: Vec::new(),
            rdma_rails: Vec::new(),
            guard_leases: false,
            streams_per_peer: 2,
            credits: true,
            tcp_congestion: None,
            tenant_weights: Vec::new(),
            workers: cores.clamp(1, 2),
            spin: Duration::from_micros(if cores > 1 { 100 } else { 0 }),
            checksum: false,
            heartbeat: Duration::from_millis(500),
            peer_timeout: Duration::from_secs(3),
            connect_timeout: Duration::from_secs(5),
            peers_max: 1024,
            leases_max: 65_536,
            transfers_max: 65_536,
            notifications_max: 1024,
            fabric: None,
            faults: None,
        }
    }
}
