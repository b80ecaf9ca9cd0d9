//! Late writes through the main job: real prefill and decode services under seeded schedules. Slices are held back past the
//! cancellation, the deadline or the loss of the request that they are for, nodes stand still and are restarted, and a small
//! pool gives the memory on at once. The mock's answers hang on every byte of KV, so what lands late is a wrong token.
//!
//! `KVRAIL_SEEDS=n` runs n schedules; `KVRAIL_SEED=s` runs that one alone (a failure prints it). `KVRAIL_TEST_RDMA=rxa0/rxb0` has KV go over
//! RDMA between those NICs, in the soft-RoCE machine.

mod common;

use std::sync::Mutex;
use std::time::{Duration, Instant};

use common::prefill::Prefill;
use common::{Answer, Decode, config_of, expected, is_idle, model, prompt, request, seeded};
use kvrail_engine::mock::{MockOptions, StepModel};
use kvrail_node::{ModelSource, NodeConfig, PoolSize, Role};
use kvrail_proto::v1;
use kvrail_transfer::{FaultPlan, RdmaRail, TransportKind};
use tokio::time::{sleep, timeout};

/// Requests of a schedule.
const REQUESTS: u64 = 32;
/// They come within so many milliseconds.
const WINDOW_MS: u64 = 600;
/// Longest that a slice is held back, in milliseconds: less than what makes a sender give a stream up, so that nothing but the
/// lease keeps it out.
const DELAY_MAX_MS: u64 = 90;
/// Longest that a stream or a node stands still, in milliseconds.
const STILL_MAX_MS: u64 = 300;
/// By when every request has ended and every counter is at zero, however busy the machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A generator of our own, so that a schedule depends on its seed alone.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % bound.max(1)
    }

    fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low)
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn millis(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_millis(self.within(low, high))
    }
}

/// How a request's client behaves.
#[derive(Clone, Copy)]
struct Client {
    comes_after: Duration,
    /// Goes away so long after it was admitted: its prompt's KV is on the way then.
    leaves_after: Option<Duration>,
    /// Wants its answer by then.
    deadline: Option<Duration>,
}

/// What happens to a prefill node.
#[derive(Clone, Copy)]
enum Event {
    /// Its service stands still.
    Stall(Duration),
    /// It is lost and comes back under a new generation.
    Restart,
}

struct Schedule {
    transport: TransportKind,
    pool_blocks: u32,
    /// Part of an answer's growth that the decode node reserves; without it blocks are taken from those that run.
    growth_reserved: f64,
    prefill: [FaultPlan; 2],
    requests: Vec<(v1::GenerateRequest, Client)>,
    /// In order of time: after how long, to which node, what.
    events: Vec<(Duration, usize, Event)>,
}

impl Schedule {
    fn of(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let transport = if dice.one_in(2) { TransportKind::Tcp } else { TransportKind::Shm };
        let transport = if nics().is_some() { TransportKind::Rdma } else { transport };
        let prefill = [0, 1].map(|_| faults(&mut dice));
        let requests = (0..REQUESTS).map(|n| (ask(&mut dice, n), client(&mut dice))).collect();
        let mut events: Vec<_> = (0..4)
            .map(|n| {
                let event = if n == 0 { Event::Restart } else { Event::Stall(dice.millis(50, STILL_MAX_MS)) };
                (dice.millis(50, WINDOW_MS), dice.below(2) as usize, event)
            })
            .collect();
        events.sort_by_key(|event| event.0);
        let pool_blocks = dice.within(24, 48) as u32;
        let growth_reserved = if dice.one_in(3) { 0.0 } else { 1.0 };
        Self { transport, pool_blocks, growth_reserved, prefill, requests, events }
    }
}

/// NICs of the prefill nodes and of the decode node.
fn nics() -> Option<[Vec<RdmaRail>; 2]> {
    let named = std::env::var("KVRAIL_TEST_RDMA").ok()?;
    let (prefill, decode) = named.split_once('/').expect("two sides");
    Some([prefill, decode].map(|side| side.split(',').map(|nic| nic.parse().expect("a NIC")).collect()))
}

fn faults(dice: &mut Dice) -> FaultPlan {
    FaultPlan {
        seed: dice.below(u64::MAX),
        drop_permille: if dice.one_in(4) { 20 } else { 0 },
        duplicate_permille: 100,
        reorder_permille: 100,
        delay_permille: dice.within(200, 700) as u16,
        delay: dice.millis(20, DELAY_MAX_MS),
        freeze_after: dice.one_in(3).then(|| dice.within(3, 30) as u32),
        freeze: dice.millis(50, STILL_MAX_MS),
        ..FaultPlan::default()
    }
}

