//! A gate: where a thread of the engine stands still, seen to be there, until a test lets it go.
//!
//! A delay makes it likely that a slice is late; a gate makes it certain, and says between which two steps it stands.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

/// A gate of a [`FaultPlan`](crate::FaultPlan): closed until it is opened, once and for all. Clones are one gate.
///
/// A thread that waits moves nothing else, and an engine does not end before its gates are open.
#[derive(Clone, Debug, Default)]
pub struct Gate(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    state: Mutex<State>,
    opened: Condvar,
}

#[derive(Debug, Default)]
struct State {
    reached: bool,
    open: bool,
}

impl Gate {
    /// Whether a thread has come to it.
    #[must_use]
    pub fn is_reached(&self) -> bool {
        self.0.state.lock().reached
    }

    /// Lets go whoever waits, and whoever comes later.
    pub fn open(&self) {
        self.0.state.lock().open = true;
        self.0.opened.notify_all();
    }

    /// Waits until it is open.
    pub(crate) fn pass(&self) {
        let mut state = self.0.state.lock();
        state.reached = true;
        self.0.opened.wait_while(&mut state, |state| !state.open);
    }
}

impl PartialEq for Gate {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Gate {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_comes_waits_until_it_is_open_and_not_after() {
        let gate = Gate::default();
        let waits = std::thread::spawn({
            let gate = gate.clone();
            move || gate.pass()
        });
        while !gate.is_reached() {
            std::thread::yield_now();
        }
        assert!(!waits.is_finished());
        gate.open();
        waits.join().unwrap();
        gate.pass();
    }
}
