//! Known distributions, laws of truncation, and streams that move.

use proptest::prelude::*;

use super::*;

fn sampler(params: SamplingParams, prompt: &[u32]) -> Sampler {
    Sampler::new(params, StopRule::length(1000), prompt).unwrap()
}

/// Draws at `count` consecutive output indices from the same logits.
fn draws(params: &SamplingParams, logits: &[f32], count: u32) -> Vec<TokenId> {
    let mut sampler = sampler(params.clone(), &[]);
    (0..count)
        .map(|_| {
            let token = sampler.sample(logits).unwrap().token;
            sampler.push(token);
            token
        })
        .collect()
}

fn hot() -> SamplingParams {
    SamplingParams { temperature: 1.0, seed: 7, ..Default::default() }
}

#[test]
fn greedy_takes_the_lowest_id_among_equals() {
    assert_eq!(sampler(SamplingParams::default(), &[]).sample(&[1.0, 3.0, 3.0]).unwrap().token, 1);
    assert_eq!(sampler(SamplingParams::default(), &[]).sample(&[-0.0, 0.0]).unwrap().token, 0);
}

#[test]
fn draws_follow_the_distribution() {
    // ln of 0.5, 0.3, 0.2: at temperature 1 these are the probabilities.
    let logits: Vec<f32> = [0.5_f32, 0.3, 0.2].iter().map(|p| p.ln()).collect();
    let count = 20_000;
    let drawn = draws(&hot(), &logits, count);
    for (token, expected) in [(0, 0.5), (1, 0.3), (2, 0.2)] {
        let share = drawn.iter().filter(|&&t| t == token).count() as f64 / f64::from(count);
        // Five standard deviations of a binomial share.
        assert!((share - expected).abs() < 5.0 * (0.25 / f64::from(count)).sqrt(), "token {token}: {share}");
    }
    // Temperature ½ squares the odds: 0.25 : 0.09 : 0.04.
    let drawn = draws(&SamplingParams { temperature: 0.5, ..hot() }, &logits, count);
    let share = drawn.iter().filter(|&&t| t == 0).count() as f64 / f64::from(count);
    assert!((share - 0.25 / 0.38).abs() < 0.02, "{share}");
}

#[test]
fn a_draw_depends_on_seed_choice_and_index_alone() {
    let logits: Vec<f32> = (0..50).map(|i| (i % 7) as f32).collect();
    let base = draws(&hot(), &logits, 64);
    assert_eq!(base, draws(&hot(), &logits, 64));
    assert_ne!(base, draws(&SamplingParams { seed: 8, ..hot() }, &logits, 64));
    assert_ne!(base, draws(&SamplingParams { choice: 1, ..hot() }, &logits, 64));
    // Golden: these are part of the contract between nodes, of any version.
    assert_eq!(base[..8], [13, 5, 48, 6, 12, 25, 34, 13], "changing this breaks streams that move");
}

#[test]
fn truncations_keep_what_they_promise() {
    let logits: Vec<f32> = [0.4_f32, 0.1, 0.3, 0.2].iter().map(|p| p.ln()).collect();
    let kept = |params: SamplingParams| {
        let mut kept = draws(&params, &logits, 4000);
        kept.sort_unstable();
        kept.dedup();
        kept
    };
    assert_eq!(kept(SamplingParams { top_k: 2, ..hot() }), [0, 2]);
    assert_eq!(kept(SamplingParams { top_p: 0.65, ..hot() }), [0, 2]);
    assert_eq!(kept(SamplingParams { top_p: 0.75, ..hot() }), [0, 2, 3]);
    assert_eq!(kept(SamplingParams { top_p: 0.0, ..hot() }), [0]);
    assert_eq!(kept(SamplingParams { min_p: 0.6, ..hot() }), [0, 2]);
    assert_eq!(kept(SamplingParams { min_p: 1.0, ..hot() }), [0]);
    // top-p counts the mass of what top-k left: 0.4 of 0.7 is 0.57.
    assert_eq!(kept(SamplingParams { top_k: 2, top_p: 0.55, ..hot() }), [0]);
    assert_eq!(kept(SamplingParams { top_k: 1000, ..hot() }), [0, 1, 2, 3]);
}

