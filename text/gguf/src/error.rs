//! What can be wrong with a file.

use std::path::PathBuf;

/// Why a file, or one of its fields, is refused.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// The file cannot be opened or mapped.
    #[error("cannot read {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It does not begin as GGUF files do.
    #[error("not a GGUF file: it begins with {found:02x?}")]
    NotGguf {
        /// Its first bytes, at most four.
        found: Vec<u8>,
    },
    /// A version, or byte order, that this reader does not know.
    #[error("GGUF version {found} is not supported (2 and 3, little endian, are)")]
    Version {
        /// The version field as read.
        found: u32,
    },
    /// The bytes end before the field does.
    #[error(
        "`{field}` at byte {offset} needs {needed} bytes, {left} are left: the file is cut or its counts are wrong"
    )]
    Truncated {
        /// What was being read.
        field: String,
        /// Where in the file.
        offset: u64,
        /// How many bytes it needs at least.
        needed: u64,
        /// How many are there.
        left: u64,
    },
    /// A field was read and makes no sense.
    #[error("`{field}` at byte {offset}: {reason}")]
    Invalid {
        /// What was being read.
        field: String,
        /// Where in the file.
        offset: u64,
        /// What is wrong and what would be right.
        reason: String,
    },
    /// A metadata key that was asked for is not there.
    #[error("metadata `{key}` is missing")]
    Missing {
        /// The key.
        key: String,
    },
    /// A metadata value has another type than the one asked for.
    #[error("metadata `{key}` is {found}, not {wanted}")]
    WrongType {
        /// The key.
        key: String,
        /// Type asked for.
        wanted: &'static str,
        /// Type in the file.
        found: &'static str,
    },
    /// A tensor that was asked for is not there.
    #[error("tensor `{name}` is missing")]
    NoTensor {
        /// Its name.
        name: String,
    },
}
