//! Whether the maps are true, both ways: what ARCHITECTURE.md names is there, every crate and every folder of one is on it,
//! and each crate's `lib.rs` names all its modules.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Files of the repository, and the folders they lie in; no folder ends with a slash.
pub struct Tree(BTreeSet<String>);

impl Tree {
    /// What git knows of at `root`.
    ///
    /// # Errors
    /// Git's.
    pub fn of(root: &Path) -> Result<Self, String> {
        let mut git = Command::new("git");
        git.args(["ls-files", "--cached", "--others", "--exclude-standard"]).current_dir(root);
        let output = git.output().map_err(|e| format!("git: {e}"))?;
        Ok(Self::new(String::from_utf8_lossy(&output.stdout).lines()))
    }

    fn new<'a>(files: impl IntoIterator<Item = &'a str>) -> Self {
        let all = files.into_iter().flat_map(|file| Path::new(file).ancestors());
        Self(all.map(|path| path.display().to_string()).filter(|path| !path.is_empty()).collect())
    }

    /// Folders directly below a crate's sources.
    fn rooms(&self, member: &str) -> Vec<&str> {
        let source = if member == "src" { "src/".to_owned() } else { format!("{member}/src/") };
        let below = self.0.iter().filter_map(|path| path.strip_prefix(&source));
        let is_folder = |name: &&str| self.0.iter().any(|path| path.starts_with(&format!("{source}{name}/")));
        below.filter(|path| !path.contains('/')).filter(is_folder).collect()
    }

    /// Whether a file, folder or module is there: from the root on, or anywhere below one of `folders`.
    fn has(&self, name: &str, folders: &[String]) -> bool {
        let name = name.trim_end_matches('/');
        let (head, tail) = name.split_once('*').unwrap_or((name, ""));
        let is_it = |path: &str| {
            // A pattern, the number of a decision, a module.
            path == name
                || path.strip_suffix(".rs") == Some(name)
                || (name.contains('*') && path.starts_with(head) && path.ends_with(tail))
                || path.strip_prefix(name).is_some_and(|rest| rest.starts_with('-'))
        };
        let below = |path: &str, folder: &String| {
            let inside = path.strip_prefix(folder.as_str()).and_then(|rest| rest.strip_prefix('/'));
            inside.is_some_and(|inside| {
                let starts = inside.match_indices('/').map(|(at, _)| at + 1);
                std::iter::once(0).chain(starts).any(|start| is_it(&inside[start..]))
            })
        };
        self.0.iter().any(|path| is_it(path) || folders.iter().any(|folder| below(path, folder)))
    }
}

/// What the text between two headings names.
struct Section {
    /// Crates of its heading.
    folders: Vec<String>,
    names: Vec<String>,
}

/// Sections with what stands between backticks, braces written out.
fn sections(text: &str) -> Vec<Section> {
    let mut all = vec![Section { folders: Vec::new(), names: Vec::new() }];
    for line in text.lines() {
        let names: Vec<String> = line.split('`').skip(1).step_by(2).flat_map(written_out).collect();
        if line.starts_with("## ") || line.starts_with("### ") {
            let folders = names.iter().map(|name| name.trim_end_matches('/').to_owned()).collect();
            all.push(Section { folders, names });
        } else if let Some(section) = all.last_mut() {
            section.names.extend(names);
        }
    }
    all
}

/// `a/{b,c}.rs` is `a/b.rs` and `a/c.rs`.
fn written_out(name: &str) -> Vec<String> {
    let braces = name.split_once('{').and_then(|(head, rest)| Some((head, rest.split_once('}')?)));
    let Some((head, (inner, tail))) = braces else { return vec![name.to_owned()] };
    inner.split(',').map(|one| format!("{head}{one}{tail}")).collect()
}

/// A path, or in a crate's section the name of a module; not a type, a field or a route.
fn is_place(name: &str, in_crate: bool) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_./*-".contains(c);
    let module = |c: char| c.is_ascii_lowercase() || c == '_';
    !name.starts_with('/') && name.chars().all(plain) && (name.contains('/') || in_crate && name.chars().all(module))
}

/// What is wrong with ARCHITECTURE.md, and how many places it names. `members` are the crates.
pub fn untrue(map: &str, members: &[&str], tree: &Tree) -> (Vec<String>, usize) {
    let (sections, mut wrong, mut places) = (sections(map), Vec::new(), 0);
    for section in &sections {
        for name in section.names.iter().filter(|name| is_place(name, !section.folders.is_empty())) {
            places += 1;
            if !tree.has(name, &section.folders) {
                wrong.push(format!("ARCHITECTURE.md names `{name}`, which is not there"));
            }
        }
    }
    for member in members {
        let Some(section) = sections.iter().find(|section| section.folders.iter().any(|folder| folder == member))
        else {
            wrong.push(format!("ARCHITECTURE.md has no section on `{member}/`"));
            continue;
        };
        for room in tree.rooms(member) {
            if !section.names.iter().any(|name| name.contains('/') && name.split('/').any(|part| part == room)) {
                wrong.push(format!("ARCHITECTURE.md has no `{room}/` in the section on `{member}/`"));
            }
        }
    }
    (wrong, places)
}

/// Modules that the head of a `lib.rs` does not name.
pub fn unnamed(library: &str) -> Vec<String> {
    let head: String = library.lines().take_while(|line| line.starts_with("//!")).collect();
    let module = |line: &str| {
        let rest = line.strip_prefix("pub ").unwrap_or(line).strip_prefix("mod ")?;
        Some(rest.trim_end_matches([';', '{', ' ']).to_owned())
    };
    library.lines().filter_map(module).filter(|name| name != "tests" && !head.contains(&format!("`{name}`"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAP: &str = "## Laws\n`kv/` and `docs/decisions/0003`, `/status`, `Prefill.Run`\n## The crates\n\
                       ### `kv/` and `kv/inner/`\n`chain` hashes, `Chain` them · `src/{plan,memory}/` · `v1/*.proto`\n\
                       ### `src/` the binary\n`src/up/`\n";

    fn tree() -> Tree {
        Tree::new([
            "kv/src/lib.rs",
            "kv/src/chain.rs",
            "kv/src/plan/mod.rs",
            "kv/src/memory/deep/x.rs",
            "kv/v1/a.proto",
            "kv/inner/src/lib.rs",
            "docs/decisions/0003-unsafe.md",
            "src/up/mod.rs",
        ])
    }

    fn wrong(map: &str) -> Vec<String> {
        untrue(map, &["kv", "kv/inner", "src"], &tree()).0
    }

    #[test]
    fn a_true_map_is_true() {
        assert_eq!(untrue(MAP, &["kv", "kv/inner", "src"], &tree()), (vec![], 10));
    }

    #[test]
    fn what_is_not_there_and_what_is_not_named_is_told() {
        for (from, to) in [
            ("`chain`", "`chains`"),
            ("docs/decisions/0003", "docs/decisions/0004"),
            ("v1/*", "v2/*"),
            ("plan,memory", "plan,memories"),
            ("`src/{plan,memory}/`", "`src/plan/`, and memory"),
            ("### `src/` the binary", "### the binary"),
            ("`src/up/`", "up/"),
        ] {
            let changed = MAP.replace(from, to);
            assert!(changed != MAP && !wrong(&changed).is_empty(), "{from} → {to}");
        }
    }

    #[test]
    fn a_module_that_is_not_in_the_head_is_told() {
        let library = "//! Map: `a` one · [`b`] two\n\nmod a;\npub mod b;\nmod c;\nmod tests {\n";
        assert_eq!(unnamed(library), ["c"]);
    }
}
