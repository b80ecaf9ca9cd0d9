//! Tokens to text, one at a time, never a broken character.

use std::sync::Arc;

use crate::{TextError, vocabulary::Vocabulary};

/// Turns a stream of tokens into pieces of valid UTF-8.
///
/// A token may end in the middle of a character; its bytes are held back (at most 3) until the next one completes it.
/// Bytes that can never become a character turn into U+FFFD, so that the joined pieces equal
/// [`String::from_utf8_lossy`] of all the bytes. Control tokens are silent.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    vocabulary: Arc<Vocabulary>,
    held: Vec<u8>,
}

impl Detokenizer {
    pub(crate) fn new(vocabulary: Arc<Vocabulary>) -> Self {
        Self { vocabulary, held: Vec::with_capacity(16) }
    }

    /// The text that this token completes; may be empty.
    ///
    /// # Errors
    /// [`TextError::UnknownToken`]; nothing has changed then.
    pub fn push(&mut self, token: u32) -> Result<String, TextError> {
        let bytes = self.vocabulary.visible_bytes(token)?;
        self.held.extend_from_slice(bytes);
        Ok(take_complete(&mut self.held))
    }

    /// What is left at the end of a stream: U+FFFD for a character that was never completed, else nothing.
    pub fn finish(&mut self) -> String {
        let rest = String::from_utf8_lossy(&self.held).into_owned();
        self.held.clear();
        rest
    }

    /// Whether bytes are held back.
    pub fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }
}

/// Takes all but a possibly incomplete last character out of `held`.
fn take_complete(held: &mut Vec<u8>) -> String {
    let mut text = String::new();
    let mut start = 0;
    loop {
        match std::str::from_utf8(&held[start..]) {
            Ok(valid) => {
                text.push_str(valid);
                start = held.len();
                break;
            }
            Err(error) => {
                let valid_end = start + error.valid_up_to();
                // `valid_up_to` says so: the lossy conversion copies and replaces nothing.
                text.push_str(&String::from_utf8_lossy(&held[start..valid_end]));
                match error.error_len() {
                    Some(bad) => {
                        text.push(char::REPLACEMENT_CHARACTER);
                        start = valid_end + bad;
                    }
                    None => {
                        start = valid_end;
                        break;
                    }
                }
            }
        }
    }
    held.drain(..start);
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pieces_joined_equal_the_lossy_whole(chunks in proptest::collection::vec(
            prop_oneof![
                proptest::collection::vec(any::<u8>(), 0..6),
                "[aé€😀\u{fffd}]{0,3}".prop_map(String::into_bytes),
                proptest::sample::select(vec![vec![0xF0], vec![0x9F, 0x98], vec![0x80], vec![0xE2, 0x82], vec![0xC3]]),
            ], 0..12)) {
            let mut held = Vec::new();
            let mut text = String::new();
            for chunk in &chunks {
                held.extend_from_slice(chunk);
                text += &take_complete(&mut held);
                prop_assert!(held.len() <= 3, "holds back {} bytes", held.len());
            }
            text += &String::from_utf8_lossy(&held);
            prop_assert_eq!(text, String::from_utf8_lossy(&chunks.concat()).into_owned());
        }
    }
}
