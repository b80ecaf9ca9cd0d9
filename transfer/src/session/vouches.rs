//! Notifications that wait until the bytes they speak of are certain to be visible.
//!
//! A NIC places bytes without anybody's doing, and its acknowledgement to the sender says that it has them, not that a processor sees them.
//! So a notification names the rails that its bytes came over, and each vouches for what it has brought, in its own order
//! (`transport::onesided`). Numbers of notifications only grow, so the last one that a rail has vouched for stands for all before it. A rail
//! that is closed here vouches for what it brought: its queue pairs are destroyed.

use std::collections::{BTreeMap, HashMap};

use crate::transport::TransportKind;

/// A rail of a session.
pub(crate) type Place = (TransportKind, u8);

/// Notifications that wait, at most: one is small, and a peer waits for an answer to each.
const WAITING_MAX: usize = 1024;

struct Waiting {
    payload: Vec<u8>,
    /// That have not vouched yet.
    behind: Vec<Place>,
}

/// What the rails of a session have vouched for, and what waits for more.
#[derive(Default)]
pub(super) struct Vouches {
    heard: HashMap<Place, u32>,
    waiting: BTreeMap<u64, Waiting>,
}

/// Whether `word` stands for notification `seq` too. Of a number its low half is said; no two that are under way are half of its range apart.
fn covers(word: u32, seq: u64) -> bool {
    word.wrapping_sub(seq as u32) < 1 << 31
}

impl Vouches {
    /// A rail vouches for all up to this one.
    pub(super) fn hear(&mut self, place: Place, word: u32) {
        self.heard.insert(place, word);
    }

    /// A notification has come; false if too many wait.
    pub(super) fn hold(&mut self, seq: u64, payload: Vec<u8>, behind: Vec<Place>) -> bool {
        let has_room = self.waiting.len() < WAITING_MAX;
        if has_room {
            self.waiting.insert(seq, Waiting { payload, behind });
        }
        has_room
    }

    /// Those that wait no longer, oldest first.
    pub(super) fn ready(&mut self, is_open: impl Fn(Place) -> bool) -> Vec<(u64, Vec<u8>)> {
        let heard = &self.heard;
        for (seq, waiting) in &mut self.waiting {
            waiting.behind.retain(|place| is_open(*place) && !heard.get(place).is_some_and(|word| covers(*word, *seq)));
        }
        let ready: Vec<u64> = self.waiting.iter().filter(|(_, w)| w.behind.is_empty()).map(|(seq, _)| *seq).collect();
        ready.into_iter().filter_map(|seq| Some((seq, self.waiting.remove(&seq)?.payload))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Place = (TransportKind::Rdma, 0);
    const B: Place = (TransportKind::Rdma, 1);

    fn ready(vouches: &mut Vouches) -> Vec<u64> {
        vouches.ready(|_| true).into_iter().map(|(seq, _)| seq).collect()
    }

    #[test]
    fn a_notification_waits_for_every_rail_that_it_names() {
        let mut vouches = Vouches::default();
        assert!(vouches.hold(0, vec![7], vec![A, B]));
        assert!(ready(&mut vouches).is_empty());
        vouches.hear(A, 0);
        assert!(ready(&mut vouches).is_empty());
        vouches.hear(B, 0);
        assert_eq!(vouches.ready(|_| true), [(0, vec![7])]);
        assert!(ready(&mut vouches).is_empty(), "once");
    }

    #[test]
    fn a_word_that_came_first_counts_and_a_later_one_stands_for_those_before() {
        let mut vouches = Vouches::default();
        vouches.hear(A, 5);
        for seq in [4, 5, 6] {
            vouches.hold(seq, Vec::new(), vec![A]);
        }
        assert_eq!(ready(&mut vouches), [4, 5]);
        vouches.hear(A, 9);
        assert_eq!(ready(&mut vouches), [6]);
    }

    #[test]
    fn a_rail_that_is_closed_is_not_waited_for() {
        let mut vouches = Vouches::default();
        vouches.hold(0, Vec::new(), vec![A, B]);
        vouches.hear(A, 0);
        assert_eq!(vouches.ready(|place| place != B).len(), 1);
    }

    #[test]
    fn numbers_may_pass_the_end_of_a_word() {
        let last = u64::from(u32::MAX);
        assert!(covers(u32::MAX, last) && covers(0, last) && covers(3, last + 2));
        assert!(!covers(u32::MAX - 1, last) && !covers(0, last + 2));
    }

    #[test]
    fn more_than_may_wait_are_refused() {
        let mut vouches = Vouches::default();
        assert!((0..WAITING_MAX as u64).all(|seq| vouches.hold(seq, Vec::new(), vec![A])));
        assert!(!vouches.hold(u64::MAX, Vec::new(), vec![A]));
    }
}
