//! Logits to tokens, reproducibly.
//!
//! Pure. A token is a function of (logits, parameters, prompt, tokens before it): every draw is a hash of (seed, choice,
//! output index), so a stream that moves to another node, or whose first tokens are *forced*, goes on as if nothing had
//! happened. Ties go to the lower token id. The order of steps is: bias, penalties, ban of stop tokens below `min_tokens`,
//! temperature, min-p, top-k, top-p. Log-probabilities are those of the raw logits, before all of these.
//!
//! Map: [`params`] values and their ranges · [`stop`] when an answer ends · [`choose`] truncation and the draw.

mod choose;
mod params;
mod stop;

use std::collections::HashMap;

use kvrail_kv::TokenId;

pub use params::{LOGIT_BIAS_ENTRIES_MAX, LOGIT_BIAS_MAX, SamplingError, SamplingParams, TOP_LOGPROBS_MAX};
pub use stop::{Finish, STOP_TOKENS_MAX, StopRule};

/// One sampled token.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// The token.
    pub token: TokenId,
    /// Its log-probability under the raw logits; 0 unless asked for.
    pub logprob: f32,
    /// The likeliest tokens under the raw logits, likeliest first; as many as were asked for.
    pub top: Vec<(TokenId, f32)>,
}

/// Logits that no token can be chosen from.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SampleError {
    /// A logit is NaN or positive infinity: the model's arithmetic is broken. Negative infinity is a probability of 0.
    #[error("the logit of token {token} is not a number")]
    NotANumber {
        /// The first such token.
        token: TokenId,
    },
    /// No token has a probability above 0.
    #[error("no token is possible: all logits are -inf or banned")]
    NothingPossible,
}

/// How often a token occurred.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    output: u32,
}

/// One answer's sampler: parameters, stop rule, and what the penalties must know of its history.
///
/// ```
/// use kvrail_engine::sampling::{Finish, Sampler, SamplingParams, StopRule};
/// let mut sampler = Sampler::new(SamplingParams::default(), StopRule::length(2), &[1, 2, 3])?;
/// let logits = [0.0, 0.5, 2.0, 1.0];
/// let sampled = sampler.sample(&logits).unwrap();
/// assert_eq!(sampled.token, 2, "greedy");
/// assert_eq!(sampler.push(sampled.token), None);
/// assert_eq!(sampler.push(3), Some(Finish::Length), "forced, counted like any other");
/// # Ok::<(), kvrail_engine::sampling::SamplingError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Sampler {
    params: SamplingParams,
    stop: StopRule,
    seen: HashMap<TokenId, Seen>,
    outputs: u32,
}

impl Sampler {
    /// A sampler before the first output token.
    ///
    /// # Errors
    /// [`SamplingError`] if a parameter is out of range.
    pub fn new(params: SamplingParams, stop: StopRule, prompt: &[TokenId]) -> Result<Self, SamplingError> {
        params.validate()?;
        // Only the repetition penalty looks at the prompt.
        let relevant = if params.repetition_penalty == 1.0 { &[] } else { prompt };
        let seen = relevant.iter().map(|&token| (token, Seen::default())).collect();
        Ok(Self { params, stop, seen, outputs: 0 })
    }

    /// Appends the next output token, whether it was sampled here, sampled elsewhere or is forced, and tells whether the
    /// answer ends with it.
    pub fn push(&mut self, token: TokenId) -> Option<Finish> {
        let finish = self.stop.finish(self.outputs, token);
        self.seen.entry(token).or_default().output += 1;
        self.outputs += 1;
        finish
    }

    /// Output tokens so far: the index of the next one.
    #[must_use]
    pub fn outputs(&self) -> u32 {
        self.outputs
    }

    /// The parameters.
    #[must_use]
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// The stop rule.
    #[must_use]
    pub fn stop(&self) -> &StopRule {
        &self.stop
    }

    /// Chooses the next token; [`push`](Self::push) makes it part of the history.
    ///
    /// # Errors
    /// [`SampleError`] if the logits allow none.
    pub fn sample(&self, logits: &[f32]) -> Result<Sampled, SampleError> {
        if let Some(token) = logits.iter().position(|l| l.is_nan() || *l == f32::INFINITY) {
            return Err(SampleError::NotANumber { token: token as TokenId });
        }
        let banned = self.stop.banned(self.outputs);
        let token = if self.changes_logits() || !banned.is_empty() {
            self.choose(&self.adjusted(logits, banned))
        } else {
            self.choose(logits)
        }
        .ok_or(SampleError::NothingPossible)?;

        let (mut logprob, mut top) = (0.0, Vec::new());
        if self.params.logprobs || self.params.top_logprobs > 0 {
            let normaliser = choose::log_sum_exp(logits);
            let of = |logit: f32| (f64::from(logit) - normaliser) as f32;
            logprob = of(logits[token as usize]);
            top = choose::likeliest(logits, self.params.top_logprobs as usize)
                .into_iter()
                .map(|token| (token, of(logits[token as usize])))
                .collect();
        }
        Ok(Sampled { token, logprob, top })
    }

    fn choose(&self, logits: &[f32]) -> Option<TokenId> {
        let params = &self.params;
        if params.temperature == 0.0 {
            return choose::greedy(logits);
        }
        let uniform = choose::uniform(params.seed, params.choice, self.outputs);
        choose::draw(logits, params, uniform)
    }

    fn changes_logits(&self) -> bool {
        let p = &self.params;
        let penalties = p.repetition_penalty != 1.0 || p.presence_penalty != 0.0 || p.frequency_penalty != 0.0;
        !p.logit_bias.is_empty() || (penalties && !self.seen.is_empty())
    }

    /// The logits after bias, penalties and ban. Ids outside the vocabulary have no logit to change.
    fn adjusted(&self, logits: &[f32], banned: &[TokenId]) -> Vec<f32> {
        let p = &self.params;
        let mut adjusted = logits.to_vec();
        for &(token, bias) in &p.logit_bias {
            if let Some(logit) = adjusted.get_mut(token as usize) {
                *logit += bias;
            }
        }
        for (&token, seen) in &self.seen {
            let Some(logit) = adjusted.get_mut(token as usize) else { continue };
            *logit = if *logit > 0.0 { *logit / p.repetition_penalty } else { *logit * p.repetition_penalty };
            if seen.output > 0 {
                *logit -= p.presence_penalty + p.frequency_penalty * seen.output as f32;
            }
        }
        for &token in banned {
            if let Some(logit) = adjusted.get_mut(token as usize) {
                *logit = f32::NEG_INFINITY;
            }
        }
        adjusted
    }
}

#[cfg(test)]
mod tests;
