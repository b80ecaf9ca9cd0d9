//! SentencePiece BPE, as Llama 1 and 2 have it: spaces written as `▁`, merges by score, bytes for what has no piece.
//!
//! A GGUF file holds scores, not merges. Every way to cut a piece into two others is a merge, and it ranks by the score of
//! the piece it makes: the same rule that SentencePiece applies when it looks for the best pair.

use std::collections::HashMap;

use tokenizers::{
    Tokenizer,
    models::bpe::{BPE, Vocab},
};

use crate::{
    TextError,
    parts::{Parts, TokenKind},
};

/// What SentencePiece writes for a space.
pub(crate) const SPACE: char = '\u{2581}';

/// Builds the tokenizer. It takes text whose spaces are written as [`SPACE`], and knows nothing of special tokens.
pub(crate) fn build(parts: &Parts) -> Result<Tokenizer, TextError> {
    if parts.scores.is_empty() {
        return Err(TextError::Metadata {
            key: "tokenizer.ggml.scores",
            reason: "the `llama` tokenizer needs a score for each token".into(),
        });
    }
    let unknown = parts.unknown.unwrap_or(0) as usize;
    let unknown = parts.tokens.get(unknown).cloned().unwrap_or_default();
    let merges = merges(parts);
    let mut vocab = Vocab::new();
    for (id, token) in (0u32..).zip(&parts.tokens) {
        vocab.entry(token.clone()).or_insert(id);
    }
    let model = BPE::builder()
        .vocab_and_merges(vocab, merges)
        .unk_token(unknown)
        .fuse_unk(true)
        .byte_fallback(true)
        .build()
        .map_err(|error| TextError::Build(error.to_string()))?;
    Ok(Tokenizer::new(model))
}

/// Merges in rank order.
fn merges(parts: &Parts) -> Vec<(String, String)> {
    let pieces: HashMap<&str, usize> = parts
        .tokens
        .iter()
        .enumerate()
        .filter(|(id, _)| matches!(parts.kind(*id), TokenKind::Normal | TokenKind::UserDefined))
        .map(|(id, text)| (text.as_str(), id))
        .collect();
    let mut ranked = Vec::new();
    for (text, &made) in &pieces {
        for (at, _) in text.char_indices().skip(1) {
            if let (Some(&left), Some(&right)) = (pieces.get(&text[..at]), pieces.get(&text[at..])) {
                ranked.push((made, left, right));
            }
        }
    }
    let score = |id: usize| parts.scores.get(id).copied().unwrap_or(f32::MIN);
    ranked.sort_unstable_by(|a, b| score(b.0).total_cmp(&score(a.0)).then_with(|| a.cmp(b)));
    ranked.into_iter().map(|(_, left, right)| (parts.tokens[left].clone(), parts.tokens[right].clone())).collect()
}

/// A token's bytes.
pub(crate) fn bytes_of(token: &str) -> Vec<u8> {
    match token.strip_prefix("<0x").and_then(|t| t.strip_suffix('>')).filter(|hex| hex.len() == 2) {
        Some(hex) => u8::from_str_radix(hex, 16).map_or_else(|_| token.as_bytes().to_vec(), |byte| vec![byte]),
        None => token.replace(SPACE, " ").into_bytes(),
    }
}
