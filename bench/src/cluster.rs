//! A cluster of real `kvrail` processes on loopback, one role a process, for suites and benchmarks.
//!
//! Everything that is started here is stopped here: each process by its own id, when the [`Cluster`] is dropped at the
//! latest. Logs go to files in a directory of their own that is named when something fails.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::Method;
use serde_json::Value;

use crate::client::Client;

/// Longest wait for a process to say that it is ready: loading a model from a cold disk included.
const READY_MAX: Duration = Duration::from_secs(90);
/// Longest wait for a process to end after it was asked to.
const STOP_MAX: Duration = Duration::from_secs(20);

/// Why a cluster did not start or a process did not do as it was told.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// A process could not be started.
    #[error("cannot start {binary}: {source}")]
    Spawn {
        /// The binary.
        binary: String,
        /// Why.
        source: std::io::Error,
    },
    /// A process ended or stayed silent instead of saying that it is ready.
    #[error("{name} did not become ready ({reason}); the end of its log:\n{log}")]
    NotReady {
        /// Which one.
        name: String,
        /// What happened instead.
        reason: String,
        /// The last lines of its log.
        log: String,
    },
    /// Something that should come true did not.
    #[error("{what} did not come true within {after:?}; last seen: {last}")]
    Never {
        /// What was awaited.
        what: String,
        /// How long.
        after: Duration,
        /// What was seen last.
        last: String,
    },
    /// Files.
    #[error("cluster directory: {0}")]
    Io(#[from] std::io::Error),
}

/// What to start.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The `kvrail` binary.
    pub binary: PathBuf,
    /// `--model`: a GGUF file or `mock`.
    pub model: String,
    /// Prefill nodes.
    pub prefill: usize,
    /// Decode nodes.
    pub decode: usize,
    /// `--transport` of the nodes: `auto`, `tcp` or `shm`.
    pub transport: String,
    /// More arguments for every node.
    pub node_args: Vec<String>,
    /// More arguments for prefill nodes alone.
    pub prefill_args: Vec<String>,
    /// More arguments for decode nodes alone.
    pub decode_args: Vec<String>,
    /// More arguments for the conductor.
    pub conductor_args: Vec<String>,
    /// More arguments for the gateway.
    pub gateway_args: Vec<String>,
}

impl Plan {
    /// `prefill` P and `decode` D over `transport`, and nothing special.
    #[must_use]
    pub fn new(binary: &Path, model: &str, prefill: usize, decode: usize, transport: &str) -> Self {
        Self {
            // Processes start in a directory of their own.
            binary: std::path::absolute(binary).unwrap_or_else(|_| binary.into()),
            model: model.into(),
            prefill,
            decode,
            transport: transport.into(),
            node_args: Vec::new(),
            prefill_args: Vec::new(),
            decode_args: Vec::new(),
            conductor_args: Vec::new(),
            gateway_args: Vec::new(),
        }
    }
}

/// One running process of a cluster.
pub struct Process {
    /// Name in logs, and the node id of a node.
    pub name: String,
    child: Child,
    ready: Value,
    args: Vec<String>,
}

impl Process {
    /// Process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// An address that it told in its ready line: `grpc`, `transfer`, `admin` or `http`.
    #[must_use]
    pub fn address(&self, which: &str) -> &str {
        self.ready[which].as_str().unwrap_or_default()
    }

    /// Sends a signal: `KILL`, `TERM`, `STOP` or `CONT`.
    pub fn signal(&self, signal: Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, signal.into());
    }

    /// Whether it has not ended.
    pub fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    fn end(&mut self, signal: Signal) {
        if !self.runs() {
            return;
        }
        self.signal(signal);
        self.signal(Signal::Continue);
        let until = Instant::now() + STOP_MAX;
        while self.runs() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The signals suites send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGKILL.
    Kill,
    /// SIGTERM: drain.
    Terminate,
    /// SIGSTOP: a frozen process.
    Stop,
    /// SIGCONT.
    Continue,
}

