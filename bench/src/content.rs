//! Contents of blocks that both sides can compute.
//!
//! Each transfer has a tag of its own and every word depends on it: bytes of an earlier transfer, of another block, or from
//! another place in the block are seen to be wrong.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// Odd constant of the content's arithmetic progression within a block (fractional part of the golden ratio).
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

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

#[cfg(test)]
mod tests {
    use super::*;

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
}
