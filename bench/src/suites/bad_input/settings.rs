//! What an operator can get wrong at flags, environment and file.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::Findings;
use crate::suites::Setting;

/// A command line, environment and file that must be refused.
struct Case {
    name: &'static str,
    args: &'static [&'static str],
    env: &'static [(&'static str, &'static str)],
    file: Option<&'static str>,
    /// What the message must name.
    names: &'static [&'static str],
}

const NONE: Case = Case { name: "", args: &[], env: &[], file: None, names: &[] };

const CASES: &[Case] = &[
    Case { name: "no such command", args: &["prefil"], names: &["prefill"], ..NONE },
    Case { name: "no such flag", args: &["prefill", "--modle", "mock"], names: &["--modle", "--model"], ..NONE },
    Case { name: "a flag without value", args: &["prefill", "--model"], names: &["--model"], ..NONE },
    Case { name: "a node without model", args: &["prefill", "--conductor", "127.0.0.1:1"], names: &["model"], ..NONE },
    Case {
        name: "a model that is not there",
        args: &["decode", "--conductor", "127.0.0.1:1", "--model", "/no/such.gguf"],
        names: &["/no/such.gguf"],
        ..NONE
    },
    Case {
        name: "a model that is no GGUF",
        args: &["decode", "--conductor", "127.0.0.1:1", "--model", "/proc/self/status"],
        names: &["GGUF"],
        ..NONE
    },
    Case {
        name: "an unknown mock key",
        args: &["decode", "--conductor", "127.0.0.1:1", "--model", "mock:stepus=5"],
        names: &["stepus", "step_us"],
        ..NONE
    },
    Case { name: "a bad address", args: &["conductor", "--grpc", "localhost"], names: &["grpc", "localhost"], ..NONE },
    Case {
        name: "a port out of range",
        args: &["conductor", "--grpc", "127.0.0.1:70000"],
        names: &["grpc", "70000"],
        ..NONE
    },
    Case {
        name: "an unknown transport",
        args: &["prefill", "--conductor", "127.0.0.1:1", "--model", "mock", "--transport", "rdmaa"],
        names: &["transport", "rdmaa", "shm"],
        ..NONE
    },
    Case {
        name: "a pool of nothing",
        args: &["prefill", "--conductor", "127.0.0.1:1", "--model", "mock", "--pool-blocks", "0"],
        names: &["pool", "0"],
        ..NONE
    },
    Case {
        name: "a negative pool",
        args: &["prefill", "--conductor", "127.0.0.1:1", "--model", "mock", "--pool-blocks=-4"],
        names: &["pool", "-4"],
        ..NONE
    },
    Case {
        name: "a pool past all memory",
        args: &["prefill", "--conductor", "127.0.0.1:1", "--model", "mock", "--pool-blocks", "4000000000"],
        names: &["pool"],
        ..NONE
    },
    Case {
        name: "an unknown KVRAIL_ variable",
        args: &["conductor", "--grpc", "127.0.0.1:0"],
        env: &[("KVRAIL_CONDUCTOR_GRCP", "127.0.0.1:0")],
        names: &["KVRAIL_CONDUCTOR_GRCP", "GRPC"],
        ..NONE
    },
    Case {
        name: "a bad value in the environment",
        args: &["conductor"],
        env: &[("KVRAIL_CONDUCTOR_GRPC", "nowhere")],
        names: &["KVRAIL_CONDUCTOR_GRPC", "nowhere"],
        ..NONE
    },
    Case {
        name: "a file that is not there",
        args: &["conductor", "--config", "/no/such.toml"],
        names: &["/no/such.toml"],
        ..NONE
    },
    Case {
        name: "a file that is no TOML",
        args: &["conductor"],
        file: Some("[conductor\ngrpc ="),
        names: &["line 1"],
        ..NONE
    },
    Case {
        name: "an unknown key",
        args: &["conductor"],
        file: Some("[conductor]\ngrcp = \"127.0.0.1:0\"\n"),
        names: &["grcp", "grpc"],
        ..NONE
    },
    Case {
        name: "an unknown table",
        args: &["conductor"],
        file: Some("[conducter]\ngrpc = \"127.0.0.1:0\"\n"),
        names: &["conducter", "conductor"],
        ..NONE
    },
    Case {
        name: "a key of the wrong type",
        args: &["conductor"],
        file: Some("[conductor]\ngrpc = 7\n"),
        names: &["grpc", "7"],
        ..NONE
    },
    Case {
        name: "a count of nodes that is no number",
        args: &["up", "--prefill", "two"],
        names: &["prefill", "two"],
        ..NONE
    },
    Case { name: "no decode node", args: &["up", "--model", "mock", "--decode", "0"], names: &["decode", "0"], ..NONE },
    Case {
        name: "an unknown model to pull",
        args: &["model", "pull", "smolm2"],
        names: &["smolm2", "smollm2"],
        ..NONE
    },
];

/// Starts the binary on every case: it must end soon, with status 2 or 1, and say what is wrong.
pub fn run(setting: &Setting, findings: &mut Findings) {
    let mut right = 0;
    let total = CASES.len() + 1;
    for case in CASES {
        match start(setting, case) {
            Ok(()) => right += 1,
            Err(e) => findings.failure(format!("settings: {}: {e}", case.name)),
        }
    }
    match port_in_use(setting) {
        Ok(()) => right += 1,
        Err(e) => findings.failure(format!("settings: a port in use: {e}")),
    }
    findings.figure("settings", format!("{right} of {total} cases refused with a message that names the fault"));
}

fn start(setting: &Setting, case: &Case) -> Result<(), String> {
    let directory = tempfile::tempdir().map_err(|e| e.to_string())?;
    let mut args: Vec<String> = case.args.iter().map(|&a| a.to_owned()).collect();
    if let Some(text) = case.file {
        let path = directory.path().join("kvrail.toml");
        std::fs::write(&path, text).map_err(|e| e.to_string())?;
        args.extend(["--config".into(), path.display().to_string()]);
    }
    refused(setting, &args, case.env, case.names)
}

fn port_in_use(setting: &Setting) -> Result<(), String> {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").map_err(|e| e.to_string())?;
    let address = taken.local_addr().map_err(|e| e.to_string())?.to_string();
    refused(setting, &["conductor".into(), "--grpc".into(), address.clone()], &[], &[&address])
}

fn refused(setting: &Setting, args: &[String], env: &[(&str, &str)], names: &[&str]) -> Result<(), String> {
    let mut child = Command::new(&setting.binary)
        .args(args)
        .envs(env.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| e.to_string())?;
    let until = Instant::now() + Duration::from_secs(10);
    while child.try_wait().map_err(|e| e.to_string())?.is_none() {
        if Instant::now() > until {
            let _ = child.kill();
            let _ = child.wait();
            return Err("was accepted, or hangs".into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let output = child.wait_with_output().map_err(|e| e.to_string())?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !matches!(output.status.code(), Some(1 | 2)) {
        return Err(format!("ended with {}: {said}", output.status));
    }
    if said.contains("panicked at") {
        return Err(format!("panicked: {said}"));
    }
    match names.iter().find(|&&name| !said.contains(name)) {
        Some(missing) => Err(format!("does not name `{missing}`: {said}")),
        None => Ok(()),
    }
}
