//! What can go wrong between text and tokens.

/// A failure of this crate. Everything but [`TextError::Template`], [`TextError::Refused`] and
/// [`TextError::NoChatTemplate`] concerns the model file, not the request.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// The model file could not be read.
    #[error(transparent)]
    Gguf(#[from] kvrail_gguf::GgufError),
    /// The file lacks something that a tokenizer needs.
    #[error("the model file has no usable `{key}`: {reason}")]
    Metadata {
        /// The GGUF key.
        key: &'static str,
        /// What is wrong and what would be right.
        reason: String,
    },
    /// A tokenizer family that is not implemented.
    #[error("tokenizer model `{0}` is not supported; supported are: gpt2, llama")]
    UnknownTokenizer(String),
    /// A pre-tokenizer that is not implemented.
    #[error("pre-tokenizer `{name}` is not supported; supported are: {supported}")]
    UnknownPreTokenizer {
        /// `tokenizer.ggml.pre` of the file.
        name: String,
        /// All names that are.
        supported: String,
    },
    /// Vocabulary and merges do not fit together.
    #[error("the tokenizer could not be built: {0}")]
    Build(String),
    /// The tokenizer failed on a text.
    #[error("the text could not be tokenized: {0}")]
    Encode(String),
    /// A token id outside the vocabulary.
    #[error("token {token} is outside the vocabulary of {vocab}")]
    UnknownToken {
        /// The id.
        token: u32,
        /// Size of the vocabulary.
        vocab: u32,
    },
    /// The model has no chat template: it answers completions only.
    #[error("this model has no chat template; use plain completions")]
    NoChatTemplate,
    /// The template is broken, or asks for what is not supported.
    #[error("the model's chat template failed: {0}")]
    Template(String),
    /// The template looked at the messages and refused them.
    #[error("the model's chat template refuses these messages: {0}")]
    Refused(String),
    /// Stop strings that cannot be matched.
    #[error("stop strings: {0}")]
    Stop(String),
}
