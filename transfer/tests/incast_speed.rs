//! Many senders into one slow link: what arrives, how it is shared, how long a short transfer takes, what becomes of a cheat.
//!
//! Measured, not judged: every number is printed as `value NAME: NUMBER`, and suite `incast` holds it against its bound. Over TCP each engine
//! runs in a network namespace of its own, which the suite has made: `KVRAIL_INCAST` names them, the receiver first, with the addresses
//! of their one rail (`ns0=10.78.0.1,ns1=10.78.0.2`). Over RDMA it runs in the soft-RoCE machine, on the first NIC of five hosts.

#[allow(unused_macros, reason = "another test's")]
mod common;

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::*;
use kvrail_transfer::*;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::sync::Semaphore;

/// Bytes of a transfer of those who always have more, and how many each has under way.
const LEN: usize = 256 << 10;
const DEPTH: usize = 16;
/// Bytes of a write over RDMA.
const WRITE: usize = 64 << 10;
/// Bytes of a short transfer.
const SHORT: usize = 64 << 10;
/// Of one that is a little longer; told, not judged.
const MIDDLE: usize = 256 << 10;

/// Seconds of a measurement, and rounds of it.
fn measure_for() -> (Duration, usize) {
    let full = std::env::var("KVRAIL_ROUNDS").map_or(1, |rounds| rounds.parse().expect("a number of rounds"));
    (if full > 1 { Duration::from_secs(4) } else { Duration::from_millis(1500) }, full)
}

fn value(name: &str, value: f64) {
    println!("value {name}: {value:.4}");
}

/// A host: the namespace that its threads run in, and its address.
#[derive(Clone)]
struct Host {
    namespace: Option<String>,
    address: IpAddr,
}

impl Host {
    /// Runs `f` in a thread of this host.
    fn run<T: Send + 'static>(&self, f: impl FnOnce() -> T + Send + 'static) -> T {
        let namespace = self.namespace.clone();
        let thread = std::thread::spawn(move || {
            if let Some(name) = namespace {
                let file = std::fs::File::open(format!("/run/netns/{name}")).expect("the namespace");
                move_into_link_name_space(std::os::fd::AsFd::as_fd(&file), Some(LinkNameSpaceType::Network))
                    .expect("root moves into it");
            }
            f()
        });
        thread.join().expect("a host's thread")
    }

    fn engine(&self, config: EngineConfig) -> Engine {
        self.run(move || Engine::start(config).expect("an engine starts"))
    }
}

/// Hosts of the TCP part, the receiver first.
fn tcp_hosts() -> Vec<Host> {
    let text = std::env::var("KVRAIL_INCAST").expect("KVRAIL_INCAST names the hosts");
    let host = |text: &str| {
        let (name, address) = text.split_once('=').expect("NAMESPACE=ADDRESS");
        Host { namespace: Some(name.to_owned()), address: address.parse().expect("an address") }
    };
    text.split(',').map(host).collect()
}

/// As deployed, but for what is given.
fn tcp_config(host: &Host) -> EngineConfig {
    EngineConfig {
        listen: SocketAddr::new(host.address, 0),
        tcp_rails: vec![format!("{}/24", host.address).parse().unwrap()],
        transports: vec![TransportKind::Tcp],
        tcp_congestion: std::env::var("KVRAIL_CONGESTION").ok(),
        tenant_weights: vec![(TenantId(1), 1), (TenantId(2), 2), (TenantId(4), 4)],
        ..EngineConfig::default()
    }
}

/// One sender's part of a measurement.
struct Flow {
    engine: Engine,
    peer: Peer,
    source: Region,
    lease: Lease,
    tenant: TenantId,
}

impl Flow {
    async fn new(engine: Engine, owner: &Engine, tenant: u32) -> Self {
        let peer = within(engine.connect(owner.local_addr(), None)).await.expect("connects");
        let (source, target) = (region(&engine, LEN, &pattern(tenant.into(), LEN)), region(owner, LEN, &[]));
        let ranges = vec![ByteRange { offset: 0, len: LEN as u64 }];
        let ask = LeaseRequest { region: &target, ranges, access: Access::Write, ttl: Duration::from_secs(3600) };
        let lease = owner.grant(ask).expect("a lease");
        Self { engine, peer, source, lease, tenant: TenantId(tenant) }
    }

