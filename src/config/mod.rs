//! The one configuration story: **file < environment < flag**, every value shown at start with where it came from.
//!
//! Settings are declared once, as a struct in the [`settings!`] macro: name, type, default and doc comment. The flag, the variable, the key in the file, the help text and the check all come from that one row, so they cannot
//! drift apart. Names are written
//!
//! | place | form | example |
//! |---|---|---|
//! | flag | `--kebab-case` | `--pool-blocks 512` |
//! | environment | `KVRAIL_SERVICE_` + upper case | `KVRAIL_DECODE_POOL_BLOCKS=512` |
//! | file (TOML) | `[service]`, kebab-case | `[decode]` `pool-blocks = 512` |
//!
//! The file is the one that `--config` or `KVRAIL_CONFIG` names; there is no other. Unknown keys are refused, in the file
//! and in the environment, with the nearest known one: a setting that is misspelt must not be a setting that is ignored.
//!
//! Map: [`table`] rows, groups and the macro · [`value`] what a setting may be · [`file`] · [`environment`] · [`resolve`] who wins ·
//! [`nearest`] spelling.

pub mod environment;
pub mod file;
pub mod nearest;
pub mod resolve;
pub mod table;
pub mod value;

pub use resolve::{Resolved, load};
pub use table::{Service, Setting, Settings};

/// A configuration that cannot be used. Ends the process with status 2.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A value that its setting does not take.
    #[error("{place}: `{value}` is not {what}{example}")]
    Bad {
        /// Where it stands: flag, variable, or key and file.
        place: String,
        /// What stands there; masked where it is a secret.
        value: String,
        /// What would be right.
        what: &'static str,
        /// `, like …`, or nothing.
        example: String,
    },
    /// A setting that has no default and was given nowhere.
    #[error("`{name}` is needed: give --{flag} or {env}, {what}")]
    Missing {
        /// Its name.
        name: String,
        /// Its flag.
        flag: String,
        /// Its variable.
        env: String,
        /// What would be right.
        what: &'static str,
    },
    /// A key that no setting has.
    #[error("{place}: unknown {kind} `{key}`{hint}")]
    Unknown {
        /// Where it stands.
        place: String,
        /// Key, section or variable.
        kind: &'static str,
        /// The key.
        key: String,
        /// `; did you mean …?`, or nothing.
        hint: String,
    },
    /// The file cannot be read or is not TOML.
    #[error("{path}: {reason}")]
    File {
        /// Its path.
        path: String,
        /// Why.
        reason: String,
    },
    /// Settings that are right alone and wrong together.
    #[error("{0}")]
    Conflict(String),
}
