//! A flag whose value makes no sense, in one form: which flag, what was given, what would be right.

/// A flag of a bench is wrong; nothing was started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("--{flag} {given}: {wanted}")]
pub struct SettingError {
    /// The flag, without its dashes.
    pub flag: &'static str,
    /// What was given.
    pub given: String,
    /// What would be right.
    pub wanted: String,
}

impl SettingError {
    /// A flag, what it was given, and what would be right.
    #[must_use]
    pub fn new(flag: &'static str, given: impl ToString, wanted: impl Into<String>) -> Self {
        Self { flag, given: given.to_string(), wanted: wanted.into() }
    }
}
