//! The step thread: it alone owns the executor, runs one step after another, and waits for nothing but work.
//!
//! What it tells others goes into each job's watch, one write a layer: no lease, no wire and no client can delay it.

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use kvrail_engine::{Chunk, Executor, Logits};
use kvrail_node::{Failure, FailureCode, convert};

use crate::handoff::Computed;
use crate::job::{First, Job};
use crate::schedule::Slice;
use crate::shared::Shared;

/// Starts the thread; it ends when the queue is stopped. If it dies, the node fails.
///
/// # Errors
/// If the system has no thread left.
pub(crate) fn spawn(shared: Arc<Shared>, executor: Box<dyn Executor>) -> std::io::Result<JoinHandle<()>> {
    thread::Builder::new().name("kvrail-step".into()).spawn(move || {
        let alive = Alive(&shared);
        let mut steps = Steps { shared: &shared, executor };
        while let Some(work) = shared.queue.next() {
            steps.run(&work);
            drop(work);
            shared.publish_load();
        }
        std::mem::forget(alive);
    })
}

/// Tells the node when the thread unwinds: requests would wait for ever.
struct Alive<'a>(&'a Shared);

impl Drop for Alive<'_> {
    fn drop(&mut self) {
        self.0.node.fail("the step thread died; its panic is in the log");
    }
}

struct Steps<'a> {
    shared: &'a Shared,
    executor: Box<dyn Executor>,
}

impl Steps<'_> {
    fn run(&mut self, work: &[(Slice, Arc<Job>)]) {
        // Started jobs have blocks.
        let work: Vec<_> = work.iter().filter_map(|(slice, job)| Some((slice, job, job.blocks.get()?))).collect();
        let batch: Vec<Chunk<'_>> = work
            .iter()
            .map(|(slice, job, blocks)| Chunk {
                tokens: &job.tokens[slice.start as usize..slice.end as usize],
                position: slice.start,
                table: &blocks.table,
                want_logits: slice.end == job.total(),
            })
            .collect();
        for (slice, job, _) in &work {
            job.publish(|p| p.computed = Computed { done: slice.start, chunk_end: slice.end, layers: 0 });
        }

        let started = Instant::now();
        let answers = self.executor.forward(&batch, self.shared.node.kv(), &mut |layer| {
            let now = Instant::now();
            for (_, job, _) in &work {
                job.publish(|p| {
                    p.computed.layers = layer + 1;
                    p.last_layer = Some(now);
                });
            }
        });
        let took = started.elapsed();

        let rows: u32 = work.iter().map(|(slice, ..)| slice.end - slice.start).sum();
        self.shared.stats.step(rows, took);
        match answers {
            Ok(answers) => {
                for ((slice, job, blocks), logits) in work.iter().zip(answers) {
                    let block_tokens = self.shared.node.spec().format.block_tokens;
                    let full = |tokens: u32| (tokens / block_tokens) as usize;
                    blocks.complete(&job.chain, full(slice.start), full(slice.end));
                    job.add_compute(took);
                    self.shared.queue.computed(slice, job.total());
                    let cached = blocks.cached * block_tokens;
                    let end = logits.map(|logits| self.first(job, &logits, cached));
                    job.publish(|p| {
                        p.computed = Computed { done: slice.end, chunk_end: slice.end, layers: 0 };
                        p.end = end;
                    });
                }
            }
            Err(error) => {
                // The batch was refused before anything was written: a bug of the scheduler, told to whom it meets.
                tracing::error!(%error, "the executor refused a step");
                for (_, job, _) in &work {
                    self.shared.queue.remove(job);
                    let failure = Failure::new(FailureCode::Internal, error.to_string());
                    job.publish(|p| p.end = Some(Err(failure)));
                }
            }
        }
    }

    fn first(&self, job: &Job, logits: &Logits, cached_tokens: u32) -> Result<First, Failure> {
        let sampled = job.sampler.sample(logits).map_err(|error| {
            tracing::error!(%error, request = job.request_id, "no token could be sampled");
            Failure::new(FailureCode::Internal, error.to_string())
        })?;
        let index = job.sampler.outputs();
        Ok(First {
            token: convert::token(index, &sampled),
            finish: job.sampler.stop().finish(index, sampled.token),
            cached_tokens,
            compute: job.compute(),
        })
    }
}
