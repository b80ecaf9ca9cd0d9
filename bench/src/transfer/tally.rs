//! Statistics of a sweep: distributions that travel between processes, fairness, and throughput over time.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Time between two points of a timeline.
pub const STEP: Duration = Duration::from_millis(100);

/// A distribution of times, exact to three digits.
#[derive(Clone, Debug)]
pub struct Times(Histogram<u64>);

/// What of a distribution is told to people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// Median, in microseconds.
    pub p50_us: f64,
    /// 99 of 100 are no longer.
    pub p99_us: f64,
    /// 999 of 1000 are no longer; with fewer samples the longest.
    pub p999_us: f64,
    /// The longest.
    pub max_us: f64,
    /// How many there were.
    pub samples: u64,
}

impl Default for Times {
    fn default() -> Self {
        let longest = 3_600_000_000_000;
        // Bounds that the library takes: one hour in nanoseconds.
        #[expect(clippy::expect_used, reason = "constants")]
        Self(Histogram::new_with_bounds(1, longest, 3).expect("valid bounds"))
    }
}

impl Times {
    /// One more; an hour at most is told apart.
    pub fn record(&mut self, time: Duration) {
        self.0.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// All of another one as well.
    pub fn add(&mut self, other: &Self) {
        // Of the same bounds: it cannot be too narrow.
        let _ = self.0.add(&other.0);
    }

    /// Percentiles; zeros where nothing was recorded.
    #[must_use]
    pub fn percentiles(&self) -> Percentiles {
        let at = |quantile: f64| self.0.value_at_quantile(quantile) as f64 / 1e3;
        Percentiles {
            p50_us: at(0.5),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: self.0.max() as f64 / 1e3,
            samples: self.0.len(),
        }
    }
}

/// Value and count of what was recorded: few pairs, whatever the number of samples.
impl Serialize for Times {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter_recorded().map(|v| (v.value_iterated_to(), v.count_at_value())))
    }
}

impl<'de> Deserialize<'de> for Times {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut times = Self::default();
        for (value, count) in Vec::<(u64, u64)>::deserialize(deserializer)? {
            times.0.saturating_record_n(value, count);
        }
        Ok(times)
    }
}

/// Jain's index of fairness, (Σx)² / (n·Σx²): 1 where all have the same, 1/n where one has all (Jain, Chiu and Hawe, DEC-TR-301,
/// 1984). `None` of nothing.
#[must_use]
pub fn jain(shares: &[f64]) -> Option<f64> {
    let (sum, squares) = shares.iter().fold((0.0, 0.0), |(sum, squares), x| (sum + x, squares + x * x));
    (squares > 0.0).then(|| sum * sum / (shares.len() as f64 * squares))
}

/// Something that was done to the bench while it ran.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Seconds since the measured time began.
    pub at_s: f64,
    /// What.
    pub what: String,
}

/// Throughput over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Timeline {
    /// Seconds of a step.
    pub step_s: f64,
    /// GB/s in each step, all flows together.
    pub gb_per_s: Vec<f64>,
    /// What was done to it.
    pub events: Vec<Event>,
}

/// What an event did to the throughput.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dip {
    /// Mean of the second before it, GB/s.
    pub before: f64,
    /// The least step after it, until the next event, GB/s.
    pub least: f64,
    /// Seconds in which it was below half of what it was before, until the next event.
    pub below_half_s: f64,
    /// Mean of the last second, or half of the time if that is less, before the next event or the end, GB/s.
    pub after: f64,
}

impl Timeline {
    /// Sums what members counted, each since its own start: bytes at the end of each step.
    #[must_use]
    pub fn sum(members: &[Vec<u64>], events: Vec<Event>) -> Self {
        let steps = members.iter().map(Vec::len).max().unwrap_or(0);
        // Who has ended counts no further.
        let at = |counted: &Vec<u64>, step: usize| counted.get(step).or(counted.last()).copied().unwrap_or(0);
        let total = |step| members.iter().map(|counted| at(counted, step)).sum::<u64>();
        let rate = |step: usize| {
            let before = if step == 0 { 0 } else { total(step - 1) };
            total(step).saturating_sub(before) as f64 / STEP.as_secs_f64() / 1e9
        };
        Self { step_s: STEP.as_secs_f64(), gb_per_s: (0..steps).map(rate).collect(), events }
    }

