//! Speed of this step: the transfer engine beside raw sockets and memcpy, separate pools beside one process, how much of
//! the wire the prefill hides, and the executor beside llama.cpp.
//!
//! The full tier judges medians of same-round ratios and wants nine calm rounds behind each. The quick tier measures the
//! same on less and judges no clock: it shows that the benches work and that every byte arrives.

use std::path::Path;
use std::process::Command;

use serde::de::DeserializeOwned;

use super::python::{environment, output};
use super::{Findings, Setting, Tier};
use crate::compare;
use crate::executor;
use crate::far::Wire;
use crate::serving;

/// Throughput over TCP against two plain connections, at least.
const TCP_FLOOR: f64 = 0.9;
/// Throughput over shared memory against memcpy, at least.
const SHM_FLOOR: f64 = 0.85;
/// CPU-seconds a GB against the baseline's, at most.
const CPU_CEILING: f64 = 1.3;
/// Time to first token of separate pools against colocated at one stream, at most.
const TTFT_CEILING: f64 = 1.1;
/// Last layer to visible against moving the same bytes at once, at most.
const WIRE_CEILING: f64 = 0.15;
/// Prefill tokens a CPU-second against llama.cpp's, at least.
const PREFILL_FLOOR: f64 = 1.0;
/// Decode tokens a second at a context of 512 tokens, at least: twice the prototype's.
const DECODE_FLOOR: f64 = 60.0;
/// A mock with 64 KiB of KV a token, so that there is something to move.
const MOCK: &str = "mock:prefill_us=100,step_us=2000,layers=16,kv_heads=8,head_dim=128";
/// Calm rounds behind every ratio.
const ROUNDS: usize = 9;

/// Runs the suite.
pub async fn run(setting: &Setting) -> Findings {
    let setting = setting.clone();
    tokio::task::spawn_blocking(move || {
        let mut findings = Findings::default();
        if let Err(e) = transfer(&setting, &mut findings) {
            findings.failure(e);
        }
        if let Err(e) = serving(&setting, &mut findings) {
            findings.failure(e);
        }
        // The executor's own speed is nothing without the real model.
        if let (Tier::Full, Some(model)) = (setting.tier, &setting.model)
            && let Err(e) = executor(&setting, model, &mut findings)
        {
            findings.failure(e);
        }
        findings
    })
    .await
    .unwrap_or_default()
}

/// Runs `kvrail bench …` and reads its report: what is measured is the binary, not the build of this suite.
fn bench<T: DeserializeOwned>(setting: &Setting, line: &str, model: Option<&str>) -> Result<T, String> {
    let mut command = Command::new(&setting.binary);
    command.arg("bench").args(line.split(' ')).args(["--json", "--seed", &setting.seed.to_string()]);
    command.args(model.map(|model| format!("--model={model}")));
    let (ok, text) = output(&command)?;
    if !ok {
        return Err(format!("kvrail bench {line}: {text}"));
    }
    serde_json::from_str(&text).map_err(|e| format!("kvrail bench {line}: {e}: {text}"))
}

fn transfer(setting: &Setting, findings: &mut Findings) -> Result<(), String> {
    let full = setting.tier == Tier::Full;
    let (blocks, rounds) = if full { (25_120, ROUNDS) } else { (2_048, 2) };
    let line = format!("compare --blocks {blocks} --block-bytes 32768 --rounds {rounds} --batch 100000 --verify");
    let report: compare::Report = bench(setting, &line, None)?;
    print!("{}", report.text());
    for pair in &report.pairs {
        let name = &pair.names[0];
        findings.figure(
            format!("{name} against {}", pair.names[1]),
            format!("{} of its throughput, {} of its CPU-seconds a GB", pair.ratio, pair.cpu_ratio),
        );
        let rounds =
            format!("{} kept, {} discarded, {} blocks verified", pair.kept, pair.discarded, pair.blocks_verified);
        findings.figure(format!("{name}: rounds"), rounds);
        if full && pair.judged {
            let floor = if pair.transport == Wire::Tcp { TCP_FLOOR } else { SHM_FLOOR };
            findings.check(pair.ratio.median >= floor, format!("{name}: throughput {} < {floor}", pair.ratio));
            findings.check(
                pair.cpu_ratio.median <= CPU_CEILING,
                format!("{name}: CPU-seconds a GB {} > {CPU_CEILING}", pair.cpu_ratio),
            );
            findings.check(pair.kept >= ROUNDS, format!("{name}: only {} calm rounds", pair.kept));
        }
    }
    for batch in &report.batches {
        findings.figure(
            format!("{} descriptors in one submit over {}", batch.descriptors, batch.transport),
            format!("{:.0} ns a descriptor to submit, {:.0} ns to move", batch.submit_ns, batch.total_ns),
        );
    }
    findings.check(report.batches.len() == 2, "the one big submit was not measured over both transports");
    Ok(())
}

