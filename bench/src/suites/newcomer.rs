//! A newcomer's machine: an empty home directory, no caches, no tools but those that the README says to have, and a fresh
//! clone.
//!
//! Taken over from whoever runs the suite: the Rust toolchain, Python, what lies on the `PATH` outside the home directory
//! (a C compiler, git), and how packages are fetched: proxies, certificates, and the settings files of Cargo and pip, which
//! may name a mirror. Nothing that was built, fetched or installed comes along.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// Settings of Cargo, pip and the network, and how text is written. Else no variable is taken over.
const PREFIXES: &[&str] =
    &["PIP_", "CARGO_REGISTRIES_", "CARGO_SOURCE_", "CARGO_HTTP_", "CARGO_NET_", "LC_", "LANG", "TERM", "TMPDIR"];
/// The same: what programs of many makers call their proxies and certificates.
const PARTS: &[&str] = &["_proxy", "_PROXY", "SSL", "CERT", "CA_BUNDLE", "CAINFO"];
/// Settings files, from the home directory on.
const FILES: &[&str] = &[".cargo/config.toml", ".config/pip/pip.conf", ".pip/pip.conf"];

/// The machine; it is gone when this is dropped.
pub struct Newcomer {
    directory: TempDir,
    path: OsString,
}

impl Newcomer {
    /// Makes the machine, and clones the repository at `root`.
    ///
    /// # Errors
    /// If there is no toolchain, no Python, or no clone.
    pub fn new(root: &Path) -> Result<Self, String> {
        let directory = tempfile::tempdir().map_err(|e| e.to_string())?;
        let own = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
        let cargo = std::env::var_os("CARGO_HOME").map_or(own.join(".cargo"), PathBuf::from);
        let home = directory.path().join("home");
        std::fs::create_dir(&home).map_err(|e| e.to_string())?;
        for file in FILES {
            let from = file.strip_prefix(".cargo/").map_or(own.join(file), |file| cargo.join(file));
            if from.is_file() {
                copy(&from, &home.join(file))?;
            }
        }
        let told = |program: &str, args: &[&str]| {
            let output = Command::new(program).args(args).current_dir(root).output();
            let output = output.map_err(|e| format!("{program}: {e}"))?;
            let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            if output.status.success() { Ok(PathBuf::from(text)) } else { Err(format!("{program} {args:?} failed")) }
        };
        // The programs themselves, not what picks one of several by looking into the home directory.
        let python = told("python3", &["-c", "import sys; print(sys.executable)"])?;
        let tools = [
            told("rustc", &["--print", "sysroot"])?.join("bin"),
            python.parent().ok_or("python3 lies nowhere")?.to_owned(),
        ];
        let all = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths(path(tools, std::env::split_paths(&all), &[own, cargo]));
        let this = Self { directory, path: path.map_err(|e| e.to_string())? };
        let clone = this.clone_directory();
        let output = this.command("git").arg("clone").arg("--quiet").arg(root).arg(&clone).output();
        let output = output.map_err(|e| format!("git: {e}"))?;
        if !clone.join("Cargo.toml").is_file() {
            return Err(format!("git clone: {}", String::from_utf8_lossy(&output.stderr)));
        }
        Ok(this)
    }

    /// Where the fresh clone is.
    #[must_use]
    pub fn clone_directory(&self) -> PathBuf {
        self.directory.path().join("kvrail")
    }

    /// A program on that machine.
    #[must_use]
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env_clear().envs(std::env::vars_os().filter(|(name, _)| is_taken_over(&name.to_string_lossy())));
        command.env("HOME", self.directory.path().join("home")).env("PATH", &self.path);
        command.current_dir(self.directory.path());
        command
    }
}

fn is_taken_over(variable: &str) -> bool {
    PREFIXES.iter().any(|prefix| variable.starts_with(prefix)) || PARTS.iter().any(|part| variable.contains(part))
}

/// The tools first, then what does not lie below one of `homes`.
fn path(
    tools: impl IntoIterator<Item = PathBuf>,
    all: impl IntoIterator<Item = PathBuf>,
    homes: &[PathBuf],
) -> Vec<PathBuf> {
    let outside = |place: &PathBuf| !homes.iter().any(|home| place.starts_with(home));
    tools.into_iter().chain(all.into_iter().filter(outside)).collect()
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let directory = to.parent().ok_or("a file without a directory")?;
    std::fs::create_dir_all(directory).map_err(|e| e.to_string())?;
    std::fs::copy(from, to).map(drop).map_err(|e| format!("{}: {e}", from.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_the_network_come_along_and_nothing_else() {
        for name in ["PIP_INDEX_URL", "https_proxy", "SSL_CERT_FILE", "CARGO_REGISTRIES_CRATES_IO_PROTOCOL", "LANG"] {
            assert!(is_taken_over(name), "{name}");
        }
        for name in ["HOME", "PATH", "CARGO_HOME", "CARGO_TARGET_DIR", "XDG_CACHE_HOME", "RUSTFLAGS", "KVRAIL_MODEL"] {
            assert!(!is_taken_over(name), "{name}");
        }
    }

    #[test]
    fn nothing_in_a_home_directory_is_on_the_path_but_the_tools() {
        let places = |all: &[&str]| all.iter().map(PathBuf::from).collect::<Vec<_>>();
        let all = places(&["/home/a/.cargo/bin", "/usr/bin", "/srv/cargo/bin", "/home/b/bin", "/bin"]);
        let found = path(places(&["/home/a/.rustup/x/bin"]), all, &places(&["/home/a", "/srv/cargo"]));
        assert_eq!(found, places(&["/home/a/.rustup/x/bin", "/usr/bin", "/home/b/bin", "/bin"]));
    }

    #[test]
    fn a_program_there_sees_an_empty_home_and_the_clone() {
        let root = tempfile::tempdir().unwrap();
        let commit = "git init -q && touch Cargo.toml && git add . \
                      && git -c user.name=n -c user.email=n@n commit -qm x";
        assert!(Command::new("sh").args(["-c", commit]).current_dir(root.path()).status().unwrap().success());
        let newcomer = Newcomer::new(root.path()).unwrap();
        let line = "ls \"$HOME\"; env | grep -c ^CARGO_; cargo --version; python3 --version; pwd";
        let output =
            newcomer.command("sh").args(["-c", line]).current_dir(newcomer.clone_directory()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let [variables, cargo, python, directory] = text.lines().collect::<Vec<_>>()[..] else { panic!("{text}") };
        assert!(variables == "0" && cargo.starts_with("cargo 1.") && python.starts_with("Python 3."), "{text}");
        assert!(directory.ends_with("/kvrail"), "{text}");
    }
}