#[test]
fn penalties_and_bias_do_what_their_names_say() {
    let logits = [2.0, 1.9, -1.0];
    let pick = |params: SamplingParams, prompt: &[u32], output: &[u32]| {
        let mut sampler = sampler(params, prompt);
        for &token in output {
            sampler.push(token);
        }
        sampler.sample(&logits).unwrap().token
    };
    let d = SamplingParams::default;
    assert_eq!(pick(SamplingParams { repetition_penalty: 1.2, ..d() }, &[0], &[]), 1, "the prompt counts");
    assert_eq!(pick(SamplingParams { presence_penalty: 0.2, ..d() }, &[0], &[]), 0, "the prompt does not");
    assert_eq!(pick(SamplingParams { presence_penalty: 0.2, ..d() }, &[], &[0]), 1);
    assert_eq!(pick(SamplingParams { frequency_penalty: 0.06, ..d() }, &[], &[0]), 0);
    assert_eq!(pick(SamplingParams { frequency_penalty: 0.06, ..d() }, &[], &[0, 0]), 1);
    assert_eq!(pick(SamplingParams { logit_bias: vec![(2, 50.0), (99, 1.0)], ..d() }, &[], &[]), 2);
    assert_eq!(pick(SamplingParams { repetition_penalty: 1.2, ..d() }, &[77], &[99]), 0, "unknown ids are harmless");
}

#[test]
fn no_stop_token_before_min_tokens() {
    let stop = StopRule::new(8, 2, &[], &[1], false).unwrap();
    let mut sampler = Sampler::new(SamplingParams::default(), stop, &[]).unwrap();
    let mut out = Vec::new();
    loop {
        let token = sampler.sample(&[0.0, 5.0, 1.0]).unwrap().token;
        out.push(token);
        if let Some(finish) = sampler.push(token) {
            assert_eq!(finish, Finish::Stop);
            break;
        }
    }
    assert_eq!(out, [2, 2, 1]);
}

#[test]
fn logprobs_are_those_of_the_raw_logits() {
    let params = SamplingParams {
        temperature: 0.3,
        seed: 3,
        top_logprobs: 2,
        logit_bias: vec![(2, 100.0)],
        ..Default::default()
    };
    let logits: Vec<f32> = [0.5_f32, 0.3, 0.2].iter().map(|p| p.ln() + 4.0).collect();
    let sampled = sampler(params, &[]).sample(&logits).unwrap();
    assert_eq!(sampled.token, 2, "the bias decides");
    assert!((sampled.logprob - 0.2_f32.ln()).abs() < 1e-6);
    let top: Vec<u32> = sampled.top.iter().map(|t| t.0).collect();
    assert_eq!(top, [0, 1]);
    assert!((sampled.top[0].1 - 0.5_f32.ln()).abs() < 1e-6);
}

#[test]
fn broken_logits_are_typed_errors() {
    for params in [SamplingParams::default(), hot()] {
        let sampler = sampler(params, &[]);
        assert_eq!(sampler.sample(&[0.0, f32::NAN]), Err(SampleError::NotANumber { token: 1 }));
        assert_eq!(sampler.sample(&[f32::INFINITY]), Err(SampleError::NotANumber { token: 0 }));
        assert_eq!(sampler.sample(&[f32::NEG_INFINITY; 3]), Err(SampleError::NothingPossible));
        assert_eq!(sampler.sample(&[]), Err(SampleError::NothingPossible));
        assert_eq!(sampler.sample(&[f32::NEG_INFINITY, -1e30]).unwrap().token, 1);
    }
}

