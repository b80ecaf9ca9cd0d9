//! Why a topology could not be read.

use std::fmt;
use std::path::PathBuf;

use super::types::Source;

/// What was wrong, where, and what would be right.
#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    /// The text is in none of the formats.
    #[error(
        "this is none of the formats that are read here: NCCL's XML (begins with `<system`), our TOML (`[[nic]]`, \
         `[[gpu]]`), JSON as `kvrail doctor --json` prints it, or what `nvidia-smi topo -m` prints"
    )]
    Unrecognised,
    /// A byte is not text.
    #[error("line {line} is not UTF-8; a text file would be right")]
    NotText {
        /// Counted from 1.
        line: usize,
    },
    /// The text breaks the rules of its format.
    #[error("{format}, line {line}: {says}")]
    Syntax {
        /// Which.
        format: Source,
        /// Counted from 1.
        line: usize,
        /// What the parser says.
        says: String,
    },
    /// A value is not what it should be.
    #[error("{format}{place}: `{field}` is {found}; {wants} would be right", place = Place(.line))]
    Field {
        /// Which format.
        format: Source,
        /// Counted from 1, where lines are known.
        line: Option<usize>,
        /// Whose value, in the format's own words.
        field: String,
        /// What it is, shortened.
        found: String,
        /// What it may be.
        wants: String,
    },
    /// There is more of something than any machine has.
    #[error("{format}: {found} {what}; at most {limit} would be right")]
    TooMany {
        /// Which format.
        format: Source,
        /// Of what.
        what: &'static str,
        /// How many.
        found: usize,
        /// The bound.
        limit: usize,
    },
    /// Two things have one name.
    #[error("{format}: two {what} are called `{name}`; a name of its own for each would be right")]
    Twice {
        /// Which format.
        format: Source,
        /// Of what.
        what: &'static str,
        /// The name, shortened.
        name: String,
    },
    /// A symbolic link leads nowhere, in a circle or out of the tree.
    #[error("{}: {says}; a link to something under {} would be right", path.display(), root.display())]
    Link {
        /// The link.
        path: PathBuf,
        /// The tree that is read.
        root: PathBuf,
        /// What is wrong with it.
        says: String,
    },
    /// A file or directory could not be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

impl TopologyError {
    pub(super) fn field(
        format: Source,
        line: impl Into<Option<usize>>,
        field: impl Into<String>,
        found: &str,
        wants: impl fmt::Display,
    ) -> Self {
        // Parsers of values end with "would be right" of their own; it is said once.
        let wants = wants.to_string();
        let wants = wants.strip_suffix(" would be right").unwrap_or(&wants).to_owned();
        Self::Field { format, line: line.into(), field: field.into(), found: quote(found), wants }
    }

    pub(super) fn too_many(format: Source, what: &'static str, found: usize, limit: usize) -> Self {
        Self::TooMany { format, what, found, limit }
    }
}

/// ", line N" where a line is known.
struct Place<'a>(&'a Option<usize>);

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |line| write!(f, ", line {line}"))
    }
}

/// What a file says, in quotes, without control characters, and no longer than a person wants to read.
pub(super) fn quote(text: &str) -> String {
    const CHARS: usize = 48;
    let short: String = text.chars().take(CHARS).collect();
    let more = if text.chars().nth(CHARS).is_some() { "…" } else { "" };
    format!("`{}{more}`", short.escape_debug())
}

#[cfg(test)]
mod tests {
    #[test]
    fn quotes_are_short_and_plain() {
        assert_eq!(super::quote("a\nb"), "`a\\nb`");
        assert_eq!(super::quote(&"é".repeat(100)).chars().count(), 51);
    }
}
