//! The planner's knobs, each with its unit and reason.

use std::time::Duration;

use super::Backoff;

/// Planner configuration. The defaults suit NICs of 10 to 400 Gb/s and loopback alike, because sizes follow measured rates.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Wire time of one slice: long enough that its fixed cost does not matter, short enough that a dead rail loses little
    /// and that priorities are felt.
    pub slice_time: Duration,
    /// What the floors of a slow path's slices are worth in time; its window's floor is worth four times as much. More would be
    /// bound to it when faster ones are done.
    pub floor_time: Duration,
    /// Slices of a path that is alone are this many times longer: there is nothing to balance.
    pub alone_factor: u32,
    /// A path of which nothing was heard for so long gets one small slice first.
    pub probe_after: Duration,
    /// What it takes until another rail's worker has heard of work: a path that would be done so much later takes it all the same.
    pub hand_over: Duration,
    /// A slice that has not completed for this long, and for [`Self::stall_factor`] times what was expected, has stalled, where
    /// another path can take it.
    pub stall_min: Duration,
    /// The same where no other path is usable: giving up gains little, so it takes longer.
    pub stall_min_alone: Duration,
    /// See [`Self::stall_min`].
    pub stall_factor: u32,
    /// The same where nothing came from any other path either, although slices are out on them: the peer, or this machine, may be busy.
    pub stall_min_silent: Duration,
    /// The same while something is made for a path's first slices.
    pub stall_min_waiting: Duration,
    /// Attempts of one range, at most, before its transfer fails.
    pub attempts_max: u8,
    /// How many of them may fail their checksum: chance does not damage the same bytes this often, so the sender's memory or
    /// the receiver's is bad, and no path mends that.
    pub corrupt_max: u8,
    /// Failures in a row that open a path's circuit, where none of them asked for a fence.
    pub path_failures_max: u32,
    /// Rest of a failed path before it is opened again.
    pub path_backoff: Backoff,
    /// Wait before a slice is tried again where no other path can take it at once.
    pub slice_backoff: Backoff,
    /// A transfer fails early when even this many times the measured rate would miss its deadline.
    pub hopeless_factor: u32,
    /// Weights of [`super::Class::ALL`] (the first is strict and its weight unused).
    pub class_weights: [u32; 4],
    /// Transfers in the planner, at most.
    pub transfers_max: usize,
    /// Ops of all transfers in the planner, at most.
    pub ops_max: usize,
    /// Peers, at most.
    pub peers_max: usize,
    /// Sends without regard to receivers' limits; for tests of what becomes of such a sender.
    pub ignores_limits: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            slice_time: Duration::from_micros(200),
            floor_time: Duration::from_millis(8),
            alone_factor: 4,
            probe_after: Duration::from_secs(1),
            hand_over: Duration::from_micros(20),
            stall_min: Duration::from_millis(100),
            stall_min_alone: Duration::from_secs(2),
            stall_factor: 8,
            stall_min_silent: Duration::from_millis(300),
            stall_min_waiting: Duration::from_millis(500),
            attempts_max: 8,
            corrupt_max: 4,
            path_failures_max: 3,
            path_backoff: Backoff { first: Duration::from_millis(10), max: Duration::from_millis(500) },
            slice_backoff: Backoff { first: Duration::from_millis(1), max: Duration::from_millis(100) },
            hopeless_factor: 2,
            class_weights: [1, 8, 2, 1],
            transfers_max: 1 << 16,
            ops_max: 1 << 24,
            peers_max: 1 << 12,
            ignores_limits: false,
        }
    }
}
