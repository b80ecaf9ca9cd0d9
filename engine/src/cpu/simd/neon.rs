//! The vocabulary in Armv8 Advanced SIMD: four registers a vector.

use std::arch::aarch64::*;

use half::f16;

use super::lanes::Simd;

/// Advanced SIMD is there.
#[derive(Clone, Copy)]
pub(super) struct Neon(());

impl Neon {
    /// # Safety
    /// The CPU must have Advanced SIMD.
    #[inline(always)]
    pub(super) unsafe fn assume() -> Self {
        Self(())
    }
}

/// Wraps expressions of intrinsics that need nothing but the instruction set.
macro_rules! simd {
    ($e:expr) => {{
        // SAFETY: `self` exists only where the CPU has the instructions (`assume`), and memory is touched only through
        // references to arrays at least as large as what is loaded or stored.
        #[allow(unused_unsafe)]
        unsafe {
            $e
        }
    }};
}

/// The same operation on the four quarters.
macro_rules! quarters {
    ($i:ident => $e:expr) => {
        simd!({
            let one = #[inline(always)]
            |$i: usize| $e;
            [one(0), one(1), one(2), one(3)]
        })
    };
}

impl Simd for Neon {
    type F = [float32x4_t; 4];
    type I = [int32x4_t; 4];
    type B = [uint8x16_t; 4];

    #[inline(always)]
    fn splat(self, v: f32) -> Self::F {
        simd!([vdupq_n_f32(v); 4])
    }
    #[inline(always)]
    fn load(self, v: &[f32; 16]) -> Self::F {
        quarters!(i => vld1q_f32(v.as_ptr().add(i * 4)))
    }
    #[inline(always)]
    fn store(self, v: Self::F, out: &mut [f32; 16]) {
        let (parts, _) = out.as_chunks_mut::<4>();
        for (part, v) in parts.iter_mut().zip(v) {
            simd!(vst1q_f32(part.as_mut_ptr(), v));
        }
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        quarters!(i => vaddq_f32(a[i], b[i]))
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        quarters!(i => vsubq_f32(a[i], b[i]))
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        quarters!(i => vmulq_f32(a[i], b[i]))
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        quarters!(i => vdivq_f32(a[i], b[i]))
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        quarters!(i => vmaxq_f32(a[i], b[i]))
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        quarters!(i => vminq_f32(a[i], b[i]))
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        quarters!(i => vfmaq_f32(c[i], a[i], b[i]))
    }
    #[inline(always)]
    fn round(self, v: Self::F) -> Self::I {
        quarters!(i => vcvtnq_s32_f32(v[i]))
    }
    #[inline(always)]
    fn to_float(self, v: Self::I) -> Self::F {
        quarters!(i => vcvtq_f32_s32(v[i]))
    }
    #[inline(always)]
    fn pow2(self, n: Self::I) -> Self::F {
        quarters!(i => vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(n[i], vdupq_n_s32(127)))))
    }
    #[inline(always)]
    fn add_int(self, a: Self::I, b: Self::I) -> Self::I {
        quarters!(i => vaddq_s32(a[i], b[i]))
    }
    #[inline(always)]
    fn store_bytes(self, v: Self::I, out: &mut [i8; 16]) {
        simd!({
            let low = vcombine_s16(vmovn_s32(v[0]), vmovn_s32(v[1]));
            let high = vcombine_s16(vmovn_s32(v[2]), vmovn_s32(v[3]));
            vst1q_s8(out.as_mut_ptr(), vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
        });
    }
    /// Half-precision intrinsics are not stable; the conversions are `half`'s.
    #[inline(always)]
    fn load_half(self, v: &[u16; 16]) -> Self::F {
        self.load(&v.map(|v| f16::from_bits(v).to_f32()))
    }
    #[inline(always)]
    fn store_half(self, v: Self::F, out: &mut [u16; 16]) {
        let mut lanes = [0.0; 16];
        self.store(v, &mut lanes);
        *out = lanes.map(|v| f16::from_f32(v).to_bits());
    }
    #[inline(always)]
    fn sum(self, v: Self::F) -> f32 {
        simd!({
            let v = vaddq_f32(vaddq_f32(v[0], v[2]), vaddq_f32(v[1], v[3]));
            let v = vadd_f32(vget_low_f32(v), vget_high_f32(v));
            vget_lane_f32::<0>(v) + vget_lane_f32::<1>(v)
        })
    }
    #[inline(always)]
    fn max_lane(self, v: Self::F) -> f32 {
        simd!(vmaxvq_f32(vmaxq_f32(vmaxq_f32(v[0], v[1]), vmaxq_f32(v[2], v[3]))))
    }
    #[inline(always)]
    fn transpose(self, rows: &mut [Self::F; 16]) {
        let mut lanes = [[0.0; 16]; 16];
        for (row, lanes) in rows.iter().zip(&mut lanes) {
            self.store(*row, lanes);
        }
        for (i, row) in rows.iter_mut().enumerate() {
            *row = self.load(&std::array::from_fn(|j| lanes[j][i]));
        }
    }

    #[inline(always)]
    fn load_bytes(self, v: &[u8; 64]) -> Self::B {
        quarters!(i => vld1q_u8(v.as_ptr().add(i * 16)))
    }
    #[inline(always)]
    fn low(self, v: Self::B) -> Self::B {
        quarters!(i => vandq_u8(v[i], vdupq_n_u8(15)))
    }
    #[inline(always)]
    fn high(self, v: Self::B) -> Self::B {
        quarters!(i => vshrq_n_u8::<4>(v[i]))
    }
    #[inline(always)]
    fn split(self, v: Self::I) -> (Self::I, Self::I) {
        let high = quarters!(i => vshrq_n_s32::<7>(vaddq_s32(v[i], vdupq_n_s32(64))));
        (high, quarters!(i => vsubq_s32(v[i], vshlq_n_s32::<7>(high[i]))))
    }
    #[inline(always)]
    fn dot_nibbles(self, w: &[Self::B; 8], high: &[i8; 32], low: &[i8; 32]) -> Self::I {
        self.join(self.bytes(w, high), self.bytes(w, low)) // a nibble is a signed byte as well
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

impl Neon {
    /// 128 × high + low.
    #[inline(always)]
    fn join(self, high: [int32x4_t; 4], low: [int32x4_t; 4]) -> [int32x4_t; 4] {
        quarters!(i => vaddq_s32(vshlq_n_s32::<7>(high[i]), low[i]))
    }

    #[inline(always)]
    fn bytes(self, w: &[[uint8x16_t; 4]], a: &[i8]) -> [int32x4_t; 4] {
        let (steps, _) = a.as_chunks::<4>();
        quarters!(i => {
            let mut sum = vdupq_n_s32(0);
            for (w, a) in w.iter().zip(steps) {
                // Four products a lane: 8 → 16 bits exactly, neighbours added into 32 bits, those pairs added.
                let w = vreinterpretq_s8_u8(w[i]);
                let a = vreinterpretq_s8_s32(vdupq_n_s32(i32::from_le_bytes(a.map(|a| a as u8))));
                let low = vpaddlq_s16(vmull_s8(vget_low_s8(w), vget_low_s8(a)));
                let high = vpaddlq_s16(vmull_high_s8(w, a));
                sum = vaddq_s32(sum, vpaddq_s32(low, high));
            }
            sum
        })
    }
}
