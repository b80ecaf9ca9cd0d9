//! Runs a command in the machine: boots it, passes on what it prints, and sees to it that it ends.

use std::ffi::OsString;
use std::fs::File;
use std::io::{PipeReader, pipe};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::value_parser;
use tokio::signal::unix::{SignalKind, signal};

use crate::control::{self, Control};
use crate::{kernel, packages};

/// The command ran longer than `--limit`.
pub const OVER_LIMIT: u8 = 124;
/// The guest ended without saying how the command did.
pub const GUEST_DIED: u8 = 125;
/// The command did not run at all.
pub const SET_UP_FAILED: u8 = 126;

/// How long the output of a guest that was ended may take to end too.
const DRAIN: Duration = Duration::from_secs(5);

/// Arguments of `run`.
#[derive(clap::Args)]
#[command(after_help = "\
Exit status: the command's own; 124 over the limit; 125 the guest ended without a status; 126 the set-up failed.

The command sees this host's files. What it changes in the working directory and in --rw directories stays; all else that it
writes is gone at the end. /tmp is empty, stdin too. In the guest, `rail` breaks links: `rail help`.

Example:
  cargo xtask softroce run --hosts 3 --rails 2 --limit 60 -- sh -c 'ibv_devices; rail cut b0; rail show'")]
pub struct Args {
    /// Hosts on the switch: a, b, ... to h.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = value_parser!(u8).range(1..=8))]
    pub hosts: u8,
    /// Rails of each host. Host b's rail 1 is RDMA device rxb1 on NIC b1 with address 10.0.1.2.
    #[arg(long, value_name = "M", default_value_t = 2, value_parser = value_parser!(u8).range(1..=8))]
    pub rails: u8,
    /// The guest's memory. It takes from the host what it uses of it.
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = value_parser!(u32).range(128..=65536))]
    pub memory: u32,
    /// Ends the guest after so many seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = value_parser!(u32).range(1..=86400))]
    pub limit: u32,
    /// Passes this variable of the environment on; may be repeated.
    #[arg(long, value_name = "NAME", value_parser = control::variable)]
    pub env: Vec<String>,
    /// Lets the command change this directory too; may be repeated.
    #[arg(long, value_name = "DIR")]
    pub rw: Vec<PathBuf>,
    /// The command and its arguments, as they are: for pipes and the like, sh -c '...'.
    #[arg(last = true, required = true)]
    pub command: Vec<OsString>,
}

/// Runs what `args` say from the working directory, with its output to `out` and `err` as it comes. Returns the exit status;
/// fails if the machine cannot be set up. The guest ends with the calling thread.
pub fn run(args: &Args, out: impl AsFd, err: impl AsFd) -> Result<u8> {
    packages::check(packages::TO_RUN)?;
    let kernel = kernel::find()?;
    let directory = std::env::current_dir().context("the working directory")?;
    let control = Control::new(args, &directory)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(supervise(machine(&kernel, args.memory, &control), args.limit, out, err))?;
    Ok(match (control.status()?, ended) {
        (Some(status), _) => status,
        (None, Ended::Told(status)) => status,
        (None, Ended::OverLimit) => {
            eprintln!("softroce: over its limit of {} s", args.limit);
            OVER_LIMIT
        }
        (None, Ended::Itself) if control.started() => {
            eprintln!("softroce: the guest ended without a status");
            GUEST_DIED
        }
        (None, Ended::Itself) => {
            eprintln!(
                "softroce: the machine did not come up. It needs process and mount namespaces and ptrace: root has them, a \
                 container's root with --privileged, and other users where the kernel lets them make user namespaces."
            );
            SET_UP_FAILED
        }
    })
}

/// The kernel's command line, in namespaces of its own.
fn machine(kernel: &Path, memory_mib: u32, control: &Control) -> Command {
    let path = control.path();
    // Whatever ends us, even a SIGKILL, ends `unshare`, which ends the first process of the namespace and with it all others.
    // UML runs every guest process as one of the host, and some of them outlive a kernel that dies.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "unshare"]);
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]);
    // The guest's memory is a file that UML maps, in $TMPDIR: on a tmpfs that only this namespace sees. A container's /dev/shm
    // is often small and may not be executed from.
    command.args(["sh", "-c", "mount -t tmpfs -o mode=700,size=100% memory \"$TMPDIR\" && exec \"$@\"", "sh"]);
    command.env("TMPDIR", path.join("memory"));
    // UML has one processor, which its kernel and its processes take in turns. On two of the host each turn would wait until the
    // other one wakes up: a guest with much to do is three times as slow then.
    if let Some(cpu) = one_cpu() {
        command.args(["taskset", "--cpu-list", &cpu.to_string()]);
    }
    command.arg(kernel);
    command.args([format!("mem={memory_mib}M"), format!("init={}/init", path.display())]);
    command.args(["root=none", "rootfstype=hostfs", "rootflags=/", "rw"]);
    // Console 0 is what the command prints, console 1 its errors and the kernel's own, should it have any.
    command.args(["con0=null,fd:1", "con1=null,fd:2", "con=null", "console=tty1", "quiet", "loglevel=3", "panic=-1"]);
    // Without a source of randomness at boot whoever asks for some would wait.
    command.arg("random.trust_cpu=on");
    // Otherwise UML keeps a directory in the user's home.
    command.args([format!("uml_dir={}/", path.display()), "umid=guest".into()]);
    command.stdin(Stdio::null());
    // A terminal's Ctrl-C is for us, who know how to end a guest.
    command.process_group(0);
    command
}

