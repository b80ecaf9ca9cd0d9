//! One process: started, heard, ended.

use std::{
    fs::File,
    io,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{ChildStdout, Command},
    sync::oneshot,
    time::timeout,
};

use super::logs::tail;
use crate::ready::Ready;

/// Longest wait for the ready line: a large model from a slow disk included.
const READY_MAX: Duration = Duration::from_secs(300);
/// Longest line that is looked at; a longer one is no ready line.
const LINE_BYTES_MAX: usize = 64 * 1024;
const TAIL_LINES: usize = 12;

/// Why a process did not become ready.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    /// It could not be started.
    #[error("{name} could not be started: {source}")]
    Spawn {
        /// Its name.
        name: String,
        /// Why.
        source: io::Error,
    },
    /// It ended first.
    #[error("{name} ended before it was ready ({status}); its log {log} ends:\n{tail}")]
    Ended {
        /// Its name.
        name: String,
        /// How.
        status: ExitStatus,
        /// Its log file.
        log: PathBuf,
        /// The end of it.
        tail: String,
    },
    /// It did not say that it is ready.
    #[error("{name} was not ready after {} s; its log {log} ends:\n{tail}", READY_MAX.as_secs())]
    Silent {
        /// Its name.
        name: String,
        /// Its log file.
        log: PathBuf,
        /// The end of it.
        tail: String,
    },
}

/// A running process. Killed when it is dropped.
#[derive(Debug)]
pub struct Child {
    name: String,
    process: tokio::process::Child,
    pid: u32,
    log: PathBuf,
    started: Instant,
    line: Option<oneshot::Receiver<Ready>>,
}

impl Child {
    /// Starts a process whose standard error, and whatever it prints but the ready line, is appended to `output`, which
    /// [`super::logs::open`] made of the path `log`.
    ///
    /// It gets a process group of its own, so that a Ctrl-C at the terminal reaches the supervisor alone, which then ends
    /// everybody in order. Must be called on the thread that lives as long as the supervisor.
    ///
    /// # Errors
    /// [`ChildError::Spawn`].
    pub fn start(
        program: &std::path::Path,
        name: &str,
        args: &[String],
        log: PathBuf,
        output: File,
    ) -> Result<Self, ChildError> {
        let failed = |source| ChildError::Spawn { name: name.to_owned(), source };
        let errors = output.try_clone().map_err(failed)?;
        let mut process = Command::new(program)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(errors)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let (sender, line) = oneshot::channel();
        if let Some(stdout) = process.stdout.take() {
            tokio::spawn(listen(stdout, sender, output.into()));
        }
        let pid = process.id().unwrap_or_default();
        Ok(Self { name: name.to_owned(), process, pid, log, started: Instant::now(), line: Some(line) })
    }

    /// Waits for the ready line.
    ///
    /// # Errors
    /// [`ChildError::Ended`] or [`ChildError::Silent`], with the end of the log.
    pub async fn ready(&mut self) -> Result<Ready, ChildError> {
        let Some(line) = self.line.take() else { return Err(self.silent()) };
        let heard = async {
            match line.await {
                Ok(ready) => Ok(ready),
                // It closed its output: it is ending.
                Err(_) => Err(self.process.wait().await),
            }
        };
        match timeout(READY_MAX, heard).await {
            Ok(Ok(ready)) => Ok(ready),
            Ok(Err(Ok(status))) => Err(ChildError::Ended {
                name: self.name.clone(),
                status,
                log: self.log.clone(),
                tail: tail(&self.log, TAIL_LINES),
            }),
            Ok(Err(Err(source))) => Err(ChildError::Spawn { name: self.name.clone(), source }),
            Err(_) => Err(self.silent()),
        }
    }

    fn silent(&self) -> ChildError {
        ChildError::Silent { name: self.name.clone(), log: self.log.clone(), tail: tail(&self.log, TAIL_LINES) }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// How long ago it was started.
    pub fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// Resolves when it has ended. May be dropped and called again.
    pub async fn ended(&mut self) -> io::Result<ExitStatus> {
        self.process.wait().await
    }

    /// How it ended, if it has.
    pub fn status(&mut self) -> Option<ExitStatus> {
        self.process.try_wait().ok().flatten()
    }

    /// Asks it to end.
    pub fn terminate(&mut self) {
        // `id` is `None` once it was waited for: the number may be somebody else's by then.
        if let Some(pid) = self.process.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw) {
            // It may be ending this moment, which is what was wanted.
            let _ = kill_process(pid, Signal::TERM);
        }
    }

