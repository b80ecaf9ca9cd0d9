//! Ctrl-C and SIGTERM.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use tokio::{
    runtime::Builder,
    signal::unix::{Signal, SignalKind, signal},
};

/// Both signals that ask a process to end.
#[derive(Debug)]
pub struct Termination {
    interrupt: Signal,
    terminate: Signal,
}

impl Termination {
    /// Takes both over; must be called in a runtime.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn listen() -> std::io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Resolves when one arrives, with its name.
    pub async fn recv(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "Ctrl-C",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }
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
