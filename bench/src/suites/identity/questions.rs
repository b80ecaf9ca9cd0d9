//! The questions of the suite, and whether they are as they should be: how many tokens the model's own tokenizer counts,
//! and that every kind of question is among them.

use std::collections::HashMap;

use crate::answer::Ask;
use crate::prompts::{Shape, prompts, shared_words};
use crate::suites::Findings;
use crate::suites::tokens::Tokens;

/// Largest distance of the lengths' distribution from the log-uniform one, times the root of their number (Kolmogorov and
/// Smirnov; honest draws stay below it nineteen times in twenty).
const DISTANCE_MAX: f64 = 1.36;

/// What the lengths of the prompts must be beyond log-uniform, in tokens.
#[derive(Clone, Copy)]
pub struct Lengths {
    /// Mean, at most.
    pub mean_max: f64,
    /// At least so many are longer than so many tokens.
    pub above: (usize, usize),
}

/// Questions whose prompts have as many tokens as `shape` says words. A chat's template leaves no room for the shortest:
/// those are plain; of the others three in four are chats, so that each is about half of all.
pub fn questions(shape: &Shape, seed: u64, tokens: &Tokens) -> Result<Vec<Ask>, String> {
    let least = tokens.prompt(&Ask::chat("a", 1))?.len();
    let question = |(i, mut ask): (usize, Ask)| {
        let length = ask.prompt.split_whitespace().count();
        ask.chat = i / 2 % 4 != 3 && length >= least;
        // Its text is ASCII, and tokens get no fewer as it grows.
        let fits = |end: &usize| {
            let cut = Ask { prompt: ask.prompt[..*end].to_owned(), ..ask.clone() };
            tokens.prompt(&cut).is_ok_and(|prompt| prompt.len() <= length)
        };
        let ends: Vec<usize> = (1..=ask.prompt.len()).collect();
        let end = ends.partition_point(fits);
        ask.prompt.truncate(end);
        ask
    };
    Ok(prompts(shape, seed).into_iter().enumerate().map(question).collect())
}

/// Tells the lengths, and checks them against what was asked for.
pub fn check_lengths(
    findings: &mut Findings,
    name: &str,
    lengths: &[usize],
    (shortest, longest): (usize, usize),
    more: Option<Lengths>,
) {
    let mut sorted = lengths.to_vec();
    sorted.sort_unstable();
    let (Some(&least), Some(&most)) = (sorted.first(), sorted.last()) else {
        return findings.failure(format!("{name}: no prompts"));
    };
    let mean = sorted.iter().sum::<usize>() as f64 / sorted.len() as f64;
    let distance = distance(&sorted, shortest, longest);
    let deciles: Vec<String> = (1..10).map(|tenth| sorted[sorted.len() * tenth / 10].to_string()).collect();
    findings.figure(
        format!("{name}: tokens of a prompt"),
        format!("{least} to {most}, mean {mean:.0}, tenths {}; {distance:.3} from log-uniform", deciles.join(" ")),
    );
    let limit = DISTANCE_MAX / (sorted.len() as f64).sqrt();
    findings.check(distance <= limit, format!("{name}: lengths are {distance:.3} > {limit:.3} from log-uniform"));
    findings.check(
        least == shortest && most <= longest && most >= longest * 7 / 8,
        format!("{name}: {least} to {most} tokens, not {shortest} to {longest}"),
    );
    if let Some(Lengths { mean_max, above: (count, tokens) }) = more {
        let above = sorted.iter().filter(|&&length| length > tokens).count();
        findings.figure(format!("{name}: prompts above {tokens} tokens"), above);
        findings.check(above >= count, format!("{name}: {above} prompts have more than {tokens} tokens, not {count}"));
        findings.check(mean <= mean_max, format!("{name}: prompts have {mean:.0} > {mean_max} tokens on average"));
    }
}

/// Largest difference between the share of lengths up to some length and that of a log-uniform one, rounded to tokens.
fn distance(sorted: &[usize], shortest: usize, longest: usize) -> f64 {
    let (from, to) = ((shortest as f64).ln(), (longest as f64).ln());
    let mut largest: f64 = 0.0;
    for length in shortest..=longest {
        let share = sorted.partition_point(|&other| other <= length) as f64 / sorted.len() as f64;
        let expected = (((length as f64 + 0.5).ln() - from) / (to - from)).min(1.0);
        largest = largest.max((share - expected).abs());
    }
    largest
}