    fn submit(&self, bytes: usize) -> Result<Transfer, SubmitError> {
        let (ticket, ops) = (self.lease.ticket(), vec![Op::contiguous(0, 0, bytes as u64)]);
        let ask = request(&self.source, &ticket, Direction::Write, ops);
        self.engine.submit(&self.peer, TransferRequest { tenant: self.tenant, ..ask })
    }

    /// Always has so many transfers under way until it is told to stop, or cut. Counts bytes of those that landed.
    async fn flood(&self, depth: usize, landed: &AtomicU64, stop: &AtomicBool) {
        let mut under_way = std::collections::VecDeque::new();
        while !stop.load(Ordering::Relaxed) {
            while under_way.len() < depth {
                match self.submit(LEN) {
                    Ok(transfer) => under_way.push_back(transfer),
                    Err(_) => return,
                }
            }
            let report = under_way.pop_front().expect("there is one").await;
            if report.status.is_err() {
                return;
            }
            landed.fetch_add(report.bytes, Ordering::Relaxed);
        }
        for transfer in under_way {
            transfer.await;
        }
    }
}

/// All of them at it; what each landed in the time after a warm-up, in bytes a second. `during` runs in that time.
async fn flood<T>(flows: &[&Flow], time: Duration, during: impl Future<Output = T>) -> (Vec<f64>, T) {
    let landed: Vec<AtomicU64> = flows.iter().map(|_| AtomicU64::new(0)).collect();
    let stop = AtomicBool::new(false);
    let floods =
        futures_all(flows.iter().zip(&landed).map(|(flow, landed)| flow.flood(DEPTH, landed, &stop)).collect());
    let measure = async {
        tokio::time::sleep(Duration::from_millis(700)).await;
        let read = || landed.iter().map(|l| l.load(Ordering::Relaxed)).collect::<Vec<_>>();
        let (before, start) = (read(), Instant::now());
        let (result, ()) = tokio::join!(during, tokio::time::sleep(time));
        let took = start.elapsed().as_secs_f64();
        let rates = read().iter().zip(before).map(|(after, before)| (after - before) as f64 / took).collect();
        stop.store(true, Ordering::Relaxed);
        (rates, result)
    };
    let ((), measured) = tokio::join!(floods, measure);
    measured
}

/// Joins futures that are polled by one task.
async fn futures_all<F: Future<Output = ()>>(futures: Vec<F>) {
    let mut futures: Vec<_> = futures.into_iter().map(|f| Some(Box::pin(f))).collect();
    std::future::poll_fn(|context| {
        for slot in &mut futures {
            if slot.as_mut().is_some_and(|f| f.as_mut().poll(context).is_ready()) {
                *slot = None;
            }
        }
        if futures.iter().all(Option::is_none) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

/// (Σx)² / (n Σx²): 1 where all are equal.
fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    sum * sum / (shares.len() as f64 * shares.iter().map(|x| x * x).sum::<f64>())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn quantile(mut values: Vec<f64>, q: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() as f64 * q) as usize).min(values.len() - 1)]
}

/// Plain sockets, one a sender, each writing all it can; bytes a second that arrive.
fn plain(receiver: &Host, senders: &[Host], time: Duration) -> f64 {
    let (address, stop, arrived) = (receiver.address, Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let listener = receiver.run(move || TcpListener::bind((address, 0)).expect("a listener"));
    let to = listener.local_addr().expect("bound");
    let mut threads = Vec::new();
    for sender in senders {
        let mut socket = sender.run(move || TcpStream::connect(to).expect("connects"));
        let (mut far, _) = listener.accept().expect("accepts");
        let (until, counter) = (Arc::clone(&stop), Arc::clone(&arrived));
        threads.push(std::thread::spawn(move || {
            let block = vec![7; LEN];
            while !until.load(Ordering::Relaxed) && socket.write_all(&block).is_ok() {}
        }));
        threads.push(std::thread::spawn(move || {
            let mut block = vec![0; LEN];
            while let Ok(n @ 1..) = far.read(&mut block) {
                counter.fetch_add(n as u64, Ordering::Relaxed);
            }
        }));
    }
    std::thread::sleep(Duration::from_millis(700));
    let (before, start) = (arrived.load(Ordering::Relaxed), Instant::now());
    std::thread::sleep(time);
    let rate = (arrived.load(Ordering::Relaxed) - before) as f64 / start.elapsed().as_secs_f64();
    stop.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| drop(thread.join()));
    rate
}

