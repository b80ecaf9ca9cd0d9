//! What a path carries: smoothed estimates of its rate and of its delay when idle, from completions alone.
//!
//! A slice's delay holds the queue of slices before it, which is our own doing and says nothing of the path. So rate is taken as bytes
//! *delivered while the slice was under way*, over that time (the delivery-rate sample of BBR, draft-cheng-iccrg-delivery-rate-estimation):
//! it does not depend on completion order, nor on how many completions are reaped at once. A slice sent on an
//! idle path does not fill it and can only prove that the path is faster than thought, or slow beyond doubt.
//!
//! A path whose rate nobody told is *starting* until enough has landed: what was thought of it has no weight, and each sample as much
//! as any other.

use std::time::Duration;

use super::Time;
use super::time::nanos;

/// Weight of a new sample is 1/8.
const GAIN: f64 = 0.125;
/// How much slower than expected a lone slice must be to lower the estimate.
const SLOW_BEYOND_DOUBT: f64 = 2.0;

/// Bytes a second that a path of unknown rate is thought to carry before anything landed: a gigabit link's. Too low costs a few small
/// slices, too high makes other rails wait for it.
pub(crate) const UNKNOWN: u64 = 125_000_000;
/// Samples that make a measured rate.
const MEASURED: u32 = 8;

/// Estimates of one path.
#[derive(Clone, Debug)]
pub(crate) struct Rate {
    bytes_per_ns: f64,
    base_ns: f64,
    /// The transport told where the estimate starts.
    told: bool,
    samples: u32,
    delivered: u64,
    delivered_at: Time,
    /// Nothing has landed since the path became busy: `delivered_at` is a sending time, and the idle delay lies before the first news.
    fresh: bool,
    /// The best sample of the completions reaped at `delivered_at`: the last of a batch has seen all of it delivered.
    reaped: Option<f64>,
}

/// What a slice remembers from when it was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    at: Time,
    delivered: u64,
    delivered_at: Time,
    pipelined: bool,
    fresh: bool,
}

impl Sent {
    pub(crate) fn at(&self) -> Time {
        self.at
    }
}

impl Rate {
    /// `told` is the transport's word, bytes a second.
    pub(crate) fn new(told: Option<u64>, base: Duration) -> Self {
        Self {
            bytes_per_ns: told.unwrap_or(UNKNOWN).max(1) as f64 / 1e9,
            base_ns: nanos(base) as f64,
            told: told.is_some(),
            samples: 0,
            delivered: 0,
            delivered_at: Time(0),
            fresh: false,
            reaped: None,
        }
    }

    /// Bytes a nanosecond, above zero.
    pub(crate) fn bytes_per_ns(&self) -> f64 {
        self.bytes_per_ns
    }

    /// Delay of an idle path without the bytes' own time.
    pub(crate) fn base_ns(&self) -> f64 {
        self.base_ns
    }

    /// Has it been measured, or is it what the transport said?
    pub(crate) fn is_measured(&self) -> bool {
        self.samples >= MEASURED
    }

    /// Nobody told it, and too little has landed to know it.
    pub(crate) fn is_starting(&self) -> bool {
        !self.told && !self.is_measured()
    }

    /// The path was opened anew and may be another: what nobody told is found again, from where it was.
    pub(crate) fn restart(&mut self) {
        if !self.told {
            (self.samples, self.delivered, self.reaped) = (0, 0, None);
        }
    }

    /// Bytes that landed since the start.
    pub(crate) fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Nanoseconds until `bytes` that are sent now, behind `ahead` in flight, are there.
    pub(crate) fn time_ns(&self, ahead: u64, bytes: u64) -> f64 {
        self.base_ns + (ahead + bytes) as f64 / self.bytes_per_ns
    }

    /// Bytes that a busy path has moved since its last completion, or since it became busy.
    pub(crate) fn sent_since_news(&self, now: Time) -> f64 {
        nanos(now.since(self.delivered_at)) as f64 * self.bytes_per_ns
    }

    pub(crate) fn on_sent(&mut self, now: Time, in_flight_before: u64) -> Sent {
        let pipelined = in_flight_before > 0;
        if !pipelined {
            self.delivered_at = now;
            self.fresh = true;
        }
        Sent { at: now, delivered: self.delivered, delivered_at: self.delivered_at, pipelined, fresh: self.fresh }
    }

