//! What a run of a suite leaves behind: JSON for machines and a table for people.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::Findings;

/// A run, beside what it found.
pub struct Run<'a> {
    /// Name of the suite.
    pub suite: &'a str,
    /// `quick` or `full`.
    pub tier: &'a str,
    /// Seed of every random choice.
    pub seed: u64,
    /// Commit that the suite was built from.
    pub commit: &'a str,
    /// How long it took.
    pub seconds: f64,
}

/// Writes `SUITE.json` and `SUITE.md` into a directory, which is made where it is missing; returns the latter's path.
///
/// # Errors
/// The file system's.
pub fn write(directory: &Path, run: &Run<'_>, findings: &Findings) -> std::io::Result<PathBuf> {
    std::fs::create_dir_all(directory)?;
    let [json, table] = ["json", "md"].map(|kind| directory.join(format!("{}.{kind}", run.suite)));
    std::fs::write(json, format!("{:#}\n", machine_readable(run, findings)))?;
    std::fs::write(&table, readable(run, findings))?;
    Ok(table)
}

fn machine_readable(run: &Run<'_>, findings: &Findings) -> serde_json::Value {
    let figures = findings.figures.iter().map(|(name, value)| json!({ "name": name, "value": value }));
    json!({
        "suite": run.suite,
        "verdict": findings.verdict(),
        "tier": run.tier,
        "seed": run.seed,
        "commit": run.commit,
        "seconds": run.seconds,
        "figures": figures.collect::<Vec<_>>(),
        "failures": findings.failures,
        "skipped": findings.skipped,
    })
}

fn readable(run: &Run<'_>, findings: &Findings) -> String {
    let Run { suite, tier, seed, commit, seconds } = run;
    let mut text = format!("# {suite}: {}\n\n", findings.verdict());
    let _ = writeln!(text, "`cargo xtask verify {suite} --tier {tier} --seed {seed}` on {commit}, {seconds:.0} s.\n");
    text += "| figure | value |\n|---|---|\n";
    // A bar would begin a cell, a line break end the table.
    let cell = |text: &str| text.replace('|', "\\|").replace('\n', " ");
    for (name, value) in &findings.figures {
        let _ = writeln!(text, "| {} | {} |", cell(name), cell(value));
    }
    for (title, all) in [("Failures", &findings.failures), ("Skipped", &findings.skipped)] {
        if !all.is_empty() {
            let _ = writeln!(text, "\n{title}:\n");
        }
        for one in all {
            let _ = writeln!(text, "- {}", cell(one));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_all_figures_and_failures_and_stays_a_table() {
        let directory = tempfile::tempdir().unwrap();
        let mut findings = Findings::default();
        findings.figure("a | b", "1\n2");
        findings.failure("c");
        let run = Run { suite: "clients", tier: "full", seed: 7, commit: "abc1234", seconds: 1.4 };
        let table = write(&directory.path().join("new"), &run, &findings).unwrap();
        let text = std::fs::read_to_string(&table).unwrap();
        assert!(
            text.starts_with("# clients: FAIL\n") && text.contains("--tier full --seed 7` on abc1234, 1 s"),
            "{text}"
        );
        assert!(text.contains("\n| a \\| b | 1 2 |\n") && text.contains("\n- c\n"), "{text}");
        let json = std::fs::read_to_string(table.with_extension("json")).unwrap();
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!((&value["figures"][0]["value"], &value["failures"][0]), (&json!("1\n2"), &json!("c")));
    }
}