/// A processor that we may use; guests that run at once are spread over them.
fn one_cpu() -> Option<usize> {
    let set = rustix::thread::sched_getaffinity(None).ok()?;
    let ours: Vec<usize> = (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect();
    ours.get(std::process::id() as usize % ours.len().max(1)).copied()
}

/// How the guest ended.
enum Ended {
    Itself,
    OverLimit,
    /// We were told to end by a signal; the status is what a shell shows for it.
    Told(u8),
}

/// Starts `command` and waits for its end, or brings it about. All of its output has been passed on when this returns.
async fn supervise(mut command: Command, limit_s: u32, out: impl AsFd, err: impl AsFd) -> Result<Ended> {
    // UML makes its descriptors non-blocking and terminals raw: it gets pipes, and ours stay as they are.
    let ((from_out, to_out), (from_err, to_err)) = (pipe()?, pipe()?);
    command.stdout(to_out).stderr(to_err);
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let mut command = tokio::process::Command::from(command);
    command.kill_on_drop(true);
    let mut guest = command.spawn().context("cannot start setpriv")?;
    // With it go our ends of the pipes: they are at their end when the guest is.
    drop(command);
    let (done, drained) = mpsc::sync_channel(2);
    pass_on(from_out, out.as_fd().try_clone_to_owned()?, done.clone());
    pass_on(from_err, err.as_fd().try_clone_to_owned()?, done);

    let ended = tokio::select! {
        status = guest.wait() => status.map(|_| Ended::Itself)?,
        () = tokio::time::sleep(Duration::from_secs(limit_s.into())) => Ended::OverLimit,
        _ = hangup.recv() => Ended::Told(128 + 1),
        _ = interrupt.recv() => Ended::Told(128 + 2),
        _ = terminate.recv() => Ended::Told(128 + 15),
    };
    guest.kill().await.ok();
    for _ in 0..2 {
        if drained.recv_timeout(DRAIN).is_err() {
            eprintln!("softroce: the guest's output did not end within {} s of the guest", DRAIN.as_secs());
        }
    }
    Ok(ended)
}

/// Copies all that comes out of `from` to `to` at once, and says when that is over.
fn pass_on(mut from: PipeReader, to: OwnedFd, done: mpsc::SyncSender<()>) {
    std::thread::spawn(move || {
        let mut to = File::from(to);
        if std::io::copy(&mut from, &mut to).is_err() {
            // Nobody reads it any more; the command goes on all the same.
            std::io::copy(&mut from, &mut std::io::sink()).ok();
        }
        done.send(()).ok();
    });
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn parse(words: &[&str]) -> Result<Args, clap::Error> {
        Line::try_parse_from([&["run"], words].concat()).map(|line| line.args)
    }

    #[test]
    fn a_command_is_taken_as_it_is() {
        let args = parse(&["--hosts", "8", "--env", "A", "--env", "B", "--", "sh", "-c", "a  'b'", "--hosts"]).unwrap();
        assert_eq!((args.hosts, args.rails, args.memory, args.limit), (8, 2, 1024, 120));
        assert_eq!(args.env, ["A", "B"]);
        assert_eq!(args.command, ["sh", "-c", "a  'b'", "--hosts"]);
    }

    #[test]
    fn what_is_out_of_bounds_is_refused() {
        for wrong in [
            &["--hosts", "0"][..],
            &["--hosts", "9"],
            &["--rails", "0"],
            &["--rails", "9"],
            &["--memory", "127"],
            &["--memory", "65537"],
            &["--limit", "0"],
            &["--limit", "1.5"],
            &["--env", "A=b"],
        ] {
            assert!(parse(&[wrong, &["--", "true"]].concat()).is_err(), "{wrong:?}");
        }
        assert!(parse(&[]).is_err(), "no command");
        assert!(parse(&["true"]).is_err(), "a command without -- before it");
    }
}
