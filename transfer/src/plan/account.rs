//! The sender's account with one NIC: how much of it was used, how much may be, and what its receiver is to be told.
//!
//! The other side is the NIC's [`Ledger`](super::Ledger). Every number that crosses the wire counts from the account's beginning,
//! so a word that is lost, repeated or overtaken does no harm: the next one says it all again. Credit that nobody wants any more
//! is *used on nothing*: it counts as used and settled at once, and so comes back without a number of its own.
//!
//! Without a limit next to nothing is said: that there is more work than a small transfer, and, late, that there is none.
//!
//! Pure: what was sent, what ended and `now` come in, words go out. Each call is O(1).

use std::time::Duration;

use super::{TenantId, Time};

/// Work below this is not told while there is no limit: it is over before an answer comes.
const SMALL_BYTES: u64 = 64 << 10;
/// Who wants no more than this goes first at the receiver. So more work is told before what is known of it looks like so little.
pub(super) const SHORT_BYTES: u64 = 256 << 10;
/// Credit that a sender without work keeps, where its receiver gives any: a short transfer need not ask for it.
pub(super) const STANDING_BYTES: u64 = 64 << 10;
/// Without a limit, that there is no work is told so late: another transfer may follow.
const IDLE_AFTER: Duration = Duration::from_millis(20);

/// What a sender says of one of its peer's NICs. The latest counts, by `sequence`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Grows with each demand of this sender for this NIC.
    pub sequence: u64,
    /// The latest [`Limit::epoch`] that the sender obeys.
    pub epoch: u32,
    /// Bytes sent so far, and credit that was used on nothing.
    pub used: u64,
    /// Of these, bytes that are not on the way any more.
    pub settled: u64,
    /// Of the settled, bytes that never arrive: lost on a path that is fenced, or credit used on nothing.
    pub lost: u64,
    /// Bytes used so far and still to be sent.
    pub wanted: u64,
    /// On whose account: that of the latest transfer.
    pub tenant: TenantId,
}

impl Demand {
    /// Something is on the way, or is to be.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.wanted > self.settled
    }
}

/// What a receiver allows a sender on one of its NICs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Counts the times that limits were imposed and lifted; only the latest holds, and within it the highest total.
    pub epoch: u32,
    /// [`Demand::used`] may grow to this; [`Self::NONE`] where nothing is limited. 0 at the beginning of an epoch: where does the
    /// sender stand?
    pub total: u64,
    /// Bytes by which it will be raised: a sender need not say more often what has changed.
    pub quantum: u32,
    /// Bytes that may be on the way at a time, [`Self::ALL`] where the total is the only bound.
    pub at_once: u32,
}

impl Limit {
    /// The total that is no limit.
    pub const NONE: u64 = u64::MAX;
    /// As many on the way as there are.
    pub const ALL: u32 = u32::MAX;
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub struct Account {
    /// The receiver sees nothing arrive (RDMA): it is told what has settled.
    reports: bool,
    /// Credit that is kept although there is no work.
    keeps: u64,
    used: u64,
    settled: u64,
    limit: Limit,
    told: Demand,
    lost: u64,
    /// What was lost was told while something was on the way: who counts arrivals could not tell one from the other.
    unsure: bool,
    idle_since: Option<Time>,
}

impl Account {
    /// With a NIC whose owner has to be told what settled, or sees it arrive; who gives standing credit, or none.
    #[must_use]
    pub fn new(reports: bool, stands: bool) -> Self {
        Self {
            reports,
            keeps: if stands { STANDING_BYTES } else { 0 },
            used: 0,
            settled: 0,
            limit: Limit { epoch: 0, total: Limit::NONE, quantum: 0, at_once: Limit::ALL },
            told: Demand::default(),
            lost: 0,
            unsure: false,
            idle_since: None,
        }
    }

    /// Bytes that may be sent now; `u64::MAX` without a limit.
    #[must_use]
    pub fn room(&self) -> u64 {
        if !self.is_limited() {
            return u64::MAX;
        }
        let left = self.limit.total.saturating_sub(self.used);
        if self.has_turns() {
            left.min(u64::from(self.limit.at_once).saturating_sub(self.used - self.settled))
        } else {
            left
        }
    }

    /// Bytes are on their way.
    pub fn on_sent(&mut self, bytes: u64) {
        self.used += bytes;
    }

