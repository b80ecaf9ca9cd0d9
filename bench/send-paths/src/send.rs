//! The sending side, in each way.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;

use io_uring::{IoUring, cqueue, opcode, types};
use socket2::SockRef;

use crate::{BLOCK, GATHER, ROUND, Way, order};

/// Of `linux/errqueue.h`: a completion of zero-copy sends, and that the kernel has copied after all.
const SO_EE_ORIGIN_ZEROCOPY: u8 = 5;
const SO_EE_CODE_ZEROCOPY_COPIED: u8 = 1;

/// Zero-copy sends whose memory the kernel still holds, at most.
const HELD_MAX: usize = 16;

/// Buffers of some megabytes and no pacing, as the engine has it.
pub fn set_up(socket: &TcpStream) -> io::Result<()> {
    let socket = SockRef::from(socket);
    // A kernel without it keeps its own.
    let _ = socket.set_tcp_congestion(b"cubic");
    socket.set_send_buffer_size(4 << 20)?;
    socket.set_recv_buffer_size(4 << 20)?;
    socket.set_tcp_nodelay(true)
}

/// Gather lists of a whole round.
fn lists(pool: &[u8]) -> impl Iterator<Item = Vec<IoSlice<'_>>> {
    let blocks = (0..ROUND / pool.len()).flat_map(order);
    let mut blocks = blocks.map(|at| IoSlice::new(&pool[at..at + BLOCK])).peekable();
    std::iter::from_fn(move || {
        blocks.peek()?;
        Some(blocks.by_ref().take(GATHER).collect())
    })
}

/// Sends a round; how many sends were copied though they should not be, and how many there were.
pub fn all(socket: &TcpStream, pool: &[u8], way: Way) -> io::Result<(u64, u64)> {
    match way {
        Way::Plain => plain(socket, pool).map(|()| (0, 0)),
        Way::ZeroCopy => zero_copy(socket, pool),
        Way::Ring => ring(socket, pool, false),
        Way::RingZeroCopy => ring(socket, pool, true),
    }
}

fn plain(mut socket: &TcpStream, pool: &[u8]) -> io::Result<()> {
    for mut list in lists(pool) {
        let mut left = &mut list[..];
        while !left.is_empty() {
            let sent = socket.write_vectored(left)?;
            IoSlice::advance_slices(&mut left, sent);
        }
    }
    Ok(())
}

fn message(list: &[IoSlice<'_>]) -> libc::msghdr {
    // SAFETY: a message header of zeros is one of nothing; an `IoSlice` is laid out as an `iovec`, by its contract.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = list.as_ptr().cast_mut().cast();
    message.msg_iovlen = list.len();
    message
}

fn zero_copy(socket: &TcpStream, pool: &[u8]) -> io::Result<(u64, u64)> {
    let (fd, on) = (socket.as_raw_fd(), 1i32);
    // SAFETY: the option's value is an int, which outlives the call.
    let set = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_ZEROCOPY, (&raw const on).cast(), 4) };
    if set != 0 {
        return Err(io::Error::last_os_error());
    }
    let (mut sends, mut ended, mut copied) = (0u64, 0u64, 0u64);
    for mut list in lists(pool) {
        let mut left = &mut list[..];
        while !left.is_empty() {
            let message = message(left);
            // SAFETY: the header's list is `left`, which lives through the call; the pool outlives all sends, which are awaited below.
            let sent = unsafe { libc::sendmsg(fd, &raw const message, libc::MSG_ZEROCOPY) };
            match usize::try_from(sent) {
                Ok(sent) => {
                    sends += 1;
                    IoSlice::advance_slices(&mut left, sent);
                }
                // Too much memory is held: some must come back first.
                Err(_) if io::Error::last_os_error().raw_os_error() == Some(libc::ENOBUFS) => {
                    reap(fd, &mut ended, &mut copied)?
                }
                Err(_) => return Err(io::Error::last_os_error()),
            }
        }
        while sends - ended > HELD_MAX as u64 {
            reap(fd, &mut ended, &mut copied)?;
        }
    }
    while ended < sends {
        reap(fd, &mut ended, &mut copied)?;
    }
    Ok((copied, sends))
}

/// Waits for completions in the error queue and takes those that are there.
fn reap(fd: i32, ended: &mut u64, copied: &mut u64) -> io::Result<()> {
    let mut wait = libc::pollfd { fd, events: 0, revents: 0 };
    // SAFETY: one descriptor is given, and one is there. The error queue is announced without being asked for.
    if unsafe { libc::poll(&raw mut wait, 1, 10_000) } == 0 {
        return Err(ErrorKind::TimedOut.into());
    }
    loop {
        let mut control = [0u64; 16];
        // SAFETY: a message header of zeros is one of nothing.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control);
        // SAFETY: the header names `control` and its size, and no other memory.
        if unsafe { libc::recvmsg(fd, &raw mut message, libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT) } < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == ErrorKind::WouldBlock { Ok(()) } else { Err(error) };
        }
        // SAFETY: the kernel has filled the control buffer, which is aligned for headers; one that is there is whole.
        let said = unsafe {
            let first = libc::CMSG_FIRSTHDR(&raw const message);
            (!first.is_null()).then(|| libc::CMSG_DATA(first).cast::<libc::sock_extended_err>().read_unaligned())
        };
        if let Some(said) = said.filter(|said| said.ee_origin == SO_EE_ORIGIN_ZEROCOPY) {
            let range = u64::from(said.ee_data.wrapping_sub(said.ee_info)) + 1;
            *ended += range;
            *copied += if said.ee_code & SO_EE_CODE_ZEROCOPY_COPIED == 0 { 0 } else { range };
        }
    }
}

/// Sends by io_uring. A stream's order is kept by one send at a time.
fn ring(socket: &TcpStream, pool: &[u8], zero_copy: bool) -> io::Result<(u64, u64)> {
    let mut ring = IoUring::new(64)?;
    let fd = types::Fd(socket.as_raw_fd());
    let (mut sends, mut copied, mut held) = (0u64, 0u64, VecDeque::new());
    for mut list in lists(pool) {
        let mut left = &mut list[..];
        while !left.is_empty() {
            let message = message(left);
            let entry = if zero_copy {
                // Bit 3: IORING_SEND_ZC_REPORT_USAGE, tells what was copied.
                opcode::SendMsgZc::new(fd, &raw const message).ioprio(1 << 3).build()
            } else {
                opcode::SendMsg::new(fd, &raw const message).build()
            };
            // SAFETY: header and list live until the send's own completion, which is awaited here; the pool outlives the ring.
            unsafe { ring.submission().push(&entry) }.map_err(io::Error::other)?;
            sends += 1;
            let mut sent = None;
            while sent.is_none() || held.len() > HELD_MAX {
                ring.submit_and_wait(1)?;
                for done in ring.completion() {
                    if cqueue::notif(done.flags()) {
                        held.pop_front();
                        copied += u64::from(done.result() as u32 >> 31);
                    } else {
                        sent = Some(
                            usize::try_from(done.result()).map_err(|_| io::Error::from_raw_os_error(-done.result()))?,
                        );
                        if cqueue::more(done.flags()) {
                            held.push_back(());
                        }
                    }
                }
            }
            IoSlice::advance_slices(&mut left, sent.unwrap_or_default());
        }
    }
    while !held.is_empty() {
        ring.submit_and_wait(1)?;
        for done in ring.completion() {
            held.pop_front();
            copied += u64::from(done.result() as u32 >> 31);
        }
    }
    Ok((copied, sends))
}
