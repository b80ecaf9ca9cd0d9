//! The tokens of one choice that a client has or will have: the only truth when a stream moves.
//!
//! A node may send again what was forced; it must then be the same. A node that skips an index or says another token than
//! before is at fault, and the stream goes on elsewhere from the journal.

use kvrail_proto::v1;

/// What a node's token was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// The next one.
    New,
    /// One that the journal has already.
    Known,
}

/// A node said what cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JournalFault {
    /// Tokens are missing before this one.
    #[error("token {got} came where {expected} was next")]
    Gap {
        /// The next index.
        expected: u32,
        /// The index that came.
        got: u32,
    },
    /// Another token than the one that the client has.
    #[error("token {index} came again as {got}; it is {known}")]
    Differs {
        /// Where.
        index: u32,
        /// What the journal has.
        known: u32,
        /// What came.
        got: u32,
    },
    /// More tokens than were asked for.
    #[error("a token came after the last of {max}")]
    PastEnd {
        /// How many were asked for.
        max: u32,
    },
}

/// Tokens in order, with what was reported of each.
#[derive(Clone, Debug, Default)]
pub struct Journal {
    tokens: Vec<v1::Token>,
    max_tokens: u32,
}

impl Journal {
    /// An empty journal of an answer of at most `max_tokens`.
    #[must_use]
    pub fn new(max_tokens: u32) -> Self {
        Self { tokens: Vec::new(), max_tokens }
    }

    /// Takes a token of a node.
    ///
    /// # Errors
    /// [`JournalFault`]; nothing has changed then.
    pub fn accept(&mut self, token: v1::Token) -> Result<Accepted, JournalFault> {
        let expected = self.len();
        if token.index > expected {
            return Err(JournalFault::Gap { expected, got: token.index });
        }
        if let Some(known) = self.tokens.get(token.index as usize) {
            if known.token == token.token {
                return Ok(Accepted::Known);
            }
            return Err(JournalFault::Differs { index: token.index, known: known.token, got: token.token });
        }
        if expected >= self.max_tokens {
            return Err(JournalFault::PastEnd { max: self.max_tokens });
        }
        self.tokens.push(token);
        Ok(Accepted::New)
    }

    /// Tokens so far.
    #[must_use]
    pub fn len(&self) -> u32 {
        // Bounded by `max_tokens`.
        self.tokens.len() as u32
    }

    /// No token yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Tokens that may still come.
    #[must_use]
    pub fn remaining(&self) -> u32 {
        self.max_tokens - self.len()
    }

    /// The last token.
    #[must_use]
    pub fn last(&self) -> Option<&v1::Token> {
        self.tokens.last()
    }

    /// What the next node must force.
    #[must_use]
    pub fn forced(&self) -> Vec<u32> {
        self.tokens.iter().map(|t| t.token).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(index: u32, token: u32) -> v1::Token {
        v1::Token { index, token, ..v1::Token::default() }
    }

    #[test]
    fn tokens_come_once_in_order_and_may_be_repeated_but_not_changed() {
        let mut journal = Journal::new(3);
        assert_eq!(journal.accept(token(1, 8)), Err(JournalFault::Gap { expected: 0, got: 1 }));
        assert_eq!(journal.accept(token(0, 7)), Ok(Accepted::New));
        assert_eq!(journal.accept(token(1, 8)), Ok(Accepted::New));
        assert_eq!(journal.accept(token(0, 7)), Ok(Accepted::Known));
        assert_eq!(journal.accept(token(1, 9)), Err(JournalFault::Differs { index: 1, known: 8, got: 9 }));
        assert_eq!(journal.forced(), [7, 8]);
        assert_eq!(journal.accept(token(2, 9)), Ok(Accepted::New));
        assert_eq!(journal.accept(token(3, 9)), Err(JournalFault::PastEnd { max: 3 }));
        assert_eq!((journal.len(), journal.remaining(), journal.last().unwrap().token), (3, 0, 9));
    }
}
