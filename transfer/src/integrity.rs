//! Optional CRC32 over the payload of a slice: catches what a checksum of 16 bits lets through, and every single flip.

use crate::memory;

/// Bytes hashed at once: they stay in the first-level cache between the copy and the hash.
const CHUNK: usize = 4096;

/// CRC32 (IEEE) over memory that other threads or processes may write.
#[derive(Default)]
pub(crate) struct Crc(crc32fast::Hasher);

impl Crc {
    /// Adds `len` bytes from `from`.
    ///
    /// The bytes are copied out first, chunk by chunk, so that no reference to shared memory is ever made.
    ///
    /// # Safety
    /// `from` must be readable for `len` bytes.
    pub(crate) unsafe fn add(&mut self, from: *const u8, len: usize) {
        let mut chunk = [0u8; CHUNK];
        let mut at = 0;
        while at < len {
            let n = CHUNK.min(len - at);
            // SAFETY: `at + n` ≤ `len`; the chunk is a local of CHUNK bytes.
            unsafe { memory::copy(from.add(at), chunk.as_mut_ptr(), n) };
            self.0.update(&chunk[..n]);
            at += n;
        }
    }

    pub(crate) fn finish(self) -> u32 {
        self.0.finalize()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crc(parts: &[&[u8]]) -> u32 {
        let mut crc = Crc::default();
        for part in parts {
            // SAFETY: the slices live.
            unsafe { crc.add(part.as_ptr(), part.len()) };
        }
        crc.finish()
    }

    #[test]
    fn it_is_the_standard_crc_and_cuts_do_not_matter() {
        assert_eq!(crc(&[b"1234", b"", b"56789"]), 0xcbf4_3926);
        let long: Vec<u8> = (0..10_000u32).map(|n| ((n * 7) >> 2) as u8).collect();
        assert_eq!(crc(&[&long]), crc(&[&long[..1], &long[1..5000], &long[5000..]]));
        assert_eq!(crc(&[&long]), crc32fast::hash(&long));
    }
}
