//! The engine beside a bare loop over verbs, on the same NICs: one queue pair, as many bytes a request, as many requests under way.
//! In the soft-RoCE machine, where one CPU does the work of both ends and of the NICs, so what the engine costs shows.

#[allow(unused_macros, reason = "another test's")]
mod common;

use std::ptr::NonNull;
use std::time::{Duration, Instant};

use common::*;
use kvrail_transfer::*;
use kvrail_verbs::{
    Access as Rights, Capacity, Completion, CompletionChannel, CompletionQueue, Data, Flags, GidEntry, GidKind,
    MemoryRegion, Mtu, Operation, Path, ProtectionDomain, QueuePair, Remote, Segment, SendChain, ToInit, ToRtr, ToRts,
    Verbs,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const LEN: usize = 48 << 20;
/// Requests under way in the bare loop.
const DEPTH: usize = 8;
/// Pairs of runs behind a ratio.
const PAIRS: usize = 9;

/// One end of the bare loop.
struct End {
    gid: GidEntry,
    lid: u16,
    channel: CompletionChannel,
    queue: CompletionQueue,
    pair: QueuePair,
    memory: MemoryRegion,
    address: u64,
    _domain: ProtectionDomain,
}

impl End {
    fn new(name: &str, region: &Region) -> Self {
        let verbs = Verbs::open().unwrap();
        let context = verbs.devices().unwrap().find(name).expect("the device").open().unwrap();
        let gids = context.gids(1).unwrap();
        let gid = gids.into_iter().find(|gid| gid.kind == GidKind::RoceV2 && gid.gid.is_ipv4()).expect("an address");
        let domain = context.protection_domain().unwrap();
        let channel = context.completion_channel().unwrap();
        let queue = context.completion_queue(256, Some(&channel)).unwrap();
        let pair = domain.queue_pair(&queue).capacity(Capacity::default()).build().unwrap();
        let access = Rights::REMOTE_WRITE | Rights::REMOTE_READ;
        pair.to_init(ToInit { port: 1, pkey_index: 0, access }).unwrap();
        let address = NonNull::new(region.as_ptr()).unwrap();
        // SAFETY: the caller keeps the region for as long as this lives, and nobody relies on what is in it.
        let memory = unsafe { domain.register(address, region.len(), access | Rights::LOCAL_WRITE) }.unwrap();
        let lid = context.port(1).unwrap().lid;
        Self { gid, lid, channel, queue, pair, memory, address: region.as_ptr() as u64, _domain: domain }
    }

    fn connect(&self, to: &Self) {
        let path = Path {
            port: 1,
            source_gid_index: self.gid.index as u8,
            destination_gid: Some(to.gid.gid),
            destination_lid: to.lid,
            service_level: 0,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
        };
        let (mtu, destination) = (Mtu::B4096, to.pair.number());
        let rtr = ToRtr { path, mtu, destination, receive_sequence: 1, reads_answered: 16, not_ready_timer: 12 };
        self.pair.to_rtr(rtr).unwrap();
        let rts = ToRts { timeout: 14, retries: 7, not_ready_retries: 7, send_sequence: 1, reads_started: 16 };
        self.pair.to_rts(rts).unwrap();
    }

    /// Waits for an event of the queue.
    fn wait(&self) {
        let mut channel = [PollFd::new(&self.channel, PollFlags::IN)];
        poll(&mut channel, Some(&Timespec { tv_sec: 10, tv_nsec: 0 })).unwrap();
        while self.channel.event().unwrap().is_some() {}
    }

    /// Writes blocks from one place to another, [`DEPTH`] at a time, and returns how long that took.
    fn write(&self, to: &Self, blocks: &[(u64, u64)], bytes: u32) -> Duration {
        let (start, mut next, mut out) = (Instant::now(), 0, 0);
        let mut room = [Completion::default(); 16];
        while next < blocks.len() || out > 0 {
            while out < DEPTH && next < blocks.len() {
                let (from, at) = blocks[next];
                let mut chain = SendChain::with_capacity(1, 1, 0);
                let segment = Segment { address: self.address + from, bytes, lkey: self.memory.lkey() };
                let remote = Remote { address: to.address + at, rkey: to.memory.rkey() };
                chain.push(0, Operation::Write(remote), Data::Segments(&[segment]), Flags::SIGNALED).unwrap();
                self.pair.post_send(&mut chain).unwrap();
                (next, out) = (next + 1, out + 1);
            }
            let mut done = self.queue.poll(&mut room).unwrap().len();
            if done == 0 {
                self.queue.request_event(false).unwrap();
                done = self.queue.poll(&mut room).unwrap().len();
                if done == 0 {
                    self.wait();
                }
            }
            assert!(room[..done].iter().all(Completion::is_success));
            out -= done;
        }
        start.elapsed()
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Blocks of so many bytes: one after the other, or scattered at both ends.
fn places(bytes: usize, scattered: bool) -> Vec<(u64, u64)> {
    let count = LEN / bytes;
    // Steps that share no factor with the counts that there are.
    let (from, to) = if scattered { (7, 11) } else { (1, 1) };
    (0..count).map(|i| ((i * from % count * bytes) as u64, (i * to % count * bytes) as u64)).collect()
}

#[tokio::test]
#[ignore = "in the soft-RoCE machine, two hosts: KVRAIL_TEST_RDMA=rxa0/rxb0"]
async fn the_engine_keeps_up_with_a_bare_loop() {
    let nics = std::env::var("KVRAIL_TEST_RDMA").unwrap();
    let (near, far) = nics.split_once('/').unwrap();
    let one = || Engine::start(EngineConfig { streams_per_peer: 1, ..config(TransportKind::Rdma) }).unwrap();
    let (a, b) = (one(), one());
    let peer = within(a.connect(b.local_addr(), None)).await.unwrap();
    let (source, target) = (region(&a, LEN, &pattern(1, LEN)), region(&b, LEN, &[]));
    // Longer than all of this takes on a slow machine.
    let ranges = vec![ByteRange { offset: 0, len: target.len() as u64 }];
    let ttl = Duration::from_secs(3600);
    let lease = b.grant(LeaseRequest { region: &target, ranges, access: Access::Write, ttl }).unwrap();
    let ticket = lease.ticket();
    let ends = [End::new(near, &source), End::new(far, &target)];
    ends[0].connect(&ends[1]);
    ends[1].connect(&ends[0]);
    for (name, bytes, scattered) in
        [("64 KiB", 64 << 10, false), ("1 MiB", 1 << 20, false), ("scattered 32 KiB", 32 << 10, true)]
    {
        let places = places(bytes, scattered);
        let ops = || places.iter().map(|(from, to)| Op::contiguous(*from, *to, bytes as u64)).collect();
        let (mut ratios, mut ours, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
        let before = a.stats();
        for pair in 0..=PAIRS {
            let engine = async {
                target.write(0, &vec![0; LEN]);
                let start = Instant::now();
                let report = within(a.submit(&peer, request(&source, &ticket, Direction::Write, ops())).unwrap()).await;
                let took = start.elapsed();
                assert_eq!(report.status, Ok(()));
                took
            };
            let bare = || {
                target.write(0, &vec![0; LEN]);
                ends[0].write(&ends[1], &places, bytes as u32)
            };
            let (engine, bare) = if pair % 2 == 0 {
                let engine = engine.await;
                (engine, bare())
            } else {
                let bare = bare();
                (engine.await, bare)
            };
            // The first pair warms up.
            if pair > 0 {
                ratios.push(bare.as_secs_f64() / engine.as_secs_f64());
                ours.push(LEN as f64 / engine.as_secs_f64() / 1e6);
                theirs.push(LEN as f64 / bare.as_secs_f64() / 1e6);
            }
        }
        let gigabytes = ((PAIRS + 1) * LEN) as f64 / 1e9;
        let after = a.stats();
        let a_gigabyte = |count: fn(&EngineStats) -> u64| (count(&after) - count(&before)) as f64 / gigabytes;
        println!(
            "figure {name}: {:.3} of a bare loop's {:.0} MB/s ({:.0}; {PAIRS} pairs, ratios {:.3} to {:.3}), {:.0} work requests and \
             {:.0} doorbells a GB, {:.0} blocks",
            median(ratios.clone()),
            median(theirs),
            median(ours),
            ratios.iter().copied().fold(f64::MAX, f64::min),
            ratios.iter().copied().fold(0.0, f64::max),
            a_gigabyte(|stats| stats.work_requests),
            a_gigabyte(|stats| stats.doorbells),
            1e9 / bytes as f64,
        );
        println!("ratio {name}: {:.4}", median(ratios));
    }
}
