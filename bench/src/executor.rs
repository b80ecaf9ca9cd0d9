//! The built-in executor beside llama.cpp on the same model, in turns: prefill and decode, by the clock and by the
//! CPU-second. On shared cores the CPU-second is the figure that means something.
//!
//! llama.cpp's threads spin while they wait for each other, which counts as CPU time. The fair one is llama.cpp with
//! threads that sleep instead; the one as it comes is measured in the same rounds.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use kvrail_engine::cpu::{CpuExecutor, CpuOptions};
use kvrail_engine::{BlockId, Chunk, Executor, KvMemory};
use serde::Serialize;
use serde_json::{Value, json};

use crate::stats::{Interval, Measure, coverage, interleave};
use crate::usage::Usage;

/// Tokens computed in one forward pass of a prefill.
const CHUNK: usize = 512;
/// Tokens after which decoding starts.
const CONTEXT: usize = 512;
/// Tokens that are decoded in a turn.
const DECODE: usize = 64;
/// Longest prompt.
const PROMPT_MAX: usize = 2_048;

/// Who takes turns.
pub const CONTENDERS: [&str; 3] = ["kvrail", "llama.cpp, threads that sleep", "llama.cpp, threads that spin"];

/// What was measured of one kind of work.
#[derive(Debug, Serialize)]
pub struct Row {
    /// `prefill of N` or `decode at N`.
    pub work: String,
    /// Tokens a second of each of [`CONTENDERS`].
    pub tokens_per_s: [Interval; 3],
    /// Tokens a CPU-second of each.
    pub tokens_per_cpu_s: [Interval; 3],
    /// Tokens a CPU-second, kvrail to each of the others, same round.
    pub ratios: [Interval; 2],
    /// Rounds that counted.
    pub kept: usize,
    /// Rounds thrown away for excess run-queue delay.
    pub discarded: usize,
}

#[derive(Clone, Copy)]
enum Work {
    Prefill(usize),
    Decode,
}

/// Measures both. `python` has what `script` (`bench/clients/llama_speed.py`) needs.
///
/// # Errors
/// What went wrong, as text.
pub fn run(model: &Path, python: &Path, script: &Path, rounds: usize) -> Result<Vec<Row>, String> {
    let options = CpuOptions::default();
    let threads = options.threads;
    let mut ours = Ours::load(model, options)?;
    let mut theirs =
        [Theirs::start(model, python, script, threads, true)?, Theirs::start(model, python, script, threads, false)?];
    let works = [Work::Prefill(512), Work::Prefill(PROMPT_MAX), Work::Decode];
    works.into_iter().map(|work| compare(&mut ours, &mut theirs, work, rounds)).collect()
}

fn compare(ours: &mut Ours, theirs: &mut [Theirs; 2], work: Work, wanted: usize) -> Result<Row, String> {
    ours.turn(work, 0)?;
    for theirs in theirs.iter_mut() {
        theirs.turn(work)?;
    }
    let rounds = interleave(CONTENDERS.len(), wanted, |contender, round| match contender {
        0 => ours.turn(work, round as u64 + 1),
        _ => theirs[contender - 1].turn(work),
    })?;
    let all = |figure: fn(&Measure) -> f64| {
        Some([rounds.median(0, figure)?, rounds.median(1, figure)?, rounds.median(2, figure)?])
    };
    let ratio = |other: usize| rounds.ratio(0, other, |m| 1.0 / m.cost());
    let row = || {
        Some(Row {
            work: match work {
                Work::Prefill(tokens) => format!("prefill of {tokens}"),
                Work::Decode => format!("decode at {CONTEXT}"),
            },
            tokens_per_s: all(Measure::rate)?,
            tokens_per_cpu_s: all(|m| 1.0 / m.cost())?,
            ratios: [ratio(1)?, ratio(2)?],
            kept: rounds.kept.len(),
            discarded: rounds.discarded,
        })
    };
    row().ok_or_else(|| "no round gave a figure".into())
}

/// The built-in executor, in this process.
struct Ours {
    executor: CpuExecutor,
    kv: KvMemory,
    table: Vec<BlockId>,
}

impl Ours {
    fn load(model: &Path, options: CpuOptions) -> Result<Self, String> {
        let executor = CpuExecutor::load(model, options).map_err(|e| e.to_string())?;
        let format = executor.spec().format;
        let blocks = format.blocks_for((PROMPT_MAX + DECODE) as u32);
        Ok(Self { kv: KvMemory::on_heap(format, blocks), table: (0..blocks).map(BlockId).collect(), executor })
    }

