//! What can go wrong.

use std::io;

use kvrail_verbs_sys::Unavailable;

use crate::qp::states::TransitionError;

/// An error off the data path.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no libibverbs on this machine that can be used.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// A verb failed.
    #[error("{verb} on {on}")]
    Verb {
        /// Name of the function of libibverbs.
        verb: &'static str,
        /// Device, and number of the object where it has one.
        on: String,
        /// The errno.
        source: io::Error,
    },
    /// The library or the provider of this device does not have it.
    #[error("{what} is not supported on {on}")]
    Unsupported {
        /// What was asked for.
        what: &'static str,
        /// The device.
        on: String,
    },
    /// A queue pair cannot go from its state to the one asked for with these attributes.
    #[error(transparent)]
    Transition(#[from] TransitionError),
    /// An argument that the verb cannot express.
    #[error("{what}: {value} is more than {max}")]
    TooMuch {
        /// What was asked for.
        what: &'static str,
        /// How much of it.
        value: u64,
        /// What is possible.
        max: u64,
    },
}

impl Error {
    /// The errno, where a verb failed.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Verb { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }

    /// A verb that returned an errno.
    pub(crate) fn code(verb: &'static str, on: &str, code: i32) -> Self {
        Self::Verb { verb, on: on.into(), source: io::Error::from_raw_os_error(code.abs()) }
    }

    /// A verb that set `errno`.
    pub(crate) fn last(verb: &'static str, on: &str) -> Self {
        Self::Verb { verb, on: on.into(), source: io::Error::last_os_error() }
    }
}

/// What a verb that returns 0 or an errno returned.
pub(crate) fn check(code: i32, verb: &'static str, on: &str) -> Result<(), Error> {
    if code == 0 { Ok(()) } else { Err(Error::code(verb, on, code)) }
}

/// A number that fits into what the verb takes.
pub(crate) fn fits<T: TryFrom<u64>>(what: &'static str, value: u64, max: u64) -> Result<T, Error> {
    T::try_from(value).ok().filter(|_| value <= max).ok_or(Error::TooMuch { what, value, max })
}

/// A chain of requests was not posted, or not whole.
///
/// Allocates nothing: a full queue (`ENOMEM`, `EAGAIN`, by provider) is everyday business.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{posted} requests were posted, the next was refused with errno {errno}")]
pub struct PostError {
    /// Requests from the front of the chain that were posted, and complete or flush as any other.
    pub posted: usize,
    /// Why the one after them was not.
    pub errno: i32,
}
