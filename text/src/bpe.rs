//! Byte-level BPE, as GPT-2 has it: text is split by a pre-tokenizer, its bytes written as printable characters, and
//! those merged by rank.
//!
//! The pre-tokenizers are data: one row a name. Facts from the models' published `tokenizer.json` files and, for the
//! names, from llama.cpp's `llama-vocab.cpp`.

use tokenizers::{
    NormalizerWrapper, PreTokenizerWrapper, SplitDelimiterBehavior, Tokenizer,
    models::bpe::{BPE, Vocab},
    normalizers::unicode::NFC,
    pre_tokenizers::{
        byte_level::ByteLevel,
        digits::Digits,
        sequence::Sequence,
        split::{Split, SplitPattern},
    },
};

use crate::{TextError, parts::Parts};

/// How text is split before its bytes are merged.
struct PreTokenizer {
    /// Names in `tokenizer.ggml.pre`.
    names: &'static [&'static str],
    split: SplitRule,
    /// A piece that is a token as it stands is not built from merges.
    ignore_merges: bool,
    /// Compose characters first (Unicode NFC).
    nfc: bool,
    /// Whether a prompt begins with the `bos` token where the file does not say.
    add_bos: bool,
}

enum SplitRule {
    /// GPT-2's own pattern.
    Gpt2,
    /// Each digit alone, then GPT-2's pattern.
    DigitsThenGpt2,
    /// A pattern; every match is a piece.
    Pattern(&'static str),
}

const PRE_TOKENIZERS: [PreTokenizer; 4] = [
    PreTokenizer {
        names: &["gpt-2", "gpt2"],
        split: SplitRule::Gpt2,
        ignore_merges: false,
        nfc: false,
        add_bos: false,
    },
    PreTokenizer {
        names: &["smollm", "starcoder", "refact", "codeshell"],
        split: SplitRule::DigitsThenGpt2,
        ignore_merges: false,
        nfc: false,
        add_bos: false,
    },
    PreTokenizer {
        names: &["llama-bpe", "llama3", "llama-v3"],
        split: SplitRule::Pattern(concat!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|",
            r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )),
        ignore_merges: true,
        nfc: false,
        add_bos: true,
    },
    PreTokenizer {
        names: &["qwen2"],
        split: SplitRule::Pattern(concat!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|",
            r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )),
        ignore_merges: false,
        nfc: true,
        add_bos: false,
    },
];

fn find(name: &str) -> Result<&'static PreTokenizer, TextError> {
    PRE_TOKENIZERS.iter().find(|row| row.names.contains(&name)).ok_or_else(|| TextError::UnknownPreTokenizer {
        name: name.to_owned(),
        supported: PRE_TOKENIZERS.iter().flat_map(|row| row.names).copied().collect::<Vec<_>>().join(", "),
    })
}

/// Whether prompts of this family begin with the `bos` token where the file does not say.
pub(crate) fn adds_bos(pre: &str) -> bool {
    find(pre).is_ok_and(|row| row.add_bos)
}

