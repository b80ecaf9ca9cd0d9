//! The engine's public face: regions, peers, leases, transfers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::config::EngineConfig;
use crate::core::Core;
use crate::memory::{MemoryError, MemoryKind, Region};
use crate::notify::Notifications;
use crate::session::control::Command;
use crate::session::lease::LeaseState;
use crate::session::peer::{Reply, Session};
use crate::session::{LeaseError, LeaseRequest, LeaseTicket};
use crate::telemetry::EngineStats;
use crate::transfer::{SubmitError, Transfer, TransferRequest};
use crate::transport::rdma::RdmaError;
use crate::{start, submit};

/// Connects that may wait for the control thread.
const CONNECTS_MAX: usize = 65_536;

/// Why an engine did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A setting makes no sense.
    #[error("setting {name}: {reason}")]
    Config {
        /// Field of [`EngineConfig`].
        name: &'static str,
        /// What is wrong.
        reason: &'static str,
    },
    /// RDMA was asked for and cannot be had.
    #[error("RDMA")]
    Rdma(#[from] RdmaError),
    /// The operating system refused.
    #[error("{what} failed")]
    Os {
        /// What was tried.
        what: &'static str,
        /// Its error.
        #[source]
        source: std::io::Error,
    },
}

/// Why there is no session with a peer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// Nobody answered there, or the connection broke.
    #[error("{address} cannot be reached: {reason}")]
    Unreachable {
        /// Whom.
        address: SocketAddr,
        /// The system's words.
        reason: String,
    },
    /// The handshake did not end in time.
    #[error("{address} did not finish the handshake in time")]
    TimedOut {
        /// Whom.
        address: SocketAddr,
    },
    /// What answered is not an engine.
    #[error("{address} is not a transfer engine")]
    NotAnEngine {
        /// Whom.
        address: SocketAddr,
    },
    /// No common version of the protocol.
    #[error("the peer speaks protocol {peer_min} to {peer_max}, this engine {min} to {max}")]
    Version {
        /// Lowest that the peer speaks.
        peer_min: u16,
        /// Highest that the peer speaks.
        peer_max: u16,
        /// Lowest that this engine speaks.
        min: u16,
        /// Highest that this engine speaks.
        max: u16,
    },
    /// The engine there is not the one that was expected: it restarted.
    #[error("expected engine generation {expected:#x}, found {found:#x}")]
    WrongGeneration {
        /// Asked for.
        expected: u64,
        /// What runs there.
        found: u64,
    },
    /// No common transport.
    #[error("no transport in common")]
    NoTransport,
    /// That address is this engine.
    #[error("an engine does not connect to itself")]
    Myself,
    /// The peer refused.
    #[error("the peer refused: {reason}")]
    Refused {
        /// Its words.
        reason: String,
    },
    /// More peers than the engine keeps.
    #[error("{limit} peers are connected already")]
    TooManyPeers {
        /// The limit.
        limit: usize,
    },
    /// The engine has been shut down.
    #[error("the engine is shut down")]
    Stopped,
}

/// The transfer engine of a process. Clones share it; when the last is dropped its threads end.
#[derive(Clone)]
pub struct Engine {
    running: Arc<Running>,
}

/// Ends the threads when the last handle of an engine goes.
struct Running {
    core: Arc<Core>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.core.stop();
    }
}

/// The word that no byte can land under a lease any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fenced {
    /// Payload bytes that landed under it.
    pub bytes_landed: u64,
}

/// A lease at its owner. Dropping it revokes it in the background; its memory stays mapped and quarantined in the engine
/// until it is fenced.
#[must_use = "dropping a lease revokes it"]
pub struct Lease {
    core: Arc<Core>,
    state: Arc<LeaseState>,
}

impl Engine {
    /// Starts an engine: its listener, its control thread, its workers.
    ///
    /// # Errors
    /// [`EngineError`] when a setting makes no sense or the address cannot be had.
    pub fn start(config: EngineConfig) -> Result<Self, EngineError> {
        Ok(Self { running: Arc::new(Running { core: start::start(config)? }) })
    }

