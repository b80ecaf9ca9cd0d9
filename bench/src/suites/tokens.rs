//! Prompts and answers as token ids, by the model's own tokenizer: an endpoint counts the tokens of a prompt and tells the
//! bytes of those of an answer.

use std::collections::HashMap;
use std::path::Path;

use kvrail_engine::mock::MockOptions;
use kvrail_text::{ChatMessage, TextModel};

use crate::answer::{Answer, Ask};

/// A model's tokenizer, and its vocabulary by bytes.
pub struct Tokens {
    text: TextModel,
    /// `None` where several tokens have the same bytes.
    ids: HashMap<Vec<u8>, Option<u32>>,
}

impl Tokens {
    /// Of a GGUF file, or of `mock`.
    ///
    /// # Errors
    /// If the file has none that is known.
    pub fn of(model: &str) -> Result<Self, String> {
        let text = if model == "mock" {
            TextModel::mock(MockOptions::default().vocab)
        } else {
            TextModel::open(Path::new(model))
        };
        let text = text.map_err(|e| e.to_string())?;
        let mut ids = HashMap::new();
        for (id, bytes) in (0..text.vocab_size()).filter_map(|id| Some((id, text.token_bytes(id)?))) {
            ids.entry(bytes.to_vec()).and_modify(|id| *id = None).or_insert(Some(id));
        }
        Ok(Self { text, ids })
    }

    /// The tokens that a question's prompt has.
    ///
    /// # Errors
    /// The tokenizer's or the template's.
    pub fn prompt(&self, ask: &Ask) -> Result<Vec<u32>, String> {
        let tokens = if ask.chat {
            self.text.encode_chat(&[ChatMessage::new("user", ask.prompt.as_str())])
        } else {
            self.text.encode_completion(&ask.prompt)
        };
        tokens.map_err(|e| e.to_string())
    }

    /// The tokens that an answer has.
    ///
    /// # Errors
    /// If the bytes of one name no token, or more than one.
    pub fn answer(&self, answer: &Answer) -> Result<Vec<u32>, String> {
        let id = |bytes: &[u8]| self.ids.get(bytes).copied().flatten();
        let tokens = answer.tokens.iter();
        tokens.map(|token| id(&token.bytes).ok_or_else(|| format!("which token is {:?}?", token.bytes))).collect()
    }
}
