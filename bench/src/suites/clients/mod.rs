//! Real clients that nobody here wrote work against `kvrail up`: `curl`, the `openai` package, and a load generator.
//!
//! The Python clients live in a virtual environment in the user's cache directory, with the versions that
//! `bench/clients/*.txt` pins; it is made once and used again.

mod stream;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::python::{environment, output};
use super::{Findings, Setting, Tier};

/// Requests of each client.
const REQUESTS: usize = 100;
/// Output tokens that curl asks for.
const MAX_TOKENS: u64 = 8;
/// Longest wait for the pool to serve.
const READY_MAX: Duration = Duration::from_secs(120);

/// Runs the suite: the quick tier on the mock and without the load generator.
pub async fn run(setting: &Setting) -> Findings {
    let setting = setting.clone();
    tokio::task::spawn_blocking(move || {
        let mut findings = Findings::default();
        if let Err(e) = clients(&setting, &mut findings) {
            findings.failure(e);
        }
        findings
    })
    .await
    .unwrap_or_default()
}

fn clients(setting: &Setting, findings: &mut Findings) -> Result<(), String> {
    let model = match (setting.tier, &setting.model) {
        (Tier::Quick, _) => "mock".to_owned(),
        (Tier::Full, Some(model)) => model.display().to_string(),
        (Tier::Full, None) => {
            return Err("the real model is not on this machine: `kvrail model pull` fetches it".into());
        }
    };
    let scratch = tempfile::tempdir().map_err(|e| e.to_string())?;
    let up = Up::start(&setting.binary, &model, scratch.path())?;
    curl(&up, scratch.path(), findings)?;
    let (packages, list): (&[&str], _) = match setting.tier {
        Tier::Quick => (&["openai"], "openai.txt"),
        Tier::Full => (&["openai", "aiperf"], "load.txt"),
    };
    match environment(setting, list) {
        Ok(python) => {
            versions(Some(&python), packages, findings)?;
            openai(&up, &python, setting, findings)?;
            if setting.tier == Tier::Full {
                load(&up, &python, &model, scratch.path(), setting, findings)?;
            }
        }
        // A clean machine without a package index still runs the rest of the quick tier.
        Err(e) if setting.tier == Tier::Quick => {
            versions(None, &[], findings)?;
            findings.skip(format!("the openai package: {e}"));
        }
        Err(e) => return Err(e),
    }
    let status = up.end()?;
    findings.check(status == Some(0), format!("`kvrail up` ended with {status:?} after SIGTERM"));
    Ok(())
}

/// A pool started by `kvrail up`.
struct Up {
    child: Child,
    http: String,
    model: String,
}

impl Up {
    fn start(binary: &Path, model: &str, scratch: &Path) -> Result<Self, String> {
        let mut child = Command::new(binary)
            .args(["up", "--model", model, "--http", "127.0.0.1:0", "--log-dir"])
            .arg(scratch.join("logs"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| format!("{}: {e}", binary.display()))?;
        let stdout = child.stdout.take().ok_or("no stdout")?;
        let mut up = Self { child, http: String::new(), model: String::new() };
        let (sender, lines) = mpsc::sync_channel(1);
        std::thread::spawn(move || {
            // Everything is read, so that the pool never blocks on a full pipe; the first line is for us.
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = sender.try_send(line);
            }
        });
        let line = lines.recv_timeout(READY_MAX).map_err(|e| format!("`kvrail up` did not say that it serves: {e}"))?;
        let ready: Value = serde_json::from_str(&line).map_err(|e| format!("{e}: {line}"))?;
        up.http = format!("http://{}", ready["http"].as_str().ok_or_else(|| format!("no address in {line}"))?);
        up.model = ready["model"].as_str().ok_or_else(|| format!("no model in {line}"))?.to_owned();
        Ok(up)
    }

