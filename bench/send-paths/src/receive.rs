//! The receiving side: blocks into their places.

use std::io::{self, IoSliceMut, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;

use io_uring::{IoUring, opcode, types};

use crate::{BLOCK, GATHER, POOL, ROUND, Result, cpu, order, send};

/// First word on the command line of a process that receives.
pub const ROLE: &str = "--receive";

/// Receives rounds until who started this process closes its input.
pub fn serve(host: &str) -> Result<()> {
    let listener = TcpListener::bind((host, 0))?;
    println!("{}", listener.local_addr()?.port());
    std::thread::spawn(|| {
        let _ = io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    let mut pool = vec![0u8; POOL];
    loop {
        let (mut socket, _) = listener.accept()?;
        send::set_up(&socket)?;
        let mut by_ring = [0];
        socket.read_exact(&mut by_ring)?;
        pool.fill(0);
        socket.write_all(&[0; 8])?;
        let before = cpu();
        if by_ring[0] == 1 {
            ring(&socket, &mut pool)?
        } else {
            plain(&socket, &mut pool)?
        }
        socket.write_all(&(cpu() - before).to_bits().to_le_bytes())?;
        socket.write_all(&crc32fast::hash(&pool).to_le_bytes())?;
    }
}

/// Calls `read` with the places of each gather list until it is full.
fn fill(pool: &mut [u8], mut read: impl FnMut(&mut [IoSliceMut<'_>]) -> io::Result<usize>) -> io::Result<()> {
    for pass in 0..ROUND / POOL {
        let places: Vec<usize> = order(pass).collect();
        for places in places.chunks(GATHER) {
            let base = pool.as_mut_ptr();
            let place = |at: &usize| {
                // SAFETY: the places of one pass are blocks of the pool, each once, so no two of these slices overlap; `pool` is
                // borrowed for as long as they are used.
                IoSliceMut::new(unsafe { std::slice::from_raw_parts_mut(base.add(*at), BLOCK) })
            };
            let mut list: Vec<_> = places.iter().map(place).collect();
            let mut left = &mut list[..];
            while !left.is_empty() {
                match read(left)? {
                    0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                    read => IoSliceMut::advance_slices(&mut left, read),
                }
            }
        }
    }
    Ok(())
}

fn plain(mut socket: &TcpStream, pool: &mut [u8]) -> io::Result<()> {
    fill(pool, |left| socket.read_vectored(left))
}

fn ring(socket: &TcpStream, pool: &mut [u8]) -> io::Result<()> {
    let mut ring = IoUring::new(8)?;
    let fd = types::Fd(socket.as_raw_fd());
    fill(pool, |left| {
        // SAFETY: a message header of zeros is one of nothing; an `IoSliceMut` is laid out as an `iovec`, by its contract.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = left.as_mut_ptr().cast();
        message.msg_iovlen = left.len();
        let entry = opcode::RecvMsg::new(fd, &raw mut message).build();
        // SAFETY: header, list and places live until the completion, which is awaited here.
        unsafe { ring.submission().push(&entry) }.map_err(io::Error::other)?;
        ring.submit_and_wait(1)?;
        let done = ring.completion().next().ok_or(io::ErrorKind::UnexpectedEof)?.result();
        usize::try_from(done).map_err(|_| io::Error::from_raw_os_error(-done))
    })
}
