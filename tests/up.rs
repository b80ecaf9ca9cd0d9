//! `kvrail up` from outside: whatever ends it, nobody is left behind, and clients hear how their requests ended.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use kvrail_bench::client::{Client, ClientError};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// Longest wait for anything: far beyond what is needed on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// A token every 10 ms.
const MODEL: &str = "mock:step_us=10000";
/// Tokens of an answer that takes more than a minute.
const LONG: u32 = 8000;

fn up(logs: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvrail"));
    command.args(["up", "--model", MODEL, "--log-dir"]).arg(logs).args(args).stdin(Stdio::null());
    command
}

/// A running pool.
struct Pool {
    process: Child,
    endpoint: String,
    children: Vec<i32>,
    logs: tempfile::TempDir,
}

impl Pool {
    fn start(args: &[&str]) -> Self {
        Self::start_with_logs(tempfile::tempdir().unwrap(), args)
    }

    fn start_with_logs(logs: tempfile::TempDir, args: &[&str]) -> Self {
        let errors = fs::File::create(logs.path().join("up.err")).unwrap();
        let mut command = up(logs.path(), &["--http", "127.0.0.1:0"]);
        let mut process = command.args(args).stdout(Stdio::piped()).stderr(errors).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let said = || fs::read_to_string(logs.path().join("up.err")).unwrap();
        let ready: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("it is not ready: {}", said()));
        let children = children_of(process.id());
        assert_eq!(children.len(), 4, "conductor, P, D and gateway");
        Self { process, endpoint: ready["http"].as_str().unwrap().to_owned(), children, logs }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    fn client(&self) -> Client {
        Client::new(&self.endpoint).unwrap()
    }

