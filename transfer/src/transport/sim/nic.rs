//! The NIC of an engine: a thread that carries out what is due.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::transport::sim::Fabric;
use crate::transport::sim::pair::QueuePair;

/// An engine's NIC; when its last handle goes it leaves the fabric and its thread ends.
pub(crate) struct Nic {
    fabric: Fabric,
    generation: u64,
    agenda: Arc<Agenda>,
}

#[derive(Default)]
struct Agenda {
    due: Mutex<Due>,
    changed: Condvar,
}

#[derive(Default)]
struct Due {
    /// By time, then in the order of posting.
    pairs: BTreeMap<(Instant, u64), Arc<QueuePair>>,
    posted: u64,
    closing: bool,
}

impl Nic {
    /// Joins a fabric under the engine's generation.
    pub(crate) fn open(fabric: &Fabric, generation: u64) -> io::Result<Arc<Self>> {
        let agenda = Arc::<Agenda>::default();
        let run = Arc::clone(&agenda);
        std::thread::Builder::new().name("kvrail-nic".into()).spawn(move || {
            crate::urgent();
            run.run();
        })?;
        fabric.join(generation);
        Ok(Arc::new(Self { fabric: fabric.clone(), generation, agenda }))
    }

    pub(crate) fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// Whether that engine can be reached.
    pub(crate) fn reaches(&self, generation: u64) -> bool {
        self.fabric.reaches(generation)
    }

    /// Rings the doorbell: `pair` has a request that is due then.
    pub(super) fn ring(&self, pair: &Arc<QueuePair>, at: Instant) {
        let mut due = self.agenda.due.lock();
        due.posted += 1;
        let place = (at, due.posted);
        due.pairs.insert(place, Arc::clone(pair));
        if due.pairs.first_key_value().is_some_and(|(first, _)| *first == place) {
            self.agenda.changed.notify_one();
        }
    }
}

impl Drop for Nic {
    fn drop(&mut self) {
        self.fabric.leave(self.generation);
        self.agenda.due.lock().closing = true;
        self.agenda.changed.notify_one();
    }
}

impl Agenda {
    fn run(&self) {
        let mut due = self.due.lock();
        while !due.closing {
            let now = Instant::now();
            match due.pairs.first_key_value().map(|(&(at, _), _)| at) {
                None => self.changed.wait(&mut due),
                Some(at) if at > now => drop(self.changed.wait_until(&mut due, at)),
                Some(_) => {
                    if let Some((_, pair)) = due.pairs.pop_first() {
                        MutexGuard::unlocked(&mut due, || pair.carry_out_next());
                    }
                }
            }
        }
    }
}
