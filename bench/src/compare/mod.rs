//! The transfer engine beside plain code (`kvrail bench compare`): two processes, of this machine or of two, the engine beside plain
//! sockets and plain memcpy in the same run, in turns, every figure a ratio of the same round.
//!
//! Structure: `shape` says what is moved and proves that it arrived · `receiver` is the far side · `raw` holds the baselines ·
//! `engine` holds kvrail · `report` says how it went. A contender refills its source before each turn, outside the clock, so
//! that no byte of an earlier one can pass.

mod engine;
mod raw;
mod receiver;
mod report;
mod shape;

pub use receiver::Receiver;
pub use report::{Batch, Expect, Pair, Report};
pub use shape::{Check, Shape};

use std::net::SocketAddr;

use kvrail_transfer::TcpRail;

use engine::Kvrail;
use raw::{Memcpy, Sockets};

use crate::far::{BenchError, Far, FarSide, Place, Reply, Wire};
use crate::machine::memory_available;
use crate::setting::SettingError;
use crate::show::progress;
use crate::stats::{Measure, interleave, median_interval};
use crate::usage::Usage;

/// Connections of the socket baseline.
const CONNECTIONS: usize = 2;
/// Times that the batch of small descriptors is submitted.
const BATCH_RUNS: usize = 5;

/// Settings of the bench.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Blocks that move in a transfer
    #[arg(long, value_name = "N", default_value_t = 25_120)]
    pub blocks: usize,
    /// Bytes of a block; a multiple of 8
    #[arg(long, value_name = "BYTES", default_value_t = 32_768)]
    pub block_bytes: usize,
    /// Transports to measure [default: tcp,shm; with --to, tcp]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = Wire::plain)]
    pub transports: Vec<Wire>,
    /// Send to the machine that serves at this address (`kvrail bench transfer --serve`), not to a process of this one
    #[arg(long, value_name = "ADDRESS")]
    pub to: Option<SocketAddr>,
    /// Local addresses over which TCP goes, each ADDRESS[/PREFIX][@DEVICE][#RAIL]; without, the system routes
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub rails: Vec<TcpRail>,
    /// Calm rounds to collect for each comparison; three times as many are tried at most
    #[arg(long, value_name = "N", default_value_t = 9)]
    pub rounds: usize,
    /// Descriptors of the one big submit; 0 leaves it out
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub batch: usize,
    /// Let the receiver check every byte of every transfer, not only of each 64th block
    #[arg(long)]
    pub verify: bool,
    /// Print JSON on stdout instead of tables
    #[arg(long)]
    pub json: bool,
    /// Exit with status 3 when missed: FLOOR or tcp=FLOOR or shm=FLOOR (throughput against the baseline), cpu=CEILING
    /// (CPU-seconds a GB against the baseline's)
    #[arg(long, value_name = "[WHAT=]RATIO")]
    pub expect: Vec<Expect>,
    /// Seed of the permutations and the contents
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

impl Options {
    fn wires(&self) -> Vec<Wire> {
        match (self.transports.is_empty(), self.to) {
            (true, None) => vec![Wire::Tcp, Wire::Shm],
            (true, Some(_)) => vec![Wire::Tcp],
            (false, _) => self.transports.clone(),
        }
    }
}

/// One turn of a contender.
struct Run {
    measure: Measure,
    wrong: usize,
    looked_at: usize,
    /// What `submit` alone took, where there is one.
    submit_seconds: Option<f64>,
}

/// Something that moves the blocks of a shape.
trait Contender {
    /// Name in the report.
    fn name(&self) -> String;
    /// Fills its source for `tag`, moves it on the clock, and has the receiver look.
    fn run(&mut self, tag: u64, check: Check) -> Result<Run, BenchError>;
}

