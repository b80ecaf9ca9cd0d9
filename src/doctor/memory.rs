//! Memory: how much, how much may be pinned, huge pages, and what shared memory needs.

use serde_json::json;

use super::{
    finding::{Finding, State},
    root::Root,
};
use crate::model::progress::size;

/// Pinned memory below which RDMA cannot register a useful pool.
const MEMLOCK_WANTED: u64 = 1 << 30;
/// Memory below which a node with its default pool and the default model does not fit.
const MEMORY_WANTED: u64 = 2 << 30;

/// Looks at memory.
pub fn examine(root: &Root) -> Vec<Finding> {
    vec![amount(root), memlock(root), huge_pages(root), shared(root)]
}

fn amount(root: &Root) -> Finding {
    let meminfo = |key| root.kilobytes("proc/meminfo", key).map(|kb| kb * 1024);
    let (Some(total), Some(available)) = (meminfo("MemTotal"), meminfo("MemAvailable")) else {
        return Finding::new("memory", State::Note, "/proc/meminfo cannot be read");
    };
    // In a container the control group's limit counts, and it counts shared memory too.
    let limit: Option<u64> = root.number("sys/fs/cgroup/memory.max");
    let usable = limit.map_or(available, |limit| limit.min(available));
    let of_group = limit.map_or_else(String::new, |limit| format!(", the control group allows {}", size(limit)));
    let says = format!("{} of {} available{of_group}", size(available), size(total));
    let facts = json!({"total_bytes": total, "available_bytes": available, "cgroup_limit_bytes": limit});
    if usable < MEMORY_WANTED {
        let advice = "a node with the default model and pool needs about 1 GiB: give --pool-bytes less, or free memory";
        return Finding::new("memory", State::Missing, says).advise(advice).facts(facts);
    }
    Finding::new("memory", State::Good, says).facts(facts)
}

fn memlock(root: &Root) -> Finding {
    let limits = root.read("proc/self/limits");
    let line = limits.as_deref().and_then(|text| text.lines().find(|line| line.starts_with("Max locked memory")));
    let Some(soft) =
        line.and_then(|line| line["Max locked memory".len()..].split_whitespace().next().map(str::to_owned))
    else {
        return Finding::new("memlock", State::Note, "/proc/self/limits cannot be read");
    };
    match soft.parse::<u64>() {
        Ok(bytes) if bytes < MEMLOCK_WANTED => {
            let says =
                format!("{} may be pinned; TCP and shared memory pin nothing, RDMA pins the whole pool", size(bytes));
            let advice =
                "for RDMA: `ulimit -l unlimited`, `LimitMEMLOCK=infinity` in systemd, or the container's ulimits";
            Finding::new("memlock", State::Missing, says).advise(advice).facts(json!({"bytes": bytes}))
        }
        Ok(bytes) => {
            let says = format!("{} may be pinned", size(bytes));
            Finding::new("memlock", State::Good, says).facts(json!({"bytes": bytes}))
        }
        Err(_) => Finding::new("memlock", State::Good, "any amount may be pinned").facts(json!({"bytes": soft})),
    }
}

fn huge_pages(root: &Root) -> Finding {
    let chosen = |path: &str| {
        let text = root.read(path)?;
        let (_, rest) = text.split_once('[')?;
        Some(rest.split_once(']')?.0.to_owned())
    };
    let private = chosen("sys/kernel/mm/transparent_hugepage/enabled");
    let shared = chosen("sys/kernel/mm/transparent_hugepage/shmem_enabled");
    let reserved: u64 = root.kilobytes("proc/meminfo", "HugePages_Free").unwrap_or(0);
    let facts = json!({"transparent": private, "transparent_shared": shared, "reserved_free": reserved});
    let Some(private) = private else {
        return Finding::new("huge pages", State::Note, "transparent huge pages are not known here").facts(facts);
    };
    let shared = shared.unwrap_or_else(|| "unknown".into());
    let says = format!("transparent: {private}; for shared memory: {shared}; reserved and free: {reserved}");
    match (private.as_str(), shared.as_str()) {
        ("always" | "madvise", "always" | "within_size" | "advise") => {
            Finding::new("huge pages", State::Good, says).facts(facts)
        }
        _ => {
            let advice = "moving KV touches fewer pages with them: echo advise > \
                          /sys/kernel/mm/transparent_hugepage/shmem_enabled (as root), and madvise > …/enabled";
            Finding::new("huge pages", State::Missing, says).advise(advice).facts(facts)
        }
    }
}

/// Shared memory is a memfd that is passed over a Unix socket: it needs a kernel of 3.17 or later, and no /dev/shm.
fn shared(root: &Root) -> Finding {
    let Some(release) = root.read("proc/sys/kernel/osrelease") else {
        return Finding::new("shared memory", State::Note, "the kernel's version cannot be read");
    };
    let mut parts = release.split(|c: char| !c.is_ascii_digit()).map_while(|part| part.parse::<u32>().ok());
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    let facts = json!({"kernel": release});
    if version >= (3, 17) {
        let says =
            format!("kernel {release} has memfd: KV between processes of this machine moves through shared memory");
        return Finding::new("shared memory", State::Good, says).facts(facts);
    }
    let says = format!("kernel {release} has no memfd (3.17 has): KV between processes of this machine moves over TCP");
    Finding::new("shared memory", State::Missing, says).advise("a newer kernel").facts(facts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::root::tree;

    #[test]
    fn limits_are_read_and_judged() {
        let limits = |soft: &str| {
            let text = format!("Limit Soft Hard Units\nMax locked memory         {soft}     unlimited      bytes");
            let (_dir, root) = tree(&[("proc/self/limits", &text)]);
            let finding = memlock(&root);
            (finding.state, finding.says)
        };
        let (state, says) = limits("8388608");
        assert!(state == State::Missing && says.starts_with("8.0 MiB may be pinned"), "{says}");
        assert_eq!(limits("unlimited"), (State::Good, "any amount may be pinned".into()));
        assert_eq!(limits("2147483648").0, State::Good);
    }

    #[test]
    fn a_control_group_bounds_memory() {
        let meminfo =
            ("proc/meminfo", "MemTotal:       16000000 kB\nMemAvailable:   12000000 kB\nHugePages_Free:        3\n");
        let (_dir, root) = tree(&[meminfo]);
        assert_eq!(amount(&root).state, State::Good);
        let (_dir, root) = tree(&[meminfo, ("sys/fs/cgroup/memory.max", "536870912")]);
        let finding = amount(&root);
        assert!(finding.state == State::Missing && finding.says.contains("allows 512.0 MiB"), "{}", finding.says);
        let (_dir, root) = tree(&[meminfo, ("sys/fs/cgroup/memory.max", "max")]);
        assert_eq!(amount(&root).state, State::Good);
    }

    #[test]
    fn huge_pages_for_shared_memory_are_a_setting_of_their_own() {
        let (_dir, root) = tree(&[
            ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never"),
            ("sys/kernel/mm/transparent_hugepage/shmem_enabled", "always within_size advise [never] deny force"),
        ]);
        assert_eq!(huge_pages(&root).state, State::Missing);
    }

    #[test]
    fn old_kernels_have_no_memfd() {
        let state = |release: &str| shared(&tree(&[("proc/sys/kernel/osrelease", release)]).1).state;
        assert_eq!((state("3.10.0-1160.el7"), state("6.18.44-fc-v669")), (State::Missing, State::Good));
    }
}
