//! The text side of a model: what a gateway needs to turn requests into tokens and tokens into answers.

use std::{fmt, path::Path, sync::Arc};

use tokenizers::Tokenizer;

use crate::{
    ChatMessage, Detokenizer, TextError, bpe,
    chat::ChatTemplate,
    mock,
    parts::Parts,
    special::{Part, Splitter},
    spm,
    vocabulary::Vocabulary,
};

/// Tokenizer, vocabulary and chat template of a model. Immutable and cheap to clone.
#[derive(Clone)]
pub struct TextModel {
    inner: Arc<Inner>,
}

struct Inner {
    name: String,
    digest: String,
    context_tokens: Option<u32>,
    vocabulary: Arc<Vocabulary>,
    encoder: Encoder,
    /// Finds user-defined tokens.
    plain: Splitter,
    /// Finds control tokens too.
    special: Splitter,
    /// Put before a prompt, where the model wants it.
    bos: Option<u32>,
    /// A template that does not compile keeps the model usable for completions.
    template: Result<ChatTemplate, Option<String>>,
}

enum Encoder {
    ByteLevel(Box<Tokenizer>),
    SentencePiece { tokenizer: Box<Tokenizer>, space_prefix: bool },
    Bytes,
}

impl fmt::Debug for TextModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TextModel")
            .field("name", &self.inner.name)
            .field("vocab", &self.vocab_size())
            .field("bos", &self.inner.bos)
            .finish_non_exhaustive()
    }
}

impl TextModel {
    /// Loads the text side of a GGUF file.
    ///
    /// # Errors
    /// [`TextError`] naming what the file lacks, or which tokenizer is not supported.
    pub fn open(path: &Path) -> Result<Self, TextError> {
        Self::from_gguf(&kvrail_gguf::Gguf::open(path)?)
    }

    /// Loads the text side of an open GGUF file.
    ///
    /// # Errors
    /// As [`TextModel::open`].
    pub fn from_gguf(gguf: &kvrail_gguf::Gguf) -> Result<Self, TextError> {
        Self::from_parts(Parts::from_gguf(gguf)?)
    }

    /// Builds a text model from its parts.
    ///
    /// # Errors
    /// [`TextError`] where the parts do not fit together.
    pub fn from_parts(parts: Parts) -> Result<Self, TextError> {
        parts.check()?;
        let (encoder, adds_bos) = match parts.tokenizer.as_str() {
            "gpt2" => (Encoder::ByteLevel(Box::new(bpe::build(&parts)?)), bpe::adds_bos(&parts.pre)),
            "llama" => {
                let space_prefix = parts.add_space_prefix.unwrap_or(true);
                (Encoder::SentencePiece { tokenizer: Box::new(spm::build(&parts)?), space_prefix }, true)
            }
            other => return Err(TextError::UnknownTokenizer(other.to_owned())),
        };
        let text_of = |id: Option<u32>| id.and_then(|id| parts.tokens.get(id as usize).cloned()).unwrap_or_default();
        let template = match &parts.template {
            None => Err(None),
            Some(source) => ChatTemplate::new(source.clone(), text_of(parts.bos), text_of(parts.eos))
                .map_err(|error| Some(error.to_string())),
        };
        Ok(Self {
            inner: Arc::new(Inner {
                vocabulary: Arc::new(Vocabulary::new(&parts)?),
                encoder,
                plain: Splitter::of_model(&parts, false)?,
                special: Splitter::of_model(&parts, true)?,
                bos: parts.bos.filter(|_| parts.add_bos.unwrap_or(adds_bos)),
                template,
                name: parts.name,
                digest: parts.digest,
                context_tokens: parts.context_tokens,
            }),
        })
    }

    /// The mock's text model: token ids below 256 are bytes, 256 `<|start|>`, 257 `<|end|>`, 258 `<|endoftext|>`.
    ///
    /// # Errors
    /// [`TextError::Metadata`] for a vocabulary below 259.
    pub fn mock(vocab: u32) -> Result<Self, TextError> {
        if vocab < mock::VOCAB_MIN {
            return Err(TextError::Metadata {
                key: "tokenizer.ggml.tokens",
                reason: format!("the mock needs {} tokens, not {vocab}", mock::VOCAB_MIN),
            });
        }
        let template = ChatTemplate::new(mock::TEMPLATE.into(), "<|start|>".into(), "<|end|>".into())?;
        Ok(Self {
            inner: Arc::new(Inner {
                name: "mock".into(),
                digest: format!("mock-{vocab}"),
                context_tokens: None,
                vocabulary: Arc::new(mock::vocabulary(vocab)),
                encoder: Encoder::Bytes,
                plain: Splitter::new(std::iter::empty())?,
                special: Splitter::new(mock::SPECIAL.into_iter())?,
                bos: None,
                template: Ok(template),
            }),
        })
    }

