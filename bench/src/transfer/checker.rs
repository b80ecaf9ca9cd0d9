//! Looks at bytes the moment that their receiver is told of them, and says so to who sent them.
//!
//! Whoever writes may not fill a place anew before its last bytes were looked at: the receiver's word that they were is a small
//! write of its own, back through the engines, whose notification names the place.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kvrail_transfer::{Class, Direction, Engine, LeaseTicket, MemoryKind, Op, Region, TenantId, TransferRequest};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::member::{Blocks, Looks};
use super::order::{FlowId, Looked};
use super::submit::Outgoing;
use crate::far::BenchError;

/// Bytes of the write that carries the word.
pub const WORD_BYTES: u64 = 8;
/// How long the word may take.
const WORD_MAX: Duration = Duration::from_secs(10);

/// What notifications of a sweep say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A transfer's bytes are visible.
    Landed {
        /// Of which flow.
        flow: FlowId,
        /// In which of its places.
        place: u32,
        /// What their contents hang on.
        tag: u64,
    },
    /// They were looked at.
    Looked {
        /// Of which flow.
        flow: FlowId,
        /// In which of its places.
        place: u32,
    },
}

impl Notice {
    /// As a notification's payload.
    #[must_use]
    pub fn to_bytes(self) -> Bytes {
        let (kind, flow, place, tag) = match self {
            Self::Landed { flow, place, tag } => (0, flow, place, tag),
            Self::Looked { flow, place } => (1, flow, place, 0),
        };
        let mut bytes = vec![kind];
        bytes.extend(flow.to_le_bytes());
        bytes.extend(place.to_le_bytes());
        bytes.extend(tag.to_le_bytes());
        bytes.into()
    }

    /// Reads a payload; nothing where it is none of ours.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        let (flow, rest) = rest.split_first_chunk()?;
        let (place, tag) = rest.split_first_chunk()?;
        let (flow, place) = (u32::from_le_bytes(*flow), u32::from_le_bytes(*place));
        let tag = u64::from_le_bytes(tag.try_into().ok()?);
        match kind {
            0 => Some(Self::Landed { flow, place, tag }),
            1 => Some(Self::Looked { flow, place }),
            _ => None,
        }
    }
}

/// What the thread and its owner share.
#[derive(Default)]
struct State {
    /// Receiving ends of flows that are written.
    blocks: Mutex<BTreeMap<FlowId, Blocks>>,
    /// Who wants to hear what was found.
    senders: Mutex<BTreeMap<FlowId, (SocketAddr, LeaseTicket)>>,
    /// Flows that wait for the receiver's word.
    outgoing: Mutex<BTreeMap<FlowId, Arc<Outgoing>>>,
    looks: Looks,
    stop: Notify,
}

/// The thread that hears an engine's notifications.
pub struct Checker {
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

impl Checker {
    /// Starts it.
    pub fn start(engine: &Engine) -> Result<Self, BenchError> {
        let state = Arc::<State>::default();
        let word = engine.allocate(WORD_BYTES as usize, MemoryKind::Shared).map_err(BenchError::engine)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (shared, engine) = (Arc::clone(&state), engine.clone());
        let thread = std::thread::spawn(move || runtime.block_on(hear(&shared, &engine, &word)));
        Ok(Self { state, thread: Some(thread) })
    }

    /// What is found in a flow's bytes is told there.
    pub fn acknowledge(&self, flow: FlowId, to: SocketAddr, ticket: LeaseTicket) {
        self.state.senders.lock().insert(flow, (to, ticket));
    }

    /// Where the blocks of the next cell lie.
    pub fn shape(&self, blocks: BTreeMap<FlowId, Blocks>) {
        *self.state.blocks.lock() = blocks;
    }

    /// Who waits for words.
    pub fn send_words_to(&self, outgoing: &BTreeMap<FlowId, Arc<Outgoing>>) {
        self.state.outgoing.lock().clone_from(outgoing);
    }

    /// What was found since this was last asked.
    pub fn take(&self) -> Looked {
        self.state.looks.take()
    }
}

impl Drop for Checker {
    fn drop(&mut self) {
        self.state.stop.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn hear(state: &State, engine: &Engine, word: &Region) {
    let notifications = engine.notifications();
    let mut block = Vec::new();
    loop {
        let notification = tokio::select! {
            notification = notifications.recv() => notification,
            () = state.stop.notified() => return,
        };
        match Notice::from_bytes(&notification.payload) {
            Some(Notice::Landed { flow, place, tag }) => {
                let blocks = state.blocks.lock().get(&flow).cloned();
                let Some(blocks) = blocks.filter(|blocks| (place as usize) < blocks.layout.places()) else { continue };
                // Nothing stands between the word that they are there and the look at them.
                state.looks.add(blocks.look(place as usize, tag, &mut block));
                let sender = state.senders.lock().get(&flow).cloned();
                if let Some((to, ticket)) = sender {
                    // Who does not hear it says so itself.
                    let _ = say(engine, word, to, &ticket, Notice::Looked { flow, place }).await;
                }
            }
            Some(Notice::Looked { flow, place }) => {
                let outgoing = state.outgoing.lock().get(&flow).cloned();
                if let Some(outgoing) = outgoing {
                    outgoing.looked_at(place as usize);
                }
            }
            None => {}
        }
    }
}

async fn say(
    engine: &Engine,
    word: &Region,
    to: SocketAddr,
    ticket: &LeaseTicket,
    notice: Notice,
) -> Result<(), BenchError> {
    let peer = engine.connect(to, Some(ticket.generation())).await.map_err(BenchError::engine)?;
    let request = TransferRequest {
        region: word,
        ticket,
        direction: Direction::Write,
        ops: Arc::new(vec![Op::contiguous(0, 0, WORD_BYTES)]),
        class: Class::Control,
        tenant: TenantId::default(),
        deadline: Instant::now() + WORD_MAX,
        checksum: None,
        notify: Some(notice.to_bytes()),
    };
    let report = engine.submit(&peer, request).map_err(BenchError::engine)?.await;
    report.status.map_err(BenchError::engine)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_come_back_from_their_bytes_and_others_are_none() {
        for notice in
            [Notice::Landed { flow: 3, place: 70_000, tag: u64::MAX - 1 }, Notice::Looked { flow: 0, place: 9 }]
        {
            let bytes = notice.to_bytes();
            assert_eq!(Notice::from_bytes(&bytes), Some(notice));
            for cut in 0..bytes.len() {
                assert_eq!(Notice::from_bytes(&bytes[..cut]), None);
            }
        }
        assert_eq!(Notice::from_bytes(&[2; 17]), None);
    }
}
