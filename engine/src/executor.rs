//! The one boundary between scheduling and arithmetic.

use kvrail_kv::{KvFormat, TokenId};

use crate::memory::{BlockId, KvMemory};

/// What a loaded model is.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// Name clients use.
    pub name: String,
    /// Digest of the weights: part of the namespace.
    pub digest: String,
    /// Kernel revision and ISA class: part of the namespace. Changes only when a golden-logits test changes.
    pub numerics: String,
    /// Vocabulary size: logits have this many entries.
    pub vocab: u32,
    /// Longest sequence, prompt and answer together.
    pub context_tokens: u32,
    /// Token ids that end an answer.
    pub eos: Vec<TokenId>,
    /// Shape of a KV block.
    pub format: KvFormat,
}

/// One sequence's share of a batch: consecutive tokens of a prompt, or the one token of a decode step.
///
/// KV of positions before `position` must be in the blocks of `table` already; KV of these tokens is written there.
#[derive(Clone, Copy, Debug)]
pub struct Chunk<'a> {
    /// Tokens to run, at least one.
    pub tokens: &'a [TokenId],
    /// Position of the first of them in the sequence.
    pub position: u32,
    /// Blocks of the sequence from its start; must cover `position + tokens.len()` tokens.
    pub table: &'a [BlockId],
    /// Whether the logits after the last token are wanted.
    pub want_logits: bool,
}

/// Logits after the last token of a chunk, one entry a vocabulary item.
pub type Logits = Vec<f32>;

/// Why a forward pass was refused or failed.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// A chunk is malformed; nothing was written.
    #[error("chunk {index} of the batch: {reason}")]
    BadChunk {
        /// Its place in the batch.
        index: usize,
        /// What is wrong and what would be right.
        reason: String,
    },
    /// The pool's format is not the model's.
    #[error("the KV pool's format is {pool}, the model's is {model}")]
    FormatMismatch {
        /// Format of the pool.
        pool: String,
        /// Format of the model.
        model: String,
    },
}

/// Runs a model over a paged KV cache.
pub trait Executor: Send {
    /// What is loaded.
    fn spec(&self) -> &ModelSpec;

    /// Runs a ragged batch of prompt chunks and decode steps together.
    ///
    /// `on_layer(layer)` fires, in layer order, when the KV of that layer is written for **all** chunks of the batch
    /// and may be read by others. Returns one entry a chunk: its logits where `want_logits`, else `None`.
    ///
    /// # Errors
    /// [`ExecError`] if the batch is malformed: checked before anything is written.
    fn forward(
        &mut self,
        batch: &[Chunk<'_>],
        kv: &KvMemory,
        on_layer: &mut dyn FnMut(u32),
    ) -> Result<Vec<Option<Logits>>, ExecError>;
}

/// Checks what every executor must check before it writes.
///
/// # Errors
/// The first malformed chunk, by index.
pub fn check_batch(spec: &ModelSpec, batch: &[Chunk<'_>], kv: &KvMemory) -> Result<(), ExecError> {
    if *kv.format() != spec.format {
        return Err(ExecError::FormatMismatch { pool: kv.format().to_string(), model: spec.format.to_string() });
    }
    for (index, chunk) in batch.iter().enumerate() {
        let bad = |reason: String| Err(ExecError::BadChunk { index, reason });
        let Some(end) = u32::try_from(chunk.tokens.len()).ok().and_then(|n| chunk.position.checked_add(n)) else {
            return bad("position + tokens overflows".into());
        };
        if chunk.tokens.is_empty() {
            return bad("no tokens; at least one is needed".into());
        }
        if end > spec.context_tokens {
            return bad(format!("ends at position {end}; the context holds {}", spec.context_tokens));
        }
        if (chunk.table.len() as u64) * u64::from(spec.format.block_tokens) < u64::from(end) {
            return bad(format!("{} blocks do not hold {end} tokens", chunk.table.len()));
        }
        if let Some(token) = chunk.tokens.iter().find(|&&t| t >= spec.vocab) {
            return bad(format!("token {token} is outside the vocabulary of {}", spec.vocab));
        }
        if let Some(block) = chunk.table.iter().find(|b| b.0 >= kv.blocks()) {
            return bad(format!("block {} is outside the pool of {}", block.0, kv.blocks()));
        }
    }
    Ok(())
}
