//! The machine that figures were taken on, as far as they hang on it.

use std::fs;

use serde::{Deserialize, Serialize};

/// What the figures hang on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// Cores.
    pub cores: usize,
    /// Kernel release.
    pub kernel: String,
    /// TCP congestion control; some cost much on loopback.
    pub congestion_control: String,
    /// Huge pages of ordinary memory, as the kernel says it.
    pub huge_pages: String,
    /// Huge pages of shared memory.
    pub huge_pages_shared: String,
}

impl Machine {
    /// This one.
    #[must_use]
    pub fn here() -> Self {
        let read = |path: &str| fs::read_to_string(path).map_or_else(|_| "?".into(), |s| s.trim().to_owned());
        let chosen = |path: &str| {
            let all = read(path);
            all.split_once('[')
                .and_then(|(_, rest)| rest.split_once(']'))
                .map_or(all.clone(), |(one, _)| one.to_owned())
        };
        Self {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            congestion_control: read("/proc/sys/net/ipv4/tcp_congestion_control"),
            huge_pages: chosen("/sys/kernel/mm/transparent_hugepage/enabled"),
            huge_pages_shared: chosen("/sys/kernel/mm/transparent_hugepage/shmem_enabled"),
        }
    }
}

/// Memory that can be had, in bytes, where the kernel tells.
#[must_use]
pub fn memory_available() -> Option<usize> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|l| l.starts_with("MemAvailable:"))?;
    line.split_whitespace().nth(1)?.parse::<usize>().ok().map(|kib| kib * 1024)
}
