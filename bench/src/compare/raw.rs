//! The baselines: what plain sockets and plain memcpy do with the same blocks.
//!
//! Sockets: one thread a connection on each side, each connection a contiguous share of the blocks. A batch is its
//! number of blocks and their destinations, then the blocks, sent with gather writes out of the scattered source and
//! read with scatter reads into their places; it is acknowledged when all of it has been read. Nothing is copied in user
//! space, nothing is allocated while bytes move, threads and lists stand ready before the clock starts.
//!
//! Memcpy: threads, each with a contiguous share of the blocks, copy block by block from ordinary memory into a memfd, both
//! on pages of the size that the kernel gives to shared memory, as the engine's are. It lies in one process: the cost of a
//! copy into shared memory does not hang on who else has mapped it.

use std::cell::RefCell;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use kvrail_transfer::{Region, TcpRail};
use memmap2::{Advice, MmapMut};
use rustix::net::sockopt;

use super::shape::{Check, Shape};
use super::{Contender, Run, told};
use crate::content::fill;
use crate::far::{Ask, BenchError, Far, FarSide, Place, Reply};
use crate::machine::Machine;
use crate::setting::SettingError;
use crate::stats::Measure;
use crate::usage::Usage;

/// Blocks of one gather or scatter call.
const BLOCKS_A_CALL: usize = 256;
/// Buffers of a socket, in bytes; the kernel caps them by its own limits.
const BUFFER_BYTES: usize = 4 << 20;
/// Longest silence on a socket.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// Ordinary memory; on huge pages if that is wanted and the kernel gives them.
fn memory(bytes: usize, huge: bool) -> io::Result<MmapMut> {
    let map = MmapMut::map_anon(bytes)?;
    // Advice: a kernel without huge pages refuses it, and the memory is as good.
    let _ = map.advise(if huge { Advice::HugePage } else { Advice::NoHugePage });
    Ok(map)
}

/// The best settings that were found for this baseline, which are the engine's too: on loopback no congestion control
/// that paces (what the kernel does not have stays as it is), and buffers that hold some megabytes.
fn set_up(stream: TcpStream) -> io::Result<TcpStream> {
    let _ = sockopt::set_tcp_congestion(&stream, "cubic");
    sockopt::set_socket_send_buffer_size(&stream, BUFFER_BYTES)?;
    sockopt::set_socket_recv_buffer_size(&stream, BUFFER_BYTES)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SILENCE_MAX))?;
    stream.set_write_timeout(Some(SILENCE_MAX))?;
    Ok(stream)
}

/// Receives on the far side.
pub struct Sink {
    listeners: Vec<TcpListener>,
    streams: Vec<TcpStream>,
    /// At each listener.
    connections: usize,
    pool: MmapMut,
}

impl Sink {
    /// Listens at each rail of a place, or at its address.
    pub fn new(bytes: usize, connections: usize, place: &Place) -> io::Result<Self> {
        let listen = |rail: &TcpRail| rail.socket().and_then(|s| s.listen(128).map(|()| s.into()));
        let mut listeners: Vec<TcpListener> = place.rails.iter().map(listen).collect::<io::Result<_>>()?;
        if listeners.is_empty() {
            listeners.push(TcpListener::bind((place.host, 0))?);
        }
        Ok(Self { listeners, streams: Vec::new(), connections, pool: memory(bytes, true)? })
    }

