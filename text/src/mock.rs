//! The mock's text: one token a byte, so that any text is valid and every token can be read.

use crate::{parts::TokenKind, vocabulary::Vocabulary};

/// Begins a message.
pub(crate) const START: u32 = 256;
/// Ends one.
pub(crate) const END: u32 = 257;
/// Ends a text.
pub(crate) const END_OF_TEXT: u32 = 258;
/// Least size of the vocabulary: the bytes and the special tokens.
pub(crate) const VOCAB_MIN: u32 = 259;

/// A small ChatML.
pub(crate) const TEMPLATE: &str = "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}\
                                   {% if add_generation_prompt %}<|start|>assistant\n{% endif %}";

/// Special tokens and their texts.
pub(crate) const SPECIAL: [(u32, &str); 3] = [(START, "<|start|>"), (END, "<|end|>"), (END_OF_TEXT, "<|endoftext|>")];

/// The vocabulary; ids past the special ones are written `<id>`.
pub(crate) fn vocabulary(vocab: u32) -> Vocabulary {
    let tokens = (0..vocab).map(|id| match u8::try_from(id) {
        Ok(byte) => (vec![byte], TokenKind::Normal),
        Err(_) => match SPECIAL.iter().find(|(special, _)| *special == id) {
            Some((_, text)) => (text.as_bytes().to_vec(), TokenKind::Control),
            None => (format!("<{id}>").into_bytes(), TokenKind::Normal),
        },
    });
    Vocabulary::plain(tokens, vec![END, END_OF_TEXT])
}
