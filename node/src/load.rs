//! What the node is doing, as the conductor hears it: the latest state, never a queue of states.

use kvrail_proto::v1;
use tokio::sync::watch;

/// The node's load. Clones share it; writers change it in place, the membership client sends what is newest.
#[derive(Clone, Debug)]
pub struct LoadReport(watch::Sender<v1::Load>);

impl Default for LoadReport {
    fn default() -> Self {
        Self(watch::Sender::new(v1::Load::default()))
    }
}

impl LoadReport {
    /// Changes the load; tells nobody if nothing changed. `sequence` is the membership client's business.
    pub fn update(&self, change: impl FnOnce(&mut v1::Load)) {
        self.0.send_if_modified(|load| {
            let before = *load;
            change(load);
            *load != before
        });
    }

    /// The load now.
    #[must_use]
    pub fn current(&self) -> v1::Load {
        *self.0.borrow()
    }

    /// Sees every change, coalesced.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<v1::Load> {
        self.0.subscribe()
    }
}
