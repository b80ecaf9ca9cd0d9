//! Settings of an engine, as a structure that can grow.

use std::ffi::c_char;
use std::mem::MaybeUninit;
use std::str::FromStr;
use std::time::Duration;

use kvrail_bindings::Code;
use kvrail_transfer::{EngineConfig, TransportKind};

use crate::given::text;
use crate::status::Fault;

/// `kvrail_config.transports`: shared memory of one host.
pub const KVRAIL_SHM: u32 = 1;
/// `kvrail_config.transports`: TCP.
pub const KVRAIL_TCP: u32 = 2;
/// `kvrail_config.transports`: RDMA.
pub const KVRAIL_RDMA: u32 = 4;

/// Settings of an engine. `kvrail_config_init` fills in what holds where nothing is said.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct kvrail_config {
    /// `sizeof(kvrail_config)` of the caller.
    pub size: u32,
    /// `KVRAIL_SHM`, `KVRAIL_TCP` and `KVRAIL_RDMA`, or-ed.
    pub transports: u32,
    /// Where peers connect to, `ADDRESS:PORT`; port 0 takes a free one. NULL is 127.0.0.1:0.
    pub listen: *const c_char,
    /// Local addresses over which TCP moves data, `ADDRESS[/PREFIX][@DEVICE][#RAIL]`, joined by commas. NULL: as the system routes.
    pub tcp_rails: *const c_char,
    /// NICs over which RDMA moves data, `DEVICE[:PORT][@GID][#RAIL]`, joined by commas. NULL: every one with an active port.
    pub rdma_rails: *const c_char,
    /// Streams of each transport to a peer, 1 to 32.
    pub streams_per_peer: u32,
    /// Threads that move bytes, 1 to 32.
    pub workers: u32,
    /// Not 0: CRC32 over each slice unless a request says otherwise.
    pub checksum: u32,
    /// Not 0: leases that are lent over RDMA have keys of their own, and what a peer does outside of them is turned away by the NIC.
    pub guard_leases: u32,
    /// How often each side says that it lives, milliseconds.
    pub heartbeat_ms: u32,
    /// Silence after which a peer counts as dead, milliseconds.
    pub peer_timeout_ms: u32,
    /// Bound of `kvrail_connect`, milliseconds.
    pub connect_timeout_ms: u32,
    /// Sessions at most.
    pub peers_max: u64,
    /// Leases at most.
    pub leases_max: u64,
    /// Transfers under way at most.
    pub transfers_max: u64,
    /// Notifications that wait to be received, at most.
    pub notifications_max: u64,
}

/// What a text names, joined by commas.
fn listed<T: FromStr>(text: &str) -> Result<Vec<T>, T::Err> {
    text.split(',').map(str::trim).filter(|one| !one.is_empty()).map(str::parse).collect()
}

fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}

impl Default for kvrail_config {
    fn default() -> Self {
        let config = EngineConfig::default();
        Self {
            size: size_of::<Self>() as u32,
            transports: KVRAIL_SHM | KVRAIL_TCP,
            listen: std::ptr::null(),
            tcp_rails: std::ptr::null(),
            rdma_rails: std::ptr::null(),
            streams_per_peer: u32::from(config.streams_per_peer),
            workers: config.workers as u32,
            checksum: u32::from(config.checksum),
            guard_leases: u32::from(config.guard_leases),
            heartbeat_ms: millis(config.heartbeat),
            peer_timeout_ms: millis(config.peer_timeout),
            connect_timeout_ms: millis(config.connect_timeout),
            peers_max: config.peers_max as u64,
            leases_max: config.leases_max as u64,
            transfers_max: config.transfers_max as u64,
            notifications_max: config.notifications_max as u64,
        }
    }
}

/// Fills in the defaults.
#[unsafe(no_mangle)]
pub extern "C" fn kvrail_config_init(config: Option<&mut MaybeUninit<kvrail_config>>) {
    if let Some(config) = config {
        config.write(kvrail_config::default());
    }
}

impl kvrail_config {
    /// The engine's settings.
    ///
    /// # Safety
    /// The texts must be NULL or NUL-terminated.
    pub(crate) unsafe fn read(&self) -> Result<EngineConfig, Fault> {
        let wrong = |name: &str, what: &str| Fault::new(Code::Config, format!("setting {name}: {what}"));
        if self.size as usize != size_of::<Self>() {
            return Err(wrong("size", "is not sizeof(kvrail_config); was kvrail_config_init called?"));
        }
        let mut config = EngineConfig::default();
        // SAFETY: the caller's promise.
        if let Some(listen) = unsafe { text(self.listen, "listen") }? {
            config.listen = listen.parse().map_err(|_| wrong("listen", "must be ADDRESS:PORT"))?;
        }
        // SAFETY: the caller's promise.
        if let Some(rails) = unsafe { text(self.tcp_rails, "tcp_rails") }? {
            config.tcp_rails = listed(rails).map_err(|e| wrong("tcp_rails", &format!("{e}")))?;
        }
        // SAFETY: the caller's promise.
        if let Some(rails) = unsafe { text(self.rdma_rails, "rdma_rails") }? {
            config.rdma_rails = listed(rails).map_err(|e| wrong("rdma_rails", &format!("{e}")))?;
        }
        let kinds =
            [(KVRAIL_SHM, TransportKind::Shm), (KVRAIL_TCP, TransportKind::Tcp), (KVRAIL_RDMA, TransportKind::Rdma)];
        if self.transports & !kinds.iter().fold(0, |all, (bit, _)| all | bit) != 0 {
            return Err(wrong("transports", "has a bit that is none of KVRAIL_SHM, KVRAIL_TCP and KVRAIL_RDMA"));
        }
        config.transports = kinds.into_iter().filter(|(bit, _)| self.transports & bit != 0).map(|(_, k)| k).collect();
        config.streams_per_peer =
            u8::try_from(self.streams_per_peer).map_err(|_| wrong("streams_per_peer", "must be 1 to 32"))?;
        config.workers = self.workers as usize;
        config.checksum = self.checksum != 0;
        config.guard_leases = self.guard_leases != 0;
        config.heartbeat = Duration::from_millis(self.heartbeat_ms.into());
        config.peer_timeout = Duration::from_millis(self.peer_timeout_ms.into());
        config.connect_timeout = Duration::from_millis(self.connect_timeout_ms.into());
        let bound = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        config.peers_max = bound(self.peers_max);
        config.leases_max = bound(self.leases_max);
        config.transfers_max = bound(self.transfers_max);
        config.notifications_max = bound(self.notifications_max);
        Ok(config)
    }
}
