//! Our NICs as receivers of bytes: the glue between sessions and the ledgers of credit.
//!
//! Each NIC has a number (a *port*) and a [`Ledger`]. A peer is told at which port each of its streams ends ([`Message::Port`]); it says
//! what it sends there ([`Message::Demand`]) and hears what it may ([`Message::Limit`]). Our own reads are a sender like any other: their
//! bytes come in here too. A peer that does not speak of credits (an older version) is neither counted nor limited.
//!
//! TCP through loopback or by the system's own routing of a loopback session has no port: there is no NIC. Shared memory has none.
//!
//! Only the control thread is here. It looks at the ledgers when a word came, when enough has arrived ([`Inflow`]), and when their
//! time comes.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::core::{Core, rail_of};
use crate::plan::{CreditConfig, Demand, Ledger, Limit, PathId, PeerId, PortId, RailSet, TenantId, Time};
use crate::session::control::Control;
use crate::session::inflow::Inflow;
use crate::session::wire::{Message, StreamId};
use crate::telemetry::{Rejection, count};
use crate::transport::TransportKind;
use crate::transport::sys::Waker;

/// Ports of an engine: a block of numbers for TCP, one for RDMA, and the simulated NIC.
pub(crate) const PORTS: u8 = RDMA + RAILS + 1;
const RAILS: u8 = crate::session::TCP_RAILS_MAX as u8;
const RDMA: u8 = RAILS;
const SIM: u8 = RDMA + RAILS;

/// Whether a NIC's owner sees what arrives there: over TCP. There senders have standing credit, too.
fn is_counted(port: PortId) -> bool {
    port.0 < RDMA
}

/// What ourselves are called in our ledgers.
const OURSELVES: u64 = u64::MAX;

/// All ledgers of an engine, and what arrives.
pub(crate) struct Ports {
    ledgers: BTreeMap<PortId, Ledger>,
    inflows: HashMap<(PeerId, PortId), Arc<Inflow>>,
    weights: Vec<(TenantId, u32)>,
    answer_within: Duration,
    waker: Waker,
    /// Something was heard since the ledgers were looked at.
    is_new: bool,
}

impl Ports {
    pub(crate) fn new(weights: Vec<(TenantId, u32)>, peer_timeout: Duration, waker: Waker) -> Self {
        // A session that hears nothing for half of it is over.
        let answer_within = 2 * peer_timeout;
        let (ledgers, inflows) = Default::default();
        Self { ledgers, inflows, weights, answer_within, waker, is_new: false }
    }

    /// A peer's stream ends at this port. Over TCP its frames are counted.
    fn attach(&mut self, peer: PeerId, port: PortId) -> Option<Arc<Inflow>> {
        let is_counted = is_counted(port);
        let (weights, answer_within) = (&self.weights, self.answer_within);
        self.ledgers.entry(port).or_insert_with(|| {
            let config = if is_counted { CreditConfig::default() } else { CreditConfig::one_sided() };
            let mut ledger = Ledger::new(CreditConfig { answer_within, ..config });
            weights.iter().for_each(|(tenant, weight)| ledger.set_tenant_weight(*tenant, *weight));
            ledger
        });
        let waker = self.waker.clone();
        is_counted.then(|| Arc::clone(self.inflows.entry((peer, port)).or_insert_with(|| Arc::new(Inflow::new(waker)))))
    }

    pub(super) fn demand(&mut self, peer: PeerId, port: PortId, demand: Demand, now: Time) {
        if let Some(ledger) = self.ledgers.get_mut(&port) {
            self.is_new = true;
            if let Some(inflow) = self.inflows.get(&(peer, port)) {
                ledger.handle_arrived(peer, inflow.arrived(), now);
            }
            ledger.handle_demand(peer, demand, now);
        }
    }

    fn new_way(&mut self, peer: PeerId, port: PortId, now: Time) {
        if let Some(ledger) = self.ledgers.get_mut(&port) {
            self.is_new = true;
            ledger.handle_new_way(peer, now);
        }
    }

    pub(super) fn peer_lost(&mut self, peer: PeerId, now: Time) {
        self.is_new = true;
        self.ledgers.values_mut().for_each(|ledger| ledger.handle_peer_lost(peer, now));
        self.inflows.retain(|(of, _), inflow| {
            let is_gone = *of == peer;
            if is_gone {
                inflow.limit(None);
            }
            !is_gone
        });
    }

    /// When to serve although nothing was heard.
    pub(super) fn wakes_at<'a>(&'a self, core: &'a Core) -> impl Iterator<Item = Instant> + 'a {
        self.ledgers.values().filter_map(Ledger::poll_timeout).map(|at| core.instant(at))
    }

