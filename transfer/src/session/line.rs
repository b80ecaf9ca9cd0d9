//! A session's messages in order and each once, whichever connection carries them.
//!
//! Every message has a number. It is kept until the other side has said that it heard it, so that a connection that took some of them
//! along can be followed by another, over which they are said again. Pure: bytes and times in, bytes out.

use std::collections::VecDeque;
use std::time::Instant;

use crate::session::wire::Message;

/// Messages that the other side has not heard, at most: it would answer in less time than it takes to say as many.
const UNHEARD_MAX: usize = 65_536;
/// The same in bytes.
const UNHEARD_BYTES_MAX: usize = 8 << 20;

/// What becomes of a message that arrived.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// The next one: serve it.
    New,
    /// It was heard over an earlier connection.
    Again,
    /// One before it is missing, which no connection does.
    Gap,
}

struct Said {
    number: u64,
    at: Instant,
    body: Vec<u8>,
}

/// Both directions of a session's messages.
#[derive(Default)]
pub(super) struct Line {
    said: u64,
    /// Not known to have been heard, oldest first.
    unheard: VecDeque<Said>,
    unheard_bytes: usize,
    heard: u64,
}

impl Line {
    /// The next message as it goes over a connection; `None` when too much waits to be heard.
    pub(super) fn say(&mut self, message: &Message, now: Instant) -> Option<Message> {
        let body = message.body();
        if self.unheard.len() >= UNHEARD_MAX || self.unheard_bytes + body.len() > UNHEARD_BYTES_MAX {
            return None;
        }
        self.said += 1;
        self.unheard_bytes += body.len();
        let said = Said { number: self.said, at: now, body };
        let numbered = self.numbered(&said);
        self.unheard.push_back(said);
        Some(numbered)
    }

    fn numbered(&self, said: &Said) -> Message {
        Message::Numbered { number: said.number, heard: self.heard, body: said.body.clone() }
    }

    /// The last message that has come, for the other side.
    pub(super) fn heard(&self) -> u64 {
        self.heard
    }

    /// A message came.
    pub(super) fn hear(&mut self, number: u64) -> Heard {
        if number <= self.heard {
            Heard::Again
        } else if number == self.heard + 1 {
            self.heard = number;
            Heard::New
        } else {
            Heard::Gap
        }
    }

    /// The other side has heard everything up to this one. False: one that was never said.
    pub(super) fn was_heard(&mut self, number: u64) -> bool {
        while self.unheard.front().is_some_and(|said| said.number <= number) {
            self.unheard_bytes -= self.unheard.pop_front().map_or(0, |said| said.body.len());
        }
        number <= self.said
    }

    /// Since when the other side owes an answer.
    pub(super) fn waits_since(&self) -> Option<Instant> {
        self.unheard.front().map(|said| said.at)
    }

    /// What is to be said again over a new connection; from now on it is waited for anew.
    pub(super) fn again(&mut self, now: Instant) -> Vec<Message> {
        self.unheard.iter_mut().for_each(|said| said.at = now);
        self.unheard.iter().map(|said| self.numbered(said)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Rng;

    fn notify(n: u64) -> Message {
        Message::Notify { seq: n, payload: vec![n as u8; 3] }
    }

    #[test]
    fn a_gap_and_an_answer_to_nothing_are_noticed() {
        let (mut line, now) = (Line::default(), Instant::now());
        assert_eq!((line.hear(1), line.hear(1), line.hear(3)), (Heard::New, Heard::Again, Heard::Gap));
        assert!(line.was_heard(0) && !line.was_heard(1));
        line.say(&Message::Bye, now).unwrap();
        assert_eq!(line.waits_since(), Some(now));
        assert!(line.was_heard(1) && line.waits_since().is_none());
    }

    #[test]
    fn what_nobody_hears_is_bounded() {
        let (mut line, now) = (Line::default(), Instant::now());
        let long = Message::Notify { seq: 0, payload: vec![0; 4096] };
        let said = (0..10_000).take_while(|_| line.say(&long, now).is_some()).count();
        assert!((1000..3000).contains(&said), "{said}");
        line.was_heard(1);
        assert!(line.say(&long, now).is_some(), "there is room again");
    }

    /// Connections that break at any point, in both directions: each message is served once, in order.
    #[test]
    fn whatever_breaks_each_message_is_served_once_and_in_order() {
        for seed in 0..1000 {
            let (mut rng, now) = (Rng::new(seed), Instant::now());
            let mut ends = [Line::default(), Line::default()];
            let mut served: [Vec<u64>; 2] = Default::default();
            let mut said = [0u64; 2];
            // What is under way from each end.
            let mut wire: [VecDeque<Message>; 2] = Default::default();
            for step in 0..400 {
                let from = rng.below(2) as usize;
                match rng.below(8) {
                    0..=2 if step < 300 => {
                        said[from] += 1;
                        wire[from].push_back(ends[from].say(&notify(said[from]), now).unwrap());
                    }
                    3 => {
                        // The connection breaks; over the next, each end learns what the other has heard.
                        wire = Default::default();
                        let heard = [ends[0].heard(), ends[1].heard()];
                        assert!(ends[0].was_heard(heard[1]) && ends[1].was_heard(heard[0]));
                        for (end, wire) in ends.iter_mut().zip(&mut wire) {
                            wire.extend(end.again(now));
                        }
                    }
                    _ => {
                        let Some(Message::Numbered { number, heard, body }) = wire[from].pop_front() else { continue };
                        let to = 1 - from;
                        assert!(ends[to].was_heard(heard));
                        match ends[to].hear(number) {
                            Heard::New => match Message::decode(&body) {
                                Ok(Message::Notify { seq, .. }) => served[to].push(seq),
                                other => panic!("{other:?}"),
                            },
                            Heard::Again => {}
                            Heard::Gap => panic!("seed {seed}: a gap"),
                        }
                    }
                }
            }
            // What is left arrives in the end.
            for from in 0..2 {
                for message in ends[from].again(now) {
                    let Message::Numbered { number, body, .. } = message else { panic!() };
                    if ends[1 - from].hear(number) == Heard::New
                        && let Ok(Message::Notify { seq, .. }) = Message::decode(&body)
                    {
                        served[1 - from].push(seq);
                    }
                }
                assert!(served[1 - from].iter().copied().eq(1..=said[from]), "seed {seed}: {served:?}");
            }
        }
    }
}
