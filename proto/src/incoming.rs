//! How every gRPC server here takes connections: a bounded number, none that stays silent, no spinning on errors.
//!
//! It lives beside the contract because the conductor and the nodes share no other crate that knows tonic. HTTP/2 pings
//! find a dead peer only once the peer has sent its preface; until then the deadline here is all that ends a connection.

use std::convert::Infallible;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;
use tonic::transport::server::{Connected, TcpConnectInfo};

use crate::accept::Acceptor;

/// `PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n`, what a client says first (RFC 9113, section 3.4).
const PREFACE_BYTES: usize = 24;

/// Bounds of a listener's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Open connections; more wait in the listen queue.
    pub connections_max: usize,
    /// Time a peer has to send the HTTP/2 preface.
    pub preface_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections_max: 1024, preface_timeout: Duration::from_secs(10) }
    }
}

/// The connections of `listener`, without delay (`TCP_NODELAY`), for `serve_with_incoming_shutdown`.
pub fn incoming(listener: TcpListener, limits: Limits) -> impl Stream<Item = Result<Connection, Infallible>> + Send {
    let slots = Arc::new(Semaphore::new(limits.connections_max.min(Semaphore::MAX_PERMITS)));
    futures::stream::unfold((Acceptor::new(listener), slots), move |(mut acceptor, slots)| async move {
        // The slot first: past the bound, connections wait in the kernel's queue.
        let slot = Arc::clone(&slots).acquire_owned().await.ok()?;
        let stream = acceptor.next().await;
        let deadline = Box::pin(tokio::time::sleep(limits.preface_timeout));
        let preface = Some(Preface { bytes_left: PREFACE_BYTES, deadline });
        Some((Ok(Connection { stream, preface, _slot: slot }), (acceptor, slots)))
    })
}

/// An accepted connection: holds its slot until dropped, and ends by itself if the preface does not come in time.
pub struct Connection {
    stream: TcpStream,
    /// None once the preface has been read.
    preface: Option<Preface>,
    _slot: OwnedSemaphorePermit,
}

struct Preface {
    bytes_left: usize,
    deadline: Pin<Box<Sleep>>,
}

impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let filled = buf.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(cx, buf);
        if let Some(preface) = &mut this.preface {
            preface.bytes_left = preface.bytes_left.saturating_sub(buf.filled().len() - filled);
            if preface.bytes_left == 0 {
                this.preface = None;
            } else if read.is_pending() && preface.deadline.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use futures::StreamExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::timeout;
    use tonic::service::Routes;
    use tonic::transport::{Channel, Endpoint, Server};

    use super::*;
    use crate::v1;
    use crate::v1::conductor_client::ConductorClient;

    /// Longer than anything here takes.
    const LONG: Duration = Duration::from_secs(30);

    async fn listen() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    /// A gRPC server without services: it answers every call with `Unimplemented`.
    async fn serve(connections_max: usize, preface_timeout: Duration) -> SocketAddr {
        let (listener, address) = listen().await;
        let incoming = incoming(listener, Limits { connections_max, preface_timeout });
        tokio::spawn(Server::builder().add_routes(Routes::default()).serve_with_incoming(incoming));
        address
    }

    fn client(address: SocketAddr) -> ConductorClient<Channel> {
        ConductorClient::new(Endpoint::from_shared(format!("http://{address}")).unwrap().connect_lazy())
    }

    async fn assert_answers(client: &mut ConductorClient<Channel>) {
        let refused = timeout(LONG, client.route(v1::RouteRequest::default())).await.expect("no answer").unwrap_err();
        assert_eq!(refused.code(), tonic::Code::Unimplemented, "{refused}");
    }

    /// Reads what the server says (its settings) until it closes.
    async fn assert_ends(stream: &mut TcpStream) {
        let mut said = Vec::new();
        // An end by reset is one too.
        let _ = timeout(LONG, stream.read_to_end(&mut said)).await.expect("the connection was kept");
    }

    #[tokio::test]
    async fn who_sends_no_preface_is_closed() {
        let address = serve(8, Duration::from_millis(100)).await;
        let mut silent = TcpStream::connect(address).await.unwrap();
        let mut stuck = TcpStream::connect(address).await.unwrap();
        stuck.write_all(b"PRI * HTTP").await.unwrap();
        assert_ends(&mut silent).await;
        assert_ends(&mut stuck).await;
    }

    #[tokio::test]
    async fn a_client_works_beside_silent_connections_and_outlives_their_deadline() {
        let address = serve(64, Duration::from_millis(300)).await;
        let mut silent = Vec::new();
        for _ in 0..32 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let mut client = client(address);
        assert_answers(&mut client).await;
        for stream in &mut silent {
            assert_ends(stream).await;
        }
        assert_answers(&mut client).await;
    }

    #[tokio::test]
    async fn silent_connections_make_room_for_a_client_when_their_time_is_over() {
        let address = serve(2, Duration::from_millis(200)).await;
        let _silent = [TcpStream::connect(address).await.unwrap(), TcpStream::connect(address).await.unwrap()];
        assert_answers(&mut client(address)).await;
    }

    #[tokio::test]
    async fn the_limit_holds_and_a_closed_connection_makes_room() {
        let (listener, address) = listen().await;
        let mut incoming = Box::pin(incoming(listener, Limits { connections_max: 2, preface_timeout: LONG }));
        let mut peers = Vec::new();
        for _ in 0..3 {
            peers.push(TcpStream::connect(address).await.unwrap());
        }
        let first = timeout(LONG, incoming.next()).await.unwrap();
        let _second = timeout(LONG, incoming.next()).await.unwrap();
        assert!(timeout(Duration::from_millis(100), incoming.next()).await.is_err(), "a third was taken");
        drop(first);
        assert!(timeout(LONG, incoming.next()).await.expect("no room was made").is_some());
    }
}
