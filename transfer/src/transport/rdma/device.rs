//! A NIC as one rail has it.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::Instant;

use kvrail_verbs::CompletionChannel;

use crate::mailbox::Mailbox;
use crate::memory::Region;
use crate::session::lease::LeaseState;
use crate::telemetry::{Counters, count};
use crate::transport::RailError;
use crate::transport::onesided::{Device, Key, Reach, Request, Side, Work};
use crate::transport::rdma::address::Address;
use crate::transport::rdma::clerk::{Note, Order, What, causes};
use crate::transport::rdma::memory::seen_at;
use crate::transport::rdma::pair::{Queue, Requester, Responder};
use crate::transport::rdma::{CHUNK_BYTES, Clerk, Nic};
use crate::transport::sys::{Poller, Waker};

/// Key of the completion channel in the rail's poller.
const CHANNEL: u64 = 1;

/// See the [module](self).
pub(crate) struct RdmaDevice {
    nic: Arc<Nic>,
    clerk: Arc<Clerk>,
    counters: Arc<Counters>,
    channel: CompletionChannel,
    notes: Arc<Mailbox<Note>>,
    requester: Option<Requester>,
    responder: Option<Responder>,
    /// Parts that the clerk is registering for us, and those that cannot be, by region and number.
    ordered: BTreeSet<(u64, u32)>,
    refused: BTreeSet<(u64, u32)>,
    /// Leases are lent with keys that open them alone. By key, those that the clerk is making, and those that cannot be guarded.
    guards: bool,
    guarding: BTreeSet<u64>,
    unguarded: BTreeSet<u64>,
    /// The channel has events.
    ringing: bool,
    /// The responder has something to hear.
    listens: bool,
    /// The peer's latest word.
    vouched: Option<u32>,
    /// A queue pair could not be destroyed.
    undead: bool,
}

impl RdmaDevice {
    /// `waker` is that of the rail's poller.
    pub(crate) fn new(
        nic: Arc<Nic>,
        clerk: Arc<Clerk>,
        counters: Arc<Counters>,
        waker: Waker,
        guards: bool,
    ) -> Result<Self, RailError> {
        let (channel, notes) = (nic.context.completion_channel()?, Arc::new(Mailbox::new(waker)));
        nic.listen(&notes);
        let (ordered, refused, guarding, unguarded) = Default::default();
        let (requester, responder) = (None, None);
        Ok(Self {
            nic,
            clerk,
            counters,
            channel,
            notes,
            requester,
            responder,
            ordered,
            refused,
            guards,
            guarding,
            unguarded,
            ringing: false,
            listens: false,
            vouched: None,
            undead: false,
        })
    }

    fn order(&self, what: What) {
        self.clerk.order(Order { nic: Arc::clone(&self.nic), what, to: Arc::clone(&self.notes) });
    }

    fn hear(&mut self) -> Result<(), RailError> {
        if !self.notes.listen() {
            return Ok(());
        }
        for note in self.notes.take() {
            match note {
                Note::Registered { region, chunk, made } => {
                    self.ordered.remove(&(region, chunk));
                    if !made {
                        self.refused.insert((region, chunk));
                    }
                }
                Note::Guarded { lease, made } => {
                    self.guarding.remove(&lease);
                    if !made {
                        self.unguarded.insert(lease);
                    }
                }
                Note::PortDown => return Err(RailError::Nic("its port is down".into())),
                Note::Dead => return Err(RailError::Nic("it has failed".into())),
                Note::PairFailed { number } => {
                    // A requester's completions say what became of it; a responder's failure nobody else tells.
                    if self.responder.as_ref().is_some_and(|responder| responder.number() == number) {
                        return Err(RailError::Nic("a responder is in error".into()));
                    }
                }
            }
        }
        Ok(())
    }

    /// Keys of a guarded lease.
    fn guarded(&mut self, region: &Region, lease: &Arc<LeaseState>) -> Reach {
        if let Some(keys) = region.registrations().guard(&self.nic, lease) {
            return Reach::Now(keys);
        }
        if self.unguarded.remove(&lease.key) {
            return Reach::Never;
        }
        if self.guarding.insert(lease.key) {
            self.order(What::Lease(Arc::clone(lease)));
        }
        Reach::Soon
    }

    /// Queues that may raise events.
    fn queues(&mut self) -> (Option<&mut Queue>, Option<&mut Queue>) {
        (self.requester.as_mut().map(|it| &mut it.queue), self.responder.as_mut().map(|it| &mut it.queue))
    }

    /// Takes the events that are due: each is asked for when the last one has come.
    fn take_events(&mut self) -> Result<(), RailError> {
        loop {
            let (requester, responder) = self.queues();
            if !requester.iter().chain(&responder).any(|queue| queue.is_armed()) {
                return Ok(());
            }
            let Some(event) = self.channel.event()? else { return Ok(()) };
            let (requester, responder) = self.queues();
            requester.map(|queue| queue.disarm(event));
            self.listens |= responder.is_some_and(|queue| queue.disarm(event));
        }
    }

    fn destroy_requester(&mut self) {
        if let Some(requester) = self.requester.take() {
            self.undead |= !requester.destroy();
        }
    }