    /// The status with which it ends, once nobody of it is left and nobody listens.
    fn nothing_is_left(mut self, within: Duration) -> Option<i32> {
        let begun = Instant::now();
        let left = |pids: &[i32]| pids.iter().copied().filter(|pid| runs(*pid)).collect::<Vec<_>>();
        let mut status = None;
        while status.is_none() || !left(&self.children).is_empty() {
            assert!(begun.elapsed() < within, "after {within:?}: {status:?}, left {:?}", left(&self.children));
            status = status.or_else(|| self.process.try_wait().unwrap());
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(std::net::TcpStream::connect(&self.endpoint).is_err(), "somebody still listens");
        status.unwrap().code()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// State and parent of a process, from proc(5).
fn stat(pid: &str) -> Option<(String, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.to_owned(), fields.next()?.parse().ok()?))
}

fn runs(pid: i32) -> bool {
    stat(&pid.to_string()).is_some_and(|(state, _)| state != "Z" && state != "X")
}

fn children_of(parent: u32) -> Vec<i32> {
    let pids = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    pids.filter(|pid| stat(pid).is_some_and(|(_, of)| of == parent)).map(|pid| pid.parse().unwrap()).collect()
}

/// What ended a stream: nothing but `[DONE]`, or an error's code.
type Outcome = Result<(), String>;

/// Asks for so many tokens; `running` is called with the first of them.
async fn stream(client: Client, tokens: u32, running: impl FnOnce()) -> Outcome {
    let body = json!({"model": "mock", "prompt": "one two", "max_tokens": tokens, "ignore_eos": true, "stream": true});
    let code = |error: ClientError| {
        let said = match &error {
            ClientError::ErrorEvent(event) => event.clone(),
            ClientError::Http { body, .. } => serde_json::from_str(body).unwrap_or_default(),
            _ => Value::Null,
        };
        said["error"]["code"].as_str().map_or_else(|| error.to_string(), str::to_owned)
    };
    let mut events = match client.stream("/v1/completions", &body).await {
        Ok(events) => events,
        Err(error) => return Err(code(error)),
    };
    let mut running = Some(running);
    while events.next().await.map_err(code)?.is_some() {
        running.take().into_iter().for_each(|running| running());
    }
    Ok(())
}

/// Begins streams of so many tokens, and waits until all of them have begun: a short one may be over by then.
async fn load(pool: &Pool, tokens: &[u32]) -> Vec<tokio::task::JoinHandle<Outcome>> {
    let (begun, mut begins) = tokio::sync::mpsc::channel(tokens.len());
    let one = |tokens: &u32| {
        let begun = begun.clone();
        tokio::spawn(stream(pool.client(), *tokens, move || begun.try_send(()).unwrap()))
    };
    let streams = tokens.iter().map(one).collect();
    for _ in tokens {
        let begin = tokio::time::timeout(PATIENCE, begins.recv()).await;
        assert!(begin.is_ok(), "the requests do not run");
    }
    streams
}

/// Whether this process, and so what it starts, ignores a signal.
fn ignored(signal: Signal) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap().trim();
    u64::from_str_radix(mask, 16).unwrap() >> (signal.as_raw() - 1) & 1 == 1
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn signals_under_load_end_it_in_order_and_leave_nothing() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        if ignored(signal) {
            // Whoever runs this test wants it so (`nohup cargo test`), and `up` obeys.
            continue;
        }
        let pool = Pool::start(&["--drain", "5s"]);
        // Half of them can end in time, half cannot.
        let streams = load(&pool, &[[50; 8], [LONG; 8]].concat()).await;
        pool.signal(signal);
        for (at, stream) in streams.into_iter().enumerate() {
            let expected = if at < 8 { Ok(()) } else { Err("draining".to_owned()) };
            assert_eq!(stream.await.unwrap(), expected, "{signal:?}, stream {at}");
        }
        assert_eq!(pool.nothing_is_left(PATIENCE), Some(0), "{signal:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_second_ctrl_c_ends_it_at_once() {
    let pool = Pool::start(&["--drain", "1h"]);
    let streams = load(&pool, &[LONG; 2]).await;
    pool.signal(Signal::INT);
    // The first one was heard when the gateway drains.
    while pool.client().get("/status").await.unwrap()["draining"] == false {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // Sooner it would be the same Ctrl-C.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    pool.signal(Signal::INT);
    assert_eq!(pool.nothing_is_left(PATIENCE), Some(0));
    for stream in streams {
        assert!(stream.await.unwrap().is_err(), "cut in the middle");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn two_signals_in_a_moment_are_one() {
    // As GNU timeout sends them: to the process, then to its group.
    let pool = Pool::start(&["--drain", "1h"]);
    let streams = load(&pool, &[100; 2]).await;
    pool.signal(Signal::TERM);
    std::thread::sleep(Duration::from_millis(5));
    pool.signal(Signal::TERM);
    for stream in streams {
        assert_eq!(stream.await.unwrap(), Ok(()), "what runs may finish");
    }
    assert_eq!(pool.nothing_is_left(PATIENCE), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_killed_supervisor_takes_everybody_along() {
    let pool = Pool::start(&["--drain", "1h"]);
    let streams = load(&pool, &[LONG; 4]).await;
    pool.signal(Signal::KILL);
    for stream in streams {
        assert_eq!(stream.await.unwrap(), Err("draining".into()), "streams end with a word");
    }
    assert_eq!(pool.nothing_is_left(PATIENCE), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn keys_of_the_configuration_file_are_asked_of_clients_and_not_of_itself() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("kvrail.toml");
    // The hash of `KEY`.
    let hash = "5ca24005b740717ba4f3f6bc48a230700e68c2a4b11ecedb96f169f4efaf1f21";
    fs::write(&file, format!("[gateway]\napi-keys = [\"team:{hash}\"]\n")).unwrap();
    let pool = Pool::start(&["--config", file.to_str().unwrap()]);
    assert_eq!(stream(pool.client(), 5, || {}).await, Err("invalid_api_key".into()));
    assert_eq!(stream(pool.client().with_api_key(Some("KEY".into())), 5, || {}).await, Ok(()));
    pool.signal(Signal::TERM);
    assert_eq!(pool.nothing_is_left(PATIENCE), Some(0));
}

#[test]
fn one_question_ends_by_itself_and_says_nothing_of_staying() {
    let logs = tempfile::tempdir().unwrap();
    let args = ["--http", "127.0.0.1:0", "--max-tokens", "4", "--ask", "one"];
    let Output { status, stdout, stderr } = up(logs.path(), &args).output().unwrap();
    let said = String::from_utf8(stderr).unwrap();
    assert!(status.success() && !stdout.is_empty() && said.contains("endpoint  http://"), "{said}");
    assert!(!said.contains("try ") && !said.contains("kvrail chat") && !said.contains("Ctrl-C"), "{said}");
}

#[test]
fn wrong_usage_is_told_before_anything_starts() {
    let logs = tempfile::tempdir().unwrap();
    let file = logs.path().join("notes.gguf");
    fs::write(&file, "root:x:0:0").unwrap();
    let cut = logs.path().join("cut.gguf");
    fs::write(&cut, b"GGUF\x03\0\0\0").unwrap();
    let (file, cut) = (file.to_str().unwrap(), cut.to_str().unwrap());
    for (args, says) in [
        (&["up", "--model", "mock", "--ask", ""][..], "--ask: the question is empty".to_owned()),
        (&["up", "--model", ""], "--model: `` is not a text".into()),
        (&["up", "--model", "mock", "--log-dir", ""], "--log-dir: `` is not a path".into()),
        (&["up", "--config", "/dev/zero"], "/dev/zero: not a regular file".into()),
        (&["up", "--model", file, "--http", "127.0.0.1:0"], format!("kvrail: model: {file}: not a GGUF file\n")),
        (&["gateway", "--conductor", "127.0.0.1:9", "--model", file], format!("model: {file}: not a GGUF file\n")),
        (&["decode", "--conductor", "127.0.0.1:9", "--model", "/tmp"], "model: /tmp: not a file\n".into()),
        (&["gateway", "--conductor", "127.0.0.1:9", "--model", cut], "the file is cut".into()),
        (&["decode", "--conductor", "127.0.0.1:9", "--model", cut], "the file is cut".into()),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_kvrail")).args(args).stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && said.contains(&says), "{args:?}: {said}");
        assert!(!said.contains("starting"), "{said}");
    }
}

/// What `up` itself does not read is refused by its first process.
#[test]
fn a_model_that_is_none_is_wrong_usage() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("cut.gguf");
    fs::write(&model, b"GGUF\x03\0\0\0cut").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvrail"));
    command.args(["up", "--http", "127.0.0.1:0", "--model"]).arg(model).arg("--log-dir").arg(dir.path());
    let said = ends_with(2, command.stdin(Stdio::null()));
    assert!(said.contains("the file is cut"), "{said}");
}

fn ends_with(status: i32, command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(status), "{said}");
    said
}

fn fails(command: &mut Command) -> String {
    ends_with(1, command)
}

/// Nothing is started for a configuration that some process would refuse.
#[test]
fn what_a_service_would_refuse_is_refused_before_anything_starts() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("kvrail.toml");
    let keys = format!("[gateway]\napi-keys = 't:{}'", "0".repeat(64));
    for (text, args, says) in [
        ("[decode]\nbatch = 0", &[] as &[&str], "decode.batch: `0`"),
        ("[gateway]\nrequests = 0", &[], "gateway.requests: `0`"),
        ("[prefill]\npool-blocks = 0", &[], "prefill.pool-blocks: `0`"),
        ("[prefill]\ntransfer-streams = 256", &[], "transfer-streams: 256"),
        ("[conductor]\nlease = '0s'", &[], "lease: 0 ms is less than 1s"),
        ("", &["--log", "a=b=c["], "log: `a=b=c[`"),
        (&keys, &["--ask", "Who?"], "kvrail chat --api-key"),
    ] {
        fs::write(&config, text).unwrap();
        let mut command = up(dir.path(), &["--http", "127.0.0.1:0", "--config", config.to_str().unwrap()]);
        let said = ends_with(2, command.args(args));
        assert!(said.contains(says) && !said.contains("starting"), "{text} {args:?}: {said}");
    }
}

#[test]
fn a_second_one_is_told_that_the_address_is_taken() {
    let pool = Pool::start(&[]);
    let logs = tempfile::tempdir().unwrap();
    let said = fails(&mut up(logs.path(), &["--http", &pool.endpoint]));
    assert!(said.contains("is in use, perhaps by another `kvrail up`") && said.contains("--http"), "{said}");
    assert!(!said.contains("starting"), "nothing is started in vain: {said}");
    pool.signal(Signal::TERM);
    assert_eq!(pool.nothing_is_left(PATIENCE), Some(0));
}

#[test]
fn a_second_one_is_told_that_the_log_directory_is_taken() {
    let pool = Pool::start(&[]);
    let said = fails(&mut up(pool.logs.path(), &["--http", "127.0.0.1:0"]));
    assert!(said.contains("another --log-dir") && !said.contains("starting"), "{said}");
    pool.signal(Signal::TERM);
    assert_eq!(pool.nothing_is_left(PATIENCE), Some(0));
}

#[test]
fn a_log_directory_that_cannot_be_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let file: PathBuf = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let said = fails(&mut up(&file.join("logs"), &["--http", "127.0.0.1:0"]));
    assert!(said.contains("directory for logs") && said.contains("Not a directory"), "{said}");
}

#[test]
fn a_log_that_cannot_be_opened_is_told_once_with_its_path() {
    let logs = tempfile::tempdir().unwrap();
    let log = logs.path().join("conductor.log");
    fs::create_dir(&log).unwrap();
    let said = fails(&mut up(logs.path(), &["--http", "127.0.0.1:0"]));
    assert!(said.contains(log.to_str().unwrap()) && said.matches("Is a directory").count() == 1, "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_full_disk_costs_the_logs_and_nothing_else() {
    let logs = tempfile::tempdir().unwrap();
    for name in ["conductor", "gateway", "prefill-0", "decode-0"] {
        symlink("/dev/full", logs.path().join(format!("{name}.log"))).unwrap();
    }
    let pool = Pool::start_with_logs(logs, &["--log", "debug"]);
    assert_eq!(stream(pool.client(), 20, || {}).await, Ok(()));
    assert_eq!(children_of(pool.process.id()), pool.children, "nobody was started again");
    pool.signal(Signal::TERM);
    assert_eq!(pool.nothing_is_left(PATIENCE), Some(0));
}

#[test]
fn nohup_is_obeyed() {
    let logs = tempfile::tempdir().unwrap();
    let program = env!("CARGO_BIN_EXE_kvrail");
    let script = format!("trap '' HUP; exec {program} up --model {MODEL} --http 127.0.0.1:0 --log-dir \"$0\"");
    let mut process = Command::new("sh")
        .args(["-c", &script])
        .arg(logs.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut output = BufReader::new(process.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    assert!(line.contains("\"ready\":true"), "{line}");
    let pid = Pid::from_child(&process);
    kill_process(pid, Signal::HUP).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert!(process.try_wait().unwrap().is_none(), "it should have ignored SIGHUP");
    kill_process(pid, Signal::TERM).unwrap();
    let mut said = String::new();
    process.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(process.wait().unwrap().success() && said.contains("SIGTERM") && !said.contains("SIGHUP"), "{said}");
}
