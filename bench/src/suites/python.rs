//! Programs that suites run: bounded in time, and Python packages in a virtual environment of their own.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::Setting;

/// Longest that a program may take.
const PROGRAM_MAX: Duration = Duration::from_secs(900);

/// Runs a program to its end, within fifteen minutes: whether it ended well, and its stdout (with its stderr if not).
///
/// # Errors
/// If it cannot be started.
pub fn output(command: &Command) -> Result<(bool, String), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let mut bounded = Command::new("timeout");
    bounded.arg(PROGRAM_MAX.as_secs().to_string()).arg(command.get_program()).args(command.get_args());
    for (key, value) in command.get_envs() {
        bounded.env(key, value.unwrap_or_default());
    }
    if let Some(directory) = command.get_current_dir() {
        bounded.current_dir(directory);
    }
    let output = bounded.stdin(Stdio::null()).output().map_err(|e| format!("{name}: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok((true, text));
    }
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    Ok((false, format!("{text}{errors}")))
}

/// Where suites keep what is made once: kvrail's part of the user's cache directory.
///
/// # Errors
/// If the environment names neither.
pub fn cache() -> Result<PathBuf, String> {
    let cache = std::env::var_os("XDG_CACHE_HOME").filter(|v| !v.is_empty()).map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    Ok(cache.or_else(home).ok_or("neither XDG_CACHE_HOME nor HOME is set")?.join("kvrail"))
}

/// A Python of its own in the user's cache directory, made once and used again.
///
/// # Errors
/// If there is no Python.
pub fn virtual_environment(name: &str) -> Result<PathBuf, String> {
    let directory = cache()?.join(name);
    let python = directory.join("bin/python");
    if !python.is_file() {
        let (ok, text) = output(Command::new("python3").args(["-m", "venv"]).arg(&directory))?;
        if !ok {
            return Err(format!("python3 -m venv: {text}"));
        }
    }
    Ok(python)
}

/// Python with the packages of `bench/clients/NAME`.
///
/// # Errors
/// If there is no Python, or a package cannot be had.
pub fn environment(setting: &Setting, name: &str) -> Result<PathBuf, String> {
    let python = virtual_environment("clients")?;
    let wanted = setting.root.join("bench/clients").join(name);
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "-q", "--disable-pip-version-check", "-r"]).arg(wanted);
    let (ok, text) = output(&pip)?;
    if ok { Ok(python) } else { Err(format!("pip install: {text}")) }
}
