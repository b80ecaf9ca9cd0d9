//! The transfer engine from other languages: the header against the library, the example in C, the wheel in fresh virtual
//! environments with its tests and examples, and over RDMA in the soft-RoCE machine.

use std::process::Command;

use super::guest::Guest;
use super::python::output;
use super::{Findings, Setting, Tier};

/// Interpreters that the full tier tries the wheel in beside the default one, where they are.
const PYTHONS: [&str; 6] = ["python3.9", "python3.10", "python3.11", "python3.12", "python3.13", "python3.14"];

/// Runs the suite; the full tier tries the wheel in every Python from 3.9 on that is here.
pub async fn run(setting: &Setting) -> Findings {
    let setting = setting.clone();
    let checks = move || {
        let mut findings = Findings::default();
        for check in [c, python] {
            if let Err(e) = check(&setting, &mut findings) {
                findings.failure(e);
            }
        }
        findings
    };
    tokio::task::spawn_blocking(checks).await.unwrap_or_default()
}

/// The C face: its tests, and what its example says.
fn c(setting: &Setting, findings: &mut Findings) -> Result<(), String> {
    let mut cargo = Command::new("cargo");
    let crates = ["-p", "kvrail-bindings", "-p", "kvrail-c"];
    cargo.args(["test", "--release"]).args(crates).args(["--", "--nocapture"]).current_dir(&setting.root);
    let (ok, text) = output(&cargo)?;
    if !ok {
        return Err(format!("cargo test: {text}"));
    }
    findings.figure("tests of the C face", format!("{} passed", passed(&text)));
    for line in said(&text, &["child: ", "parent: "]) {
        findings.figure("examples/two_engines.c", line);
    }
    findings.check(passed(&text) > 0, "no test of the C face ran");
    Ok(())
}

/// The Python face: what `bindings/python/check.py` finds.
fn python(setting: &Setting, findings: &mut Findings) -> Result<(), String> {
    let mut check = Command::new("python3");
    check.arg("bindings/python/check.py").current_dir(&setting.root);
    if setting.tier == Tier::Full {
        for other in others() {
            check.args(["--also", other]);
        }
        match Guest::missing(setting) {
            None => {
                let guest = Guest::new(setting, 2, 1);
                check.args(["--inside", &guest.command(&["KVRAIL_TEST_RDMA"])]).env("KVRAIL_TEST_RDMA", guest.nics());
            }
            Some(why) => findings.skip(format!("the part over RDMA: the soft-RoCE machine cannot be had here: {why}")),
        }
    }
    let (ok, text) = output(&check)?;
    for line in said(&text, &["figure "]) {
        let (name, value) = line.split_once(": ").unwrap_or((line, ""));
        findings.figure(name.trim_start_matches("figure "), value);
    }
    if ok { Ok(()) } else { Err(format!("check.py: {text}")) }
}

/// Interpreters that are here, can make environments, and are not the default one.
fn others() -> Vec<&'static str> {
    let version = |python: &str| {
        let asked =
            Command::new(python).args(["-c", "import ensurepip, sys, venv; print(sys.version_info[:2])"]).output();
        asked.ok().filter(|output| output.status.success()).map(|output| output.stdout)
    };
    let default = version("python3");
    PYTHONS.into_iter().filter(|python| version(python).is_some_and(|found| Some(&found) != default.as_ref())).collect()
}

/// Tests that passed, by the closing lines of each test binary.
fn passed(text: &str) -> u32 {
    let counts =
        text.lines().filter_map(|line| line.strip_prefix("test result: ok. ")?.split(' ').next()?.parse::<u32>().ok());
    counts.sum()
}

/// Lines that begin with one of `heads`, each once.
fn said<'a>(text: &'a str, heads: &[&str]) -> Vec<&'a str> {
    let mut lines: Vec<&str> = Vec::new();
    for line in text.lines().filter(|line| heads.iter().any(|head| line.starts_with(head))) {
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "running 2 tests\nchild: a\ntest x ... ok\nchild: a\n\ntest result: ok. 2 passed; 0 failed\n\
                        parent: b\ntest result: ok. 5 passed; 0 failed\nfigure wheel: w.whl, 1 MB\n";

    #[test]
    fn closing_lines_are_added_up_and_what_was_said_twice_is_told_once() {
        assert_eq!(passed(TEXT), 7);
        assert_eq!(passed("test result: FAILED. 2 passed"), 0);
        assert_eq!(said(TEXT, &["child: ", "parent: "]), ["child: a", "parent: b"]);
    }
}