/// Tells how many questions there are of each kind; `all` demands that none is missing.
pub fn check_kinds(findings: &mut Findings, name: &str, asks: &[Ask], shape: &Shape, all: bool) {
    let count = |of: &dyn Fn(&Ask) -> bool| asks.iter().filter(|&ask| of(ask)).count();
    let greedy = |ask: &Ask| ask.sampling.temperature == 0.0;
    let kinds = [
        ("chat greedy", count(&|ask| ask.chat && greedy(ask))),
        ("chat seeded", count(&|ask| ask.chat && !greedy(ask))),
        ("plain greedy", count(&|ask| !ask.chat && greedy(ask))),
        ("plain seeded", count(&|ask| !ask.chat && !greedy(ask))),
        // Of some, a part of the prefix was cut away.
        ("sharing a prefix", sharing(asks, shared_words(shape) / 2)),
    ];
    let options = [
        ("top_k", count(&|ask| ask.sampling.top_k.is_some())),
        ("top_p", count(&|ask| ask.sampling.top_p.is_some())),
        ("min_p", count(&|ask| ask.sampling.min_p.is_some())),
        ("repetition_penalty", count(&|ask| ask.sampling.repetition_penalty.is_some())),
        ("presence_penalty", count(&|ask| ask.sampling.presence_penalty.is_some())),
        ("frequency_penalty", count(&|ask| ask.sampling.frequency_penalty.is_some())),
    ];
    for (title, counts, share_min) in [("questions", &kinds[..], 20), ("seeded sampling with", &options[..], 40)] {
        let told: Vec<String> = counts.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        findings.figure(format!("{name}: {title}"), told.join(", "));
        for (kind, count) in counts.iter().filter(|_| all) {
            let least = asks.len() / share_min;
            findings
                .check(*count >= least, format!("{name}: {count} questions are {kind}, at least {least} are wanted"));
        }
    }
}

/// How many begin with the same words as another of their kind, chat or plain.
fn sharing(asks: &[Ask], words: usize) -> usize {
    let mut heads: HashMap<(bool, Vec<&str>), usize> = HashMap::new();
    for ask in asks {
        let head: Vec<&str> = ask.prompt.split_whitespace().take(words).collect();
        if head.len() == words {
            *heads.entry((ask.chat, head)).or_default() += 1;
        }
    }
    heads.into_values().filter(|&count| count > 1).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { count: 200, words: (1, 3_000), long: 0, max_tokens: 32 };
    const MORE: Lengths = Lengths { mean_max: 400.0, above: (5, 2_000) };

    fn failures(lengths: &[usize]) -> Vec<String> {
        let mut findings = Findings::default();
        check_lengths(&mut findings, "test", lengths, SHAPE.words, Some(MORE));
        findings.failures
    }

    #[test]
    fn a_prompt_has_as_many_tokens_as_it_had_words_and_every_kind_is_there() {
        let tokens = Tokens::of("mock").unwrap();
        for seed in 0..3 {
            let asks = questions(&SHAPE, seed, &tokens).unwrap();
            let lengths: Vec<usize> = asks.iter().map(|ask| tokens.prompt(ask).unwrap().len()).collect();
            assert_eq!(failures(&lengths), [""; 0]);
            let mut findings = Findings::default();
            // A token of the mock is a letter, and the shared prefix has less room.
            let shape = Shape { words: (1, 600), ..SHAPE };
            check_kinds(&mut findings, "test", &asks, &shape, true);
            assert_eq!(findings.failures, [""; 0]);
        }
    }

    #[test]
    fn lengths_that_are_not_as_promised_are_told() {
        let good: Vec<usize> = (0..200).map(|i| 3_000f64.powf((f64::from(i) + 0.5) / 200.0).round() as usize).collect();
        assert_eq!(failures(&good), [""; 0]);
        let changed = |change: fn(usize) -> usize| failures(&good.iter().map(|&l| change(l)).collect::<Vec<_>>()).len();
        assert!(changed(|l| l.max(3)) > 0, "none of one token");
        assert!(changed(|l| l.min(2_000)) > 0, "none is long");
        assert!(changed(|l| if l > 1_000 { 3_000 } else { l }) > 0, "too long on average");
        assert!(changed(|l| if (8..300).contains(&l) { 300 } else { l }) > 0, "none between");
        assert!(changed(|l| l + 1) > 0, "one token more than asked for");
    }

    #[test]
    fn a_kind_that_is_missing_is_told() {
        let tokens = Tokens::of("mock").unwrap();
        let asks = questions(&SHAPE, 1, &tokens).unwrap();
        let failures = |change: fn(&mut Ask)| {
            let mut asks = asks.clone();
            asks.iter_mut().for_each(change);
            let mut findings = Findings::default();
            check_kinds(&mut findings, "test", &asks, &Shape { words: (1, 600), ..SHAPE }, true);
            findings.failures.len()
        };
        assert_eq!(failures(|_| {}), 0);
        assert_eq!(failures(|ask| ask.chat = false), 2);
        assert_eq!(failures(|ask| ask.sampling.temperature = 0.0), 2);
        assert_eq!(failures(|ask| ask.sampling.min_p = None), 1);
        assert_eq!(failures(|ask| ask.prompt.insert_str(0, &format!("{} ", ask.sampling.seed))), 1);
    }
}