impl From<Signal> for rustix::process::Signal {
    fn from(signal: Signal) -> Self {
        match signal {
            Signal::Kill => Self::KILL,
            Signal::Terminate => Self::TERM,
            Signal::Stop => Self::STOP,
            Signal::Continue => Self::CONT,
        }
    }
}

/// A conductor, a gateway, and nodes.
pub struct Cluster {
    /// What was asked for.
    pub plan: Plan,
    /// Prefill nodes.
    pub prefill: Vec<Process>,
    /// Decode nodes.
    pub decode: Vec<Process>,
    /// The gateway.
    pub gateway: Process,
    /// The conductor.
    pub conductor: Process,
    directory: tempfile::TempDir,
}

impl Cluster {
    /// Starts all processes and waits until the gateway can serve.
    ///
    /// # Errors
    /// [`ClusterError`], with the end of the log of whoever failed.
    pub async fn start(plan: &Plan) -> Result<Self, ClusterError> {
        let directory = tempfile::Builder::new().prefix("kvrail-cluster-").tempdir()?;
        let conductor = spawn(plan, directory.path(), "conductor", conductor_args(plan, "127.0.0.1:0"))?;
        let at = conductor.address("grpc").to_owned();
        let mut nodes = Vec::new();
        for (role, count) in [("prefill", plan.prefill), ("decode", plan.decode)] {
            for index in 0..count {
                nodes.push((
                    role,
                    begin(plan, directory.path(), &format!("{role}-{index}"), node_args(plan, role, index, &at))?,
                ));
            }
        }
        let gateway = begin(plan, directory.path(), "gateway", gateway_args(plan, &at))?;
        let (mut prefill, mut decode) = (Vec::new(), Vec::new());
        for (role, starting) in nodes {
            let process = starting.wait(directory.path())?;
            if role == "prefill" { prefill.push(process) } else { decode.push(process) }
        }
        let gateway = gateway.wait(directory.path())?;
        let cluster = Self { plan: plan.clone(), prefill, decode, gateway, conductor, directory };
        cluster.all_joined().await?;
        Ok(cluster)
    }

    /// All processes.
    pub fn processes(&self) -> impl Iterator<Item = &Process> {
        self.prefill.iter().chain(&self.decode).chain([&self.gateway, &self.conductor])
    }

