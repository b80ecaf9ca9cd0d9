//! An HTTP/1.1 server with bounds: connections, time and size of a request's head, time to drain.
//!
//! Map: `waiting` which connections yield when places are short · `body` tells when a connection has a whole request, and
//! when its answer is out.

mod body;
mod waiting;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use kvrail_proto::accept::Acceptor;
use metrics::Gauge;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_io_timeout::TimeoutStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::Service;

use body::Tracked;
use waiting::{Connection, Waiting};

/// Bounds of a server.
#[derive(Clone, Copy, Debug)]
pub struct HttpConfig {
    /// Open connections. Past it, the one that has waited longest for its client yields; where all are at work, more wait
    /// in the listen queue.
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

/// Time a connection that was told to yield has for it.
const YIELDS_WITHIN: Duration = Duration::from_millis(50);

/// Serves until `stop`, then lets open requests end until `cut`. `open` shows the number of connections.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    config: HttpConfig,
    open: Gauge,
    stop: CancellationToken,
    cut: CancellationToken,
) {
    let slots = Arc::new(Semaphore::new(config.connections_max));
    let waiting = Waiting::default();
    let connections = TaskTracker::new();
    let mut acceptor = Acceptor::new(listener);
    loop {
        // The slot first: past the bound, connections wait in the kernel's queue.
        let next = async { (slot(&slots, &waiting).await, acceptor.next().await) };
        let (slot, stream) = tokio::select! {
            next = next => next,
            () = stop.cancelled() => break,
        };
        let (router, stop, cut, open) = (router.clone(), stop.clone(), cut.clone(), open.clone());
        let place = Arc::new(waiting.enter());
        open.increment(1.0);
        connections.spawn(async move {
            tokio::select! {
                () = connection(stream, router, config, Arc::clone(&place), stop) => {}
                () = place.yields() => {}
                () = cut.cancelled() => {}
            }
            open.decrement(1.0);
            drop(slot);
        });
    }
    drop(acceptor);
    connections.close();
    connections.wait().await;
}

/// A slot for one more connection, which another may have to yield.
async fn slot(slots: &Arc<Semaphore>, waiting: &Waiting) -> Option<OwnedSemaphorePermit> {
    loop {
        if let Ok(slot) = Arc::clone(slots).try_acquire_owned() {
            return Some(slot);
        }
        let again = waiting.make_room(Instant::now()).err().unwrap_or(YIELDS_WITHIN);
        if let Ok(slot) = tokio::time::timeout(again, Arc::clone(slots).acquire_owned()).await {
            return slot.ok();
        }
    }
}

async fn connection(
    stream: TcpStream,
    router: Router,
    config: HttpConfig,
    place: Arc<Connection>,
    stop: CancellationToken,
) {
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(config.write_timeout));
    let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
        let (mut router, place) = (router.clone(), Arc::clone(&place));
        async move {
            let response = router.call(request.map(|body| Tracked::request(body, Arc::clone(&place)))).await?;
            Ok::<_, Infallible>(response.map(|body| Tracked::response(body, place)))
        }
    });
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
