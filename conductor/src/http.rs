//! An HTTP/1.1 server with bounds: connections, time and size of a request's head, time to drain.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_io_timeout::TimeoutStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::Service;

/// Bounds of a server.
#[derive(Clone, Copy, Debug)]
pub struct HttpConfig {
    /// Open connections; more wait in the listen queue.
    pub connections_max: usize,
    /// Time a client has to send a request's head; also how long an idle connection is kept.
    pub head_timeout: Duration,
    /// Largest request head in bytes.
    pub head_bytes_max: usize,
    /// Time for which a client may take nothing of what is to be sent to it; its connection ends then, and with it what it
    /// asked for.
    pub write_timeout: Duration,
}

impl Default for HttpConfig {
    fn default() -> Self {
        let patience = Duration::from_secs(30);
        Self { connections_max: 1024, head_timeout: patience, head_bytes_max: 64 << 10, write_timeout: patience }
    }
}

/// Pause after a failed accept (no file descriptors, say), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until `stop`, then lets open requests end until `cut`.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    config: HttpConfig,
    stop: CancellationToken,
    cut: CancellationToken,
) {
    let slots = Arc::new(Semaphore::new(config.connections_max));
    let connections = TaskTracker::new();
    loop {
        // The slot first: past the bound, connections wait in the kernel's queue.
        let slot = tokio::select! {
            slot = Arc::clone(&slots).acquire_owned() => slot,
            () = stop.cancelled() => break,
        };
        let Ok(slot) = slot else { break };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => break,
        };
        match accepted {
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
            Ok((stream, _)) => {
                let (router, stop, cut) = (router.clone(), stop.clone(), cut.clone());
                connections.spawn(async move {
                    tokio::select! {
                        () = connection(stream, router, config, stop) => {}
                        () = cut.cancelled() => {}
                    }
                    drop(slot);
                });
            }
        }
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

async fn connection(stream: TcpStream, router: Router, config: HttpConfig, stop: CancellationToken) {
    let _ = stream.set_nodelay(true);
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(config.write_timeout));
    let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| router.clone().call(request));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(config.head_timeout)
        .max_buf_size(config.head_bytes_max)
        .serve_connection(TokioIo::new(Box::pin(stream)), service);
    let mut connection = std::pin::pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "connection ended");
    }
}
