//! What is moved: blocks scattered on both sides, with contents that both sides can compute.
//!
//! Source and destination slots come from two random permutations, so that no two blocks are neighbours on both sides
//! and nothing can be merged. Each transfer has a tag of its own and every word depends on it: bytes of an earlier
//! transfer, of another block, or from another place in the block are seen to be wrong.

use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

/// Odd constant of the content's arithmetic progression within a block (fractional part of the golden ratio).
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Number, size and seed of the blocks of a transfer. Both sides derive the same slots from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Slots of each pool.
    pub slots: usize,
    /// Blocks that move; at most `slots`.
    pub blocks: usize,
    /// Bytes of a block, a multiple of 8.
    pub block_bytes: usize,
    /// Seed of the permutations.
    pub seed: u64,
}

impl Shape {
    /// Bytes that move.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.blocks * self.block_bytes
    }

    /// Whether it makes sense for pools of so many bytes.
    #[must_use]
    pub fn fits(&self, pool: usize) -> bool {
        let whole_words = self.block_bytes > 0 && self.block_bytes.is_multiple_of(8);
        let inside = self.slots.checked_mul(self.block_bytes).is_some_and(|bytes| bytes <= pool);
        whole_words && inside && self.blocks <= self.slots
    }

    /// Source slot and destination slot of each block.
    #[must_use]
    pub fn moves(&self) -> Vec<(usize, usize)> {
        let mut rng = SmallRng::seed_from_u64(self.seed);
        let mut permutation = || {
            let mut slots: Vec<usize> = (0..self.slots).collect();
            slots.shuffle(&mut rng);
            slots
        };
        let (from, to) = (permutation(), permutation());
        from.into_iter().zip(to).take(self.blocks).collect()
    }
}

/// First word of what slot `slot` of the source holds under `tag`.
fn first_word(tag: u64, slot: usize) -> u64 {
    SmallRng::seed_from_u64(tag ^ (slot as u64).wrapping_mul(STEP).rotate_left(32)).random()
}

/// Writes what source slot `slot` holds under `tag`.
pub fn fill(tag: u64, slot: usize, block: &mut [u8]) {
    let mut word = first_word(tag, slot);
    for bytes in block.chunks_exact_mut(8) {
        bytes.copy_from_slice(&word.to_le_bytes());
        word = word.wrapping_add(STEP);
    }
}

/// Whether `block` holds, byte for byte, what [`fill`] writes.
#[must_use]
pub fn holds(tag: u64, slot: usize, block: &[u8]) -> bool {
    let mut word = first_word(tag, slot);
    let mut wrong = 0;
    for bytes in block.chunks_exact(8) {
        wrong |= u64::from_le_bytes(bytes.try_into().unwrap_or_default()) ^ word;
        word = word.wrapping_add(STEP);
    }
    wrong == 0 && block.len().is_multiple_of(8)
}

/// How much of what arrived is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Check {
    /// Every byte.
    All,
    /// Every byte of each 64th block, another 64th in each transfer.
    Sample,
}

impl Check {
    /// Looks at the destination through `read`, which copies a slot out; number of blocks that are wrong, and looked at.
    pub fn wrong_blocks(
        self,
        shape: &Shape,
        moves: &[(usize, usize)],
        tag: u64,
        mut read: impl FnMut(usize, &mut [u8]),
    ) -> (usize, usize) {
        let mut block = vec![0; shape.block_bytes];
        let (step, first) = match self {
            Self::All => (1, 0),
            Self::Sample => (64, tag as usize % 64),
        };
        let (mut wrong, mut looked_at) = (0, 0);
        for &(from, to) in moves.iter().skip(first % moves.len().max(1)).step_by(step) {
            read(to, &mut block);
            wrong += usize::from(!holds(tag, from, &block));
            looked_at += 1;
        }
        (wrong, looked_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { slots: 100, blocks: 80, block_bytes: 64, seed: 5 };

    #[test]
    fn both_sides_derive_the_same_scattered_slots() {
        let moves = SHAPE.moves();
        assert_eq!(moves, SHAPE.moves());
        assert_eq!(moves.len(), 80);
        for side in [0, 1] {
            let mut slots: Vec<usize> = moves.iter().map(|m| if side == 0 { m.0 } else { m.1 }).collect();
            slots.sort_unstable();
            slots.dedup();
            assert!(slots.len() == 80 && slots.iter().all(|&s| s < 100));
        }
        let merging = moves.windows(2).filter(|w| w[1].0 == w[0].0 + 1 && w[1].1 == w[0].1 + 1).count();
        assert_eq!(merging, 0);
    }

    #[test]
    fn every_flipped_bit_and_every_misplaced_or_stale_block_is_seen() {
        let mut block = vec![0; 64];
        fill(7, 3, &mut block);
        assert!(holds(7, 3, &block) && !holds(8, 3, &block) && !holds(7, 4, &block));
        for bit in 0..512 {
            block[bit / 8] ^= 1 << (bit % 8);
            assert!(!holds(7, 3, &block), "bit {bit}");
            block[bit / 8] ^= 1 << (bit % 8);
        }
        block.rotate_left(8);
        assert!(!holds(7, 3, &block));
    }

    #[test]
    fn a_check_counts_wrong_blocks() {
        let moves = SHAPE.moves();
        let mut pool = vec![0u8; 100 * 64];
        for &(from, to) in &moves {
            fill(67, from, &mut pool[to * 64..][..64]);
        }
        let read = |pool: &[u8], to: usize, block: &mut [u8]| block.copy_from_slice(&pool[to * 64..][..64]);
        assert_eq!(Check::All.wrong_blocks(&SHAPE, &moves, 67, |to, b| read(&pool, to, b)), (0, 80));
        pool[moves[3].1 * 64 + 63] ^= 0x80;
        assert_eq!(Check::All.wrong_blocks(&SHAPE, &moves, 67, |to, b| read(&pool, to, b)), (1, 80));
        let (wrong, looked_at) = Check::Sample.wrong_blocks(&SHAPE, &moves, 67, |to, b| read(&pool, to, b));
        assert_eq!((wrong, looked_at), (1, 2));
    }
}
