//! A shared-memory stream's ring by hand: written and read as files, without a line of the engine's.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};

/// Bytes of data, and where they begin.
pub const DATA: u64 = 64 << 10;
const DATA_AT: u64 = 4096;
/// Where a slate says how much its owner has put, and how much it has taken.
pub const PUT_AT: u64 = 0;
pub const TAKEN_AT: u64 = 128;

/// Both slates of a stream.
pub struct Slates {
    /// Ours. What it says may be false.
    pub mine: File,
    theirs: File,
    put: u64,
    taken: u64,
}

/// A memfd of so many bytes that cannot shrink.
pub fn sealed(len: u64) -> OwnedFd {
    let file = rustix::fs::memfd_create("by hand", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&file, len).unwrap();
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    file
}

/// Sends a descriptor.
pub fn pass(socket: impl AsFd, file: BorrowedFd<'_>) {
    let fds = [file];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut passed = SendAncillaryBuffer::new(&mut space);
    assert!(passed.push(SendAncillaryMessage::ScmRights(&fds)));
    rustix::net::sendmsg(socket, &[IoSlice::new(&[0])], &mut passed, SendFlags::empty()).unwrap();
}

/// The first descriptor that comes.
fn passed(socket: impl AsFd) -> OwnedFd {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let (mut taken, mut bell) = (RecvAncillaryBuffer::new(&mut space), [0; 1]);
    rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut bell)], &mut taken, RecvFlags::CMSG_CLOEXEC).unwrap();
    let rights = taken.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    rights.expect("a descriptor")
}

impl Slates {
    /// Introduces ourselves over a stream's socket.
    pub fn exchange(socket: impl AsFd) -> Self {
        let mine = sealed(DATA_AT + DATA);
        pass(&socket, mine.as_fd());
        Self { mine: mine.into(), theirs: passed(&socket).into(), put: 0, taken: 0 }
    }

    /// Puts a head into our ring, and rings.
    ///
    /// # Errors
    /// The other side has closed the stream.
    pub fn put(&mut self, socket: &mut impl Write, head: &[u8]) -> io::Result<()> {
        for (byte, at) in head.iter().zip(self.put..) {
            self.mine.write_all_at(&[*byte], DATA_AT + at % DATA)?;
        }
        self.put += head.len() as u64;
        self.mine.write_all_at(&self.put.to_le_bytes(), PUT_AT)?;
        socket.write_all(&[0])
    }

    /// Takes so many bytes, when they are there.
    pub fn take(&mut self, len: usize) -> Vec<u8> {
        let since = Instant::now();
        let mut word = [0; 8];
        loop {
            self.theirs.read_exact_at(&mut word, PUT_AT).unwrap();
            if u64::from_le_bytes(word) >= self.taken + len as u64 {
                break;
            }
            assert!(since.elapsed() < Duration::from_secs(10), "nothing comes");
            std::thread::sleep(Duration::from_micros(100));
        }
        let mut bytes = vec![0; len];
        for (byte, at) in bytes.iter_mut().zip(self.taken..) {
            self.theirs.read_exact_at(std::slice::from_mut(byte), DATA_AT + at % DATA).unwrap();
        }
        self.taken += len as u64;
        self.mine.write_all_at(&self.taken.to_le_bytes(), TAKEN_AT).unwrap();
        bytes
    }
}