    /// Files and directories that the processes have left in theirs, their logs aside.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn leftovers(&self) -> std::io::Result<Vec<PathBuf>> {
        let logs: Vec<PathBuf> = self.processes().map(|p| log_path(self.directory.path(), &p.name)).collect();
        let entries: Result<Vec<_>, _> = std::fs::read_dir(self.directory.path())?.collect();
        Ok(entries?.into_iter().map(|entry| entry.path()).filter(|path| !logs.contains(path)).collect())
    }

    /// A client of the gateway.
    ///
    /// # Panics
    /// If the gateway told no address; it did, or it would not be ready.
    #[must_use]
    pub fn client(&self) -> Client {
        Client::new(self.gateway.address("http")).expect("the gateway's address")
    }

    /// The model's name, as the gateway lists it.
    ///
    /// # Errors
    /// If it lists none.
    pub async fn model(&self) -> Result<String, ClusterError> {
        eventually("the gateway lists a model", READY_MAX, || async {
            let models = self.client().get("/v1/models").await.map_err(|e| e.to_string())?;
            models.pointer("/data/0/id").and_then(Value::as_str).map(str::to_owned).ok_or_else(|| models.to_string())
        })
        .await
    }

    /// `/status` of a process.
    ///
    /// # Errors
    /// What went wrong, as text: suites print it.
    pub async fn status(&self, process: &Process) -> Result<Value, String> {
        let client = self.admin(process)?;
        client.get("/status").await.map_err(|e| format!("{}: {e}", process.name))
    }

    /// The sum of a metric of the gateway's or a node's over all series whose labels contain `label`; 0 if there is none.
    ///
    /// # Errors
    /// What went wrong, as text.
    pub async fn metric(&self, process: &Process, name: &str, label: &str) -> Result<f64, String> {
        let client = self.admin(process)?;
        let reply = client.raw(Method::GET, "/metrics", Bytes::new()).await;
        let page = reply.map_err(|e| format!("{}: {e}", process.name))?.body;
        let page = String::from_utf8_lossy(&page);
        let series = page.lines().filter_map(|line| line.strip_prefix(name)?.rsplit_once(' '));
        let ours =
            series.filter(|(labels, _)| (labels.is_empty() || labels.starts_with('{')) && labels.contains(label));
        Ok(ours.filter_map(|(_, value)| value.parse::<f64>().ok()).sum())
    }

    fn admin(&self, process: &Process) -> Result<Client, String> {
        let address = match process.address("admin") {
            "" => process.address("http"),
            admin => admin,
        };
        Ok(Client::new(address).map_err(|e| e.to_string())?.with_silence_max(Duration::from_secs(5)))
    }

    /// Waits until the gateway's members are the nodes of this cluster as they run now, as the conductor knows them.
    ///
    /// # Errors
    /// If it does not come true.
    pub async fn all_joined(&self) -> Result<(), ClusterError> {
        let nodes = || self.prefill.iter().chain(&self.decode);
        eventually("the gateway sees all nodes", READY_MAX, || async {
            let status = self.status(&self.gateway).await?;
            let members = status["members"].as_array().cloned().unwrap_or_default();
            let known = |node: &Process| {
                members.iter().any(|m| m["grpc"] == node.address("grpc") && m["known_to_conductor"] == true)
            };
            if nodes().all(known) && members.len() == nodes().count() { Ok(()) } else { Err(status.to_string()) }
        })
        .await
    }

    /// Ends a node and starts it again, as a new process with the old name.
    ///
    /// # Errors
    /// If the new one does not become ready.
    pub fn restart(&mut self, role: Role, index: usize) -> Result<(), ClusterError> {
        let directory = self.directory.path().to_owned();
        let plan = self.plan.clone();
        let process = match role {
            Role::Prefill => &mut self.prefill[index],
            Role::Decode => &mut self.decode[index],
            Role::Gateway => &mut self.gateway,
            Role::Conductor => &mut self.conductor,
        };
        process.end(Signal::Kill);
        let mut args = process.args.clone();
        if role == Role::Conductor {
            // The others know its address.
            args = conductor_args(&plan, process.address("grpc"));
        }
        *process = spawn(&plan, &directory, &process.name.clone(), args)?;
        Ok(())
    }

    /// Drains all with SIGTERM and waits for them; the names of those that did not end by themselves with status 0.
    pub fn drain(mut self) -> Vec<String> {
        let mut bad = Vec::new();
        let nodes = self.prefill.iter_mut().chain(&mut self.decode);
        for process in std::iter::once(&mut self.gateway).chain(nodes).chain(std::iter::once(&mut self.conductor)) {
            process.signal(Signal::Terminate);
            let until = Instant::now() + STOP_MAX;
            while process.runs() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(10));
            }
            match process.child.try_wait() {
                Ok(Some(status)) if status.success() => {}
                other => bad.push(format!("{}: {other:?}", process.name)),
            }
        }
        bad
    }

    /// Whether any process has told of a panic since it was first started.
    #[must_use]
    pub fn panicked(&self) -> bool {
        let mut logs = self
            .processes()
            .map(|p| std::fs::read_to_string(log_path(self.directory.path(), &p.name)).unwrap_or_default());
        logs.any(|log| log.contains("panicked at"))
    }

    /// The end of every log, for a failure report.
    #[must_use]
    pub fn logs(&self) -> String {
        let all = self.processes();
        all.map(|p| format!("--- {}\n{}\n", p.name, tail(&log_path(self.directory.path(), &p.name)))).collect()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end(Signal::Kill);
    }
}

/// Which process of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A prefill node.
    Prefill,
    /// A decode node.
    Decode,
    /// The gateway.
    Gateway,
    /// The conductor.
    Conductor,
}

