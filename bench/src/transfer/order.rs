//! What the coordinator of a sweep tells its members, and what they say: a member is told where it stands in each flow, what
//! the next cell is, and when to go.

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::cell::Cell;
use super::tally::Times;
use crate::far::Wire;
use crate::usage::Usage;

/// Number of a flow, the same in all members.
pub type FlowId = u32;

/// What a member is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Order {
    /// Start an engine, in place of the one before: [`Word::Started`].
    Start(Start),
    /// Lend memory to the other end of a flow: [`Word::Lent`].
    Lend {
        /// Which flow.
        flow: FlowId,
        /// Bytes of the pool.
        bytes: u64,
        /// It is written, not read.
        written: bool,
    },
    /// Connect to the other end of a flow and be the one that submits: [`Word::Opened`].
    Open {
        /// Which flow.
        flow: FlowId,
        /// Bytes of the pool.
        bytes: u64,
        /// The other end's engine.
        to: SocketAddr,
        /// Right to its memory.
        ticket: Vec<u8>,
    },
    /// Where the other end of a lent flow wants to hear what was found in its bytes: [`Word::Done`] without flows.
    Acknowledge {
        /// Which flow.
        flow: FlowId,
        /// The other end's engine.
        to: SocketAddr,
        /// Right to write the word.
        ticket: Vec<u8>,
    },
    /// The next cell: lay out blocks, fill what is sent: [`Word::Shaped`].
    Shape(Shape),
    /// Submit until the limit is met, then wait for what is under way: [`Word::Done`].
    Go(Limit),
    /// Say what was used and counted since the last [`Self::Go`]: [`Word::Marked`].
    Mark,
    /// Look at what lies at the receiving end of a flow: [`Word::Looked`].
    Look {
        /// Which flow.
        flow: FlowId,
        /// Transfers of each lane since the cell began.
        turns: Vec<u64>,
    },
}

/// Settings of a member's engine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Start {
    /// The transport.
    pub wire: Wire,
    /// Streams to a peer.
    pub streams: u8,
    /// TCP rails, for a member without any of its own.
    pub rails: Vec<String>,
    /// NICs, for a member without any of its own.
    pub rdma_rails: Vec<String>,
    /// The engine's fault plan.
    pub slices: Option<String>,
}

/// A cell, and what else both ends of its flows must agree on.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Shape {
    /// The cell.
    pub cell: Cell,
    /// Its number, which the contents hang on.
    pub number: u32,
    /// Bytes of a pool at least.
    pub pool: u64,
    /// Whether each transfer is looked at, byte for byte, when its receiver is told of it.
    pub verify: bool,
    /// Seed of the places and the contents.
    pub seed: u64,
}

/// When submitting ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Limit {
    /// After this time.
    Time(Duration),
    /// After so many transfers of each flow.
    Count(u64),
}

/// What a member says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Word {
    /// The engine runs.
    Started {
        /// Where.
        address: SocketAddr,
        /// How many rails of the transport it has been given.
        rails: usize,
    },
    /// Memory is lent.
    Lent {
        /// The right to it.
        ticket: Vec<u8>,
    },
    /// The flow is open.
    Opened {
        /// Right to write the word on what was found.
        ticket: Vec<u8>,
    },
    /// Ready for the cell.
    Shaped,
    /// All has ended that was under way.
    Done(Vec<FlowDone>),
    /// Used and counted since the start of the cell's time.
    Marked(Mark),
    /// Blocks that were looked at, and those that were wrong.
    Looked(Looked),
}

/// Blocks that were looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Looked {
    /// With a wrong byte.
    pub wrong: u64,
    /// In all.
    pub looked_at: u64,
}

impl std::ops::AddAssign for Looked {
    fn add_assign(&mut self, other: Self) {
        self.wrong += other.wrong;
        self.looked_at += other.looked_at;
    }
}

/// What a member used and counted.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Mark {
    /// CPU time and waiting of the whole process.
    pub usage: Usage,
    /// Bytes that had landed at the end of each step.
    pub landed: Vec<u64>,
    /// What it found in the bytes that it was told of.
    pub looked: Looked,
}

/// One flow's transfers, from who submitted them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct FlowDone {
    /// Which flow.
    pub flow: FlowId,
    /// Transfers that ended well.
    pub transfers: u64,
    /// Their bytes.
    pub bytes: u64,
    /// From the start to the end of the last one.
    pub seconds: f64,
    /// What `submit` took.
    pub post: Times,
    /// From the first slice on the wire to the last one visible.
    pub wire: Times,
    /// From before `submit` to the caller's knowing that all is visible.
    pub visible: Times,
    /// Bytes by transport and stream.
    pub streams: Vec<(Wire, u8, u64)>,
    /// Bytes sent again.
    pub retried_bytes: u64,
    /// Transfers that did not end well.
    pub failed: u64,
    /// Why the first of them did not.
    pub first_failure: Option<String>,
    /// Transfers of each lane since the cell began.
    pub turns: Vec<u64>,
}

impl FlowDone {
    /// Adds what another thread did in the same flow.
    pub fn add(&mut self, other: Self) {
        self.transfers += other.transfers;
        self.bytes += other.bytes;
        self.seconds = self.seconds.max(other.seconds);
        self.post.add(&other.post);
        self.wire.add(&other.wire);
        self.visible.add(&other.visible);
        for (wire, stream, bytes) in other.streams {
            self.moved(wire, stream, bytes);
        }
        self.retried_bytes += other.retried_bytes;
        self.failed += other.failed;
        self.first_failure = self.first_failure.take().or(other.first_failure);
        self.turns.extend(other.turns);
    }

    /// Notes bytes that a stream moved.
    pub fn moved(&mut self, wire: Wire, stream: u8, bytes: u64) {
        match self.streams.iter_mut().find(|(w, s, _)| (*w, *s) == (wire, stream)) {
            Some((_, _, all)) => *all += bytes,
            None => self.streams.push((wire, stream, bytes)),
        }
    }
}
