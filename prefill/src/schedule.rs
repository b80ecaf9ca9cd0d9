//! Which request gets the executor next, and for how many tokens. Pure: the clock is passed in, effects are asked for.
//!
//! - **Admission by tokens.** A request is refused while the uncached tokens that wait would pass a bound; one that comes to
//!   an empty line is never refused for its length.
//! - **Shortest remaining first, with an age bound.** A short prompt does not wait for a long one; who has waited for longer
//!   than the bound goes before everybody younger than it, in order of arrival, so that nobody starves.
//! - **A step is one request's chunk.** Others join only up to `fill_tokens`, where the device is not yet saturated: beyond
//!   it every added token delays the first request's layers and gains nothing.
//! - **Chunks end on block boundaries**, but the last of a prompt, so that a block of a layer is complete, and sent, once.
//! - **No capacity holds the line.** If the next in order cannot get its blocks, nobody behind it gets any: what is running
//!   finishes and frees, and the next starts. Otherwise small requests could keep a large one out for ever.
//!
//! Linear in the number of requests a step; there are at most `requests_max`.

use std::time::Duration;

/// One request, in order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(pub u64);

/// Bounds and sizes of the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Uncached tokens, waiting or being computed, past which no further request is taken.
    pub tokens_max: u64,
    /// Requests, waiting or being computed.
    pub requests_max: usize,
    /// Requests that hold blocks and are not yet computed whole.
    pub running_max: usize,
    /// Tokens of one request a step, at most; at least a block.
    pub chunk_tokens: u32,
    /// Tokens of a step up to which further requests join.
    pub fill_tokens: u32,
    /// Wait after which a request goes before all younger ones.
    pub age_bound: Duration,
}

/// Where a new request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Requests before it, running ones included.
    pub position: u32,
    /// Their uncached tokens.
    pub tokens_ahead: u64,
}

/// The line is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    /// Requests in it.
    pub requests: usize,
    /// Their uncached tokens.
    pub tokens: u64,
}

/// Answer to "give this request its blocks".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// It has them; this many leading tokens need not be computed: whole blocks, less than the prompt.
    Started {
        /// Tokens.
        cached: u32,
    },
    /// There are not enough now.
    NoRoom,
}

/// Tokens `start..end` of one request, to be computed in the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Whose.
    pub job: JobId,
    /// First token.
    pub start: u32,
    /// After the last.
    pub end: u32,
}

/// Sums over the line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// Requests without blocks.
    pub queued: u32,
    /// Requests with blocks, not yet computed whole.
    pub running: u32,
    /// Uncached tokens of both.
    pub tokens: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    job: JobId,
    arrived: Duration,
    running: bool,
    /// Tokens that need not be computed any more; an estimate until it runs.
    done: u32,
    total: u32,
}

impl Entry {
    fn remaining(&self) -> u32 {
        self.total - self.done
    }
}

/// The line of requests. See the [module](self).
#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    block_tokens: u32,
    entries: Vec<Entry>,
}

impl Scheduler {
    /// An empty line for blocks of `block_tokens`.
    #[must_use]
    pub fn new(limits: Limits, block_tokens: u32) -> Self {
        let chunk_tokens = limits.chunk_tokens.max(block_tokens);
        Self { limits: Limits { chunk_tokens, ..limits }, block_tokens, entries: Vec::new() }
    }

    /// A request of `total` tokens arrives, of which `cached` (whole blocks, less than all) seem to be here.
    ///
    /// # Errors
    /// [`Full`] if a bound would be passed.
    pub fn offer(&mut self, job: JobId, total: u32, cached: u32, now: Duration) -> Result<Place, Full> {
        let line = self.line();
        let entry = Entry { job, arrived: now, running: false, done: cached.min(total - 1), total };
        let tokens = line.tokens + u64::from(entry.remaining());
        let full = self.entries.len() >= self.limits.requests_max
            || (!self.entries.is_empty() && tokens > self.limits.tokens_max);
        if full {
            return Err(Full { requests: self.entries.len(), tokens: line.tokens });
        }
        self.entries.push(entry);
        let order = self.order(now);
        let before = order.iter().take_while(|&&i| self.entries[i].job != job);
        let (mut position, mut tokens_ahead) = (0, 0);
        for &i in before {
            position += 1;
            tokens_ahead += u64::from(self.entries[i].remaining());
        }
        Ok(Place { position, tokens_ahead })
    }

