//! A checked reader for GGUF files (versions 2 and 3, little endian), and a small writer of them.
//!
//! A GGUF file is a header, typed metadata, a table of tensors, and their bytes. Files come from strangers; hence the Laws:
//!
//! - Every count, length, offset and size is checked against the bytes that are there **before** anything is allocated
//!   or read. Memory used for metadata stays within a small multiple of the file's size.
//! - What is wrong is a [`GgufError`] that names the field and its byte offset. Nothing panics.
//! - What [`Gguf::open`] returns is consistent: each tensor's bytes lie inside the file, are aligned and overlap no other's.
//!
//! The file is mapped, not read: whoever loads weights touches each page once. The format is described in ggml's
//! `docs/gguf.md`.
//!
//! Map: [`file`] the reader's face · [`value`] metadata values · [`tensor`] element types and the tensor table ·
//! `cursor` the only code that moves through untrusted bytes · [`writer`] files for tests and tools · [`error`].
//!
//! ```
//! use kvrail_gguf::{Gguf, writer::GgufWriter};
//!
//! let mut writer = GgufWriter::new();
//! writer.metadata("general.architecture", "llama");
//! let file = Gguf::from_bytes(writer.finish())?;
//! assert_eq!(file.str("general.architecture")?, "llama");
//! assert!(file.u32("llama.block_count").is_err());
//! # Ok::<(), kvrail_gguf::GgufError>(())
//! ```

#![deny(unsafe_code)]

mod cursor;
pub mod error;
pub mod file;
pub mod tensor;
pub mod value;
pub mod writer;

pub use error::GgufError;
pub use file::Gguf;
pub use tensor::{TensorInfo, TensorType};
pub use value::{Array, Value};
