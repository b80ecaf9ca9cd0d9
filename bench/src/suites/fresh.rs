//! On a newcomer's machine the README's two commands do what they say.

use std::process::Stdio;
use std::time::{Duration, Instant};

use super::newcomer::Newcomer;
use super::{Findings, Setting, Tier};

/// Longest a command of the README may take, builds included.
const COMMAND_MAX: Duration = Duration::from_secs(45 * 60);

/// Runs the README's first command, which must stream an answer, and its second, which must pass all tests.
pub async fn run(setting: &Setting) -> Findings {
    let setting = setting.clone();
    tokio::task::spawn_blocking(move || {
        let mut findings = Findings::default();
        if let Err(e) = commands_work(&setting, &mut findings) {
            findings.failure(e);
        }
        findings
    })
    .await
    .unwrap_or_default()
}

fn commands_work(setting: &Setting, findings: &mut Findings) -> Result<(), String> {
    let readme = std::fs::read_to_string(setting.root.join("README.md")).map_err(|e| format!("README.md: {e}"))?;
    let commands = commands(&readme);
    let [first, second] = commands.as_slice() else {
        return Err(format!("the README's first block has {} commands, not two: {commands:?}", commands.len()));
    };
    let newcomer = Newcomer::new(&setting.root)?;
    let (took, text) = shell(&newcomer, first)?;
    let answer = text.trim().lines().last().unwrap_or_default().to_owned();
    findings.figure(first, format!("{:.0} s, answered: {answer}", took.as_secs_f64()));
    findings.check(answer.split_whitespace().count() >= 3, format!("no answer on stdout: {text}"));

    if setting.tier == Tier::Quick {
        return Ok(());
    }
    let (took, text) = shell(&newcomer, second)?;
    let count = |word: &str| -> u64 {
        let totals = text.lines().filter(|l| l.starts_with("test result:"));
        totals.filter_map(|l| l.split(word).next()?.split_whitespace().last()?.parse::<u64>().ok()).sum()
    };
    let (passed, failed) = (count(" passed"), count(" failed"));
    findings.figure(second, format!("{:.0} s, {passed} passed, {failed} failed", took.as_secs_f64()));
    findings.check(passed > 0 && failed == 0, "not all tests passed");
    Ok(())
}

/// The commands of the README's first `sh` block.
fn commands(readme: &str) -> Vec<String> {
    let block = readme.split("```sh\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap_or_default();
    let lines = block.lines().map(|l| l.split(" #").next().unwrap_or_default().trim());
    lines.filter(|l| !l.is_empty()).map(str::to_owned).collect()
}

/// Runs a line of shell in the clone; returns how long it took and what it printed on stdout. Its stderr is shown.
fn shell(newcomer: &Newcomer, line: &str) -> Result<(Duration, String), String> {
    let started = Instant::now();
    let child = newcomer
        .command("timeout")
        .args([&COMMAND_MAX.as_secs().to_string(), "sh", "-c", line])
        .current_dir(newcomer.clone_directory())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| format!("{line}: {e}"))?;
    let output = child.wait_with_output().map_err(|e| format!("{line}: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        return Err(format!("`{line}` ended with {}: {text}", output.status));
    }
    Ok((started.elapsed(), text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_block_is_what_a_newcomer_types() {
        let readme = "# x\n```text\nno\n```\n```sh\ncargo run -- up   # ask\n\ncargo test\n```\n```sh\nother\n```\n";
        assert_eq!(commands(readme), ["cargo run -- up", "cargo test"]);
        assert!(commands("nothing").is_empty());
    }
}
