//! How the two processes of the bench talk about their measurements: JSON lines, over the far side's stdin and stdout where
//! it was started for this, over TCP where it serves on another machine.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use kvrail_transfer::{RdmaRail, TcpRail};
use serde::{Deserialize, Serialize};

use super::{BenchError, Wire};
use crate::compare::{Check, Shape};
use crate::transfer::{Order, Word};
use crate::usage::Usage;

/// How long a far side on another machine may take to be reached.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Longest that it may be silent: a transfer, and a look at all of its bytes.
const SILENCE_MAX: Duration = Duration::from_secs(180);

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
    /// Accept that many plain TCP connections at each rail that write into a pool of that many bytes.
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
    /// To a member of a sweep.
    Member(Order),
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
    /// Listeners wait, one a rail.
    Sockets {
        /// Where.
        addresses: Vec<SocketAddr>,
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
    /// Of a member of a sweep.
    Member(Word),
    /// It did not work.
    Failed(String),
}

/// Where one side of the bench moves bytes.
#[derive(Clone, Debug)]
pub struct Place {
    /// Address of this machine that the other side reaches.
    pub host: IpAddr,
    /// Rails of this machine; none: as the system routes.
    pub rails: Vec<TcpRail>,
    /// NICs of this machine; none: every one with an active port.
    pub rdma_rails: Vec<RdmaRail>,
}

impl Default for Place {
    /// Loopback.
    fn default() -> Self {
        Self { host: Ipv4Addr::LOCALHOST.into(), rails: Vec::new(), rdma_rails: Vec::new() }
    }
}

/// Where the far side is.
#[derive(Clone, Debug)]
pub enum FarSide {
    /// A process of this machine, started for this: a program that calls [`far_side`](super::far_side).
    Start {
        /// The program.
        program: PathBuf,
        /// Its arguments.
        args: Vec<String>,
    },
    /// Another machine, which [serves](super::serve) there.
    At(SocketAddr),
}

/// The far side, seen from the near one. If it was started for this it ends when this is dropped.
pub struct Far {
    mouth: Mouth,
    ear: Ear,
}

/// What speaks to a far side, and ends it.
pub struct Mouth {
    child: Option<Child>,
    to: Option<Box<dyn Write + Send>>,
    socket: Option<TcpStream>,
}

/// What hears a far side.
pub struct Ear {
    from: BufReader<Box<dyn Read + Send>>,
    over: bool,
}

impl Far {
    /// Starts it, or connects to it.
    ///
    /// # Errors
    /// If the program cannot be started, or the machine cannot be reached.
    pub fn start(side: &FarSide) -> Result<Self, BenchError> {
        match side {
            FarSide::Start { program, args } => Self::spawn(Command::new(program).args(args))
                .map_err(|e| BenchError::Far(format!("{}: {e}", program.display()))),
            FarSide::At(address) => {
                Self::connect(*address).map_err(|e| BenchError::Far(format!("it cannot be reached at {address}: {e}")))
            }
        }
    }

    fn spawn(command: &mut Command) -> std::io::Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let to = child.stdin.take().map(|stdin| Box::new(stdin) as Box<dyn Write + Send>);
        let from = child.stdout.take().map(|stdout| Box::new(stdout) as Box<dyn Read + Send>);
        let from = BufReader::new(from.unwrap_or_else(|| Box::new(std::io::empty())));
        Ok(Self { mouth: Mouth { child: Some(child), to, socket: None }, ear: Ear { from, over: false } })
    }

    fn connect(address: SocketAddr) -> std::io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, CONNECT_MAX)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE_MAX))?;
        let from: Box<dyn Read + Send> = Box::new(stream.try_clone()?);
        let to: Box<dyn Write + Send> = Box::new(stream.try_clone()?);
        let mouth = Mouth { child: None, to: Some(to), socket: Some(stream) };
        Ok(Self { mouth, ear: Ear { from: BufReader::new(from), over: false } })
    }

    /// Asks and waits for the answer.
    ///
    /// # Errors
    /// If the far side refuses or has ended.
    pub fn ask(&mut self, ask: &Ask) -> Result<Reply, BenchError> {
        self.mouth.tell(ask)?;
        self.hear()
    }

    /// Waits for the next answer.
    ///
    /// # Errors
    /// As for [`Self::ask`].
    pub fn hear(&mut self) -> Result<Reply, BenchError> {
        self.ear.hear()
    }

    /// Its two halves, for who asks several far sides at once.
    #[must_use]
    pub fn split(self) -> (Mouth, Ear) {
        (self.mouth, self.ear)
    }
}

impl Mouth {
    /// Asks, and does not wait for the answer.
    ///
    /// # Errors
    /// If the far side has ended.
    pub fn tell(&mut self, ask: &Ask) -> Result<(), BenchError> {
        let mut line = serde_json::to_string(ask).map_err(|e| BenchError::Far(e.to_string()))?;
        line.push('\n');
        let to = self.to.as_mut().ok_or_else(|| BenchError::Far("it hears nothing".into()))?;
        to.write_all(line.as_bytes()).and_then(|()| to.flush()).map_err(|e| BenchError::Far(e.to_string()))
    }

    /// The address of this machine by which a far side on another one is reached.
    #[must_use]
    pub fn near(&self) -> Option<IpAddr> {
        self.socket.as_ref().and_then(|socket| socket.local_addr().ok()).map(|address| address.ip())
    }

    /// Lets the far side be silent for as long as it wants; who waits has a limit of its own.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn be_patient(&self) -> std::io::Result<()> {
        self.socket.as_ref().map_or(Ok(()), |socket| socket.set_read_timeout(None))
    }

    /// The process, where one was started.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }
}

impl Ear {
    /// Waits for the next answer.
    ///
    /// # Errors
    /// If the far side refuses or has ended.
    pub fn hear(&mut self) -> Result<Reply, BenchError> {
        let mut line = String::new();
        let read = self.from.read_line(&mut line);
        self.over = !matches!(read, Ok(1..));
        if read.map_err(|e| BenchError::Far(e.to_string()))? == 0 {
            return Err(BenchError::Far("it ended, or has closed the connection".into()));
        }
        match serde_json::from_str(&line) {
            Ok(Reply::Failed(why)) => Err(BenchError::Far(why)),
            Ok(reply) => Ok(reply),
            Err(e) => Err(BenchError::Far(format!("{e}: {line}"))),
        }
    }
}

impl Ear {
    /// Whether nothing more will be heard.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.over
    }
}

impl Drop for Mouth {
    fn drop(&mut self) {
        // End of input is the word to go; what does not listen is ended.
        drop(self.to.take());
        if let Some(socket) = &self.socket {
            // Whoever still listens to it hears the end as well.
            let _ = socket.shutdown(std::net::Shutdown::Both);
        }
        let Some(child) = &mut self.child else { return };
        for _ in 0..200 {
            if !matches!(child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = child.kill();
        let _ = child.wait();
    }
}
