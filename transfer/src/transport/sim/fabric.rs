//! Who can reach whom: NICs by the generation of their engine, responders by their number.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use crate::memory::{Region, WeakRegion};
use crate::transport::sim::responder::Responder;

/// What the links of a [`Fabric`] are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FabricOptions {
    /// Bytes a second of each link; there is one for each stream of a peer, and each direction.
    pub rate: u64,
    /// One way, once the last byte has left.
    pub delay: Duration,
    /// Added to the delay of each request, uniformly from zero; requests of one link stay in order.
    pub jitter: Duration,
    /// Decides the jitter.
    pub seed: u64,
    /// The NICs check each request against its lease as the bytes move, as memory windows would have them. Without, a key opens
    /// a whole region, as on most NICs, and leases are lent and wanted back.
    pub windows: bool,
}

impl Default for FabricOptions {
    /// 40 Gb/s behind one switch: what a machine of a few cores can copy besides.
    fn default() -> Self {
        let (delay, jitter) = (Duration::from_micros(2), Duration::from_micros(2));
        Self { rate: 5_000_000_000, delay, jitter, seed: 1, windows: false }
    }
}

/// A simulated network inside one process. Engines that were given clones of one reach each other by
/// [`TransportKind::Sim`](crate::TransportKind::Sim); it leads nowhere else.
///
/// ```
/// use kvrail_transfer::*;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let fabric = Fabric::new(FabricOptions { rate: 1_000_000_000, ..FabricOptions::default() });
/// let config = EngineConfig { transports: vec![TransportKind::Sim], fabric: Some(fabric), ..EngineConfig::default() };
/// let (here, there) = (Engine::start(config.clone())?, Engine::start(config)?);
/// assert_ne!(here.generation(), there.generation());
/// # Ok(()) }
/// ```
#[derive(Clone, Default)]
pub struct Fabric(Arc<Inner>);

#[derive(Default)]
struct Inner {
    options: FabricOptions,
    nics: Mutex<HashSet<u64>>,
    responders: Mutex<HashMap<u64, Weak<Responder>>>,
    /// Registered memory by key.
    regions: Mutex<HashMap<u32, WeakRegion>>,
}

impl Fabric {
    /// A network without engines.
    #[must_use]
    pub fn new(options: FabricOptions) -> Self {
        Self(Arc::new(Inner { options, ..Inner::default() }))
    }

    pub(crate) fn options(&self) -> &FabricOptions {
        &self.0.options
    }

    pub(super) fn join(&self, generation: u64) {
        self.0.nics.lock().insert(generation);
    }

    pub(super) fn leave(&self, generation: u64) {
        self.0.nics.lock().remove(&generation);
    }

    /// Whether that engine is on this network.
    pub(super) fn reaches(&self, generation: u64) -> bool {
        self.0.nics.lock().contains(&generation)
    }

    /// Registers a region; its key.
    pub(super) fn register(&self, region: &Region) -> u32 {
        let key = region.id() as u32;
        let mut regions = self.0.regions.lock();
        if regions.len() >= 64 {
            regions.retain(|_, region| region.upgrade().is_some());
        }
        regions.entry(key).or_insert_with(|| region.downgrade());
        key
    }

    /// What a key opens.
    pub(super) fn region(&self, key: u32) -> Option<Region> {
        self.0.regions.lock().get(&key)?.upgrade()
    }

    pub(super) fn plug(&self, responder: &Arc<Responder>) {
        self.0.responders.lock().insert(responder.number(), Arc::downgrade(responder));
    }

    pub(super) fn unplug(&self, number: u64) {
        self.0.responders.lock().remove(&number);
    }

    pub(super) fn responder(&self, number: u64) -> Option<Arc<Responder>> {
        self.0.responders.lock().get(&number)?.upgrade()
    }
}

impl std::fmt::Debug for Fabric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fabric").field("options", &self.0.options).finish_non_exhaustive()
    }
}
