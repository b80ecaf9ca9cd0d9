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
}

impl Limit {
    /// The total that is no limit.
    pub const NONE: u64 = u64::MAX;
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub struct Account {
    /// The receiver sees nothing arrive (RDMA): it is told what has settled.
    reports: bool,
    used: u64,
    settled: u64,
    limit: Limit,
    told: Demand,
    lost: u64,
    idle_since: Option<Time>,
}

impl Account {
    /// With a NIC whose owner has to be told what settled, or sees it arrive.
    #[must_use]
    pub fn new(reports: bool) -> Self {
        Self {
            reports,
            used: 0,
            settled: 0,
            limit: Limit { epoch: 0, total: Limit::NONE, quantum: 0 },
            told: Demand::default(),
            lost: 0,
            idle_since: None,
        }
    }

    /// Bytes that may be sent now; `u64::MAX` without a limit.
    #[must_use]
    pub fn room(&self) -> u64 {
        if self.is_limited() { self.limit.total.saturating_sub(self.used) } else { u64::MAX }
    }

    /// Bytes are on their way.
    pub fn on_sent(&mut self, bytes: u64) {
        self.used += bytes;
    }

    /// Bytes are not on their way any more: they landed, or never will.
    pub fn on_settled(&mut self, bytes: u64, landed: bool) {
        self.settled += bytes;
        self.lost += if landed { 0 } else { bytes };
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
            let unused = self.limit.total - self.used;
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

    fn is_due(&self, wanted: u64, is_busy: bool) -> bool {
        let (told, quantum) = (&self.told, u64::from(self.limit.quantum));
        // What was asked for is nearly granted, and there is more.
        let granted = self.limit.total.max(self.used);
        let wants_more = wanted > told.wanted && told.wanted <= granted.saturating_add(quantum + SHORT_BYTES);
        // Half a quantum at a time, and the last of it: or what many senders keep to themselves would fill the window.
        let settled = self.settled - told.settled;
        let frees = self.reports && (settled > quantum / 2 || (settled > 0 && self.settled == self.used));
        // The receiver waits for what is lost in vain.
        self.lost != told.lost
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
        Limit { epoch, total, quantum: 1000 }
    }

    fn numbers(demand: Option<Demand>) -> Option<(u64, u64, u64)> {
        demand.map(|d| (d.used, d.settled, d.wanted))
    }

    #[test]
    fn without_a_limit_only_the_beginning_and_late_the_end_are_told() {
        let (mut account, start) = (Account::new(false), Time(5));
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
        let mut account = Account::new(false);
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
        let mut account = Account::new(false);
        account.on_sent(1 << 20);
        account.on_settled(1 << 20, true);
        account.handle_limit(limit(1, 0));
        assert_eq!(numbers(account.poll(0, TENANT, Time(0))), Some((1 << 20, 1 << 20, 1 << 20)));
        assert_eq!(numbers(account.poll(9, TENANT, Time(0))), Some((1 << 20, 1 << 20, (1 << 20) + 9)));
    }

    #[test]
    fn more_is_asked_for_when_what_was_asked_for_is_nearly_granted() {
        let mut account = Account::new(false);
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
        let mut account = Account::new(false);
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
    fn what_settled_is_reported_where_nobody_sees_it_arrive() {
        for reports in [false, true] {
            let mut account = Account::new(reports);
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
