//! The router: admission, then the cheapest pair, then the credit.

use std::time::Duration;

use super::cost::Candidate;
use super::credit::{Credits, Work};
use super::rng::SplitMix64;
use super::{Decision, PrefillPick, Refusal, Request, RouteConfig};
use crate::members::{Member, MemberId, Role};

/// Places requests. One for each conductor, and one in each gateway for when there is none.
#[derive(Debug)]
pub struct Router {
    config: RouteConfig,
    credits: Credits,
    rng: SplitMix64,
}

/// Costs this close (milliseconds) are equal whatever the margin.
const TIE_MS: f64 = 0.5;

impl Router {
    /// A router that has decided nothing yet.
    #[must_use]
    pub fn new(config: RouteConfig) -> Self {
        let credits = Credits::new(config.credit_settle, config.credit_ttl);
        Self { config, credits, rng: SplitMix64::new(config.seed) }
    }

    /// A load report of `id` arrived: it shows earlier decisions.
    pub fn handle_load(&mut self, id: MemberId, now: Duration) {
        self.credits.handle_load(id, now);
    }

    /// Decisions for `id` that none of its load reports shows yet.
    #[must_use]
    pub fn credits(&self, id: MemberId, now: Duration) -> usize {
        self.credits.count(id, now)
    }

    /// `id` is no member any more.
    pub fn handle_gone(&mut self, id: MemberId) {
        self.credits.handle_gone(id);
    }

    /// Decides, and credits the decision.
    ///
    /// # Errors
    /// A [`Refusal`] that says what would be right.
    pub fn route(&mut self, request: &Request<'_>, members: &[&Member], now: Duration) -> Result<Decision, Refusal> {
        let decode = self.decode_candidates(request, members, now)?;
        let (prefill, prefill_wait) = self.prefill_candidates(request, members, now);
        let config = self.config;

        let everyone = decode.iter().chain(&prefill);
        let best_cached_tokens = everyone.map(|c| c.cached_tokens(request)).max().unwrap_or(0);

        if prefill.is_empty() {
            let d = decode[self.cheapest(decode.iter().map(|d| d.alone_ms(request, &config)))];
            // Ps are there but full: only what needs none of them may go on, else D would inherit their queues.
            if let Some(retry_after) = prefill_wait.filter(|_| !d.short(request, &config)) {
                return Err(Refusal::QueueFull { what: "prefill", retry_after });
            }
            let why = if prefill_wait.is_some() { "short" } else { "no prefill node" };
            return Ok(self.decide_alone(request, d, best_cached_tokens, why, now));
        }

        let p_ms = |p: &Candidate<'_>| p.prompt_ms(request, &config);
        let d_ms = |d: &Candidate<'_>| d.transfer_ms(request, &config) + d.decode_ms(request, &config);
        let p_at = self.cheapest(prefill.iter().map(p_ms));
        let (p, d) = (prefill[p_at], decode[self.cheapest(decode.iter().map(d_ms))]);
        let paired_ms = p_ms(&p) + d_ms(&d);
        let alone = decode[self.cheapest(decode.iter().map(|d| d.alone_price_ms(request, &config)))];
        let alone_ms = alone.alone_price_ms(request, &config);
        if alone_ms <= paired_ms {
            let why = if alone.short(request, &config) { "short" } else { "hand-off costs more" };
            return Ok(self.decide_alone(request, alone, best_cached_tokens, why, now));
        }

        let mut order: Vec<usize> = (0..prefill.len()).filter(|at| *at != p_at).collect();
        order.sort_by(|a, b| p_ms(&prefill[*a]).total_cmp(&p_ms(&prefill[*b])));
        let picks = std::iter::once(p_at).chain(order).take(config.prefill_choices.max(1));
        let picks = picks.map(|at| PrefillPick { id: prefill[at].member.id, cached_blocks: prefill[at].cached_blocks });
        let chosen_cached_tokens = p.cached_tokens(request);
        let decision = Decision {
            decode: d.member.id,
            prefill: picks.collect(),
            ttft: millis(paired_ms),
            best_cached_tokens,
            chosen_cached_tokens,
            reason: format!(
                "prefill on {} ({chosen_cached_tokens} of {} tokens cached), decode on {}: {paired_ms:.0} ms, alone {alone_ms:.0} ms",
                p.member.node.node_id, request.prompt_tokens, d.member.node.node_id
            ),
        };
        let tokens = u64::from(p.uncached_tokens(request));
        self.credits.give(p.member.id, Work { tokens, ..Work::default() }, now);
        self.credits.give(d.member.id, Work { tokens: 0, streams: 1, blocks: d.blocks_wanted(request) }, now);
        Ok(decision)
    }

    fn decide_alone(
        &mut self,
        request: &Request<'_>,
        d: Candidate<'_>,
        best_cached_tokens: u32,
        why: &str,
        now: Duration,
    ) -> Decision {
        let cost_ms = d.alone_ms(request, &self.config);
        let tokens = u64::from(d.uncached_tokens(request));
        self.credits.give(d.member.id, Work { tokens, streams: 1, blocks: d.blocks_wanted(request) }, now);
        let chosen_cached_tokens = d.cached_tokens(request);
        Decision {
            decode: d.member.id,
            prefill: Vec::new(),
            ttft: millis(cost_ms),
            best_cached_tokens,
            chosen_cached_tokens,
            reason: format!(
                "{} alone ({why}; {chosen_cached_tokens} of {} tokens cached): {cost_ms:.0} ms",
                d.member.node.node_id, request.prompt_tokens
            ),
        }
    }

