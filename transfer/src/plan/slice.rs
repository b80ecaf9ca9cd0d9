//! How large a slice is, and whether a rail should take it: pure arithmetic over estimates.
//!
//! Size is time: what the path moves in `slice_time` at its measured rate. Near the end of the queued work a path takes no more than
//! its share, so that all end together, down to an eighth of a full slice (or the floor): finer would cost more than the skew.
//! Whether to take it at all: a slow rail leaves the work to the others where they would have all of it done, and one of them this
//! slice, before the slow rail had this slice done.

use std::time::Duration;

use super::path::Path;
use super::rate::UNKNOWN;
use super::time::nanos;
use super::{Config, Time};

/// What the usable paths to a peer, of its best tier, amount to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fleet {
    pub(crate) paths: u32,
    pub(crate) bytes_per_ns: f64,
    /// Bytes that they still have to move.
    pub(crate) left: u64,
    /// The least idle delay with penalties, ns.
    pub(crate) reach_ns: f64,
    /// All rates are measured.
    pub(crate) measured: bool,
}

impl Fleet {
    /// Of these paths, each with nanoseconds from the memory to its local NIC.
    pub(crate) fn of<'a>(paths: impl Iterator<Item = (&'a Path, u32)>, now: Time) -> Self {
        let start = Fleet { reach_ns: f64::INFINITY, measured: true, ..Fleet::default() };
        paths.fold(start, |sum, (path, distance_ns)| Fleet {
            paths: sum.paths + 1,
            bytes_per_ns: sum.bytes_per_ns + path.rate.bytes_per_ns(),
            left: sum.left + path.left(now),
            reach_ns: sum.reach_ns.min(path.rate.base_ns() + penalties_ns(path, distance_ns)),
            measured: sum.measured && path.rate.is_measured(),
        })
    }

    /// Nanoseconds until these paths have moved what they have and `pending` more; infinite where there are none.
    pub(crate) fn drain_ns(&self, pending: u64) -> f64 {
        if self.paths == 0 {
            return f64::INFINITY;
        }
        self.reach_ns + (self.left + pending) as f64 / self.bytes_per_ns
    }
}

/// Wire time of a full slice on this path.
fn unit(config: &Config, fleet: &Fleet) -> Duration {
    config.slice_time * if fleet.paths <= 1 { config.alone_factor } else { 1 }
}

/// A slow path's floor is no smaller than this.
const FLOOR_LEAST: u64 = 16 << 10;

/// No slice of `path` is smaller, unless the work is.
pub(crate) fn floor(config: &Config, path: &Path) -> u64 {
    if path.rate.is_starting() {
        return path.spec.limits.slice_bytes_min.clamp(1, path.start_bytes());
    }
    let in_time = path.rate.bytes_per_ns() * nanos(config.floor_time) as f64;
    path.spec.limits.slice_bytes_min.min((in_time as u64).max(FLOOR_LEAST)).max(1)
}

/// Bytes of the next slice on `path`, of `pending` bytes that wait for its peer.
pub(crate) fn size(config: &Config, path: &Path, fleet: &Fleet, pending: u64, probe: bool) -> u64 {
    let floor = floor(config, path);
    if path.rate.is_starting() {
        return path.start_bytes().min(path.spec.limits.slice_bytes_max);
    }
    let full = path.rate.bytes_per_ns() * nanos(unit(config, fleet)) as f64;
    let full = (full as u64).clamp(floor, path.spec.limits.slice_bytes_max.max(floor));
    if probe && fleet.paths > 1 {
        return floor;
    }
    let ours = path.rate.bytes_per_ns() / fleet.bytes_per_ns / f64::from(path.spec.lanes.max(1));
    let share = (pending as f64 * ours).ceil() as u64;
    full.min(share.max(floor).max(full / 8))
}

/// Delay that the window aims at: the idle delay and two full slices a lane, at least four.
pub(crate) fn delay_target(config: &Config, path: &Path, fleet: &Fleet) -> Duration {
    let queue = unit(config, fleet) * (2 * u32::from(path.spec.lanes)).max(4);
    Duration::from_nanos(path.rate.base_ns() as u64) + queue
}

/// Cost of `bytes` on `path`: nanoseconds until they would be there, with penalties (`distance_ns`: memory to local NIC). For a probe
/// what was measured is stale: the transport is believed for one small slice.
pub(crate) fn cost_ns(path: &Path, bytes: u64, distance_ns: u32, probe: bool, now: Time) -> f64 {
    let time_ns = if probe {
        path.rate.base_ns() + bytes as f64 / path.spec.rate.unwrap_or(UNKNOWN).max(1) as f64 * 1e9
    } else {
        path.rate.time_ns(path.left(now), bytes)
    };
    time_ns + penalties_ns(path, distance_ns)
}

fn penalties_ns(path: &Path, distance_ns: u32) -> f64 {
    nanos(path.spec.penalty) as f64 + f64::from(distance_ns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{PathId, PathLimits, PathSpec, PeerId, RailId};

    fn path(rate: u64, lanes: u16) -> Path {
        let id = PathId { peer: PeerId::from_bits(0), local: RailId(0), remote: RailId(0) };
        let base_delay = Duration::from_micros(10);
        let limits = PathLimits::default();
        let spec = PathSpec { rate: Some(rate), base_delay, penalty: Duration::ZERO, tier: 0, lanes, limits };
        Path::new(id, spec, &Config::default(), Time(0))
    }

    #[test]
    fn a_slice_is_a_time_not_a_size() {
        let config = Config::default();
        let rails = [path(1_000_000_000, 1), path(10_000_000_000, 1), path(10_000_000, 1)];
        let fleet = Fleet::of(rails.iter().map(|rail| (rail, 0)), Time(0));
        let sizes = rails.each_ref().map(|rail| size(&config, rail, &fleet, 1 << 30, false));
        assert_eq!(sizes, [200_000, 2_000_000, 16 << 10], "200 µs each; the slow one is at the floor");
        assert_eq!(size(&config, &rails[1], &fleet, 1 << 30, true), 16 << 10, "a probe is small");
    }

    #[test]
    fn a_slow_paths_floor_is_a_time_too() {
        let config = Config::default();
        let floors = [1_000_000_000, 31_250_000, 1_000_000].map(|rate| {
            let mut path = path(rate, 1);
            path.spec.limits.slice_bytes_min = 1 << 20;
            floor(&config, &path)
        });
        assert_eq!(floors, [1 << 20, 250_000, 16 << 10], "what it moves in 8 ms, 16 KiB at least");
    }

    #[test]
    fn alone_they_are_few_and_big_and_lanes_share_them() {
        let config = Config::default();
        for (lanes, pending, bytes) in [(1, 1 << 30, 800_000), (1, 300_000, 300_000), (4, 400_000, 100_000)] {
            let rail = path(1_000_000_000, lanes);
            let fleet = Fleet::of(std::iter::once((&rail, 0)), Time(0));
            assert_eq!(size(&config, &rail, &fleet, pending, true), bytes);
        }
    }

    #[test]
    fn tails_shrink_in_proportion() {
        let config = Config::default();
        let rails = [path(1_000_000_000, 1), path(3_000_000_000, 1)];
        let fleet = Fleet::of(rails.iter().map(|rail| (rail, 0)), Time(0));
        assert_eq!(size(&config, &rails[0], &fleet, 400_000, false), 100_000);
        assert_eq!(size(&config, &rails[1], &fleet, 400_000, false), 300_000);
        assert_eq!(size(&config, &rails[1], &fleet, 1000, false), 75_000, "an eighth of a slice is fine enough");
    }
}
