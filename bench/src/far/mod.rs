//! Two sides of a bench: how the processes start or find each other, and how they talk about what they measure.
//!
//! `control` is the talk itself, JSON lines · `serve` is the side that does what it is asked · `wire` names the transports.
//! What is asked is known to the rooms that ask: [`compare`](crate::compare) and [`transfer`](crate::transfer).

mod control;
mod serve;
mod wire;

pub use control::{Ask, Ear, Far, FarSide, Mouth, Place, Reply};
pub use serve::{far_side, serve};
pub use wire::{Wire, WireError};

use crate::setting::SettingError;

/// Why a bench gave no figures.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// A flag makes no sense.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The other process.
    #[error("the far side: {0}")]
    Far(String),
    /// The transfer engine.
    #[error("transfer engine")]
    Engine(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The operating system.
    #[error("system")]
    Io(#[from] std::io::Error),
    /// Bytes arrived wrong: there is nothing to measure then.
    #[error("{contender}: {wrong} of {looked_at} blocks that the receiver looked at were wrong")]
    Wrong {
        /// Who moved them.
        contender: String,
        /// Blocks with a wrong byte.
        wrong: usize,
        /// Blocks looked at.
        looked_at: usize,
    },
    /// Transfers failed although no fault was planned.
    #[error("{cell}: {failed} transfers failed, the first with: {first}")]
    Failed {
        /// What was measured.
        cell: String,
        /// How many.
        failed: u64,
        /// The first one's error.
        first: String,
    },
}

impl BenchError {
    pub(crate) fn engine(source: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Engine(Box::new(source))
    }

    pub(crate) fn unexpected(wanted: &str) -> Self {
        Self::Far(format!("it answered something else than `{wanted}`"))
    }

    /// With all its causes, in one line: how it crosses to another process.
    pub(crate) fn chain(&self) -> String {
        let mut said = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            let next = error.to_string();
            if !said.ends_with(&next) {
                said = format!("{said}: {next}");
            }
            cause = error.source();
        }
        said
    }
}
