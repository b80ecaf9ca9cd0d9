//! Prompts for the suites: reproducible English-like text of given lengths, some of it sharing prefixes.

use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use crate::answer::{Ask, Sampling};

const WORDS: &[&str] = &[
    "the",
    "river",
    "carries",
    "small",
    "boats",
    "past",
    "old",
    "houses",
    "and",
    "people",
    "who",
    "watch",
    "from",
    "their",
    "windows",
    "every",
    "morning",
    "a",
    "teacher",
    "asks",
    "why",
    "water",
    "is",
    "clear",
    "near",
    "stones",
    "children",
    "answer",
    "with",
    "many",
    "ideas",
    "some",
    "of",
    "them",
    "true",
    "others",
    "only",
    "funny",
    "in",
    "1998",
    "engineers",
    "built",
    "bridge",
    "that",
    "still",
    "stands",
    "because",
    "steel",
    "was",
    "cheap",
    "then",
    "numbers",
    "like",
    "42",
    "or",
    "7",
    "appear",
    "on",
    "every",
    "page",
    "of",
    "this",
    "book",
    "about",
    "light",
    "sound",
    "heat",
    "how",
    "far",
    "can",
    "voice",
    "travel",
    "over",
    "snow",
    "before",
    "it",
    "fades",
    "write",
    "list",
    "three",
    "reasons",
    "code",
    "prints",
    "results",
    "while",
    "memory",
    "fills",
    "slowly",
    "winter",
    "market",
    "sells",
    "bread",
    "apples",
    "cheese",
    "music",
    "plays",
    "behind",
    "closed",
    "doors",
    "language",
    "changes",
    "each",
    "year",
    "new",
    "words",
];

/// What a set of prompts looks like.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// How many.
    pub count: usize,
    /// Shortest and longest, in words; lengths are log-uniform between them.
    pub words: (usize, usize),
    /// How many have at least nine tenths of the longest length.
    pub long: usize,
    /// Output tokens at most; each prompt asks for 1 to this many.
    pub max_tokens: u32,
}

/// Makes the prompts: half chat, half plain; half greedy, half sampled with a seed; two in five share one of five prefixes.
#[must_use]
pub fn prompts(shape: &Shape, seed: u64) -> Vec<Ask> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let shared = shared_words(shape);
    let prefixes: Vec<String> = (0..5).map(|_| text(&mut rng, shared)).collect();
    let prompt = |(i, words): (usize, usize)| {
        let prompt = if rng.random_range(0..5) < 2 && words > shared {
            let prefix = &prefixes[rng.random_range(0..prefixes.len())];
            format!("{prefix} {}", text(&mut rng, words - shared))
        } else {
            text(&mut rng, words)
        };
        Ask {
            prompt,
            // In turns, so that a few prompts are of every kind already.
            chat: i / 2 % 2 == 0,
            max_tokens: rng.random_range(1..=shape.max_tokens),
            sampling: sampling(&mut rng, i % 2 == 0),
            ignore_eos: rng.random_bool(0.5),
        }
    };
    lengths(shape, seed).into_iter().enumerate().map(prompt).collect()
}

/// Words of a shared prefix.
#[must_use]
pub fn shared_words(shape: &Shape) -> usize {
    (shape.words.1 / 10).max(2)
}

/// One length out of each of as many equal parts of the logarithmic scale as there are prompts, in no order, after the
/// long ones.
fn lengths(shape: &Shape, seed: u64) -> Vec<usize> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let (shortest, longest) = shape.words;
    let (from, to) = ((shortest as f64).ln(), (longest as f64).ln());
    let parts = shape.count.saturating_sub(shape.long);
    let in_part = |part: usize| {
        let share = (part as f64 + rng.random_range(0.0..1.0)) / parts as f64;
        (from + share * (to - from)).exp().round() as usize
    };
    let mut spread: Vec<usize> = (0..parts).map(in_part).collect();
    spread.shuffle(&mut rng);
    let long = (0..shape.long.min(shape.count)).map(|_| rng.random_range(longest * 9 / 10..=longest));
    long.collect::<Vec<_>>().into_iter().chain(spread).collect()
}

/// Greedy, or some of all that changes which tokens may be drawn and how likely each is.
fn sampling(rng: &mut SmallRng, greedy: bool) -> Sampling {
    let seed = rng.random_range(0..1 << 40);
    if greedy {
        return Sampling { seed, ..Sampling::default() };
    }
    let mut sometimes = |range: std::ops::Range<f64>| rng.random_bool(0.4).then(|| rng.random_range(range));
    Sampling {
        top_k: sometimes(2.0..80.0).map(|k| k as u32),
        top_p: sometimes(0.5..1.0),
        min_p: sometimes(0.01..0.2),
        repetition_penalty: sometimes(0.9..1.5),
        presence_penalty: sometimes(-0.5..1.0),
        frequency_penalty: sometimes(-0.5..1.0),
        temperature: rng.random_range(0.5..1.2),
        seed,
    }
}

/// `words` words of text.
pub fn text(rng: &mut SmallRng, words: usize) -> String {
    let mut out = String::new();
    for i in 0..words.max(1) {
        if i > 0 {
            out.push(if rng.random_range(0..12) == 0 { '\n' } else { ' ' });
        }
        out.push_str(WORDS[rng.random_range(0..WORDS.len())]);
        if rng.random_range(0..9) == 0 {
            out.push('.');
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { count: 100, words: (1, 500), long: 5, max_tokens: 32 };

    #[test]
    fn a_seed_gives_the_same_prompts_and_another_gives_others() {
        let of = |seed| prompts(&SHAPE, seed).into_iter().map(|a| (a.prompt, a.sampling.seed)).collect::<Vec<_>>();
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
    }

    #[test]
    fn lengths_and_kinds_are_as_promised() {
        let all = prompts(&SHAPE, 3);
        let words = |a: &Ask| a.prompt.split_whitespace().count();
        assert!(all.iter().all(|a| (1..=500).contains(&words(a)) && (1..=32).contains(&a.max_tokens)));
        assert!(all.iter().filter(|a| words(a) >= 450).count() >= 5);
        assert!(all.iter().filter(|a| words(a) < 20).count() > 20, "log-uniform: many are short");
        let mut heads: Vec<_> = all.iter().filter_map(|a| a.prompt.get(..60)).collect();
        heads.sort_unstable();
        assert!(heads.windows(2).any(|w| w[0] == w[1]), "some share a prefix");
        for (chat, greedy) in [(true, true), (true, false), (false, true), (false, false)] {
            let kind = |a: &&Ask| (a.chat, a.sampling.temperature == 0.0) == (chat, greedy);
            assert_eq!(all.iter().filter(kind).count(), 25, "chat: {chat}, greedy: {greedy}");
        }
    }
}
