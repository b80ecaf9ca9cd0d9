//! Decisions that no load report shows yet.
//!
//! A report is sent on change, so for a moment after a decision the newest report still shows the node without it. A
//! decision counts until a report arrives that is younger than it by the time that a request needs to reach its node.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use crate::members::MemberId;

/// Decisions remembered for one member; past that the oldest is forgotten.
const CREDITS_MAX: usize = 4096;

/// Work given to a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Work {
    /// Uncached prompt tokens.
    pub tokens: u64,
    /// Streams.
    pub streams: u32,
    /// KV blocks that prompt and answer will need.
    pub blocks: u32,
}

#[derive(Debug, Default)]
struct Ledger {
    entries: VecDeque<(Duration, Work)>,
    sum: Work,
}

impl Ledger {
    fn push(&mut self, at: Duration, work: Work) {
        if self.entries.len() >= CREDITS_MAX {
            self.pop();
        }
        self.entries.push_back((at, work));
        self.sum.tokens += work.tokens;
        self.sum.streams += work.streams;
        self.sum.blocks = self.sum.blocks.saturating_add(work.blocks);
    }

    fn pop(&mut self) {
        let Some((_, work)) = self.entries.pop_front() else { return };
        self.sum.tokens -= work.tokens;
        self.sum.streams -= work.streams;
        self.sum.blocks = self.sum.blocks.saturating_sub(work.blocks);
    }

    fn forget_before(&mut self, time: Duration) {
        while self.entries.front().is_some_and(|(at, _)| *at < time) {
            self.pop();
        }
    }
}

/// All members' ledgers.
#[derive(Debug)]
pub(super) struct Credits {
    ledgers: HashMap<MemberId, Ledger>,
    settle: Duration,
    ttl: Duration,
}

impl Credits {
    pub(super) fn new(settle: Duration, ttl: Duration) -> Self {
        Self { ledgers: HashMap::new(), settle, ttl }
    }

    pub(super) fn give(&mut self, id: MemberId, work: Work, now: Duration) {
        self.ledgers.entry(id).or_default().push(now, work);
    }

    /// A report of `id` came: it shows what is older than the settling time.
    pub(super) fn handle_load(&mut self, id: MemberId, now: Duration) {
        if let Some(ledger) = self.ledgers.get_mut(&id) {
            ledger.forget_before(now.saturating_sub(self.settle));
        }
    }

    pub(super) fn handle_gone(&mut self, id: MemberId) {
        self.ledgers.remove(&id);
    }

    /// What `id` was given and has not shown.
    pub(super) fn of(&mut self, id: MemberId, now: Duration) -> Work {
        let Some(ledger) = self.ledgers.get_mut(&id) else { return Work::default() };
        ledger.forget_before(now.saturating_sub(self.ttl));
        ledger.sum
    }

    /// How many decisions that is.
    pub(super) fn count(&self, id: MemberId, now: Duration) -> usize {
        let since = now.saturating_sub(self.ttl);
        self.ledgers.get(&id).map_or(0, |ledger| ledger.entries.iter().filter(|(at, _)| *at >= since).count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_credit_lives_until_a_report_can_show_it() {
        let ms = Duration::from_millis;
        let mut credits = Credits::new(ms(50), ms(2000));
        let id = MemberId(1);
        let work = Work { tokens: 10, streams: 1, blocks: 2 };
        credits.give(id, work, ms(100));
        credits.give(id, work, ms(120));
        credits.handle_load(id, ms(130));
        assert_eq!(credits.of(id, ms(130)), Work { tokens: 20, streams: 2, blocks: 4 }, "too early to show");
        credits.handle_load(id, ms(160));
        assert_eq!(credits.of(id, ms(160)), work);
        assert_eq!((credits.count(id, ms(2120)), credits.count(id, ms(2121))), (1, 0));
        assert_eq!(credits.of(id, ms(2120)), work);
        assert_eq!(credits.of(id, ms(2121)), Work::default(), "no report ever came");
        for _ in 0..3 * CREDITS_MAX {
            credits.give(id, work, ms(3000));
        }
        assert_eq!(credits.of(id, ms(3000)).streams as usize, CREDITS_MAX);
        credits.handle_gone(id);
        assert_eq!(credits.of(id, ms(3000)), Work::default());
    }
}
