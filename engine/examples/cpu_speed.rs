//! How fast the CPU executor is on a model: `cargo run --release --example cpu_speed -- MODEL.gguf [THREADS] [ISA]`.
//!
//! Prints one JSON object. Rates are tokens per second of wall time and of CPU time (all threads); the best of three
//! rounds is given beside the median, since the cores may be shared.

use std::path::Path;
use std::time::Instant;

use kvrail_engine::cpu::{CpuExecutor, CpuOptions, Isa};
use kvrail_engine::{BlockId, Chunk, Executor, KvMemory};

const ROUNDS: usize = 3;
const DECODE_STEPS: usize = 64;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let model = args.next().ok_or("usage: cpu_speed MODEL.gguf [THREADS] [scalar|avx2|avx512|neon]")?;
    let threads = args.next().map(|n| n.parse()).transpose()?.unwrap_or(CpuOptions::default().threads);
    let isa = match args.next() {
        None => None,
        Some(name) => Some(Isa::available().find(|isa| isa.to_string() == name).ok_or("no such instruction set here")?),
    };
    let started = Instant::now();
    let mut exec = CpuExecutor::load(Path::new(&model), CpuOptions { threads, isa, ..CpuOptions::default() })?;
    let load_ms = started.elapsed().as_millis();
    let kv = KvMemory::on_heap(exec.spec().format, exec.spec().format.blocks_for(2048 + DECODE_STEPS as u32) * 4);
    let (name, numerics, isa) = (exec.spec().name.clone(), exec.spec().numerics.clone(), exec.isa());

    let mut parts = Vec::new();
    for tokens in [512, 2048] {
        parts.push(rate(&format!("prefill_{tokens}"), tokens, || prefill(&mut exec, &kv, tokens, 0))?);
    }
    for batch in [1, 4] {
        for sequence in 0..batch {
            prefill(&mut exec, &kv, 512, sequence)?;
        }
        let steps = batch * DECODE_STEPS;
        parts.push(rate(&format!("decode_512_batch_{batch}"), steps, || decode(&mut exec, &kv, 512, batch))?);
    }
    println!(
        r#"{{"model":"{name}","isa":"{isa}","numerics":"{numerics}","threads":{threads},"load_ms":{load_ms},{}}}"#,
        parts.join(",")
    );
    Ok(())
}

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Runs `work`, which computes `tokens` tokens, and gives its rates as JSON.
fn rate(name: &str, tokens: usize, mut work: impl FnMut() -> Outcome) -> Result<String, Box<dyn std::error::Error>> {
    work()?; // warm
    let (mut wall, mut cpu) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (started, cpu_started) = (Instant::now(), cpu_seconds()?);
        work()?;
        wall.push(tokens as f64 / started.elapsed().as_secs_f64());
        cpu.push(tokens as f64 / (cpu_seconds()? - cpu_started).max(1e-9));
    }
    wall.sort_by(f64::total_cmp);
    cpu.sort_by(f64::total_cmp);
    let (median, best) = (ROUNDS / 2, ROUNDS - 1);
    Ok(format!(
        r#""{name}":{{"wall_median":{:.1},"wall_best":{:.1},"cpu_median":{:.1}}}"#,
        wall[median], wall[best], cpu[median]
    ))
}

/// CPU time of all live threads; the executor's live as long as it does.
fn cpu_seconds() -> Result<f64, std::io::Error> {
    let mut nanoseconds = 0.0;
    for task in std::fs::read_dir("/proc/self/task")? {
        let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
        nanoseconds += text.split(' ').next().and_then(|n| n.parse::<f64>().ok()).unwrap_or(0.0);
    }
    Ok(nanoseconds / 1e9)
}

/// Tokens that look like nothing in particular.
fn tokens(count: usize, vocab: u32) -> Vec<u32> {
    (0..count as u64).map(|i| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33) as u32 % vocab).collect()
}

/// The blocks of one of up to four sequences.
fn table(kv: &KvMemory, sequence: usize) -> Vec<BlockId> {
    let each = kv.blocks() / 4;
    (0..each).map(|block| BlockId(sequence as u32 * each + block)).collect()
}

fn prefill(exec: &mut CpuExecutor, kv: &KvMemory, count: usize, sequence: usize) -> Outcome {
    let (tokens, table) = (tokens(count, exec.spec().vocab), table(kv, sequence));
    for (i, chunk) in tokens.chunks(512).enumerate() {
        let position = i as u32 * 512;
        let want_logits = position as usize + chunk.len() == count;
        exec.forward(&[Chunk { tokens: chunk, position, table: &table, want_logits }], kv, &mut |_| {})?;
    }
    Ok(())
}

fn decode(exec: &mut CpuExecutor, kv: &KvMemory, context: u32, batch: usize) -> Outcome {
    let tables: Vec<Vec<BlockId>> = (0..batch).map(|sequence| table(kv, sequence)).collect();
    for step in 0..DECODE_STEPS as u32 {
        let token = [step];
        let chunks: Vec<Chunk<'_>> = tables
            .iter()
            .map(|table| Chunk { tokens: &token, position: context + step, table, want_logits: true })
            .collect();
        exec.forward(&chunks, kv, &mut |_| {})?;
    }
    Ok(())
}
