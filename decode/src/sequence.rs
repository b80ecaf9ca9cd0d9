//! One request with all that is needed to go on with it: tokens, what is computed of them, blocks, sampler.
//!
//! Prefill, decode and recomputation are one thing here: run the tokens from `computed` on; where the last token was
//! run, sample the next. A forced token, a token from a prefill node and a sampled one enter by the same
//! [`Sequence::push`], so that nothing later can tell them apart.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvrail_engine::cache::CacheError;
use kvrail_engine::sampling::{Finish, SampleError, Sampler};
use kvrail_engine::{BlockId, ExecError};
use kvrail_kv::{BlockKey, Chain, Namespace, TokenId};
use kvrail_node::drain::InFlight;
use kvrail_node::{Failure, FailureCode};
use kvrail_proto::v1;

use crate::holding::Holding;
use crate::outlet::Outlet;
use crate::scheduler::Ticket;

/// What a request brings and what does not change.
#[derive(Debug)]
pub struct Request {
    /// Name in logs; chosen by the client.
    pub request_id: String,
    /// Tenant salt.
    pub salt: String,
    /// Tokens a KV block.
    pub block_tokens: u32,
    /// Length of the prompt in tokens.
    pub prompt_tokens: u32,
    /// Output tokens that were forced.
    pub forced_tokens: u32,
    /// As it came, for the prefill node.
    pub sampling: Option<v1::Sampling>,
    /// As it came, for the prefill node.
    pub stop: Option<v1::StopRule>,
    /// Prefill nodes, in order of preference.
    pub prefill: Vec<v1::PrefillChoice>,
    /// When it came.
    pub arrived: Instant,
    /// When it must be over.
    pub deadline: Instant,
}

/// What is told at the end of an answer and in the metrics.
#[derive(Clone, Copy, Debug, Default)]
pub struct Account {
    /// Prompt tokens that this node held when it admitted the request first.
    pub held_tokens: u32,
    /// Prompt tokens that the prefill node held.
    pub remote_cached_tokens: u32,
    /// Valid KV bytes that came from a prefill node.
    pub payload_bytes: u64,
    /// How often its blocks were taken.
    pub preempted: u32,
    /// When its first and last token were streamed.
    pub first_token: Option<Instant>,
    /// When its last token was streamed.
    pub last_token: Option<Instant>,
}

/// A request and its state.
#[derive(Debug)]
pub struct Sequence {
    /// Its place in the order of arrival.
    pub ticket: Ticket,
    /// What it asks for.
    pub request: Arc<Request>,
    /// Figures for the end.
    pub account: Account,
    /// Prefill node that computed the prompt; empty for none.
    pub prefill_node: String,
    /// Prefill nodes asked.
    pub attempts: u32,
    /// Index of the prefill node that is asked next.
    pub next_choice: usize,
    /// Where its tokens go.
    pub out: Outlet,
    tokens: Vec<TokenId>,
    computed: u32,
    chain: Chain,
    keys: Vec<BlockKey>,
    sampler: Sampler,
    holding: Option<Holding>,
    _in_flight: InFlight,
}