    /// Chooses the next step's work; empty if there is none that could run. `start` is asked to give blocks to waiting
    /// requests, in order, until it cannot.
    pub fn plan(&mut self, now: Duration, mut start: impl FnMut(JobId) -> Start) -> Vec<Slice> {
        let mut running = self.entries.iter().filter(|e| e.running).count();
        let mut may_start = true;
        let mut work: Vec<Slice> = Vec::new();
        let mut planned = 0;
        for i in self.order(now) {
            let budget = match planned {
                0 => self.limits.chunk_tokens,
                _ => self.limits.fill_tokens.min(self.limits.chunk_tokens).saturating_sub(planned),
            };
            if budget < self.block_tokens.min(self.entries[i].remaining()) {
                continue;
            }
            if !self.entries[i].running {
                if !may_start || running >= self.limits.running_max {
                    continue;
                }
                match start(self.entries[i].job) {
                    Start::NoRoom => {
                        may_start = false;
                        continue;
                    }
                    Start::Started { cached } => {
                        let entry = &mut self.entries[i];
                        (entry.running, entry.done) = (true, cached);
                        running += 1;
                    }
                }
            }
            let entry = self.entries[i];
            let end = match entry.done.saturating_add(budget) {
                end if end >= entry.total => entry.total,
                end => end - end % self.block_tokens,
            };
            if end > entry.done {
                work.push(Slice { job: entry.job, start: entry.done, end });
                planned += end - entry.done;
            }
        }
        work
    }

    /// A slice has been computed. A request that is computed whole leaves the line.
    pub fn computed(&mut self, slice: &Slice) {
        if let Some(entry) = self.entries.iter_mut().find(|e| e.job == slice.job) {
            entry.done = slice.end;
            if entry.remaining() == 0 {
                self.remove(slice.job);
            }
        }
    }

    /// Takes a request out; false if it is not in the line.
    pub fn remove(&mut self, job: JobId) -> bool {
        let before = self.entries.len();
        self.entries.retain(|e| e.job != job);
        self.entries.len() < before
    }

    /// Sums over the line.
    #[must_use]
    pub fn line(&self) -> Line {
        let mut line = Line::default();
        for entry in &self.entries {
            if entry.running {
                line.running += 1
            } else {
                line.queued += 1
            }
            line.tokens += u64::from(entry.remaining());
        }
        line
    }

