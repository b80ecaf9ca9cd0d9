//! One path: its estimates, window, slices in flight and circuit.
//!
//! ```text
//!            path_up                  probe landed
//!  (new) ──────────────► Up ◄──────────────────── Probing ◄── path_up ── Opening ◄─ back-off over ─ Resting
//!                        │ stall, fault, broke       │ same                 │ could not                 ▲ ▲
//!                        └────────► Fencing ◄────────┘                      └───────────────────────────┘ │
//!                                      └──────────────────────── handle_fenced ───────────────────────────┘
//! ```
//! Where no slice is out there is nothing to fence: straight to `Resting`.

use std::time::Duration;

use super::accounts::AccountIx;
use super::rate::{Rate, Sent};
use super::retry::Rng;
use super::slots::Key;
use super::time::nanos;
use super::window::Window;
use super::{Config, Direction, PathId, PathSpec, RailId, SliceId, Time};

/// A slow path's window is no smaller than this, in bytes.
const WINDOW_LEAST: u64 = 256 << 10;
/// Slices of a path whose rate is being found are no larger than this, in bytes.
const START_BYTES: u64 = 64 << 10;

/// A path's place in the planner's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PathIx(u32, u32);

impl Key for PathIx {
    fn new(slot: u32, generation: u32) -> Self {
        Self(slot, generation)
    }
    fn slot(self) -> u32 {
        self.0
    }
    fn generation(self) -> u32 {
        self.1
    }
}

/// Where a path stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Carries slices.
    Up,
    /// Just opened: carries one small slice at a time until one lands.
    Probing,
    /// Its slices are abandoned; waits for `handle_fenced`.
    Fencing,
    /// Backs off until then.
    Resting(Time),
    /// Waits for `handle_path_up` or `handle_path_failed`.
    Opening,
}

#[derive(Debug)]
pub(crate) struct Path {
    pub(crate) id: PathId,
    pub(crate) spec: PathSpec,
    pub(crate) state: State,
    pub(crate) rate: Rate,
    pub(crate) window: Window,
    /// Bytes and slices handed out and not completed, abandoned ones included.
    pub(crate) in_flight_bytes: u64,
    pub(crate) in_flight: u32,
    /// Oldest and newest slice in flight.
    pub(crate) oldest: Option<SliceId>,
    pub(crate) newest: Option<SliceId>,
    /// Last completion or opening.
    pub(crate) heard_at: Time,
    /// A slice was refused for want of window since the last completion: its workers wait.
    pub(crate) blocked: bool,
    /// From when until when this rail leaves the work to faster ones.
    pub(crate) declines: Option<(Time, Time)>,
    /// Account with the peer's NIC, which our writes go to, and with our own, which our reads come to; where there is one.
    pub(crate) far: Option<AccountIx>,
    pub(crate) near: Option<AccountIx>,
    /// Bytes handed out before there was an account, written and read.
    pub(crate) unaccounted: [u64; 2],
    /// The one timer of this path, where armed.
    pub(crate) timer: Option<Time>,
    /// One late check was forgiven because the planner itself was not run in time.
    pub(crate) forgiven: bool,
    failures: u32,
    trips: u32,
}

impl Path {
    pub(crate) fn new(id: PathId, spec: PathSpec, config: &Config, now: Time) -> Self {
        let rate = Rate::new(spec.rate, spec.base_delay);
        let window = Self::fresh_window(&spec, &rate, config);
        Self {
            id,
            spec,
            state: State::Up,
            rate,
            window,
            in_flight_bytes: 0,
            in_flight: 0,
            oldest: None,
            newest: None,
            heard_at: now,
            blocked: false,
            declines: None,
            far: None,
            near: None,
            unaccounted: [0; 2],
            timer: None,
            forgiven: false,
            failures: 0,
            trips: 0,
        }
    }

    fn fresh_window(spec: &PathSpec, rate: &Rate, config: &Config) -> Window {
        let delay = spec.base_delay + 4 * config.slice_time;
        let start = rate.bytes_per_ns() * nanos(delay) as f64;
        Window::new(start as u64, Self::window_floor(spec, rate, config), spec.limits.window_max)
    }

    /// The window is no smaller: what the transport wants, or what the path moves in some slices' time where that is less.
    fn window_floor(spec: &PathSpec, rate: &Rate, config: &Config) -> u64 {
        let in_time = rate.bytes_per_ns() * nanos(4 * config.floor_time) as f64;
        spec.limits.window_min.min((in_time as u64).max(WINDOW_LEAST))
    }

