//! Messages over a non-blocking socket, read exactly: what follows the last one stays in the socket for its next owner.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::session::wire::{Message, PREFIX_BYTES};
use crate::transport::sys;

/// Unsent bytes at which the other side counts as gone: it does not read.
pub(crate) const BACKLOG_MAX: usize = 1 << 20;

/// Why a pipe has ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PipeError {
    #[error("closed by the peer")]
    Closed,
    #[error("not a message of this protocol")]
    NotOurs,
    #[error("the peer does not read")]
    Backlog,
    #[error(transparent)]
    Os(#[from] io::Error),
}

pub(crate) struct Pipe {
    socket: OwnedFd,
    input: Vec<u8>,
    output: Vec<u8>,
}

impl Pipe {
    /// Over a socket that is non-blocking, or used as if it were.
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self { socket, input: Vec::new(), output: Vec::new() }
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    pub(crate) fn into_socket(self) -> OwnedFd {
        self.socket
    }

    /// Whether everything has been handed to the kernel.
    pub(crate) fn is_flushed(&self) -> bool {
        self.output.is_empty()
    }

    /// Queues a message and sends what the socket takes.
    pub(crate) fn send(&mut self, message: &Message) -> Result<(), PipeError> {
        if self.output.len() > BACKLOG_MAX {
            return Err(PipeError::Backlog);
        }
        self.output.extend_from_slice(&message.encode());
        self.flush()
    }

    pub(crate) fn flush(&mut self) -> Result<(), PipeError> {
        while !self.output.is_empty() {
            match sys::send_bytes(self.socket.as_raw_fd(), &self.output)? {
                Some(sent) => drop(self.output.drain(..sent)),
                None => break,
            }
        }
        Ok(())
    }

    /// The next whole message, if it is there.
    pub(crate) fn receive(&mut self) -> Result<Option<Message>, PipeError> {
        loop {
            let wanted = match self.input.first_chunk::<PREFIX_BYTES>() {
                None => PREFIX_BYTES,
                Some(prefix) => PREFIX_BYTES + Message::body_len(prefix).map_err(|_| PipeError::NotOurs)?,
            };
            let have = self.input.len();
            if have == wanted && have > PREFIX_BYTES {
                let message = Message::decode(&self.input[PREFIX_BYTES..]).map_err(|_| PipeError::NotOurs)?;
                self.input.clear();
                return Ok(Some(message));
            }
            self.input.resize(wanted, 0);
            match sys::recv_bytes(self.socket.as_raw_fd(), &mut self.input[have..]) {
                Ok(Some(0)) => return Err(PipeError::Closed),
                Ok(Some(n)) => self.input.truncate(have + n),
                Ok(None) => {
                    self.input.truncate(have);
                    return Ok(None);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}
