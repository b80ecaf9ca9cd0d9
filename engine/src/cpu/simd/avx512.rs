//! The vocabulary in AVX-512 with VNNI: one register a vector.

use std::arch::x86_64::*;

use super::lanes::Simd;

/// AVX-512 F, BW, DQ, VL and VNNI are there.
#[derive(Clone, Copy)]
pub(super) struct Avx512(());

impl Avx512 {
    /// # Safety
    /// The CPU must have AVX-512 F, BW, DQ, VL and VNNI, AVX2, FMA and F16C.
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

/// Four activations in every lane.
#[inline(always)]
fn four(a: &[i8], step: usize) -> i32 {
    i32::from_le_bytes([a[step * 4] as u8, a[step * 4 + 1] as u8, a[step * 4 + 2] as u8, a[step * 4 + 3] as u8])
}

impl Simd for Avx512 {
    type F = __m512;
    type I = __m512i;
    type B = __m512i;

    #[inline(always)]
    fn splat(self, v: f32) -> __m512 {
        simd!(_mm512_set1_ps(v))
    }
    #[inline(always)]
    fn load(self, v: &[f32; 16]) -> __m512 {
        simd!(_mm512_loadu_ps(v.as_ptr()))
    }
    #[inline(always)]
    fn store(self, v: __m512, out: &mut [f32; 16]) {
        simd!(_mm512_storeu_ps(out.as_mut_ptr(), v));
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        simd!(_mm512_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        simd!(_mm512_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        simd!(_mm512_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        simd!(_mm512_div_ps(a, b))
    }
    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        simd!(_mm512_max_ps(a, b))
    }
    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        simd!(_mm512_min_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        simd!(_mm512_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn round(self, v: __m512) -> __m512i {
        simd!(_mm512_cvtps_epi32(v))
    }
    #[inline(always)]
    fn to_float(self, v: __m512i) -> __m512 {
        simd!(_mm512_cvtepi32_ps(v))
    }
    #[inline(always)]
    fn pow2(self, n: __m512i) -> __m512 {
        simd!(_mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_add_epi32(n, _mm512_set1_epi32(127)))))
    }
    #[inline(always)]
    fn add_int(self, a: __m512i, b: __m512i) -> __m512i {
        simd!(_mm512_add_epi32(a, b))
    }
    #[inline(always)]
    fn store_bytes(self, v: __m512i, out: &mut [i8; 16]) {
        simd!(_mm_storeu_si128(out.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(v)));
    }
    #[inline(always)]
    fn load_half(self, v: &[u16; 16]) -> __m512 {
        simd!(_mm512_cvtph_ps(_mm256_loadu_si256(v.as_ptr().cast())))
    }
    #[inline(always)]
    fn store_half(self, v: __m512, out: &mut [u16; 16]) {
        simd!(_mm256_storeu_si256(out.as_mut_ptr().cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v)));
    }
    #[inline(always)]
    fn sum(self, v: __m512) -> f32 {
        simd!({
            let v = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
            let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
        })
    }
    #[inline(always)]
    fn max_lane(self, v: __m512) -> f32 {
        simd!(_mm512_reduce_max_ps(v))
    }
    #[inline(always)]
    fn transpose(self, rows: &mut [__m512; 16]) {
        simd!({
            // 2×2, then 4×4 inside each 128-bit quarter, then the quarters.
            let mut t = *rows;
            for i in (0..16).step_by(2) {
                t[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
                t[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
            }
            let mut u = t;
            for i in (0..16).step_by(4) {
                let (a, b) = (_mm512_castps_pd(t[i]), _mm512_castps_pd(t[i + 1]));
                let (c, d) = (_mm512_castps_pd(t[i + 2]), _mm512_castps_pd(t[i + 3]));
                u[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
                u[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
                u[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
                u[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
            }
            for i in 0..4 {
                let a = _mm512_shuffle_f32x4::<0x88>(u[i], u[i + 4]);
                let b = _mm512_shuffle_f32x4::<0xdd>(u[i], u[i + 4]);
                let c = _mm512_shuffle_f32x4::<0x88>(u[i + 8], u[i + 12]);
                let d = _mm512_shuffle_f32x4::<0xdd>(u[i + 8], u[i + 12]);
                rows[i] = _mm512_shuffle_f32x4::<0x88>(a, c);
                rows[i + 4] = _mm512_shuffle_f32x4::<0x88>(b, d);
                rows[i + 8] = _mm512_shuffle_f32x4::<0xdd>(a, c);
                rows[i + 12] = _mm512_shuffle_f32x4::<0xdd>(b, d);
            }
        });
    }

    #[inline(always)]
    fn load_bytes(self, v: &[u8; 64]) -> __m512i {
        simd!(_mm512_loadu_si512(v.as_ptr().cast()))
    }
    #[inline(always)]
    fn low(self, v: __m512i) -> __m512i {
        simd!(_mm512_and_si512(v, _mm512_set1_epi8(15)))
    }
    #[inline(always)]
    fn high(self, v: __m512i) -> __m512i {
        simd!(_mm512_and_si512(_mm512_srli_epi16::<4>(v), _mm512_set1_epi8(15)))
    }
    #[inline(always)]
    fn split(self, v: __m512i) -> (__m512i, __m512i) {
        simd!({
            let high = _mm512_srai_epi32::<7>(_mm512_add_epi32(v, _mm512_set1_epi32(64)));
            (high, _mm512_sub_epi32(v, _mm512_slli_epi32::<7>(high)))
        })
    }
    #[inline(always)]
    fn dot_nibbles(self, w: &[__m512i; 8], high: &[i8; 32], low: &[i8; 32]) -> __m512i {
        self.dot(w, high, low, 0)
    }
    /// VNNI multiplies unsigned by signed bytes: weights are shifted by 128, which `dot_bytes` takes off again.
    #[inline(always)]
    fn prepare_bytes(self, v: __m512i) -> __m512i {
        simd!(_mm512_xor_si512(v, _mm512_set1_epi8(-128)))
    }
    #[inline(always)]
    fn dot_bytes(self, w: &[__m512i; 4], high: &[i8; 16], low: &[i8; 16], sum: i32) -> __m512i {
        self.dot(w, high, low, -128 * sum)
    }
}

impl Avx512 {
    /// `start` + Σ unsigned bytes × (128 × high + low).
    #[inline(always)]
    fn dot(self, w: &[__m512i], high: &[i8], low: &[i8], start: i32) -> __m512i {
        simd!({
            let (mut highs, mut lows) = (_mm512_setzero_si512(), _mm512_set1_epi32(start));
            for (step, &w) in w.iter().enumerate() {
                highs = _mm512_dpbusd_epi32(highs, w, _mm512_set1_epi32(four(high, step)));
                lows = _mm512_dpbusd_epi32(lows, w, _mm512_set1_epi32(four(low, step)));
            }
            _mm512_add_epi32(_mm512_slli_epi32::<7>(highs), lows)
        })
    }
}
