//! Text in, tokens out, and back: the tokenizer and the chat template that a model file brings with it.
//!
//! Laws this crate serves:
//! - *Never a wrong token*: a tokenizer that is not known by name is refused by name, not guessed.
//! - *Everything is bounded*: a template runs on a fuel budget, a [`Detokenizer`] holds back at most 3 bytes, a
//!   [`StopMatcher`] at most its longest stop string less one byte.
//! - Streaming changes nothing: the pieces of a stream, joined, are what one call on the whole would have given.
//!
//! Map: [`model`] the [`TextModel`], what everybody uses · [`parts`] what it is made of · `gguf` read from a file · `bpe`,
//! `spm` the two families of tokenizers · `special` finds special tokens in text · [`vocabulary`] ids to bytes ·
//! [`detokenizer`] UTF-8 safe streaming · [`stop`] stop strings · [`chat`] messages and templates · [`catalogue`] models
//! known by name and where their files lie · `mock` the text of the mock model · `error`.
//!
//! ```
//! use kvrail_text::TextModel;
//!
//! let model = TextModel::mock(512)?;
//! let tokens = model.encode("naïve", false)?;
//! let mut stream = model.detokenizer();
//! let mut text = String::new();
//! for token in tokens {
//!     text += &stream.push(token)?;
//! }
//! text += &stream.finish();
//! assert_eq!(text, "naïve");
//! # Ok::<(), kvrail_text::TextError>(())
//! ```

#![forbid(unsafe_code)]

mod bpe;
pub mod catalogue;
pub mod chat;
pub mod detokenizer;
mod error;
mod gguf;
mod mock;
pub mod model;
pub mod parts;
mod special;
mod spm;
pub mod stop;
pub mod vocabulary;

pub use chat::ChatMessage;
pub use detokenizer::Detokenizer;
pub use error::TextError;
pub use model::TextModel;
pub use parts::{Parts, TokenKind};
pub use stop::{StopMatcher, Stopped};
