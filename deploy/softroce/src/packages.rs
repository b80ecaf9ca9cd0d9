//! What must be installed on this host, by the names that apt-get knows.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

/// A file that must be there, as a program on the PATH or a path, and the package that has it.
type Needed = (&'static str, &'static str);

/// To build the kernel.
pub const TO_BUILD: &[Needed] = &[
    ("bc", "bc"),
    ("bison", "bison"),
    ("dpkg-deb", "dpkg"),
    ("flex", "flex"),
    ("gcc", "gcc"),
    ("/usr/include/stdio.h", "libc6-dev"),
    ("make", "make"),
    ("patch", "patch"),
    ("perl", "perl-base"),
    ("strip", "binutils"),
    ("tar", "tar"),
    ("xz", "xz-utils"),
];

/// To run it: the first three here, the others inside, where the host's programs are used.
pub const TO_RUN: &[Needed] = &[
    ("setpriv", "util-linux"),
    ("unshare", "util-linux"),
    ("taskset", "util-linux"),
    ("pivot_root", "util-linux"),
    ("mount", "mount"),
    ("bridge", "iproute2"),
    ("ip", "iproute2"),
    ("rdma", "iproute2"),
    ("tc", "iproute2"),
    ("stty", "coreutils"),
];

/// The driver without which libibverbs sees no device; a program brings libibverbs itself, or opens it if it is there.
pub const FOR_VERBS: &[Needed] = &[("/etc/libibverbs.d/rxe.driver", "ibverbs-providers")];

/// Fails with the command that installs all that is missing.
pub fn check(needed: &[Needed]) -> Result<()> {
    let missing = missing(needed, &search_path());
    ensure!(
        missing.is_empty(),
        "missing here; as root: apt-get update && apt-get install -y --no-install-recommends {}",
        missing.join(" ")
    );
    Ok(())
}

/// Whether `program` is installed.
pub fn is_there(program: &'static str) -> bool {
    missing(&[(program, program)], &search_path()).is_empty()
}

/// Where programs are looked for: administrators' too, which are not on everyone's PATH.
fn search_path() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]).collect()
}

fn missing(needed: &[Needed], search: &[PathBuf]) -> Vec<&'static str> {
    // Joined to an absolute path, a directory does not matter.
    let there = |file: &str| search.iter().any(|directory| directory.join(Path::new(file)).exists());
    let mut packages: Vec<_> = needed.iter().filter(|(file, _)| !there(file)).map(|(_, package)| *package).collect();
    packages.sort_unstable();
    packages.dedup();
    packages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_missing_package_is_named_once() {
        let nowhere = [PathBuf::from("/nonexistent")];
        assert_eq!(missing(TO_RUN, &nowhere), ["coreutils", "iproute2", "mount", "util-linux"]);
        assert_eq!(missing(&[("/", "base"), ("no such program", "other")], &nowhere), ["other"]);
    }
}
