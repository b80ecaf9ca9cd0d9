//! One 4 KiB write after the other between two processes, beside a plain socket that answers: how long each takes.
//!
//! `cargo run --release -p kvrail-transfer --example ping -- [tcp|shm] [BYTES] [driven|waited]`
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::pin::pin;
use std::process::Stdio;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use kvrail_transfer::plan::{Direction, Op};
use kvrail_transfer::{
    Access, ByteRange, Engine, EngineConfig, LeaseRequest, LeaseTicket, MemoryKind, TransferRequest, TransportKind,
};

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

fn tell(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |q: f64| times[(times.len() as f64 * q) as usize].as_nanos() as f64 / 1e3;
    let all: Vec<String> = [0.1, 0.25, 0.5, 0.75, 0.9, 0.99].map(|q| format!("{:7.1}", at(q))).into();
    println!("{what:12} µs at 10, 25, 50, 75, 90, 99 %: {}", all.join(" "));
}

const ROUNDS: usize = 20_000;

fn sockets(bytes: usize) -> std::io::Result<Vec<Duration>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let server = std::thread::spawn(move || -> std::io::Result<()> {
        let (mut socket, _) = listener.accept()?;
        socket.set_nodelay(true)?;
        let mut buffer = vec![0; bytes];
        while socket.read_exact(&mut buffer).is_ok() {
            socket.write_all(&[1])?;
        }
        Ok(())
    });
    let mut socket = TcpStream::connect(address)?;
    socket.set_nodelay(true)?;
    let (buffer, mut times) = (vec![7; bytes], Vec::new());
    for _ in 0..ROUNDS {
        let since = Instant::now();
        socket.write_all(&buffer)?;
        socket.read_exact(&mut [0])?;
        times.push(since.elapsed());
    }
    drop(socket);
    let _ = server.join();
    Ok(times)
}

/// The side that lends: says where it is and what it lends, and stays until nobody listens any more.
fn owner(kind: TransportKind) -> Result<(), Box<dyn std::error::Error>> {
    let engine = Engine::start(config(kind))?;
    let pool = engine.allocate(POOL as usize, MemoryKind::Shared)?;
    let ranges = vec![ByteRange { offset: 0, len: POOL }];
    let lease =
        engine.grant(LeaseRequest { region: &pool, ranges, access: Access::Write, ttl: Duration::from_secs(600) })?;
    let ticket: String = lease.ticket().to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    println!("{} {ticket}", engine.local_addr());
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

const POOL: u64 = 1 << 20;

fn config(kind: TransportKind) -> EngineConfig {
    EngineConfig { transports: vec![kind], ..EngineConfig::default() }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let name = words.first().map_or("tcp", String::as_str);
    let kind = if name == "shm" { TransportKind::Shm } else { TransportKind::Tcp };
    if words.get(1).is_some_and(|word| word == "owner") {
        return owner(kind);
    }
    let bytes: usize = words.get(1).map_or(Ok(4096), |n| n.parse())?;
    let mut far = std::process::Command::new(std::env::current_exe()?)
        .args([name, "owner"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut said = String::new();
    BufReader::new(far.stdout.take().ok_or("no output")?).read_line(&mut said)?;
    let (address, ticket) = said.trim().split_once(' ').ok_or("the other side did not start")?;
    let digits = |at: usize| u8::from_str_radix(&ticket[at..at + 2], 16);
    let ticket: Result<Vec<u8>, _> = (0..ticket.len()).step_by(2).map(digits).collect();
    let ticket = LeaseTicket::from_bytes(&ticket?)?;
    let writer = Engine::start(config(kind))?;
    let mine = writer.allocate(POOL as usize, MemoryKind::Shared)?;
    let peer = block_on(writer.connect(address.parse()?, None))?;
    for drive in [true, false] {
        if words.get(2).is_some_and(|word| (word == "driven") != drive) {
            continue;
        }
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            let since = Instant::now();
            let ops = vec![Op::contiguous(0, 0, bytes as u64)];
            let request = TransferRequest::new(&mine, &ticket, Direction::Write, ops);
            let transfer = writer.submit(&peer, request)?;
            if drive {
                transfer.drive();
            }
            block_on(transfer).status?;
            times.push(since.elapsed());
        }
        tell(if drive { "driven" } else { "waited for" }, times);
    }
    drop(far.stdin.take());
    far.wait()?;
    if words.len() < 3 {
        tell("sockets", sockets(bytes)?);
    }
    Ok(())
}
