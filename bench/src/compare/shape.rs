//! What is moved: blocks scattered on both sides. Source and destination slots come from two random permutations, so that no
//! two blocks are neighbours on both sides and nothing can be merged.

use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use serde::{Deserialize, Serialize};

use crate::content::holds;

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
    use crate::content::fill;

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
