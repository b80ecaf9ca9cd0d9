//! The wire protocol spoken by hand, byte for byte, by someone who means no good: for tests of what engines refuse.
//!
//! Nothing here shares code with the engine's own reading and writing of messages, so that a mistake is not made twice.
//! Calls block, for [`PATIENCE`] at most.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::transport::TransportKind;

/// How long an answer is waited for.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// What every message begins with.
pub const MAGIC: [u8; 4] = *b"kvr\x01";

/// First byte of the messages that are answers.
pub mod says {
    /// The version chosen, and who is here.
    pub const OFFER: u8 = 2;
    /// The session exists.
    pub const WELCOME: u8 = 4;
    /// Turned away; the second byte is the reason.
    pub const REFUSE: u8 = 7;
    /// The stream is taken.
    pub const STREAM_WELCOME: u8 = 9;
}

/// Second byte of a refusal.
pub mod refused {
    /// Not a message of this protocol, or one out of turn.
    pub const NOT_AN_ENGINE: u8 = 1;
    /// No version in common; the range that is spoken follows.
    pub const VERSION: u8 = 2;
    /// No transport in common.
    pub const NO_TRANSPORT: u8 = 4;
    /// The generation is the engine's own.
    pub const MYSELF: u8 = 5;
    /// No session has that number and token.
    pub const UNKNOWN_SESSION: u8 = 6;
    /// That opening of the stream is over.
    pub const FENCED: u8 = 7;
    /// Silence in the handshake.
    pub const TIMEOUT: u8 = 8;
}

/// Status of a slice in an acknowledgement.
pub mod status {
    /// It landed.
    pub const OK: u32 = 0;
    /// No lease has that number, key and generation.
    pub const STALE: u32 = 1;
    /// A range is not inside the lease.
    pub const OUTSIDE: u32 = 2;
    /// The checksum does not fit.
    pub const CORRUPT: u32 = 4;
}

/// A message with its prefix.
#[must_use]
pub fn message(body: &[u8]) -> Vec<u8> {
    [&MAGIC[..], &(body.len() as u32).to_le_bytes(), body].concat()
}

/// The first word of an engine on another host, which speaks `versions` over TCP.
#[must_use]
pub fn hello(versions: (u16, u16), generation: u64) -> Vec<u8> {
    hello_from(([9; 16], 0), versions, generation, &[TransportKind::Tcp])
}

/// The first word of an engine that listens on port 1 of a host (its boot, and a user there) and wants one stream of each of
/// `kinds`.
#[must_use]
pub fn hello_from(host: ([u8; 16], u32), versions: (u16, u16), generation: u64, kinds: &[TransportKind]) -> Vec<u8> {
    let mut body = vec![1];
    body.extend(versions.0.to_le_bytes());
    body.extend(versions.1.to_le_bytes());
    body.extend(generation.to_le_bytes());
    body.extend(host.0);
    body.extend(host.1.to_le_bytes());
    body.extend(1u16.to_le_bytes());
    body.extend([kinds.iter().fold(0, |bits, kind| bits | 1 << kind_byte(*kind)), 1]);
    message(&body)
}

fn kind_byte(kind: TransportKind) -> u8 {
    u8::from(kind == TransportKind::Tcp)
}

/// Connects to an engine.
///
/// # Errors
/// The system's.
pub fn dial(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_nodelay(true)?;
    Ok(socket)
}

/// The next message's body.
///
/// # Errors
/// The other side has closed, or said nothing, or something else.
pub fn read_message(socket: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut prefix = [0; 8];
    socket.read_exact(&mut prefix)?;
    if prefix[..4] != MAGIC {
        return Err(io::Error::other(format!("not a message: {prefix:?}")));
    }
    let mut body = vec![0; u32::from_le_bytes([prefix[4], prefix[5], prefix[6], prefix[7]]) as usize];
    socket.read_exact(&mut body)?;
    Ok(body)
}

/// Whether the other side closes in time, whatever it says before.
pub fn closes(socket: &mut impl Read) -> bool {
    let mut sink = [0; 4096];
    loop {
        match socket.read(&mut sink) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() == io::ErrorKind::ConnectionReset,
        }
    }
}

/// A session by hand.
#[derive(Debug)]
pub struct Session {
    /// Its control connection; the session lives as long as it does.
    pub control: TcpStream,
    /// Its number.
    pub id: u64,
    /// What a stream of it must show.
    pub token: [u8; 16],
    /// Name of the listener for shared-memory streams.
    pub unix: Vec<u8>,
}

/// Makes a session, as an engine on another host of that `generation`.
///
/// # Errors
/// It was not offered or not welcomed.
pub fn session(address: SocketAddr, generation: u64) -> io::Result<Session> {
    session_after(address, &hello((1, 1), generation))
}

/// Makes a session after any first word.
///
/// # Errors
/// It was not offered or not welcomed.
pub fn session_after(address: SocketAddr, hello: &[u8]) -> io::Result<Session> {
    let mut control = dial(address)?;
    control.write_all(hello)?;
    expect(&read_message(&mut control)?, says::OFFER)?;
    control.write_all(&message(&[&[3][..], &0u64.to_le_bytes()].concat()))?;
    let welcome = read_message(&mut control)?;
    expect(&welcome, says::WELCOME)?;
    let (Some(id), Some(token), Some(unix)) = (array(&welcome, 1), array(&welcome, 9), welcome.get(27..)) else {
        return Err(io::Error::other(format!("a short welcome: {welcome:?}")));
    };
    Ok(Session { control, id: u64::from_le_bytes(id), token, unix: unix.to_vec() })
}