/// Seconds that short transfers take, one every 40 ms.
async fn shorts(flow: &Flow, bytes: usize, times: usize) -> Vec<f64> {
    let mut took = Vec::new();
    for _ in 0..times {
        let start = Instant::now();
        let report = flow.submit(bytes).expect("accepted").await;
        assert_eq!(report.status, Ok(()));
        took.push(start.elapsed().as_secs_f64());
        tokio::time::sleep(Duration::from_millis(40)).await;
    }
    took
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "network namespaces are named in KVRAIL_INCAST: suite incast makes them"]
async fn over_tcp() {
    let (time, rounds) = measure_for();
    let hosts = tcp_hosts();
    let (receiver, senders) = (hosts[0].clone(), &hosts[1..]);
    let owner = receiver.engine(tcp_config(&receiver));
    let mut flows = Vec::new();
    for sender in senders {
        flows.push(Flow::new(sender.engine(tcp_config(sender)), &owner, 0).await);
    }
    let all: Vec<&Flow> = flows.iter().collect();

    let (mut ours, mut theirs, mut fair) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds.max(1) {
        let (rates, ()) = flood(&all, time, async {}).await;
        ours.push(rates.iter().sum::<f64>());
        fair.push(jain(&rates));
        let (receiver, senders) = (receiver.clone(), senders.to_vec());
        theirs.push(tokio::task::spawn_blocking(move || plain(&receiver, &senders, time)).await.unwrap());
    }
    value("tcp engine MB/s", median(ours.clone()) / 1e6);
    value("tcp plain sockets MB/s", median(theirs.clone()) / 1e6);
    value("tcp ratio", median(ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs).collect()));
    value("tcp jain", fair.iter().copied().fold(1.0, f64::min));

    // A short transfer alone, and among those who always have more.
    // Of three hundred, for a ninety-ninth percentile that is more than the worst but one.
    let times = if rounds > 1 { 300 } else { 15 };
    let alone = median(shorts(&flows[0], SHORT, 15).await);
    let busy: Vec<&Flow> = flows[1..].iter().collect();
    let (rates, took) = flood(&busy, time, shorts(&flows[0], SHORT, times)).await;
    value("tcp short alone ms", alone * 1e3);
    value("tcp short p50 ms", median(took.clone()) * 1e3);
    value("tcp short p99 ms", quantile(took, 0.99) * 1e3);
    let (_, took) = flood(&busy, time, shorts(&flows[0], MIDDLE, 15)).await;
    value("tcp 256 KiB p50 ms", median(took) * 1e3);
    // What one slice takes on this link: 8 ms, and 256 KiB at least.
    let line = median(theirs.clone());
    value("tcp slice ms", ((256 << 10) as f64 / line).max(8e-3) * 1e3);
    value("tcp with shorts MB/s", rates.iter().sum::<f64>() / 1e6);

    // Three tenants by weight.
    let weighted = [1, 2, 4].map(|weight| weight as f64);
    let mut tenants = Vec::new();
    for (flow, tenant) in flows.iter().zip([1, 2, 4]) {
        tenants.push(Flow::new(flow.engine.clone(), &owner, tenant).await);
    }
    let (rates, ()) = flood(&tenants.iter().collect::<Vec<_>>(), time, async {}).await;
    let sum: f64 = rates.iter().sum();
    for (rate, weight) in rates.iter().zip(weighted) {
        value(&format!("tcp weight {weight}"), rate / sum * 7.0 / weight);
    }
    value("tcp weights MB/s", sum / 1e6);
    drop(tenants);

    // One that ignores its limit joins in place of the last.
    flows.pop();
    let faults = Some(FaultPlan { ignores_limits: true, ..FaultPlan::default() });
    let host = senders.last().expect("a sender");
    let cheat = host.engine(EngineConfig { faults, ..tcp_config(host) });
    let cheat = Flow::new(cheat, &owner, 0).await;
    let honest: Vec<&Flow> = flows.iter().collect();
    let (landed, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let (rates, cut_after) = flood(&honest, time, async {
        let start = Instant::now();
        let lost = tokio::time::timeout(LONG, cheat.peer.lost());
        let (_, lost) = tokio::join!(cheat.flood(DEPTH, &landed, &stop), lost);
        if lost.is_ok() { start.elapsed().as_secs_f64() } else { f64::INFINITY }
    })
    .await;
    value("tcp cheat cut after ms", cut_after * 1e3);
    let honest_rate: f64 = rates.iter().sum();
    value("tcp beside a cheat ratio", honest_rate / line);
    value("tcp beside a cheat jain", jain(&rates));
    assert_eq!(owner.stats().rejections["overdrawn"], 1, "{:?}", owner.stats().rejections);
}