/// Why a step could not advance a sequence.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// The executor refused the chunk.
    #[error(transparent)]
    Exec(#[from] ExecError),
    /// The logits allow no token.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// The block cache contradicts the sequence.
    #[error(transparent)]
    Cache(#[from] CacheError),
}

impl From<StepError> for Failure {
    fn from(error: StepError) -> Self {
        Self::new(FailureCode::Internal, error.to_string())
    }
}

impl Sequence {
    /// A request that has no blocks yet. `tokens` are the prompt and the forced output, which `sampler` has seen.
    #[must_use]
    pub fn new(
        ticket: Ticket,
        request: Arc<Request>,
        tokens: Vec<TokenId>,
        sampler: Sampler,
        namespace: &Namespace,
        out: Outlet,
        in_flight: InFlight,
    ) -> Self {
        let mut sequence = Self {
            ticket,
            request,
            account: Account::default(),
            prefill_node: String::new(),
            attempts: 0,
            next_choice: 0,
            out,
            tokens,
            computed: 0,
            chain: Chain::new(namespace),
            keys: vec![],
            sampler,
            holding: None,
            _in_flight: in_flight,
        };
        sequence.extend_keys();
        sequence
    }

    /// Prompt and output so far.
    #[must_use]
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// Tokens whose KV is in the blocks.
    #[must_use]
    pub fn computed(&self) -> u32 {
        self.computed
    }

    /// Tokens whose KV is not.
    #[must_use]
    pub fn pending(&self) -> u32 {
        self.tokens.len() as u32 - self.computed
    }

    /// Output tokens so far.
    #[must_use]
    pub fn outputs(&self) -> u32 {
        self.sampler.outputs()
    }

    /// The block table; empty before admission.
    #[must_use]
    pub fn table(&self) -> &[BlockId] {
        self.holding.as_ref().map_or(&[], Holding::table)
    }

    /// The blocks, after admission.
    pub fn holding_mut(&mut self) -> Option<&mut Holding> {
        self.holding.as_mut()
    }

    /// Keys of complete blocks that a lookup may use: at least one token is left to compute, for its logits.
    #[must_use]
    pub fn lookup_keys(&self) -> &[BlockKey] {
        let usable = (self.tokens.len() as u32).saturating_sub(1) / self.request.block_tokens;
        &self.keys[..(usable as usize).min(self.keys.len())]
    }

    /// Blocks to hold so that the answer can grow by `growth` (0 to 1) of what it may grow. The last output token is
    /// never run, so it needs no KV.
    #[must_use]
    pub fn blocks_wanted(&self, growth: f64) -> u32 {
        let left = self.sampler.stop().max_tokens().saturating_sub(self.outputs() + 1);
        let grown = (f64::from(left) * growth).ceil() as u32;
        (self.tokens.len() as u32 + grown.min(left)).div_ceil(self.request.block_tokens)
    }

    /// Blocks were pinned and reserved.
    pub fn admitted(&mut self, holding: Holding) {
        self.computed = holding.complete() * self.request.block_tokens;
        self.holding = Some(holding);
    }

    /// Gives all blocks back; the tokens stay, to be computed again.
    pub fn give_up_blocks(&mut self) {
        self.holding = None;
        self.computed = 0;
    }

    /// KV of the first `computed` tokens is in the blocks, computed here or visible from a prefill node.
    ///
    /// # Errors
    /// [`CacheError`] if the blocks are not this sequence's to complete: a bug.
    pub fn advance_to(&mut self, computed: u32) -> Result<(), CacheError> {
        self.computed = computed;
        let full = computed / self.request.block_tokens;
        let Some(holding) = &mut self.holding else { return Ok(()) };
        let complete = holding.complete();
        if full > complete {
            holding.complete_next(&self.keys[complete as usize..full as usize])?;
        }
        Ok(())
    }

    /// Samples the next token from the logits after the last one.
    ///
    /// # Errors
    /// [`SampleError`] if the logits allow none.
    pub fn sample(&self, logits: &[f32]) -> Result<v1::Token, SampleError> {
        let sampled = self.sampler.sample(logits)?;
        Ok(kvrail_node::convert::token(self.outputs(), &sampled))
    }

    /// Appends the next output token, streams it, and tells whether the answer ends with it.
    pub fn push(&mut self, token: v1::Token, now: Instant) -> Option<Finish> {
        let finish = self.sampler.push(token.token);
        self.tokens.push(token.token);
        self.extend_keys();
        self.account.first_token.get_or_insert(now);
        self.account.last_token = Some(now);
        self.out.token(token);
        finish
    }

    /// The answer's last message.
    #[must_use]
    pub fn done(&self, finish: Finish) -> v1::GenerateDone {
        let Account { held_tokens, remote_cached_tokens, .. } = self.account;
        v1::GenerateDone {
            reason: kvrail_node::convert::finish_reason(finish).into(),
            output_tokens: self.outputs(),
            cached_tokens: held_tokens.max(remote_cached_tokens).min(self.request.prompt_tokens),
            prefill_node: self.prefill_node.clone(),
            kv_payload_bytes: self.account.payload_bytes,
            preempted: self.account.preempted,
        }
    }

    /// Mean time between its tokens after the first; `None` below two tokens.
    #[must_use]
    pub fn time_per_token(&self) -> Option<Duration> {
        let streamed = self.outputs().saturating_sub(self.request.forced_tokens);
        let (first, last) = (self.account.first_token?, self.account.last_token?);
        (streamed > 1).then(|| (last - first) / (streamed - 1))
    }

    fn extend_keys(&mut self) {
        let size = self.request.block_tokens as usize;
        while let Some(block) = self.tokens[self.keys.len() * size..].get(..size) {
            self.keys.push(self.chain.push(block));
        }
    }
}
