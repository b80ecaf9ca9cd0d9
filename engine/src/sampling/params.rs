//! How tokens are chosen: values, their ranges, and the refusal of everything else.

use kvrail_kv::TokenId;

/// How tokens are chosen. `Default` is greedy without penalties.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; 0 is greedy.
    pub temperature: f32,
    /// Keeps that many most likely tokens; 0 is off.
    pub top_k: u32,
    /// Keeps the fewest most likely tokens whose mass reaches this; 1 is off.
    pub top_p: f32,
    /// Keeps tokens at least this fraction as likely as the likeliest; 0 is off.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens in prompt or output; 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted once from logits of tokens in the output; 0 is off.
    pub presence_penalty: f32,
    /// Subtracted from logits of tokens in the output for each time they occur; 0 is off.
    pub frequency_penalty: f32,
    /// Seed of every draw.
    pub seed: u64,
    /// Which of the `n` answers to one request this is: each has draws of its own.
    pub choice: u32,
    /// Report the chosen token's log-probability.
    pub logprobs: bool,
    /// And that many of the likeliest tokens', at most [`TOP_LOGPROBS_MAX`].
    pub top_logprobs: u32,
    /// Added to the logits of these tokens, within ±[`LOGIT_BIAS_MAX`].
    pub logit_bias: Vec<(TokenId, f32)>,
}

/// Most alternatives reported for a token, as in OpenAI's API.
pub const TOP_LOGPROBS_MAX: u32 = 20;
/// Largest bias in either direction, as in OpenAI's API.
pub const LOGIT_BIAS_MAX: f32 = 100.0;
/// Most biased tokens a request may name.
pub const LOGIT_BIAS_ENTRIES_MAX: usize = 4096;

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            seed: 0,
            choice: 0,
            logprobs: false,
            top_logprobs: 0,
            logit_bias: Vec::new(),
        }
    }
}

/// A parameter that no answer can be sampled with.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SamplingError {
    /// A value outside its range; NaN is outside of every one.
    #[error("`{field}` is {value}; it must be between {min} and {max}")]
    OutOfRange {
        /// Name of the field.
        field: &'static str,
        /// What it was.
        value: f64,
        /// Least accepted value.
        min: f64,
        /// Largest accepted value.
        max: f64,
    },
    /// `min_tokens` asks for more than `max_tokens` allows.
    #[error("`min_tokens` is {min_tokens}, more than `max_tokens`, {max_tokens}")]
    MinAboveMax {
        /// What was asked.
        min_tokens: u32,
        /// What is allowed.
        max_tokens: u32,
    },
}

/// Refuses `value` outside of `min..=max`.
pub(super) fn in_range(field: &'static str, value: f64, min: f64, max: f64) -> Result<(), SamplingError> {
    if (min..=max).contains(&value) { Ok(()) } else { Err(SamplingError::OutOfRange { field, value, min, max }) }
}

impl SamplingParams {
    /// Checks every value's range.
    ///
    /// # Errors
    /// [`SamplingError::OutOfRange`] names the first bad field.
    pub fn validate(&self) -> Result<(), SamplingError> {
        let ranges = [
            ("temperature", self.temperature, 0.0, 100.0),
            // The likeliest token always stays, so 0 is as good as the smallest positive number.
            ("top_p", self.top_p, 0.0, 1.0),
            ("min_p", self.min_p, 0.0, 1.0),
            ("repetition_penalty", self.repetition_penalty, 0.01, 100.0),
            ("presence_penalty", self.presence_penalty, -2.0, 2.0),
            ("frequency_penalty", self.frequency_penalty, -2.0, 2.0),
        ];
        for (field, value, min, max) in ranges {
            // Through decimal text: 0.01_f32 must not be told as 0.009999999776482582, nor be below 0.01.
            let value = value.to_string().parse().unwrap_or(f64::NAN);
            in_range(field, value, min, max)?;
        }
        in_range("top_logprobs", f64::from(self.top_logprobs), 0.0, f64::from(TOP_LOGPROBS_MAX))?;
        in_range("logit_bias entries", self.logit_bias.len() as f64, 0.0, LOGIT_BIAS_ENTRIES_MAX as f64)?;
        for &(_, bias) in &self.logit_bias {
            in_range("logit_bias", f64::from(bias), f64::from(-LOGIT_BIAS_MAX), f64::from(LOGIT_BIAS_MAX))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_refuse_by_name() {
        let good = SamplingParams { repetition_penalty: 0.01, top_p: 0.0, temperature: 1e-30, ..Default::default() };
        assert_eq!(good.validate(), Ok(()));
        let field = |params: SamplingParams| match params.validate() {
            Err(SamplingError::OutOfRange { field, .. }) => field,
            other => panic!("{other:?}"),
        };
        let d = SamplingParams::default;
        assert_eq!(field(SamplingParams { temperature: f32::NAN, ..d() }), "temperature");
        assert_eq!(field(SamplingParams { temperature: -0.1, ..d() }), "temperature");
        assert_eq!(field(SamplingParams { top_p: 1.1, ..d() }), "top_p");
        assert_eq!(field(SamplingParams { min_p: f32::INFINITY, ..d() }), "min_p");
        assert_eq!(field(SamplingParams { repetition_penalty: 0.0, ..d() }), "repetition_penalty");
        assert_eq!(field(SamplingParams { frequency_penalty: 2.5, ..d() }), "frequency_penalty");
        assert_eq!(field(SamplingParams { top_logprobs: 21, ..d() }), "top_logprobs");
        assert_eq!(field(SamplingParams { logit_bias: vec![(1, 101.0)], ..d() }), "logit_bias");
        assert_eq!(field(SamplingParams { logit_bias: vec![(1, 0.0); 5000], ..d() }), "logit_bias entries");
    }
}
