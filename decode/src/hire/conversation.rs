//! What a prefill node may say, and when. Pure: the order of messages and every figure in them is checked here, so that
//! nothing that a peer says is acted on unchecked.
//!
//! ```text
//! Asked ─ Queued ─▶ Waiting ─ LeaseWanted ─▶ Working { LeaseWanted | Progress | FirstToken } ─ Done ─▶ Over
//! ```

use kvrail_node::{Failure, FailureCode};
use kvrail_proto::v1;
use v1::prefill_reply::Message;

/// What the conversation is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Tokens that P computes KV for, from the start of the sequence.
    pub tokens: u32,
    /// Leading blocks that D holds.
    pub blocks_held: u32,
    /// Blocks of the whole sequence.
    pub blocks: u32,
    /// Output index of the first token that P samples.
    pub output_index: u32,
    /// Vocabulary size.
    pub vocab: u32,
    /// Valid KV bytes that P has to write.
    pub payload_bytes: u64,
}

/// What to do about a message.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Nothing.
    Wait,
    /// Lend that many blocks, from the first that is not lent yet.
    Lend {
        /// Index of the first of them in the sequence.
        first_block: u32,
        /// Their number.
        count: u32,
    },
    /// Stream this token on.
    Token {
        /// The token.
        token: v1::Token,
        /// Prompt tokens that P had cached.
        cached_tokens: u32,
    },
    /// Every byte is acknowledged.
    Done(v1::PrefillDone),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Asked,
    Waiting,
    Working,
    Over,
}

/// One conversation with one prefill node.
#[derive(Debug)]
pub struct Conversation {
    terms: Terms,
    stage: Stage,
    lent: u32,
    visible: u32,
    sampled: bool,
}

impl Conversation {
    /// After `PrefillStart` was sent.
    #[must_use]
    pub fn new(terms: Terms) -> Self {
        let held = terms.blocks_held;
        Self { terms, stage: Stage::Asked, lent: held, visible: held, sampled: false }
    }

    /// Leading blocks whose KV is here: held from the start, or written and acknowledged.
    #[must_use]
    pub fn blocks_visible(&self) -> u32 {
        self.visible
    }

    /// Whether P has taken the request from its queue, so that silence means that it is stuck.
    #[must_use]
    pub fn is_working(&self) -> bool {
        self.stage == Stage::Working
    }

    /// Judges a message.
    ///
    /// # Errors
    /// P's own [`Failure`]; or `transfer_failed` where it broke the contract, which says how.
    pub fn handle(&mut self, message: Option<Message>) -> Result<Action, Failure> {
        let broke = |what: String| Err(Failure::new(FailureCode::TransferFailed, format!("the prefill node {what}")));
        let Some(message) = message else { return broke("sent an empty message".into()) };
        if self.stage == Stage::Over {
            return broke("spoke after it was done".into());
        }
        match message {
            Message::Failure(failure) => {
                self.stage = Stage::Over;
                Err(failure.into())
            }
            Message::Queued(_) if self.stage == Stage::Asked => {
                self.stage = Stage::Waiting;
                Ok(Action::Wait)
            }
            Message::LeaseWanted(wanted) if self.stage >= Stage::Waiting => self.lend(wanted),
            Message::FirstToken(first) if self.stage == Stage::Working && !self.sampled => self.first_token(first),
            Message::Progress(progress) if self.stage == Stage::Working => {
                if progress.blocks_visible < self.visible || progress.blocks_visible > self.lent {
                    return broke(format!(
                        "says {} blocks are visible after {}, with {} lent",
                        progress.blocks_visible, self.visible, self.lent
                    ));
                }
                self.visible = progress.blocks_visible;
                Ok(Action::Wait)
            }
            Message::Done(done) if self.stage == Stage::Working && self.sampled => self.done(done),
            other => broke(format!("sent {} out of turn", name(&other))),
        }
    }

    fn lend(&mut self, wanted: v1::LeaseWanted) -> Result<Action, Failure> {
        let v1::LeaseWanted { first_block, count } = wanted;
        let left = self.terms.blocks - self.lent;
        if first_block != self.lent || count == 0 || count > left {
            let message = format!(
                "the prefill node wants {count} blocks from block {first_block}; block {} and {left} from there are next",
                self.lent
            );
            return Err(Failure::new(FailureCode::TransferFailed, message));
        }
        self.lent += count;
        self.stage = Stage::Working;
        Ok(Action::Lend { first_block, count })
    }

    fn first_token(&mut self, first: v1::FirstToken) -> Result<Action, Failure> {
        let token = first.token.unwrap_or_default();
        if token.index != self.terms.output_index || token.token >= self.terms.vocab {
            let message = format!(
                "the prefill node sampled token {} as output {}; output {} is next and the vocabulary has {} tokens",
                token.token, token.index, self.terms.output_index, self.terms.vocab
            );
            return Err(Failure::new(FailureCode::TransferFailed, message));
        }
        self.sampled = true;
        Ok(Action::Token { token, cached_tokens: first.cached_tokens.min(self.terms.tokens) })
    }