    fn candidate<'a>(&mut self, request: &Request<'_>, member: &'a Member, now: Duration) -> Candidate<'a> {
        let found = request.matches.binary_search_by_key(&member.id, |m| m.holder);
        let cached_blocks = found.map_or(0, |at| request.matches[at].blocks);
        Candidate { member, credit: self.credits.of(member.id, now), cached_blocks }
    }

    /// The Ds that may take the request; never empty.
    fn decode_candidates<'a>(
        &mut self,
        request: &Request<'_>,
        members: &[&'a Member],
        now: Duration,
    ) -> Result<Vec<Candidate<'a>>, Refusal> {
        let tokens = u64::from(request.prompt_tokens) + u64::from(request.max_tokens);
        let serving: Vec<_> = members.iter().filter(|m| serves(m, request, Role::Decode)).copied().collect();
        if serving.is_empty() {
            return Err(Refusal::NoNodes { why: "none serves this model" });
        }
        let (mut limit, mut what) = (0, "");
        for member in &serving {
            let (most, name) = longest(member);
            if most > limit {
                (limit, what) = (most, name);
            }
        }
        if tokens > limit {
            let Request { prompt_tokens, max_tokens, .. } = *request;
            return Err(Refusal::TooLong { prompt_tokens, max_tokens, limit, what });
        }
        let fitting = serving.into_iter().filter(|m| longest(m).0 >= tokens);
        let open: Vec<_> = fitting.filter(|m| !m.load.draining).collect();
        if open.is_empty() {
            return Err(Refusal::NoNodes { why: "all are draining" });
        }
        let open: Vec<_> = open.into_iter().filter(|m| !request.exclude.contains(&m.node.node_id)).collect();
        if open.is_empty() {
            return Err(Refusal::NoNodes { why: "all just failed this request" });
        }
        let candidates: Vec<_> =
            connected_first(open).into_iter().map(|member| self.candidate(request, member, now)).collect();
        let queue = |c: &Candidate<'_>| c.member.load.queued;
        let waits = candidates.iter().map(|c| c.decode_ms(request, &self.config));
        let retry_after = retry_after(waits.fold(f64::INFINITY, f64::min));
        let candidates: Vec<_> = candidates.into_iter().filter(|c| queue(c) < self.config.decode_queue_max).collect();
        if candidates.is_empty() {
            return Err(Refusal::QueueFull { what: "decode", retry_after });
        }
        Ok(candidates)
    }

    /// The Ps that may take the prompt; and, where there are some but all are full, when to come back.
    fn prefill_candidates<'a>(
        &mut self,
        request: &Request<'_>,
        members: &[&'a Member],
        now: Duration,
    ) -> (Vec<Candidate<'a>>, Option<Duration>) {
        let fits = |m: &&&Member| {
            serves(m, request, Role::Prefill)
                && longest(m).0 >= u64::from(request.prompt_tokens)
                && !m.load.draining
                && !request.exclude.contains(&m.node.node_id)
        };
        let open: Vec<_> = members.iter().filter(fits).copied().collect();
        let all: Vec<_> =
            connected_first(open).into_iter().map(|member| self.candidate(request, member, now)).collect();
        let waits = all.iter().map(|c| c.prompt_ms(request, &self.config));
        let wait = retry_after(waits.fold(f64::INFINITY, f64::min));
        let there = !all.is_empty();
        let max = self.config.prefill_queue_tokens_max;
        let open: Vec<_> = all.into_iter().filter(|c| c.queued_tokens() < max).collect();
        let full = there && open.is_empty();
        (open, full.then_some(wait))
    }

    /// Index of the least cost; among those that are as good as equal, one by the seeded generator.
    fn cheapest(&mut self, costs: impl Iterator<Item = f64>) -> usize {
        let costs: Vec<f64> = costs.collect();
        let least = costs.iter().copied().fold(f64::INFINITY, f64::min);
        let bound = (least * (1.0 + self.config.tie_margin)).max(least + TIE_MS);
        let ties: Vec<usize> = (0..costs.len()).filter(|at| costs[*at] <= bound).collect();
        if ties.is_empty() { 0 } else { ties[self.rng.below(ties.len())] }
    }
}

fn serves(member: &Member, request: &Request<'_>, role: Role) -> bool {
    member.node.role == role && member.node.namespace_id == request.namespace_id && member.node.model == request.model
}

/// The longest sequence that a node takes, and by which limit.
fn longest(member: &Member) -> (u64, &'static str) {
    let context = u64::from(member.node.context_tokens);
    let pool = member.node.pool_tokens();
    if context <= pool { (context, "the model's context") } else { (pool, "the KV pool") }
}

/// Members whose stream stands; those whose stream broke only if there is no other.
fn connected_first(members: Vec<&Member>) -> Vec<&Member> {
    let (connected, suspect): (Vec<_>, Vec<_>) = members.into_iter().partition(|m| m.connected);
    if connected.is_empty() { suspect } else { connected }
}

/// Costs are finite by construction; whatever they are, the duration is sane.
fn millis(ms: f64) -> Duration {
    Duration::from_secs_f64((ms / 1000.0).clamp(0.0, 86_400.0))
}

fn retry_after(ms: f64) -> Duration {
    millis(ms).clamp(Duration::from_secs(1), Duration::from_secs(30))
}
