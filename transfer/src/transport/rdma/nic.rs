//! An opened NIC.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use kvrail_verbs::{
    Context, DeviceAttributes, Error, GidEntry, LinkLayer, Mtu, PortAttributes, PortState, ProtectionDomain,
    Unavailable, Verbs,
};
use parking_lot::Mutex;

use crate::mailbox::Mailbox;
use crate::session::rails::queue_pairs;
use crate::transport::rdma::address::{Reachability, best};
use crate::transport::rdma::clerk::Note;
use crate::transport::rdma::{CHUNK_BYTES, RdmaRail};

/// Why RDMA cannot be used as it was asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RdmaError {
    /// There is no libibverbs here.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// A device that is not there.
    #[error("there is no RDMA device `{name}`; there is {}", list(.there))]
    NoDevice {
        /// Asked for.
        name: String,
        /// What there is.
        there: Vec<String>,
    },
    /// Nothing was named, and nothing is usable.
    #[error("no RDMA device has an active port")]
    NoneActive,
    /// A device that registers less at once than both sides count in.
    #[error("{name} registers {max} bytes at once, {CHUNK_BYTES} are needed")]
    SmallRegions {
        /// The device.
        name: String,
        /// Its limit.
        max: u64,
    },
    /// A verb failed.
    #[error("RDMA device `{name}`")]
    Verb {
        /// The device.
        name: String,
        /// What and why.
        #[source]
        source: Error,
    },
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

/// The RDMA NICs of this machine with an active port, as settings name them; none where there is no libibverbs. Those that cannot be opened
/// or could not be used are left out.
#[must_use]
pub fn active_rdma_rails() -> Vec<RdmaRail> {
    let Ok(devices) = Verbs::open().map_err(drop).and_then(|verbs| verbs.devices().map_err(drop)) else {
        return Vec::new();
    };
    let ports = devices.iter().filter_map(|device| {
        let context = device.open().ok()?;
        let attributes = context.attributes().ok().filter(|attributes| attributes.mr_bytes_max >= CHUNK_BYTES)?;
        let ports = u8::try_from(attributes.ports).unwrap_or(u8::MAX);
        Some(active_ports(&device.name(), &context, ports))
    });
    ports.flatten().collect()
}

fn active_ports(device: &str, context: &Context, ports: u8) -> Vec<RdmaRail> {
    let active = |port: &u8| context.port(*port).is_ok_and(|port| port.state == PortState::Active);
    let rail = |port| RdmaRail { device: device.to_owned(), port, gid: None, rail: None };
    (1..=ports).filter(active).map(rail).collect()
}

/// A NIC that rails move bytes over.
pub(crate) struct Nic {
    /// Unique in this process.
    pub(super) id: u64,
    pub(super) name: RdmaRail,
    /// Pairs NICs of two engines.
    pub(crate) rail: u16,
    pub(super) context: Context,
    pub(super) domain: ProtectionDomain,
    pub(super) attributes: DeviceAttributes,
    rails: Mutex<Vec<Weak<Mailbox<Note>>>>,
}

impl Nic {
    /// Opens the NICs that are named; all with an active port where none is.
    pub(crate) fn open_all(names: &[RdmaRail]) -> Result<Vec<Arc<Self>>, RdmaError> {
        let verbs = Verbs::open()?;
        let failed = |name: &str| {
            let name = name.to_owned();
            move |source| RdmaError::Verb { name, source }
        };
        let devices = verbs.devices().map_err(failed("all"))?;
        let mut opened = Vec::new();
        if names.is_empty() {
            for device in devices.iter() {
                let context = device.open().map_err(failed(&device.name()))?;
                let ports = context.attributes().map_err(failed(&device.name()))?.ports;
                let active = active_ports(&device.name(), &context, u8::try_from(ports).unwrap_or(u8::MAX));
                opened.extend(active.into_iter().map(|rail| (rail, context.clone())));
            }
        }
        for name in names {
            let device = devices.find(&name.device).ok_or_else(|| RdmaError::NoDevice {
                name: name.device.clone(),
                there: devices.iter().map(|device| device.name()).collect(),
            })?;
            opened.push((name.clone(), device.open().map_err(failed(&name.device))?));
        }
        if opened.is_empty() {
            return Err(RdmaError::NoneActive);
        }
        let nics = opened.into_iter().enumerate().map(|(place, (name, context))| {
            let device = name.device.clone();
            let limit = context.attributes().map_err(failed(&device))?.mr_bytes_max;
            if limit < CHUNK_BYTES {
                return Err(RdmaError::SmallRegions { name: device, max: limit });
            }
            Self::new(name, place, context).map(Arc::new).map_err(failed(&device))
        });
        nics.collect()
    }

    fn new(name: RdmaRail, place: usize, context: Context) -> Result<Self, Error> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        // A port that is not there is noticed now.
        context.port(name.port)?;
        Ok(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            rail: name.rail.unwrap_or(u16::try_from(place).unwrap_or(u16::MAX)),
            domain: context.protection_domain()?,
            attributes: context.attributes()?,
            name,
            context,
            rails: Mutex::default(),
        })
    }

    /// Its port, asked anew: speed, MTU and state change.
    pub(super) fn port(&self) -> Result<PortAttributes, Error> {
        self.context.port(self.name.port)
    }

    /// Queue pairs that it wants to a NIC of a peer's, by its link; one where that cannot be read.
    pub(crate) fn queue_pairs(&self) -> u8 {
        self.port().map_or(1, |port| queue_pairs(port.bits_per_second(), Self::mtu(&port).bytes()))
    }

    /// The address to use, of the peer's kind if that is known. Read anew each time: tables change under a running engine.
    pub(super) fn gid(&self, wanted: Option<Reachability>) -> Result<Option<(GidEntry, Reachability)>, Error> {
        let mut entries = self.context.gids(self.name.port)?;
        if let Some(chosen) = self.name.gid {
            entries.retain(|entry| entry.index == u32::from(chosen));
        }
        Ok(best(&entries, wanted))
    }

    /// MTU of a path that begins here.
    pub(super) fn mtu(port: &PortAttributes) -> Mtu {
        port.mtu_active.unwrap_or(Mtu::B1024)
    }

    /// Whether its paths are addressed by LID.
    pub(super) fn is_infiniband(port: &PortAttributes) -> bool {
        port.link_layer != LinkLayer::Ethernet
    }

    /// A rail wants to hear what happens to this NIC, for as long as it lives.
    pub(super) fn listen(&self, rail: &Arc<Mailbox<Note>>) {
        let mut rails = self.rails.lock();
        rails.retain(|known| known.strong_count() > 0);
        rails.push(Arc::downgrade(rail));
    }

    /// Tells all rails.
    pub(super) fn tell(&self, note: Note) {
        self.rails.lock().iter().filter_map(Weak::upgrade).for_each(|rail| rail.post(note));
    }
}
