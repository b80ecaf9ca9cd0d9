//! What a text model is made of, as plain data: read from a GGUF file, or put together by a test.

use crate::TextError;

/// What a vocabulary entry is for (`tokenizer.ggml.token_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// A piece of text.
    Normal,
    /// Stands for text that has no token.
    Unknown,
    /// Structure, not text: silent in answers, met in a prompt only where special tokens are parsed.
    Control,
    /// Text that is always one token.
    UserDefined,
    /// Not in use.
    Unused,
    /// One byte, written `<0xNN>`.
    Byte,
}

impl TokenKind {
    /// From GGUF's number; `None` for a number that means nothing.
    pub fn from_gguf(number: i64) -> Option<Self> {
        Some(match number {
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => return None,
        })
    }
}

/// The parts of a text model.
#[derive(Clone, Debug, Default)]
pub struct Parts {
    /// Name of the model, for people.
    pub name: String,
    /// Digest of the model file.
    pub digest: String,
    /// Longest sequence in tokens, if the file says.
    pub context_tokens: Option<u32>,
    /// `tokenizer.ggml.model`: `gpt2` or `llama`.
    pub tokenizer: String,
    /// `tokenizer.ggml.pre`: how text is split before merging; only for `gpt2`.
    pub pre: String,
    /// Vocabulary, by id.
    pub tokens: Vec<String>,
    /// Kind of each; empty: all normal.
    pub kinds: Vec<TokenKind>,
    /// Score of each; only for `llama`.
    pub scores: Vec<f32>,
    /// Merges by rank, each `left right`; only for `gpt2`.
    pub merges: Vec<String>,
    /// Token that begins a sequence.
    pub bos: Option<u32>,
    /// Token that ends one.
    pub eos: Option<u32>,
    /// Further end tokens that the file names (end of turn, end of message).
    pub other_ends: Vec<u32>,
    /// Token for text that has none.
    pub unknown: Option<u32>,
    /// Whether a prompt begins with `bos`; `None`: the family's habit.
    pub add_bos: Option<bool>,
    /// Whether a leading space is added; only for `llama`; `None`: yes.
    pub add_space_prefix: Option<bool>,
    /// Chat template, in Jinja.
    pub template: Option<String>,
}

impl Parts {
    /// Kind of a token; normal where the file says nothing.
    pub fn kind(&self, token: usize) -> TokenKind {
        self.kinds.get(token).copied().unwrap_or(TokenKind::Normal)
    }

    /// Checks what every later step relies on: sizes agree and every id lies in the vocabulary.
    pub(crate) fn check(&self) -> Result<(), TextError> {
        let bad = |key, reason: String| Err(TextError::Metadata { key, reason });
        let vocab = self.tokens.len();
        if vocab == 0 || u32::try_from(vocab).is_err() {
            return bad("tokenizer.ggml.tokens", format!("{vocab} entries"));
        }
        if !self.kinds.is_empty() && self.kinds.len() != vocab {
            return bad("tokenizer.ggml.token_type", format!("{} entries for {vocab} tokens", self.kinds.len()));
        }
        if !self.scores.is_empty() && self.scores.len() != vocab {
            return bad("tokenizer.ggml.scores", format!("{} entries for {vocab} tokens", self.scores.len()));
        }
        let named = [
            ("tokenizer.ggml.bos_token_id", self.bos),
            ("tokenizer.ggml.eos_token_id", self.eos),
            ("tokenizer.ggml.unknown_token_id", self.unknown),
        ];
        let others = self.other_ends.iter().map(|&id| ("tokenizer.ggml.eot_token_id", Some(id)));
        for (key, id) in named.into_iter().chain(others) {
            if let Some(id) = id.filter(|&id| id as usize >= vocab) {
                return bad(key, format!("{id} is outside the vocabulary of {vocab}"));
            }
        }
        Ok(())
    }
}
