//! The signals that ask a process to end: Ctrl-C, SIGTERM, and SIGHUP when the terminal goes away.

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use tokio::{
    runtime::Builder,
    signal::unix::{Signal, SignalKind, signal},
};

/// A signal that comes so soon after another is the same wish: `timeout` signals its child and then the child's whole
/// group, and a terminal that closes hangs up on both.
const SAME_WISH: Duration = Duration::from_secs(1);

/// The signals that ask a process to end.
#[derive(Debug)]
pub struct Termination {
    heard: Option<Instant>,
    interrupt: Signal,
    terminate: Signal,
    /// None under `nohup`, which asks that this one be ignored.
    hangup: Option<Signal>,
}

impl Termination {
    /// Takes them over; must be called in a runtime.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn listen() -> std::io::Result<Self> {
        let hangup = (!hangup_is_ignored()).then(|| signal(SignalKind::hangup())).transpose()?;
        let (interrupt, terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        Ok(Self { heard: None, interrupt, terminate, hangup })
    }

    /// Resolves when one arrives, with its name; one within a second of the last that was told is dropped.
    pub async fn recv(&mut self) -> &'static str {
        loop {
            let name = self.next().await;
            if self.heard.is_none_or(|heard| heard.elapsed() >= SAME_WISH) {
                self.heard = Some(Instant::now());
                return name;
            }
        }
    }

    async fn next(&mut self) -> &'static str {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => "Ctrl-C",
            _ = self.terminate.recv() => "SIGTERM",
            _ = hangup => "SIGHUP",
        }
    }
}

/// Whether whoever started this process had SIGHUP ignored, by the mask in proc(5); a handler would undo that.
fn hangup_is_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & (1 << (SignalKind::hangup().as_raw_value() - 1)) != 0
}

/// A flag that the first of the signals sets, for work that has no runtime.
///
/// # Errors
/// If the kernel refuses.
pub fn flag_on_interrupt() -> anyhow::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let mut termination = runtime.block_on(async { Termination::listen() })?;
    let set = Arc::clone(&flag);
    thread::spawn(move || {
        runtime.block_on(termination.recv());
        set.store(true, Ordering::Relaxed);
    });
    Ok(flag)
}