fn serving(setting: &Setting, findings: &mut Findings) -> Result<(), String> {
    let full = setting.tier == Tier::Full;
    let model = match (full, &setting.model) {
        (false, _) => MOCK.to_owned(),
        (true, Some(model)) => model.display().to_string(),
        (true, None) => return Err("the real model is not on this machine: `kvrail model pull` fetches it".into()),
    };
    // One stream is what is judged, and takes the rounds that a busy neighbour's noise asks for; many streams share the same two pools of
    // cores, and their prompts are shorter so that the suite ends.
    let lines: &[(Wire, &str)] = if full {
        &[
            (Wire::Tcp, "--streams 1 --words 200 --wire-words 0 --tokens 32 --rounds 27"),
            (Wire::Shm, "--streams 1 --words 200 --wire-words 0 --tokens 32 --rounds 27"),
            (Wire::Tcp, "--streams 0 --wire-words 600,1200 --tokens 32 --rounds 9"),
            (Wire::Shm, "--streams 0 --wire-words 600,1200 --tokens 32 --rounds 9"),
            (Wire::Tcp, "--streams 4,16 --words 50 --wire-words 0 --tokens 16 --rounds 9"),
            (Wire::Shm, "--streams 4,16 --words 50 --wire-words 0 --tokens 16 --rounds 9"),
        ]
    } else {
        &[
            (Wire::Tcp, "--streams 1,4 --words 40 --wire-words 120 --tokens 8 --rounds 2"),
            (Wire::Shm, "--streams 1,4 --words 40 --wire-words 120 --tokens 8 --rounds 2"),
        ]
    };
    let mut timed = 0;
    for &(wire, line) in lines {
        let line = format!("serve --transport {wire} {line}");
        let report: serving::Report = bench(setting, &line, Some(&model))?;
        print!("{}", report.text());
        for at in &report.streams {
            findings.figure(
                format!("separate against colocated over {wire}, {} streams", at.streams),
                format!("TTFT {}, tokens/s {} ({} rounds, −{})", at.ttft_ratio, at.tokens_ratio, at.kept, at.discarded),
            );
            if !full {
                continue;
            }
            findings.check(at.kept >= ROUNDS, format!("{wire}, {} streams: only {} calm rounds", at.streams, at.kept));
            let ratio = at.ttft_ratio;
            findings.check(
                at.streams > 1 || ratio.median <= TTFT_CEILING,
                format!("{wire}: TTFT at one stream {ratio} > {TTFT_CEILING}"),
            );
        }
        for hidden in &report.wire {
            let (ratio, kept) = (hidden.ratio, hidden.kept);
            let label = format!("last layer to visible over {wire}, {:.1} MB", hidden.bytes as f64 / 1e6);
            let micros = hidden.last_layer_to_visible_s.median * 1e6;
            findings.figure(
                &label,
                format!("{micros:.0} µs, {ratio} of moving the same at once ({kept} rounds, −{})", hidden.discarded),
            );
            if full {
                findings.check(ratio.median <= WIRE_CEILING, format!("{label}: {ratio} > {WIRE_CEILING}"));
                findings.check(kept >= ROUNDS, format!("{label}: only {kept} calm rounds"));
            }
        }
        timed += usize::from(!report.wire.is_empty());
    }
    findings.check(timed == 2, "the end of the hand-off was not timed over both transports");
    Ok(())
}

fn executor(setting: &Setting, model: &Path, findings: &mut Findings) -> Result<(), String> {
    let python = environment(setting, "llama.txt")?;
    let script = setting.root.join("bench/clients/llama_speed.py");
    let rows = executor::run(model, &python, &script, ROUNDS)?;
    print!("{}", executor::text(&rows));
    for row in &rows {
        let [ours, theirs, spinning] = row.tokens_per_cpu_s.map(|interval| interval.median);
        let [ratio, to_spinning] = row.ratios;
        findings.figure(
            format!("executor, {}", row.work),
            format!("{ours:.1} tokens a CPU-second, llama.cpp {theirs:.1}: {ratio}"),
        );
        findings.figure(
            format!("executor, {}, against threads that spin", row.work),
            format!("llama.cpp {spinning:.1}: {to_spinning}"),
        );
        if row.work.starts_with("prefill") {
            let slow = format!("executor, {}: {ratio} of llama.cpp a CPU-second < {PREFILL_FLOOR}", row.work);
            findings.check(ratio.median >= PREFILL_FLOOR, slow);
        } else {
            let speed = row.tokens_per_s[0];
            let slow = format!("executor, {}: {speed} tokens a second < {DECODE_FLOOR}", row.work);
            findings.check(speed.median >= DECODE_FLOOR, slow);
        }
        findings.check(row.kept >= ROUNDS, format!("executor, {}: only {} calm rounds", row.work, row.kept));
    }
    Ok(())
}