fn any_params() -> impl Strategy<Value = SamplingParams> {
    let truncation = (0..6_u32, 0.0..=1.0_f32, 0.0..=1.0_f32);
    let penalties = (0.5..2.0_f32, -2.0..2.0_f32, -2.0..2.0_f32);
    (0.0..3.0_f32, truncation, penalties, any::<u64>(), prop::collection::vec((0..40_u32, -5.0..5.0_f32), 0..3))
        .prop_map(|(temperature, (top_k, top_p, min_p), (repetition, presence, frequency), seed, logit_bias)| {
            SamplingParams {
                temperature: if temperature < 0.3 { 0.0 } else { temperature },
                top_k,
                top_p,
                min_p,
                repetition_penalty: repetition,
                presence_penalty: presence,
                frequency_penalty: frequency,
                seed,
                logit_bias,
                logprobs: true,
                top_logprobs: 3,
                choice: 0,
            }
        })
}

/// What a simple implementation with full sorts would choose.
fn oracle(logits: &[f32], params: &SamplingParams, uniform: f64) -> TokenId {
    let mut sorted: Vec<(f32, u32)> = logits.iter().enumerate().map(|(i, &l)| (l, i as u32)).collect();
    sorted.sort_by(|a, b| b.0.partial_cmp(&a.0).unwrap().then(a.1.cmp(&b.1)));
    let max = sorted[0].0;
    let weight = |l: f32| ((f64::from(l) - f64::from(max)) / f64::from(params.temperature)).exp();
    sorted.retain(|c| weight(c.0) >= f64::from(params.min_p));
    if params.top_k > 0 {
        sorted.truncate(params.top_k as usize);
    }
    let total: f64 = sorted.iter().map(|c| weight(c.0)).sum();
    if params.top_p < 1.0 {
        let mut cumulative = 0.0;
        let mut keep = 0;
        for c in &sorted {
            keep += 1;
            cumulative += weight(c.0);
            if cumulative >= f64::from(params.top_p) * total {
                break;
            }
        }
        sorted.truncate(keep);
    } else if params.top_k == 0 {
        sorted.sort_by_key(|c| c.1);
    }
    let target = uniform * sorted.iter().map(|c| weight(c.0)).sum::<f64>();
    let mut cumulative = 0.0;
    for c in &sorted {
        cumulative += weight(c.0);
        if target < cumulative {
            return c.1;
        }
    }
    sorted.last().unwrap().1
}

proptest! {
    /// A stream cut anywhere, its tokens forced into a fresh sampler, goes on with the same tokens and log-probabilities.
    #[test]
    fn a_forced_prefix_changes_nothing(
        params in any_params(),
        prompt in prop::collection::vec(0..40_u32, 0..20),
        steps in prop::collection::vec(prop::collection::vec(-9.0..9.0_f32, 40), 1..12),
        cut in 0..12_usize,
    ) {
        let mut whole = sampler(params.clone(), &prompt);
        let mut outputs = Vec::new();
        for logits in &steps {
            let sampled = whole.sample(logits).unwrap();
            whole.push(sampled.token);
            outputs.push(sampled);
        }
        let cut = cut.min(steps.len());
        let mut moved = sampler(params, &prompt);
        for sampled in &outputs[..cut] {
            moved.push(sampled.token);
        }
        for (logits, expected) in steps[cut..].iter().zip(&outputs[cut..]) {
            let sampled = moved.sample(logits).unwrap();
            prop_assert_eq!(&sampled, expected);
            moved.push(sampled.token);
        }
    }

    /// Selection in parts chooses what full sorts choose, also where many logits are equal.
    #[test]
    fn the_draw_agrees_with_full_sorts(
        params in any_params(),
        uniform in 0.0..1.0_f64,
        logits in prop::collection::vec((-40..40_i32).prop_map(|l| l as f32 / 4.0), 1..900),
    ) {
        let params = SamplingParams { temperature: params.temperature.max(0.3), ..params };
        prop_assert_eq!(choose::draw(&logits, &params, uniform), Some(oracle(&logits, &params, uniform)));
    }
}
