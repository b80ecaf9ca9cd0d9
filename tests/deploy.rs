//! The files under `deploy/`: their command lines and settings make a pool that answers, drains and ends.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use kvrail_bench::client::Client;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(60);

fn systemd() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/systemd")
}

/// What a unit starts, as systemd would, but with this binary and these settings.
fn exec_start(unit: &str, settings: &Path) -> Command {
    let text = fs::read_to_string(systemd().join(unit)).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("ExecStart=")).expect("a command line");
    let mut words = line.split(' ').map(|word| word.replace("%H", "host").replace("%i", "0"));
    assert_eq!(words.next().as_deref(), Some("/usr/local/bin/kvrail"));
    let words = words.map(|word| match word.as_str() {
        "/etc/kvrail/kvrail.toml" => settings.display().to_string(),
        _ => word,
    });
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvrail"));
    command.args(words).stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

/// A service and what its ready line said.
struct Service {
    process: Child,
    ready: Value,
}

impl Service {
    fn start(unit: &str, settings: &Path, environment: &[(&str, &str)]) -> Self {
        let errors = fs::File::create(settings.with_file_name(format!("{unit}.err"))).unwrap();
        let mut command = exec_start(unit, settings);
        let mut process = command.envs(environment.iter().copied()).stderr(errors).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let said = || fs::read_to_string(settings.with_file_name(format!("{unit}.err"))).unwrap();
        let ready = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{unit} is not ready: {}", said()));
        Self { process, ready }
    }

    fn stop(mut self) {
        kill_process(Pid::from_child(&self.process), Signal::TERM).unwrap();
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                break status;
            }
            assert!(begun.elapsed() < PATIENCE, "{} does not end", self.ready);
            std::thread::sleep(Duration::from_millis(10));
        };
        assert!(status.success(), "{} ended with {status}", self.ready);
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test]
async fn the_units_make_a_pool_that_answers_drains_and_ends() {
    let directory = tempfile::tempdir().unwrap();
    let settings = directory.path().join("kvrail.toml");
    fs::copy(systemd().join("kvrail.toml"), &settings).unwrap();
    let any = "127.0.0.1:0";

    let addresses = [("KVRAIL_CONDUCTOR_GRPC", any), ("KVRAIL_CONDUCTOR_ADMIN", any)];
    let conductor = Service::start("kvrail-conductor.service", &settings, &addresses);
    let at = conductor.ready["grpc"].as_str().unwrap().to_owned();
    let decode = [("KVRAIL_DECODE_CONDUCTOR", at.as_str()), ("KVRAIL_DECODE_MODEL", "mock")];
    let decode = Service::start("kvrail-decode@.service", &settings, &decode);
    let prefill = [("KVRAIL_PREFILL_CONDUCTOR", at.as_str()), ("KVRAIL_PREFILL_MODEL", "mock")];
    let prefill = Service::start("kvrail-prefill@.service", &settings, &prefill);
    let gateway =
        [("KVRAIL_GATEWAY_CONDUCTOR", at.as_str()), ("KVRAIL_GATEWAY_MODEL", "mock"), ("KVRAIL_GATEWAY_HTTP", any)];
    let gateway = Service::start("kvrail-gateway.service", &settings, &gateway);
    assert_eq!(decode.ready["node_id"], "host-decode-0");
    assert_eq!(prefill.ready["node_id"], "host-prefill-0");

    let client = Client::new(gateway.ready["http"].as_str().unwrap()).unwrap();
    let begun = Instant::now();
    let both = |status: &Value| status["members"].as_array().is_some_and(|members| members.len() == 2);
    while !client.get("/status").await.is_ok_and(|status| both(&status)) {
        assert!(begun.elapsed() < PATIENCE, "the gateway does not see both nodes");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let question = json!({"model": "mock", "prompt": "one two three ".repeat(40), "max_tokens": 8, "seed": 1});
    let answer = client.post("/v1/completions", &question).await.unwrap();
    assert_eq!(answer["usage"]["completion_tokens"], 8, "{answer}");

    for service in [gateway, prefill, decode, conductor] {
        service.stop();
    }
}

/// systemd's own reading of the units, where it is installed.
#[test]
fn systemd_understands_the_units() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        eprintln!("not checked: there is no systemd-analyze here");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no", "--recursive-errors=no"]);
    for unit in fs::read_dir(systemd()).unwrap() {
        let unit = unit.unwrap().path();
        if unit.extension().is_some_and(|extension| extension == "service") {
            let text = fs::read_to_string(&unit).unwrap();
            let copy = directory.path().join(unit.file_name().unwrap().to_str().unwrap().replace('@', "@0"));
            fs::write(&copy, text.replace("/usr/local/bin/kvrail", env!("CARGO_BIN_EXE_kvrail"))).unwrap();
            verify.arg(copy);
        }
    }
    let output = verify.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let complaints: Vec<_> = said.lines().filter(|line| line.contains("kvrail")).collect();
    assert!(complaints.is_empty(), "{complaints:#?}");
}
