//! An executor without weights, for tests of everything around one: every byte of KV can be checked by anybody, and every
//! byte of KV matters to the answer.
//!
//! - KV bytes are a function of (model digest, all tokens up to a position, layer, K or V, head).
//! - Logits are a hash of every valid KV byte of the sequence: one flipped bit in any row of any layer gives other logits,
//!   so over a few tokens another answer.
//! - The same invariances as a real executor: chunking, prefix hits and batches change nothing.
//! - Time follows a [`StepModel`]; layers complete evenly spread over the step.
//!
//! Map: [`options`] what it pretends to be · [`bytes`] the arithmetic · [`step`] the time.

mod bytes;
mod options;
mod step;

use std::time::Instant;

use kvrail_kv::TokenId;

pub use bytes::MockKv;
pub use options::{MockError, MockOptions};
pub use step::{Gpu, StepLoad, StepModel};

use crate::executor::{Chunk, ExecError, Executor, Logits, ModelSpec, check_batch};
use crate::memory::KvMemory;

/// The executor. See the [module](self).
#[derive(Debug)]
pub struct MockExecutor {
    spec: ModelSpec,
    arithmetic: MockKv,
    step: StepModel,
}

impl MockExecutor {
    /// "Loads" the mock.
    ///
    /// # Errors
    /// [`MockError`] if the options do not make a model.
    pub fn new(options: MockOptions) -> Result<Self, MockError> {
        options.validate()?;
        let spec = ModelSpec {
            digest: options.digest(),
            name: options.name,
            numerics: "mock-1".into(),
            vocab: options.vocab,
            context_tokens: options.context_tokens,
            eos: options.eos,
            format: options.format,
        };
        Ok(Self { arithmetic: MockKv::new(&spec), spec, step: options.step })
    }

    /// The arithmetic, to check bytes and logits by.
    #[must_use]
    pub fn arithmetic(&self) -> &MockKv {
        &self.arithmetic
    }

    fn load(&self, batch: &[Chunk<'_>]) -> StepLoad {
        let mut load = StepLoad { token_bytes: self.spec.format.token_bytes(), ..StepLoad::default() };
        for chunk in batch {
            match chunk.tokens.len() {
                1 => load.decode_sequences += 1,
                tokens => load.prefill_tokens += tokens as u64,
            }
            load.kv_tokens += u64::from(chunk.position) + chunk.tokens.len() as u64;
        }
        load
    }

    /// Writes the rows of one layer of a chunk whose positions have these states.
    fn write_layer(&self, chunk: &Chunk<'_>, states: &[u64], layer: u32, kv: &KvMemory) {
        let format = &self.spec.format;
        let mut row = vec![0; format.row_bytes() as usize];
        for (position, &state) in (chunk.position..).zip(states) {
            let block = chunk.table[(position / format.block_tokens) as usize];
            for (value, head) in bytes::planes(format) {
                self.arithmetic.row(state, layer, value, head, &mut row);
                kv.write(block, format.row_offset(layer, value, head, position % format.block_tokens), &row);
            }
        }
    }
}

impl Executor for MockExecutor {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn forward(
        &mut self,
        batch: &[Chunk<'_>],
        kv: &KvMemory,
        on_layer: &mut dyn FnMut(u32),
    ) -> Result<Vec<Option<Logits>>, ExecError> {
        check_batch(&self.spec, batch, kv)?;
        let started = Instant::now();
        let time = self.step.time(&self.load(batch));
        let states: Vec<Vec<u64>> = batch
            .iter()
            .map(|chunk| {
                let mut state = match chunk.position {
                    0 => self.arithmetic.start(),
                    position => self.arithmetic.state_in(kv, chunk.table, position - 1),
                };
                let step = |&token: &TokenId| {
                    state = self.arithmetic.next(state, token);
                    state
                };
                chunk.tokens.iter().map(step).collect()
            })
            .collect();
        for layer in 0..self.spec.format.layers {
            for (chunk, states) in batch.iter().zip(&states) {
                self.write_layer(chunk, states, layer, kv);
            }
            let due = started + time * (layer + 1) / self.spec.format.layers;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            on_layer(layer);
        }
        let logits = |chunk: &Chunk<'_>| {
            let tokens = chunk.position + chunk.tokens.len() as u32;
            self.arithmetic.logits(self.arithmetic.hash(kv, chunk.table, tokens))
        };
        Ok(batch.iter().map(|chunk| chunk.want_logits.then(|| logits(chunk))).collect())
    }
}

#[cfg(test)]
mod tests;