/// Polls `probe` until it gives a value; its error is what was seen last.
///
/// # Errors
/// [`ClusterError::Never`] after `after`.
pub async fn eventually<T, F, Fut>(what: &str, after: Duration, mut probe: F) -> Result<T, ClusterError>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, String>>,
{
    let until = Instant::now() + after;
    loop {
        match probe().await {
            Ok(value) => return Ok(value),
            Err(last) if Instant::now() >= until => return Err(ClusterError::Never { what: what.into(), after, last }),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

fn conductor_args(plan: &Plan, grpc: &str) -> Vec<String> {
    let mut args = strings(&["conductor", "--grpc", grpc, "--admin", "127.0.0.1:0"]);
    args.extend_from_slice(&plan.conductor_args);
    args
}

fn gateway_args(plan: &Plan, conductor: &str) -> Vec<String> {
    let mut args = strings(&["gateway", "--http", "127.0.0.1:0", "--conductor", conductor, "--model", &plan.model]);
    args.extend_from_slice(&plan.gateway_args);
    args
}

fn node_args(plan: &Plan, role: &str, index: usize, conductor: &str) -> Vec<String> {
    let mut args = strings(&[role, "--node-id", &format!("{role}-{index}"), "--conductor", conductor]);
    args.extend(strings(&["--model", &plan.model, "--transport", &plan.transport]));
    args.extend(strings(&["--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--transfer", "127.0.0.1:0"]));
    args.extend_from_slice(&plan.node_args);
    args.extend_from_slice(if role == "prefill" { &plan.prefill_args } else { &plan.decode_args });
    args
}

fn strings(args: &[&str]) -> Vec<String> {
    args.iter().map(|&a| a.to_owned()).collect()
}

fn log_path(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{name}.log"))
}

fn tail(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}

/// A process that was started and has not said yet that it is ready.
struct Starting {
    process: Process,
    line: mpsc::Receiver<String>,
}

fn begin(plan: &Plan, directory: &Path, name: &str, args: Vec<String>) -> Result<Starting, ClusterError> {
    let log = File::options().create(true).append(true).open(log_path(directory, name))?;
    let mut child = Command::new(&plan.binary)
        .args(&args)
        .current_dir(directory)
        // What it would leave in places that others share too is then left here, and seen.
        .envs(["TMPDIR", "XDG_RUNTIME_DIR"].map(|name| (name, directory)))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .map_err(|source| ClusterError::Spawn { binary: plan.binary.display().to_string(), source })?;
    let stdout = child.stdout.take().expect("stdout was piped");
    let (sender, line) = mpsc::sync_channel(1);
    std::thread::spawn(move || {
        // Only the ready line is for us; the rest is read so that the child never blocks on a full pipe.
        let mut sender = Some(sender);
        for text in BufReader::new(stdout).lines().map_while(Result::ok) {
            if text.contains("\"ready\"")
                && let Some(sender) = sender.take()
            {
                let _ = sender.send(text);
            }
        }
    });
    Ok(Starting { process: Process { name: name.into(), child, ready: Value::Null, args }, line })
}

impl Starting {
    fn wait(mut self, directory: &Path) -> Result<Process, ClusterError> {
        let reason = match self.line.recv_timeout(READY_MAX) {
            Ok(line) => match serde_json::from_str(&line) {
                Ok(ready) => {
                    self.process.ready = ready;
                    return Ok(self.process);
                }
                Err(e) => format!("its ready line is no JSON: {e}: {line}"),
            },
            Err(mpsc::RecvTimeoutError::Timeout) => format!("silent for {READY_MAX:?}"),
            Err(mpsc::RecvTimeoutError::Disconnected) => format!("ended: {:?}", self.process.child.wait()),
        };
        self.process.end(Signal::Kill);
        let log = tail(&log_path(directory, &self.process.name));
        Err(ClusterError::NotReady { name: self.process.name.clone(), reason, log })
    }
}

fn spawn(plan: &Plan, directory: &Path, name: &str, args: Vec<String>) -> Result<Process, ClusterError> {
    begin(plan, directory, name, args)?.wait(directory)
}