/// Some share a prefix, so that a cached block that changed is seen as well.
fn ask(dice: &mut Dice, n: u64) -> v1::GenerateRequest {
    let shared = dice.below(5) as usize * 16;
    let own = dice.within(10, 180) as usize;
    let salt = dice.below(u64::from(u32::MAX)) as u32;
    let tokens = [prompt(dice.below(3) as u32, shared), prompt(salt | 4, own)].concat();
    let outputs = dice.within(2, 16) as u32;
    let asked = if dice.one_in(2) { request(tokens, outputs) } else { seeded(tokens, outputs, n) };
    v1::GenerateRequest { request_id: format!("r{n}"), ..asked }
}

fn client(dice: &mut Dice) -> Client {
    Client {
        comes_after: dice.millis(0, WINDOW_MS),
        leaves_after: dice.one_in(3).then(|| dice.millis(1, 150)),
        deadline: dice.one_in(4).then(|| dice.millis(20, 500)),
    }
}

/// What a schedule broke.
enum Broken {
    /// A token that one node alone would not have said.
    Wrong(String),
    /// A request that should have been answered was not, or something is still held for it.
    Left(String),
}

/// What a schedule came to.
#[derive(Default)]
struct Tally {
    whole: u64,
    cancelled: u64,
    late: u64,
    /// Slices that came after their lease had ended.
    refused: u64,
}

impl Tally {
    fn add(&mut self, other: &Self) {
        self.whole += other.whole;
        self.cancelled += other.cancelled;
        self.late += other.late;
        self.refused += other.refused;
    }
}

fn timed() -> MockOptions {
    let step =
        StepModel::Constant { prefill_per_token: Duration::from_micros(50), decode_step: Duration::from_millis(3) };
    MockOptions { step, ..model() }
}

async fn start_prefill(index: usize, schedule: &Schedule) -> Prefill {
    let source = ModelSource::Mock(timed());
    let mut node = NodeConfig::local(format!("p{index}"), Role::Prefill, source, PoolSize::Blocks(512));
    node.transfer.transports = vec![schedule.transport];
    node.transfer.rdma_rails = nics().map(|[prefill, _]| prefill).unwrap_or_default();
    node.transfer.faults = Some(schedule.prefill[index].clone());
    Prefill::start_node(node).await
}

async fn start_decode(schedule: &Schedule) -> Decode {
    let mut config = config_of(timed(), schedule.pool_blocks);
    config.node.transfer.transports = vec![schedule.transport];
    config.node.transfer.rdma_rails = nics().map(|[_, decode]| decode).unwrap_or_default();
    // A node that stands still is given up while it is still alive, and asked again at once.
    (config.prefill_answer_max, config.prefill_silence_max) = (Duration::from_millis(150), Duration::from_millis(150));
    config.prefill_suspect = Duration::ZERO;
    config.growth_reserved = schedule.growth_reserved;
    Decode::start(config).await
}

/// Whether an answer is whole; the tokens that came must be those of one node alone.
fn is_whole(asked: &v1::GenerateRequest, answer: &Answer) -> Result<bool, Broken> {
    let (tokens, _) = expected(asked);
    if tokens.starts_with(&answer.tokens) {
        return Ok(answer.done.is_some() && answer.tokens.len() == tokens.len());
    }
    let at = tokens.iter().zip(&answer.tokens).position(|(a, b)| a != b).unwrap_or(tokens.len());
    Err(Broken::Wrong(format!("token {at} of {} is wrong", asked.request_id)))
}

async fn one_request(
    decode: &Decode,
    choices: &Mutex<[v1::PrefillChoice; 2]>,
    asked: &v1::GenerateRequest,
    client: Client,
) -> Result<Tally, Broken> {
    sleep(client.comes_after).await;
    let prefill = choices.lock().expect("no panic").to_vec();
    let mut wire = v1::GenerateRequest { prefill, ..asked.clone() };
    if let Some(deadline) = client.deadline {
        wire.deadline_ms = deadline.as_millis() as u64;
    }
    let mut stream = decode.open(wire).await;
    let mut answer = Answer::default();
    while answer.accepted.is_none() && answer.take_next(&mut stream).await {}
    let gone = timeout(client.leaves_after.unwrap_or(PATIENCE), answer.take(&mut stream)).await.is_err();
    drop(stream);
    let whole = is_whole(asked, &answer)?;
    match answer.failure.as_ref().map(|failure| failure.code.as_str()) {
        None if whole => Ok(Tally { whole: 1, ..Tally::default() }),
        None if gone && client.leaves_after.is_some() => Ok(Tally { cancelled: 1, ..Tally::default() }),
        Some("deadline_exceeded") if client.deadline.is_some() => Ok(Tally { late: 1, ..Tally::default() }),
        _ => Err(Broken::Left(format!("{} ended with {answer:?}", asked.request_id))),
    }
}

