//! Text of one choice: a pure function of its tokens.
//!
//! Characters that are not whole and what may become a stop string are held back. The log-probabilities of a token go out
//! with the text that its bytes became part of; those of tokens behind a stop string do not go out at all.

use std::collections::VecDeque;

use kvrail_proto::v1;
use kvrail_text::{Detokenizer, StopMatcher, TextError, TextModel};

/// A token with its log-probabilities, and where its text begins.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenReport {
    /// The token as the node reported it.
    pub token: v1::Token,
    /// Characters of the answer before it.
    pub text_offset: usize,
}

/// Text that may be shown.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Piece {
    /// The text; may be empty.
    pub text: String,
    /// Tokens whose text begins in what has been shown so far.
    pub tokens: Vec<TokenReport>,
    /// A stop string was met: this is the last piece.
    pub stopped: bool,
}

impl Piece {
    /// Whether there is nothing to show.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty() && self.tokens.is_empty()
    }
}

/// The text of a stream of tokens.
#[derive(Clone, Debug)]
pub struct Transcript {
    detokenizer: Detokenizer,
    stops: StopMatcher,
    /// (bytes of text before it, report) of tokens that have not gone out.
    pending: VecDeque<(usize, TokenReport)>,
    /// Bytes and characters that the tokens have become.
    made: (usize, usize),
    /// Bytes that have been shown.
    shown: usize,
}

impl Transcript {
    /// No token yet.
    ///
    /// # Errors
    /// [`TextError::Stop`].
    pub fn new(model: &TextModel, stops: &[String]) -> Result<Self, TextError> {
        Ok(Self {
            detokenizer: model.detokenizer(),
            stops: StopMatcher::new(stops)?,
            pending: VecDeque::new(),
            made: (0, 0),
            shown: 0,
        })
    }

    /// Takes the next token.
    ///
    /// # Errors
    /// [`TextError::UnknownToken`].
    pub fn push(&mut self, token: v1::Token) -> Result<Piece, TextError> {
        let text = self.detokenizer.push(token.token)?;
        let report = TokenReport { token, text_offset: self.made.1 };
        self.pending.push_back((self.made.0, report));
        Ok(self.take(&text))
    }

    /// Takes the token that ends the answer: it has a report and no text. [`Transcript::finish`] comes next.
    pub fn end(&mut self, token: v1::Token) {
        self.pending.push_back((self.made.0, TokenReport { token, text_offset: self.made.1 }));
    }

    fn take(&mut self, text: &str) -> Piece {
        self.made.0 += text.len();
        self.made.1 += text.chars().count();
        let step = self.stops.push(text);
        self.shown += step.text.len();
        let stopped = step.hit.is_some();
        // With nothing held back, all that was made is shown, and so are tokens that made no text.
        let all = !stopped && self.shown == self.made.0 && !self.detokenizer.is_holding();
        Piece { text: step.text, tokens: self.release(all), stopped }
    }

    fn release(&mut self, all: bool) -> Vec<TokenReport> {
        let count =
            if all { self.pending.len() } else { self.pending.iter().take_while(|(at, _)| *at < self.shown).count() };
        self.pending.drain(..count).map(|(_, report)| report).collect()
    }

