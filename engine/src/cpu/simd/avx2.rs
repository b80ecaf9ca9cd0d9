//! The vocabulary in AVX2 with FMA and F16C: two registers a vector.

use std::arch::x86_64::*;

use super::lanes::Simd;

/// AVX2, FMA and F16C are there.
#[derive(Clone, Copy)]
pub(super) struct Avx2(());

impl Avx2 {
    /// # Safety
    /// The CPU must have AVX2, FMA and F16C.
    #[inline(always)]
    pub(super) unsafe fn assume() -> Self {
        Self(())
    }
}

/// Wraps expressions of intrinsics that need nothing but the instruction set.
macro_rules! simd {
    ($e:expr) => {{
        // SAFETY: `self` exists only where the CPU has the instructions (`assume`), and memory is touched only through
        // references to arrays at least as large as what is loaded or stored, by unaligned instructions.
        #[allow(unused_unsafe)]
        unsafe {
            $e
        }
    }};
}

/// The same operation on both halves.
macro_rules! both {
    ($op:ident($a:expr, $b:expr)) => {
        simd!([$op($a[0], $b[0]), $op($a[1], $b[1])])
    };
}

/// Four activations in every lane.
#[inline(always)]
fn four(a: &[i8], step: usize) -> i32 {
    i32::from_le_bytes([a[step * 4] as u8, a[step * 4 + 1] as u8, a[step * 4 + 2] as u8, a[step * 4 + 3] as u8])
}

impl Simd for Avx2 {
    type F = [__m256; 2];
    type I = [__m256i; 2];
    type B = [__m256i; 2];

    #[inline(always)]
    fn splat(self, v: f32) -> Self::F {
        simd!([_mm256_set1_ps(v); 2])
    }
    #[inline(always)]
    fn load(self, v: &[f32; 16]) -> Self::F {
        simd!([_mm256_loadu_ps(v.as_ptr()), _mm256_loadu_ps(v.as_ptr().add(8))])
    }
    #[inline(always)]
    fn store(self, v: Self::F, out: &mut [f32; 16]) {
        simd!({
            _mm256_storeu_ps(out.as_mut_ptr(), v[0]);
            _mm256_storeu_ps(out.as_mut_ptr().add(8), v[1]);
        });
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_div_ps(a, b))
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_max_ps(a, b))
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_min_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        simd!([_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])])
    }
    #[inline(always)]
    fn round(self, v: Self::F) -> Self::I {
        simd!([_mm256_cvtps_epi32(v[0]), _mm256_cvtps_epi32(v[1])])
    }
    #[inline(always)]
    fn to_float(self, v: Self::I) -> Self::F {
        simd!([_mm256_cvtepi32_ps(v[0]), _mm256_cvtepi32_ps(v[1])])
    }
    #[inline(always)]
    fn pow2(self, n: Self::I) -> Self::F {
        simd!({
            let bias = _mm256_set1_epi32(127);
            let n = [_mm256_add_epi32(n[0], bias), _mm256_add_epi32(n[1], bias)];
            [_mm256_castsi256_ps(_mm256_slli_epi32::<23>(n[0])), _mm256_castsi256_ps(_mm256_slli_epi32::<23>(n[1]))]
        })
    }
    #[inline(always)]
    fn add_int(self, a: Self::I, b: Self::I) -> Self::I {
        both!(_mm256_add_epi32(a, b))
    }
    #[inline(always)]
    fn store_bytes(self, v: Self::I, out: &mut [i8; 16]) {
        simd!({
            // Packing works inside 128-bit halves: the permutation brings the quarters back into order.
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(v[0], v[1]));
            let bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
            _mm_storeu_si128(out.as_mut_ptr().cast(), bytes);
        });
    }
    #[inline(always)]
    fn load_half(self, v: &[u16; 16]) -> Self::F {
        simd!({
            let low = _mm_loadu_si128(v.as_ptr().cast());
            let high = _mm_loadu_si128(v.as_ptr().add(8).cast());
            [_mm256_cvtph_ps(low), _mm256_cvtph_ps(high)]
        })
    }
    #[inline(always)]
    fn store_half(self, v: Self::F, out: &mut [u16; 16]) {
        simd!({
            _mm_storeu_si128(out.as_mut_ptr().cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v[0]));
            _mm_storeu_si128(out.as_mut_ptr().add(8).cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v[1]));
        });
    }
    #[inline(always)]
    fn sum(self, v: Self::F) -> f32 {
        simd!({
            let v = _mm256_add_ps(v[0], v[1]);
            let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
        })
    }
    #[inline(always)]
    fn max_lane(self, v: Self::F) -> f32 {
        simd!({
            let v = _mm256_max_ps(v[0], v[1]);
            let v = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_max_ss(v, _mm_movehdup_ps(v)))
        })
    }
    #[inline(always)]
    fn transpose(self, rows: &mut [Self::F; 16]) {
        let from = *rows;
        for (row_half, col_half) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let mut block = [from[0][0]; 8];
            for (i, v) in block.iter_mut().enumerate() {
                *v = from[row_half * 8 + i][col_half];
            }
            let block = transpose8(self, block);
            for (i, v) in block.into_iter().enumerate() {
                rows[col_half * 8 + i][row_half] = v;
            }
        }
    }

    #[inline(always)]
    fn load_bytes(self, v: &[u8; 64]) -> Self::B {
        simd!([_mm256_loadu_si256(v.as_ptr().cast()), _mm256_loadu_si256(v.as_ptr().add(32).cast())])
    }
    #[inline(always)]
    fn low(self, v: Self::B) -> Self::B {
        simd!([_mm256_and_si256(v[0], _mm256_set1_epi8(15)), _mm256_and_si256(v[1], _mm256_set1_epi8(15))])
    }
    #[inline(always)]
    fn high(self, v: Self::B) -> Self::B {
        self.low(simd!([_mm256_srli_epi16::<4>(v[0]), _mm256_srli_epi16::<4>(v[1])]))
    }
    #[inline(always)]
    fn split(self, v: Self::I) -> (Self::I, Self::I) {
        simd!({
            let half = _mm256_set1_epi32(64);
            let a = _mm256_srai_epi32::<7>(_mm256_add_epi32(v[0], half));
            let b = _mm256_srai_epi32::<7>(_mm256_add_epi32(v[1], half));
            let low =
                [_mm256_sub_epi32(v[0], _mm256_slli_epi32::<7>(a)), _mm256_sub_epi32(v[1], _mm256_slli_epi32::<7>(b))];
            ([a, b], low)
        })
    }
    #[inline(always)]
    fn dot_nibbles(self, w: &[Self::B; 8], high: &[i8; 32], low: &[i8; 32]) -> Self::I {
        self.join(self.nibbles(w, high), self.nibbles(w, low))
    }
    #[inline(always)]
    fn prepare_bytes(self, v: Self::B) -> Self::B {
        v
    }
    #[inline(always)]
    fn dot_bytes(self, w: &[Self::B; 4], high: &[i8; 16], low: &[i8; 16], _sum: i32) -> Self::I {
        self.join(self.bytes(w, high), self.bytes(w, low))
    }
}

