//! Where logs go: one directory a run, the last few kept.

use std::{
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::Context;

/// Runs whose logs are kept, this one included.
const RUNS_MAX: usize = 5;

/// The directory of this run's logs, which is its own while it runs.
#[derive(Debug)]
pub struct Logs {
    dir: PathBuf,
    /// Locked: nobody else writes here, and nobody removes it.
    _lock: File,
}

impl Logs {
    /// Makes the directory: `dir`, or a new one in the user's state directory, where the oldest then go.
    ///
    /// # Errors
    /// If it cannot be made, or another `kvrail up` writes there.
    pub fn create(dir: Option<&Path>) -> anyhow::Result<Self> {
        let dir = match dir {
            Some(dir) => dir.to_owned(),
            None => {
                let runs = runs_dir();
                prune(&runs);
                let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
                runs.join(format!("{seconds}-{}", std::process::id()))
            }
        };
        let at = || format!("directory for logs {}", dir.display());
        let lock = fs::create_dir_all(&dir).and_then(|()| File::open(&dir)).with_context(at)?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { dir, _lock: lock }),
            Err(TryLockError::WouldBlock) => {
                anyhow::bail!("{} belongs to a `kvrail up` that runs: give this one another --log-dir", dir.display())
            }
            Err(TryLockError::Error(error)) => Err(error).with_context(at),
        }
    }

    /// Log file of a process.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.log"))
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

fn runs_dir() -> PathBuf {
    let path = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = path("XDG_STATE_HOME").or_else(|| Some(path("HOME")?.join(".local/state")));
    state.unwrap_or_else(std::env::temp_dir).join("kvrail").join("logs")
}

/// Removes all but the newest runs, so that with this one no more than [`RUNS_MAX`] are left, and those that still run.
fn prune(runs: &Path) {
    let Ok(entries) = fs::read_dir(runs) else { return };
    // Only what this program names: seconds, a dash, a process id.
    let over = |name: &str| {
        let Some((seconds, id)) = name.split_once('-') else { return false };
        let ours = seconds.parse::<u64>().is_ok() && id.parse::<u32>().is_ok();
        // Who runs holds its lock.
        ours && File::open(runs.join(name)).is_ok_and(|dir| dir.try_lock().is_ok())
    };
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).filter(|name| over(name)).collect();
    names.sort();
    let surplus = (names.len() + 1).saturating_sub(RUNS_MAX);
    for name in names.iter().take(surplus) {
        // What cannot be removed stays; it is in nobody's way.
        let _ = fs::remove_dir_all(runs.join(name));
    }
}

/// Opens a log to append to; makes its directory where somebody removed it.
///
/// # Errors
/// If it cannot be opened; the path is said.
pub fn open(path: &Path) -> anyhow::Result<File> {
    let file = || File::options().create(true).append(true).open(path);
    let again = |error: io::Error| match path.parent() {
        Some(dir) if error.kind() == io::ErrorKind::NotFound => fs::create_dir_all(dir).and_then(|()| file()),
        _ => Err(error),
    };
    file().or_else(again).with_context(|| format!("log file {}", path.display()))
}

/// Nowhere: for a process that must run without a log.
///
/// # Errors
/// If the machine has no `/dev/null`.
pub fn nowhere() -> io::Result<File> {
    File::options().append(true).open("/dev/null")
}

/// The last lines of a log, for a message about a process that failed.
pub fn tail(path: &Path, lines: usize) -> String {
    let text = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text[text.len().saturating_sub(1 << 16)..]);
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_runs_go_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let mut runs: Vec<String> = (1..=6).map(|second| format!("{second}-4711")).collect();
        runs.extend(["mine".into(), "7-x".into(), "0-4711".into()]);
        for name in &runs {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let running = Logs::create(Some(&dir.path().join("0-4711"))).unwrap();
        prune(dir.path());
        drop(running);
        let gone: Vec<_> = runs.iter().filter(|name| !dir.path().join(name).exists()).collect();
        assert_eq!(gone, [&runs[0], &runs[1]]);
    }

    #[test]
    fn a_directory_belongs_to_one_run_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let first = Logs::create(Some(dir.path())).unwrap();
        let second = Logs::create(Some(dir.path())).unwrap_err().to_string();
        assert!(second.contains("another --log-dir"), "{second}");
        drop(first);
        assert!(Logs::create(Some(dir.path())).is_ok());
    }

    #[test]
    fn a_tail_is_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.log");
        fs::write(&path, "1\n2\n3\n").unwrap();
        assert_eq!((tail(&path, 2), tail(&dir.path().join("none"), 2)), ("2\n3".into(), String::new()));
    }
}
