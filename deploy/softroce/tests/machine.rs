//! The machine itself, booted: only where its kernel was built, `cargo xtask softroce build`.

use std::fs::{File, read_to_string};
use std::path::Path;
use std::process::Command;

use clap::Parser;
use kvrail_softroce::{kernel, run};

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: run::Args,
}

/// Runs `words` in `directory` as one would after `cargo xtask softroce run`; exit status, output and errors.
fn machine(directory: &Path, words: &[&str]) -> (u8, String, String) {
    let line = Line::parse_from([&["run"], words].concat());
    let (out, err) = (directory.join("out"), directory.join("err"));
    let status = run::run(&line.args, File::create(&out).unwrap(), File::create(&err).unwrap()).unwrap();
    (status, read_to_string(out).unwrap(), read_to_string(err).unwrap())
}

/// One test, as runs share the working directory of the process and each takes a CPU.
#[test]
fn booted_where_its_kernel_is_built_it_has_devices_faults_and_an_exit_status() {
    if let Err(why) = kernel::find() {
        eprintln!("SKIPPED: {why}");
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let here = scratch.path();

    let devices = "ls -1 /sys/class/infiniband; echo problem >&2; exit 3";
    let (status, out, err) = machine(here, &["--hosts", "2", "--rails", "2", "--", "sh", "-c", devices]);
    assert_eq!((status, &*out), (3, "rxa0\nrxa1\nrxb0\nrxb1\n"), "{err}");
    assert_eq!(err, "problem\n");

    let (status, out, err) = machine(here, &["--", "printf", "%s|", "a  b", "it's", "$HOME", "", "line\nbreak"]);
    assert_eq!((status, &*out), (0, "a  b|it's|$HOME||line\nbreak|"), "{err}");

    let named = here.to_str().unwrap();
    let write = "echo kept >$1/kept; echo gone >/etc/gone; echo gone >/var/gone; cat";
    let (status, _, err) = machine(here, &["--rw", named, "--", "sh", "-c", write, "sh", named]);
    assert_eq!(status, 0, "{err}");
    assert_eq!(read_to_string(here.join("kept")).unwrap(), "kept\n");
    assert!(!Path::new("/etc/gone").exists() && !Path::new("/var/gone").exists(), "written outside of what is shared");

    let faults = "set -e; state() { cat /sys/class/infiniband/rx$1/ports/1/state; }
        rail cut b0; state a0; state b0; rail restore b0; state b0
        rail limit b0 400mbit; rail loss b0 2%; rail blackhole b0; state b0; rail restore b0; rail show";
    let (status, out, err) = machine(here, &["--rails", "1", "--", "sh", "-c", faults]);
    assert_eq!(status, 0, "{err}");
    assert!(out.starts_with("4: ACTIVE\n1: DOWN\n4: ACTIVE\n4: ACTIVE\n"), "{out}");

    // Long enough to boot on a machine that is busy.
    let (status, out, _) = machine(here, &["--limit", "20", "--", "sh", "-c", "echo before; sleep 60"]);
    assert_eq!((status, &*out), (run::OVER_LIMIT, "before\n"));

    // Not by `o`: User-Mode Linux switched off from a kernel thread hangs more often than not, and that is the limit's to end.
    let dies = "echo before; echo b >/proc/sysrq-trigger; sleep 60";
    let (status, out, err) = machine(here, &["--limit", "30", "--", "sh", "-c", dies]);
    assert_eq!((status, &*out), (run::GUEST_DIED, "before\n"), "{err}");

    // Other runs of this host are none of our business.
    let ours = format!("kvrail-softroce-{}-", std::process::id());
    let left = std::fs::read_dir(std::env::temp_dir()).unwrap().flatten();
    let left: Vec<_> = left.filter(|e| e.file_name().to_string_lossy().starts_with(&ours)).collect();
    assert!(left.is_empty(), "directories are left: {left:?}");
    let processes = Command::new("ps").args(["-eo", "args"]).output().unwrap().stdout;
    assert!(!String::from_utf8_lossy(&processes).contains(&ours), "processes are left");
}
