//! The side that does what it is asked: a process started for it, or one that serves other machines.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use kvrail_transfer::{RdmaRail, TcpRail};

use super::{Ask, BenchError, Place, Reply};
use crate::compare::Receiver;
use crate::setting::SettingError;
use crate::transfer::Member;

/// Longest question of a near side, in bytes.
const LINE_MAX: u64 = 1 << 20;
/// Near sides of other machines that are served at a time; one more finds its connection closed. A bench has two.
const NEAR_SIDES_MAX: usize = 8;
/// Wait after a connection could not be accepted, for want of descriptors, say.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

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
pub fn serve(listen: SocketAddr, rails: &[TcpRail], rdma_rails: &[RdmaRail]) -> Result<(), BenchError> {
    if listen.ip().is_unspecified() {
        let wanted = "give the address by which the other machine reaches this one";
        return Err(SettingError::new("serve", listen, wanted).into());
    }
    let listener = TcpListener::bind(listen)?;
    println!("serving at {}", listener.local_addr()?);
    std::io::stdout().flush()?;
    let place = Place { host: listen.ip(), rails: rails.to_vec(), rdma_rails: rdma_rails.to_vec() };
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

/// What a near side has had started here.
struct Served<'a> {
    place: &'a Place,
    receiver: Receiver,
    member: Member,
}

/// Answers questions until they end.
fn converse(mut from: impl BufRead, to: &mut dyn Write, place: &Place) -> std::io::Result<()> {
    let mut served = Served { place, receiver: Receiver::default(), member: Member::new(place.clone()) };
    loop {
        let mut line = Vec::new();
        if std::io::Read::take(&mut from, LINE_MAX).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        let reply = match serde_json::from_slice(&line) {
            Ok(ask) => served.answer(ask, &mut |reply| tell(to, reply)),
            Err(e) => Err(BenchError::Far(e.to_string())),
        };
        tell(to, &reply.unwrap_or_else(|e| Reply::Failed(e.chain())))?;
    }
}

fn tell(to: &mut dyn Write, reply: &Reply) -> std::io::Result<()> {
    let mut line = serde_json::to_string(reply)?;
    line.push('\n');
    to.write_all(line.as_bytes())?;
    to.flush()
}

impl Served<'_> {
    fn answer(&mut self, ask: Ask, tell: &mut dyn FnMut(&Reply) -> std::io::Result<()>) -> Result<Reply, BenchError> {
        match ask {
            Ask::Engine { transport, bytes } => self.receiver.start_engine(transport, bytes, self.place),
            Ask::Sockets { bytes, connections } => self.receiver.start_sockets(bytes, connections, self.place),
            Ask::Expect { shape, tag, check } => self.receiver.expect(&shape, tag, check, tell),
            Ask::Member(order) => Ok(Reply::Member(self.member.obey(order)?)),
        }
    }
}