    /// Bytes are not on their way any more: they landed, or never will. True: others may be sent in their place.
    pub fn on_settled(&mut self, bytes: u64, landed: bool) -> bool {
        self.settled += bytes;
        self.lost += if landed { 0 } else { bytes };
        self.has_turns() && self.room() > 0
    }

    /// The receiver's word. True: more may be sent than before.
    pub fn handle_limit(&mut self, limit: Limit) -> bool {
        let before = self.room();
        if (limit.epoch, limit.total) > (self.limit.epoch, self.limit.total) {
            self.limit = limit;
        }
        self.room() > before
    }

    /// What is to be said now, with `pending` bytes waiting to be sent.
    pub fn poll(&mut self, pending: u64, tenant: TenantId, now: Time) -> Option<Demand> {
        if pending == 0 && self.is_limited() && self.limit.total > self.used {
            let unused = (self.limit.total - self.used).saturating_sub(self.keeps);
            self.used += unused;
            self.settled += unused;
            self.lost += unused;
        }
        let wanted = self.used.saturating_add(pending);
        let is_busy = wanted > self.settled;
        let due = if self.is_limited() { self.is_due(wanted, is_busy) } else { self.is_due_unlimited(wanted, now) };
        if !due {
            return None;
        }
        self.idle_since = None;
        self.unsure = (self.unsure || self.lost != self.told.lost) && self.settled != self.used;
        self.told = Demand {
            sequence: self.told.sequence + 1,
            epoch: self.limit.epoch,
            used: self.used,
            settled: self.settled,
            lost: self.lost,
            wanted,
            tenant,
        };
        Some(self.told)
    }

    /// When to poll although nothing happened.
    #[must_use]
    pub fn wakes_at(&self) -> Option<Time> {
        self.idle_since.map(|since| since + IDLE_AFTER)
    }

    fn is_limited(&self) -> bool {
        self.limit.total != Limit::NONE
    }

    /// A raise is a turn, of which only a part may be on the way at a time.
    fn has_turns(&self) -> bool {
        self.is_limited() && self.limit.at_once != Limit::ALL
    }

    fn is_due(&self, wanted: u64, is_busy: bool) -> bool {
        let (told, quantum) = (&self.told, u64::from(self.limit.quantum));
        // What was asked for is nearly granted, and there is more than that. The end of a turn is told, and with it what is wanted then.
        let granted = self.limit.total.max(self.used);
        let ahead = if self.has_turns() { SHORT_BYTES } else { quantum + SHORT_BYTES };
        let wants_more = wanted > told.wanted.max(granted) && told.wanted <= granted.saturating_add(ahead);
        // Half a quantum at a time, and the last of it: or what many senders keep to themselves would fill the window. Of a turn the
        // end is enough, and more than one at a time is somebody else's.
        let settled = self.settled - told.settled;
        let is_last = settled > 0 && self.settled == self.used && (!self.has_turns() || self.used >= self.limit.total);
        let enough = if self.has_turns() { quantum } else { quantum / 2 };
        let frees = self.reports && (settled > enough || is_last);
        // The receiver waits for what is lost in vain.
        self.lost != told.lost
            || (self.unsure && self.settled == self.used)
            || told.epoch != self.limit.epoch
            || wants_more
            || wanted < told.wanted
            || frees
            || (told.is_busy() && !is_busy)
    }

