//! TCP streams: the payload follows its frame and is received straight into place.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};

use crate::session::TcpRail;
use crate::session::inflow::Inflow;
use crate::transport::Owner;
use crate::transport::stream::Stream;

/// Socket buffers, in bytes: two slices each way. The kernel caps them by its own limits.
const BUFFER_BYTES: usize = 4 << 20;
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

/// Sets what a data or control socket wants: no Nagle delay, and an end of its own when the peer's host falls silent.
pub(crate) fn tune(socket: &Socket, silence: Duration) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_user_timeout(Some(silence))?;
    // The kernel counts these in whole seconds.
    let probe = silence.max(Duration::from_secs(1));
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(probe).with_interval(probe))
}

/// Gives a data socket its buffers, and on loopback a congestion control that does not pace: pacing timers cost a third
/// of the throughput there (measured with bbr as the system's default), and there is no queue to protect.
/// Elsewhere the one that was asked for, if any.
pub(crate) fn tune_data(socket: &Socket, loopback: bool, congestion: Option<&str>) -> io::Result<()> {
    socket.set_send_buffer_size(BUFFER_BYTES)?;
    socket.set_recv_buffer_size(BUFFER_BYTES)?;
    if let Some(name) = congestion {
        return socket.set_tcp_congestion(name.as_bytes());
    }
    if loopback && let Err(error) = socket.set_tcp_congestion(b"cubic") {
        tracing::debug!(%error, "cubic is not to be had, the system's congestion control stays");
    }
    Ok(())
}

/// An unconnected socket.
pub(crate) fn socket(address: SocketAddr) -> io::Result<Socket> {
    Socket::new(Domain::for_address(address), Type::STREAM.cloexec(), Some(Protocol::TCP))
}

impl TcpRail {
    /// An unconnected socket that stays on the rail: bound to its address, and to its interface where one is named.
    ///
    /// # Errors
    /// The address or the interface is none of this machine.
    pub fn socket(&self) -> io::Result<Socket> {
        let address = SocketAddr::new(self.address, 0);
        let socket = socket(address)?;
        if let Some(device) = &self.device {
            socket.bind_device(Some(device.as_bytes()))?;
        }
        socket.bind(&address.into())?;
        Ok(socket)
    }
}

/// A listener of a rail. What it accepts stays on the rail, too.
pub(crate) fn listen(rail: &TcpRail) -> io::Result<TcpListener> {
    let socket = rail.socket()?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// A rail over a connected stream. `inflow` counts what comes in over it.
pub(crate) fn rail(socket: OwnedFd, owner: Arc<Owner>, inflow: Option<Arc<Inflow>>) -> Stream {
    Stream::new(socket, owner, None, inflow)
}