/// Builds the tokenizer; it knows nothing of special tokens.
pub(crate) fn build(parts: &Parts) -> Result<Tokenizer, TextError> {
    let row = find(&parts.pre)?;
    check_alphabet(parts)?;
    let merges = parts
        .merges
        .iter()
        .map(|merge| match merge.split_once(' ') {
            Some((left, right)) if !left.is_empty() && !right.is_empty() => Ok((left.to_owned(), right.to_owned())),
            _ => Err(TextError::Metadata {
                key: "tokenizer.ggml.merges",
                reason: format!("`{}` is not two pieces with a space between", merge.escape_debug()),
            }),
        })
        .collect::<Result<Vec<_>, _>>()?;
    let mut vocab = Vocab::new();
    for (id, token) in (0u32..).zip(&parts.tokens) {
        // The first of two equal texts wins, as it does in the vocabulary's source.
        vocab.entry(token.clone()).or_insert(id);
    }
    let model = BPE::builder()
        .vocab_and_merges(vocab, merges)
        .ignore_merges(row.ignore_merges)
        .build()
        .map_err(|error| TextError::Build(error.to_string()))?;
    let mut tokenizer = Tokenizer::new(model);
    if row.nfc {
        tokenizer
            .with_normalizer(Some(NormalizerWrapper::NFC(NFC)))
            .map_err(|error| TextError::Build(error.to_string()))?;
    }
    let byte_level = ByteLevel::new(false, true, !matches!(row.split, SplitRule::Pattern(_)));
    let splits: Vec<PreTokenizerWrapper> = match row.split {
        SplitRule::Gpt2 => vec![byte_level.into()],
        SplitRule::DigitsThenGpt2 => vec![Digits::new(true).into(), byte_level.into()],
        SplitRule::Pattern(pattern) => {
            let split = Split::new(SplitPattern::Regex(pattern.to_owned()), SplitDelimiterBehavior::Isolated, false)
                .map_err(|error| TextError::Build(error.to_string()))?;
            vec![split.into(), byte_level.into()]
        }
    };
    tokenizer.with_pre_tokenizer(Some(Sequence::new(splits)));
    Ok(tokenizer)
}

/// Printable ASCII must have tokens. Bytes that never or hardly occur in text may lack one (SmolLM2 has none for
/// six control characters and for planes 4 to 11): text loses them, as it does with the model's own tokenizer.
fn check_alphabet(parts: &Parts) -> Result<(), TextError> {
    let single: std::collections::HashSet<&str> =
        parts.tokens.iter().map(String::as_str).filter(|t| t.chars().count() == 1).collect();
    match (b' '..=b'~').find(|&byte| !single.contains(char_of(byte).encode_utf8(&mut [0; 4]) as &str)) {
        None => Ok(()),
        Some(byte) => Err(TextError::Metadata {
            key: "tokenizer.ggml.tokens",
            reason: format!("no token for the byte {byte:#04x} (`{}`)", byte.escape_ascii()),
        }),
    }
}

/// The character that stands for a byte: itself where it is printable Latin-1, else one from U+0100 on, in order.
pub(crate) fn char_of(byte: u8) -> char {
    if is_itself(byte) {
        return char::from(byte);
    }
    let rank = (0..byte).filter(|&b| !is_itself(b)).count() as u32;
    char::from_u32(0x100 + rank).unwrap_or(char::REPLACEMENT_CHARACTER)
}

fn is_itself(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// The byte that a character stands for.
fn byte_of(c: char) -> Option<u8> {
    match u32::from(c) {
        code @ 0..=0xFF => u8::try_from(code).ok().filter(|&byte| is_itself(byte)),
        code @ 0x100..=0x143 => (0..=u8::MAX).filter(|&b| !is_itself(b)).nth((code - 0x100) as usize),
        _ => None,
    }
}

/// A token's bytes; a text that is not all alphabet stands for itself.
pub(crate) fn bytes_of(token: &str) -> Vec<u8> {
    token.chars().map(byte_of).collect::<Option<Vec<u8>>>().unwrap_or_else(|| token.as_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_is_a_bijection_and_the_library_s_own() {
        let ours: std::collections::BTreeSet<char> = (0..=u8::MAX).map(char_of).collect();
        assert_eq!(ours, ByteLevel::alphabet().into_iter().collect());
        for byte in 0..=u8::MAX {
            assert_eq!(byte_of(char_of(byte)), Some(byte));
        }
        assert_eq!((char_of(b' '), char_of(b'\n'), char_of(0xAD)), ('Ġ', 'Ċ', 'Ń'));
    }

    #[test]
    fn unknown_pre_tokenizers_are_refused_by_name() {
        let parts = Parts { pre: "poro-chat".into(), ..Parts::default() };
        let error = build(&parts).unwrap_err().to_string();
        assert!(error.contains("poro-chat") && error.contains("smollm"), "{error}");
    }
}
