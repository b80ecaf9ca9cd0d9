//! The NIC in software as one rail has it.

use std::sync::Arc;
use std::time::Instant;

use crate::mailbox::Mailbox;
use crate::memory::Region;
use crate::transport::onesided::{Device, Key, Reach, Request, Side, Work};
use crate::transport::sim::nic::Nic;
use crate::transport::sim::pair::{Posted, QueuePair, Word, WorkCompletion};
use crate::transport::sim::responder::Responder;
use crate::transport::sim::wire::Wire;
use crate::transport::sys::{Poller, Waker};
use crate::transport::{Owner, RailError};

/// See the [module](super).
pub(crate) struct SimDevice {
    nic: Arc<Nic>,
    owner: Arc<Owner>,
    pub(super) words: Arc<Mailbox<Word>>,
    wire: Wire,
    /// Number of our requester, and the queue pair once the peer has made the other end.
    number: u64,
    pub(super) pair: Option<Arc<QueuePair>>,
    /// Our end of the peer's sending direction.
    pub(super) responder: Option<Arc<Responder>>,
    /// The peer's latest word.
    vouched: Option<u32>,
}

impl SimDevice {
    /// `waker` is that of the rail's poller; `salt` tells the streams of an engine apart.
    pub(crate) fn new(nic: Arc<Nic>, owner: Arc<Owner>, waker: Waker, salt: u64) -> Self {
        let wire = Wire::new(*nic.fabric().options(), salt, Instant::now());
        let words = Arc::new(Mailbox::new(waker));
        Self { nic, owner, words, wire, number: 0, pair: None, responder: None, vouched: None }
    }

    fn destroy_requester(&mut self) {
        if let Some(pair) = self.pair.take() {
            pair.destroy();
        }
    }
}

/// A queue pair's number on this fabric.
fn number(address: &[u8]) -> Result<u64, RailError> {
    let bytes = address.try_into().map_err(|_| RailError::Protocol("not an address of a queue pair"))?;
    Ok(u64::from_le_bytes(bytes))
}

impl Device for SimDevice {
    /// Completions come by the poller's own waker.
    fn watch(&self, _: &Poller) -> std::io::Result<()> {
        Ok(())
    }

    fn ready(&mut self, _: u64) {}

    fn lends(&self) -> bool {
        !self.nic.fabric().options().windows
    }

    fn keys(&mut self, region: &Region, _: &mut dyn Iterator<Item = (u64, u64)>, _: Side) -> Reach {
        // It copies with the host's hands.
        if region.device_memory().is_some() {
            return Reach::Never;
        }
        Reach::Now(vec![Key {
            offset: 0,
            len: region.len() as u64,
            key: self.nic.fabric().register(region),
            address: 0,
        }])
    }

    fn requester(&mut self) -> Result<Vec<u8>, RailError> {
        self.destroy_requester();
        self.number = crate::random::u64();
        Ok(self.number.to_le_bytes().to_vec())
    }

    fn connect(&mut self, far: &[u8]) -> Result<(), RailError> {
        // Not there any more: the other end has closed, and the socket will say so.
        let responder = self.nic.fabric().responder(number(far)?).ok_or(RailError::Closed)?;
        self.pair = Some(Arc::new(QueuePair::new(self.number, responder, Arc::clone(&self.words))));
        Ok(())
    }

    fn responder(&mut self, far: &[u8]) -> Result<Vec<u8>, RailError> {
        if let Some(old) = self.responder.take() {
            old.close();
        }
        let responder =
            Responder::open(self.nic.fabric(), Arc::clone(&self.owner), Arc::clone(&self.words), number(far)?);
        let address = responder.number().to_le_bytes().to_vec();
        self.responder = Some(responder);
        Ok(address)
    }

    fn post(&mut self, request: &Arc<Request>, _: &[Key], remote: &[Key], now: Instant) -> Result<(), RailError> {
        let pair = self.pair.as_ref().ok_or(RailError::Protocol("a slice before its queue pair"))?;
        let due = self.wire.due(request.bytes, now);
        pair.post(Posted::Request { request: Arc::clone(request), keys: remote.to_vec() });
        self.nic.ring(pair, due);
        Ok(())
    }

    fn vouch(&mut self, word: u32, now: Instant) -> Result<(), RailError> {
        let pair = self.pair.as_ref().ok_or(RailError::Protocol("a word before its queue pair"))?;
        let due = self.wire.due(0, now);
        pair.post(Posted::Vouch(word));
        self.nic.ring(pair, due);
        Ok(())
    }

    fn vouched(&mut self) -> Option<u32> {
        self.vouched.take()
    }

    fn reap(&mut self, into: &mut Vec<Work>) -> Result<(), RailError> {
        self.words.listen();
        // What an earlier queue pair had outstanding may still be coming: it has been posted again.
        let current = self.pair.as_ref().map(|pair| pair.number());
        for word in self.words.take() {
            match word {
                Word::Vouched(word) => self.vouched = Some(word),
                Word::Completed(WorkCompletion { pair, id, status }) if Some(pair) == current => {
                    into.push(Work { id, status });
                }
                Word::Completed(_) => {}
            }
        }
        Ok(())
    }

    /// Completions always wake.
    fn arm(&mut self) -> Result<bool, RailError> {
        Ok(false)
    }

    fn close(&mut self) -> bool {
        self.destroy_requester();
        if let Some(responder) = self.responder.take() {
            responder.close();
        }
        true
    }
}