/// Reads the far side's word that it was told, and makes the run's figures from both sides.
fn told(
    far: &mut Far,
    far_before: Usage,
    near: Usage,
    seconds: f64,
    shape: &Shape,
    submit_seconds: Option<f64>,
) -> Result<Run, BenchError> {
    let Reply::Told { usage, wrong, looked_at } = far.hear()? else { return Err(BenchError::unexpected("told")) };
    let used = near + (usage - far_before);
    let measure = Measure {
        work: shape.bytes() as f64,
        seconds,
        cpu_seconds: used.cpu.as_secs_f64(),
        delay_seconds: used.delay.as_secs_f64(),
    };
    Ok(Run { measure, wrong, looked_at, submit_seconds })
}

/// A contender's turn, refused if a block arrived wrong.
fn turn(contender: &mut dyn Contender, tag: u64, check: Check) -> Result<Run, BenchError> {
    let run = contender.run(tag, check)?;
    if run.wrong > 0 || run.looked_at == 0 {
        let contender = contender.name();
        return Err(BenchError::Wrong { contender, wrong: run.wrong, looked_at: run.looked_at });
    }
    Ok(run)
}

/// Runs the bench. `far` starts the receiving process; see [`far_side`](crate::far::far_side).
///
/// # Errors
/// [`BenchError`]; a missed floor is none, [`Report::missed`] tells it.
pub fn run(options: &Options, far: &FarSide) -> Result<Report, BenchError> {
    check_settings(options)?;
    let far = &options.to.map_or_else(|| far.clone(), FarSide::At);
    let near = &Place { rails: options.rails.clone(), ..Place::default() };
    let shape =
        Shape { slots: options.blocks, blocks: options.blocks, block_bytes: options.block_bytes, seed: options.seed };
    let mut report = Report::new(&shape);
    for wire in options.wires() {
        let mut kvrail = Kvrail::start(far, wire, shape, near)?;
        let baselines = baselines(far, wire, &kvrail, shape, near)?;
        report.pairs.extend(compare(options, wire, &mut kvrail, baselines)?);
        if options.batch > 0 {
            report.batches.push(one_submit(options, wire, &mut kvrail, &shape)?);
        }
    }
    progress("");
    report.judge(&options.expect);
    Ok(report)
}

fn check_settings(options: &Options) -> Result<(), SettingError> {
    let refuse = |flag, given: &dyn ToString, wanted: String| Err(SettingError::new(flag, given.to_string(), wanted));
    for (flag, given) in [("blocks", options.blocks), ("rounds", options.rounds)] {
        if given == 0 {
            return refuse(flag, &given, "one at least".into());
        }
    }
    if options.to.is_some() && options.transports.contains(&Wire::Shm) {
        return refuse("transports", &"shm", "two machines share no memory; leave --to away, or shm".into());
    }
    if options.block_bytes < 8 || !options.block_bytes.is_multiple_of(8) {
        return refuse("block-bytes", &options.block_bytes, "a multiple of 8".into());
    }
    let Some(pool) = options.blocks.checked_mul(options.block_bytes) else {
        return refuse("blocks", &options.blocks, "no more bytes than the address space".into());
    };
    if options.batch > pool / 8 {
        let fits = pool / 8;
        let wanted = format!("{fits} descriptors of 8 bytes fit into the {pool} bytes of the blocks; no more, or 0");
        return refuse("batch", &options.batch, wanted);
    }
    // Source and destination of both contenders.
    let (needed, available) = (pool.saturating_mul(4), memory_available());
    if let Some(free) = available.filter(|free| needed > *free) {
        let wanted = format!("the pools need {needed} bytes of memory, {free} are free; give fewer");
        return refuse("blocks", &options.blocks, wanted);
    }
    Ok(())
}

/// What the engine is measured against over a transport. The first has as many threads that move bytes as the engine, and
/// is what counts; one thread that copies is what one would write first.
fn baselines(
    far: &FarSide,
    wire: Wire,
    kvrail: &Kvrail,
    shape: Shape,
    near: &Place,
) -> Result<Vec<Box<dyn Contender>>, BenchError> {
    if wire == Wire::Tcp {
        return Ok(vec![Box::new(Sockets::start(far, shape, CONNECTIONS, near)?)]);
    }
    let threads = Kvrail::copying_threads();
    let fair = Memcpy::new(kvrail.allocate_shared(shape.bytes())?, shape, threads)?;
    let one = (threads > 1).then(|| Box::new(fair.with_threads(1)) as Box<dyn Contender>);
    Ok(std::iter::once(Box::new(fair) as Box<dyn Contender>).chain(one).collect())
}