    /// Where it listens.
    pub fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        self.listeners.iter().map(TcpListener::local_addr).collect()
    }

    /// Copies a slot out.
    pub fn read(&self, slot: usize, block: &mut [u8]) {
        let start = slot * block.len();
        block.copy_from_slice(&self.pool[start..start + block.len()]);
    }

    /// Receives one batch on each connection; calls `ready` when all threads wait for it. Returns the time that the
    /// threads stood in the run queue.
    pub fn receive(&mut self, shape: &Shape, ready: impl FnOnce() -> io::Result<()>) -> io::Result<Duration> {
        if self.streams.is_empty() {
            let all = self.listeners.iter().flat_map(|l| std::iter::repeat_n(l, self.connections));
            self.streams = all.map(|listener| set_up(listener.accept()?.0)).collect::<io::Result<_>>()?;
        }
        let slots: Vec<Option<&mut [u8]>> = self.pool.chunks_exact_mut(shape.block_bytes).map(Some).collect();
        let slots = Mutex::new(slots);
        std::thread::scope(|scope| {
            let threads: Vec<_> = self.streams.iter_mut().map(|s| scope.spawn(|| receive_batch(s, &slots))).collect();
            ready()?;
            let panicked = |_| io::Error::other("a receiving thread panicked");
            threads.into_iter().map(|t| t.join().map_err(panicked)?).sum()
        })
    }
}

fn read_word(stream: &mut TcpStream) -> io::Result<usize> {
    let mut word = [0; 8];
    stream.read_exact(&mut word)?;
    usize::try_from(u64::from_le_bytes(word)).map_err(io::Error::other)
}

