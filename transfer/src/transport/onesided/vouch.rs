//! Vouching: a NIC acknowledges bytes that the peer's processor may not see yet, and the peer's own completion of a request behind them on
//! the same queue pair is the first certain word. So a sender that wants to tell the peer that bytes are there sends such a request.
//!
//! One is under way at a time, and carries a number that only grows: it stands for all before it. So whatever is lost with a queue pair
//! is said again by the next, hearing it twice changes nothing, and the peer needs few receives.

/// What a rail is to vouch for, at the sender.
#[derive(Debug, Default)]
pub(super) struct Vouch {
    wanted: Option<u32>,
    out: Option<u32>,
}

impl Vouch {
    /// For everything up to this one, which is later than those before.
    pub(super) fn want(&mut self, word: u32) {
        self.wanted = Some(word);
    }

    /// There is something to say, now or when what is said has arrived.
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted.is_some()
    }

    /// What to say now, if anything.
    pub(super) fn next(&mut self) -> Option<u32> {
        if self.out.is_some() {
            return None;
        }
        self.out = self.wanted.take();
        self.out
    }

    /// It has arrived.
    pub(super) fn arrived(&mut self) {
        self.out = None;
    }

    /// The queue pair is gone; what it carried may have arrived or not.
    pub(super) fn lost(&mut self) {
        self.wanted = self.wanted.or(self.out);
        self.out = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_under_way_and_the_last_stands_for_those_between() {
        let mut vouch = Vouch::default();
        assert_eq!(vouch.next(), None);
        vouch.want(1);
        assert_eq!(vouch.next(), Some(1));
        vouch.want(2);
        vouch.want(3);
        assert_eq!(vouch.next(), None, "the first has not arrived");
        vouch.arrived();
        assert_eq!(vouch.next(), Some(3));
        vouch.arrived();
        assert_eq!(vouch.next(), None);
    }

    #[test]
    fn what_is_lost_is_said_again_unless_something_later_is() {
        let mut vouch = Vouch::default();
        vouch.want(1);
        vouch.next();
        vouch.lost();
        assert!(vouch.is_wanted());
        assert_eq!(vouch.next(), Some(1));
        vouch.want(2);
        vouch.lost();
        assert_eq!(vouch.next(), Some(2));
    }
}