    /// SIGTERM, and the status it ends with.
    fn end(mut self) -> Result<Option<i32>, String> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).map_err(|e| e.to_string())?;
        let until = Instant::now() + Duration::from_secs(30);
        while Instant::now() < until {
            if let Some(status) = self.child.try_wait().map_err(|e| e.to_string())? {
                return Ok(status.code());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err("`kvrail up` did not end within 30 s of SIGTERM".into())
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // Its children end with it.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn curl(up: &Up, scratch: &Path, findings: &mut Findings) -> Result<(), String> {
    let chat = format!("{}/v1/chat/completions", up.http);
    let body = |model: &str, stream: bool| {
        let mut body =
            json!({"model": model, "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": MAX_TOKENS});
        if stream {
            body["stream"] = json!(true);
            body["stream_options"] = json!({"include_usage": true});
        }
        body.to_string()
    };
    let post = |url: &str, body: String, more: &[&str]| {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "-N", "--max-time", "120", "-H", "content-type: application/json", "-w", "\n%{http_code}"]);
        output(curl.args(more).args(["-d", &body, url]))
    };
    let (ok, text) = post(&chat, body(&up.model, false), &[])?;
    findings
        .check(ok && text.contains("\"chat.completion\"") && text.ends_with("\n200"), format!("curl, whole: {text}"));
    let (ok, text) = post(&chat, body(&up.model, true), &[])?;
    findings.check(ok && text.contains("data: [DONE]") && text.ends_with("\n200"), format!("curl, streamed: {text}"));
    let (ok, text) = post(&chat, body("no-such-model", false), &[])?;
    findings.check(ok && text.contains("\"error\"") && text.ends_with("\n404"), format!("curl, refused: {text}"));
    // curl's own globbing asks as often as the range says, and names a file for each answer.
    let (many, files) = (format!("{chat}?n=[1-{REQUESTS}]"), scratch.join("answer-#1"));
    let files = files.display().to_string();
    let (ok, text) = post(&many, body(&up.model, true), &["--parallel", "--parallel-max", "8", "-o", &files])?;
    let good = text.lines().filter(|line| *line == "200").count();
    findings.check(ok && good == REQUESTS, format!("curl, {REQUESTS} streams: {text}"));
    let (mut tokens, mut whole) = (0, 0);
    for n in 1..=REQUESTS {
        let answer = std::fs::read_to_string(scratch.join(format!("answer-{n}"))).map_err(|e| e.to_string());
        match answer.and_then(|text| stream::whole(&text, MAX_TOKENS)) {
            Ok(count) => (tokens, whole) = (tokens + count, whole + 1),
            Err(e) => findings.failure(format!("curl, stream {n}: {e}")),
        }
    }
    findings.figure(
        "curl",
        format!("whole, streamed and refused answers; {good} of {REQUESTS} streams ended with 200, {whole} are whole: {tokens} tokens"),
    );
    Ok(())
}

/// Which clients these are.
fn versions(python: Option<&Path>, packages: &[&str], findings: &mut Findings) -> Result<(), String> {
    let (_, curl) = output(Command::new("curl").arg("--version"))?;
    let mut all = vec![curl.split_whitespace().take(2).collect::<Vec<_>>().join(" ")];
    for package in packages {
        let script = format!("import importlib.metadata as m; print('{package}', m.version('{package}'))");
        let (ok, text) = output(Command::new(python.ok_or("no Python")?).args(["-c", &script]))?;
        findings.check(ok, format!("{package} is not installed: {text}"));
        all.push(text.trim().to_owned());
    }
    findings.figure("clients", all.join(", "));
    Ok(())
}

fn openai(up: &Up, python: &Path, setting: &Setting, findings: &mut Findings) -> Result<(), String> {
    let script = setting.root.join("bench/clients/openai_check.py");
    let arguments = [format!("{}/v1", up.http), up.model.clone(), REQUESTS.to_string()];
    let (ok, text) = output(Command::new(python).arg(script).args(arguments))?;
    let found: Value = serde_json::from_str(text.lines().next().unwrap_or_default()).unwrap_or(Value::Null);
    for failure in found["failures"].as_array().into_iter().flatten() {
        findings.failure(format!("openai: {}", failure.as_str().unwrap_or_default()));
    }
    findings.figure("openai package", format!("{} requests, {} checks", found["requests"], found["checks"]));
    findings.check(found["requests"].as_u64() > Some(REQUESTS as u64) && (ok || found["failures"].is_array()), text);
    Ok(())
}

