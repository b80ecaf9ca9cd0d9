//! Finds special tokens in text.

use aho_corasick::{AhoCorasick, MatchKind};

use crate::{
    TextError,
    parts::{Parts, TokenKind},
};

/// A part of a text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Part<'t> {
    /// Plain text, to be tokenized.
    Text(&'t str),
    /// A special token.
    Token(u32),
}

/// Splits text at special tokens: the leftmost first, of those that start together the longest.
#[derive(Debug)]
pub(crate) struct Splitter {
    automaton: AhoCorasick,
    ids: Vec<u32>,
}

impl Splitter {
    /// Finds these tokens, by id and text.
    pub(crate) fn new<'p>(tokens: impl Iterator<Item = (u32, &'p str)>) -> Result<Self, TextError> {
        let (ids, texts): (Vec<u32>, Vec<&str>) = tokens.filter(|(_, text)| !text.is_empty()).unzip();
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(texts)
            .map_err(|error| TextError::Build(error.to_string()))?;
        Ok(Self { automaton, ids })
    }

    /// Finds a model's user-defined tokens, and with `control` its control tokens too.
    pub(crate) fn of_model(parts: &Parts, control: bool) -> Result<Self, TextError> {
        Self::new((0u32..).zip(&parts.tokens).filter_map(|(id, text)| match parts.kind(id as usize) {
            TokenKind::UserDefined => Some((id, text.as_str())),
            TokenKind::Control if control => Some((id, text.as_str())),
            _ => None,
        }))
    }

    /// The parts of `text`, in order; no empty text among them.
    pub(crate) fn split<'t>(&self, text: &'t str) -> Vec<Part<'t>> {
        let mut parts = Vec::new();
        let mut from = 0;
        for hit in self.automaton.find_iter(text) {
            if from < hit.start() {
                parts.push(Part::Text(&text[from..hit.start()]));
            }
            parts.push(Part::Token(self.ids[hit.pattern().as_usize()]));
            from = hit.end();
        }
        if from < text.len() {
            parts.push(Part::Text(&text[from..]));
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_tokens_are_met_only_when_asked_for() {
        let parts = Parts {
            tokens: ["a", "<s>", "<s>>", "TAB"].map(str::to_owned).to_vec(),
            kinds: vec![TokenKind::Normal, TokenKind::Control, TokenKind::Control, TokenKind::UserDefined],
            ..Parts::default()
        };
        let all = Splitter::of_model(&parts, true).unwrap();
        assert_eq!(
            all.split("x<s>>TAB<s>é"),
            [Part::Text("x"), Part::Token(2), Part::Token(3), Part::Token(1), Part::Text("é")]
        );
        let some = Splitter::of_model(&parts, false).unwrap();
        assert_eq!(some.split("<s>TAB"), [Part::Text("<s>"), Part::Token(3)]);
        assert_eq!(some.split(""), []);
    }
}