    fn done(&mut self, done: v1::PrefillDone) -> Result<Action, Failure> {
        if self.lent != self.terms.blocks || done.payload_bytes != self.terms.payload_bytes {
            let message = format!(
                "the prefill node is done after {} bytes in {} blocks; {} bytes in {} blocks were to come",
                done.payload_bytes,
                self.lent - self.terms.blocks_held,
                self.terms.payload_bytes,
                self.terms.blocks - self.terms.blocks_held
            );
            return Err(Failure::new(FailureCode::TransferFailed, message));
        }
        self.visible = self.terms.blocks;
        self.stage = Stage::Over;
        Ok(Action::Done(done))
    }
}

fn name(message: &Message) -> &'static str {
    match message {
        Message::Queued(_) => "Queued",
        Message::LeaseWanted(_) => "LeaseWanted",
        Message::FirstToken(_) => "FirstToken",
        Message::Progress(_) => "Progress",
        Message::Done(_) => "Done",
        Message::Failure(_) => "Failure",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms() -> Terms {
        Terms { tokens: 70, blocks_held: 1, blocks: 5, output_index: 3, vocab: 300, payload_bytes: 5400 }
    }
    fn queued() -> Option<Message> {
        Some(Message::Queued(v1::PrefillQueued::default()))
    }
    fn wanted(first_block: u32, count: u32) -> Option<Message> {
        Some(Message::LeaseWanted(v1::LeaseWanted { first_block, count }))
    }
    fn progress(blocks_visible: u32) -> Option<Message> {
        Some(Message::Progress(v1::PrefillProgress { blocks_visible }))
    }
    fn first(index: u32, token: u32) -> Option<Message> {
        let token = Some(v1::Token { index, token, ..Default::default() });
        Some(Message::FirstToken(v1::FirstToken { token, cached_tokens: 16, ..Default::default() }))
    }
    fn done(payload_bytes: u64) -> Option<Message> {
        Some(Message::Done(v1::PrefillDone { payload_bytes, ..Default::default() }))
    }

    #[test]
    fn the_expected_order_passes() {
        let mut c = Conversation::new(terms());
        assert_eq!(c.handle(queued()), Ok(Action::Wait));
        assert!(!c.is_working());
        assert_eq!(c.handle(wanted(1, 2)), Ok(Action::Lend { first_block: 1, count: 2 }));
        assert_eq!(c.handle(progress(2)), Ok(Action::Wait));
        assert_eq!(c.blocks_visible(), 2);
        assert_eq!(c.handle(wanted(3, 2)), Ok(Action::Lend { first_block: 3, count: 2 }));
        assert!(matches!(c.handle(first(3, 7)), Ok(Action::Token { cached_tokens: 16, .. })));
        assert!(matches!(c.handle(done(5400)), Ok(Action::Done(_))));
        assert_eq!(c.blocks_visible(), 5);
    }

    #[test]
    fn whatever_is_out_of_turn_or_out_of_range_is_refused_by_name() {
        let working = [queued(), wanted(1, 4)];
        type Case<'a> = (&'a [Option<Message>], Option<Message>, &'a str);
        let cases: [Case<'_>; 14] = [
            (&[], None, "empty"),
            (&[], wanted(1, 1), "LeaseWanted out of turn"),
            (&[], first(3, 7), "FirstToken out of turn"),
            (&[queued()], queued(), "Queued out of turn"),
            (&[queued()], progress(1), "Progress out of turn"),
            (&[queued()], wanted(0, 1), "block 1 and 4"),
            (&[queued()], wanted(1, 0), "wants 0"),
            (&[queued()], wanted(1, u32::MAX), "block 1 and 4"),
            (&working, progress(6), "6 blocks are visible"),
            (&working, progress(0), "0 blocks are visible"),
            (&working, first(2, 7), "output 3 is next"),
            (&working, first(3, 300), "vocabulary"),
            (&working, done(5400), "Done out of turn"),
            (&[queued(), wanted(1, 4), first(3, 7)], done(5399), "5399 bytes"),
        ];
        for (before, message, expected) in cases {
            let mut c = Conversation::new(terms());
            for message in before {
                c.handle(message.clone()).expect("in order");
            }
            let failure = c.handle(message).expect_err(expected);
            assert_eq!(failure.code, FailureCode::TransferFailed);
            assert!(failure.message.contains(expected), "{failure}");
        }
    }

    #[test]
    fn a_failure_is_passed_on_as_it_is() {
        let mut c = Conversation::new(terms());
        let failure = Failure::new(FailureCode::QueueFull, "full");
        assert_eq!(c.handle(Some(Message::Failure(failure.clone().into()))), Err(failure));
        assert!(c.handle(queued()).is_err(), "and ends the conversation");
    }
}
