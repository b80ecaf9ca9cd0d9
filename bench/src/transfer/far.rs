//! The far side: a process of its own that receives, on this machine or another.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use kvrail_transfer::TcpRail;

use super::BenchError;
use super::control::{Ask, Place, Reply};
use super::engine::Target;
use super::raw::Sink;
use super::shape::{Check, Shape};
use crate::usage::Usage;

/// Longest question of a near side, in bytes.
const LINE_MAX: u64 = 1 << 16;
/// Near sides of other machines that are served at a time; one more finds its connection closed. A bench has two.
const NEAR_SIDES_MAX: usize = 8;
/// Wait after a connection could not be accepted, for want of descriptors, say.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// What receives, and the bytes of its pool.
enum Receiver {
    Engine(Target, usize),
    Sockets(Sink, usize),
}

impl Receiver {
    fn pool(&self) -> usize {
        let (Self::Engine(_, bytes) | Self::Sockets(_, bytes)) = self;
        *bytes
    }
}

/// Serves the near side that started this program as its far side, until its input ends.
///
/// # Errors
/// If stdin or stdout break; what goes wrong in a measurement is told to the near side instead.
pub fn far_side() -> std::io::Result<()> {
    converse(std::io::stdin().lock(), &mut std::io::stdout().lock(), &Place::default())
}

/// Serves near sides of other machines at `listen`, over these rails, until the process ends. Says where on stdout.
///
/// It does what whoever reaches it asks, up to the memory that it has: for networks of one's own.
///
/// # Errors
/// If the address is none that others reach, or cannot be had.
pub fn serve(listen: SocketAddr, rails: &[TcpRail]) -> Result<(), BenchError> {
    if listen.ip().is_unspecified() {
        let what = format!("--serve {listen}: give the address by which the other machine reaches this one");
        return Err(BenchError::Setting(what));
    }
    let listener = TcpListener::bind(listen)?;
    println!("serving at {}", listener.local_addr()?);
    std::io::stdout().flush()?;
    let place = Place { host: listen.ip(), rails: rails.to_vec() };
    let served = Arc::new(());
    loop {
        let (stream, from) = match listener.accept() {
            // Counted by who holds it: this loop, and each thread that serves.
            Ok(_) if Arc::strong_count(&served) > NEAR_SIDES_MAX => continue,
            Ok(near) => near,
            Err(error) => {
                eprintln!("a near side could not be accepted: {error}");
                std::thread::sleep(ACCEPT_AGAIN);
                continue;
            }
        };
        let (place, served) = (place.clone(), Arc::clone(&served));
        std::thread::spawn(move || {
            let result = stream.set_nodelay(true).and_then(|()| stream.try_clone());
            let result = result.and_then(|mut to| converse(BufReader::new(stream), &mut to, &place));
            drop(served);
            if let Err(error) = result {
                eprintln!("{from}: {error}");
            }
        });
    }
}

/// Answers questions until they end.
fn converse(mut from: impl BufRead, to: &mut dyn Write, place: &Place) -> std::io::Result<()> {
    let mut receiver = None;
    loop {
        let mut line = Vec::new();
        if std::io::Read::take(&mut from, LINE_MAX).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        let reply = match serde_json::from_slice(&line) {
            Ok(ask) => answer(&mut receiver, ask, to, place),
            Err(e) => Err(BenchError::Far(e.to_string())),
        };
        tell(to, &reply.unwrap_or_else(|e| Reply::Failed(e.to_string())))?;
    }
}

fn tell(to: &mut dyn Write, reply: &Reply) -> std::io::Result<()> {
    let mut line = serde_json::to_string(reply)?;
    line.push('\n');
    to.write_all(line.as_bytes())?;
    to.flush()
}

fn answer(receiver: &mut Option<Receiver>, ask: Ask, to: &mut dyn Write, place: &Place) -> Result<Reply, BenchError> {
    match ask {
        Ask::Engine { transport, bytes } => {
            let target = Target::new(transport, bytes, place)?;
            let reply = target.reply();
            *receiver = Some(Receiver::Engine(target, bytes));
            Ok(reply)
        }
        Ask::Sockets { bytes, connections } => {
            let sink = Sink::new(bytes, connections, place)?;
            let addresses = sink.addresses()?;
            *receiver = Some(Receiver::Sockets(sink, bytes));
            Ok(Reply::Sockets { addresses })
        }
        Ask::Expect { shape, tag, check } => {
            let receiver = receiver.as_mut().ok_or_else(|| BenchError::Far("nothing was started".into()))?;
            expect(receiver, &shape, tag, check, to)
        }
    }
}

fn expect(
    receiver: &mut Receiver,
    shape: &Shape,
    tag: u64,
    check: Check,
    to: &mut dyn Write,
) -> Result<Reply, BenchError> {
    if !shape.fits(receiver.pool()) {
        return Err(BenchError::Far(format!("{shape:?} does not fit a pool of {} bytes", receiver.pool())));
    }
    let moves = shape.moves();
    let mut ready = || tell(to, &Reply::Ready(Usage::own()));
    // Nothing stands between the word that the bytes are there and the look at them, but the reading of the clock.
    let (usage, (wrong, looked_at)) = match receiver {
        Receiver::Engine(target, _) => {
            ready()?;
            target.await_told(tag)?;
            (Usage::own(), check.wrong_blocks(shape, &moves, tag, |slot, block| target.read(slot, block)))
        }
        Receiver::Sockets(sink, _) => {
            let delay = sink.receive(shape, ready)?;
            let mut usage = Usage::own();
            usage.delay += delay;
            (usage, check.wrong_blocks(shape, &moves, tag, |slot, block| sink.read(slot, block)))
        }
    };
    Ok(Reply::Told { usage, wrong, looked_at })
}