    fn forward(&mut self, tokens: &[u32], position: usize, want_logits: bool) -> Result<(), String> {
        let chunk = Chunk { tokens, position: position as u32, table: &self.table, want_logits };
        self.executor.forward(&[chunk], &self.kv, &mut |_| {}).map(drop).map_err(|e| e.to_string())
    }

    fn prefill(&mut self, count: usize, seed: u64) -> Result<(), String> {
        let vocab = u64::from(self.executor.spec().vocab);
        let token = |i: usize| ((i as u64 + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) % vocab;
        let tokens: Vec<u32> = (0..count).map(|i| token(i) as u32).collect();
        for (i, chunk) in tokens.chunks(CHUNK).enumerate() {
            let position = i * CHUNK;
            self.forward(chunk, position, position + chunk.len() == count)?;
        }
        Ok(())
    }

    fn turn(&mut self, work: Work, seed: u64) -> Result<Measure, String> {
        if let Work::Decode = work {
            self.prefill(CONTEXT, seed)?;
        }
        let (before, started) = (Usage::own(), Instant::now());
        let tokens = match work {
            Work::Prefill(count) => self.prefill(count, seed).map(|()| count)?,
            Work::Decode => {
                for step in 0..DECODE {
                    self.forward(&[step as u32 + 100], CONTEXT + step, true)?;
                }
                DECODE
            }
        };
        let (seconds, used) = (started.elapsed().as_secs_f64(), Usage::own() - before);
        Ok(measure(tokens, seconds, used.cpu.as_secs_f64(), used.delay.as_secs_f64()))
    }
}

fn measure(tokens: usize, seconds: f64, cpu_seconds: f64, delay_seconds: f64) -> Measure {
    Measure { work: tokens as f64, seconds, cpu_seconds, delay_seconds }
}

/// llama.cpp, in a process of its own.
struct Theirs {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Theirs {
    /// `passive`: threads that wait sleep, instead of spinning for a while first.
    fn start(model: &Path, python: &Path, script: &Path, threads: usize, passive: bool) -> Result<Self, String> {
        let mut command = Command::new(python);
        command.env_remove("OMP_WAIT_POLICY").envs(passive.then_some(("OMP_WAIT_POLICY", "passive")));
        let mut child = command
            .arg(script)
            .arg(model)
            .arg(threads.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| format!("{}: {e}", python.display()))?;
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().ok_or("no stdout")?);
        let mut this = Self { child, stdin, stdout };
        this.read()?;
        Ok(this)
    }

    fn read(&mut self) -> Result<Value, String> {
        let mut line = String::new();
        self.stdout.read_line(&mut line).map_err(|e| e.to_string())?;
        serde_json::from_str(&line).map_err(|e| format!("llama.cpp: {e}: {line:?}"))
    }

    fn turn(&mut self, work: Work) -> Result<Measure, String> {
        let (tokens, request) = match work {
            Work::Prefill(count) => (count, json!({"prefill": count})),
            Work::Decode => (DECODE, json!({"decode": DECODE, "context": CONTEXT})),
        };
        let before = Usage::of(self.child.id());
        let stdin = self.stdin.as_mut().ok_or("no stdin")?;
        writeln!(stdin, "{request}").map_err(|e| e.to_string())?;
        let reply = self.read()?;
        let delay = (Usage::of(self.child.id()) - before).delay.as_secs_f64();
        let number = |key: &str| reply[key].as_f64().ok_or_else(|| format!("no {key} in {reply}"));
        Ok(measure(tokens, number("seconds")?, number("cpu_seconds")?, delay))
    }
}

impl Drop for Theirs {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Tables for people.
#[must_use]
pub fn text(rows: &[Row]) -> String {
    let ratio = format!("ratio per CPU-s [{}]", coverage(rows.iter().flat_map(|row| row.ratios)));
    let head = ["", "", "tokens/s", "tokens/CPU-s", &ratio, "rounds"];
    let mut table = crate::show::table(&head);
    for row in rows {
        for (side, name) in CONTENDERS.into_iter().enumerate() {
            let first = |text: String| if side == 0 { text } else { String::new() };
            table.add_row([
                first(row.work.clone()),
                name.to_owned(),
                format!("{:.1}", row.tokens_per_s[side].median),
                format!("{:.1}", row.tokens_per_cpu_s[side].median),
                if side == 0 { String::new() } else { row.ratios[side - 1].to_string() },
                first(format!("{} (−{})", row.kept, row.discarded)),
            ]);
        }
    }
    format!("{table}\n")
}
