//! How the two processes of the bench talk about their measurements: JSON lines over the far side's stdin and stdout.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use kvrail_transfer::TransportKind;
use serde::{Deserialize, Serialize};

use super::BenchError;
use super::shape::{Check, Shape};
use crate::usage::Usage;

/// What the near side asks.
#[derive(Debug, Serialize, Deserialize)]
pub enum Ask {
    /// Start an engine with a pool of that many bytes that may be written.
    Engine {
        /// `tcp` or `shm`.
        transport: Wire,
        /// Bytes of the pool.
        bytes: usize,
    },
    /// Accept that many plain TCP connections that write into a pool of that many bytes.
    Sockets {
        /// Bytes of the pool.
        bytes: usize,
        /// Connections.
        connections: usize,
    },
    /// A transfer is about to come to what was started: answer [`Reply::Ready`], then [`Reply::Told`] when it is there.
    Expect {
        /// What is moved.
        shape: Shape,
        /// Its tag.
        tag: u64,
        /// What to look at.
        check: Check,
    },
}

/// What the far side answers.
#[derive(Debug, Serialize, Deserialize)]
pub enum Reply {
    /// An engine runs.
    Engine {
        /// Where.
        address: SocketAddr,
        /// Right to write to its pool.
        ticket: Vec<u8>,
    },
    /// A listener waits.
    Sockets {
        /// Where.
        address: SocketAddr,
    },
    /// Ready for the transfer; what this process has used so far.
    Ready(Usage),
    /// The receiver was told that the bytes are visible, and has looked at them at once.
    Told {
        /// Used so far, before anything was looked at.
        usage: Usage,
        /// Blocks with a wrong byte.
        wrong: usize,
        /// Blocks looked at.
        looked_at: usize,
    },
    /// It did not work.
    Failed(String),
}

/// A transport by the name that the command line uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Wire {
    /// TCP streams.
    Tcp,
    /// Shared memory.
    Shm,
}

impl Wire {
    /// The engine's name for it.
    #[must_use]
    pub fn kind(self) -> TransportKind {
        match self {
            Self::Tcp => TransportKind::Tcp,
            Self::Shm => TransportKind::Shm,
        }
    }
}

impl std::fmt::Display for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if *self == Self::Tcp { "tcp" } else { "shm" })
    }
}

/// How to start the far side: a program that calls [`far_side`](super::far_side).
#[derive(Clone, Debug)]
pub struct FarCommand {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
}

/// The far side, seen from the near one. It ends when this is dropped.
pub struct Far {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Far {
    /// Starts it.
    ///
    /// # Errors
    /// If the program cannot be started.
    pub fn start(command: &FarCommand) -> Result<Self, BenchError> {
        let failed = |e: std::io::Error| BenchError::Far(format!("{}: {e}", command.program.display()));
        let mut child = Command::new(&command.program)
            .args(&command.args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().ok_or_else(|| BenchError::Far("no stdout".into()))?;
        Ok(Self { child, stdin, stdout: BufReader::new(stdout) })
    }

    /// Asks and waits for the answer.
    ///
    /// # Errors
    /// If the far side refuses or has ended.
    pub fn ask(&mut self, ask: &Ask) -> Result<Reply, BenchError> {
        let mut line = serde_json::to_string(ask).map_err(|e| BenchError::Far(e.to_string()))?;
        line.push('\n');
        let stdin = self.stdin.as_mut().ok_or_else(|| BenchError::Far("no stdin".into()))?;
        stdin.write_all(line.as_bytes()).map_err(|e| BenchError::Far(e.to_string()))?;
        self.next()
    }

    /// Waits for the next answer.
    ///
    /// # Errors
    /// As for [`Self::ask`].
    pub fn next(&mut self) -> Result<Reply, BenchError> {
        let mut line = String::new();
        let read = self.stdout.read_line(&mut line).map_err(|e| BenchError::Far(e.to_string()))?;
        if read == 0 {
            return Err(BenchError::Far(format!("it ended: {:?}", self.child.wait())));
        }
        match serde_json::from_str(&line) {
            Ok(Reply::Failed(why)) => Err(BenchError::Far(why)),
            Ok(reply) => Ok(reply),
            Err(e) => Err(BenchError::Far(format!("{e}: {line}"))),
        }
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        // End of input is the word to go; what does not listen is ended.
        drop(self.stdin.take());
        for _ in 0..200 {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
