//! Files under a root directory: the machine's own, or a captured tree.

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
};

/// More than any file that is read here has; `/proc` files have no size to check beforehand.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// A root directory. What is not there is `None` or empty, never an error: that it is not there is the finding.
#[derive(Clone, Debug)]
pub struct Root(PathBuf);

impl Root {
    /// The tree under `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// Where a path is under the root.
    pub fn at(&self, path: &str) -> PathBuf {
        self.0.join(path.trim_start_matches('/'))
    }

    /// Text of a file, without white space around it.
    pub fn read(&self, path: &str) -> Option<String> {
        let mut text = Vec::new();
        fs::File::open(self.at(path)).ok()?.take(FILE_BYTES_MAX).read_to_end(&mut text).ok()?;
        Some(String::from_utf8_lossy(&text).trim().to_owned())
    }

    /// A file that holds a number.
    pub fn number<T: std::str::FromStr>(&self, path: &str) -> Option<T> {
        self.read(path)?.parse().ok()
    }

    /// Names in a directory, sorted.
    pub fn list(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.at(path)).into_iter().flatten();
        let mut names: Vec<String> = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// Whether something is there.
    pub fn exists(&self, path: &str) -> bool {
        self.at(path).exists()
    }

    /// Last part of what a symbolic link points to.
    pub fn link_name(&self, path: &str) -> Option<String> {
        let target = fs::read_link(self.at(path)).ok()?;
        Some(target.file_name()?.to_str()?.to_owned())
    }

    /// Value of `key: value unit` in a file of such lines, like `/proc/meminfo`, in kB.
    pub fn kilobytes(&self, path: &str, key: &str) -> Option<u64> {
        let text = self.read(path)?;
        let line = text.lines().find(|line| line.split(':').next() == Some(key))?;
        line.split_whitespace().nth(1)?.parse().ok()
    }

    /// The shared library of this name, where the loader looks. Nothing is opened or run.
    pub fn library(&self, name: &str) -> Option<String> {
        const DIRS: [&str; 9] = [
            "lib/x86_64-linux-gnu",
            "usr/lib/x86_64-linux-gnu",
            "lib/aarch64-linux-gnu",
            "usr/lib/aarch64-linux-gnu",
            "usr/lib/wsl/lib",
            "lib64",
            "usr/lib64",
            "usr/lib",
            "usr/local/lib",
        ];
        let found = |dir: &str| Path::new(dir).join(name).to_str().map(|path| format!("/{path}"));
        DIRS.iter().filter_map(|dir| found(dir)).find(|path| self.exists(path))
    }
}

/// A tree for tests: files by path and content.
#[cfg(test)]
pub(super) fn tree(files: &[(&str, &str)]) -> (tempfile::TempDir, Root) {
    let dir = tempfile::tempdir().unwrap();
    for (path, content) in files {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    let root = Root::new(dir.path());
    (dir, root)
}