async fn run(seed: u64) -> Result<Tally, Broken> {
    let schedule = Schedule::of(seed);
    let decode = start_decode(&schedule).await;
    let mut prefill = [start_prefill(0, &schedule).await, start_prefill(1, &schedule).await];
    let choices = Mutex::new([prefill[0].choice(), prefill[1].choice()]);

    let requests = schedule.requests.iter().map(|(asked, client)| one_request(&decode, &choices, asked, *client));
    let events = async {
        let started = Instant::now();
        for (at, index, event) in &schedule.events {
            sleep(at.saturating_sub(started.elapsed())).await;
            match event {
                Event::Stall(how_long) => prefill[*index].stall(*how_long),
                Event::Restart => {
                    prefill[*index].kill();
                    prefill[*index] = start_prefill(*index, &schedule).await;
                    choices.lock().expect("no panic")[*index] = prefill[*index].choice();
                }
            }
        }
    };
    let (answers, ()) = tokio::join!(futures::future::join_all(requests), events);
    let mut tally = Tally::default();
    for one in answers {
        tally.add(&one?);
    }

    // Whatever is still held back anywhere has been sent by then; what the pool has cached must not have changed.
    sleep(Duration::from_millis(DELAY_MAX_MS + STILL_MAX_MS)).await;
    for (asked, _) in schedule.requests.iter().rev().take(8) {
        let again = decode.ask(asked.clone()).await;
        if !is_whole(asked, &again)? {
            return Err(Broken::Left(format!("{} asked again ended with {again:?}", asked.request_id)));
        }
    }
    tally.refused = decode.status().await["kv"]["frames_refused"].as_u64().expect("a number");
    if !fencing_is_off() {
        at_rest(&decode, &prefill).await?;
    }
    decode.stop().await;
    for node in prefill {
        node.stop().await;
    }
    Ok(tally)
}

/// Leases without a fence stay: only tokens tell then.
fn fencing_is_off() -> bool {
    std::env::var_os("KVRAIL_TEST_NO_FENCE").is_some()
}

/// Every counter of things held returns to zero, on all nodes.
async fn at_rest(decode: &Decode, prefill: &[Prefill]) -> Result<(), Broken> {
    let until = Instant::now() + PATIENCE;
    loop {
        let mut statuses = vec![decode.status().await];
        for node in prefill {
            statuses.push(node.status().await);
        }
        let Some(busy) = statuses.iter().find(|status| !is_idle(status)) else { return Ok(()) };
        if Instant::now() > until {
            return Err(Broken::Left(format!("still held: {busy}")));
        }
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_slice_that_comes_late_reaches_an_answer() {
    let read = |name| std::env::var(name).ok().and_then(|text: String| text.parse::<u64>().ok());
    let seeds = match read("KVRAIL_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..read("KVRAIL_SEEDS").unwrap_or(4),
    };
    let (mut wrong, mut broken, mut sum) = (0, 0, Tally::default());
    for seed in seeds.clone() {
        match run(seed).await {
            Ok(tally) => sum.add(&tally),
            Err(what) => {
                let (Broken::Wrong(why) | Broken::Left(why)) = &what;
                println!("seed {seed}: {why}");
                wrong += u64::from(matches!(what, Broken::Wrong(_)));
                broken += 1;
            }
        }
    }
    let n = seeds.end - seeds.start;
    println!(
        "{n} schedules: {} answers whole, {} cancelled, {} past their deadline, {} late slices refused",
        sum.whole, sum.cancelled, sum.late, sum.refused
    );
    assert!(broken == 0, "{broken} of {n} schedules broke, {wrong} of them with a wrong token");
    assert!(sum.refused > 0, "no slice came late: the schedules prove nothing");
    assert!(sum.whole > 0 && sum.cancelled > 0 && sum.late > 0, "every end is met");
}
