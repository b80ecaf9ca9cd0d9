//! What processes cost: CPU time, and time that their threads stood in the run queue.

use std::fs;
use std::ops::{Add, Sub};
use std::path::Path;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Time used and time waited, since a process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// CPU time of all threads, user and system.
    pub cpu: Duration,
    /// Time that threads which still live were ready to run and had no core (`/proc/PID/task/TID/schedstat`, second
    /// field; kernel documentation, scheduler statistics).
    pub delay: Duration,
}

impl Usage {
    /// Of this process. Its CPU time counts threads that have ended; its delay does not.
    #[must_use]
    pub fn own() -> Self {
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        let cpu = Duration::new(cpu.tv_sec.try_into().unwrap_or(0), cpu.tv_nsec.try_into().unwrap_or(0));
        Self { cpu, delay: tasks(Path::new("/proc/self/task")).delay }
    }

    /// Of another process, from its threads that still live; nothing if it is gone. CPU time of a thread that is running
    /// just now lags by up to a scheduler tick.
    #[must_use]
    pub fn of(pid: u32) -> Self {
        tasks(&Path::new("/proc").join(pid.to_string()).join("task"))
    }

    /// Of the calling thread.
    #[must_use]
    pub fn thread() -> Self {
        read(Path::new("/proc/thread-self/schedstat"))
    }
}

impl Sub for Usage {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self { cpu: self.cpu.saturating_sub(earlier.cpu), delay: self.delay.saturating_sub(earlier.delay) }
    }
}

impl Add for Usage {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { cpu: self.cpu + other.cpu, delay: self.delay + other.delay }
    }
}

impl std::iter::Sum for Usage {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Add::add)
    }
}

fn tasks(directory: &Path) -> Usage {
    let Ok(entries) = fs::read_dir(directory) else { return Usage::default() };
    entries.flatten().map(|task| read(&task.path().join("schedstat"))).sum()
}

fn read(schedstat: &Path) -> Usage {
    fs::read_to_string(schedstat).ok().and_then(|text| parse(&text)).unwrap_or_default()
}

/// Nanoseconds on a core, nanoseconds in the queue, number of slices.
fn parse(schedstat: &str) -> Option<Usage> {
    let mut fields = schedstat.split_whitespace().map(|f| f.parse().map(Duration::from_nanos));
    let (cpu, delay) = (fields.next()?.ok()?, fields.next()?.ok()?);
    Some(Usage { cpu, delay })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedstat_is_read_and_nonsense_is_not() {
        let usage = parse("123 456 7\n").unwrap();
        assert_eq!((usage.cpu.as_nanos(), usage.delay.as_nanos()), (123, 456));
        assert_eq!(parse(""), None);
        assert_eq!(parse("1 x 2"), None);
    }

    #[test]
    fn work_is_seen_by_all_three_clocks() {
        let (own, pid, thread) = (Usage::own(), Usage::of(std::process::id()), Usage::thread());
        let mut sum = 0u64;
        while (Usage::own() - own).cpu < Duration::from_millis(30) {
            sum = std::hint::black_box((0..10_000u64).fold(sum, u64::wrapping_add));
        }
        assert!((Usage::thread() - thread).cpu >= Duration::from_millis(10));
        assert!((Usage::of(std::process::id()) - pid).cpu >= Duration::from_millis(10));
    }

    #[test]
    fn a_process_that_is_gone_costs_nothing() {
        assert_eq!(Usage::of(u32::MAX), Usage::default());
    }
}
