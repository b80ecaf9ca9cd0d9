//! The step loop: one thread that owns the executor and runs one batch after the other.

use std::sync::Arc;
use std::time::Instant;

use kvrail_engine::{Chunk, ExecError, Executor, Logits};

use crate::core::{Core, Progress, Stepped};
use crate::sequence::{Sequence, StepError};

/// Starts the thread. It ends after [`Core::stop`]; if it panics the node fails.
///
/// # Errors
/// If the system gives no thread.
pub fn spawn(core: Arc<Core>, executor: Box<dyn Executor>) -> std::io::Result<std::thread::JoinHandle<()>> {
    std::thread::Builder::new().name("kvrail-steps".into()).spawn(move || {
        let _guard = PanicGuard(Arc::clone(&core));
        run(&core, executor);
    })
}

/// Without the step loop nothing is served: say so instead of hanging.
struct PanicGuard(Arc<Core>);

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.node().fail("the step loop panicked");
        }
    }
}

fn run(core: &Arc<Core>, mut executor: Box<dyn Executor>) {
    while let Some(batch) = core.next_batch() {
        let rows: u32 = batch.iter().map(|(_, tokens)| tokens).sum();
        let prompt_tokens: u32 = batch.iter().map(|(_, tokens)| tokens).filter(|&&tokens| tokens > 1).sum();
        let started = Instant::now();
        let outputs = forward(core, executor.as_mut(), &batch);
        let stepped = batch
            .into_iter()
            .zip(outputs)
            .map(|((mut sequence, tokens), output)| {
                let result = output.and_then(|logits| advance(core, &mut sequence, tokens, logits));
                Stepped { sequence, result }
            })
            .collect();
        let took = started.elapsed();
        core.telemetry().stepped(rows, prompt_tokens, took);
        core.step_done(stepped, rows, took);
    }
}

/// Runs the batch. A malformed chunk fails alone: the others are run again without it.
fn forward(
    core: &Core,
    executor: &mut dyn Executor,
    batch: &[(Box<Sequence>, u32)],
) -> Vec<Result<Option<Logits>, StepError>> {
    let mut outputs: Vec<Result<Option<Logits>, StepError>> = batch.iter().map(|_| Ok(None)).collect();
    let mut running: Vec<usize> = (0..batch.len()).collect();
    while !running.is_empty() {
        let chunks: Vec<_> = running.iter().map(|&i| chunk(&batch[i].0, batch[i].1)).collect();
        match executor.forward(&chunks, core.node().kv(), &mut |_| {}) {
            Ok(logits) => {
                for (&i, logits) in running.iter().zip(logits) {
                    outputs[i] = Ok(logits);
                }
                break;
            }
            Err(ExecError::BadChunk { index, reason }) if index < running.len() => {
                let i = running.remove(index);
                outputs[i] = Err(ExecError::BadChunk { index, reason }.into());
            }
            Err(error) => {
                let reason = error.to_string();
                for (index, &i) in running.iter().enumerate() {
                    outputs[i] = Err(ExecError::BadChunk { index, reason: reason.clone() }.into());
                }
                break;
            }
        }
    }
    outputs
}

fn chunk(sequence: &Sequence, tokens: u32) -> Chunk<'_> {
    let (from, to) = (sequence.computed() as usize, (sequence.computed() + tokens) as usize);
    Chunk {
        tokens: &sequence.tokens()[from..to],
        position: sequence.computed(),
        table: sequence.table(),
        want_logits: to == sequence.tokens().len(),
    }
}

fn advance(core: &Core, sequence: &mut Sequence, tokens: u32, logits: Option<Logits>) -> Result<Progress, StepError> {
    sequence.advance_to(sequence.computed() + tokens)?;
    let Some(logits) = logits else { return Ok(Progress::Chunk) };
    let token = sequence.sample(&logits)?;
    Ok(core.push(sequence, token).map_or(Progress::Token, Progress::Last))
}
