//! The protocol spoken by hand, by someone who means no good.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use kvrail_transfer::TransportKind;

pub const MAGIC: [u8; 4] = *b"kvr\x01";

/// A message with its prefix.
pub fn message(body: &[u8]) -> Vec<u8> {
    [&MAGIC[..], &(body.len() as u32).to_le_bytes(), body].concat()
}

/// The first word of somebody on another host, who listens on port 1.
pub fn hello(versions: (u16, u16), generation: u64) -> Vec<u8> {
    hello_from(([9; 16], 0), versions, generation, TransportKind::Tcp)
}

/// The first word of somebody who listens on port 1 of a host (its boot, and a user there) and wants one stream of `kind`.
pub fn hello_from(host: ([u8; 16], u32), versions: (u16, u16), generation: u64, kind: TransportKind) -> Vec<u8> {
    let mut body = vec![1];
    body.extend(versions.0.to_le_bytes());
    body.extend(versions.1.to_le_bytes());
    body.extend(generation.to_le_bytes());
    body.extend(host.0);
    body.extend(host.1.to_le_bytes());
    body.extend(1u16.to_le_bytes());
    body.extend([1 << kind_byte(kind), 1]);
    message(&body)
}

pub fn kind_byte(kind: TransportKind) -> u8 {
    u8::from(kind == TransportKind::Tcp)
}

pub fn dial(address: SocketAddr) -> TcpStream {
    let socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket.set_nodelay(true).unwrap();
    socket
}

/// The next message's body; `None` when the other side has closed.
pub fn read_message(socket: &mut impl Read) -> Option<Vec<u8>> {
    let mut prefix = [0; 8];
    socket.read_exact(&mut prefix).ok()?;
    assert_eq!(prefix[..4], MAGIC);
    let mut body = vec![0; u32::from_le_bytes(prefix[4..].try_into().unwrap()) as usize];
    socket.read_exact(&mut body).ok()?;
    Some(body)
}

/// Whether the other side closes within the read timeout, whatever it says before.
pub fn closes(socket: &mut impl Read) -> bool {
    let mut sink = [0; 4096];
    loop {
        match socket.read(&mut sink) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

/// A session by hand: control connection, session number, token.
pub fn session(address: SocketAddr, generation: u64) -> (TcpStream, u64, [u8; 16]) {
    let (control, welcome) = welcome(address, &hello((1, 1), generation));
    (control, welcome.session, welcome.token)
}

/// What a session's welcome says.
pub struct Welcome {
    pub session: u64,
    pub token: [u8; 16],
    /// Name of the listener for shared-memory streams.
    pub unix: Vec<u8>,
}

/// A session after any first word: its control connection, and its welcome.
pub fn welcome(address: SocketAddr, hello: &[u8]) -> (TcpStream, Welcome) {
    let mut control = dial(address);
    control.write_all(hello).unwrap();
    assert_eq!(read_message(&mut control).unwrap()[0], 2, "offer");
    control.write_all(&message(&[&[3][..], &0u64.to_le_bytes()].concat())).unwrap();
    let body = read_message(&mut control).unwrap();
    assert_eq!(body[0], 4, "welcome");
    let session = u64::from_le_bytes(body[1..9].try_into().unwrap());
    (control, Welcome { session, token: body[9..25].try_into().unwrap(), unix: body[27..].to_vec() })
}

pub fn stream_hello(session: u64, token: [u8; 16], incarnation: u32) -> Vec<u8> {
    stream_hello_of(TransportKind::Tcp, session, token, incarnation)
}

pub fn stream_hello_of(kind: TransportKind, session: u64, token: [u8; 16], incarnation: u32) -> Vec<u8> {
    let mut body = vec![8];
    body.extend(session.to_le_bytes());
    body.extend(token);
    body.extend([kind_byte(kind), 0]);
    body.extend(incarnation.to_le_bytes());
    message(&body)
}

/// A data stream by hand.
pub fn stream(address: SocketAddr, session: u64, token: [u8; 16], incarnation: u32) -> TcpStream {
    let mut socket = dial(address);
    socket.write_all(&stream_hello(session, token, incarnation)).unwrap();
    assert_eq!(read_message(&mut socket).unwrap(), [9], "stream welcome");
    socket
}

/// A frame's head, open to any change before it is sealed.
pub struct Head {
    pub bytes: Vec<u8>,
}

/// Fields of a ticket, in its order: generation, lease, key.
pub fn fields(ticket: &[u8]) -> [u64; 3] {
    [6, 14, 22].map(|at| u64::from_le_bytes(ticket[at..at + 8].try_into().unwrap()))
}

impl Head {
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

    pub fn with(mut self, at: usize, value: &[u8]) -> Self {
        self.bytes[at..at + value.len()].copy_from_slice(value);
        self
    }

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
pub fn read_ack(socket: &mut impl Read) -> (u64, u32) {
    let mut head = [0; 64];
    socket.read_exact(&mut head).unwrap();
    assert_eq!((head[0], head[2]), (6, 1), "one acknowledgement");
    let mut entry = [0; 12];
    socket.read_exact(&mut entry).unwrap();
    (u64::from_le_bytes(entry[..8].try_into().unwrap()), u32::from_le_bytes(entry[8..].try_into().unwrap()))
}