    /// Looks at what arrived, and appends what is to be said and who is to be cut.
    fn serve(&mut self, now: Time, words: &mut Vec<(PeerId, PortId, Limit)>, overdrawn: &mut Vec<PeerId>) {
        let is_new = std::mem::take(&mut self.is_new);
        if !is_new && !self.ledgers.values().any(Ledger::is_limiting) {
            return;
        }
        for (&port, ledger) in self.ledgers.iter_mut().filter(|(_, ledger)| is_new || ledger.is_limiting()) {
            let inflows = || self.inflows.iter().filter(|((_, at), _)| *at == port);
            for ((peer, _), inflow) in inflows() {
                ledger.handle_arrived(*peer, inflow.arrived(), now);
            }
            while let Some((peer, limit)) = ledger.poll_word(now) {
                // One word with the latest total does for several raises.
                match words.iter_mut().find(|(to, at, said)| (*to, *at, said.epoch) == (peer, port, limit.epoch)) {
                    Some((.., said)) if said.total > 0 => *said = limit,
                    _ => words.push((peer, port, limit)),
                }
            }
            overdrawn.extend(std::iter::from_fn(|| ledger.poll_overdrawn(now)));
            // Before the words go out: what they allow may be here at once.
            for ((peer, _), inflow) in inflows() {
                inflow.limit(ledger.ceiling(*peer).map(|ceiling| (ceiling, ledger.news_at(*peer))));
            }
        }
    }
}

impl Control {
    /// The port at which a stream ends here, if it ends at a NIC.
    fn port_of(&self, kind: TransportKind, nic: u8, socket: &OwnedFd, is_loopback: bool) -> Option<PortId> {
        match kind {
            TransportKind::Shm => None,
            TransportKind::Sim => Some(PortId(SIM)),
            TransportKind::Rdma => Some(PortId(RDMA + nic.min(RAILS - 1))),
            TransportKind::Tcp => {
                let rails = &self.core.config.tcp_rails;
                if rails.is_empty() {
                    return (!is_loopback).then_some(PortId(0));
                }
                let here = socket2::SockRef::from(socket).local_addr().ok()?.as_socket()?.ip();
                rails.iter().position(|rail| rail.address == here).map(|at| PortId(at as u8))
            }
        }
    }

    /// A stream comes up: its peer is told where it ends. What counts its frames, if they are counted.
    pub(super) fn attach_port(&mut self, id: u64, stream: StreamId, nic: u8, socket: &OwnedFd) -> Option<Arc<Inflow>> {
        let live = self.sessions.get(&id).filter(|live| live.credits && self.core.config.credits)?;
        let session = Arc::clone(&live.session);
        let port = self.port_of(stream.kind, nic, socket, session.address.ip().is_loopback())?;
        let inflow = self.ports.attach(session.peer, port);
        let (kind, index) = (stream.kind, stream.index);
        if self.sessions.get_mut(&id).is_some_and(|live| live.streams.ends_at(kind, index, port)) {
            let path = Core::path(&session, kind, index);
            self.core.plan_at(self.now, RailSet::default(), |plan, _| {
                plan.planner.handle_near_port(path, port, is_counted(port))
            });
            self.tell(id, &Message::Port { kind, index, port });
            // After that word: what the peer then says of itself includes what went this way.
            self.ports.new_way(session.peer, port, self.time());
        }
        inflow
    }

    /// A peer says where one of our streams ends.
    pub(super) fn port_there(&self, peer: PeerId, kind: TransportKind, index: u8, port: PortId) {
        let rail = rail_of(kind, index);
        let path = PathId { peer, local: rail, remote: rail };
        self.core
            .plan_at(self.now, RailSet::default(), |plan, _| plan.planner.handle_port(path, port, is_counted(port)));
    }

    /// Says what there is to say of credits, to peers and to ourselves.
    pub(super) fn credits(&mut self) {
        let ourselves = PeerId::from_bits(OURSELVES);
        // Our own words may call for an answer of ours: twice is enough, what is left wakes us at once.
        for _ in 0..2 {
            if self.core.credits_due.swap(false, Ordering::AcqRel) {
                let (demands, _) = self.core.plan_at(self.now, RailSet::default(), |plan, _| {
                    std::iter::from_fn(|| plan.planner.poll_demand()).collect::<Vec<_>>()
                });
                for (peer, port, demand) in demands {
                    match peer {
                        None => self.ports.demand(ourselves, port, demand, self.time()),
                        Some(peer) => {
                            if let Some(id) = self.by_peer.get(&peer).copied() {
                                self.tell(id, &Message::Demand { port, demand });
                            }
                        }
                    }
                }
            }
            let (mut words, mut overdrawn) = (Vec::new(), Vec::new());
            self.ports.serve(self.time(), &mut words, &mut overdrawn);
            for (peer, port, limit) in words {
                count(&self.core.counters.senders_limited, u64::from(limit.total == 0));
                if peer == ourselves {
                    self.core
                        .plan_at(self.now, RailSet::default(), |plan, _| plan.planner.handle_limit(None, port, limit));
                } else if let Some(id) = self.by_peer.get(&peer).copied() {
                    self.tell(id, &Message::Limit { port, limit });
                }
            }
            for peer in overdrawn {
                if let Some(id) = self.by_peer.get(&peer).copied() {
                    self.overdrawn(id);
                }
            }
            if !self.core.credits_due.load(Ordering::Acquire) {
                return;
            }
        }
    }

    /// A peer sends more than it may: nothing of it comes in any more.
    pub(super) fn overdrawn(&mut self, id: u64) {
        let from = self.sessions.get(&id).filter(|live| !live.over).map(|live| live.session.address);
        if from.is_some() {
            self.reject(Rejection::Overdrawn, from);
            self.lose(id, "the peer sends more than it may");
        }
    }
}