/// The engine beside each baseline, all in the same rounds.
fn compare(
    options: &Options,
    wire: Wire,
    kvrail: &mut Kvrail,
    mut baselines: Vec<Box<dyn Contender>>,
) -> Result<Vec<Pair>, BenchError> {
    let mut contenders: Vec<&mut dyn Contender> = vec![kvrail];
    contenders.extend(baselines.iter_mut().map(|baseline| baseline.as_mut() as &mut dyn Contender));
    let names: Vec<String> = contenders.iter().map(|contender| contender.name()).collect();
    let mut tag = options.seed << 32;
    // Warm-up: every page touched, every byte looked at.
    for contender in &mut contenders {
        turn(*contender, tag, Check::All)?;
    }
    let check = if options.verify { Check::All } else { Check::Sample };
    let mut looked_at = vec![0; contenders.len()];
    let rounds = interleave(contenders.len(), options.rounds, |contender, round| {
        progress(&format!("{}: round {}", names.join(" against "), round + 1));
        tag += 1;
        let run = turn(contenders[contender], tag, check)?;
        looked_at[contender] += run.looked_at;
        Ok::<_, BenchError>(run.measure)
    })?;
    let pair = |other: usize| {
        let names = [names[0].clone(), names[other].clone()];
        Pair::new(wire, names, &rounds, other, looked_at[0] + looked_at[other])
    };
    let pairs: Option<Vec<Pair>> = (1..contenders.len()).map(pair).collect();
    pairs.ok_or_else(|| BenchError::Far("no round was calm".into()))
}

/// All of `options.batch` descriptors in one submit: small ones, so that descriptors and not bytes are what it costs.
fn one_submit(options: &Options, wire: Wire, kvrail: &mut Kvrail, pool: &Shape) -> Result<Batch, BenchError> {
    // At most half of the slots are used, at most 4 KiB each.
    let block_bytes = (pool.bytes() / options.batch / 2).clamp(8, 4096) / 8 * 8;
    let slots = pool.bytes() / block_bytes;
    kvrail.reshape(Shape { slots, blocks: options.batch, block_bytes, seed: options.seed });
    let (mut submits, mut totals) = (Vec::new(), Vec::new());
    for n in 0..BATCH_RUNS {
        progress(&format!("{}: {} descriptors in one submit", kvrail.name(), options.batch));
        let run = turn(kvrail, (options.seed << 32 | 1 << 31) + n as u64, Check::All)?;
        submits.push(run.submit_seconds.unwrap_or(f64::NAN) * 1e9 / options.batch as f64);
        totals.push(run.measure.seconds * 1e9 / options.batch as f64);
    }
    let median = |samples: &[f64]| median_interval(samples, 0.95).map_or(f64::NAN, |i| i.median);
    Ok(Batch {
        transport: wire,
        descriptors: options.batch,
        descriptor_bytes: block_bytes,
        submit_ns: median(&submits),
        total_ns: median(&totals),
    })
}

/// Blocks that are moved at once over one transport, on an idle path between two processes: what a hand-off would cost
/// if nothing of it were hidden behind the computation.
pub struct AtOnce(Kvrail);

impl AtOnce {
    /// Starts both sides, and moves everything once so that all memory is touched.
    ///
    /// # Errors
    /// [`BenchError`].
    pub fn start(wire: Wire, blocks: usize, block_bytes: usize, far: &FarSide) -> Result<Self, BenchError> {
        let shape = Shape { slots: blocks, blocks, block_bytes, seed: 1 };
        let mut this = Self(Kvrail::start(far, wire, shape, &Place::default())?);
        this.measure(0)?;
        Ok(this)
    }

    /// One transfer, every byte of it verified; give each a number of its own.
    ///
    /// # Errors
    /// [`BenchError`].
    pub fn measure(&mut self, number: u64) -> Result<Measure, BenchError> {
        Ok(turn(&mut self.0, number, Check::All)?.measure)
    }
}
