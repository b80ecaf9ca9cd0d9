//! The directory where models are kept.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
};

use kvrail_text::catalogue;
use rustix::fs::{FlockOperation, flock, statvfs};

use super::{error::PullError, progress::size};

/// A directory of model files.
#[derive(Clone, Debug)]
pub struct Cache {
    dir: PathBuf,
}

/// Held while a pull writes into the cache; the kernel lets go of it when the process ends, however it ends.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Cache {
    /// The cache in `dir`, or in the user's cache directory.
    ///
    /// # Errors
    /// [`PullError::NoCache`] where there is neither.
    pub fn open(dir: Option<PathBuf>) -> Result<Self, PullError> {
        let of_user = || {
            let path = |name: &str| std::env::var_os(name).map(PathBuf::from);
            catalogue::models_dir(path("XDG_CACHE_HOME").as_deref(), path("HOME").as_deref())
        };
        dir.or_else(of_user).map(|dir| Self { dir }).ok_or(PullError::NoCache)
    }

    /// Its path; may not exist yet.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Path of a file of this name, if it is here. What is here under its own name was verified.
    pub fn find(&self, file: &str) -> Option<PathBuf> {
        let path = self.dir.join(file);
        path.is_file().then_some(path)
    }

    /// All model files with their sizes, by name.
    ///
    /// # Errors
    /// [`PullError::Io`].
    pub fn files(&self) -> Result<Vec<(PathBuf, u64)>, PullError> {
        let entries = match fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(PullError::io(&self.dir)(error)),
        };
        let mut files = Vec::new();
        for entry in entries {
            let entry = entry.map_err(PullError::io(&self.dir))?;
            let path = entry.path();
            if path.extension().is_some_and(|extension| extension == "gguf") {
                files.push((path.clone(), entry.metadata().map_err(PullError::io(path))?.len()));
            }
        }
        files.sort();
        Ok(files)
    }

    /// Makes the directory and keeps other pulls out of it.
    ///
    /// # Errors
    /// [`PullError::Busy`] while another pull runs, [`PullError::Io`].
    pub fn lock(&self) -> Result<Lock, PullError> {
        fs::create_dir_all(&self.dir).map_err(PullError::io(&self.dir))?;
        let path = self.dir.join(".lock");
        let file =
            File::options().create(true).truncate(false).write(true).open(&path).map_err(PullError::io(&path))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Lock { _file: file }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(PullError::Busy { path: self.dir.clone() }),
            Err(error) => Err(PullError::io(path)(error.into())),
        }
    }

    /// Refuses to begin what cannot end.
    ///
    /// # Errors
    /// [`PullError::NoSpace`] if less than `bytes` are free.
    pub fn check_space(&self, bytes: u64) -> Result<(), PullError> {
        let stat = statvfs(&self.dir).map_err(|error| PullError::io(&self.dir)(error.into()))?;
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        if free < bytes {
            return Err(PullError::NoSpace { path: self.dir.clone(), needed: size(bytes), free: size(free) });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_models_are_listed_and_found() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(Some(dir.path().join("models"))).unwrap();
        assert_eq!(cache.files().unwrap(), []);
        let lock = cache.lock().unwrap();
        assert!(matches!(cache.lock(), Err(PullError::Busy { .. })));
        drop(lock);
        drop(cache.lock().unwrap());
        fs::write(cache.dir().join("a.gguf"), "abc").unwrap();
        fs::write(cache.dir().join("b.gguf.part"), "ab").unwrap();
        assert_eq!(cache.files().unwrap(), [(cache.dir().join("a.gguf"), 3)]);
        assert_eq!((cache.find("a.gguf").is_some(), cache.find("b.gguf")), (true, None));
    }

    #[test]
    fn a_disk_that_is_too_small_is_told_beforehand() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(Some(dir.path().into())).unwrap();
        cache.check_space(1).unwrap();
        let error = cache.check_space(1 << 60).unwrap_err().to_string();
        assert!(error.contains("1.0 EiB are needed") || error.contains("are needed"), "{error}");
    }
}
