//! Who waits, who runs, and what the next step computes. Pure: no clock, no lock, no block, no token.
//!
//! - **First come, first admitted.** The queue is ordered by arrival, a preempted request goes back to its place, and
//!   nobody passes the head: no request starves for headroom.
//! - **Decode first.** Each step runs the decoding requests, oldest first, as many rows as the step-time target allows;
//!   what is left of the rows goes to prompts in block-aligned chunks, at least one block a step, so that neither
//!   starves the other.
//! - A request that waits for a prefill node's KV is not here at all, and so cannot hold a batch.
//!
//! Map: [`pace`] rows within a target time.

pub mod pace;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use pace::Pace;

/// A request, numbered in order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// Bounds of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Tokens a KV block.
    pub block_tokens: u32,
    /// Most decoding requests a step.
    pub batch_max: u32,
    /// Most prompt tokens a step.
    pub prefill_tokens_max: u32,
    /// Time a step should take at most; `None` bounds it by the two above alone.
    pub step_target: Option<Duration>,
}

/// What a step does for one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// For whom.
    pub ticket: Ticket,
    /// How many tokens, from the first that is not computed yet.
    pub tokens: u32,
}

#[derive(Clone, Copy, Debug)]
struct Runnable {
    position: u32,
    pending: u32,
    yields: bool,
}

/// The scheduler's state.
#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    queue: BTreeSet<Ticket>,
    runnable: BTreeMap<Ticket, Runnable>,
    pace: Pace,
}

impl Scheduler {
    /// Nobody waits, nobody runs.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits, queue: BTreeSet::new(), runnable: BTreeMap::new(), pace: Pace::default() }
    }

    /// Puts a request into the queue, at the place of its ticket.
    pub fn enqueue(&mut self, ticket: Ticket) {
        self.queue.insert(ticket);
    }

    /// The request that is admitted next.
    #[must_use]
    pub fn head(&self) -> Option<Ticket> {
        self.queue.first().copied()
    }

    /// Takes a request out of the queue; false if it was not there.
    pub fn dequeue(&mut self, ticket: Ticket) -> bool {
        self.queue.remove(&ticket)
    }

    /// Requests that wait for headroom.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// The request can run: `pending` tokens from `position` on are not computed; one where it decodes. Whether it
    /// `yields` says if preemption may hit it.
    pub fn run(&mut self, ticket: Ticket, position: u32, pending: u32, yields: bool) {
        self.runnable.insert(ticket, Runnable { position, pending, yields });
    }

    /// The request runs no more (or is in a step now).
    pub fn pause(&mut self, ticket: Ticket) {
        self.runnable.remove(&ticket);
    }

    /// Requests that can run.
    #[must_use]
    pub fn runnable(&self) -> usize {
        self.runnable.len()
    }

    /// The youngest request that yields and is younger than `than`: whom preemption hits.
    #[must_use]
    pub fn younger_than(&self, than: Ticket) -> Option<Ticket> {
        self.runnable.range(than..).rev().find(|(ticket, r)| r.yields && **ticket != than).map(|(&ticket, _)| ticket)
    }

    /// What the next step computes; empty if nobody can run. Never empty otherwise.
    #[must_use]
    pub fn plan(&self) -> Vec<Work> {
        let Limits { block_tokens, batch_max, prefill_tokens_max, step_target } = self.limits;
        let rows_max = batch_max.saturating_add(prefill_tokens_max);
        let rows = step_target.map_or(rows_max, |target| self.pace.rows_within(target, rows_max));
        let decoding = self.runnable.iter().filter(|(_, r)| r.pending == 1);
        let mut plan: Vec<_> =
            decoding.take(rows.min(batch_max) as usize).map(|(&ticket, _)| Work { ticket, tokens: 1 }).collect();

        let mut left = (rows - plan.len() as u32).clamp(block_tokens, prefill_tokens_max.max(block_tokens));
        for (&ticket, prompt) in self.runnable.iter().filter(|(_, r)| r.pending > 1) {
            let tokens = chunk(prompt, left, block_tokens);
            if tokens == 0 {
                break;
            }
            plan.push(Work { ticket, tokens });
            left -= tokens;
        }
        plan
    }

    /// Learns from a step of `rows` tokens.
    pub fn observe(&mut self, rows: u32, took: Duration) {
        self.pace.observe(rows, took);
    }
}

/// Tokens of a prompt that fit into `left` rows: all that is pending, or as many as end on a block boundary.
fn chunk(prompt: &Runnable, left: u32, block_tokens: u32) -> u32 {
    if prompt.pending <= left {
        return prompt.pending;
    }
    let end = (prompt.position + left) / block_tokens * block_tokens;
    end.saturating_sub(prompt.position)
}

#[cfg(test)]
mod tests;
