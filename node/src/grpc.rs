//! gRPC as every service here speaks it: bounded connections and messages, keep-alive on both sides, no delay, bounded
//! shutdown.
//!
//! A stopped or unplugged peer keeps its TCP connection open for many minutes; HTTP/2 pings find it within
//! `keepalive + keepalive_timeout`, and then every stream over it ends with an error.

use std::future::Future;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use kvrail_proto::incoming::{Limits, incoming};
use tokio::net::TcpListener;
use tonic::service::Routes;
use tonic::transport::{Channel, Endpoint, Server};

/// Limits of connections and messages.
#[derive(Clone, Debug, PartialEq)]
pub struct GrpcConfig {
    /// Time without traffic after which the peer is pinged.
    pub keepalive: Duration,
    /// Time without an answer to a ping after which the connection is dead.
    pub keepalive_timeout: Duration,
    /// Time a new connection may take.
    pub connect_timeout: Duration,
    /// Most concurrent streams a connection.
    pub streams_max: u32,
    /// Largest message either side accepts, in bytes.
    pub message_bytes_max: usize,
}

impl Default for GrpcConfig {
    fn default() -> Self {
        Self {
            keepalive: Duration::from_secs(2),
            keepalive_timeout: Duration::from_secs(3),
            connect_timeout: Duration::from_secs(2),
            streams_max: 4096,
            message_bytes_max: kvrail_proto::MESSAGE_BYTES_MAX,
        }
    }
}

/// Why a server or a channel could not be made.
#[derive(Debug, thiserror::Error)]
pub enum GrpcError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        source: std::io::Error,
    },
    /// Not `host:port`.
    #[error("`{0}` is not an address of the form host:port")]
    Address(String),
    /// The server stopped by itself.
    #[error("the gRPC server failed")]
    Serve(#[source] tonic::transport::Error),
}

/// Listens on `address`; port 0 takes a free one, which the listener tells.
///
/// # Errors
/// [`GrpcError::Bind`].
pub async fn bind(address: SocketAddr) -> Result<TcpListener, GrpcError> {
    TcpListener::bind(address).await.map_err(|source| GrpcError::Bind { address, source })
}

/// Serves `routes` until `shutdown` resolves, then lets open streams end for at most `grace`.
///
/// # Errors
/// [`GrpcError::Serve`] if the listener breaks.
pub async fn serve(
    config: &GrpcConfig,
    listener: TcpListener,
    routes: Routes,
    shutdown: impl Future<Output = ()> + Send,
    grace: Duration,
) -> Result<(), GrpcError> {
    let incoming = incoming(listener, Limits::default());
    let (stopping, stopped) = tokio::sync::oneshot::channel::<()>();
    let signal = async {
        shutdown.await;
        let _ = stopping.send(());
    };
    let server = Server::builder()
        .http2_keepalive_interval(Some(config.keepalive))
        .http2_keepalive_timeout(Some(config.keepalive_timeout))
        .max_concurrent_streams(config.streams_max)
        .add_routes(routes)
        .serve_with_incoming_shutdown(incoming, signal);
    let overdue = async {
        if stopped.await.is_err() {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(grace).await;
    };
    tokio::select! {
        result = server => result.map_err(GrpcError::Serve),
        () = overdue => Ok(()),
    }
}

/// A channel to `address` (`host:port`) that connects when first used and again after it broke.
///
/// # Errors
/// [`GrpcError::Address`].
pub fn channel(config: &GrpcConfig, address: &str) -> Result<Channel, GrpcError> {
    let refused = || GrpcError::Address(address.to_owned());
    let valid = address.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    if !valid {
        return Err(refused());
    }
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|_| refused())?;
    Ok(endpoint
        .connect_timeout(config.connect_timeout)
        .http2_keep_alive_interval(config.keepalive)
        .keep_alive_timeout(config.keepalive_timeout)
        .keep_alive_while_idle(true)
        .tcp_nodelay(true)
        .connect_lazy())
}

/// When a request that gives itself `wire_ms` milliseconds must be over; 0 asks for `default`, and `max` caps it.
#[must_use]
pub fn deadline(now: Instant, wire_ms: u64, default: Duration, max: Duration) -> Instant {
    let asked = if wire_ms == 0 { default } else { Duration::from_millis(wire_ms) };
    now + asked.min(max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn addresses_are_checked_before_anything_connects() {
        let config = GrpcConfig::default();
        assert!(channel(&config, "127.0.0.1:80").is_ok());
        assert!(channel(&config, "[::1]:80").is_ok());
        for bad in ["", "host", "host:", ":1", "host:70000", "a b:1", "http://x:1/y z:1"] {
            assert!(matches!(channel(&config, bad), Err(GrpcError::Address(_))), "{bad}");
        }
    }

    #[test]
    fn a_deadline_is_capped_and_never_overflows() {
        let (now, default, max) = (Instant::now(), Duration::from_secs(60), Duration::from_secs(600));
        assert_eq!(deadline(now, 0, default, max), now + default);
        assert_eq!(deadline(now, 5, default, max), now + Duration::from_millis(5));
        assert_eq!(deadline(now, u64::MAX, default, max), now + max);
    }
}