    /// A slice landed: feeds rate, window and circuit. `target` is the delay that the window aims at, by the path as it is then.
    pub(crate) fn learn(
        &mut self,
        sent: &Sent,
        bytes: u64,
        config: &Config,
        target: impl FnOnce(&Self) -> Duration,
        now: Time,
    ) {
        let was_starting = self.rate.is_starting();
        let delay = self.rate.on_landed(sent, bytes, now);
        if was_starting {
            if !self.rate.is_starting() {
                self.window = Self::fresh_window(&self.spec, &self.rate, config);
            }
        } else {
            self.window.set_floor(Self::window_floor(&self.spec, &self.rate, config));
            let filled = self.in_flight_bytes + bytes >= self.window.bytes() / 2;
            let target = target(self);
            self.window.on_landed(bytes, delay, target, bytes, filled, now);
        }
        self.on_landed(now);
    }

    /// Bytes that may be in flight. Of a rate that is being found: one small slice, and as much as has landed so far, where the
    /// transport is content with as much.
    fn window_bytes(&self) -> u64 {
        if self.rate.is_starting() {
            let (first, least) = (self.start_bytes(), self.spec.limits.window_min);
            first + self.rate.delivered().min(least.saturating_sub(first))
        } else {
            self.window.bytes()
        }
    }

    /// Bytes of a slice while the rate is being found.
    pub(crate) fn start_bytes(&self) -> u64 {
        START_BYTES.min(self.spec.limits.window_min).max(1)
    }

    pub(crate) fn local(&self) -> RailId {
        self.id.local
    }

    /// The account that bytes of this direction are debited to.
    pub(crate) fn account(&self, direction: Direction) -> Option<AccountIx> {
        match direction {
            Direction::Write => self.far,
            Direction::Read => self.near,
        }
    }

    /// May new slices be bound to it?
    pub(crate) fn is_usable(&self) -> bool {
        matches!(self.state, State::Up | State::Probing)
    }

    /// The transport says anew what the path is like; nothing happened to it.
    pub(crate) fn renew(&mut self, spec: PathSpec, config: &Config) {
        if spec.limits != self.spec.limits {
            self.window = Self::fresh_window(&spec, &self.rate, config);
        }
        self.spec = spec;
    }

    /// The transport opened it again, perhaps with other properties. What was learnt of its rate is kept.
    pub(crate) fn reopen(&mut self, spec: PathSpec, config: &Config, now: Time) {
        if spec.rate != self.spec.rate {
            self.rate = Rate::new(spec.rate, spec.base_delay);
        }
        self.rate.restart();
        self.window = Self::fresh_window(&spec, &self.rate, config);
        self.spec = spec;
        self.state = State::Probing;
        self.heard_at = now;
        self.declines = None;
        self.forgiven = false;
    }

    /// Bytes in flight without what must have been sent since the last news, which is at most one slice: that one's completion would
    /// be news.
    pub(crate) fn left(&self, now: Time) -> u64 {
        let slice = self.in_flight_bytes / u64::from(self.in_flight.max(1));
        self.in_flight_bytes - (self.rate.sent_since_news(now) as u64).min(slice)
    }

    /// Is another slice allowed in? Then: how many bytes, at least 1.
    pub(crate) fn room(&self, floor: u64) -> Option<u64> {
        let limits = &self.spec.limits;
        if self.in_flight == 0 {
            return Some(u64::MAX); // a window below one slice must not stop the path
        }
        let full = self.in_flight >= limits.slices_max || self.state == State::Probing;
        let left = self.window_bytes().saturating_sub(self.in_flight_bytes);
        (!full && left >= floor).then_some(left)
    }

    /// How much of a slice of `whole` bytes goes where `room` is left. Windows are estimates: one that takes half of it takes it all, and
    /// what is less waits where two are under way. Slices that are cut to fit cost as much as whole ones.
    pub(crate) fn fits(&self, whole: u64, room: u64) -> Option<u64> {
        if room >= whole / 2 { Some(whole) } else { (self.in_flight < 2).then_some(room) }
    }

    /// Is it one of which too little is known to trust it with more than a small slice?
    pub(crate) fn wants_probe(&self, config: &Config, now: Time) -> bool {
        self.state == State::Probing || (self.in_flight == 0 && now.since(self.heard_at) > config.probe_after)
    }

    pub(crate) fn on_landed(&mut self, now: Time) {
        self.failures = 0;
        self.forgiven = false;
        self.heard_at = now;
        match self.state {
            State::Probing => self.state = State::Up,
            State::Up => self.trips = 0,
            _ => {}
        }
    }

    /// A slice failed without asking for a fence. Is it enough to open the circuit?
    pub(crate) fn on_failure(&mut self, config: &Config, now: Time) -> bool {
        self.failures += 1;
        self.heard_at = now;
        self.window.on_fault();
        self.state == State::Probing || self.failures >= config.path_failures_max
    }