    /// The end of the tokens: what was held back.
    pub fn finish(&mut self) -> Piece {
        let rest = self.detokenizer.finish();
        let mut piece = self.take(&rest);
        if !piece.stopped {
            let held = self.stops.finish();
            self.shown += held.len();
            piece.text += &held;
            piece.tokens.extend(self.release(true));
        }
        piece
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tokens(text: &[u8]) -> Vec<v1::Token> {
        let token = |(index, byte): (usize, &u8)| v1::Token {
            index: index as u32,
            token: u32::from(*byte),
            ..Default::default()
        };
        text.iter().enumerate().map(token).collect()
    }

    fn transcript(stops: &[&str]) -> Transcript {
        let stops: Vec<String> = stops.iter().map(|s| (*s).to_owned()).collect();
        Transcript::new(&TextModel::mock(300).unwrap(), &stops).unwrap()
    }

    /// Pieces joined: text, indices of the tokens that went out, and whether a stop string ended it.
    fn run(transcript: &mut Transcript, tokens: &[v1::Token]) -> (String, Vec<u32>, bool) {
        let (mut text, mut out) = (String::new(), Vec::new());
        for token in tokens {
            let piece = transcript.push(token.clone()).unwrap();
            text += &piece.text;
            out.extend(piece.tokens.iter().map(|t| t.token.index));
            if piece.stopped {
                return (text, out, true);
            }
        }
        let piece = transcript.finish();
        text += &piece.text;
        out.extend(piece.tokens.iter().map(|t| t.token.index));
        (text, out, piece.stopped)
    }

    #[test]
    fn reports_go_out_with_their_text() {
        let mut held = transcript(&["END"]);
        let a = tokens("xENé".as_bytes());
        let sizes: Vec<_> = a
            .iter()
            .map(|t| held.push(t.clone()).unwrap())
            .map(|p| (p.text, p.tokens.iter().map(|t| t.token.index).collect::<Vec<_>>()))
            .collect();
        let expected: [(&str, &[u32]); 5] = [("x", &[0]), ("", &[]), ("", &[]), ("", &[]), ("ENé", &[1, 2, 3, 4])];
        assert_eq!(sizes, expected.map(|(text, out)| (text.to_owned(), out.to_vec())));
    }

    #[test]
    fn tokens_behind_a_stop_string_are_not_reported() {
        assert_eq!(run(&mut transcript(&["STOP"]), &tokens(b"ab STOP cd")), ("ab ".into(), vec![0, 1, 2], true));
        assert_eq!(run(&mut transcript(&["STOP"]), &tokens(b"STOP")), (String::new(), vec![], true));
        assert_eq!(run(&mut transcript(&["STOP"]), &tokens(b"ab STO")), ("ab STO".into(), (0..6).collect(), false));
        let broken = [b'a', 0xc3];
        assert_eq!(run(&mut transcript(&[]), &tokens(&broken)), ("a\u{fffd}".into(), vec![0, 1], false));
    }

    #[test]
    fn the_end_token_is_reported_without_text() {
        let mut transcript = transcript(&["xyz"]);
        let mut all = tokens(b"ax");
        let end = v1::Token { index: 2, token: 257, ..Default::default() };
        assert_eq!(transcript.push(all.remove(0)).unwrap().text, "a");
        transcript.push(all.remove(0)).unwrap();
        transcript.end(end);
        let piece = transcript.finish();
        let reports: Vec<_> = piece.tokens.iter().map(|t| (t.token.token, t.text_offset)).collect();
        assert_eq!((piece.text.as_str(), reports), ("x", vec![(u32::from(b'x'), 1), (257, 2)]));
    }

    #[test]
    fn offsets_count_characters() {
        let mut transcript = transcript(&[]);
        let offsets: Vec<_> = tokens("é日x".as_bytes())
            .into_iter()
            .flat_map(|t| transcript.push(t).unwrap().tokens)
            .map(|t| t.text_offset)
            .collect();
        assert_eq!(offsets, [0, 0, 1, 1, 1, 2]);
    }

    proptest! {
        /// What a client gets depends on the tokens alone: not on where a stream moved and the text was made again.
        #[test]
        fn the_text_is_made_again_from_the_journal(
            bytes in proptest::collection::vec(prop_oneof![Just(b'a'), Just(b'b'), Just(0xc3), Just(0xa9)], 0..24),
            cut in 0..24usize,
        ) {
            let all = tokens(&bytes);
            let cut = cut.min(all.len());
            let mut straight = transcript(&["aab", "bé"]);
            let expected = run(&mut straight, &all);

            let mut first = transcript(&["aab", "bé"]);
            let (mut text, mut out, mut stopped) = (String::new(), Vec::new(), false);
            for token in &all[..cut] {
                let piece = first.push(token.clone()).unwrap();
                text += &piece.text;
                out.extend(piece.tokens.iter().map(|t| t.token.index));
                stopped |= piece.stopped;
                if stopped { break; }
            }
            if !stopped {
                let mut again = transcript(&["aab", "bé"]);
                for token in &all[..cut] {
                    again.push(token.clone()).unwrap();
                }
                let rest = run(&mut again, &all[cut..]);
                text += &rest.0;
                out.extend(rest.1);
                stopped = rest.2;
            }
            prop_assert_eq!((text, out, stopped), expected);
        }
    }
}
