//! `cargo xtask tidy`: the repository checks itself.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::run::{output, root};

/// Longest Rust file.
const LINES_MAX: usize = 700;

/// Files in which `unsafe` may stand: the foreign memory, the system calls and the vector instructions.
const UNSAFE_MAY: &[&str] = &[
    "engine/src/memory.rs",
    "engine/src/cpu/simd/",
    "transfer/src/memory/",
    "transfer/src/transport/",
    "transfer/src/integrity.rs",
    "transfer/src/urgent.rs",
    "transfer/tests/verbs_speed.rs",
    "transfer/tests/gpu.rs",
    "transfer/cuda/",
    "bench/send-paths/src/",
    "text/gguf/src/file.rs",
    "node/src/backing.rs",
    "transfer/verbs-sys/src/",
    "transfer/verbs/",
    "bindings/c/src/",
    "bindings/python/src/memory.rs",
];

/// Files that a program writes: nobody reads them from top to bottom, and their crate says how fresh they are.
const GENERATED: &[&str] = &["transfer/verbs-sys/src/bindings.rs", "transfer/verbs-sys/src/layout.rs"];

/// Checks every tracked file and tells all that is wrong at once.
pub fn run() -> Result<()> {
    let tracked = output("git", &["ls-files", "--cached", "--others", "--exclude-standard"])?;
    let mut wrong = Vec::new();
    let mut checked = 0;
    for file in tracked.lines().map(PathBuf::from) {
        let path = root().join(&file);
        if !path.is_file() {
            continue;
        }
        if file.extension().is_some_and(|e| e == "rs") {
            let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            wrong.extend(check_rust(&file, &text));
            checked += 1;
        }
    }
    for line in &wrong {
        eprintln!("{line}");
    }
    ensure!(wrong.is_empty(), "{} things are untidy", wrong.len());
    println!("tidy: {checked} Rust files");
    Ok(())
}

fn check_rust(file: &Path, text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let name = file.display().to_string();
    if GENERATED.contains(&name.as_str()) {
        return wrong;
    }
    let lines = text.lines().count();
    if lines > LINES_MAX {
        wrong.push(format!("{name}: {lines} lines; past {LINES_MAX} look for the second room"));
    }
    if !text.starts_with("//!") {
        wrong.push(format!("{name}: opens without saying what it is for (`//!`)"));
    }
    if name.ends_with("/src/lib.rs") {
        let head: String = text.lines().take_while(|l| l.starts_with("//!")).collect::<Vec<_>>().join("\n");
        for part in ["Law", "Map"] {
            if !head.contains(part) {
                wrong.push(format!("{name}: its head has no `{part}…` part"));
            }
        }
    }
    let code = text.lines().map(|l| l.split("//").next().unwrap_or_default());
    for (number, line) in code.enumerate() {
        let after = line.split_once("unsafe ").map_or("", |(_, after)| after);
        let is_unsafe = ["{", "fn", "impl", "extern"].iter().any(|word| after.starts_with(word));
        if is_unsafe && !UNSAFE_MAY.iter().any(|may| name.starts_with(may)) {
            wrong.push(format!("{name}:{}: unsafe outside the files that may have it", number + 1));
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_untidy_is_told_and_what_is_tidy_is_not() {
        let tidy = "//! What it is for.\n\nfn f() {}\n";
        assert!(check_rust(Path::new("kv/src/a.rs"), tidy).is_empty());
        assert_eq!(check_rust(Path::new("kv/src/a.rs"), "fn f() {}\n").len(), 1, "no head");
        let long = format!("//! Long.\n{}", "\n".repeat(LINES_MAX));
        assert_eq!(check_rust(Path::new("kv/src/a.rs"), &long).len(), 1, "too long");
        assert!(check_rust(Path::new(GENERATED[0]), &long).is_empty(), "nobody wrote it");
        let raw = &["//! X.\nfn f() { unsafe ", "{ g() } }\n"].concat();
        assert_eq!(check_rust(Path::new("kv/src/a.rs"), raw).len(), 1, "unsafe where it may not be");
        assert!(check_rust(Path::new("engine/src/memory.rs"), raw).is_empty());
        assert_eq!(check_rust(Path::new("kv/src/lib.rs"), tidy).len(), 2, "neither laws nor map");
    }
}
