//! Bytes in flight on one path, by delay: additive up while slices arrive within the target, multiplicative down when later
//! (Swift, SIGCOMM 2020, §3: the same rule at slice granularity, without its scaling by hops).

use std::time::Duration;

use super::Time;
use super::time::nanos;

/// Share of the excess delay that is taken off, and the most that one decrease takes (Swift's beta and max mdf).
const BETA: f64 = 0.8;
const DECREASE_MAX: f64 = 0.5;

/// Delay-based window of one path.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    bytes: f64,
    min: f64,
    max: f64,
    decreased_at: Time,
}

impl Window {
    pub(crate) fn new(start: u64, min: u64, max: u64) -> Self {
        let (min, max) = (min.max(1) as f64, max.max(1) as f64);
        let max = max.max(min);
        Self { bytes: (start as f64).clamp(min, max), min, max, decreased_at: Time(0) }
    }

    /// It is no smaller from the next slice that lands on.
    pub(crate) fn set_floor(&mut self, min: u64) {
        self.min = (min.max(1) as f64).min(self.max);
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// A slice of `bytes` landed after `delay`. `step` is what a whole window in time adds; `filled`: the window, not a lack of
    /// work, bounded what was in flight (an unused window does not grow).
    pub(crate) fn on_landed(
        &mut self,
        bytes: u64,
        delay: Duration,
        target: Duration,
        step: u64,
        filled: bool,
        now: Time,
    ) {
        if delay <= target {
            if filled {
                self.bytes += step as f64 * (bytes as f64 / self.bytes).min(1.0);
            }
        } else if now.since(self.decreased_at) >= delay {
            let (delay, target) = (nanos(delay) as f64, nanos(target) as f64);
            self.bytes *= 1.0 - (BETA * (delay - target) / delay).min(DECREASE_MAX);
            self.decreased_at = now;
        }
        self.bytes = self.bytes.clamp(self.min, self.max);
    }

    /// A slice failed or stalled: start over from the floor.
    pub(crate) fn on_fault(&mut self) {
        self.bytes = self.min;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A FIFO pipe kept as full as the window lets it be: returns the window after `rounds` of one slice each.
    fn settle(window: &mut Window, rate: f64, base: u64, target: Duration, rounds: u64) -> f64 {
        let slice = 100_000u64;
        let mut now = 0u64;
        for _ in 0..rounds {
            let delay = base as f64 + (window.bytes() as f64 / rate).max(slice as f64 / rate);
            now += (slice as f64 / rate) as u64;
            window.on_landed(slice, Duration::from_nanos(delay as u64), target, slice, true, Time(now));
        }
        window.bytes() as f64
    }

    #[test]
    fn it_settles_where_the_delay_meets_the_target() {
        let target = Duration::from_micros(800);
        for start in [1, 100 << 20] {
            let mut window = Window::new(start, 100_000, 64 << 20);
            let bytes = settle(&mut window, 2.0, 20_000, target, 4000);
            let delay = 20_000.0 + bytes / 2.0;
            assert!((0.5..1.2).contains(&(delay / 800_000.0)), "from {start}: {delay}");
        }
    }

    #[test]
    fn it_stays_within_its_bounds_and_grows_only_when_used() {
        let target = Duration::from_micros(800);
        let mut window = Window::new(1 << 20, 1 << 18, 4 << 20);
        for i in 0..1000 {
            window.on_landed(1 << 16, Duration::from_micros(1), target, 1 << 18, false, Time(i));
        }
        assert_eq!(window.bytes(), 1 << 20);
        for i in 0..1000 {
            window.on_landed(1 << 16, Duration::from_micros(1), target, 1 << 18, true, Time(i));
        }
        assert_eq!(window.bytes(), 4 << 20);
        for i in 0..1000 {
            window.on_landed(1 << 16, Duration::from_secs(1), target, 1 << 18, true, Time(i * 2_000_000_000));
        }
        assert_eq!(window.bytes(), 1 << 18);
    }

    #[test]
    fn one_late_flight_is_punished_once() {
        let target = Duration::from_micros(100);
        let mut window = Window::new(1 << 20, 1, 1 << 30);
        for i in 0..16 {
            window.on_landed(1 << 16, Duration::from_millis(10), target, 1 << 16, true, Time(20_000_000 + i));
        }
        assert_eq!(window.bytes(), 1 << 19);
    }
}