/// A hundred chat requests of an independent load generator, which counts tokens with the model's own tokenizer.
fn load(
    up: &Up,
    python: &Path,
    model: &str,
    scratch: &Path,
    setting: &Setting,
    findings: &mut Findings,
) -> Result<(), String> {
    let hub = scratch.join("hub");
    let script = setting.root.join("bench/clients/tokenizer.py");
    let (ok, text) = output(Command::new(python).arg(script).arg(model).arg(&hub).arg("local/tokenizer"))?;
    if !ok {
        return Err(format!("tokenizer.py: {text}"));
    }
    let artifacts = scratch.join("aiperf");
    let mut aiperf = Command::new(python.with_file_name("aiperf"));
    aiperf.env("HF_HOME", &hub).env("HF_HUB_OFFLINE", "1").current_dir(scratch);
    aiperf.args(["profile", "--endpoint-type", "chat", "--streaming", "--ui", "none", "--random-seed", "1"]);
    aiperf.args(["--url", &up.http, "--model", &up.model, "--tokenizer", "local/tokenizer"]);
    aiperf.args(["--request-count", &REQUESTS.to_string(), "--concurrency", "8"]);
    aiperf.args(["--synthetic-input-tokens-mean", "120", "--synthetic-input-tokens-stddev", "40"]);
    aiperf.args(["--output-tokens-mean", "16", "--artifact-dir"]).arg(&artifacts);
    let (ok, text) = output(&aiperf)?;
    let report = std::fs::read_to_string(artifacts.join("profile_export_aiperf.json"))
        .map_err(|e| format!("aiperf left no report ({e}): {text}"))?;
    let report: Value = serde_json::from_str(&report).map_err(|e| e.to_string())?;
    let number = |metric: &str, which: &str| report[metric][which].as_f64().unwrap_or(f64::NAN);
    findings.figure(
        "aiperf",
        format!(
            "{} requests, {} % errors",
            number("completed_request_count", "avg"),
            number("request_error_rate", "avg")
        ),
    );
    for (metric, unit) in [("time_to_first_token", "ms"), ("inter_token_latency", "ms"), ("request_latency", "ms")] {
        let [p50, p95] = ["p50", "p95"].map(|which| number(metric, which));
        findings.figure(format!("aiperf {metric}"), format!("p50 {p50:.1} {unit}, p95 {p95:.1} {unit}"));
    }
    findings.figure("aiperf output tokens a second", format!("{:.1}", number("output_token_throughput", "avg")));
    counts_agree(&artifacts, findings)?;
    let errors = report["error_summary"].as_array().map_or(usize::MAX, Vec::len);
    let whole = number("request_count", "avg") == REQUESTS as f64 && number("request_error_rate", "avg") == 0.0;
    findings.check(ok && whole && errors == 0, format!("aiperf did not finish without an error: {text}"));
    Ok(())
}

/// The load generator counts with the same vocabulary by another implementation: a prompt's tokens must be fewer than the
/// endpoint says by what the chat template adds, the same for every prompt. An answer's may differ: cutting its text into
/// tokens again need not give the ones that were sampled, and the end token has no text.
fn counts_agree(artifacts: &Path, findings: &mut Findings) -> Result<(), String> {
    let records = std::fs::read_to_string(artifacts.join("profile_export.jsonl")).map_err(|e| e.to_string())?;
    let (mut template, mut answers, mut requests) = (Vec::new(), 0, 0);
    for line in records.lines() {
        let record: Value = serde_json::from_str(line).map_err(|e| e.to_string())?;
        let value = |metric: &str| record["metrics"][metric]["value"].as_f64().unwrap_or(f64::NAN);
        template.push(value("usage_prompt_tokens") - value("input_sequence_length"));
        answers += usize::from(value("usage_completion_tokens") == value("output_sequence_length"));
        requests += 1;
    }
    template.sort_by(f64::total_cmp);
    let (least, most) = (template.first().copied().unwrap_or(f64::NAN), template.last().copied().unwrap_or(f64::NAN));
    findings.figure(
        "tokens as aiperf counts them",
        format!("{answers} of {requests} answers as many, the prompts {least} to {most} fewer (the chat template)"),
    );
    findings.check(requests == REQUESTS && least == most, "aiperf and the endpoint count other tokens in a prompt");
    Ok(())
}
