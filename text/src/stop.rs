//! Stop strings in a stream of text pieces.

use crate::TextError;

/// Most stop strings a request may have.
pub const STOP_STRINGS_MAX: usize = 16;
/// Longest stop string, in bytes: also the most text that is ever held back.
pub const STOP_BYTES_MAX: usize = 1024;

/// What a piece of text led to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stopped {
    /// Text that may be shown now: nothing of it can be part of a stop string.
    pub text: String,
    /// Index of the stop string that was met. The stream ends here; what follows it is dropped.
    pub hit: Option<usize>,
}

/// Finds the first stop string in a stream and withholds it, and whatever may still become one.
///
/// The first is the one whose end comes first; of several that end together, the longest. So the outcome does not depend
/// on how the text was cut into pieces. Work a byte: one automaton step for each stop string.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    stops: Vec<Pattern>,
    /// A suffix of the text so far: the longest that is a proper prefix of a stop string.
    held: String,
    hit: Option<usize>,
}

/// One stop string as a Knuth-Morris-Pratt automaton.
#[derive(Clone, Debug)]
struct Pattern {
    bytes: Vec<u8>,
    /// `border[i]`: length of the longest proper prefix of `bytes[..=i]` that is also its suffix.
    border: Vec<usize>,
    /// How many leading bytes the text so far ends with.
    matched: usize,
}

impl Pattern {
    fn new(text: &str) -> Self {
        let bytes = text.as_bytes().to_vec();
        let mut border = vec![0; bytes.len()];
        let mut length = 0;
        for at in 1..bytes.len() {
            while length > 0 && bytes[at] != bytes[length] {
                length = border[length - 1];
            }
            length += usize::from(bytes[at] == bytes[length]);
            border[at] = length;
        }
        Self { bytes, border, matched: 0 }
    }

    /// Takes one byte; true when the whole string was just met.
    fn step(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.bytes[self.matched] != byte {
            self.matched = self.border[self.matched - 1];
        }
        self.matched += usize::from(self.bytes[self.matched] == byte);
        self.matched == self.bytes.len()
    }
}

impl StopMatcher {
    /// A matcher for these strings; none at all is fine.
    ///
    /// # Errors
    /// [`TextError::Stop`] for more than [`STOP_STRINGS_MAX`], an empty one, or one above [`STOP_BYTES_MAX`] bytes.
    pub fn new<S: AsRef<str>>(stops: &[S]) -> Result<Self, TextError> {
        if stops.len() > STOP_STRINGS_MAX {
            return Err(TextError::Stop(format!("{} given; at most {STOP_STRINGS_MAX} are allowed", stops.len())));
        }
        for (index, stop) in stops.iter().enumerate() {
            match stop.as_ref().len() {
                0 => return Err(TextError::Stop(format!("number {index} is empty"))),
                n if n > STOP_BYTES_MAX => {
                    return Err(TextError::Stop(format!(
                        "number {index} has {n} bytes; at most {STOP_BYTES_MAX} are allowed"
                    )));
                }
                _ => {}
            }
        }
        Ok(Self { stops: stops.iter().map(|s| Pattern::new(s.as_ref())).collect(), held: String::new(), hit: None })
    }

    /// Takes the next piece. After a hit everything is dropped.
    pub fn push(&mut self, piece: &str) -> Stopped {
        if self.hit.is_some() {
            return Stopped { text: String::new(), hit: self.hit };
        }
        let known = self.held.len();
        self.held.push_str(piece);
        for at in known..self.held.len() {
            let byte = self.held.as_bytes()[at];
            // (length, index) of the longest that ends here.
            let mut met: Option<(usize, usize)> = None;
            for (index, stop) in self.stops.iter_mut().enumerate() {
                let length = stop.bytes.len();
                if stop.step(byte) && met.is_none_or(|(longest, _)| length > longest) {
                    met = Some((length, index));
                }
            }
            if let Some((length, index)) = met {
                self.hit = Some(index);
                let mut text = std::mem::take(&mut self.held);
                text.truncate(at + 1 - length);
                return Stopped { text, hit: self.hit };
            }
        }
        // A prefix of a stop string starts at a character's first byte, so this never cuts a character.
        let keep = self.stops.iter().map(|s| s.matched).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        Stopped { text: std::mem::replace(&mut self.held, rest), hit: None }
    }

    /// The end of the stream: what was held back and did not become a stop string.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (String, Option<usize>) {
        let mut matcher = StopMatcher::new(stops).unwrap();
        let mut text = String::new();
        for piece in pieces {
            let step = matcher.push(piece);
            text += &step.text;
            if step.hit.is_some() {
                return (text, step.hit);
            }
        }
        (text + &matcher.finish(), None)
    }

    /// The rule, said the slow way: the hit that ends first; of those, the longest.
    fn oracle(stops: &[String], text: &str) -> (String, Option<usize>) {
        for end in 1..=text.len() {
            let mut hits: Vec<_> =
                stops.iter().enumerate().filter(|(_, s)| text.as_bytes()[..end].ends_with(s.as_bytes())).collect();
            hits.sort_by_key(|(index, s)| (std::cmp::Reverse(s.len()), *index));
            if let Some((index, stop)) = hits.first() {
                return (text[..end - stop.len()].to_owned(), Some(*index));
            }
        }
        (text.to_owned(), None)
    }

    #[test]
    fn a_stop_string_across_pieces_is_withheld() {
        assert_eq!(run(&["STOP"], &["go S", "T", "OP and on"]), ("go ".into(), Some(0)));
        assert_eq!(run(&["STOP"], &["go S", "T", "ART"]), ("go START".into(), None));
        assert_eq!(run(&["aab"], &["aa", "aab"]), ("aa".into(), Some(0)));
        assert_eq!(run(&["b", "aab"], &["aaab"]), ("a".into(), Some(1)));
        assert_eq!(run(&[], &["any", "thing"]), ("anything".into(), None));
    }

    #[test]
    fn only_a_possible_start_is_held_back() {
        let mut matcher = StopMatcher::new(&["\n\nQ:"]).unwrap();
        assert_eq!(matcher.push("one\n").text, "one");
        assert_eq!(matcher.push("two\n\nQ").text, "\ntwo");
        assert_eq!(matcher.finish(), "\n\nQ");
    }

    #[test]
    fn bad_stop_strings_are_refused() {
        assert!(StopMatcher::new(&[""]).unwrap_err().to_string().contains("number 0 is empty"));
        let many = vec!["x"; 10_000];
        assert!(StopMatcher::new(&many).unwrap_err().to_string().contains("at most 16"));
        assert!(StopMatcher::new(&["y".repeat(5000)]).unwrap_err().to_string().contains("at most 1024"));
    }

    proptest! {
        #[test]
        fn cutting_the_text_anywhere_changes_nothing(
            stops in proptest::collection::vec("[abé]{1,4}", 0..4),
            text in "[abé]{0,24}",
            cut in proptest::collection::vec(any::<bool>(), 24),
        ) {
            let mut pieces = vec![String::new()];
            for (index, c) in text.chars().enumerate() {
                if cut[index] {
                    pieces.push(String::new());
                }
                pieces.last_mut().unwrap().push(c);
            }
            let stops_ref: Vec<&str> = stops.iter().map(String::as_str).collect();
            let pieces_ref: Vec<&str> = pieces.iter().map(String::as_str).collect();
            prop_assert_eq!(run(&stops_ref, &pieces_ref), oracle(&stops, &text));
        }
    }
}
