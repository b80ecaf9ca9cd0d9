//! How many rows (tokens) a step may run so that it stays within a target time. Pure.
//!
//! A forward step costs a fixed part (streaming the weights) and a part for each row. Both are learned by exponentially
//! weighted linear regression of step time on rows; where all steps had the same size the slope is unknown and the time
//! is charged to the rows, which errs to smaller steps.

use std::time::Duration;

/// Weight of the newest step.
const ALPHA: f64 = 0.05;

/// The learned cost of a step.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    /// Weighted means of rows, seconds, rows², rows × seconds; `None` before the first step.
    means: Option<[f64; 4]>,
}

impl Pace {
    /// Learns from one step.
    pub fn observe(&mut self, rows: u32, took: Duration) {
        if rows == 0 {
            return;
        }
        let (rows, seconds) = (f64::from(rows), took.as_secs_f64());
        let sample = [rows, seconds, rows * rows, rows * seconds];
        match &mut self.means {
            None => self.means = Some(sample),
            Some(means) => means.iter_mut().zip(sample).for_each(|(m, s)| *m += ALPHA * (s - *m)),
        }
    }

    /// Most rows of a step that stays within `target`: at least one, `max` while nothing is known.
    #[must_use]
    pub fn rows_within(&self, target: Duration, max: u32) -> u32 {
        let Some((fixed, row)) = self.cost() else { return max };
        let rows = (target.as_secs_f64() - fixed) / row.max(1e-9);
        (rows as u32).clamp(1, max)
    }

    /// (fixed, for each row) in seconds.
    fn cost(&self) -> Option<(f64, f64)> {
        let [rows, seconds, rows2, rows_seconds] = self.means?;
        let variance = rows2 - rows * rows;
        // Below a hundredth of a row's spread the slope is noise.
        if variance < 1e-2 {
            return Some((0.0, seconds / rows));
        }
        let slope = ((rows_seconds - rows * seconds) / variance).clamp(0.0, seconds / rows);
        Some(((seconds - slope * rows).max(0.0), slope))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taught(fixed_ms: f64, row_ms: f64, sizes: &[u32]) -> Pace {
        let mut pace = Pace::default();
        for &rows in sizes.iter().cycle().take(400) {
            pace.observe(rows, Duration::from_secs_f64((fixed_ms + row_ms * f64::from(rows)) / 1e3));
        }
        pace
    }

    #[test]
    fn learns_both_parts_of_a_linear_cost() {
        let pace = taught(10.0, 0.5, &[1, 4, 16, 64]);
        assert_eq!(pace.rows_within(Duration::from_millis(30), 1000), 40);
        assert_eq!(pace.rows_within(Duration::from_millis(5), 1000), 1, "one row always runs");
        assert_eq!(pace.rows_within(Duration::from_secs(10), 256), 256);
    }

    #[test]
    fn steps_of_one_size_err_to_smaller_ones() {
        let pace = taught(10.0, 0.5, &[20]);
        let rows = pace.rows_within(Duration::from_millis(30), 1000);
        assert!((20..=40).contains(&rows), "{rows}");
        assert_eq!(Pace::default().rows_within(Duration::from_millis(1), 7), 7, "nothing known yet");
    }

    #[test]
    fn falling_times_with_size_do_not_turn_the_slope_around() {
        let mut pace = Pace::default();
        for i in 0..100 {
            pace.observe(1 + i % 8, Duration::from_millis(u64::from(20 - i % 8)));
        }
        assert!(pace.rows_within(Duration::from_millis(40), 64) >= 1);
    }
}
