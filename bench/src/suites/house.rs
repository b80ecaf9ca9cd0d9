//! The house is in order: the map is true, every crate says what it is for, and CI passes on a clean clone.

use std::process::Command;
use std::time::Instant;

use super::{Findings, Setting, Tier};

/// CPU time `.ci/run` may take, cold.
const CI_CPU_MINUTES: f64 = 30.0;

/// Runs the suite; the full tier runs `.ci/run` in a fresh clone.
pub async fn run(setting: &Setting) -> Findings {
    let setting = setting.clone();
    let checks = move || {
        let mut findings = Findings::default();
        for check in [tidy, map, same_command, ci] {
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

/// Every crate of the workspace, and every module of it, has its line in ARCHITECTURE.md.
fn map(setting: &Setting, findings: &mut Findings) -> Result<(), String> {
    let architecture = read(setting, "ARCHITECTURE.md")?;
    let mut rooms = 0;
    for member in read(setting, "Cargo.toml")?.lines().filter(|l| l.starts_with("  \"")).flat_map(|l| l.split('"')) {
        let source = setting.root.join(member).join("src");
        if member.len() < 2 || !source.is_dir() {
            continue;
        }
        findings.check(architecture.contains(&format!("{member}/")), format!("ARCHITECTURE.md has no `{member}/`"));
        for entry in std::fs::read_dir(&source).map_err(|e| e.to_string())?.flatten().filter(|e| e.path().is_dir()) {
            let room = entry.file_name().to_string_lossy().into_owned();
            findings.check(
                architecture.contains(&format!("{room}/")),
                format!("ARCHITECTURE.md has no `{member}/src/{room}/`"),
            );
            rooms += 1;
        }
    }
    findings.figure("ARCHITECTURE.md", format!("names all crates and {rooms} modules"));
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
    let directory = tempfile::tempdir().map_err(|e| e.to_string())?;
    let script = format!(
        "set -e; git clone --quiet '{}' clone; cd clone; export CARGO_TARGET_DIR=target; bash .ci/run 1>&2; times",
        setting.root.display()
    );
    let started = Instant::now();
    let output = Command::new("bash").args(["-c", &script]).current_dir(directory.path()).output();
    let output = output.map_err(|e| e.to_string())?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let lines: Vec<_> = text.lines().collect();
        return Err(format!(".ci/run failed: {}", lines[lines.len().saturating_sub(40)..].join("\n")));
    }
    let cpu = cpu_minutes(&String::from_utf8_lossy(&output.stdout)).ok_or("the shell told no times")?;
    findings.figure(
        ".ci/run in a fresh clone",
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
