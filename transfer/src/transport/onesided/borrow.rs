//! The borrower's side of loans: which leases of the peer may be used over a rail, and which it wants back.

use std::collections::HashMap;

use crate::transport::frame::Status;
use crate::transport::onesided::Key;

/// What there is of one lease.
#[derive(Debug)]
enum Loan {
    Asked,
    Open {
        keys: Vec<Key>,
        /// Requests under it that are with the NIC, or were with a queue pair that failed and may still land.
        out: u32,
        /// Bytes of those that completed.
        landed: u64,
        /// The owner wants it back.
        recalled: bool,
    },
    /// It was refused; what waits for it ends with this.
    Refused(Status),
}

/// What may be done under a lease now.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Leave<'a> {
    /// Post, with these keys.
    Post(&'a [Key]),
    /// The owner is to be asked, and has not been.
    Ask,
    /// It has been asked.
    Wait,
    /// Nothing, for this reason.
    No(Status),
}

/// A lease that goes back to its owner, with the bytes that were moved under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Returned {
    pub(super) lease: u64,
    pub(super) landed: u64,
}

/// Leases that were borrowed over one rail.
#[derive(Debug, Default)]
pub(super) struct Loans {
    by_lease: HashMap<u64, Loan>,
}

impl Loans {
    pub(super) fn leave(&self, lease: u64) -> Leave<'_> {
        match self.by_lease.get(&lease) {
            None => Leave::Ask,
            Some(Loan::Asked) => Leave::Wait,
            Some(Loan::Open { recalled: true, .. }) => Leave::No(Status::Stale),
            Some(Loan::Open { keys, .. }) => Leave::Post(keys),
            Some(Loan::Refused(status)) => Leave::No(*status),
        }
    }

    pub(super) fn asked(&mut self, lease: u64) {
        self.by_lease.insert(lease, Loan::Asked);
    }

    /// The owner's answer; false if nobody asked.
    pub(super) fn answered(&mut self, lease: u64, answer: Result<Vec<Key>, Status>) -> bool {
        let Some(loan @ Loan::Asked) = self.by_lease.get_mut(&lease) else { return false };
        *loan = match answer {
            Ok(keys) => Loan::Open { keys, out: 0, landed: 0, recalled: false },
            Err(status) => Loan::Refused(status),
        };
        true
    }

    /// What waited for leases that were refused has been told: they may be asked for again.
    pub(super) fn forget_refused(&mut self) {
        self.by_lease.retain(|_, loan| !matches!(loan, Loan::Refused(_)));
    }

    /// A request under it is with the NIC.
    pub(super) fn posted(&mut self, lease: u64) {
        if let Some(Loan::Open { out, .. }) = self.by_lease.get_mut(&lease) {
            *out += 1;
        }
    }

    /// One has ended, having moved so many bytes. Says whether the lease goes back with it.
    pub(super) fn ended(&mut self, lease: u64, bytes: u64) -> Option<Returned> {
        if let Some(Loan::Open { out, landed, .. }) = self.by_lease.get_mut(&lease) {
            *out = out.saturating_sub(1);
            *landed += bytes;
        }
        self.give_back(lease)
    }

    /// The owner wants it back: nothing more is posted under it. Says whether it goes back at once. One that is not there went
    /// back already, or was never handed over.
    pub(super) fn recalled(&mut self, lease: u64) -> Option<Returned> {
        if let Some(Loan::Open { recalled, .. }) = self.by_lease.get_mut(&lease) {
            *recalled = true;
        }
        self.give_back(lease)
    }

    fn give_back(&mut self, lease: u64) -> Option<Returned> {
        match self.by_lease.get(&lease) {
            Some(&Loan::Open { out: 0, recalled: true, landed, .. }) => {
                self.by_lease.remove(&lease);
                Some(Returned { lease, landed })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [Key; 1] = [Key { offset: 0, len: 100, key: 7, address: 0 }];

    #[test]
    fn a_lease_is_asked_for_once_and_goes_back_when_the_last_request_has_ended() {
        let mut loans = Loans::default();
        assert_eq!(loans.leave(1), Leave::Ask);
        loans.asked(1);
        assert_eq!(loans.leave(1), Leave::Wait);
        assert!(loans.answered(1, Ok(KEYS.to_vec())) && !loans.answered(1, Ok(Vec::new())));
        assert_eq!(loans.leave(1), Leave::Post(&KEYS));
        loans.posted(1);
        loans.posted(1);
        assert_eq!(loans.ended(1, 100), None, "nobody wants it back");
        loans.posted(1);
        assert_eq!(loans.recalled(1), None, "two are out");
        assert_eq!(loans.leave(1), Leave::No(Status::Stale), "and no third");
        assert_eq!(loans.ended(1, 0), None);
        assert_eq!(loans.ended(1, 50), Some(Returned { lease: 1, landed: 150 }));
        assert_eq!(loans.leave(1), Leave::Ask, "gone: whoever comes asks, and is refused by the owner");
    }

    #[test]
    fn an_idle_lease_goes_back_at_once_and_an_unknown_one_not_at_all() {
        let mut loans = Loans::default();
        assert_eq!(loans.recalled(9), None);
        loans.asked(9);
        assert_eq!(loans.recalled(9), None, "the answer is under way before the recall, or never comes");
        loans.answered(9, Ok(KEYS.to_vec()));
        assert_eq!(loans.recalled(9), Some(Returned { lease: 9, landed: 0 }));
    }

    #[test]
    fn a_refusal_ends_what_waits_and_is_then_forgotten() {
        let mut loans = Loans::default();
        assert!(!loans.answered(1, Err(Status::Stale)), "nobody asked");
        loans.asked(1);
        assert!(loans.answered(1, Err(Status::OutsideLease)));
        assert_eq!(loans.leave(1), Leave::No(Status::OutsideLease));
        loans.forget_refused();
        assert_eq!(loans.leave(1), Leave::Ask);
    }
}