impl Avx2 {
    /// 128 × high + low.
    #[inline(always)]
    fn join(self, high: [__m256i; 2], low: [__m256i; 2]) -> [__m256i; 2] {
        simd!([
            _mm256_add_epi32(_mm256_slli_epi32::<7>(high[0]), low[0]),
            _mm256_add_epi32(_mm256_slli_epi32::<7>(high[1]), low[1]),
        ])
    }

    #[inline(always)]
    fn nibbles(self, w: &[[__m256i; 2]; 8], a: &[i8; 32]) -> [__m256i; 2] {
        simd!({
            // A 16-bit lane sums 16 products of at most 15 × 127: 30,480 fits.
            let mut sums = [_mm256_setzero_si256(); 2];
            for (step, w) in w.iter().enumerate() {
                let a = _mm256_set1_epi32(four(a, step));
                sums[0] = _mm256_add_epi16(sums[0], _mm256_maddubs_epi16(w[0], a));
                sums[1] = _mm256_add_epi16(sums[1], _mm256_maddubs_epi16(w[1], a));
            }
            let ones = _mm256_set1_epi16(1);
            [_mm256_madd_epi16(sums[0], ones), _mm256_madd_epi16(sums[1], ones)]
        })
    }

    #[inline(always)]
    fn bytes(self, w: &[[__m256i; 2]; 4], a: &[i8; 16]) -> [__m256i; 2] {
        simd!({
            // |w| × (a with w's sign): a pair is at most 2 × 128 × 127 = 32,512, which fits 16 bits.
            let ones = _mm256_set1_epi16(1);
            let mut sums = [_mm256_setzero_si256(); 2];
            for (step, w) in w.iter().enumerate() {
                let a = _mm256_set1_epi32(four(a, step));
                for half in 0..2 {
                    let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w[half]), _mm256_sign_epi8(a, w[half]));
                    sums[half] = _mm256_add_epi32(sums[half], _mm256_madd_epi16(pairs, ones));
                }
            }
            sums
        })
    }
}

/// Swaps rows and columns of eight by eight.
#[inline(always)]
fn transpose8(_proof: Avx2, r: [__m256; 8]) -> [__m256; 8] {
    simd!({
        let mut t = r;
        for i in (0..8).step_by(2) {
            t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
            t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
        }
        let mut u = t;
        for i in (0..8).step_by(4) {
            u[i] = _mm256_shuffle_ps::<0x44>(t[i], t[i + 2]);
            u[i + 1] = _mm256_shuffle_ps::<0xee>(t[i], t[i + 2]);
            u[i + 2] = _mm256_shuffle_ps::<0x44>(t[i + 1], t[i + 3]);
            u[i + 3] = _mm256_shuffle_ps::<0xee>(t[i + 1], t[i + 3]);
        }
        let mut out = u;
        for i in 0..4 {
            out[i] = _mm256_permute2f128_ps::<0x20>(u[i], u[i + 4]);
            out[i + 4] = _mm256_permute2f128_ps::<0x31>(u[i], u[i + 4]);
        }
        out
    })
}
