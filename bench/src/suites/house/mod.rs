//! The house is in order: the map is true, every crate says what it is for, and CI passes on a clean clone.

mod map;

use std::process::Command;
use std::time::Instant;

use super::newcomer::Newcomer;
use super::{Findings, Setting, Tier};

/// CPU time `.ci/run` may take, cold.
const CI_CPU_MINUTES: f64 = 30.0;

/// Runs the suite; the full tier runs `.ci/run` in a fresh clone.
pub async fn run(setting: &Setting) -> Findings {
    let setting = setting.clone();
    let checks = move || {
        let mut findings = Findings::default();
        for check in [tidy, maps, same_command, ci] {
            if let Err(e) = check(&setting, &mut findings) {
                findings.failure(e);
            }
        }
        findings
    };
    tokio::task::spawn_blocking(checks).await.unwrap_or_default()
}

fn read(setting: &Setting, file: &str) -> Result<String, String> {
    std::fs::read_to_string(setting.root.join(file)).map_err(|e| format!("{file}: {e}"))
}

fn tidy(setting: &Setting, findings: &mut Findings) -> Result<(), String> {
    let output = Command::new("cargo").args(["xtask", "tidy"]).current_dir(&setting.root).output();
    let output = output.map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    findings.check(output.status.success(), format!("tidy: {text}"));
    findings.figure("tidy", text.lines().last().unwrap_or_default());
    Ok(())
}

/// ARCHITECTURE.md is the tree, and the head of each `lib.rs` its modules.
fn maps(setting: &Setting, findings: &mut Findings) -> Result<(), String> {
    let manifest = read(setting, "Cargo.toml")?;
    let listed = manifest.split_once("members = [").and_then(|(_, rest)| rest.split_once(']'));
    let (listed, _) = listed.ok_or("Cargo.toml lists no members")?;
    let members: Vec<&str> = listed.split('"').skip(1).step_by(2).chain(["src"]).collect();
    let (wrong, places) = map::untrue(&read(setting, "ARCHITECTURE.md")?, &members, &map::Tree::of(&setting.root)?);
    findings.figure("ARCHITECTURE.md", format!("{places} places of {} crates", members.len()));
    wrong.into_iter().for_each(|wrong| findings.failure(wrong));

    let libraries = members.iter().map(|member| format!("{member}/src/lib.rs"));
    let libraries: Vec<String> = libraries.filter(|file| setting.root.join(file).is_file()).collect();
    for file in &libraries {
        for module in map::unnamed(&read(setting, file)?) {
            findings.failure(format!("the map at the head of {file} has no `{module}`"));
        }
    }
    findings.figure("lib.rs", format!("{} heads against the modules of their crates", libraries.len()));
    Ok(())
}

/// What a newcomer runs and what CI runs is one command.
fn same_command(setting: &Setting, findings: &mut Findings) -> Result<(), String> {
    let command = "cargo xtask test";
    for file in ["README.md", ".ci/run", "CONTRIBUTING.md"] {
        findings.check(read(setting, file)?.contains(command), format!("{file} does not run `{command}`"));
    }
    findings.figure("test command", command);
    Ok(())
}

fn ci(setting: &Setting, findings: &mut Findings) -> Result<(), String> {
    if setting.tier == Tier::Quick {
        return Ok(());
    }
    let newcomer = Newcomer::new(&setting.root)?;
    let started = Instant::now();
    let mut bash = newcomer.command("bash");
    bash.args(["-c", "set -e; bash .ci/run 1>&2; times"]).current_dir(newcomer.clone_directory());
    let output = bash.output().map_err(|e| e.to_string())?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let lines: Vec<_> = text.lines().collect();
        return Err(format!(".ci/run failed: {}", lines[lines.len().saturating_sub(40)..].join("\n")));
    }
    let cpu = cpu_minutes(&String::from_utf8_lossy(&output.stdout)).ok_or("the shell told no times")?;
    findings.figure(
        ".ci/run on a newcomer's machine",
        format!("{cpu:.1} CPU minutes, {:.1} minutes", started.elapsed().as_secs_f64() / 60.0),
    );
    findings.check(
        cpu <= CI_CPU_MINUTES * 1.1,
        format!(".ci/run takes {cpu:.1} CPU minutes, promised are about {CI_CPU_MINUTES}"),
    );
    Ok(())
}

/// Sums what bash's `times` prints: two lines of `1m2.345s 0m6.789s`.
fn cpu_minutes(times: &str) -> Option<f64> {
    let mut seconds = 0.0;
    for word in times.split_whitespace() {
        let (minutes, rest) = word.split_once('m')?;
        seconds += minutes.parse::<f64>().ok()? * 60.0 + rest.strip_suffix('s')?.parse::<f64>().ok()?;
    }
    (seconds > 0.0).then_some(seconds / 60.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_added_up() {
        assert_eq!(cpu_minutes("0m1.500s 0m0.500s\n1m0.000s 0m58.000s\n"), Some(2.0));
        assert_eq!(cpu_minutes("bash: times"), None);
    }
}
