//! Interleaved comparison: contenders take turns in rounds, what is compared is compared within a round, and rounds that
//! the rest of the machine disturbed do not count.
//!
//! On a shared machine the speed of one run says little: the same cell differs by half from minute to minute. The ratio
//! of two runs that follow each other at once says much more, and the median of many such ratios does not care about the
//! few that went wrong. The interval around it comes from order statistics alone: no distribution is assumed.

use serde::{Deserialize, Serialize};

/// Run-queue waiting above a contender's lower quartile from which on a round is called disturbed, in threads: so many more
/// threads than on a calm turn stood in the queue, on the average of the turn.
pub const WAITING_EXCESS_MAX: f64 = 0.25;

/// How many attempts a comparison may take for each round that is to count.
const ATTEMPTS_A_ROUND: usize = 3;

/// A median and the interval that covers the true one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Median of the samples.
    pub median: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Probability that the interval covers the true median.
    pub coverage: f64,
    /// Number of samples.
    pub samples: usize,
}

impl std::fmt::Display for Interval {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.3} [{:.3}, {:.3}]", self.median, self.low, self.high)
    }
}

/// How often intervals like these cover the true median, at least: `96 %` with nine samples, `75 %` with three.
#[must_use]
pub fn coverage(intervals: impl IntoIterator<Item = Interval>) -> String {
    let least = intervals.into_iter().map(|i| i.coverage).fold(1.0, f64::min);
    format!("{:.0} %", (least * 100.0).floor())
}

/// Median with its interval of at least `confidence`: the narrowest pair of order statistics, equally far from both
/// ends, that covers the true median so often (binomial with p = ½; Conover, Practical Nonparametric Statistics, §3.2).
/// With too few samples for that the interval is the whole range, and `coverage` says how little it is worth.
#[must_use]
pub fn median_interval(samples: &[f64], confidence: f64) -> Option<Interval> {
    let mut sorted: Vec<f64> = samples.iter().copied().filter(|x| x.is_finite()).collect();
    if sorted.is_empty() || sorted.len() != samples.len() {
        return None;
    }
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    let median = (sorted[(n - 1) / 2] + sorted[n / 2]) / 2.0;
    // P(the k-th smallest lies above the true median) = P(Binomial(n, ½) < k), the same from above.
    let mut term = 0.5f64.powi(i32::try_from(n).ok()?);
    let mut below = term;
    let mut best = (0, 1.0 - 2.0 * below);
    for k in 1..n / 2 {
        term *= (n - k + 1) as f64 / k as f64;
        below += term;
        let coverage = 1.0 - 2.0 * below;
        if coverage < confidence {
            break;
        }
        best = (k, coverage);
    }
    let (k, coverage) = best;
    Some(Interval { median, low: sorted[k], high: sorted[n - 1 - k], coverage: coverage.max(0.0), samples: n })
}

/// What a contender's turn brought.
pub trait Turn {
    /// Threads of the contender that were ready to run and had no core, on average.
    fn waiting(&self) -> f64;
}

/// A turn that does work in some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measure {
    /// Work done: bytes, tokens, whatever the bench counts.
    pub work: f64,
    /// How long it took.
    pub seconds: f64,
    /// CPU time of all processes concerned.
    pub cpu_seconds: f64,
    /// Time that their threads were ready to run and had no core.
    pub delay_seconds: f64,
}

impl Measure {
    /// Work a second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.work / self.seconds
    }

    /// CPU-seconds a unit of work.
    #[must_use]
    pub fn cost(&self) -> f64 {
        self.cpu_seconds / self.work
    }
}

impl Turn for Measure {
    fn waiting(&self) -> f64 {
        self.delay_seconds / self.seconds
    }
}

/// The rounds of a comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Rounds<T> {
    /// Rounds that count; each has one turn a contender, in the contenders' order.
    pub kept: Vec<Vec<T>>,
    /// Rounds that were thrown away because of excess run-queue delay.
    pub discarded: usize,
}

