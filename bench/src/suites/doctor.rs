//! `kvrail doctor` says what this machine has and lacks, and the binary starts where there is nothing but libc.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::{Findings, Setting};

/// What may be loaded at start: libc and its parts, and the unwinder.
const ALLOWED: &[&str] = &["linux-vdso", "ld-linux", "libc.so", "libgcc_s", "libm.so", "libdl", "libpthread", "librt"];
/// What the report must speak of.
const SUBJECTS: &[&str] = &["cpu", "nic", "rdma", "gpu", "memlock", "huge"];

/// Who may change the root directory, and the words before `chroot` that make one so.
const WAYS: [(&str, &[&str]); 2] =
    [("as root", &[]), ("in a user namespace of its own", &["unshare", "--user", "--map-root-user"])];

/// Runs the suite.
pub async fn run(setting: &Setting) -> Findings {
    let mut findings = Findings::default();
    if let Err(e) = report(setting, &mut findings) {
        findings.failure(e);
    }
    if let Err(e) = bare_chroot(setting, &mut findings) {
        findings.failure(e);
    }
    findings
}

fn output(command: &mut Command) -> Result<(Option<i32>, String), String> {
    let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    Ok((output.status.code(), text))
}

fn report(setting: &Setting, findings: &mut Findings) -> Result<(), String> {
    let (status, text) = output(Command::new(&setting.binary).arg("doctor"))?;
    findings.check(status == Some(0), format!("doctor ended with {status:?}: {text}"));
    let lower = text.to_lowercase();
    let missing: Vec<_> = SUBJECTS.iter().filter(|&&s| !lower.contains(s)).collect();
    findings.check(missing.is_empty(), format!("doctor is silent about {missing:?}: {text}"));
    findings.figure("doctor", format!("exit 0, {} lines", text.lines().count()));
    let (status, text) = output(Command::new(&setting.binary).args(["doctor", "--json"]))?;
    let value: Value = serde_json::from_str(&text).map_err(|e| format!("doctor --json is no JSON: {e}: {text}"))?;
    findings.check(status == Some(0) && value.is_object(), format!("doctor --json ended with {status:?}"));
    Ok(())
}

/// A root directory that holds the loader, libc and its parts, and the binary.
fn bare_chroot(setting: &Setting, findings: &mut Findings) -> Result<(), String> {
    let (_, linked) = output(Command::new("ldd").arg(&setting.binary))?;
    let root = tempfile::tempdir().map_err(|e| e.to_string())?;
    for line in linked.lines() {
        if !ALLOWED.iter().any(|allowed| line.contains(allowed)) {
            findings.failure(format!("linked against more than libc: {}", line.trim()));
        }
        if let Some(path) = line.split_whitespace().find(|word| word.starts_with('/')) {
            copy(Path::new(path), root.path())?;
        }
    }
    let inside = root.path().join("kvrail");
    std::fs::copy(&setting.binary, &inside).map_err(|e| e.to_string())?;
    let mut refusals = Vec::new();
    for (who, before) in WAYS {
        let inside = |args: &[&str]| {
            let mut words = before.iter().chain(&["chroot"]);
            let mut command = Command::new(words.next().unwrap_or(&"chroot"));
            output(command.args(words).arg(root.path()).arg("/kvrail").args(args))
        };
        let (status, text) = match inside(&["--version"]) {
            Ok((_, text)) if text.contains("cannot change root directory") || text.starts_with("unshare: ") => {
                refusals.push(format!("{who}: {}", text.trim()));
                continue;
            }
            Ok(told) => told,
            Err(e) => {
                refusals.push(format!("{who}: {e}"));
                continue;
            }
        };
        let runs = status == Some(0) && text.starts_with("kvrail ");
        findings.check(runs, format!("in a bare chroot --version ended with {status:?}: {text}"));
        let (status, text) = inside(&["doctor"])?;
        findings.check(status == Some(0), format!("in a bare chroot doctor ended with {status:?}: {text}"));
        let libraries = linked.lines().count();
        findings.figure("bare chroot", format!("--version and doctor run with {libraries} libraries, {who}"));
        return Ok(());
    }
    findings.skip(format!("the bare chroot: {}", refusals.join("; ")));
    Ok(())
}

fn copy(library: &Path, root: &Path) -> Result<(), String> {
    let target: PathBuf = root.join(library.strip_prefix("/").map_err(|e| e.to_string())?);
    let directory = target.parent().ok_or("a library without a directory")?;
    std::fs::create_dir_all(directory).map_err(|e| e.to_string())?;
    std::fs::copy(library, &target).map(drop).map_err(|e| format!("{}: {e}", library.display()))
}
