//! Heads through the ring, and what the socket beside it says.

use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd};

use crate::transport::RailError;
use crate::transport::ring::Impossible;
use crate::transport::shm::EXPORTS_MAX;
use crate::transport::stream::Stream;
use crate::transport::stream::tx::Keep;
use crate::transport::sys::{self, IoVec, Received};

/// What is said over the socket is that something is said; which byte does not matter.
const BELL: [u8; 1] = [0];
/// Receive calls before the ring gets its turn: who rings without end keeps nobody from it.
const CALLS_MAX: usize = 16;

impl From<Impossible> for RailError {
    fn from(_: Impossible) -> Self {
        Self::Protocol("counts of a ring that cannot be")
    }
}

impl Stream {
    /// Takes what the socket has: descriptors, bells, its end.
    pub(super) fn hear(&mut self) -> Result<(), RailError> {
        let Some(shm) = &mut self.shm else { return Ok(()) };
        for _ in 0..CALLS_MAX {
            // More of them are taken when the heads that name these have been served.
            if !self.rx.readable || self.rx.fds.len() >= EXPORTS_MAX {
                break;
            }
            let (mut none, mut bells) = (IoVec::default(), [0; 256]);
            // SAFETY: there are no ranges; the tail is a live local.
            match unsafe { sys::recv(self.fd.as_raw_fd(), &mut none, &mut bells, Some(&mut self.rx.fds)) } {
                Ok(None) => self.rx.readable = false,
                Ok(Some(Received { staged: 0, .. })) => (self.rx.readable, shm.ended) = (false, true),
                // Closed with bells unread. What it had put counts as well.
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                    (self.rx.readable, shm.ended) = (false, true);
                }
                // Read until it is empty: its end may have been told of together with what came before.
                Ok(Some(Received { .. })) => {}
                Err(error) => return Err(error.into()),
            }
            if !shm.ring.is_joined() && !self.rx.fds.is_empty() {
                let card = self.rx.fds.remove(0);
                shm.ring.join(&card).map_err(|_| RailError::Protocol("a ring that cannot be mapped safely"))?;
            }
        }
        Ok(())
    }

    /// The next descriptor that came, which is sent before the frame that it is for.
    pub(super) fn passed(&mut self) -> Result<Option<std::os::fd::OwnedFd>, RailError> {
        if self.rx.fds.is_empty() {
            self.rx.readable = true;
            self.hear()?;
        }
        Ok((!self.rx.fds.is_empty()).then(|| self.rx.fds.remove(0)))
    }

    /// Puts heads into the ring while there is room, each after the descriptor that it names. True: call again.
    pub(super) fn transmit_heads(&mut self) -> Result<bool, RailError> {
        let Some(shm) = &mut self.shm else { return Ok(false) };
        if let Some(card) = &shm.card {
            if !self.tx.writable || !pass(self.fd.as_raw_fd(), card.as_raw_fd())? {
                self.tx.writable = false;
                return Ok(self.rx.readable);
            }
            shm.card = None;
        }
        loop {
            self.tx.flush_acks();
            let Some(frame) = self.tx.queue.front_mut() else { break };
            if let (Keep::Export(region), false) = (&frame.keep, frame.started) {
                let Some(file) = region.share().filter(|_| self.tx.writable) else { break };
                if !pass(self.fd.as_raw_fd(), file.as_fd().as_raw_fd())? {
                    self.tx.writable = false;
                    break;
                }
            }
            frame.started = true;
            let left = frame.iov.left();
            let put = shm.ring.put(&frame.head[frame.head.len() - left..])?;
            frame.iov.advance(put);
            if put < left {
                break;
            }
            if let Some(frame) = self.tx.queue.pop_front() {
                self.tx.recycle(frame);
            }
        }
        if shm.ring.is_to_ring() {
            // Full of bells it will be read, and broken it is heard to have ended.
            let _ = sys::send_bytes(self.fd.as_raw_fd(), &BELL);
        }
        // What did not fit is for when the ring calls, or the socket may be written.
        Ok(self.rx.readable)
    }
}

/// Sends a descriptor; false: not now.
fn pass(socket: std::os::fd::RawFd, file: std::os::fd::RawFd) -> Result<bool, RailError> {
    let (bell, mut iov) = (BELL, IoVec::default());
    iov.push(bell.as_ptr().cast_mut(), bell.len());
    // SAFETY: one range, a live local.
    Ok(unsafe { sys::send(socket, &mut iov, Some(file)) }?.is_some())
}
