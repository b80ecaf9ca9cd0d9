//! What processes hold of the system: descriptors, Unix sockets, mapped memory, files.
//!
//! The measure is each kind of process at the moment when everybody had spoken with everybody and nothing ran: all
//! connections that peers cost are in it, so nothing is added to it. A process that was restarted has as many peers, and is
//! held to the same.

use std::collections::{HashMap, HashSet};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use super::settled::SETTLE;
use crate::cluster::{Cluster, Process, eventually};

/// What a process holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Footprint {
    /// Open descriptors.
    files: usize,
    /// Of these, Unix sockets, with a name or without.
    unix_sockets: usize,
    /// Memfds that it maps, its own included.
    memfds: usize,
}

impl Footprint {
    fn of(pid: u32) -> Self {
        let (files, unix) = (descriptors(pid), unix_inodes());
        let unix_sockets = files.iter().filter_map(|f| socket_inode(f)).filter(|inode| unix.contains(inode)).count();
        Self { files: files.len(), unix_sockets, memfds: mapped_memfds(pid).len() }
    }

    fn fits(self, most: Self) -> bool {
        self.files <= most.files && self.unix_sockets <= most.unix_sockets && self.memfds <= most.memfds
    }

    fn min(self, other: Self) -> Self {
        Self {
            files: self.files.min(other.files),
            unix_sockets: self.unix_sockets.min(other.unix_sockets),
            memfds: self.memfds.min(other.memfds),
        }
    }

    fn max(self, other: Self) -> Self {
        Self {
            files: self.files.max(other.files),
            unix_sockets: self.unix_sockets.max(other.unix_sockets),
            memfds: self.memfds.max(other.memfds),
        }
    }
}

/// The most that a process of each kind may hold, and what the machine held before.
pub(super) struct Baseline {
    kinds: HashMap<String, Footprint>,
    shared_memory: HashSet<PathBuf>,
}

impl Baseline {
    /// Of a cluster at rest.
    pub(super) async fn of(cluster: &Cluster) -> Self {
        let mut kinds = HashMap::<String, Footprint>::new();
        for process in cluster.processes() {
            let mut least = Footprint::of(process.pid());
            // The connection over which its status was asked may take a moment to go.
            for _ in 0..5 {
                tokio::time::sleep(Duration::from_millis(50)).await;
                least = least.min(Footprint::of(process.pid()));
            }
            let most = kinds.entry(kind(process).to_owned()).or_default();
            *most = most.max(least);
        }
        Self { kinds, shared_memory: shared_memory() }
    }

    /// Waits until no process holds more, nobody maps the memory of one that is gone, and no file is left.
    ///
    /// # Errors
    /// Names the process and what it holds.
    pub(super) async fn holds(&self, cluster: &Cluster) -> Result<(), String> {
        eventually("nothing is leaked", SETTLE, || async {
            let owned: HashSet<u64> = cluster.processes().flat_map(|p| owned_memfds(p.pid())).collect();
            for process in cluster.processes() {
                let (now, most) = (Footprint::of(process.pid()), self.kinds.get(kind(process)));
                if !most.is_some_and(|most| now.fits(*most)) {
                    return Err(format!(
                        "{} holds {now:?}, at most {most:?} was to be: {}",
                        process.name,
                        descriptors(process.pid()).join(" ")
                    ));
                }
                if mapped_memfds(process.pid()).keys().any(|inode| !owned.contains(inode)) {
                    return Err(format!("{} maps the memory of a process that is gone", process.name));
                }
            }
            let left = cluster.leftovers().map_err(|e| e.to_string())?;
            let shared = shared_memory().difference(&self.shared_memory).cloned().collect::<Vec<_>>();
            if left.is_empty() && shared.is_empty() { Ok(()) } else { Err(format!("left behind: {left:?} {shared:?}")) }
        })
        .await
        .map_err(|e| e.to_string())
    }
}

impl std::fmt::Display for Baseline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut kinds: Vec<_> = self.kinds.iter().map(|(kind, most)| format!("{kind} {}", most.files)).collect();
        kinds.sort();
        f.write_str(&kinds.join(", "))
    }
}