fn receive_batch(stream: &mut TcpStream, slots: &Mutex<Vec<Option<&mut [u8]>>>) -> io::Result<Duration> {
    let count = read_word(stream)?;
    let mut header = vec![0; count * 8];
    stream.read_exact(&mut header)?;
    let mut places = Vec::with_capacity(count);
    {
        // Once a batch: afterwards each thread has its own places and no lock.
        let mut slots = slots.lock().map_err(|_| io::Error::other("poisoned"))?;
        for word in header.chunks_exact(8) {
            let slot = u64::from_le_bytes(word.try_into().unwrap_or_default()) as usize;
            let place = slots.get_mut(slot).and_then(Option::take);
            places.push(IoSliceMut::new(place.ok_or_else(|| io::Error::other("a slot twice, or none of ours"))?));
        }
    }
    let mut left = &mut places[..];
    while !left.is_empty() {
        let some = left.len().min(BLOCKS_A_CALL);
        match stream.read_vectored(&mut left[..some]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => IoSliceMut::advance_slices(&mut left, read),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    stream.write_all(&(count as u64).to_le_bytes())?;
    Ok(Usage::thread().delay)
}

/// Plain TCP, as a contender.
pub struct Sockets {
    far: Far,
    streams: Vec<TcpStream>,
    pool: MmapMut,
    shape: Shape,
    moves: Vec<(usize, usize)>,
}

impl Sockets {
    /// Starts the far side and connects.
    pub fn start(far: &FarSide, shape: Shape, connections: usize, near: &Place) -> Result<Self, BenchError> {
        let mut far = Far::start(far)?;
        // As many a rail as make that many in all, one at least: so does the engine.
        let connections = (connections / near.rails.len().max(1)).max(1);
        let bytes = shape.slots * shape.block_bytes;
        let Reply::Sockets { addresses } = far.ask(&Ask::Sockets { bytes, connections })? else {
            return Err(BenchError::unexpected("sockets"));
        };
        let rails = near.rails.len();
        if rails > 0 && rails != addresses.len() {
            let wanted =
                format!("as many as the far side has, which are {}: plain sockets pair them by order", addresses.len());
            return Err(SettingError::new("rails", rails, wanted).into());
        }
        let mut streams = Vec::with_capacity(addresses.len() * connections);
        for (number, address) in addresses.into_iter().enumerate() {
            for _ in 0..connections {
                let stream = match near.rails.get(number) {
                    Some(rail) => rail.socket().and_then(|s| s.connect(&address.into()).map(|()| s.into())),
                    None => TcpStream::connect(address),
                };
                streams.push(set_up(stream?)?);
            }
        }
        Ok(Self { far, streams, pool: memory(bytes, true)?, shape, moves: shape.moves() })
    }

    /// Sends all blocks; seconds, and the time that the threads stood in the run queue.
    fn send(&mut self) -> io::Result<(f64, Duration)> {
        let shares: Vec<_> = self.moves.chunks(self.moves.len().div_ceil(self.streams.len())).collect();
        let (pool, block) = (&self.pool[..], self.shape.block_bytes);
        let barrier = Barrier::new(shares.len() + 1);
        std::thread::scope(|scope| {
            let threads: Vec<_> = self
                .streams
                .iter_mut()
                .zip(shares)
                .map(|(stream, share)| {
                    let barrier = &barrier;
                    scope.spawn(move || send_batch(stream, pool, block, share, barrier))
                })
                .collect();
            barrier.wait();
            let started = Instant::now();
            let panicked = |_| io::Error::other("a sending thread panicked");
            let delays = threads.into_iter().map(|t| t.join().map_err(panicked)?).sum::<io::Result<Duration>>()?;
            Ok((started.elapsed().as_secs_f64(), delays))
        })
    }
}

fn send_batch(
    stream: &mut TcpStream,
    pool: &[u8],
    block: usize,
    share: &[(usize, usize)],
    barrier: &Barrier,
) -> io::Result<Duration> {
    let words = std::iter::once(share.len()).chain(share.iter().map(|m| m.1));
    let header: Vec<u8> = words.flat_map(|w| (w as u64).to_le_bytes()).collect();
    let blocks = share.iter().map(|m| IoSlice::new(&pool[m.0 * block..][..block]));
    let mut slices: Vec<IoSlice<'_>> = std::iter::once(IoSlice::new(&header)).chain(blocks).collect();
    barrier.wait();
    let mut left = &mut slices[..];
    while !left.is_empty() {
        let some = left.len().min(BLOCKS_A_CALL);
        match stream.write_vectored(&left[..some]) {
            Ok(written) => IoSlice::advance_slices(&mut left, written),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    if read_word(stream)? != share.len() {
        return Err(io::Error::other("a wrong acknowledgement"));
    }
    Ok(Usage::thread().delay)
}

impl Contender for Sockets {
    fn name(&self) -> String {
        format!("plain TCP, {} connections", self.streams.len())
    }

    fn run(&mut self, tag: u64, check: Check) -> Result<Run, BenchError> {
        let block = self.shape.block_bytes;
        for &(slot, _) in &self.moves {
            fill(tag, slot, &mut self.pool[slot * block..][..block]);
        }
        let Reply::Ready(far) = self.far.ask(&Ask::Expect { shape: self.shape, tag, check })? else {
            return Err(BenchError::unexpected("ready"));
        };
        let before = Usage::own();
        let (seconds, delay) = self.send()?;
        let mut usage = Usage::own() - before;
        usage.delay += delay;
        told(&mut self.far, far, usage, seconds, &self.shape, None)
    }
}

/// memcpy into shared memory, as a contender.
pub struct Memcpy {
    /// Shared with those that copy with another number of threads.
    from: Rc<RefCell<MmapMut>>,
    to: Region,
    shape: Shape,
    moves: Vec<(usize, usize)>,
    threads: usize,
}

impl Memcpy {
    /// Copies with that many threads into `to`, a region of shared memory.
    pub fn new(to: Region, shape: Shape, threads: usize) -> Result<Self, BenchError> {
        let huge = !matches!(Machine::here().huge_pages_shared.as_str(), "never" | "deny");
        let from = Rc::new(RefCell::new(memory(shape.slots * shape.block_bytes, huge)?));
        Ok(Self { from, to, shape, moves: shape.moves(), threads })
    }

    /// The same memory, copied with another number of threads.
    pub fn with_threads(&self, threads: usize) -> Self {
        let (from, to, moves) = (Rc::clone(&self.from), self.to.clone(), self.moves.clone());
        Self { from, to, moves, threads, ..*self }
    }

    /// Copies all blocks; seconds, and the time that the threads stood in the run queue.
    fn copy(&self) -> io::Result<(f64, Duration)> {
        let shares: Vec<_> = self.moves.chunks(self.moves.len().div_ceil(self.threads)).collect();
        let from = self.from.borrow();
        let (from, to, block) = (&from[..], &self.to, self.shape.block_bytes);
        let barrier = Barrier::new(shares.len() + 1);
        let copy = |share: &[(usize, usize)]| {
            barrier.wait();
            for &(source, place) in share {
                to.write((place * block) as u64, &from[source * block..][..block]);
            }
            Usage::thread().delay
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = shares.into_iter().map(|share| scope.spawn(|| copy(share))).collect();
            barrier.wait();
            let started = Instant::now();
            let panicked = |_| io::Error::other("a copying thread panicked");
            let delays = threads.into_iter().map(|t| t.join().map_err(panicked)).sum::<io::Result<Duration>>()?;
            Ok((started.elapsed().as_secs_f64(), delays))
        })
    }
}

impl Contender for Memcpy {
    fn name(&self) -> String {
        let s = if self.threads == 1 { "" } else { "s" };
        format!("memcpy, {} thread{s}, one process", self.threads)
    }

    fn run(&mut self, tag: u64, check: Check) -> Result<Run, BenchError> {
        let block = self.shape.block_bytes;
        for &(slot, _) in &self.moves {
            fill(tag, slot, &mut self.from.borrow_mut()[slot * block..][..block]);
        }
        let before = Usage::own();
        let (seconds, delay) = self.copy()?;
        let mut usage = Usage::own() - before;
        usage.delay += delay;
        let read = |slot: usize, block: &mut [u8]| self.to.read((slot * block.len()) as u64, block);
        let (wrong, looked_at) = check.wrong_blocks(&self.shape, &self.moves, tag, read);
        let measure = Measure {
            work: self.shape.bytes() as f64,
            seconds,
            cpu_seconds: usage.cpu.as_secs_f64(),
            delay_seconds: usage.delay.as_secs_f64(),
        };
        Ok(Run { measure, wrong, looked_at, submit_seconds: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { slots: 600, blocks: 600, block_bytes: 1024, seed: 3 };

    /// A sink that receives in a thread, and connected streams.
    fn connected(connections: usize) -> (Sink, Vec<TcpStream>) {
        let sink = Sink::new(SHAPE.slots * SHAPE.block_bytes, connections, &Place::default()).unwrap();
        let address = sink.addresses().unwrap()[0];
        let streams = (0..connections).map(|_| TcpStream::connect(address).and_then(set_up).unwrap()).collect();
        (sink, streams)
    }

    #[test]
    fn scattered_blocks_land_in_their_places_over_two_connections() {
        let (mut sink, mut streams) = connected(2);
        let moves = SHAPE.moves();
        let mut pool = vec![0; SHAPE.slots * SHAPE.block_bytes];
        for &(slot, _) in &moves {
            fill(11, slot, &mut pool[slot * 1024..][..1024]);
        }
        let barrier = Barrier::new(2);
        std::thread::scope(|scope| {
            let receiving = scope.spawn(|| sink.receive(&SHAPE, || Ok(())).map(|_| ()));
            for (stream, share) in streams.iter_mut().zip(moves.chunks(300)) {
                let (pool, barrier) = (&pool, &barrier);
                scope.spawn(move || send_batch(stream, pool, 1024, share, barrier).unwrap());
            }
            receiving.join().unwrap().unwrap();
        });
        let read = |slot: usize, block: &mut [u8]| sink.read(slot, block);
        assert_eq!(Check::All.wrong_blocks(&SHAPE, &moves, 11, read), (0, 600));
        assert_eq!(Check::All.wrong_blocks(&SHAPE, &moves, 12, |s, b| sink.read(s, b)).0, 600);
    }

    #[test]
    fn a_place_outside_or_given_twice_is_refused() {
        for header in [vec![1u64, 600], vec![2, 5, 5]] {
            let (mut sink, mut streams) = connected(1);
            let bytes: Vec<u8> = header.iter().flat_map(|w| w.to_le_bytes()).collect();
            streams[0].write_all(&bytes).unwrap();
            assert!(sink.receive(&SHAPE, || Ok(())).is_err(), "{header:?}");
        }
    }
}
