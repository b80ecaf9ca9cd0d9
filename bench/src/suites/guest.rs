//! Tests in the soft-RoCE machine: built here, run there.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use serde::Deserialize;

use super::{Findings, Setting};

/// Seconds that one run in the machine may take.
const LIMIT_S: u32 = 600;

/// Runs a suite that is nothing without the machine.
pub async fn suite(setting: &Setting, check: fn(&Setting, &mut Findings) -> Result<(), String>) -> Findings {
    let setting = setting.clone();
    let checks = move || {
        let mut findings = Findings::default();
        if let Some(why) = Guest::missing(&setting) {
            findings.skip(format!("all of it: the soft-RoCE machine cannot be had here: {why}"));
        } else if let Err(error) = check(&setting, &mut findings) {
            findings.failure(error);
        }
        findings
    };
    tokio::task::spawn_blocking(checks).await.unwrap_or_default()
}

/// The machine: so many hosts with so many rails each.
pub struct Guest<'a> {
    setting: &'a Setting,
    hosts: u8,
    rails: u8,
}

/// What a command in the machine said.
pub struct Said {
    /// Whether it ended with 0.
    pub ok: bool,
    /// What it printed, errors last.
    pub text: String,
}

impl Said {
    /// Lines of the form `figure NAME: VALUE`.
    pub fn figures(&self) -> impl Iterator<Item = (&str, &str)> {
        self.text.lines().filter_map(|line| line.split_once("figure ")?.1.split_once(": "))
    }

    /// Tests that passed, and how many were to, as the harness sums them up; our own harness tells line by line.
    pub fn tests(&self) -> (usize, usize) {
        let number = |line: &str, what: &str| line.split(what).next()?.split_whitespace().last()?.parse().ok();
        let summed = self.text.lines().find(|line| line.starts_with("test result: "));
        let summed = summed.and_then(|line| Some((number(line, " passed")?, number(line, " failed")?)));
        if let Some((passed, failed)) = summed {
            return (passed, passed + failed);
        }
        let told = self.text.lines().filter(|line| line.starts_with("test ") && line.contains(" ... "));
        (self.text.matches("... ok").count(), told.count())
    }
}

impl<'a> Guest<'a> {
    pub fn new(setting: &'a Setting, hosts: u8, rails: u8) -> Self {
        Self { setting, hosts, rails }
    }

    /// Why it cannot be had here, if it cannot.
    pub fn missing(setting: &Setting) -> Option<String> {
        let said = Guest::new(setting, 2, 1).run(&["true"], &[]);
        match said {
            Ok(Said { ok: true, .. }) => None,
            Ok(Said { text, .. }) | Err(text) => Some(text.trim().to_owned()),
        }
    }

    /// NICs of the first two hosts, as tests want them named.
    pub fn nics(&self) -> String {
        let host = |host: char| (0..self.rails).map(|rail| format!("rx{host}{rail}")).collect::<Vec<_>>().join(",");
        format!("{}/{}", host('a'), host('b'))
    }

    /// Runs a command in it, with these variables.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn run(&self, command: &[&str], env: &[(&str, &str)]) -> Result<Said, String> {
        let names: Vec<&str> = env.iter().map(|(name, _)| *name).collect();
        let mut cargo = Command::new("cargo");
        cargo.args(self.arguments(&names)).envs(env.iter().copied()).current_dir(&self.setting.root);
        let output = cargo.args(command).output().map_err(|e| format!("cargo: {e}"))?;
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        Ok(Said { ok: output.status.success(), text: text.into_owned() })
    }

    /// The command, in one line, behind which a program runs in it with these variables of its own surroundings.
    pub fn command(&self, env: &[&str]) -> String {
        format!("cargo {}", self.arguments(env).join(" "))
    }

    /// Cargo's arguments before the program's.
    fn arguments(&self, env: &[&str]) -> Vec<String> {
        let (hosts, rails, limit) = (self.hosts.to_string(), self.rails.to_string(), LIMIT_S.to_string());
        let words =
            ["xtask", "softroce", "run", "--memory", "3072", "--hosts", &hosts, "--rails", &rails, "--limit", &limit];
        let env = env.iter().flat_map(|name| ["--env", name]);
        words.into_iter().chain(env).chain(["--"]).map(str::to_owned).collect()
    }

    /// Runs tests of a test binary that are ignored elsewhere, one after the other, on the NICs of the first two hosts.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn tests(&self, binary: &str, args: &[&str], env: &[(&str, &str)]) -> Result<Said, String> {
        let nics = self.nics();
        let env = [&[("KVRAIL_TEST_RDMA", &*nics)], env].concat();
        let alone = ["--ignored", "--test-threads", "1", "--nocapture"];
        self.run(&[&[binary], args, &alone].concat(), &env)
    }
}

/// Test binaries by name.
pub type Built = BTreeMap<String, PathBuf>;

/// The path of one.
///
/// # Errors
/// If there is none of that name.
pub fn path<'a>(built: &'a Built, name: &str) -> Result<&'a str, String> {
    built.get(name).and_then(|path| path.to_str()).ok_or_else(|| format!("no test binary `{name}` was built"))
}

/// Builds the test binaries of a package; their paths by name.
///
/// # Errors
/// Cargo's.
pub fn build(setting: &Setting, package: &str, features: &[&str]) -> Result<Built, String> {
    build_with(setting, &[&["--package", package], features].concat(), &[])
}

/// Builds test binaries as cargo's arguments say, with these variables; their paths by name.
///
/// # Errors
/// Cargo's.
pub fn build_with(setting: &Setting, arguments: &[&str], env: &[(&str, &str)]) -> Result<Built, String> {
    #[derive(Deserialize)]
    struct Target {
        name: String,
        kind: Vec<String>,
    }
    #[derive(Deserialize)]
    struct Artifact {
        target: Option<Target>,
        executable: Option<PathBuf>,
    }
    let mut cargo = Command::new("cargo");
    cargo.args(["test", "--no-run", "--message-format", "json"]).args(arguments).envs(env.iter().copied());
    let output = cargo.current_dir(&setting.root).output().map_err(|e| format!("cargo: {e}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let artifacts = output.stdout.split(|byte| *byte == b'\n');
    let artifacts = artifacts.filter_map(|line| serde_json::from_slice::<Artifact>(line).ok());
    let tests = artifacts.filter_map(|artifact| {
        let target = artifact.target.filter(|target| target.kind.iter().any(|kind| kind == "test" || kind == "lib"))?;
        Some((target.name, artifact.executable?))
    });
    Ok(tests.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_counted_whatever_they_print_between() {
        let said = |text: &str| Said { ok: true, text: text.into() }.tests();
        let harness = "test a ... figure x: 1\nok\ntest b ... ok\ntest c ... ignored\n\ntest result: ok. 2 passed; 1 failed; 1 ignored\n";
        assert_eq!(said(harness), (2, 3));
        assert_eq!(said("test one ... ok (3 ms)\ntest two ... SKIPPED: no device (0 ms)\n"), (1, 2));
        assert_eq!(said(""), (0, 0));
    }
}
