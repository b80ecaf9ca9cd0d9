//! The bytes of a load, on both sides.

use crate::plan::{Direction, Op, OpStatus, Piece};

/// What a destination holds before anything lands.
const BLANK: u8 = 0xEE;

#[derive(Debug)]
pub(super) struct Memory {
    direction: Direction,
    source: Vec<u8>,
    destination: Vec<u8>,
}

impl Memory {
    pub(super) fn new(ops: &[Op], direction: Direction, salt: u64) -> Self {
        let end = |side: fn(&Op) -> &crate::plan::Strided| {
            ops.iter().filter_map(|op| side(op).extent()).map(|extent| extent.end).max().unwrap_or(0) as usize
        };
        let (local, remote) = (end(|op| &op.local), end(|op| &op.remote));
        let (from, to) = if direction == Direction::Write { (local, remote) } else { (remote, local) };
        let byte = |i: u64| ((i ^ salt).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8 & 0x7F;
        Self { direction, source: (0..from as u64).map(byte).collect(), destination: vec![BLANK; to] }
    }

    pub(super) fn land(&mut self, piece: &Piece) {
        let (from, to) = self.sides(piece.local, piece.remote);
        let len = piece.len as usize;
        self.destination[to..to + len].copy_from_slice(&self.source[from..from + len]);
    }

    /// Lands with every bit wrong.
    pub(super) fn damage(&mut self, piece: &Piece) {
        self.land(piece);
        let (_, to) = self.sides(piece.local, piece.remote);
        self.destination[to..to + piece.len as usize].iter_mut().for_each(|byte| *byte = !*byte);
    }

    /// What contradicts a report: a landed op whose bytes differ, an op not sent that was touched, a byte touched between runs.
    pub(super) fn contradicts(&self, ops: &[Op], statuses: &[OpStatus]) -> Option<String> {
        if ops.len() != statuses.len() {
            return Some(format!("{} ops, {} statuses", ops.len(), statuses.len()));
        }
        let mut covered = vec![false; self.destination.len()];
        for (index, (op, status)) in ops.iter().zip(statuses).enumerate() {
            for run in 0..op.local.count {
                let (from, to) = self.sides(op.local.run(run), op.remote.run(run));
                let len = op.local.len as usize;
                let (source, destination) = (&self.source[from..from + len], &self.destination[to..to + len]);
                covered[to..to + len].fill(true);
                match status {
                    OpStatus::Landed if source != destination => return Some(format!("op {index} has not landed")),
                    OpStatus::NotSent if destination.iter().any(|b| *b != BLANK) => {
                        return Some(format!("op {index} was sent"));
                    }
                    _ => {}
                }
            }
        }
        let stray = covered.iter().zip(&self.destination).position(|(covered, byte)| !covered && *byte != BLANK);
        stray.map(|at| format!("byte {at} belongs to no op and was touched"))
    }

    fn sides(&self, local: u64, remote: u64) -> (usize, usize) {
        match self.direction {
            Direction::Write => (local as usize, remote as usize),
            Direction::Read => (remote as usize, local as usize),
        }
    }
}
