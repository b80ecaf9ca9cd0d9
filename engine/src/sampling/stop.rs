//! When an answer ends, by token. Stop strings are text and so the gateway's business.

use kvrail_kv::TokenId;

use super::params::{SamplingError, in_range};

/// Most stop tokens of a request, the model's own included.
pub const STOP_TOKENS_MAX: usize = 1024;

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Finish {
    /// Its last token is a stop token.
    Stop,
    /// It has all the tokens that were asked for.
    Length,
}

/// When an answer ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StopRule {
    max_tokens: u32,
    min_tokens: u32,
    /// Sorted: what ends it, the model's own end tokens included unless they are ignored.
    tokens: Vec<TokenId>,
}

impl StopRule {
    /// An answer of at most `max_tokens` tokens that ends with any of `stop_tokens` or, if not `ignore_eos`, of `eos`; but
    /// none of those is sampled before there are `min_tokens` tokens.
    ///
    /// # Errors
    /// [`SamplingError`] if `max_tokens` is 0 or below `min_tokens`, or there are more than [`STOP_TOKENS_MAX`] stop tokens.
    pub fn new(
        max_tokens: u32,
        min_tokens: u32,
        stop_tokens: &[TokenId],
        eos: &[TokenId],
        ignore_eos: bool,
    ) -> Result<Self, SamplingError> {
        in_range("max_tokens", f64::from(max_tokens), 1.0, f64::from(u32::MAX))?;
        if min_tokens > max_tokens {
            return Err(SamplingError::MinAboveMax { min_tokens, max_tokens });
        }
        let eos = if ignore_eos { &[] } else { eos };
        let mut tokens = [stop_tokens, eos].concat();
        in_range("stop_tokens", tokens.len() as f64, 0.0, STOP_TOKENS_MAX as f64)?;
        tokens.sort_unstable();
        tokens.dedup();
        Ok(Self { max_tokens, min_tokens, tokens })
    }

    /// At most that many tokens and no other rule.
    ///
    /// # Panics
    /// If `max_tokens` is 0.
    #[must_use]
    pub fn length(max_tokens: u32) -> Self {
        assert!(max_tokens > 0, "an answer has at least one token");
        Self { max_tokens, min_tokens: 0, tokens: Vec::new() }
    }

    /// Most tokens of the answer.
    #[must_use]
    pub fn max_tokens(&self) -> u32 {
        self.max_tokens
    }

    /// Whether the answer ends with `token` as its output number `index` (from 0).
    #[must_use]
    pub fn finish(&self, index: u32, token: TokenId) -> Option<Finish> {
        if index >= self.min_tokens && self.tokens.binary_search(&token).is_ok() {
            return Some(Finish::Stop);
        }
        (index + 1 >= self.max_tokens).then_some(Finish::Length)
    }

    /// Tokens that output number `index` must not be.
    #[must_use]
    pub fn banned(&self, index: u32) -> &[TokenId] {
        if index < self.min_tokens { &self.tokens } else { &[] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_by_token_by_length_and_not_too_early() {
        let rule = StopRule::new(4, 2, &[7], &[9], false).unwrap();
        assert_eq!(rule.finish(0, 7), None, "below min_tokens; a forced token may be one");
        assert_eq!(rule.banned(1), [7, 9]);
        assert!(rule.banned(2).is_empty());
        assert_eq!(rule.finish(2, 7), Some(Finish::Stop));
        assert_eq!(rule.finish(2, 9), Some(Finish::Stop));
        assert_eq!(rule.finish(2, 8), None);
        assert_eq!(rule.finish(3, 8), Some(Finish::Length));
        assert_eq!(rule.finish(3, 9), Some(Finish::Stop), "the stop token tells more");
        let ignoring = StopRule::new(4, 0, &[7], &[9], true).unwrap();
        assert_eq!((ignoring.finish(0, 9), ignoring.finish(0, 7)), (None, Some(Finish::Stop)));
        assert_eq!(StopRule::length(1).finish(0, 1), Some(Finish::Length));
    }

    #[test]
    fn impossible_rules_are_refused() {
        assert!(matches!(
            StopRule::new(0, 0, &[], &[], false),
            Err(SamplingError::OutOfRange { field: "max_tokens", .. })
        ));
        assert_eq!(
            StopRule::new(1, 2, &[], &[], false),
            Err(SamplingError::MinAboveMax { min_tokens: 2, max_tokens: 1 })
        );
        assert!(matches!(
            StopRule::new(1, 0, &[0; 2000], &[], false),
            Err(SamplingError::OutOfRange { field: "stop_tokens", .. })
        ));
    }
}
