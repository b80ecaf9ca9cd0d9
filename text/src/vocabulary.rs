//! Token ids to bytes.

use std::collections::BTreeSet;

use crate::{
    TextError, bpe,
    parts::{Parts, TokenKind},
    spm,
};

/// Texts of control tokens that end an answer whatever the file's `eos_token_id` says: models fine-tuned for chat end a
/// turn with one of them while the metadata still name the base model's.
const END_TEXTS: [&str; 8] =
    ["<|im_end|>", "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "</s>"];

/// The bytes of every token, in one buffer, and what kind it is.
#[derive(Debug)]
pub struct Vocabulary {
    bytes: Vec<u8>,
    /// `ends[i]`: where token `i`'s bytes end; they start where the one before ends.
    ends: Vec<usize>,
    kinds: Vec<TokenKind>,
    end_tokens: Vec<u32>,
}

impl Vocabulary {
    /// From checked parts.
    pub(crate) fn new(parts: &Parts) -> Result<Self, TextError> {
        let to_bytes: fn(&str) -> Vec<u8> = match parts.tokenizer.as_str() {
            "gpt2" => bpe::bytes_of,
            "llama" => spm::bytes_of,
            other => return Err(TextError::UnknownTokenizer(other.to_owned())),
        };
        Ok(Self::build(parts, to_bytes))
    }

    /// From parts whose normal tokens are written as plain text.
    pub(crate) fn plain(tokens: impl Iterator<Item = (Vec<u8>, TokenKind)>, end_tokens: Vec<u32>) -> Self {
        let mut vocabulary = Self { bytes: Vec::new(), ends: Vec::new(), kinds: Vec::new(), end_tokens };
        for (bytes, kind) in tokens {
            vocabulary.push(&bytes, kind);
        }
        vocabulary
    }

    fn build(parts: &Parts, to_bytes: fn(&str) -> Vec<u8>) -> Self {
        let named = parts.eos.iter().chain(&parts.other_ends).copied();
        let by_text = (0u32..).zip(&parts.tokens).filter_map(|(id, text)| {
            let ends = parts.kind(id as usize) == TokenKind::Control && END_TEXTS.contains(&text.as_str());
            ends.then_some(id)
        });
        let end_tokens: BTreeSet<u32> = named.chain(by_text).collect();
        let tokens = parts.tokens.iter().enumerate().map(|(id, text)| match parts.kind(id) {
            TokenKind::Normal | TokenKind::Byte | TokenKind::Unused => (to_bytes(text), parts.kind(id)),
            kind => (text.as_bytes().to_vec(), kind),
        });
        Self::plain(tokens, end_tokens.into_iter().collect())
    }

    fn push(&mut self, bytes: &[u8], kind: TokenKind) {
        self.bytes.extend_from_slice(bytes);
        self.ends.push(self.bytes.len());
        self.kinds.push(kind);
    }

    /// Number of tokens.
    pub fn len(&self) -> u32 {
        // `Parts::check` has refused more than `u32::MAX`.
        self.ends.len() as u32
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Ids that end an answer, ascending.
    pub fn end_tokens(&self) -> &[u32] {
        &self.end_tokens
    }

    /// A token's bytes, control tokens included; `None` outside the vocabulary. May be part of a character.
    pub fn bytes(&self, token: u32) -> Option<&[u8]> {
        let index = usize::try_from(token).ok()?;
        let end = *self.ends.get(index)?;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some(&self.bytes[start..end])
    }

    /// What kind of token it is; `None` outside the vocabulary.
    pub fn kind(&self, token: u32) -> Option<TokenKind> {
        self.kinds.get(usize::try_from(token).ok()?).copied()
    }

    /// The bytes that an answer shows: none for a control token.
    pub(crate) fn visible_bytes(&self, token: u32) -> Result<&[u8], TextError> {
        match (self.kind(token), self.bytes(token)) {
            (Some(TokenKind::Control | TokenKind::Unused), _) => Ok(&[]),
            (Some(_), Some(bytes)) => Ok(bytes),
            _ => Err(TextError::UnknownToken { token, vocab: self.len() }),
        }
    }
}