    /// `bytes` of a slice landed. Returns its whole delay.
    pub(crate) fn on_landed(&mut self, sent: &Sent, bytes: u64, now: Time) -> Duration {
        if now != self.delivered_at
            && let Some(sample) = self.reaped.take()
        {
            self.blend(sample);
        }
        self.delivered += bytes;
        self.delivered_at = now;
        self.fresh = false;
        let delay = now.since(sent.at);
        let delay_ns = (nanos(delay) as f64).max(1.0);
        let elapsed = (nanos(now.since(sent.delivered_at)) as f64).max(1.0);
        let sample = (self.delivered - sent.delivered) as f64 / elapsed;
        if sent.pipelined {
            let idle_ns = if sent.fresh { self.base_ns.min(elapsed / 2.0) } else { 0.0 };
            let sample = (self.delivered - sent.delivered) as f64 / (elapsed - idle_ns);
            self.reaped = Some(self.reaped.map_or(sample, |best| best.max(sample)));
            return delay;
        }
        let own_ns = bytes as f64 / self.bytes_per_ns;
        let rest_ns = (delay_ns - own_ns).max(0.0);
        if self.is_starting() || sample > self.bytes_per_ns || delay_ns > SLOW_BEYOND_DOUBT * (own_ns + self.base_ns) {
            self.blend(bytes as f64 / (delay_ns - self.base_ns).max(delay_ns / 2.0));
        } else {
            // The idle delay: falls at once, rises slowly.
            let gain = if rest_ns < self.base_ns { 1.0 } else { GAIN / 8.0 };
            self.base_ns += gain * (rest_ns - self.base_ns);
        }
        delay
    }

    fn blend(&mut self, sample: f64) {
        let blended = if self.is_starting() {
            // All bytes over all the time: what a token bucket lets pass at first must not outweigh the rest.
            let before = f64::from(self.samples);
            (before + 1.0) / (before / self.bytes_per_ns + 1.0 / sample.max(1e-9))
        } else {
            self.bytes_per_ns + GAIN * (sample - self.bytes_per_ns)
        };
        self.bytes_per_ns = blended.max(1e-9);
        self.samples = self.samples.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// A pipe of `rate` bytes a ns and `base` ns, kept `depth` slices full; completions are reaped every `reap` ns.
    fn drive(rate: &mut Rate, real: f64, base: u64, depth: usize, reap: u64, slices: usize) -> f64 {
        let (mut now, mut free_at, mut in_flight) = (0u64, 0f64, VecDeque::new());
        let bytes = 200_000u64;
        for _ in 0..slices {
            while in_flight.len() < depth {
                let sent = rate.on_sent(Time(now), in_flight.len() as u64 * bytes);
                free_at = free_at.max(now as f64) + bytes as f64 / real;
                in_flight.push_back((sent, free_at as u64 + base));
            }
            now = now.max(in_flight[0].1).next_multiple_of(reap);
            while in_flight.front().is_some_and(|(_, done)| *done <= now) {
                let (sent, _) = in_flight.pop_front().unwrap();
                rate.on_landed(&sent, bytes, Time(now));
            }
        }
        rate.bytes_per_ns() / real
    }

    #[test]
    fn a_full_pipe_is_measured_whatever_the_first_guess_and_the_reaping() {
        for (guess, reap) in [(100_000_000, 1), (50_000_000_000, 1), (1_000_000_000, 500_000)] {
            let mut rate = Rate::new(Some(guess), Duration::from_micros(20));
            let ratio = drive(&mut rate, 2.0, 20_000, 8, reap, 400);
            assert!((0.85..1.15).contains(&ratio), "guess {guess} reap {reap}: {ratio}");
            assert!(rate.is_measured());
        }
    }

    #[test]
    fn a_path_that_becomes_ten_times_slower_is_seen_within_thirty_slices() {
        let mut rate = Rate::new(Some(2_000_000_000), Duration::from_micros(20));
        drive(&mut rate, 2.0, 20_000, 4, 1, 100);
        let ratio = drive(&mut rate, 0.2, 20_000, 4, 1, 30);
        assert!((0.8..1.6).contains(&ratio), "{ratio}");
    }

    #[test]
    fn lone_slices_do_not_make_a_fast_path_look_slow_but_show_a_slow_one() {
        let mut rate = Rate::new(Some(2_000_000_000), Duration::from_micros(20));
        let ratio = drive(&mut rate, 2.0, 20_000, 1, 1, 50);
        assert!((0.9..1.3).contains(&ratio), "{ratio}");
        let ratio = drive(&mut rate, 0.2, 20_000, 1, 1, 60);
        assert!((0.7..2.4).contains(&ratio), "{ratio}");
    }

    #[test]
    fn a_rate_that_nobody_told_is_what_landed_over_the_time_it_took() {
        let mut rate = Rate::new(None, Duration::from_micros(50));
        assert!(rate.is_starting());
        // The first slice passes as a burst, the others at 7.5 MB/s.
        let mut now = 0;
        for delay in std::iter::once(100_000).chain(std::iter::repeat_n(8_700_000, 7)) {
            let sent = rate.on_sent(Time(now), 0);
            now += delay;
            rate.on_landed(&sent, 64 << 10, Time(now));
        }
        assert!(rate.is_measured() && !rate.is_starting());
        assert!((0.0075..0.0095).contains(&rate.bytes_per_ns()), "{}", rate.bytes_per_ns());
        rate.restart();
        assert!(rate.is_starting() && rate.delivered() == 0);
        let mut told = Rate::new(Some(UNKNOWN), Duration::ZERO);
        assert!(!told.is_starting(), "the transport is believed");
        told.restart();
        assert!(!told.is_starting());
    }
}