/// Order of the contenders in a round: A B C, then C B A, so that drift and what one leaves behind harm both ways.
#[must_use]
pub fn turns(round: usize, contenders: usize) -> Vec<usize> {
    let forward = 0..contenders;
    if round.is_multiple_of(2) { forward.collect() } else { forward.rev().collect() }
}

/// Which rounds were calm: every contender's waiting at most [`WAITING_EXCESS_MAX`] above the lower quartile of its own
/// rounds. What a contender's threads always make each other wait is part of it and no disturbance; how much that is,
/// reports show. Where no round is calm for all, the one that comes nearest counts: there is a figure then, of one
/// sample, and it says so.
#[must_use]
pub fn calm<T: Turn>(rounds: &[Vec<T>]) -> Vec<bool> {
    let contenders = rounds.first().map_or(0, Vec::len);
    let usual = |c: usize| {
        let mut waiting: Vec<f64> = rounds.iter().map(|round| round[c].waiting()).collect();
        waiting.sort_by(f64::total_cmp);
        waiting[(rounds.len() - 1) / 4]
    };
    let usual: Vec<f64> = (0..contenders).map(usual).collect();
    let excess: Vec<f64> = rounds
        .iter()
        .map(|round| round.iter().zip(&usual).map(|(turn, usual)| turn.waiting() - usual).fold(0.0, f64::max))
        .collect();
    let limit = excess.iter().copied().fold(f64::INFINITY, f64::min).max(WAITING_EXCESS_MAX);
    excess.into_iter().map(|excess| excess <= limit).collect()
}

/// Lets `contenders` take turns until `wanted` rounds are calm, or three times as many were tried.
///
/// `turn` gets the contender's number and the round's.
///
/// # Errors
/// The first error of a turn.
pub fn interleave<T: Turn, E>(
    contenders: usize,
    wanted: usize,
    mut turn: impl FnMut(usize, usize) -> Result<T, E>,
) -> Result<Rounds<T>, E> {
    let mut rounds: Vec<Vec<T>> = Vec::new();
    loop {
        let order = turns(rounds.len(), contenders);
        let mut round = order
            .iter()
            .map(|&contender| Ok((contender, turn(contender, rounds.len())?)))
            .collect::<Result<Vec<_>, E>>()?;
        round.sort_by_key(|&(contender, _)| contender);
        rounds.push(round.into_iter().map(|(_, turn)| turn).collect());
        let calm = calm(&rounds);
        let kept = calm.iter().filter(|&&c| c).count();
        if kept >= wanted || rounds.len() >= wanted * ATTEMPTS_A_ROUND {
            let discarded = rounds.len() - kept;
            let kept = rounds.into_iter().zip(calm).filter_map(|(round, calm)| calm.then_some(round)).collect();
            return Ok(Rounds { kept, discarded });
        }
    }
}

impl<T> Rounds<T> {
    /// Median of a figure of one contender.
    pub fn median(&self, contender: usize, figure: impl Fn(&T) -> f64) -> Option<Interval> {
        let samples: Vec<f64> = self.kept.iter().map(|round| figure(&round[contender])).collect();
        median_interval(&samples, 0.95)
    }

