//! The line of requests between the gRPC tasks and the step thread.
//!
//! Threading: one mutex around the pure scheduler and the table of its jobs, held for microseconds and never across a
//! forward pass or an await. The step thread sleeps on a [`Kick`]: a counter under a lock of its own, which is a leaf (no
//! other lock is taken under it), so that a job's blocks may be freed, and kick, under any lock.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use kvrail_node::KvCache;
use parking_lot::{Condvar, Mutex};

use crate::job::{Blocks, Job};
use crate::schedule::{Full, JobId, Limits, Line, Place, Scheduler, Slice, Start};

/// Wakes the step thread: something may run that could not before. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Kick(Arc<(Mutex<u64>, Condvar)>);

impl Kick {
    /// Something changed.
    pub(crate) fn kick(&self) {
        *self.0.0.lock() += 1;
        self.0.1.notify_one();
    }

    /// Changes so far.
    fn seen(&self) -> u64 {
        *self.0.0.lock()
    }

    /// Waits until something has changed since `seen`.
    fn wait(&self, seen: u64) {
        let mut changes = self.0.0.lock();
        while *changes == seen {
            self.0.1.wait(&mut changes);
        }
    }
}

struct Inner {
    scheduler: Scheduler,
    jobs: HashMap<JobId, Arc<Job>>,
    stopped: bool,
}

/// The line. Shared by all tasks and the step thread.
pub(crate) struct Queue {
    inner: Mutex<Inner>,
    kick: Kick,
    cache: KvCache,
    block_tokens: u32,
    epoch: Instant,
}

impl Queue {
    pub(crate) fn new(limits: Limits, cache: KvCache, block_tokens: u32) -> Self {
        let scheduler = Scheduler::new(limits, block_tokens);
        let inner = Inner { scheduler, jobs: HashMap::new(), stopped: false };
        Self { inner: Mutex::new(inner), kick: Kick::default(), cache, block_tokens, epoch: Instant::now() }
    }

    /// Puts a job into the line.
    pub(crate) fn offer(&self, job: &Arc<Job>) -> Result<Place, Full> {
        let held = self.cache.with(|pool| pool.held(job.reusable(self.block_tokens)));
        let mut inner = self.inner.lock();
        let cached = held * self.block_tokens;
        let place = inner.scheduler.offer(job.id, job.total(), cached, self.epoch.elapsed())?;
        inner.jobs.insert(job.id, Arc::clone(job));
        drop(inner);
        self.kick.kick();
        Ok(place)
    }

    /// Takes a job out: it was cancelled, or failed. Whoever computes it now finishes the chunk and no more.
    pub(crate) fn remove(&self, job: &Job) {
        let mut inner = self.inner.lock();
        inner.scheduler.remove(job.id);
        let removed = inner.jobs.remove(&job.id);
        drop(inner);
        // Outside of the lock: it may be the last reference, and then frees blocks.
        drop(removed);
        self.kick.kick();
    }

    /// The next step's work, waiting for some; `None` when stopped.
    pub(crate) fn next(&self) -> Option<Vec<(Slice, Arc<Job>)>> {
        loop {
            let seen = self.kick.seen();
            {
                let mut guard = self.inner.lock();
                let Inner { scheduler, jobs, stopped } = &mut *guard;
                if *stopped {
                    return None;
                }
                let work = scheduler.plan(self.epoch.elapsed(), |id| self.start(&jobs[&id]));
                if !work.is_empty() {
                    return Some(work.into_iter().map(|slice| (slice, Arc::clone(&jobs[&slice.job]))).collect());
                }
            }
            self.kick.wait(seen);
        }
    }

    /// A slice has been computed; a job that is computed whole leaves the line.
    pub(crate) fn computed(&self, slice: &Slice, total: u32) {
        let mut inner = self.inner.lock();
        inner.scheduler.computed(slice);
        let done = if slice.end == total { inner.jobs.remove(&slice.job) } else { None };
        drop(inner);
        drop(done);
    }

    /// Ends the step thread after its step.
    pub(crate) fn stop(&self) {
        self.inner.lock().stopped = true;
        self.kick.kick();
    }

    /// Sums over the line.
    pub(crate) fn line(&self) -> Line {
        self.inner.lock().scheduler.line()
    }

    fn start(&self, job: &Job) -> Start {
        let Some(blocks) = Blocks::take(&self.cache, &self.kick, job, self.block_tokens) else { return Start::NoRoom };
        let cached = blocks.cached * self.block_tokens;
        job.publish(|p| {
            p.computed.done = cached;
            p.computed.chunk_end = cached;
        });
        // A job is started once: the scheduler keeps it running from here.
        let _ = job.blocks.set(blocks);
        Start::Started { cached }
    }
}
