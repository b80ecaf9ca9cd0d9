//! Shared memory of one host: regions exported over Unix streams, slices announced through a ring beside each.
//!
//! **Heads go through memory** (`ring`), the socket is for what memory cannot do: it passes descriptors, its end says that the peer has died, and
//! a byte over it wakes who sleeps. Its first message has the descriptor of the sender's half of the ring. The descriptor of a region goes before
//! the frame that names it, so whoever reads that frame finds it there.
//!
//! **The receiver copies.** The sender of bytes exports its memfd (read-only descriptor, sealed against shrinking) and
//! names ranges; whoever owns the destination checks its own lease and copies under a pin of it. So revocation is local:
//! a sender that is frozen, dead or lying can delay nothing and write nothing.
//!
//! A read works the other way round: the reader copies out of the owner's memfd, then asks the owner whether the lease
//! held until then. Exported memory can be read by that peer for as long as the stream lives; it runs under the same user.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;

use crate::memory::{Mapping, MemoryError};
use crate::transport::Owner;
use crate::transport::ring::Ring;
use crate::transport::stream::Stream;

/// Regions that one side exports over a stream at a time. Both sides forget the oldest by the same rule.
pub(crate) const EXPORTS_MAX: usize = 64;

/// The ring of a stream, and the regions that were exported and imported over it.
pub(crate) struct Exchange {
    pub(crate) ring: Ring,
    /// Our half's descriptor, until the peer has it.
    pub(crate) card: Option<OwnedFd>,
    /// The socket has ended: nothing is put into the ring any more.
    pub(crate) ended: bool,
    exported: VecDeque<u64>,
    imported: VecDeque<(u64, Arc<Mapping>)>,
}

impl Exchange {
    fn new() -> Result<Self, MemoryError> {
        let (ring, card) = Ring::new()?;
        let (exported, imported) = (VecDeque::new(), VecDeque::new());
        Ok(Self { ring, card: Some(card), ended: false, exported, imported })
    }

    /// Notes that `region` is to be exported; false if the peer has it.
    pub(crate) fn note_export(&mut self, region: u64) -> bool {
        if self.exported.contains(&region) {
            return false;
        }
        if self.exported.len() >= EXPORTS_MAX {
            self.exported.pop_front();
        }
        self.exported.push_back(region);
        true
    }

    /// Maps a region of the peer.
    pub(crate) fn import(&mut self, region: u64, len: u64, fd: &OwnedFd) -> Result<(), &'static str> {
        let len = usize::try_from(len).map_err(|_| "an exported region of impossible length")?;
        let mapping = Mapping::of_peer(fd, len).map_err(|_| "an exported region that cannot be mapped safely")?;
        if self.imported.iter().any(|(id, _)| *id == region) {
            return Err("a region that was exported already");
        }
        if self.imported.len() >= EXPORTS_MAX {
            self.imported.pop_front();
        }
        self.imported.push_back((region, Arc::new(mapping)));
        Ok(())
    }

    /// A region that the peer exported.
    pub(crate) fn imported(&self, region: u64) -> Option<Arc<Mapping>> {
        self.imported.iter().rev().find(|(id, _)| *id == region).map(|(_, m)| Arc::clone(m))
    }
}

/// A rail over a connected Unix stream.
pub(crate) fn rail(socket: OwnedFd, owner: Arc<Owner>) -> Result<Stream, MemoryError> {
    Ok(Stream::new(socket, owner, Some(Exchange::new()?), None))
}

/// User of the process at the other end.
pub(crate) fn peer_user(socket: &UnixStream) -> Option<u32> {
    rustix::net::sockopt::socket_peercred(socket).ok().map(|c| c.uid.as_raw())
}

/// A listener that leaves no file: its name lives in the kernel's abstract namespace, and is random.
pub(crate) fn listen() -> io::Result<(UnixListener, Vec<u8>)> {
    let token = crate::random::token();
    let name: Vec<u8> = b"kvrail-".iter().copied().chain(token.iter().flat_map(|b| hex(*b))).collect();
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
    listener.set_nonblocking(true)?;
    Ok((listener, name))
}

fn hex(byte: u8) -> [u8; 2] {
    [byte >> 4, byte & 15].map(|n| b"0123456789abcdef"[usize::from(n)])
}

/// Connects to a peer's listener; it answers at once or not at all.
pub(crate) fn connect(name: &[u8]) -> io::Result<OwnedFd> {
    if name.is_empty() {
        return Err(io::ErrorKind::NotFound.into());
    }
    let socket = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Tells the other end that nothing more comes; it will close when it has served what came.
pub(crate) fn say_farewell(socket: &OwnedFd) {
    // An error means that the other end is gone, which its end-of-file says as well.
    let _ = socket2::SockRef::from(socket).shutdown(std::net::Shutdown::Write);
}