/// What a session's peer says so as not to be given up: that it lives, and has heard nothing yet.
#[must_use]
pub fn heartbeat() -> Vec<u8> {
    message(&[10, 0, 0, 0, 0, 0, 0, 0, 0])
}

/// The generation that an engine offers a session with.
///
/// # Errors
/// It was not offered.
pub fn generation(address: SocketAddr) -> io::Result<u64> {
    let mut socket = dial(address)?;
    socket.write_all(&hello((1, 1), 5))?;
    let offer = read_message(&mut socket)?;
    expect(&offer, says::OFFER)?;
    array(&offer, 3).map(u64::from_le_bytes).ok_or_else(|| io::Error::other("a short offer"))
}

fn expect(body: &[u8], kind: u8) -> io::Result<()> {
    if body.first() == Some(&kind) {
        return Ok(());
    }
    Err(io::Error::other(format!("message {kind} was to come, not {body:?}")))
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

/// The first word on a data stream over TCP.
#[must_use]
pub fn stream_hello(session: u64, token: [u8; 16], incarnation: u32) -> Vec<u8> {
    stream_hello_of(TransportKind::Tcp, session, token, incarnation)
}

/// The first word on a data stream of `kind`.
#[must_use]
pub fn stream_hello_of(kind: TransportKind, session: u64, token: [u8; 16], incarnation: u32) -> Vec<u8> {
    let mut body = vec![8];
    body.extend(session.to_le_bytes());
    body.extend(token);
    body.extend([kind_byte(kind), 0]); // its first place
    body.extend(incarnation.to_le_bytes());
    body.push(0); // of no NIC
    message(&body)
}

/// A data stream of a session.
///
/// # Errors
/// It was not welcomed.
pub fn stream(address: SocketAddr, session: &Session, incarnation: u32) -> io::Result<TcpStream> {
    let mut socket = dial(address)?;
    socket.write_all(&stream_hello(session.id, session.token, incarnation))?;
    expect(&read_message(&mut socket)?, says::STREAM_WELCOME)?;
    Ok(socket)
}

/// Fields of a ticket, in its order: generation, lease, key.
///
/// # Panics
/// If it is shorter than a ticket is.
#[must_use]
pub fn fields(ticket: &[u8]) -> [u64; 3] {
    [6, 14, 22].map(|at| u64::from_le_bytes(array(ticket, at).expect("a ticket")))
}

/// A frame's head, open to any change before it is sealed.
#[derive(Clone, Debug)]
pub struct Head {
    /// Header and list, unsealed.
    pub bytes: Vec<u8>,
}

impl Head {
    /// A frame of `kind` about slice `id`: offsets and lengths under the lease of a ticket's [`fields`].
    #[must_use]
    pub fn new(kind: u8, id: u64, [generation, lease, key]: [u64; 3], ranges: &[(u64, u32)]) -> Self {
        let mut bytes = vec![0; 64];
        bytes[0] = kind;
        bytes[2..4].copy_from_slice(&(ranges.len() as u16).to_le_bytes());
        let sum: u32 = ranges.iter().fold(0, |s, r| s.wrapping_add(r.1));
        bytes[4..8].copy_from_slice(&sum.to_le_bytes());
        for (at, value) in [(8, id), (16, lease), (24, key), (32, generation)] {
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        for (offset, len) in ranges {
            bytes.extend(offset.to_le_bytes());
            bytes.extend(len.to_le_bytes());
        }
        Self { bytes }
    }

    /// Other bytes from `at` on.
    ///
    /// # Panics
    /// If they pass the end.
    #[must_use]
    pub fn with(mut self, at: usize, value: &[u8]) -> Self {
        self.bytes[at..at + value.len()].copy_from_slice(value);
        self
    }

    /// The frame as it is sent, with the right checksum of whatever it says.
    #[must_use]
    pub fn sealed(mut self) -> Vec<u8> {
        let mut crc = crc32fast::Hasher::new();
        crc.update(&self.bytes[..60]);
        crc.update(&self.bytes[64..]);
        let crc = crc.finalize().to_le_bytes();
        self.bytes[60..64].copy_from_slice(&crc);
        self.bytes
    }
}

/// The next acknowledgement: slice and status.
///
/// # Errors
/// The stream has ended, or something else came.
pub fn read_ack(socket: &mut impl Read) -> io::Result<(u64, u32)> {
    let mut ack = [0; 76];
    socket.read_exact(&mut ack)?;
    if (ack[0], ack[2]) != (6, 1) {
        return Err(io::Error::other(format!("not one acknowledgement: {ack:?}")));
    }
    let (slice, status) = (array(&ack, 64).unwrap_or_default(), array(&ack, 72).unwrap_or_default());
    Ok((u64::from_le_bytes(slice), u32::from_le_bytes(status)))
}