    /// Median of the same-round ratios of a figure: contender `of` to contender `to`.
    pub fn ratio(&self, of: usize, to: usize, figure: impl Fn(&T) -> f64) -> Option<Interval> {
        let samples: Vec<f64> = self.kept.iter().map(|round| figure(&round[of]) / figure(&round[to])).collect();
        median_interval(&samples, 0.95)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measure(seconds: f64, delay_seconds: f64) -> Measure {
        Measure { work: 1.0, seconds, cpu_seconds: seconds, delay_seconds }
    }

    #[test]
    fn the_interval_is_the_textbook_pair_of_order_statistics() {
        // Ranks for 95 %: n = 6 → 1 and 6 (0.969), 9 → 2 and 8 (0.961), 15 → 4 and 12 (0.965), 20 → 6 and 15 (0.959).
        for (n, rank, coverage) in [(6usize, 1usize, 0.969), (9, 2, 0.961), (15, 4, 0.965), (20, 6, 0.959)] {
            let samples: Vec<f64> = (1..=n).rev().map(|x| x as f64).collect();
            let interval = median_interval(&samples, 0.95).unwrap();
            assert_eq!((interval.low, interval.high), (rank as f64, (n + 1 - rank) as f64), "n = {n}");
            assert!((interval.coverage - coverage).abs() < 5e-4, "n = {n}: {}", interval.coverage);
            assert_eq!(interval.median, (n as f64 + 1.0) / 2.0);
        }
    }

    #[test]
    fn the_least_coverage_heads_a_table() {
        let of = |n: usize| median_interval(&vec![1.0; n], 0.95).unwrap();
        assert_eq!(coverage([of(9), of(20)]), "95 %");
        assert_eq!(coverage([of(9), of(3)]), "75 %");
        assert_eq!(coverage([of(1)]), "0 %");
    }

    #[test]
    fn few_samples_give_their_range_and_say_what_it_is_worth() {
        let interval = median_interval(&[3.0, 1.0, 2.0], 0.95).unwrap();
        assert_eq!((interval.low, interval.median, interval.high), (1.0, 2.0, 3.0));
        assert!((interval.coverage - 0.75).abs() < 1e-9);
        assert_eq!(median_interval(&[5.0], 0.95).unwrap().coverage, 0.0);
        assert_eq!(median_interval(&[], 0.95), None);
        assert_eq!(median_interval(&[1.0, f64::NAN], 0.95), None);
    }

    #[test]
    fn the_interval_covers_the_true_median_as_often_as_it_says() {
        // 4,000 sets of 9 uniform samples of a small generator; 0.961 ± 3 standard errors.
        let mut state = 1u64;
        let mut uniform = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1u64 << 53) as f64
        };
        let sets = 4_000;
        let covered = (0..sets)
            .filter(|_| {
                let samples: Vec<f64> = (0..9).map(|_| uniform()).collect();
                let i = median_interval(&samples, 0.95).unwrap();
                i.low <= 0.5 && 0.5 <= i.high
            })
            .count();
        let share = covered as f64 / f64::from(sets);
        assert!((share - 0.961).abs() < 0.0092, "{share}");
    }

    #[test]
    fn turns_alternate() {
        assert_eq!(turns(0, 3), [0, 1, 2]);
        assert_eq!(turns(1, 3), [2, 1, 0]);
    }

    #[test]
    fn a_disturbed_round_is_replaced_and_counted() {
        let mut order = Vec::new();
        let rounds = interleave::<_, ()>(2, 4, |contender, round| {
            order.push(contender);
            // Contender 1 always has half a thread waiting: its own; in rounds 1 and 3 somebody else's besides.
            let own = if contender == 1 { 0.5 } else { 0.0 };
            let disturbed = if round == 1 || round == 3 { 0.4 } else { 0.0 };
            Ok(measure(1.0 + contender as f64, (own + disturbed) * (1.0 + contender as f64)))
        })
        .unwrap();
        assert_eq!((rounds.kept.len(), rounds.discarded), (4, 2));
        assert_eq!(order[..4], [0, 1, 1, 0]);
        let ratio = rounds.ratio(1, 0, |m| m.seconds).unwrap();
        assert_eq!((ratio.median, ratio.samples), (2.0, 4));
    }

    #[test]
    fn where_no_round_is_calm_for_all_the_nearest_counts() {
        let waiting = |a: f64, b: f64| vec![measure(1.0, a), measure(1.0, b)];
        let rounds = [waiting(0.0, 1.0), waiting(0.0, 1.3), waiting(0.3, 0.0), waiting(1.0, 0.0)];
        assert_eq!(calm(&rounds), [false, false, true, false]);
    }

    #[test]
    fn a_machine_that_never_calms_down_ends_the_comparison_all_the_same() {
        let rounds = interleave::<_, ()>(1, 5, |_, round| Ok(measure(1.0, round as f64))).unwrap();
        assert_eq!((rounds.kept.len(), rounds.discarded), (4, 11));
        assert_eq!(interleave(1, 1, |_, _| Err::<Measure, _>("broken")).unwrap_err(), "broken");
    }
}