    fn is_due_unlimited(&mut self, wanted: u64, now: Time) -> bool {
        let is_idle = wanted == self.settled;
        match (self.told.is_busy(), is_idle) {
            (false, _) => wanted - self.settled > SMALL_BYTES,
            (true, false) => {
                self.idle_since = None;
                false
            }
            (true, true) => now >= *self.idle_since.get_or_insert(now) + IDLE_AFTER,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TENANT: TenantId = TenantId(3);

    fn limit(epoch: u32, total: u64) -> Limit {
        Limit { epoch, total, quantum: 1000, at_once: Limit::ALL }
    }

    fn numbers(demand: Option<Demand>) -> Option<(u64, u64, u64)> {
        demand.map(|d| (d.used, d.settled, d.wanted))
    }

    #[test]
    fn without_a_limit_only_the_beginning_and_late_the_end_are_told() {
        let (mut account, start) = (Account::new(false, false), Time(5));
        assert_eq!((account.room(), account.poll(SMALL_BYTES, TENANT, start)), (u64::MAX, None), "a small one");
        assert_eq!(numbers(account.poll(1 << 20, TENANT, start)), Some((0, 0, 1 << 20)));
        for _ in 0..16 {
            account.on_sent(1 << 16);
            account.on_settled(1 << 16, true);
            assert_eq!(account.poll(1 << 20, TENANT, start), None);
        }
        assert_eq!((account.poll(0, TENANT, start), account.wakes_at()), (None, Some(start + IDLE_AFTER)));
        assert_eq!(account.poll(1, TENANT, start + IDLE_AFTER), None, "another came in time");
        assert_eq!(account.poll(0, TENANT, start + IDLE_AFTER), None);
        let end = account.poll(0, TENANT, start + 2 * IDLE_AFTER);
        assert_eq!((numbers(end), account.wakes_at()), (Some((1 << 20, 1 << 20, 1 << 20)), None));
        assert_eq!(account.poll(0, TENANT, start + 9 * IDLE_AFTER), None, "once");
    }

    #[test]
    fn a_new_epoch_stops_it_and_is_answered_with_where_it_stands() {
        let mut account = Account::new(false, false);
        account.on_sent(5000);
        assert!(!account.handle_limit(limit(1, 0)));
        assert_eq!(account.room(), 0);
        let answer = account.poll(9000, TENANT, Time(0)).unwrap();
        assert_eq!((answer.epoch, answer.used, answer.settled, answer.wanted), (1, 5000, 0, 14_000));
        assert_eq!((answer.sequence, answer.tenant), (1, TENANT));
        assert!(account.handle_limit(limit(1, 7000)) && !account.handle_limit(limit(1, 6000)));
        assert_eq!(account.room(), 2000, "an overtaken word changes nothing");
        assert!(account.handle_limit(limit(2, Limit::NONE)) && !account.handle_limit(limit(1, 8000)));
        assert_eq!(account.room(), u64::MAX, "nor does one of an epoch that is over");
    }

    #[test]
    fn work_that_comes_after_an_epoch_began_is_told() {
        let mut account = Account::new(false, false);
        account.on_sent(1 << 20);
        account.on_settled(1 << 20, true);
        account.handle_limit(limit(1, 0));
        assert_eq!(numbers(account.poll(0, TENANT, Time(0))), Some((1 << 20, 1 << 20, 1 << 20)));
        assert_eq!(numbers(account.poll(9, TENANT, Time(0))), Some((1 << 20, 1 << 20, (1 << 20) + 9)));
    }

    #[test]
    fn more_is_asked_for_when_what_was_asked_for_is_nearly_granted() {
        let mut account = Account::new(false, false);
        account.handle_limit(limit(1, 0));
        let (some, more) = (1 << 20, 2 << 20);
        assert_eq!(numbers(account.poll(some, TENANT, Time(0))), Some((0, 0, some)));
        assert_eq!(account.poll(more, TENANT, Time(0)), None, "there is enough to grant");
        account.handle_limit(limit(1, some - SHORT_BYTES - 500));
        assert_eq!(numbers(account.poll(more, TENANT, Time(0))), Some((0, 0, more)));
        assert_eq!(numbers(account.poll(some, TENANT, Time(0))), Some((0, 0, some)), "some were cancelled");
    }

    #[test]
    fn credit_that_nobody_wants_comes_back_and_so_does_what_was_lost() {
        let mut account = Account::new(false, false);
        account.handle_limit(limit(1, 0));
        account.poll(10_000, TENANT, Time(0));
        account.handle_limit(limit(1, 10_000));
        account.on_sent(4000);
        assert_eq!(account.poll(6000, TENANT, Time(0)), None);
        assert_eq!(numbers(account.poll(0, TENANT, Time(0))), Some((10_000, 6000, 10_000)), "6,000 used on nothing");
        assert_eq!(account.room(), 0);
        account.on_settled(4000, false);
        assert_eq!(numbers(account.poll(4000, TENANT, Time(0))), Some((10_000, 10_000, 14_000)), "sent again");
    }

    #[test]
    fn what_was_lost_is_told_again_when_nothing_is_on_the_way() {
        let mut account = Account::new(false, false);
        account.handle_limit(limit(1, 0));
        account.poll(10_000, TENANT, Time(0));
        account.handle_limit(limit(1, 10_000));
        account.on_sent(4000);
        assert!(account.poll(0, TENANT, Time(0)).is_some(), "6,000 used on nothing, 4,000 on the way");
        account.handle_limit(limit(1, 11_000));
        assert!(account.poll(9000, TENANT, Time(0)).is_some(), "there is more");
        account.on_settled(4000, true);
        assert_eq!(numbers(account.poll(9000, TENANT, Time(0))), Some((10_000, 10_000, 19_000)), "all of it settled");
        assert_eq!(account.poll(9000, TENANT, Time(0)), None, "once");
    }

    #[test]
    fn standing_credit_is_kept_and_used_without_a_word() {
        let mut account = Account::new(false, true);
        account.handle_limit(limit(1, 0));
        assert!(account.poll(0, TENANT, Time(0)).is_some(), "where it stands");
        account.handle_limit(limit(1, STANDING_BYTES));
        assert_eq!((account.poll(0, TENANT, Time(0)), account.room()), (None, STANDING_BYTES));
        assert_eq!(account.poll(STANDING_BYTES, TENANT, Time(0)), None, "there is credit for it");
        account.on_sent(STANDING_BYTES);
        account.on_settled(STANDING_BYTES, true);
        assert_eq!(account.poll(0, TENANT, Time(0)), None, "its receiver saw it arrive");
        account.handle_limit(limit(1, 2 * STANDING_BYTES));
        let more = numbers(account.poll(STANDING_BYTES + 1, TENANT, Time(0)));
        assert_eq!(
            more,
            Some((STANDING_BYTES, STANDING_BYTES, 2 * STANDING_BYTES + 1)),
            "more than there is credit for"
        );
        account.handle_limit(limit(1, 4 * STANDING_BYTES));
        let back = numbers(account.poll(0, TENANT, Time(0)));
        assert_eq!(back, Some((3 * STANDING_BYTES, 3 * STANDING_BYTES, 3 * STANDING_BYTES)), "no more is kept");
    }

    #[test]
    fn of_a_turn_a_part_is_on_the_way_and_its_end_is_told() {
        let mut account = Account::new(true, false);
        account.handle_limit(limit(1, 0));
        account.poll(1 << 20, TENANT, Time(0));
        account.handle_limit(Limit { at_once: 300, ..limit(1, 1000) });
        for sent in [300, 300, 300] {
            assert_eq!(account.room(), sent);
            account.on_sent(sent);
            assert_eq!(account.room(), 0);
            assert!(account.on_settled(sent, true), "others may go in their place");
            assert_eq!(account.poll((1 << 20) - account.used, TENANT, Time(0)), None);
        }
        assert_eq!(account.room(), 100);
        account.on_sent(100);
        assert!(!account.on_settled(100, true), "the turn is over");
        assert_eq!(numbers(account.poll((1 << 20) - 1000, TENANT, Time(0))), Some((1000, 1000, 1 << 20)));
    }

    #[test]
    fn more_work_within_a_turn_is_told_with_its_end_unless_the_next_would_look_like_the_last() {
        for (asked, is_told) in [(1000 + SHORT_BYTES + 500, false), (1000 + SHORT_BYTES, true)] {
            let mut account = Account::new(true, false);
            account.handle_limit(limit(1, 0));
            account.poll(asked, TENANT, Time(0));
            account.handle_limit(Limit { at_once: 500, ..limit(1, 1000) });
            assert_eq!(account.poll(2 * asked, TENANT, Time(0)).is_some(), is_told, "{asked}");
        }
    }

    #[test]
    fn what_settled_is_reported_where_nobody_sees_it_arrive() {
        for reports in [false, true] {
            let mut account = Account::new(reports, false);
            account.handle_limit(limit(1, 0));
            account.poll(10_000, TENANT, Time(0));
            account.handle_limit(limit(1, 2000));
            account.on_sent(2000);
            account.on_settled(500, true);
            assert_eq!(account.poll(8000, TENANT, Time(0)), None, "by half a quantum and no less");
            account.on_settled(100, true);
            assert_eq!(account.poll(8000, TENANT, Time(0)).is_some(), reports);
            account.on_settled(1100, true);
            assert_eq!(account.poll(8000, TENANT, Time(0)).is_some(), reports);
            account.handle_limit(limit(1, 2100));
            account.on_sent(100);
            assert_eq!(account.poll(7900, TENANT, Time(0)), None);
            account.on_settled(400, true);
            assert_eq!(account.poll(7900, TENANT, Time(0)).is_some(), reports, "the last of it");
        }
    }
}