    /// Ends it, whatever it is doing; resolves when it is gone.
    pub async fn kill(&mut self) {
        let _ = self.process.kill().await;
    }
}

/// Reads a process's output to its end: the first ready line is told, everything else goes to its log.
async fn listen(stdout: ChildStdout, ready: oneshot::Sender<Ready>, mut log: tokio::fs::File) {
    let mut ready = Some(ready);
    let mut reader = BufReader::with_capacity(LINE_BYTES_MAX, stdout);
    let mut line: Vec<u8> = Vec::new();
    loop {
        let (taken, complete) = match reader.fill_buf().await {
            Ok([]) | Err(_) => break,
            Ok(buffer) => match buffer.iter().position(|&byte| byte == b'\n') {
                Some(end) => {
                    line.extend_from_slice(&buffer[..=end]);
                    (end + 1, true)
                }
                None => {
                    line.extend_from_slice(buffer);
                    (buffer.len(), line.len() >= LINE_BYTES_MAX)
                }
            },
        };
        reader.consume(taken);
        if !complete {
            continue;
        }
        match std::str::from_utf8(&line).ok().and_then(Ready::parse) {
            Some(said) if ready.is_some() => {
                // Nobody listens any more when the supervisor is ending.
                if let Some(sender) = ready.take() {
                    drop(sender.send(said));
                }
            }
            // A log that cannot be written must not stop the process that writes it.
            _ => drop(log.write_all(&line).await),
        }
        line.clear();
    }
    drop(log.write_all(&line).await);
    let _ = log.flush().await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::up::logs::open;

    fn shell(script: &str, dir: &std::path::Path) -> Child {
        let args = ["-c".to_owned(), script.to_owned()];
        let log = dir.join("fake.log");
        let output = open(&log).unwrap();
        Child::start("/bin/sh".as_ref(), "fake", &args, log, output).unwrap()
    }

    #[tokio::test]
    async fn the_ready_line_is_heard_and_the_rest_is_logged() {
        let dir = tempfile::tempdir().unwrap();
        let script = r#"echo hello; echo to-stderr >&2
            echo '{"ready":true,"role":"decode","pid":7,"grpc":"127.0.0.1:1234"}'
            echo '{"ready":true,"role":"again","pid":8}'; printf 'no newline'"#;
        let mut child = shell(script, dir.path());
        let ready = child.ready().await.unwrap();
        assert_eq!((ready.role.as_str(), ready.grpc.unwrap().port()), ("decode", 1234));
        assert!(child.ended().await.unwrap().success());
        // The reader may be a moment behind the end of the process.
        for _ in 0..100 {
            if tail(&dir.path().join("fake.log"), 10).contains("no newline") {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let log = tail(&dir.path().join("fake.log"), 10);
        for line in ["hello", "to-stderr", "again", "no newline"] {
            assert!(log.contains(line), "{line} is not in {log}");
        }
        assert!(!log.contains("1234"), "{log}");
    }

    #[tokio::test]
    async fn a_process_that_ends_first_is_told_with_the_end_of_its_log() {
        let dir = tempfile::tempdir().unwrap();
        let error = shell("echo the model is missing >&2; exit 2", dir.path()).ready().await.unwrap_err().to_string();
        assert!(error.contains("exit status: 2") && error.contains("the model is missing"), "{error}");
        let output = open(&dir.path().join("l")).unwrap();
        let missing = Child::start("/no/such/program".as_ref(), "fake", &[], dir.path().join("l"), output);
        assert!(missing.unwrap_err().to_string().contains("fake could not be started"));
    }

    #[tokio::test]
    async fn a_flood_without_newlines_is_no_ready_line_and_does_not_block() {
        let dir = tempfile::tempdir().unwrap();
        let flood = "head -c 300000 /dev/zero | tr '\\0' x; echo; echo '{\"ready\":true,\"role\":\"r\",\"pid\":1}'";
        assert_eq!(shell(flood, dir.path()).ready().await.unwrap().role, "r");
    }

    #[tokio::test]
    async fn one_that_ignores_sigterm_is_killed() {
        let dir = tempfile::tempdir().unwrap();
        let script = "trap '' TERM; echo '{\"ready\":true,\"role\":\"r\",\"pid\":1}'; while :; do sleep 0.05; done";
        let mut child = shell(script, dir.path());
        child.ready().await.unwrap();
        child.terminate();
        assert!(timeout(Duration::from_millis(200), child.ended()).await.is_err(), "it should have ignored SIGTERM");
        child.kill().await;
        assert!(child.status().is_some());
    }
}