    /// What the event with this number did.
    #[must_use]
    pub fn dip(&self, event: usize) -> Option<Dip> {
        let step = |seconds: f64| ((seconds / self.step_s) as usize).min(self.gb_per_s.len());
        let at = step(self.events.get(event)?.at_s);
        let end = self.events.get(event + 1).map_or(self.gb_per_s.len(), |next| step(next.at_s));
        let second = (1.0 / self.step_s).round() as usize;
        let mean = |steps: &[f64]| steps.iter().sum::<f64>() / steps.len().max(1) as f64;
        let before = mean(self.gb_per_s.get(at.saturating_sub(second)..at)?);
        // The step in which it fell is partly before it.
        let since = self.gb_per_s.get((at + 1).min(end)..end).filter(|since| !since.is_empty())?;
        Some(Dip {
            before,
            least: since.iter().copied().fold(f64::INFINITY, f64::min),
            below_half_s: since.iter().filter(|rate| **rate < before / 2.0).count() as f64 * self.step_s,
            after: mean(&since[since.len() - second.min(since.len().div_ceil(2))..]),
        })
    }

    /// One character a step, as high as its throughput.
    #[must_use]
    pub fn sparkline(&self) -> String {
        const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        let top = self.gb_per_s.iter().copied().fold(0.0, f64::max);
        let bar = |rate: &f64| if *rate <= 0.0 { ' ' } else { BARS[((rate / top * 8.0) as usize).min(7)] };
        self.gb_per_s.iter().map(bar).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(micros: impl Iterator<Item = u64>) -> Times {
        let mut times = Times::default();
        micros.for_each(|us| times.record(Duration::from_micros(us)));
        times
    }

    #[test]
    fn percentiles_are_right_to_three_digits() {
        let told = times(1..=10_000).percentiles();
        for (is, should) in [(told.p50_us, 5_000.0), (told.p99_us, 9_900.0), (told.p999_us, 9_990.0)] {
            assert!((is / should - 1.0f64).abs() < 0.002, "{is} for {should}");
        }
        assert_eq!(told.samples, 10_000);
        assert_eq!(Times::default().percentiles(), Percentiles::default());
    }

    #[test]
    fn a_distribution_survives_the_way_to_another_process_and_adds_up() {
        let text = serde_json::to_string(&times(1..=500)).unwrap();
        let mut both: Times = serde_json::from_str(&text).unwrap();
        both.add(&times(501..=1000));
        let told = both.percentiles();
        assert!(told.samples == 1000 && (told.p50_us / 500.0 - 1.0).abs() < 0.002, "{told:?}");
        assert!(serde_json::from_str::<Times>("[[1]]").is_err());
    }

    #[test]
    fn jain_is_one_for_equals_and_a_part_for_one_that_has_all() {
        assert_eq!(jain(&[3.0; 4]), Some(1.0));
        assert_eq!(jain(&[1.0, 0.0, 0.0, 0.0]), Some(0.25));
        assert_eq!(jain(&[2.0, 1.0]), Some(0.9));
        assert_eq!(jain(&[]), None);
        assert_eq!(jain(&[0.0, 0.0]), None);
    }

    #[test]
    fn a_timeline_is_the_sum_of_what_members_counted() {
        let timeline = Timeline::sum(&[vec![100_000_000, 300_000_000], vec![50_000_000]], Vec::new());
        assert_eq!(timeline.gb_per_s.len(), 2);
        assert!((timeline.gb_per_s[0] - 1.5).abs() < 1e-9 && (timeline.gb_per_s[1] - 2.0).abs() < 1e-9, "{timeline:?}");
        assert_eq!(timeline.sparkline().chars().count(), 2);
        assert!(Timeline::sum(&[], Vec::new()).gb_per_s.is_empty());
    }

    #[test]
    fn a_dip_is_how_deep_how_long_and_what_came_back() {
        let mut gb_per_s = vec![2.0; 40];
        gb_per_s[21..26].fill(0.5);
        gb_per_s[23] = 0.0;
        gb_per_s[26..].fill(1.0);
        let event = |at_s| Event { at_s, what: String::new() };
        let timeline = Timeline { step_s: 0.1, gb_per_s, events: vec![event(2.0), event(3.95)] };
        let dip = timeline.dip(0).unwrap();
        assert!((dip.before - 2.0).abs() < 1e-9 && dip.least == 0.0 && (dip.after - 1.0).abs() < 1e-9, "{dip:?}");
        assert!((dip.below_half_s - 0.5).abs() < 1e-9, "{dip:?}");
        assert_eq!(timeline.dip(1), None, "nothing came after it");
        assert_eq!(timeline.dip(2), None);
        assert_eq!(timeline.sparkline().chars().nth(23), Some(' '));
    }
}
