//! The machine's kernel: built from the distribution's source package, kept in the user's cache.

use std::collections::VecDeque;
use std::fs::{File, create_dir_all, read_dir, read_to_string, remove_dir_all, rename, write};
use std::io::{BufRead, BufReader, pipe};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::packages;

/// Debian's package of the kernel's source: in Debian 12 by its security updates, and in Debian 13.
const PACKAGE: &str = "linux-source-6.12";
const CONFIG: &str = include_str!("../kernel.config");
const PATCH: &str = include_str!("../kernel.patch");
/// What make must be told in every step.
const ARCHITECTURE: [&str; 2] = ["ARCH=um", "SUBARCH=x86"];

/// How often a long step says that it goes on.
const PROGRESS: Duration = Duration::from_secs(10);
/// Lines of a failed step that are shown.
const TAIL_LINES: usize = 30;

/// Arguments of `build`.
#[derive(clap::Args)]
#[command(after_help = "\
The kernel is kept in $XDG_CACHE_HOME/kvrail/softroce (or ~/.cache/...), 10 MB; the build takes 2 GB there while it lasts.
To leave a busy machine to others:

  nice -n 19 cargo xtask softroce build --jobs 1")]
pub struct Args {
    /// Compilers at once; without it one a CPU.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
}

/// Builds the kernel, unless it is there.
pub fn build(args: &Args) -> Result<()> {
    let started = Instant::now();
    ensure!(
        cfg!(all(target_arch = "x86_64", target_os = "linux")) && packages::is_there("apt-get"),
        "the kernel is built on Debian 12 or 13 for x86-64, from its package {PACKAGE}. Elsewhere on Linux x86-64, do both, \
         build and run, in a container of Debian that is --privileged"
    );
    packages::check(&[packages::TO_BUILD, packages::TO_RUN, packages::FOR_VERBS].concat())?;
    let version = offered_version()?;
    let cache = cache()?;
    let place = cache.join(key(&version));
    create_dir_all(&cache).with_context(|| cache.display().to_string())?;
    if !place.exists() {
        // Whoever waited here finds it built.
        let lock = File::create(cache.join("lock"))?;
        if lock.try_lock().is_err() {
            println!("waiting for another build");
            lock.lock()?;
        }
        if !place.exists() {
            let work = cache.join("building");
            // What an interrupted build has left.
            remove_dir_all(&work).ok();
            create_dir_all(&work)?;
            let jobs =
                args.jobs.map_or_else(|| std::thread::available_parallelism().map_or(1, usize::from), usize::from);
            println!("building {PACKAGE} {version} with {jobs} at once, in {}", work.display());
            let built = build_in(&work, jobs).and_then(|ready| Ok(rename(ready, &place)?));
            remove_dir_all(&work).ok();
            built?;
            println!("built in {} s", started.elapsed().as_secs());
        }
    }
    println!("the kernel is {}", place.join("linux").display());
    Ok(())
}

/// The kernel built last with the configuration of today, from whichever version of the package.
pub fn find() -> Result<PathBuf> {
    let cache = cache()?;
    let suffix = key("");
    let built =
        read_dir(&cache).into_iter().flatten().flatten().filter(|e| e.file_name().to_string_lossy().ends_with(&suffix));
    let newest = built.max_by_key(|entry| entry.metadata().and_then(|m| m.modified()).ok());
    let newest = newest.with_context(|| {
        format!("there is no kernel for the soft-RoCE machine in {}: cargo xtask softroce build", cache.display())
    })?;
    Ok(newest.path().join("linux"))
}

/// Directory of the kernels.
fn cache() -> Result<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
    Ok(base
        .context("neither XDG_CACHE_HOME nor HOME is set: where should the kernel be kept?")?
        .join("kvrail/softroce"))
}

/// Name of the directory of a kernel: the package's version, then all that we put into it.
fn key(version: &str) -> String {
    let ours = [CONFIG, PATCH, &ARCHITECTURE.concat()].join("\0");
    format!("{version}-{}", &blake3::hash(ours.as_bytes()).to_hex()[..16])
}

/// The version of the package that apt would fetch.
fn offered_version() -> Result<String> {
    let output = Command::new("apt-cache").args(["policy", PACKAGE]).env("LC_ALL", "C").output()?;
    candidate(&String::from_utf8_lossy(&output.stdout)).with_context(|| {
        format!(
            "apt knows no package {PACKAGE}: as root, apt-get update; Debian 12 has it in its security updates, and 13"
        )
    })
}

/// Reads `apt-cache policy`.
fn candidate(policy: &str) -> Option<String> {
    let version = policy.lines().find_map(|line| line.trim().strip_prefix("Candidate: "))?.trim();
    (version != "(none)").then(|| version.to_owned())
}

