//! A cell of the sweep, and where its blocks lie.

use std::fmt;

use kvrail_transfer::Direction;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use serde::{Deserialize, Serialize};

use super::units::show_size;
use crate::far::Wire;

/// Which way a transfer goes, seen from who submits it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum OpKind {
    /// The sender submits
    Write,
    /// The receiver submits
    Read,
}

impl OpKind {
    /// The engine's name for it.
    #[must_use]
    pub fn direction(self) -> Direction {
        match self {
            Self::Write => Direction::Write,
            Self::Read => Direction::Read,
        }
    }
}

/// What is measured at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cell {
    /// The transport.
    pub wire: Wire,
    /// Write or read.
    pub op: OpKind,
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Blocks of a transfer, each a descriptor of its own.
    pub batch: usize,
    /// Transfers that a thread has under way.
    pub in_flight: usize,
    /// Threads that submit, in each flow.
    pub threads: usize,
    /// Streams of the transport to a peer.
    pub streams: u8,
}

impl Cell {
    /// Bytes of a transfer.
    #[must_use]
    pub fn transfer_bytes(&self) -> u64 {
        self.block_bytes.saturating_mul(self.batch as u64)
    }

    /// Transfers that a flow has under way.
    #[must_use]
    pub fn lanes(&self) -> usize {
        self.threads * self.in_flight
    }

    /// Where its blocks lie in pools of so many bytes; in larger ones where the transfers under way need more.
    #[must_use]
    pub fn layout(&self, pool_bytes: u64) -> Layout {
        let lanes = self.lanes();
        let fit = pool_bytes / self.transfer_bytes().max(1) / lanes.max(1) as u64;
        Layout {
            lanes,
            laps: usize::try_from(fit).unwrap_or(usize::MAX).max(1),
            batch: self.batch,
            block: self.block_bytes,
        }
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let op = if self.op == OpKind::Write { "write" } else { "read" };
        let Self { wire, batch, in_flight, threads, streams, .. } = self;
        let block = show_size(self.block_bytes);
        write!(f, "{wire} {op} {batch} × {block}, {threads} × {in_flight} under way, {streams} streams")
    }
}

/// Where the blocks of a flow lie: each lane (a transfer under way) goes round a ring of places, each place has the blocks of
/// one transfer, and all blocks of all places are scattered over both pools by two random permutations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Transfers under way.
    pub lanes: usize,
    /// Places of a lane.
    pub laps: usize,
    /// Blocks of a place.
    pub batch: usize,
    /// Bytes of a block.
    pub block: u64,
}

impl Layout {
    /// Places in all.
    #[must_use]
    pub fn places(&self) -> usize {
        self.lanes * self.laps
    }

    /// Blocks in all.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.places() * self.batch
    }

    /// Bytes of a pool; `None` where they do not fit an address space.
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        let slots = self.lanes.checked_mul(self.laps)?.checked_mul(self.batch)?;
        (slots as u64).checked_mul(self.block).filter(|bytes| usize::try_from(*bytes).is_ok())
    }

    /// The place where a lane's transfer number `turn` goes.
    #[must_use]
    pub fn place(&self, lane: usize, turn: u64) -> usize {
        lane * self.laps + (turn % self.laps as u64) as usize
    }

    /// The blocks of each place: its slot where it comes from, its slot where it goes to.
    #[must_use]
    pub fn moves(&self, seed: u64) -> Vec<(usize, usize)> {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut permutation = || {
            let mut slots: Vec<usize> = (0..self.slots()).collect();
            slots.shuffle(&mut rng);
            slots
        };
        let (from, to) = (permutation(), permutation());
        from.into_iter().zip(to).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CELL: Cell =
        Cell { wire: Wire::Tcp, op: OpKind::Write, block_bytes: 4096, batch: 4, in_flight: 3, threads: 2, streams: 2 };

    #[test]
    fn a_pool_has_whole_rings_and_never_less_than_what_is_under_way() {
        let layout = CELL.layout(1 << 20);
        assert_eq!((layout.lanes, layout.laps, layout.slots()), (6, 10, 240));
        assert!(layout.bytes().unwrap() <= 1 << 20);
        let least = CELL.layout(1);
        assert_eq!((least.laps, least.bytes()), (1, Some(6 * 4 * 4096)));
        let huge = Cell { block_bytes: u64::MAX / 2, ..CELL };
        assert_eq!(huge.layout(1).bytes(), None);
    }

    #[test]
    fn every_slot_of_both_sides_is_used_once_and_lanes_never_meet() {
        let layout = CELL.layout(1 << 20);
        let moves = layout.moves(7);
        assert_eq!(moves, layout.moves(7), "both sides derive the same");
        for side in [0, 1] {
            let mut slots: Vec<usize> = moves.iter().map(|m| if side == 0 { m.0 } else { m.1 }).collect();
            slots.sort_unstable();
            assert!(slots.into_iter().eq(0..layout.slots()));
        }
        let merging = moves.windows(2).filter(|w| w[1].0 == w[0].0 + 1 && w[1].1 == w[0].1 + 1).count();
        assert_eq!(merging, 0, "scattered blocks do not merge");
        let mut places: Vec<usize> =
            (0..6).flat_map(|lane| (0..10).map(move |turn| layout.place(lane, turn))).collect();
        places.sort_unstable();
        assert!(places.into_iter().eq(0..layout.places()));
        assert_eq!(layout.place(2, 10), layout.place(2, 0));
    }
}
