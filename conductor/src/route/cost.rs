//! The prediction: milliseconds for each part of a request on each node.

use super::credit::Work;
use super::{Request, RouteConfig};
use crate::members::Member;

/// A member with what the router knows besides its own report.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate<'a> {
    pub(super) member: &'a Member,
    /// Given to it and not yet in its report.
    pub(super) credit: Work,
    /// Leading blocks of the prompt that it holds.
    pub(super) cached_blocks: u32,
}

impl Candidate<'_> {
    /// Prompt tokens it need not compute: at least the last one is computed, for its logits.
    pub(super) fn cached_tokens(&self, request: &Request<'_>) -> u32 {
        let held = u64::from(self.cached_blocks) * u64::from(self.member.node.format.block_tokens);
        held.min(u64::from(request.prompt_tokens.saturating_sub(1))) as u32
    }

    pub(super) fn uncached_tokens(&self, request: &Request<'_>) -> u32 {
        request.prompt_tokens - self.cached_tokens(request)
    }

    /// Blocks that prompt and answer need.
    pub(super) fn blocks_wanted(&self, request: &Request<'_>) -> u32 {
        self.member.node.format.blocks_for(request.prompt_tokens.saturating_add(request.max_tokens))
    }

    /// Prompt tokens waiting before this request would be computed.
    pub(super) fn queued_tokens(&self) -> u64 {
        self.member.load.queued_tokens.saturating_add(self.credit.tokens)
    }

    fn prefill_ms(&self, tokens: u64, config: &RouteConfig) -> f64 {
        let measured = self.member.load.prefill_tokens_per_s;
        let rate = if measured > 0.0 { measured } else { config.prefill_tokens_per_s };
        tokens as f64 * 1000.0 / rate
    }

    fn step_ms(&self, config: &RouteConfig) -> f64 {
        let measured = self.member.load.step_ms;
        if measured > 0.0 { measured } else { config.step_ms }
    }

    /// Time until the prompt is computed here: the queue, then what is not cached.
    pub(super) fn prompt_ms(&self, request: &Request<'_>, config: &RouteConfig) -> f64 {
        let tokens = self.queued_tokens().saturating_add(u64::from(self.uncached_tokens(request)));
        self.prefill_ms(tokens, config)
    }

    /// Time to move here what of the prompt's KV is not here yet.
    pub(super) fn transfer_ms(&self, request: &Request<'_>, config: &RouteConfig) -> f64 {
        let bytes = u64::from(self.uncached_tokens(request)) * self.member.node.format.token_bytes();
        config.handoff_ms + bytes as f64 * 1000.0 / config.link_bytes_per_s
    }

    /// Time to the first decode step here, and what the streams that it serves already cost the next ones.
    pub(super) fn decode_ms(&self, request: &Request<'_>, config: &RouteConfig) -> f64 {
        let load = &self.member.load;
        let streams = f64::from(load.running) + f64::from(load.queued) + f64::from(self.credit.streams);
        let wanted = self.blocks_wanted(request);
        let short = wanted.saturating_sub(load.blocks_free.saturating_sub(self.credit.blocks));
        let step = self.step_ms(config);
        step + streams * config.stream_ms * config.horizon_steps
            + f64::from(load.queued) * step
            + f64::from(short) / f64::from(wanted.max(1)) * config.kv_wait_ms
    }

    /// D alone: its queue and prefill and its first step.
    pub(super) fn alone_ms(&self, request: &Request<'_>, config: &RouteConfig) -> f64 {
        self.prompt_ms(request, config) + self.decode_ms(request, config)
    }

    /// The same, its prefill weighted where that is more than a few tokens: what the other streams lose.
    pub(super) fn alone_price_ms(&self, request: &Request<'_>, config: &RouteConfig) -> f64 {
        if config.local_prefill_tokens_max == 0 {
            return f64::INFINITY;
        }
        let factor = if self.short(request, config) { 1.0 } else { config.local_prefill_penalty.max(1.0) };
        self.prompt_ms(request, config) * factor + self.decode_ms(request, config)
    }

    /// Whether what is uncached is too short to be worth moving.
    pub(super) fn short(&self, request: &Request<'_>, config: &RouteConfig) -> bool {
        self.uncached_tokens(request) <= config.local_prefill_tokens_max
    }
}