    /// Entries in the order in which they get the executor.
    fn order(&self, now: Duration) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.entries.len()).collect();
        order.sort_by_key(|&i| {
            let entry = &self.entries[i];
            let aged = now.saturating_sub(entry.arrived) >= self.limits.age_bound;
            // Among the aged the arrival decides, among the young what remains; jobs are numbered in order of arrival.
            if aged { (0, 0, entry.job) } else { (1, entry.remaining(), entry.job) }
        });
        order
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const LIMITS: Limits = Limits {
        tokens_max: 1000,
        requests_max: 8,
        running_max: 4,
        chunk_tokens: 64,
        fill_tokens: 32,
        age_bound: Duration::from_secs(10),
    };

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn fresh(_: JobId) -> Start {
        Start::Started { cached: 0 }
    }

    fn slice(job: u64, start: u32, end: u32) -> Slice {
        Slice { job: JobId(job), start, end }
    }

    #[test]
    fn the_shortest_goes_first_and_others_only_fill() {
        let mut scheduler = Scheduler::new(LIMITS, 16);
        assert_eq!(scheduler.offer(JobId(1), 300, 0, at(0)), Ok(Place { position: 0, tokens_ahead: 0 }));
        assert_eq!(scheduler.plan(at(0), fresh), [slice(1, 0, 64)]);
        scheduler.computed(&slice(1, 0, 64));
        assert_eq!(scheduler.offer(JobId(2), 10, 0, at(0)), Ok(Place { position: 0, tokens_ahead: 0 }));
        assert_eq!(scheduler.offer(JobId(3), 500, 0, at(0)), Ok(Place { position: 2, tokens_ahead: 246 }));
        // 10 tokens leave 22 to fill: one block of the next.
        let work = scheduler.plan(at(1), fresh);
        assert_eq!(work, [slice(2, 0, 10), slice(1, 64, 80)]);
        work.iter().for_each(|w| scheduler.computed(w));
        assert_eq!(scheduler.plan(at(1), fresh), [slice(1, 80, 144)]);
        assert_eq!(scheduler.line(), Line { queued: 1, running: 1, tokens: 220 + 500 });
    }

    #[test]
    fn who_has_waited_long_goes_first() {
        let mut scheduler = Scheduler::new(LIMITS, 16);
        scheduler.offer(JobId(1), 300, 0, at(0)).unwrap();
        scheduler.offer(JobId(2), 200, 0, at(5)).unwrap();
        scheduler.offer(JobId(3), 100, 0, at(12)).unwrap();
        assert_eq!(scheduler.plan(at(9), fresh)[0].job, JobId(3));
        assert_eq!(scheduler.plan(at(12), fresh)[0].job, JobId(1));
        assert_eq!(scheduler.plan(at(16), fresh)[0].job, JobId(1), "both aged: the elder");
    }

    #[test]
    fn what_is_cached_is_not_computed_and_not_counted() {
        let mut scheduler = Scheduler::new(LIMITS, 16);
        scheduler.offer(JobId(1), 100, 96, at(0)).unwrap();
        assert_eq!(scheduler.line().tokens, 4);
        // The estimate was too good: eviction came first.
        assert_eq!(scheduler.plan(at(0), |_| Start::Started { cached: 32 }), [slice(1, 32, 96)]);
        scheduler.computed(&slice(1, 32, 96));
        assert_eq!(scheduler.plan(at(0), fresh), [slice(1, 96, 100)]);
        scheduler.computed(&slice(1, 96, 100));
        assert_eq!(scheduler.line(), Line::default());
        // A wrong estimate of the whole prompt cannot make a request without work.
        scheduler.offer(JobId(2), 5, 5, at(0)).unwrap();
        assert_eq!(scheduler.line().tokens, 1);
    }

    #[test]
    fn a_full_line_refuses_but_never_an_empty_one() {
        let mut scheduler = Scheduler::new(LIMITS, 16);
        scheduler.offer(JobId(1), 5000, 0, at(0)).unwrap();
        assert_eq!(scheduler.offer(JobId(2), 1, 0, at(0)), Err(Full { requests: 1, tokens: 5000 }));
        assert!(scheduler.remove(JobId(1)));
        assert!(!scheduler.remove(JobId(1)));
        for job in 0..8 {
            scheduler.offer(JobId(job), 10, 0, at(0)).unwrap();
        }
        assert_eq!(scheduler.offer(JobId(9), 1, 0, at(0)), Err(Full { requests: 8, tokens: 80 }));
    }

    #[test]
    fn no_room_holds_the_line_and_running_ones_go_on() {
        let mut scheduler = Scheduler::new(LIMITS, 16);
        scheduler.offer(JobId(1), 300, 0, at(0)).unwrap();
        scheduler.plan(at(0), fresh);
        scheduler.offer(JobId(2), 20, 0, at(0)).unwrap();
        scheduler.offer(JobId(3), 30, 0, at(0)).unwrap();
        let mut asked = Vec::new();
        let work = scheduler.plan(at(1), |job| {
            asked.push(job);
            Start::NoRoom
        });
        assert_eq!(asked, [JobId(2)], "nobody behind it is asked");
        assert_eq!(work, [slice(1, 0, 64)]);
    }

    #[derive(Clone, Debug)]
    enum Event {
        Offer { total: u32, cached_blocks: u32 },
        Step { room: u32 },
        Remove { nth: usize },
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let event = prop_oneof![
            2 => (1..400_u32, 0..10_u32).prop_map(|(total, cached_blocks)| Event::Offer { total, cached_blocks }),
            4 => (0..4_u32).prop_map(|room| Event::Step { room }),
            1 => (0..8_usize).prop_map(|nth| Event::Remove { nth }),
        ];
        prop::collection::vec(event, 1..80)
    }

    proptest! {
        /// Every request is computed from its cached tokens to its end, each token once and in order; chunks are aligned
        /// and within their bounds; then the line is empty and nobody aged waited behind a younger one.
        #[test]
        fn every_token_is_computed_once(events in events(), block in 1..33_u32) {
            let limits = LIMITS;
            let mut scheduler = Scheduler::new(limits, block);
            let chunk = limits.chunk_tokens.max(block);
            // Total, tokens done once started, arrival.
            let mut jobs: BTreeMap<JobId, (u32, Option<u32>, u64)> = BTreeMap::new();
            let mut next = 0;
            let drain = std::iter::repeat_n(Event::Step { room: 4 }, 8 * 400 / block.min(16) as usize + 400);
            for (second, event) in events.into_iter().chain(drain).enumerate() {
                let second = second as u64;
                match event {
                    Event::Offer { total, cached_blocks } => {
                        next += 1;
                        let cached = (cached_blocks * block).min((total - 1) / block * block);
                        if scheduler.offer(JobId(next), total, cached, at(second)).is_ok() {
                            jobs.insert(JobId(next), (total, None, second));
                        }
                    }
                    Event::Remove { nth } => {
                        if let Some(&job) = jobs.keys().nth(nth) {
                            prop_assert!(scheduler.remove(job));
                            jobs.remove(&job);
                        }
                    }
                    Event::Step { mut room } => {
                        let mut started = Vec::new();
                        let work = scheduler.plan(at(second), |job| {
                            if room == 0 {
                                return Start::NoRoom;
                            }
                            room -= 1;
                            let cached = (jobs[&job].0 - 1) / block / 2 * block;
                            started.push((job, cached));
                            Start::Started { cached }
                        });
                        for (job, cached) in started {
                            let job = jobs.get_mut(&job).unwrap();
                            prop_assert_eq!(job.1.replace(cached), None, "started once");
                        }
                        prop_assert!(jobs.values().filter(|j| j.1.is_some()).count() <= limits.running_max);
                        let planned: u32 = work.iter().map(|w| w.end - w.start).sum();
                        prop_assert!(planned <= chunk);
                        prop_assert!(work.len() < 2 || planned <= limits.fill_tokens.max(work[0].end - work[0].start));
                        let runnable = jobs.values().any(|j| j.1.is_some());
                        prop_assert_eq!(work.is_empty(), !runnable, "work conserving");
                        if let Some(first) = work.first() {
                            let aged = |j: &(u32, Option<u32>, u64)| second - j.2 >= limits.age_bound.as_secs();
                            let eldest = jobs.iter().find(|(_, j)| j.1.is_some() && aged(j));
                            if let Some((&eldest, _)) = eldest {
                                prop_assert!(first.job <= eldest, "an aged one waits behind a younger one");
                            }
                        }
                        for slice in &work {
                            let job = jobs.get_mut(&slice.job).unwrap();
                            prop_assert_eq!(job.1, Some(slice.start));
                            prop_assert!(slice.end % block == 0 || slice.end == job.0);
                            job.1 = Some(slice.end);
                            if slice.end == job.0 {
                                jobs.remove(&slice.job);
                            }
                            scheduler.computed(slice);
                        }
                    }
                }
                let line = scheduler.line();
                prop_assert_eq!((line.queued + line.running) as usize, jobs.len());
            }
            prop_assert!(jobs.is_empty(), "everything ends: {:?}", jobs);
        }
    }
}