/// `prefill` of `prefill-0`.
fn kind(process: &Process) -> &str {
    process.name.split('-').next().unwrap_or_default()
}

/// What each open descriptor is, as the system says it. Empty for a process that is gone.
fn descriptors(pid: u32) -> Vec<String> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    entries.filter_map(|e| std::fs::read_link(e.path()).ok()).map(|target| target.display().to_string()).collect()
}

/// `7` of `socket:[7]`.
fn socket_inode(descriptor: &str) -> Option<u64> {
    descriptor.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// Inodes of the Unix sockets of a process: those whose end is to be seen.
pub(super) fn unix_sockets(pid: u32) -> HashSet<u64> {
    let unix = unix_inodes();
    descriptors(pid).iter().filter_map(|d| socket_inode(d)).filter(|inode| unix.contains(inode)).collect()
}

/// Waits until none of `sockets` is there.
///
/// # Errors
/// If some stay: somebody else holds them.
pub(super) async fn sockets_end(sockets: &HashSet<u64>) -> Result<(), String> {
    eventually("the Unix sockets of the dead are gone", SETTLE, || async {
        let left = unix_inodes().intersection(sockets).count();
        if left == 0 { Ok(()) } else { Err(format!("{left} of {} are there", sockets.len())) }
    })
    .await
    .map_err(|e| e.to_string())
}

/// Inodes of all Unix sockets, abstract ones too.
fn unix_inodes() -> HashSet<u64> {
    let table = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    table.lines().skip(1).filter_map(|line| line.split_whitespace().nth(6)?.parse().ok()).collect()
}

/// Inodes of the memfds that a process maps, and whether it may write them.
fn mapped_memfds(pid: u32) -> HashMap<u64, bool> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let memfds = maps.lines().filter(|line| line.contains("/memfd:"));
    let parts = memfds.filter_map(|line| {
        let mut words = line.split_whitespace();
        let may_write = words.nth(1)?.contains('w');
        Some((words.nth(2)?.parse().ok()?, may_write))
    });
    parts.collect()
}

/// Inodes of the memfds that a process has open or may write: it made them, for those of others it may only read.
fn owned_memfds(pid: u32) -> HashSet<u64> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let memfds = entries.map(|e| e.path()).filter(|path| {
        std::fs::read_link(path).is_ok_and(|target| target.display().to_string().starts_with("/memfd:"))
    });
    let open = memfds.filter_map(|path| std::fs::metadata(path).ok()).map(|m| m.ino());
    let written = mapped_memfds(pid).into_iter().filter(|(_, may_write)| *may_write).map(|(inode, _)| inode);
    open.chain(written).collect()
}

/// Files of kvrail in the system's shared memory: there are to be none that were not.
fn shared_memory() -> HashSet<PathBuf> {
    let entries = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    entries.map(|e| e.path()).filter(|path| path.display().to_string().contains("kvrail")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_process_holds_is_seen() {
        let me = std::process::id();
        let before = unix_sockets(me);
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let made = unix_sockets(me);
        assert!(made.difference(&before).count() >= 2, "a pair of sockets");
        let listed = descriptors(me);
        drop(one);
        assert!(listed.iter().filter_map(|d| socket_inode(d)).any(|inode| made.contains(&inode)));
        assert_eq!((socket_inode("socket:[12]"), socket_inode("pipe:[12]")), (Some(12), None));
    }

    #[test]
    fn more_of_anything_does_not_fit() {
        let most = Footprint { files: 9, unix_sockets: 3, memfds: 2 };
        assert!(most.fits(most));
        for more in
            [Footprint { files: 10, ..most }, Footprint { unix_sockets: 4, ..most }, Footprint { memfds: 3, ..most }]
        {
            assert!(!more.fits(most), "{more:?}");
        }
        assert_eq!((most.min(Footprint::default()), most.max(Footprint::default())), (Footprint::default(), most));
    }
}