    /// Opens the circuit: fence first where slices are out, else rest at once. Returns whether a fence is needed.
    pub(crate) fn trip(&mut self, config: &Config, rng: &mut Rng, now: Time) -> bool {
        self.failures = 0;
        self.window.on_fault();
        if self.in_flight > 0 {
            self.state = State::Fencing;
            return true;
        }
        self.rest(config, rng, now);
        false
    }

    /// Backs off, twice as long at each time in a row.
    pub(crate) fn rest(&mut self, config: &Config, rng: &mut Rng, now: Time) {
        self.state = State::Resting(now + config.path_backoff.wait(self.trips, rng));
        self.trips = self.trips.saturating_add(1);
    }

    /// How long a slice may take before it counts as stalled.
    pub(crate) fn patience(&self, config: &Config, alone: bool) -> Duration {
        let expected = self.rate.time_ns(self.in_flight_bytes, 0) * f64::from(config.stall_factor);
        let floor = if alone { config.stall_min_alone } else { config.stall_min };
        floor.max(Duration::from_nanos(expected.min(1e12) as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{PathLimits, PeerId};

    fn path(config: &Config) -> Path {
        let id = PathId { peer: PeerId::from_bits(0), local: RailId(0), remote: RailId(0) };
        let limits = PathLimits { window_min: 64 << 10, window_max: 1 << 20, slices_max: 2, ..PathLimits::default() };
        let base_delay = Duration::from_micros(10);
        let spec =
            PathSpec { rate: Some(1_000_000_000), base_delay, penalty: Duration::ZERO, tier: 0, lanes: 1, limits };
        Path::new(id, spec, config, Time(0))
    }

    #[test]
    fn room_is_bounded_by_window_depth_and_probing_but_never_zero_when_idle() {
        let mut path = path(&Config::default());
        assert_eq!(path.room(16 << 10), Some(u64::MAX));
        (path.in_flight, path.in_flight_bytes) = (1, 100_000);
        assert_eq!(path.room(16 << 10), Some(path.window.bytes() - 100_000));
        path.in_flight = 2;
        assert_eq!(path.room(16 << 10), None, "queue depth");
        (path.in_flight, path.in_flight_bytes) = (1, path.window.bytes() - 1000);
        assert_eq!(path.room(16 << 10), None, "window");
        path.in_flight_bytes = 1;
        path.state = State::Probing;
        assert_eq!(path.room(1), None, "one probe at a time");
    }

    #[test]
    fn a_slice_is_cut_only_where_the_path_would_fall_idle() {
        let mut path = path(&Config::default());
        path.in_flight = 2;
        assert_eq!([60, 50, 49, 0].map(|room| path.fits(100, room)), [Some(100), Some(100), None, None]);
        path.in_flight = 1;
        assert_eq!(path.fits(100, 49), Some(49));
    }

    #[test]
    fn a_slow_paths_window_has_a_floor_in_time() {
        let config = Config::default();
        let mut path = path(&config);
        let limits = PathLimits { window_min: 8 << 20, window_max: 64 << 20, ..path.spec.limits };
        path = Path::new(path.id, PathSpec { limits, ..path.spec }, &config, Time(0));
        let floors = [1_000_000_000, 31_250_000, 1_000_000].map(|rate| {
            path.rate = Rate::new(Some(rate), path.spec.base_delay);
            Path::window_floor(&path.spec, &path.rate, &config)
        });
        assert_eq!(floors, [8 << 20, 1_000_000, 256 << 10], "what it moves in 32 ms, 256 KiB at least");
    }

    #[test]
    fn the_circuit_goes_round() {
        let (config, mut rng) = (Config::default(), Rng::new(1));
        let mut path = path(&config);
        assert!(!path.on_failure(&config, Time(1)) && !path.on_failure(&config, Time(2)));
        assert!(path.on_failure(&config, Time(3)));
        path.in_flight = 1;
        assert!(path.trip(&config, &mut rng, Time(3)));
        assert_eq!(path.state, State::Fencing);
        path.rest(&config, &mut rng, Time(4));
        let State::Resting(first) = path.state else { panic!("{:?}", path.state) };
        path.reopen(path.spec, &config, first);
        assert!(path.wants_probe(&config, first) && path.on_failure(&config, first), "one failed probe is enough");
        path.in_flight = 0;
        for _ in 0..10 {
            assert!(!path.trip(&config, &mut rng, Time(0)));
        }
        let State::Resting(last) = path.state else { panic!("{:?}", path.state) };
        assert!(last > first && last <= Time(0) + config.path_backoff.max, "longer each time, within the bound");
        path.reopen(path.spec, &config, last);
        path.on_landed(last);
        assert_eq!(path.state, State::Up);
    }
}
