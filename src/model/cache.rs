//! The directory where models are kept.

use std::{
    fs::{self, File},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
};

use kvrail_text::catalogue::{self, KnownModel};
use rustix::fs::{FlockOperation, flock, statvfs};

use super::{error::PullError, progress::size, pull::hash_file};

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

    /// Path of a file of this name, if it is here; of a known model rather [`Self::verified`].
    pub fn find(&self, file: &str) -> Option<PathBuf> {
        let path = self.dir.join(file);
        path.is_file().then_some(path)
    }

    /// Path of a known model's file, if it is here and is what it should be. Hashes it only where it is not the file that
    /// was verified last.
    ///
    /// # Errors
    /// [`PullError::Damaged`], [`PullError::Io`], [`PullError::Interrupted`].
    pub fn verified(&self, model: &KnownModel, stop: &AtomicBool) -> Result<Option<PathBuf>, PullError> {
        let Some(path) = self.find(model.file) else { return Ok(None) };
        let damaged = |why: String| PullError::Damaged { path: path.clone(), why, name: model.name };
        let bytes = fs::metadata(&path).map_err(PullError::io(&path))?.len();
        if bytes != model.bytes {
            return Err(damaged(format!("it has {bytes} bytes, not {}", model.bytes)));
        }
        let stamp = stamp(&path, model.sha256)?;
        if fs::read_to_string(stamp_path(&path)).is_ok_and(|text| text == stamp) {
            return Ok(Some(path));
        }
        say!("verifying {}: it is new or was changed", path.display());
        let found = hash_file(&path, stop)?;
        if found != model.sha256 {
            return Err(damaged(format!("it has sha256 {found}, not {}", model.sha256)));
        }
        write_stamp(&path, &stamp);
        Ok(Some(path))
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

/// What is noted beside a file that was verified: whoever writes into it changes its size or its time.
///
/// # Errors
/// [`PullError::Io`].
pub fn stamp(path: &Path, sha256: &str) -> Result<String, PullError> {
    let metadata = fs::metadata(path).map_err(PullError::io(path))?;
    Ok(format!("{sha256} {} {}.{:09}\n", metadata.len(), metadata.mtime(), metadata.mtime_nsec()))
}

/// Notes that a file was verified, when it had this stamp. Where that cannot be written, the file is verified each time.
pub fn write_stamp(path: &Path, stamp: &str) {
    let _ = fs::write(stamp_path(path), stamp);
}

fn stamp_path(path: &Path) -> PathBuf {
    path.with_extension("gguf.verified")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_model_is_hashed_when_it_changed_and_refused_when_it_is_another() {
        // That of `abc`, by FIPS 180.
        let sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let model = KnownModel { name: "toy", file: "toy.gguf", bytes: 3, sha256, ..catalogue::DEFAULT };
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(Some(dir.path().into())).unwrap();
        let look = || cache.verified(&model, &AtomicBool::new(false)).map_err(|error| error.to_string());
        let write = |text: &str, second: u64| {
            fs::write(dir.path().join("toy.gguf"), text).unwrap();
            let file = File::options().append(true).open(dir.path().join("toy.gguf")).unwrap();
            file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(second)).unwrap();
        };
        assert_eq!(look().unwrap(), None);
        write("abc", 1);
        assert!(look().unwrap().is_some());
        // Nobody changes a file and keeps its time: this shows that a stamp spares the hash.
        write("abd", 1);
        assert!(look().unwrap().is_some());
        for (text, why) in [("abd", "it has sha256 "), ("ab", "it has 2 bytes, not 3")] {
            write(text, 2);
            let error = look().unwrap_err();
            assert!(error.contains(why) && error.contains("`kvrail model pull toy`"), "{error}");
        }
        write("abc", 2);
        assert!(look().unwrap().is_some());
        assert_eq!(cache.files().unwrap().len(), 1, "a stamp is no model");
    }

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
