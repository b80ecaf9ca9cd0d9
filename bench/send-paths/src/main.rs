//! Ways to move scattered blocks over one TCP connection, measured beside each other: gather writes, MSG_ZEROCOPY, io_uring, its
//! zero-copy sends, and receiving by io_uring.
//!
//! `send-paths [--rounds N] [--host ADDRESS] [--receiver COMMAND]`: the receiver is this program again, started by COMMAND where it
//! is to be in another network namespace (`--host 10.9.0.2 --receiver "ip netns exec other"`). Each round makes a connection
//! for each way, in turns there and back; every byte is checked.

mod receive;
mod send;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// Bytes of a block, of the pool that blocks lie in, and of a round.
const BLOCK: usize = 32 << 10;
const POOL: usize = 128 << 20;
const ROUND: usize = 1 << 30;
/// Blocks of one gather list: 1 MiB, as the engine slices.
const GATHER: usize = 32;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// How a side does it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// `writev` and `readv`.
    Plain,
    /// `sendmsg` with MSG_ZEROCOPY, completions from the error queue.
    ZeroCopy,
    /// io_uring: SENDMSG or RECVMSG, one at a time: a stream has an order.
    Ring,
    /// io_uring: SENDMSG_ZC.
    RingZeroCopy,
}

/// What is measured: a name, how it is sent, how it is received.
const PAIRS: [(&str, Way, Way); 5] = [
    ("writev, readv", Way::Plain, Way::Plain),
    ("MSG_ZEROCOPY, readv", Way::ZeroCopy, Way::Plain),
    ("io_uring sendmsg, readv", Way::Ring, Way::Plain),
    ("io_uring sendmsg_zc, readv", Way::RingZeroCopy, Way::Plain),
    ("writev, io_uring recvmsg", Way::Plain, Way::Ring),
];

/// What a round of one pair came to.
#[derive(Clone, Copy, Default)]
struct Round {
    gb_per_s: f64,
    /// CPU seconds of both sides a GB.
    cpu: f64,
    /// Zero-copy sends of which the kernel says that it has copied after all.
    copied: f64,
}

/// Places of blocks in the pool, in an order of their own for each pass over it.
fn order(pass: usize) -> impl Iterator<Item = usize> {
    // An odd multiplier is a permutation of a power of two.
    let (count, stride) = (POOL / BLOCK, 2 * pass + 1237);
    (0..count).map(move |i| (i * stride + pass) % count * BLOCK)
}

/// CPU seconds of this process so far, the kernel's part and its io_uring workers included.
fn cpu() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock is a valid one and `time` is written by the call alone.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Median, lowest, highest.
fn median(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[0], values[values.len() - 1])
}

struct Options {
    rounds: usize,
    host: String,
    receiver: Vec<String>,
}

fn options() -> Result<Options> {
    let mut options = Options { rounds: 9, host: "127.0.0.1".into(), receiver: Vec::new() };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next().ok_or_else(|| format!("{word} wants a value"))?;
        match word.as_str() {
            "--rounds" => options.rounds = value.parse::<usize>()?.max(1),
            "--host" => options.host = value,
            "--receiver" => options.receiver = value.split_whitespace().map(Into::into).collect(),
            _ => return Err(format!("{word}: there are --rounds, --host, --receiver").into()),
        }
    }
    Ok(options)
}

/// Starts the far side; its port.
fn far(options: &Options) -> Result<(Child, u16)> {
    let me = std::env::current_exe()?;
    let mut words = options.receiver.iter().map(String::as_str);
    let mut command = Command::new(words.next().unwrap_or(me.to_str().ok_or("a path without a name")?));
    command.args(words).args((!options.receiver.is_empty()).then_some(&me)).arg(receive::ROLE).arg(&options.host);
    let mut child = command.stdout(Stdio::piped()).stdin(Stdio::piped()).spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().ok_or("no stdout")?).read_line(&mut line)?;
    Ok((child, line.trim().parse()?))
}

fn round(pool: &[u8], at: (&str, u16), sent: Way, received: Way) -> Result<Round> {
    let mut socket = TcpStream::connect(at)?;
    send::set_up(&socket)?;
    socket.write_all(&[u8::from(received == Way::Ring)])?;
    let mut word = [0; 8];
    socket.read_exact(&mut word)?;
    let (started, before) = (Instant::now(), cpu());
    let (copied, sends) = send::all(&socket, pool, sent)?;
    socket.read_exact(&mut word)?;
    let (seconds, ours) = (started.elapsed().as_secs_f64(), cpu() - before);
    let gb = ROUND as f64 / 1e9;
    let theirs = f64::from_bits(u64::from_le_bytes(word));
    let mut crc = [0; 4];
    socket.read_exact(&mut crc)?;
    if u32::from_le_bytes(crc) != crc32fast::hash(pool) {
        return Err("a wrong byte has arrived".into());
    }
    Ok(Round { gb_per_s: gb / seconds, cpu: (ours + theirs) / gb, copied: copied as f64 / sends.max(1) as f64 })
}

fn main() -> Result<()> {
    if std::env::args().nth(1).as_deref() == Some(receive::ROLE) {
        return receive::serve(&std::env::args().nth(2).ok_or("an address is wanted")?);
    }
    let options = options()?;
    let mut pool = vec![0u8; POOL];
    for (i, word) in pool.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&(i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    }
    let (mut child, port) = far(&options)?;
    let mut rounds = [const { Vec::<Round>::new() }; PAIRS.len()];
    for number in 0..=options.rounds {
        let mut turn: Vec<usize> = (0..PAIRS.len()).collect();
        if number % 2 == 1 {
            turn.reverse();
        }
        for pair in turn {
            let done = round(&pool, (&options.host, port), PAIRS[pair].1, PAIRS[pair].2)?;
            // The first round warms up.
            if number > 0 {
                rounds[pair].push(done);
            }
        }
        eprintln!("round {number} of {}", options.rounds);
    }
    // The far side ends with its input.
    drop(child.stdin.take());
    child.wait()?;
    println!("| way | GB/s | to writev | CPU s a GB | to writev | copied after all |\n|---|---|---|---|---|---|");
    for (pair, done) in PAIRS.iter().zip(&rounds) {
        let of = |value: fn(&Round) -> f64| median(done.iter().map(value).collect()).0;
        let to =
            |value: fn(&Round) -> f64| median(done.iter().zip(&rounds[0]).map(|(a, b)| value(a) / value(b)).collect());
        let (speed, cost) = (to(|r| r.gb_per_s), to(|r| r.cpu));
        println!(
            "| {} | {:.2} | {:.2} [{:.2}, {:.2}] | {:.3} | {:.2} [{:.2}, {:.2}] | {:.0} % |",
            pair.0,
            of(|r| r.gb_per_s),
            speed.0,
            speed.1,
            speed.2,
            of(|r| r.cpu),
            cost.0,
            cost.1,
            cost.2,
            of(|r| r.copied) * 100.0
        );
    }
    Ok(())
}