    /// Where peers connect to.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.running.core.local_addr
    }

    /// Random number of this start; after a restart it is another.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.running.core.generation
    }

    /// Maps `len` zeroed bytes that can be lent and moved.
    ///
    /// # Errors
    /// [`MemoryError`] when the length is zero or the system refuses.
    pub fn allocate(&self, len: usize, kind: MemoryKind) -> Result<Region, MemoryError> {
        Region::allocate(len, kind)
    }

    /// Lends ranges of a region.
    ///
    /// # Errors
    /// [`LeaseError`] when the ranges make no sense or a limit is met.
    pub fn grant(&self, request: LeaseRequest<'_>) -> Result<Lease, LeaseError> {
        let core = Arc::clone(&self.running.core);
        let state = core.grant(request)?;
        Ok(Lease { core, state })
    }

    /// Connects to the engine at `address`, or returns the session that is there.
    ///
    /// # Errors
    /// [`ConnectError`], within the configured time.
    pub async fn connect(&self, address: SocketAddr, expected_generation: Option<u64>) -> Result<Peer, ConnectError> {
        let reply = Arc::<Reply>::default();
        let command = Command::Connect { address, expected: expected_generation, reply: Arc::clone(&reply) };
        let core = &self.running.core;
        if core.stopping.load(Ordering::Acquire) || core.control.try_post(command, CONNECTS_MAX).is_err() {
            return Err(ConnectError::Stopped);
        }
        reply.ready.wait().await;
        let session = reply.take().unwrap_or(Err(ConnectError::Stopped))?;
        Ok(Peer { session })
    }

    /// Accepts a transfer, or refuses it; never blocks.
    ///
    /// # Errors
    /// [`SubmitError`]; nothing was posted then.
    pub fn submit(&self, peer: &Peer, request: TransferRequest<'_>) -> Result<Transfer, SubmitError> {
        submit::submit(&self.running.core, &peer.session, request)
    }

    /// As [`submit`](Self::submit), of memory that work on a device is still to write (or, for a read, to have read): accepted only once
    /// the device has passed `mark`, which whoever launched that work [records](crate::gpu::Device::record) behind it. So an event at
    /// the source precedes every posting, over every transport.
    ///
    /// # Errors
    /// [`SubmitError::NotReady`] while the mark has not been passed: ask again. [`SubmitError::Device`] if it never will.
    pub fn submit_after(
        &self,
        peer: &Peer,
        mark: &crate::gpu::Event,
        request: TransferRequest<'_>,
    ) -> Result<Transfer, SubmitError> {
        match mark.is_done() {
            Ok(true) => self.submit(peer, request),
            Ok(false) => Err(SubmitError::NotReady),
            Err(error) => Err(SubmitError::Device(error)),
        }
    }

    /// Ends the engine: sessions, transfers, threads. Resolves when its last thread has ended; what was lent is fenced then.
    pub async fn shutdown(&self) {
        self.running.core.stop();
        self.running.core.stopped.wait().await;
    }

    /// Where peers' notifications arrive.
    #[must_use]
    pub fn notifications(&self) -> Notifications {
        self.running.core.notifications.clone()
    }

    /// Counts of everything that the engine holds, and of what it has moved.
    #[must_use]
    pub fn stats(&self) -> EngineStats {
        self.running.core.stats()
    }
}

impl Lease {
    /// What to hand to the peer.
    #[must_use]
    pub fn ticket(&self) -> LeaseTicket {
        LeaseTicket::of(&self.state, self.core.generation)
    }

    /// Ends the lease; resolves when no byte can land (or, under a read lease, be believed) any more. It waits for no peer.
    pub async fn revoke(self) -> Fenced {
        self.begin_revoke();
        self.fenced().await
    }

    /// Ends the lease and waits for nothing: [`fenced`](Self::fenced) tells when no byte can land any more.
    pub fn begin_revoke(&self) {
        self.core.revoke(&self.state);
    }

    /// Payload bytes that have landed under it; retries count again. Over RDMA nobody here sees a byte land: the peer tells when
    /// the lease has ended.
    #[must_use]
    pub fn bytes_landed(&self) -> u64 {
        self.state.landed()
    }

    /// Whether it has ended, by revocation or by its time.
    #[must_use]
    pub fn is_over(&self) -> bool {
        !self.state.holds(std::time::Instant::now())
    }

    /// Resolves when the lease has ended and is fenced, whoever ended it.
    pub async fn fenced(&self) -> Fenced {
        self.state.fenced.wait().await;
        Fenced { bytes_landed: self.state.landed() }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.begin_revoke();
    }
}

/// A connected remote engine. Clones share the session; it lives on in the engine when all are dropped.
#[derive(Clone)]
pub struct Peer {
    session: Arc<Session>,
}

impl Peer {
    /// Random number of the remote engine's start.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.session.generation
    }

    /// Where it was reached, or where it came from.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.session.address
    }

    /// Whether the session still stands. A peer that is gone stays gone: connect again for another session.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.session.is_alive()
    }

    /// Resolves when the session is over.
    pub async fn lost(&self) {
        self.session.ended.wait().await;
    }
}

impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peer")
            .field("generation", &self.generation())
            .field("address", &self.address())
            .field("alive", &self.is_alive())
            .finish()
    }
}
