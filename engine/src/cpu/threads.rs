//! A small pool of threads, and the two ways in which a pass uses it.
//!
//! Work is cut so that a job owns what it writes. Which thread runs a job, and how many there are, cannot change a
//! result: no sum is shared between jobs.

use rayon::prelude::*;

/// Threads of one executor. Idle ones sleep: the cores may be shared.
pub(super) struct Threads {
    /// None for one thread: the caller's.
    pool: Option<rayon::ThreadPool>,
    count: usize,
}

impl Threads {
    pub(super) fn new(count: usize) -> Result<Self, rayon::ThreadPoolBuildError> {
        let pool = (count > 1)
            .then(|| {
                let name = |i| format!("kvrail-cpu-{i}");
                rayon::ThreadPoolBuilder::new().num_threads(count).thread_name(name).build()
            })
            .transpose()?;
        Ok(Self { pool, count })
    }

    /// Runs a stretch of work inside the pool, so that the steps in it do not each wake it.
    pub(super) fn enter<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        match &self.pool {
            Some(pool) => pool.install(work),
            None => work(),
        }
    }

    /// Calls `job(i, piece)` for each piece of `len` elements of `data`; the last may be shorter.
    pub(super) fn pieces<T: Send>(&self, data: &mut [T], len: usize, job: impl Fn(usize, &mut [T]) + Sync + Send) {
        if self.pool.is_none() || data.len() <= len {
            data.chunks_mut(len).enumerate().for_each(|(i, piece)| job(i, piece));
        } else {
            data.par_chunks_mut(len).enumerate().for_each(|(i, piece)| job(i, piece));
        }
    }

    /// Calls `job(i)` for i below `count`.
    pub(super) fn each(&self, count: usize, job: impl Fn(usize) + Sync + Send) {
        if self.pool.is_none() || count <= 1 {
            (0..count).for_each(job);
        } else {
            (0..count).into_par_iter().for_each(job);
        }
    }

    /// How many of `items` a job should take: some jobs for each thread, to even out their ends.
    pub(super) fn share(&self, items: usize) -> usize {
        items.div_ceil(self.count * 4).max(1)
    }
}
