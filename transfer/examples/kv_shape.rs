//! A KV hand-off (25,120 scattered blocks of 32 KiB) by each transport, beside plain sockets and memcpy in the same run.
//!
//! `cargo run --release -p kvrail-transfer --example kv_shape -- [rounds] [blocks] [block bytes]`
#![allow(unsafe_code, reason = "the baselines are raw system calls")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use kvrail_transfer::*;

fn cpu_seconds() -> f64 {
    // SAFETY: fills a local.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// A permutation of `0..n`.
fn shuffled(n: usize, mut seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..n).collect();
    for i in (1..n).rev() {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        order.swap(i, (seed % (i as u64 + 1)) as usize);
    }
    order
}

#[allow(clippy::mut_from_ref, reason = "a region is shared memory; a baseline has it to itself")]
fn slice(region: &Region, offset: usize, len: usize) -> &mut [u8] {
    assert!(offset + len <= region.len());
    // SAFETY: inside the region; nothing else runs during a baseline.
    unsafe { std::slice::from_raw_parts_mut(region.as_ptr().add(offset), len) }
}

fn raw_tcp(source: &Region, target: &Region, from: &[usize], to: &[usize], block: usize, cubic: bool) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let half = from.len() / 2;
    std::thread::scope(|scope| {
        for part in [0..half, half..from.len()] {
            let mut out = TcpStream::connect(address).unwrap();
            let (mut inn, _) = listener.accept().unwrap();
            for s in [&out, &inn] {
                let s = socket2::SockRef::from(s);
                s.set_send_buffer_size(4 << 20).unwrap();
                s.set_recv_buffer_size(4 << 20).unwrap();
                if cubic {
                    s.set_tcp_congestion(b"cubic").unwrap();
                }
            }
            let (from, to) = (&from[part.clone()], &to[part]);
            scope.spawn(move || {
                for chunk in from.chunks(32) {
                    let mut bufs: Vec<_> =
                        chunk.iter().map(|b| std::io::IoSlice::new(slice(source, b * block, block))).collect();
                    let mut bufs = &mut bufs[..];
                    while !bufs.is_empty() {
                        let n = out.write_vectored(bufs).unwrap();
                        std::io::IoSlice::advance_slices(&mut bufs, n);
                    }
                }
                out.read_exact(&mut [0]).unwrap();
            });
            scope.spawn(move || {
                for chunk in to.chunks(32) {
                    let mut bufs: Vec<_> =
                        chunk.iter().map(|b| std::io::IoSliceMut::new(slice(target, b * block, block))).collect();
                    let mut bufs = &mut bufs[..];
                    while !bufs.is_empty() {
                        let n = inn.read_vectored(bufs).unwrap();
                        std::io::IoSliceMut::advance_slices(&mut bufs, n);
                    }
                }
                inn.write_all(&[1]).unwrap();
            });
        }
    });
}

struct Row {
    name: &'static str,
    runs: Vec<(f64, f64)>,
}

#[tokio::main]
async fn main() {
    let mut args = std::env::args().skip(1).map(|a| a.parse::<usize>().expect("a number"));
    let rounds = args.next().unwrap_or(5);
    let blocks = args.next().unwrap_or(25_120);
    let block = args.next().unwrap_or(32 << 10);
    let len = blocks * block;
    let gb = len as f64 / 1e9;
    let engine = |kind| Engine::start(EngineConfig { transports: vec![kind], ..Default::default() }).unwrap();
    let mut rigs = Vec::new();
    for kind in [TransportKind::Tcp, TransportKind::Shm] {
        let (a, b) = (engine(kind), engine(kind));
        let peer = a.connect(b.local_addr(), None).await.unwrap();
        rigs.push((kind, a, b, peer));
    }
    let source = rigs[0].1.allocate(len, MemoryKind::Shared).unwrap();
    let target = rigs[0].1.allocate(len, MemoryKind::Shared).unwrap();
    slice(&source, 0, len).fill(1);
    slice(&target, 0, len).fill(2);
    let (from, to) = (shuffled(blocks, 1), shuffled(blocks, 2));
    let ops: std::sync::Arc<Vec<Op>> = std::sync::Arc::new(
        from.iter()
            .zip(&to)
            .map(|(f, t)| Op::contiguous((f * block) as u64, (t * block) as u64, block as u64))
            .collect(),
    );
    let mut rows: Vec<Row> = ["raw-tcp-2", "raw-tcp-2-cubic", "tcp", "memcpy-1", "memcpy-2", "shm"]
        .map(|name| Row { name, runs: Vec::new() })
        .into();
    if let Ok(only) = std::env::var("ONLY") {
        rows.retain(|row| only.split(',').any(|name| name == row.name));
    }
    for round in 0..=rounds {
        for row in &mut rows {
            let (cpu, start) = (cpu_seconds(), Instant::now());
            match row.name {
                "raw-tcp-2" => raw_tcp(&source, &target, &from, &to, block, false),
                "raw-tcp-2-cubic" => raw_tcp(&source, &target, &from, &to, block, true),
                "memcpy-1" => {
                    for (f, t) in from.iter().zip(&to) {
                        slice(&target, t * block, block).copy_from_slice(slice(&source, f * block, block));
                    }
                }
                "memcpy-2" => std::thread::scope(|scope| {
                    for part in [0..blocks / 2, blocks / 2..blocks] {
                        let (from, to) = (&from[part.clone()], &to[part]);
                        let (source, target) = (&source, &target);
                        scope.spawn(move || {
                            for (f, t) in from.iter().zip(to) {
                                slice(target, t * block, block).copy_from_slice(slice(source, f * block, block));
                            }
                        });
                    }
                }),
                name => {
                    let (_, a, b, peer) = &rigs[usize::from(name == "shm")];
                    let range = ByteRange { offset: 0, len: len as u64 };
                    let ttl = std::time::Duration::from_secs(60);
                    let ask = LeaseRequest { region: &target, ranges: vec![range], access: Access::Write, ttl };
                    let lease = b.grant(ask).unwrap();
                    let ticket = lease.ticket();
                    let mut request = TransferRequest::new(&source, &ticket, Direction::Write, Vec::new());
                    request.ops = ops.clone();
                    let transfer = a.submit(peer, request).unwrap();
                    let submit = start.elapsed();
                    let report = transfer.await;
                    assert_eq!(report.status, Ok(()), "{report:?}");
                    if round == 0 {
                        println!("{name}: submit {submit:?}, queued {:?}, wire {:?}", report.queued, report.wire);
                    }
                }
            }
            let (wall, cpu) = (start.elapsed().as_secs_f64(), cpu_seconds() - cpu);
            // The first round warms up.
            if round > 0 {
                row.runs.push((gb / wall, cpu / gb));
            }
        }
    }
    let median = |values: &mut Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    for row in &rows {
        let speed = median(&mut row.runs.iter().map(|r| r.0).collect());
        let cpu = median(&mut row.runs.iter().map(|r| r.1).collect());
        println!("{:16} {speed:6.2} GB/s  {cpu:6.3} CPU-s/GB", row.name);
    }
}