    fn destroy_responder(&mut self) {
        if let Some(responder) = self.responder.take() {
            self.undead |= !responder.destroy();
        }
    }
}

impl From<kvrail_verbs::Error> for RailError {
    fn from(error: kvrail_verbs::Error) -> Self {
        Self::Nic(causes(&error))
    }
}

impl Device for RdmaDevice {
    fn watch(&self, poller: &Poller) -> std::io::Result<()> {
        poller.add(self.channel.as_fd().as_raw_fd(), CHANNEL)
    }

    fn ready(&mut self, key: u64) {
        self.ringing |= key == CHANNEL;
    }

    fn lends(&self) -> bool {
        true
    }

    fn keys(&mut self, region: &Region, ranges: &mut dyn Iterator<Item = (u64, u64)>, side: Side) -> Reach {
        let mut keys: Vec<Key> = Vec::new();
        let mut reach = Reach::Now(Vec::new());
        for (offset, len) in ranges {
            let last = offset.saturating_add(len.saturating_sub(1)) / CHUNK_BYTES;
            for chunk in offset / CHUNK_BYTES..=last {
                let Ok(chunk) = u32::try_from(chunk) else { return Reach::Never };
                let offset = u64::from(chunk) * CHUNK_BYTES;
                let place = keys.partition_point(|key| key.offset < offset);
                if keys.get(place).is_some_and(|key| key.offset == offset) {
                    continue;
                }
                if let Some(key) = region.registrations().key(&self.nic, chunk, side) {
                    keys.insert(place, Key { offset, len: CHUNK_BYTES, key, address: seen_at(region, offset) });
                    continue;
                }
                let part = (region.id(), chunk);
                if self.refused.contains(&part) {
                    return Reach::Never;
                }
                reach = Reach::Soon;
                if self.ordered.insert(part) {
                    self.order(What::Part(region.clone(), chunk));
                }
            }
        }
        if reach == Reach::Soon { reach } else { Reach::Now(keys) }
    }

    fn guard(&mut self, region: &Region, lease: &Arc<LeaseState>) -> Option<Reach> {
        self.guards.then(|| self.guarded(region, lease))
    }

    fn requester(&mut self) -> Result<Vec<u8>, RailError> {
        self.destroy_requester();
        let requester = Requester::new(&self.nic, &self.channel)?;
        let address = requester.address().to_bytes();
        self.requester = Some(requester);
        Ok(address)
    }

    fn connect(&mut self, far: &[u8]) -> Result<(), RailError> {
        let far = Address::from_bytes(far).map_err(|_| RailError::Protocol("not an address of a queue pair"))?;
        let requester = self.requester.as_mut().ok_or(RailError::Protocol("a queue pair that nobody asked for"))?;
        requester.connect(&self.nic, &far)
    }

    fn responder(&mut self, far: &[u8]) -> Result<Vec<u8>, RailError> {
        let far = Address::from_bytes(far).map_err(|_| RailError::Protocol("not an address of a queue pair"))?;
        // First: the peer takes the new one for the word that nothing of the old one lands.
        self.destroy_responder();
        if self.undead {
            return Err(RailError::Nic("a responder cannot be destroyed".into()));
        }
        let responder = Responder::new(&self.nic, &self.channel, &far)?;
        let address = responder.address().to_bytes();
        self.responder = Some(responder);
        Ok(address)
    }

    fn post(&mut self, request: &Arc<Request>, local: &[Key], remote: &[Key], _: Instant) -> Result<(), RailError> {
        if self.requester.as_ref().is_some_and(|requester| !requester.has_room(request)) {
            self.ring()?;
        }
        match &mut self.requester {
            Some(requester) => {
                count(&self.counters.work_requests, requester.post(request, local, remote)? as u64);
                Ok(())
            }
            None => Err(RailError::Protocol("a slice before its queue pair")),
        }
    }

    fn ring(&mut self) -> Result<(), RailError> {
        let rang = self.requester.as_mut().map_or(Ok(false), Requester::ring)?;
        count(&self.counters.doorbells, u64::from(rang));
        Ok(())
    }

    fn vouch(&mut self, word: u32, _: Instant) -> Result<(), RailError> {
        match &mut self.requester {
            Some(requester) => requester.vouch(word),
            None => Err(RailError::Protocol("a word before its queue pair")),
        }
    }

    fn vouched(&mut self) -> Option<u32> {
        self.vouched.take()
    }

    fn reap(&mut self, into: &mut Vec<Work>) -> Result<(), RailError> {
        self.hear()?;
        if std::mem::take(&mut self.ringing) {
            self.take_events()?;
        }
        if std::mem::take(&mut self.listens)
            && let Some(responder) = &mut self.responder
        {
            let (word, more) = responder.hear()?;
            (self.vouched, self.listens) = (word.or(self.vouched), more);
        }
        self.requester.as_mut().map_or(Ok(()), |requester| requester.reap(into))
    }

    fn arm(&mut self) -> Result<bool, RailError> {
        let armed = self.requester.as_mut().map_or(Ok(false), Requester::arm)?;
        Ok(armed || self.listens)
    }

    fn close(&mut self) -> bool {
        self.destroy_requester();
        self.destroy_responder();
        !self.undead
    }
}