    /// Tokens of a text. With `parse_special`, control tokens written in the text are met as such; without, they are
    /// text like any other. Nothing is put before or after.
    ///
    /// # Errors
    /// [`TextError::Encode`] if the tokenizer fails.
    pub fn encode(&self, text: &str, parse_special: bool) -> Result<Vec<u32>, TextError> {
        let splitter = if parse_special { &self.inner.special } else { &self.inner.plain };
        let mut tokens = Vec::new();
        let mut after_token = true;
        for part in splitter.split(text) {
            match part {
                Part::Token(id) => tokens.push(id),
                Part::Text(text) => self.inner.encoder.encode(text, after_token, &mut tokens)?,
            }
            after_token = matches!(part, Part::Token(_));
        }
        Ok(tokens)
    }

    /// The prompt of a plain completion: the text, after the token that begins a sequence where the model wants one.
    /// Control tokens in it are text.
    ///
    /// # Errors
    /// [`TextError::Encode`].
    pub fn encode_completion(&self, prompt: &str) -> Result<Vec<u32>, TextError> {
        let mut tokens: Vec<u32> = self.inner.bos.into_iter().collect();
        tokens.extend(self.encode(prompt, false)?);
        Ok(tokens)
    }

    /// The prompt of a chat: rendered, special tokens parsed, ready for the assistant's answer.
    ///
    /// What a user writes is part of the rendered text, so a control token spelled out in a message is met as one, as it
    /// is in every server that feeds a template's output to the tokenizer.
    ///
    /// # Errors
    /// As [`TextModel::render_chat`] and [`TextModel::encode`].
    pub fn encode_chat(&self, messages: &[ChatMessage]) -> Result<Vec<u32>, TextError> {
        let tokens = self.encode(&self.render_chat(messages, true)?, true)?;
        // Many templates write the token that begins a sequence themselves; it must not be there twice.
        match self.inner.bos {
            Some(bos) if tokens.first() != Some(&bos) => Ok(std::iter::once(bos).chain(tokens).collect()),
            _ => Ok(tokens),
        }
    }

    /// Messages as the model's template writes them.
    ///
    /// # Errors
    /// [`TextError::NoChatTemplate`], [`TextError::Template`], or [`TextError::Refused`] with the template's own words.
    pub fn render_chat(&self, messages: &[ChatMessage], add_generation_prompt: bool) -> Result<String, TextError> {
        match &self.inner.template {
            Ok(template) => template.render(messages, add_generation_prompt),
            Err(None) => Err(TextError::NoChatTemplate),
            Err(Some(why)) => Err(TextError::Template(why.clone())),
        }
    }

    /// A fresh stream of tokens to text.
    pub fn detokenizer(&self) -> Detokenizer {
        Detokenizer::new(Arc::clone(&self.inner.vocabulary))
    }

    /// A token's bytes, control tokens included; `None` outside the vocabulary. May be part of a character.
    pub fn token_bytes(&self, token: u32) -> Option<&[u8]> {
        self.inner.vocabulary.bytes(token)
    }

    /// Ids that end an answer, ascending.
    pub fn eos_tokens(&self) -> &[u32] {
        self.inner.vocabulary.end_tokens()
    }

    /// Number of tokens in the vocabulary.
    pub fn vocab_size(&self) -> u32 {
        self.inner.vocabulary.len()
    }

    /// Longest sequence in tokens, if the file says.
    pub fn context_tokens(&self) -> Option<u32> {
        self.inner.context_tokens
    }

    /// Name of the model, for people.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Digest of the model file: equal to that of a node which loaded the same one.
    pub fn digest(&self) -> &str {
        &self.inner.digest
    }
}

impl Encoder {
    /// Appends the tokens of a text without special tokens; `first`: nothing or a special token lies before it.
    fn encode(&self, text: &str, first: bool, tokens: &mut Vec<u32>) -> Result<(), TextError> {
        let run = |tokenizer: &Tokenizer, text: &str| {
            tokenizer.encode_fast(text, false).map_err(|error| TextError::Encode(error.to_string()))
        };
        match self {
            Self::Bytes => tokens.extend(text.bytes().map(u32::from)),
            Self::ByteLevel(tokenizer) => tokens.extend_from_slice(run(tokenizer, text)?.get_ids()),
            Self::SentencePiece { tokenizer, space_prefix } => {
                let mut written = String::with_capacity(text.len() + 8);
                if first && *space_prefix {
                    written.push(spm::SPACE);
                }
                written.extend(text.chars().map(|c| if c == ' ' { spm::SPACE } else { c }));
                tokens.extend_from_slice(run(tokenizer, &written)?.get_ids());
            }
        }
        Ok(())
    }
}
