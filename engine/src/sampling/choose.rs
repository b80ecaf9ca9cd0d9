//! From logits to one token: greedy, truncation, the draw. Sums are f64 in a fixed order.

use std::cmp::Ordering;

use kvrail_kv::TokenId;
use xxhash_rust::xxh3::xxh3_64;

use super::SamplingParams;

/// Candidates that are sorted first when only a mass is to be kept; most distributions end within it.
const SORTED_FIRST: usize = 256;

/// A token with its logit, greater first, lower id first among equals.
type Candidate = (f32, TokenId);

fn likelier(a: &Candidate, b: &Candidate) -> Ordering {
    b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
}

/// The likeliest token, the lowest id among equals; `None` if none is possible.
pub(super) fn greedy(logits: &[f32]) -> Option<TokenId> {
    let mut best: Option<Candidate> = None;
    for (token, &logit) in logits.iter().enumerate() {
        if logit > best.map_or(f32::NEG_INFINITY, |b| b.0) {
            best = Some((logit, token as TokenId));
        }
    }
    best.map(|b| b.1)
}

/// The `count` likeliest tokens, likeliest first.
pub(super) fn likeliest(logits: &[f32], count: usize) -> Vec<TokenId> {
    if count == 0 {
        return Vec::new();
    }
    let mut candidates = candidates_above(logits, f32::NEG_INFINITY);
    keep_likeliest(&mut candidates, count);
    candidates.into_iter().map(|c| c.1).collect()
}

/// `ln Σ exp(logit)`.
pub(super) fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    max + logits.iter().map(|&l| (f64::from(l) - max).exp()).sum::<f64>().ln()
}

/// A number in [0, 1) that is a function of its arguments alone: the top 53 bits of their hash.
pub(super) fn uniform(seed: u64, choice: u32, output_index: u32) -> f64 {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    bytes[8..12].copy_from_slice(&choice.to_le_bytes());
    bytes[12..].copy_from_slice(&output_index.to_le_bytes());
    (xxh3_64(&bytes) >> 11) as f64 / (1_u64 << 53) as f64
}

/// Draws by temperature, min-p, top-k and top-p; `None` if no token is possible. `uniform` is in [0, 1).
pub(super) fn draw(logits: &[f32], params: &SamplingParams, uniform: f64) -> Option<TokenId> {
    let max = logits[greedy(logits)? as usize];
    let temperature = f64::from(params.temperature);
    let weight = |logit: f32| ((f64::from(logit) - f64::from(max)) / temperature).exp();

    // weight(logit) ≥ min_p, solved for the logit: no exponential for what is cut.
    let threshold = if params.min_p > 0.0 {
        (f64::from(max) + f64::from(params.min_p).ln() * temperature) as f32
    } else {
        f32::NEG_INFINITY
    };
    let mut candidates = candidates_above(logits, threshold.min(max));
    if params.top_k > 0 && (params.top_k as usize) < candidates.len() {
        keep_likeliest(&mut candidates, params.top_k as usize);
    }
    if params.top_p < 1.0 {
        keep_mass(&mut candidates, f64::from(params.top_p), &weight);
    }

    let weights: Vec<f64> = candidates.iter().map(|c| weight(c.0)).collect();
    let target = uniform * weights.iter().sum::<f64>();
    let mut cumulative = 0.0;
    for (candidate, weight) in candidates.iter().zip(&weights) {
        cumulative += weight;
        if target < cumulative {
            return Some(candidate.1);
        }
    }
    // The same sum in the same order reaches the same total, which `target` is below; rounding of `uniform × total` up to
    // the total itself is what is left.
    candidates.last().map(|c| c.1)
}

/// Possible tokens whose logit is at least `threshold`, in id order.
fn candidates_above(logits: &[f32], threshold: f32) -> Vec<Candidate> {
    let possible = |c: &Candidate| c.0 > f32::NEG_INFINITY && c.0 >= threshold;
    logits.iter().enumerate().map(|(token, &logit)| (logit, token as TokenId)).filter(possible).collect()
}

/// Keeps the `count` likeliest, sorted.
fn keep_likeliest(candidates: &mut Vec<Candidate>, count: usize) {
    sort_head(candidates, count);
    candidates.truncate(count);
}

/// Moves the `count` likeliest to the front, sorted.
fn sort_head(candidates: &mut [Candidate], count: usize) {
    if count < candidates.len() {
        candidates.select_nth_unstable_by(count, likelier);
        candidates[..count].sort_unstable_by(likelier);
    } else {
        candidates.sort_unstable_by(likelier);
    }
}

/// Keeps the fewest likeliest whose share of the weight reaches `mass`, at least one, sorted.
fn keep_mass(candidates: &mut Vec<Candidate>, mass: f64, weight: &dyn Fn(f32) -> f64) {
    let wanted = mass * candidates.iter().map(|c| weight(c.0)).sum::<f64>();
    let mut sorted = SORTED_FIRST;
    loop {
        sort_head(candidates, sorted);
        let mut cumulative = 0.0;
        for (i, candidate) in candidates.iter().take(sorted).enumerate() {
            cumulative += weight(candidate.0);
            if cumulative >= wanted {
                candidates.truncate(i + 1);
                return;
            }
        }
        if sorted >= candidates.len() {
            return;
        }
        sorted *= 4;
    }
}
