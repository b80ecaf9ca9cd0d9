//! The vocabulary that every kernel is written in: sixteen lanes of `f32` or `i32`, 64 bytes of weights.
//!
//! Every operation has one IEEE 754 meaning (round to nearest even, fused multiply-add where the name says so), so a
//! kernel gives the same bits on every instruction set. Lanes are outputs or tokens, never parts of one sum, but for
//! [`Simd::sum`], whose order is fixed.

use super::Vec16;

/// One instruction set. A value of the type is the proof that the CPU has it.
pub(super) trait Simd: Copy {
    /// Sixteen `f32`.
    type F: Copy;
    /// Sixteen `i32`.
    type I: Copy;
    /// Sixty-four bytes: four for each lane.
    type B: Copy;

    fn splat(self, v: f32) -> Self::F;
    fn load(self, v: &[f32; 16]) -> Self::F;
    fn store(self, v: Self::F, out: &mut [f32; 16]);
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a × b + c`, rounded once.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// To the nearest integer, ties to even; the values must fit.
    fn round(self, v: Self::F) -> Self::I;
    fn to_float(self, v: Self::I) -> Self::F;
    /// 2ⁿ for −127 < n < 128.
    fn pow2(self, n: Self::I) -> Self::F;
    fn add_int(self, a: Self::I, b: Self::I) -> Self::I;
    /// The lanes as bytes; they must fit.
    fn store_bytes(self, v: Self::I, out: &mut [i8; 16]);
    /// IEEE half precision to single, exact.
    fn load_half(self, v: &[u16; 16]) -> Self::F;
    /// Single to half precision, ties to even.
    fn store_half(self, v: Self::F, out: &mut [u16; 16]);
    /// Lanes i + (i+8), then + (i+4), + (i+2), + (i+1).
    fn sum(self, v: Self::F) -> f32;
    fn max_lane(self, v: Self::F) -> f32;
    /// Swaps rows and columns.
    fn transpose(self, rows: &mut [Self::F; 16]);

    fn load_bytes(self, v: &[u8; 64]) -> Self::B;
    /// The low nibble of each byte.
    fn low(self, v: Self::B) -> Self::B;
    /// The high nibble of each byte.
    fn high(self, v: Self::B) -> Self::B;
    /// `v = 128 × high + low` with −64 ≤ low < 64: (high, low).
    fn split(self, v: Self::I) -> (Self::I, Self::I);
    /// In each lane the sum over 32 elements of unsigned nibbles times activations of two bytes: `w[s]` holds elements
    /// 4s to 4s+3.
    fn dot_nibbles(self, w: &[Self::B; 8], high: &[i8; 32], low: &[i8; 32]) -> Self::I;
    /// Brings signed bytes into the form that [`Simd::dot_bytes`] takes.
    fn prepare_bytes(self, v: Self::B) -> Self::B;
    /// In each lane the sum over 16 elements of signed bytes times activations of two bytes; `sum` is the sum of the
    /// activations.
    fn dot_bytes(self, w: &[Self::B; 4], high: &[i8; 16], low: &[i8; 16], sum: i32) -> Self::I;

    /// A vector of the arrays that kernels pass around.
    #[inline(always)]
    fn get(self, v: &Vec16) -> Self::F {
        self.load(&v.0)
    }
}

/// eˣ to about 1 unit in the last place for −87.3 ≤ x ≤ 88; x is clamped to that range.
///
/// x = n·ln2 + r with |r| ≤ ln2/2; eʳ by its Taylor polynomial of degree 7 (remainder below 2⁻²⁷); 2ⁿ by the exponent.
#[inline(always)]
pub(super) fn exp<S: Simd>(s: S, x: S::F) -> S::F {
    // ln2 in two parts: n × LN2_HIGH is exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let x = s.min(s.max(x, s.splat(-87.3)), s.splat(88.0));
    let n = s.round(s.mul(x, s.splat(std::f32::consts::LOG2_E)));
    let nf = s.to_float(n);
    let r = s.fma(nf, s.splat(-LN2_HIGH), x);
    let r = s.fma(nf, s.splat(-LN2_LOW), r);
    let mut p = s.splat(1.0 / 5040.0);
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = s.fma(p, r, s.splat(c));
    }
    s.mul(p, s.pow2(n))
}
