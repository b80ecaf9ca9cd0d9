//! Files under a root: bounded, and never outside it.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::topology::error::TopologyError;
use crate::topology::types::Source;

/// More than any attribute has (a page); `config` has as much.
const FILE_BYTES_MAX: u64 = 4096;
/// Entries of one directory.
const ENTRIES_MAX: usize = 8192;

type Result<T> = std::result::Result<T, TopologyError>;

/// A `/sys`, live or captured. What is not there is `None` or empty: kernels and captures differ in what they have.
pub(super) struct Tree {
    root: PathBuf,
}

impl Tree {
    /// The tree at `root`, or at `root/sys` if that is there.
    pub(super) fn open(root: &Path) -> Result<Self> {
        let inner = root.join("sys");
        let root = if inner.join("class").is_dir() { &inner } else { root };
        let open = |source| TopologyError::Io { path: root.to_owned(), source };
        let resolved = root.canonicalize().map_err(open)?;
        fs::read_dir(&resolved).map_err(open)?;
        Ok(Self { root: resolved })
    }

    /// The directory or file at `path` under the root with all links followed, if it is there.
    ///
    /// # Errors
    /// If a link leads nowhere, in a circle, or out of the tree.
    pub(super) fn resolve(&self, path: &str) -> Result<Option<PathBuf>> {
        let path = self.root.join(path);
        let wrong = |says: String| TopologyError::Link { path: path.clone(), root: self.root.clone(), says };
        match path.canonicalize() {
            Ok(target) if target.starts_with(&self.root) => Ok(Some(target)),
            Ok(_) => Err(wrong("the link leads out of the tree".into())),
            Err(_) if fs::symlink_metadata(&path).is_err() => Ok(None),
            Err(error) => Err(wrong(format!("the link cannot be followed ({error})"))),
        }
    }

    /// Names in a directory, sorted. One that is no text is no device of ours, and is an error.
    pub(super) fn list(&self, path: &str) -> Result<Vec<String>> {
        let Some(directory) = self.resolve(path)? else { return Ok(Vec::new()) };
        let Ok(entries) = fs::read_dir(directory) else { return Ok(Vec::new()) };
        let mut names = Vec::new();
        for entry in entries.take(ENTRIES_MAX + 1).flatten() {
            let name = entry.file_name().into_string().map_err(|name| {
                let wants = "a name in UTF-8";
                TopologyError::field(Source::Sysfs, None, path, &name.to_string_lossy(), wants)
            })?;
            names.push(name);
        }
        if names.len() > ENTRIES_MAX {
            return Err(TopologyError::too_many(Source::Sysfs, "entries in a directory", names.len(), ENTRIES_MAX));
        }
        names.sort();
        Ok(names)
    }

    /// Bytes of a file, no more than a page.
    pub(super) fn bytes(&self, path: &str) -> Result<Option<Vec<u8>>> {
        let Some(file) = self.resolve(path)?.filter(|file| file.is_file()) else { return Ok(None) };
        let mut bytes = Vec::new();
        // Some attributes refuse to be read when their device is down: that is not known, then.
        let read = fs::File::open(file).and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut bytes));
        Ok(read.ok().map(|_| bytes))
    }

    /// Text of a file, without white space around it.
    pub(super) fn text(&self, path: &str) -> Result<Option<String>> {
        let Some(bytes) = self.bytes(path)? else { return Ok(None) };
        match String::from_utf8(bytes) {
            Ok(text) => Ok(Some(text.trim().to_owned()).filter(|text| !text.is_empty())),
            Err(error) => {
                let found = String::from_utf8_lossy(error.as_bytes()).into_owned();
                Err(TopologyError::field(Source::Sysfs, None, path, &found, "text in UTF-8"))
            }
        }
    }

    /// A file that holds one value.
    ///
    /// # Errors
    /// If it holds something else; `wants` says what would be right.
    pub(super) fn value<T: FromStr>(&self, path: &str, wants: &str) -> Result<Option<T>> {
        let Some(text) = self.text(path)? else { return Ok(None) };
        text.parse().map(Some).map_err(|_| TopologyError::field(Source::Sysfs, None, path, &text, wants))
    }

    /// Is there something at `path`?
    pub(super) fn has(&self, path: &str) -> bool {
        self.root.join(path).exists()
    }

    /// Where a resolved path is under the root.
    pub(super) fn below<'p>(&self, path: &'p Path) -> &'p Path {
        path.strip_prefix(&self.root).unwrap_or(path)
    }
}
