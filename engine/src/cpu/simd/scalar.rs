//! The vocabulary in plain Rust: correct everywhere, and what the other instruction sets are compared with.

use half::f16;

use super::lanes::Simd;

/// No instruction set beyond the target's own.
#[derive(Clone, Copy)]
pub(super) struct Scalar;

#[inline(always)]
fn zip<T: Copy, U: Copy + Default>(a: [T; 16], b: [T; 16], f: impl Fn(T, T) -> U) -> [U; 16] {
    let mut out = [U::default(); 16];
    for i in 0..16 {
        out[i] = f(a[i], b[i]);
    }
    out
}

impl Simd for Scalar {
    type F = [f32; 16];
    type I = [i32; 16];
    type B = [u8; 64];

    #[inline(always)]
    fn splat(self, v: f32) -> Self::F {
        [v; 16]
    }
    #[inline(always)]
    fn load(self, v: &[f32; 16]) -> Self::F {
        *v
    }
    #[inline(always)]
    fn store(self, v: Self::F, out: &mut [f32; 16]) {
        *out = v;
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    fn round(self, v: Self::F) -> Self::I {
        v.map(|v| v.round_ties_even() as i32)
    }
    #[inline(always)]
    fn to_float(self, v: Self::I) -> Self::F {
        v.map(|v| v as f32)
    }
    #[inline(always)]
    fn pow2(self, n: Self::I) -> Self::F {
        n.map(|n| f32::from_bits((n.wrapping_add(127) as u32) << 23))
    }
    #[inline(always)]
    fn add_int(self, a: Self::I, b: Self::I) -> Self::I {
        zip(a, b, i32::wrapping_add)
    }
    #[inline(always)]
    fn store_bytes(self, v: Self::I, out: &mut [i8; 16]) {
        *out = v.map(|v| v as i8);
    }
    #[inline(always)]
    fn load_half(self, v: &[u16; 16]) -> Self::F {
        v.map(|v| f16::from_bits(v).to_f32())
    }
    #[inline(always)]
    fn store_half(self, v: Self::F, out: &mut [u16; 16]) {
        *out = v.map(|v| f16::from_f32(v).to_bits());
    }
    #[inline(always)]
    fn sum(self, v: Self::F) -> f32 {
        let mut v = v;
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                v[i] += v[i + half];
            }
        }
        v[0]
    }
    #[inline(always)]
    fn max_lane(self, v: Self::F) -> f32 {
        v.into_iter().fold(f32::NEG_INFINITY, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn transpose(self, rows: &mut [Self::F; 16]) {
        let from = *rows;
        *rows = std::array::from_fn(|i| std::array::from_fn(|j| from[j][i]));
    }

    #[inline(always)]
    fn load_bytes(self, v: &[u8; 64]) -> Self::B {
        *v
    }
    #[inline(always)]
    fn low(self, v: Self::B) -> Self::B {
        v.map(|v| v & 15)
    }
    #[inline(always)]
    fn high(self, v: Self::B) -> Self::B {
        v.map(|v| v >> 4)
    }
    #[inline(always)]
    fn split(self, v: Self::I) -> (Self::I, Self::I) {
        let high = v.map(|v| (v + 64) >> 7);
        (high, zip(v, high, |v, high| v - (high << 7)))
    }
    #[inline(always)]
    fn dot_nibbles(self, w: &[Self::B; 8], high: &[i8; 32], low: &[i8; 32]) -> Self::I {
        dot(w, high, low) // a nibble is a signed byte as well
    }
    #[inline(always)]
    fn prepare_bytes(self, v: Self::B) -> Self::B {
        v
    }
    #[inline(always)]
    fn dot_bytes(self, w: &[Self::B; 4], high: &[i8; 16], low: &[i8; 16], _sum: i32) -> Self::I {
        dot(w, high, low)
    }
}

#[inline(always)]
fn dot(w: &[[u8; 64]], high: &[i8], low: &[i8]) -> [i32; 16] {
    let mut sums = [0; 16];
    for (step, w) in w.iter().enumerate() {
        for j in 0..4 {
            let a = i32::from(high[step * 4 + j]) * 128 + i32::from(low[step * 4 + j]);
            for (lane, sum) in sums.iter_mut().enumerate() {
                *sum += i32::from(w[lane * 4 + j] as i8) * a;
            }
        }
    }
    sums
}
