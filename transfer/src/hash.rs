//! Hashing of numbers that this engine made itself, and which nobody can choose so that they collide: of slices, paths and leases.

use std::hash::{BuildHasherDefault, Hasher};

/// Builds [`Mix`].
pub(crate) type Plain = BuildHasherDefault<Mix>;

/// Multiplies and folds: good enough for numbers that count up, and a nanosecond where the default takes twenty.
#[derive(Default)]
pub(crate) struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u8(&mut self, n: u8) {
        self.write_u64(u64::from(n));
    }

    fn write_u32(&mut self, n: u32) {
        self.write_u64(u64::from(n));
    }

    fn write_u64(&mut self, n: u64) {
        let wide = u128::from(self.0 ^ n) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (wide as u64) ^ ((wide >> 64) as u64);
    }
}

#[cfg(test)]
mod tests {
    use std::hash::BuildHasher;

    use super::*;

    #[test]
    fn numbers_that_count_up_spread_over_low_and_high_bits() {
        for bits in [|hash: u64| hash & 0xff, |hash: u64| hash >> 57] {
            for shift in [0, 32] {
                let seen: std::collections::HashSet<u64> =
                    (1..1000u64).map(|n| bits(Plain::default().hash_one(n << shift))).collect();
                assert!(seen.len() > 100, "{}", seen.len());
            }
        }
    }
}
