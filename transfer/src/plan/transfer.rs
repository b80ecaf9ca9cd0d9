//! One transfer: what is still to be handed out, what is under way, what landed, and its one report.

use std::collections::VecDeque;
use std::sync::Arc;

use super::classes::FlowKey;
use super::coalesce::Cursor;
use super::retry::Retry;
use super::{Cause, Failure, OpStatus, PathId, Report, Request, Time};

#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) request: Request,
    /// First byte never handed out, and how many there are from it on.
    pub(crate) cursor: Cursor,
    pub(crate) unsent: u64,
    /// Ranges to send again.
    pub(crate) retries: VecDeque<Retry>,
    /// Attempts under way: those that count, and those whose range was given to another attempt.
    pub(crate) live: u32,
    pub(crate) abandoned: u32,
    /// In the queue of its flow.
    pub(crate) queued: bool,
    /// When a back-off of one of its ranges ends, where a timer runs for it.
    pub(crate) retry_timer: Option<Time>,
    /// Its report is out.
    pub(crate) ended: bool,
    total: u64,
    landed: u64,
    /// Bytes of each op that have not landed.
    missing: Vec<u64>,
    retried: u64,
    by_path: Vec<(PathId, u64)>,
    submitted_at: Time,
    first_sent_at: Option<Time>,
    last_landed_at: Time,
}

impl Transfer {
    /// `missing`: bytes of each op.
    pub(crate) fn new(request: Request, missing: Vec<u64>, now: Time) -> Self {
        let total = missing.iter().sum();
        Self {
            request,
            cursor: Cursor::default(),
            unsent: total,
            retries: VecDeque::new(),
            live: 0,
            abandoned: 0,
            queued: false,
            retry_timer: None,
            ended: false,
            total,
            landed: 0,
            missing,
            retried: 0,
            by_path: Vec::new(),
            submitted_at: now,
            first_sent_at: None,
            last_landed_at: now,
        }
    }

    pub(crate) fn flow(&self) -> FlowKey {
        FlowKey { class: self.request.class, tenant: self.request.tenant, peer: self.request.peer }
    }

    pub(crate) fn op_count(&self) -> usize {
        self.missing.len()
    }

    /// Bytes that wait to be handed out.
    pub(crate) fn pending(&self) -> u64 {
        self.unsent + self.retries.iter().map(|retry| retry.bytes).sum::<u64>()
    }

    pub(crate) fn on_sent(&mut self, bytes: u64, attempt: u8, now: Time) {
        self.live += 1;
        self.first_sent_at.get_or_insert(now);
        if attempt > 0 {
            self.retried += bytes;
        }
    }

    /// A counted attempt landed.
    pub(crate) fn on_landed(&mut self, start: Cursor, bytes: u64, path: PathId, now: Time) {
        self.landed += bytes;
        self.last_landed_at = now;
        let missing = &mut self.missing;
        start.walk(&self.request.ops, bytes, |op, share| missing[op] = missing[op].saturating_sub(share));
        match self.by_path.iter_mut().find(|(known, _)| *known == path) {
            Some((_, sum)) => *sum += bytes,
            None => self.by_path.push((path, bytes)),
        }
    }

    /// Every byte is visible.
    pub(crate) fn has_landed(&self) -> bool {
        self.landed == self.total
    }

    /// Nothing of it can touch memory any more.
    pub(crate) fn is_quiet(&self) -> bool {
        self.live == 0 && self.abandoned == 0
    }

    /// Ends it: no more is handed out, and this is its report. `culprit`: the range whose failure ended it, and why.
    pub(crate) fn end(
        &mut self,
        status: Result<(), Failure>,
        culprit: Option<(Cursor, u64, Cause)>,
        now: Time,
    ) -> Report {
        self.ended = true;
        self.unsent = 0;
        self.retries = VecDeque::new();
        let first_unsent = self.cursor.op() + usize::from(self.cursor.is_inside());
        let status_of = |(op, missing): (usize, &u64)| match missing {
            0 => OpStatus::Landed,
            _ if op >= first_unsent => OpStatus::NotSent,
            _ => OpStatus::InDoubt,
        };
        let mut ops: Vec<OpStatus> = self.missing.iter().enumerate().map(status_of).collect();
        if let Some((start, bytes, cause)) = culprit {
            start.walk(&self.request.ops, bytes, |op, _| ops[op] = OpStatus::Failed(cause));
        }
        self.missing = Vec::new();
        self.request.ops = Arc::default();
        let first = self.first_sent_at.unwrap_or(now);
        Report {
            status,
            ops,
            bytes: self.landed,
            retried_bytes: self.retried,
            bytes_by_path: std::mem::take(&mut self.by_path),
            queued: first.since(self.submitted_at),
            wire: self.last_landed_at.since(first),
            last_landed: (self.landed > 0).then_some(self.last_landed_at),
            lent: !self.is_quiet(),
        }
    }
}
