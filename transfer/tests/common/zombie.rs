//! A sender by hand, over either transport: it sends its slices when it likes, whatever has become of its session.

use std::fs::File;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{self, UnixStream};
use std::time::Duration;

use kvrail_transfer::TransportKind;
use kvrail_transfer::testing::{
    Head, Session, closes, dial, hello_from, read_ack, read_message, session_after, stream_hello_of,
};

use super::slate::{Slates, pass, sealed};

/// Bytes of a slice, and what they all are.
pub const SLICE: u32 = 16 << 10;
const BYTE: u8 = 0xee;
/// Number of the region that it exports over shared memory.
const REGION: u64 = 77;

/// A session and a data stream of it.
pub struct Zombie {
    kind: TransportKind,
    _session: Session,
    /// Its stream.
    pub socket: File,
    /// Over shared memory.
    pub slates: Option<Slates>,
}

impl Zombie {
    /// Connects as `generation`; every zombie says that it listens on port 1, so that one takes the other's place.
    pub fn connect(kind: TransportKind, address: SocketAddr, generation: u64) -> Self {
        let mut zombie = Self::arrive(kind, address, generation);
        if kind == TransportKind::Shm {
            zombie.slates = Some(Slates::exchange(&zombie.socket));
            zombie.export();
        }
        zombie
    }

    /// Connects, and says nothing over the stream.
    pub fn arrive(kind: TransportKind, address: SocketAddr, generation: u64) -> Self {
        let session = session_after(address, &hello_from(here(), (1, 1), generation, &[kind])).unwrap();
        let socket: OwnedFd = if kind == TransportKind::Shm {
            let name = net::SocketAddr::from_abstract_name(&session.unix).unwrap();
            let socket = UnixStream::connect_addr(&name).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            socket.into()
        } else {
            dial(address).unwrap().into()
        };
        let hello = stream_hello_of(kind, session.id, session.token, 1);
        let mut zombie = Self { kind, _session: session, socket: socket.into(), slates: None };
        zombie.socket.write_all(&hello).unwrap();
        assert_eq!(read_message(&mut zombie.socket).unwrap(), [9], "stream welcome");
        zombie
    }

    /// Lends the owner memory to copy out of.
    fn export(&mut self) {
        let memory = sealed(u64::from(SLICE));
        File::from(memory.try_clone().unwrap()).write_all(&[BYTE; SLICE as usize]).unwrap();
        pass(&self.socket, memory.as_fd());
        self.say(&Head::new(7, u64::from(SLICE), [0; 3], &[]).with(40, &REGION.to_le_bytes()).sealed()).unwrap();
    }

    /// Says a head over shared memory.
    ///
    /// # Errors
    /// The owner has closed the stream.
    pub fn say(&mut self, head: &[u8]) -> io::Result<()> {
        self.slates.as_mut().expect("shared memory").put(&mut self.socket, head)
    }

    /// Sends a slice to `offset` under a lease (generation, number, key).
    ///
    /// # Errors
    /// The owner has closed the stream.
    pub fn send(&mut self, id: u64, lease: [u64; 3], offset: u64) -> io::Result<()> {
        let range = [(offset, SLICE)];
        if self.kind == TransportKind::Shm {
            let head = Head::new(2, id, lease, &range).with(40, &REGION.to_le_bytes());
            let source = 0u64.to_le_bytes();
            return self.say(&Head { bytes: [&head.bytes[..], &source].concat() }.sealed());
        }
        self.socket.write_all(&Head::new(1, id, lease, &range).sealed())?;
        self.socket.write_all(&[BYTE; SLICE as usize])
    }

    /// The owner's word on the next slice: which, and how it went.
    pub fn ack(&mut self) -> (u64, u32) {
        match &mut self.slates {
            Some(slates) => read_ack(&mut slates.take(76).as_slice()).unwrap(),
            None => read_ack(&mut self.socket).unwrap(),
        }
    }

    /// Whether the owner closes the stream.
    pub fn is_closed(&mut self) -> bool {
        closes(&mut self.socket)
    }
}

/// This boot of this host, and this process's user: without them there is no shared memory.
fn here() -> ([u8; 16], u32) {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    (u128::from_str_radix(&digits, 16).unwrap().to_be_bytes(), rustix::process::geteuid().as_raw())
}
