//! Copies past the cache: for payload that nobody reads soon and that would push out what is read soon.
//!
//! An ordinary store first fetches the line that it overwrites; a non-temporal one does not, which saves a third of the
//! memory traffic of a copy. Small pieces are left to memcpy: they fit into a cache, and their reader may be next.

/// Shortest piece that is worth it, in bytes.
const STREAM_BYTES_MIN: usize = 16 << 10;

/// Copies like [`copy`](super::copy); when it returns, every later store of this thread is ordered after the bytes.
///
/// # Safety
/// As for [`copy`](super::copy): `from` must be readable and `to` writable for `len` bytes, and the two must not overlap.
pub(crate) unsafe fn copy_streaming(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    if len >= STREAM_BYTES_MIN && std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the caller's promise, and the processor has the instructions.
        return unsafe { avx2(from, to, len) };
    }
    // SAFETY: the caller's promise.
    unsafe { super::copy(from, to, len) }
}

/// # Safety
/// As for [`copy_streaming`]; the processor must have AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn avx2(from: *const u8, to: *mut u8, len: usize) {
    use std::arch::x86_64::{__m256i, _mm_sfence, _mm256_loadu_si256, _mm256_stream_si256};
    const VECTOR: usize = size_of::<__m256i>();
    const STEP: usize = 4 * VECTOR;
    // Non-temporal stores want their destination aligned; what comes before and after is copied as usual.
    let head = to.align_offset(VECTOR).min(len);
    let body = (len - head) / STEP * STEP;
    // SAFETY: head + body + tail = len, each range once; `to + head` is aligned to a vector.
    unsafe {
        super::copy(from, to, head);
        for at in (head..head + body).step_by(STEP) {
            let (source, target) = (from.add(at).cast::<__m256i>(), to.add(at).cast::<__m256i>());
            let a = _mm256_loadu_si256(source);
            let b = _mm256_loadu_si256(source.add(1));
            let c = _mm256_loadu_si256(source.add(2));
            let d = _mm256_loadu_si256(source.add(3));
            _mm256_stream_si256(target, a);
            _mm256_stream_si256(target.add(1), b);
            _mm256_stream_si256(target.add(2), c);
            _mm256_stream_si256(target.add(3), d);
        }
        super::copy(from.add(head + body), to.add(head + body), len - head - body);
    }
    // Non-temporal stores are weakly ordered: the word that the bytes are visible must come after them.
    _mm_sfence();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_alignment_is_copied_and_nothing_beside_it() {
        let source: Vec<u8> = (0..70_000u32).map(|i| (i.wrapping_mul(31) >> 3) as u8).collect();
        for len in [0, 1, 31, 4_096, 16_383, 16_384, 16_385, 16_511, 32_768, 65_537] {
            for (from, to) in [(0, 0), (1, 0), (0, 1), (13, 31), (7, 64)] {
                let mut target = vec![0xEE; len + 128];
                // SAFETY: both ranges lie in their vectors, which are two allocations.
                unsafe { copy_streaming(source[from..].as_ptr(), target[to..].as_mut_ptr(), len) };
                assert_eq!(target[to..to + len], source[from..from + len], "{len} bytes from {from} to {to}");
                assert!(target[..to].iter().chain(&target[to + len..]).all(|&b| b == 0xEE), "beside {len} bytes");
            }
        }
    }
}
