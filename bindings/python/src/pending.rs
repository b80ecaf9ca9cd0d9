//! What is waited for: a result that is there at some time, for a thread that blocks or for a task of an event loop.
//!
//! A `Pending` holds a future of the engine. A blocking wait polls it on the caller's thread. A task registers a token with
//! [`Events`] by polling it, sleeps until the loop reads that token, and polls again: the result is taken by the task itself, so
//! one that was cancelled in between has taken nothing.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use kvrail_bindings::Code;
use parking_lot::Mutex;
use pyo3::exceptions::{PyRuntimeError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;

use crate::raise;

/// Longest a blocking wait goes without asking whether Ctrl-C was pressed.
const SIGNALS_EVERY: Duration = Duration::from_millis(100);

/// Makes the Python value of a result; called attached to the interpreter.
pub type Finish = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;

type Running = Pin<Box<dyn Future<Output = Finish> + Send>>;

enum State {
    Running(Running),
    Done(Result<Py<PyAny>, PyErr>),
}

impl State {
    /// Keeps the result, for whoever asks again.
    fn settle(&mut self, py: Python<'_>, finish: Finish) {
        *self = Self::Done(finish(py));
    }

    /// Looks whether it has ended; `waker` is woken when it does.
    fn poll(&mut self, py: Python<'_>, waker: &Waker) {
        if let Self::Running(future) = self
            && let Poll::Ready(finish) = future.as_mut().poll(&mut Context::from_waker(waker))
        {
            self.settle(py, finish);
        }
    }

    fn result(&self, py: Python<'_>) -> Option<PyResult<Py<PyAny>>> {
        match self {
            Self::Running(_) => None,
            Self::Done(Ok(value)) => Some(Ok(value.clone_ref(py))),
            Self::Done(Err(error)) => Some(Err(error.clone_ref(py))),
        }
    }
}

/// Something that ends. Await it in asyncio, or call `wait`.
#[pyclass(module = "kvrail", frozen)]
pub struct Pending {
    state: Mutex<State>,
    /// What a cancelled task does to it.
    cancel: Option<Box<dyn Fn() + Send + Sync>>,
}

impl Pending {
    /// Looked at when it is waited for, and not before: what a result takes out of a queue stays there while nobody waits.
    pub fn new(future: impl Future<Output = Finish> + Send + 'static) -> Self {
        Self { state: Mutex::new(State::Running(Box::pin(future))), cancel: None }
    }

    /// The same, begun at once: futures that ask the engine for something do so when they are first polled.
    pub fn begun(py: Python<'_>, future: impl Future<Output = Finish> + Send + 'static) -> Self {
        let pending = Self::new(future);
        pending.state.lock().poll(py, Waker::noop());
        pending
    }

    /// The same, with what is to happen where the task that awaits it is cancelled.
    pub fn cancelled_by(self, cancel: impl Fn() + Send + Sync + 'static) -> Self {
        Self { cancel: Some(Box::new(cancel)), ..self }
    }

    /// The result if it comes within the bound.
    pub fn within(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Py<PyAny>>> {
        let busy = || PyRuntimeError::new_err("another thread waits for this already");
        let mut state = self.state.try_lock().ok_or_else(busy)?;
        if let State::Running(future) = &mut *state {
            match blocking(py, future.as_mut(), timeout)? {
                Some(finish) => state.settle(py, finish),
                None => return Ok(None),
            }
        }
        state.result(py).transpose()
    }
}

#[pymethods]
impl Pending {
    /// Blocks until it has ended; other threads run meanwhile. TimeoutError after `timeout` seconds, which ends the wait alone.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        self.within(py, timeout)?.ok_or_else(|| late(timeout))
    }

    /// For event loops: `(result,)` if it has ended, else None, and `token` goes to `events` when it does.
    fn poll(&self, py: Python<'_>, events: &Events, token: u64) -> PyResult<Option<(Py<PyAny>,)>> {
        let busy = || PyRuntimeError::new_err("a thread waits for this already");
        let mut state = self.state.try_lock().ok_or_else(busy)?;
        state.poll(py, &events.0.waker(token));
        Ok(state.result(py).transpose()?.map(|value| (value,)))
    }

    /// For event loops: the task that awaited it was cancelled.
    fn cancelled(&self) {
        if let Some(cancel) = &self.cancel {
            cancel();
        }
    }

    fn __await__(this: Py<Self>, py: Python<'_>) -> PyResult<Py<PyAny>> {
        awaiting(py, this.into_any())
    }
}

/// The iterator by which an event loop drives `pending`.
pub fn awaiting(py: Python<'_>, pending: Py<PyAny>) -> PyResult<Py<PyAny>> {
    let task = py.import("kvrail._loop")?.call_method1("resolve", (pending,))?;
    Ok(task.call_method0("__await__")?.unbind())
}

/// What a wait says whose bound came first.
pub fn late(timeout: Option<f64>) -> PyErr {
    PyTimeoutError::new_err(format!("not over within {} s", timeout.unwrap_or_default()))
}

/// Seconds as a duration.
pub fn seconds(name: &str, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|e| PyValueError::new_err(format!("{name}: {e}")))
}

/// The future's result if it comes within the bound, waited for detached from the interpreter.
pub fn blocking<F>(py: Python<'_>, mut future: Pin<&mut F>, timeout: Option<f64>) -> PyResult<Option<F::Output>>
where
    F: Future + Send + ?Sized,
    F::Output: Send,
{
    let timeout = timeout.map(|timeout| seconds("timeout", timeout.max(0.0))).transpose()?;
    let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let slice = left.map_or(SIGNALS_EVERY, |left| left.min(SIGNALS_EVERY));
        let polled = future.as_mut();
        if let Some(output) = py.detach(|| kvrail_bindings::wait(polled, Some(slice))) {
            return Ok(Some(output));
        }
        py.check_signals()?;
        if left.is_some_and(|left| left <= slice) {
            return Ok(None);
        }
    }
}

/// Waits for a future that needs no value; whether it came within the bound.
pub fn blocked_on(py: Python<'_>, future: impl Future<Output = ()> + Send, timeout: Option<f64>) -> PyResult<bool> {
    Ok(blocking(py, pin!(future), timeout)?.is_some())
}

/// Tokens of what has ended, behind a descriptor that an event loop reads.
#[pyclass(module = "kvrail", frozen)]
pub struct Events(Arc<kvrail_bindings::Events>);

#[pymethods]
impl Events {
    #[new]
    fn new(py: Python<'_>) -> PyResult<Self> {
        let made = kvrail_bindings::Events::new();
        Ok(Self(made.map_err(|e| raise::error(py, Code::Os, &format!("eventfd: {e}")))?))
    }

    /// Readable while there are tokens.
    fn fileno(&self) -> i32 {
        self.0.descriptor()
    }

    /// All tokens, oldest first.
    fn take(&self) -> Vec<u64> {
        self.0.take(usize::MAX)
    }
}