/// Packets that the switch dropped before the receiver's link.
fn drops() -> u64 {
    let said = Command::new("tc").args(["-s", "qdisc", "show", "dev", "sa0", "root"]).output().expect("tc");
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let told = said.split("dropped ").nth(1).and_then(|rest| rest.split([',', ' ']).next()?.parse().ok());
    told.unwrap_or_else(|| panic!("no drops told: {said}"))
}

/// How four RDMA senders are held back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hold {
    /// Each has [`DEPTH`] writes under way, and the receiver gives credit.
    Credits,
    /// The same, and the last one ignores its limit.
    Cheat,
    /// No credits: so many writes under way, all senders together, which somebody would have to know.
    Cap(usize),
}

/// One round of four RDMA senders.
async fn rdma_round(hold: Hold, time: Duration) -> Round {
    let nic = |host: usize| vec![format!("rx{}0", ["a", "b", "c", "d", "e"][host]).parse().expect("a NIC")];
    let engine = |host: usize| {
        let cheats = hold == Hold::Cheat && host == 4;
        let faults = cheats.then(|| FaultPlan { ignores_limits: true, ..FaultPlan::default() });
        let (transports, rdma_rails) = (vec![TransportKind::Rdma], nic(host));
        let credits = !matches!(hold, Hold::Cap(_));
        let config = EngineConfig { transports, rdma_rails, credits, faults, ..EngineConfig::default() };
        Engine::start(config).expect("an engine starts")
    };
    let owner = engine(0);
    let mut flows = Vec::new();
    for host in 1..5 {
        flows.push(Flow::new(engine(host), &owner, 0).await);
    }
    let (stop, from) = (AtomicBool::new(false), Instant::now() + Duration::from_millis(700));
    let measured: Vec<Mutex<Vec<(f64, f64)>>> = flows.iter().map(|_| Mutex::default()).collect();
    let (cap, depth) = if let Hold::Cap(writes) = hold { (writes, 1) } else { (4 * DEPTH, DEPTH) };
    let cap = Semaphore::new(cap);
    let moved = || measured.iter().map(|times| times.lock().unwrap().len()).sum::<usize>();
    let tasks = futures_all(
        flows
            .iter()
            .zip(&measured)
            .map(|(flow, into)| async {
                let mut under_way = std::collections::VecDeque::new();
                while !stop.load(Ordering::Relaxed) {
                    while under_way.len() < depth {
                        let permit = cap.acquire().await;
                        match flow.submit(WRITE) {
                            Ok(transfer) => under_way.push_back((Instant::now(), transfer, permit)),
                            Err(_) => return,
                        }
                    }
                    let (at, transfer, permit) = under_way.pop_front().expect("there is one");
                    let report = transfer.await;
                    drop(permit);
                    if report.status.is_err() {
                        return;
                    }
                    if at >= from {
                        let wire = report.wire.as_secs_f64();
                        into.lock().unwrap().push((wire + report.queued.as_secs_f64(), wire));
                    }
                }
                for (_, transfer, _) in under_way {
                    transfer.await;
                }
            })
            .collect(),
    );
    let clock = async {
        tokio::time::sleep(Duration::from_millis(700)).await;
        let (before, dropped, begun) = (moved(), drops(), Instant::now());
        tokio::time::sleep(time).await;
        let bytes = (moved() - before) * WRITE;
        let result = (bytes as f64 / begun.elapsed().as_secs_f64(), drops() - dropped);
        stop.store(true, Ordering::Relaxed);
        result
    };
    let cut = async {
        // Before the receiver limits anybody there is nothing to ignore.
        let limits = async {
            let mut begun = Instant::now();
            while owner.stats().senders_limited == 0 {
                begun = Instant::now(); // it may have begun right after that look
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            flows[3].peer.lost().await;
            begun.elapsed().as_secs_f64()
        };
        let is_cut = async { if hold == Hold::Cheat { Some(limits.await) } else { None } };
        tokio::time::timeout(time + Duration::from_millis(700), is_cut).await.ok().flatten()
    };
    let ((), (rate, dropped), cut) = tokio::join!(tasks, clock, cut);
    let times: Vec<(f64, f64)> = measured.iter().flat_map(|times| times.lock().unwrap().clone()).collect();
    let (whole, wire) = times.into_iter().unzip();
    Round { rate, whole, wire, dropped, cut }
}

/// What four RDMA senders were seen to do.
struct Round {
    /// Bytes a second.
    rate: f64,
    /// Seconds of each write, from its submission and from its first slice.
    whole: Vec<f64>,
    wire: Vec<f64>,
    /// Packets that the switch dropped.
    dropped: u64,
    /// Seconds from the first limit until the last sender was cut, if it was.
    cut: Option<f64>,
}

#[tokio::test]
#[ignore = "the first RDMA NICs of five hosts of the soft-RoCE machine"]
async fn over_rdma() {
    let (time, rounds) = measure_for();
    let status = Command::new("rail").args(["limit", "a0", "400mbit"]).status().expect("rail is on the guest's PATH");
    assert!(status.success());
    let (mut ours, mut whole, mut wire, mut dropped) = (vec![], vec![], vec![], 0);
    let (mut capped, mut capped_wire) = (vec![], vec![]);
    for _ in 0..rounds.max(1) {
        let round = rdma_round(Hold::Credits, time).await;
        ours.push(round.rate);
        whole.extend(round.whole);
        wire.extend(round.wire);
        dropped += round.dropped;
        // The static cap: two writes under way, all senders together.
        let round = rdma_round(Hold::Cap(2), time).await;
        capped.push(round.rate);
        capped_wire.extend(round.wire);
    }
    value("rdma engine MB/s", median(ours.clone()) / 1e6);
    value("rdma two in flight MB/s", median(capped.clone()) / 1e6);
    // What the guest's one processor makes of a write that waits for nobody.
    value("rdma two in flight p99 ms", quantile(capped_wire, 0.99) * 1e3);
    value("rdma ratio", median(ours.iter().zip(&capped).map(|(ours, capped)| ours / capped).collect()));
    value("rdma drops after the first round trip", dropped as f64);
    value("rdma p50 post to visible ms", median(wire.clone()) * 1e3);
    value("rdma p99 post to visible ms", quantile(wire, 0.99) * 1e3);
    // Four senders with so much outstanding each, served alike.
    let fair = (4 * DEPTH * WRITE) as f64 / median(ours);
    value("rdma p99 from submit, of fair", quantile(whole, 0.99) / fair);
    let round = rdma_round(Hold::Cheat, time).await;
    value("rdma cheat cut after ms", round.cut.map_or(f64::INFINITY, |cut| cut * 1e3));
    value("rdma beside a cheat MB/s", round.rate / 1e6);
}
