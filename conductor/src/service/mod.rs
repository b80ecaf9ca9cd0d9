//! The conductor as a process: the state machine of [`crate::core`] behind gRPC, with an admin endpoint beside it.
//!
//! One lock guards the state machine and is held for the length of one message; nothing waits under it. All state is soft
//! (law 6): a conductor that restarts knows all again as soon as its nodes have reconnected.

mod convert;
mod rpc;
mod state;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use kvrail_proto::MESSAGE_BYTES_MAX;
use kvrail_proto::incoming::{Limits, incoming};
use kvrail_proto::v1::conductor_server::ConductorServer;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;

use crate::admin;
use crate::core::CoreConfig;
use crate::http::{self, HttpConfig};
use state::State;

/// Time that open streams get at the end.
const STOP_MAX: Duration = Duration::from_secs(2);

/// Where the conductor listens and what bounds it has.
#[derive(Clone, Debug)]
pub struct ConductorConfig {
    /// Nodes and gateways.
    pub grpc: SocketAddr,
    /// `/healthz` `/readyz` `/status` `/metrics`.
    pub admin: SocketAddr,
    /// The state machine.
    pub core: CoreConfig,
    /// Gateways that may watch at once.
    pub watchers_max: usize,
    /// Changes of members and load are told at most so often.
    pub publish_interval: Duration,
    /// Streams that one connection may hold.
    pub streams_max: u32,
    /// Time without traffic after which a peer is pinged, and again until it counts as dead.
    pub keepalive: Duration,
}

impl Default for ConductorConfig {
    fn default() -> Self {
        Self {
            grpc: SocketAddr::from(([127, 0, 0, 1], 8700)),
            admin: SocketAddr::from(([127, 0, 0, 1], 8701)),
            core: CoreConfig::default(),
            watchers_max: 256,
            publish_interval: Duration::from_millis(50),
            streams_max: 4096,
            keepalive: Duration::from_secs(3),
        }
    }
}

/// Where it listens in fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConductorAddresses {
    /// gRPC.
    pub grpc: SocketAddr,
    /// Admin endpoint.
    pub admin: SocketAddr,
}

/// Why a service could not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// An address cannot be listened on.
    #[error("cannot listen on {address}")]
    Bind {
        /// Which.
        address: SocketAddr,
        /// What the system says.
        source: std::io::Error,
    },
    /// The gRPC server broke.
    #[error("the gRPC server failed")]
    Grpc(#[from] tonic::transport::Error),
    /// A setting that cannot be.
    #[error("configuration: `{field}`: {reason}")]
    Config {
        /// Which.
        field: &'static str,
        /// What would be right.
        reason: String,
    },
}

pub(crate) async fn bind(address: SocketAddr) -> Result<(TcpListener, SocketAddr), ServeError> {
    let failed = |source| ServeError::Bind { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

/// Serves until `shutdown` resolves; `ready` is called once, when both listeners stand.
///
/// # Errors
/// [`ServeError`] if an address is taken or the server breaks.
pub fn serve_conductor<'a>(
    config: ConductorConfig,
    ready: impl FnOnce(&ConductorAddresses) + Send + 'a,
    shutdown: impl Future<Output = ()> + Send + 'a,
) -> BoxFuture<'a, Result<(), ServeError>> {
    boxed(config, Box::new(ready), Box::pin(shutdown))
}

type Ready<'a> = Box<dyn FnOnce(&ConductorAddresses) + Send + 'a>;

/// Keeps the conductor from being compiled again in everything that runs one.
fn boxed<'a>(
    config: ConductorConfig,
    ready: Ready<'a>,
    shutdown: BoxFuture<'a, ()>,
) -> BoxFuture<'a, Result<(), ServeError>> {
    Box::pin(serve_here(config, ready, shutdown))
}

async fn serve_here(config: ConductorConfig, ready: Ready<'_>, shutdown: BoxFuture<'_, ()>) -> Result<(), ServeError> {
    let (grpc_listener, grpc) = bind(config.grpc).await?;
    let (admin_listener, admin) = bind(config.admin).await?;
    let stop = CancellationToken::new();
    // Whatever way this ends, the tasks end too.
    let _guard = stop.clone().drop_guard();
    let state = Arc::new(State::new(config, stop.clone()));

    let admin_router = admin::router(Arc::clone(&state) as _);
    let (bounds, uncounted) = (HttpConfig::default(), metrics::Gauge::noop());
    tokio::spawn(http::serve(admin_listener, admin_router, bounds, uncounted, stop.clone(), stop.clone()));
    let service = ConductorServer::new(rpc::Rpc(Arc::clone(&state)))
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let mut limits = Limits::default();
    // Every member and every watcher holds a connection; the default stays for all others.
    limits.connections_max += state.config.core.members_max + state.config.watchers_max;
    let server = Server::builder()
        .http2_keepalive_interval(Some(state.config.keepalive))
        .http2_keepalive_timeout(Some(state.config.keepalive))
        .max_concurrent_streams(state.config.streams_max)
        .add_service(service)
        .serve_with_incoming_shutdown(incoming(grpc_listener, limits), stop.clone().cancelled_owned());
    let mut server = tokio::spawn(server);

    tracing::info!(%grpc, %admin, "conductor serving");
    ready(&ConductorAddresses { grpc, admin });
    let publish = state.publish(state.config.publish_interval);
    let ended = tokio::select! {
        () = shutdown => None,
        () = publish => None,
        () = state.expire() => None,
        ended = &mut server => Some(ended),
    };
    stop.cancel();
    match ended {
        Some(ended) => ended.unwrap_or(Ok(()))?,
        None => {
            if tokio::time::timeout(STOP_MAX, &mut server).await.is_err() {
                server.abort();
            }
        }
    }
    Ok(())
}
