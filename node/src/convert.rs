//! Requests from the wire, checked once at the door: what passes here needs no second look.

use kvrail_engine::ModelSpec;
use kvrail_engine::sampling::{Finish, Sampled, SamplingParams, StopRule};
use kvrail_kv::TokenId;
use kvrail_proto::v1;

use crate::failure::{Failure, FailureCode};

fn invalid(message: impl Into<String>) -> Failure {
    Failure::new(FailureCode::InvalidRequest, message)
}

/// Sampling parameters of a request; greedy where there are none.
///
/// # Errors
/// `invalid_request`, naming the field and its range.
pub fn sampling(wire: Option<v1::Sampling>, spec: &ModelSpec) -> Result<SamplingParams, Failure> {
    let Some(wire) = wire else { return Ok(SamplingParams::default()) };
    if let Some(token) = wire.logit_bias.keys().find(|&&token| token >= spec.vocab) {
        return Err(invalid(format!("`logit_bias` names token {token}; the vocabulary has {} tokens", spec.vocab)));
    }
    let mut logit_bias: Vec<_> = wire.logit_bias.into_iter().collect();
    logit_bias.sort_unstable_by_key(|&(token, _)| token);
    let params = SamplingParams {
        temperature: wire.temperature,
        top_k: wire.top_k,
        top_p: wire.top_p,
        min_p: wire.min_p,
        repetition_penalty: wire.repetition_penalty,
        presence_penalty: wire.presence_penalty,
        frequency_penalty: wire.frequency_penalty,
        seed: wire.seed,
        choice: wire.choice,
        logprobs: wire.logprobs,
        top_logprobs: wire.top_logprobs,
        logit_bias,
    };
    params.validate().map_err(|error| invalid(error.to_string()))?;
    Ok(params)
}

/// The stop rule of a request.
///
/// # Errors
/// `invalid_request`, naming the field.
pub fn stop_rule(wire: Option<v1::StopRule>, spec: &ModelSpec) -> Result<StopRule, Failure> {
    let wire = wire.ok_or_else(|| invalid("`stop` is missing; at least max_tokens must be told"))?;
    StopRule::new(wire.max_tokens, wire.min_tokens, &wire.stop_tokens, &spec.eos, wire.ignore_eos)
        .map_err(|error| invalid(error.to_string()))
}

/// Token ids of a request.
///
/// # Errors
/// `invalid_request` with the place of the first id that the model does not have.
pub fn check_tokens(field: &str, tokens: &[TokenId], spec: &ModelSpec) -> Result<(), Failure> {
    match tokens.iter().position(|&t| t >= spec.vocab) {
        None => Ok(()),
        Some(at) => Err(invalid(format!(
            "`{field}` has {} at place {at}; the vocabulary has {} tokens",
            tokens[at], spec.vocab
        ))),
    }
}

/// A sampled token on the wire, as output number `index`.
#[must_use]
pub fn token(index: u32, sampled: &Sampled) -> v1::Token {
    let top = sampled.top.iter().map(|&(token, logprob)| v1::TokenLogprob { token, logprob }).collect();
    v1::Token { index, token: sampled.token, logprob: sampled.logprob, top }
}

/// The reason on the wire.
#[must_use]
pub fn finish_reason(finish: Finish) -> v1::FinishReason {
    match finish {
        Finish::Stop => v1::FinishReason::Stop,
        Finish::Length => v1::FinishReason::Length,
    }
}

#[cfg(test)]
mod tests {
    use kvrail_kv::{DType, KvFormat};

    use super::*;

    fn spec() -> ModelSpec {
        ModelSpec {
            name: "m".into(),
            digest: "d".into(),
            numerics: "n".into(),
            vocab: 300,
            context_tokens: 64,
            eos: vec![257],
            format: KvFormat { layers: 1, kv_heads: 1, head_dim: 8, block_tokens: 4, dtype: DType::F16 },
        }
    }

    #[test]
    fn what_is_out_of_range_is_named() {
        let good = v1::Sampling { top_p: 1.0, repetition_penalty: 1.0, ..Default::default() };
        assert_eq!(sampling(Some(good.clone()), &spec()), Ok(SamplingParams::default()));
        let refused = |change: fn(&mut v1::Sampling)| {
            let mut wire = good.clone();
            change(&mut wire);
            sampling(Some(wire), &spec()).expect_err("out of range").message
        };
        assert!(refused(|s| s.temperature = f32::NAN).contains("temperature"));
        assert!(refused(|s| s.top_logprobs = 21).contains("top_logprobs"));
        assert!(refused(|s| s.logit_bias = [(300, 1.0)].into()).contains("300"));
        assert!(stop_rule(None, &spec()).expect_err("missing").message.contains("max_tokens"));
        assert!(stop_rule(Some(v1::StopRule::default()), &spec()).expect_err("zero").message.contains("max_tokens"));
        assert!(check_tokens("prompt", &[1, 300], &spec()).expect_err("unknown").message.contains("place 1"));
    }

    #[test]
    fn the_models_own_end_tokens_end_unless_ignored() {
        let rule = |ignore_eos| {
            let wire = v1::StopRule { max_tokens: 9, ignore_eos, ..Default::default() };
            stop_rule(Some(wire), &spec()).expect("valid")
        };
        assert_eq!(rule(false).finish(0, 257), Some(Finish::Stop));
        assert_eq!(rule(true).finish(0, 257), None);
    }
}
