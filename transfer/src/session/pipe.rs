//! Messages over a non-blocking socket. They are read exactly, as what follows the last one is its next owner's, until the pipe is told that
//! it keeps the socket: then a message costs one system call.

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

/// Bytes asked for at once by a pipe that keeps its socket.
const AHEAD: usize = 4096;

pub(crate) struct Pipe {
    socket: OwnedFd,
    input: Vec<u8>,
    /// Bytes of `input` that have been served.
    served: usize,
    output: Vec<u8>,
    keeps: bool,
    /// The socket was empty after the last receive: whoever watches it by its edges is told of what comes.
    drained: bool,
}

impl Pipe {
    /// Over a socket that is non-blocking, or used as if it were.
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self { socket, input: Vec::new(), served: 0, output: Vec::new(), keeps: false, drained: false }
    }

    /// The socket speaks messages from now on until its end, and is watched by its edges.
    pub(crate) fn keep(&mut self) {
        self.keeps = true;
    }

    /// The socket's end has been told of, perhaps together with what comes before it: it is read until then.
    pub(crate) fn end_is_near(&mut self) {
        (self.keeps, self.drained) = (false, false);
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
            let waiting = &self.input[self.served..];
            let wanted = match waiting.first_chunk::<PREFIX_BYTES>() {
                None => PREFIX_BYTES,
                Some(prefix) => PREFIX_BYTES + Message::body_len(prefix).map_err(|_| PipeError::NotOurs)?,
            };
            if waiting.len() >= wanted && wanted > PREFIX_BYTES {
                let message = Message::decode(&waiting[PREFIX_BYTES..wanted]).map_err(|_| PipeError::NotOurs)?;
                self.served += wanted;
                return Ok(Some(message));
            }
            if std::mem::take(&mut self.drained) {
                return Ok(None);
            }
            self.input.drain(..std::mem::take(&mut self.served));
            let have = self.input.len();
            let until = if self.keeps { wanted.max(AHEAD) } else { wanted };
            self.input.resize(until, 0);
            let got = sys::recv_bytes(self.socket.as_raw_fd(), &mut self.input[have..]);
            self.input.truncate(have + got.as_ref().map_or(0, |got| got.unwrap_or(0)));
            match got? {
                Some(0) => return Err(PipeError::Closed),
                Some(n) => self.drained = self.keeps && have + n < until,
                None => return Ok(None),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_pipe_that_keeps_its_socket_takes_what_is_there_and_another_one_message() {
        for keeps in [false, true] {
            let (near, mut far) = UnixStream::pair().unwrap();
            near.set_nonblocking(true).unwrap();
            let mut pipe = Pipe::new(near.into());
            if keeps {
                pipe.keep();
            }
            let messages = [Message::Heartbeat { heard: 1 }, Message::Bye, Message::Heartbeat { heard: 2 }];
            let bytes: Vec<u8> = messages.iter().flat_map(Message::encode).collect();
            far.write_all(&bytes[..bytes.len() - 1]).unwrap();
            assert_eq!(pipe.receive().unwrap(), Some(messages[0].clone()));
            let mut left = [0; 256];
            let left = rustix::net::recv(pipe.socket(), &mut left, rustix::net::RecvFlags::PEEK);
            assert_eq!(
                left.map_or(0, |(left, _)| left),
                if keeps { 0 } else { bytes.len() - 1 - messages[0].encode().len() }
            );
            assert_eq!(pipe.receive().unwrap(), Some(messages[1].clone()));
            assert_eq!(pipe.receive().unwrap(), None);
            far.write_all(&bytes[bytes.len() - 1..]).unwrap();
            assert_eq!(pipe.receive().unwrap(), Some(messages[2].clone()));
            assert_eq!(pipe.receive().unwrap(), None);
            // Its last words and its end come at once, and are told of once.
            far.write_all(&messages[1].encode()).unwrap();
            drop(far);
            pipe.end_is_near();
            assert_eq!(pipe.receive().unwrap(), Some(messages[1].clone()));
            assert!(matches!(pipe.receive(), Err(PipeError::Closed)));
        }
    }
}