/// Builds in `work`; returns a directory in it that has the kernel alone.
fn build_in(work: &Path, jobs: usize) -> Result<PathBuf> {
    let (source, objects, ready) = (work.join("source"), work.join("objects"), work.join("ready"));
    for directory in [&source, &objects, &ready] {
        create_dir_all(directory)?;
    }
    // As root, apt would rather fetch as a user that may not write here; it says so and fetches all the same.
    step("fetch the source", Command::new("apt-get").args(["download", PACKAGE]).current_dir(work))?;
    let archive = format!("./usr/src/{PACKAGE}.tar.xz");
    let unpack = "dpkg-deb --fsys-tarfile linux-source-*.deb | tar -xOf - \"$1\" |
        tar -xJf - -C source --strip-components=1 --exclude='*/Documentation/*/*'";
    step("unpack it", Command::new("sh").args(["-c", unpack, "sh", &archive]).current_dir(work))?;

    write(work.join("patch"), PATCH)?;
    let patch = ["-p1", "--batch", "--fuzz=0", "-i", "../patch"];
    step("patch it", Command::new("patch").args(patch).current_dir(&source))?;
    write(work.join("wanted"), CONFIG)?;

    let make = || {
        // Asked to end, we end; make must too.
        let mut make = Command::new("setpriv");
        make.args(["--pdeathsig", "TERM", "make", "-C"]).arg(&source).arg(format!("O={}", objects.display()));
        make.args(ARCHITECTURE);
        make
    };
    step("configure it", make().arg("allnoconfig").env("KCONFIG_ALLCONFIG", work.join("wanted")))?;
    let refused = refused(CONFIG, &read_to_string(objects.join(".config"))?);
    ensure!(refused.is_empty(), "{PACKAGE} does not grant all of kernel.config: {}", refused.join(" "));
    step("compile it", make().arg(format!("-j{jobs}")).arg("linux"))?;
    step("strip it", Command::new("strip").arg("-g").arg("-o").arg(ready.join("linux")).arg(objects.join("linux")))?;
    Ok(ready)
}

/// Lines of `wanted` that the configuration `got` does not have.
fn refused<'a>(wanted: &'a str, got: &str) -> Vec<&'a str> {
    let got: std::collections::HashSet<_> = got.lines().collect();
    wanted.lines().filter(|line| line.starts_with("CONFIG_") && !got.contains(line)).collect()
}

/// Runs one step of the build; says every few seconds how far it is, and of a failure what it said last.
fn step(what: &str, command: &mut Command) -> Result<()> {
    let started = Instant::now();
    let mut told = started;
    let (from, to) = pipe()?;
    command.stdin(Stdio::null()).stdout(to.try_clone()?).stderr(to);
    let mut child = command.spawn().with_context(|| format!("cannot start {:?}", command.get_program()))?;
    // Our ends of the pipe; the output would never end with them open.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut tail = VecDeque::new();
    for (count, line) in BufReader::new(from).split(b'\n').enumerate() {
        tail.push_back(String::from_utf8_lossy(&line?).into_owned());
        if tail.len() > TAIL_LINES {
            tail.pop_front();
        }
        if told.elapsed() >= PROGRESS {
            told = Instant::now();
            println!("{what}: {} lines of output, {} s", count + 1, started.elapsed().as_secs());
        }
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("could not {what} ({status}); it said last:\n{}", Vec::from(tail).join("\n"));
    }
    println!("{what}: done in {} s", started.elapsed().as_secs());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_tells_versions_apart_and_ends_in_our_part() {
        assert_ne!(key("6.12.1-1"), key("6.12.1-2"));
        assert!(key("6.12.1-1").starts_with("6.12.1-1-") && key("6.12.1-1").ends_with(&key("")));
        assert!(!key("6.12.1-1~deb12u1").contains('/'));
    }

    #[test]
    fn the_version_is_what_apt_offers() {
        let policy = "linux-source-6.12:\n  Installed: (none)\n  Candidate: 6.12.1-1~deb12u1\n  Version table:\n";
        assert_eq!(candidate(policy).as_deref(), Some("6.12.1-1~deb12u1"));
        assert_eq!(candidate("linux-source-6.12:\n  Installed: (none)\n  Candidate: (none)\n"), None);
        assert_eq!(candidate(""), None, "a package that nobody knows");
    }

    #[test]
    fn a_setting_that_was_not_granted_is_named() {
        let wanted = "# why\nCONFIG_A=y\nCONFIG_B=\"null\"\nCONFIG_C=y\n";
        assert_eq!(refused(wanted, "CONFIG_A=y\nCONFIG_B=\"null\"\n# CONFIG_C is not set\n"), ["CONFIG_C=y"]);
        assert!(refused(wanted, wanted).is_empty());
        assert!(CONFIG.contains("\nCONFIG_RDMA_RXE=y\n"), "the one that all of this is about");
    }

    #[test]
    fn a_step_that_fails_tells_its_last_lines() {
        let said =
            step("count", Command::new("sh").args(["-c", "seq 100; echo why >&2; exit 3"])).unwrap_err().to_string();
        assert!(said.contains("could not count") && said.contains("\n100\nwhy"), "{said}");
        assert!(!said.contains("\n70\n"), "no more than the last: {said}");
        step("succeed", &mut Command::new("true")).unwrap();
    }
}
