//! What happens to one row at a time: norm, quantisation, activation, conversion.

use super::lanes::{Simd, exp};
use super::{Normalise, Quantise, Vec16};
use crate::cpu::layout::{QGroup, QUANTUM_MAX};

/// RMS norm: x ÷ √(mean(x²) + ε) × weight. The sum runs over chunks in order, in sixteen lanes.
#[inline(always)]
pub(super) fn normalise<S: Simd>(s: S, job: Normalise<'_>) {
    let Normalise { input, row, weight, epsilon, out } = job;
    let mut squares = s.splat(0.0);
    for chunk in 0..out.len() {
        let x = s.get(input.at(row, chunk));
        squares = s.fma(x, x, squares);
    }
    let mean = s.sum(squares) / (out.len() * 16) as f32;
    let factor = s.splat(1.0 / (mean + epsilon).sqrt());
    for (chunk, (out, weight)) in out.iter_mut().zip(weight).enumerate() {
        let x = s.mul(s.get(input.at(row, chunk)), factor);
        s.store(s.mul(x, s.get(weight)), &mut out.0);
    }
}

/// Symmetric quantisation in groups of 32: the largest magnitude becomes [`QUANTUM_MAX`].
#[inline(always)]
pub(super) fn quantise<S: Simd>(s: S, job: Quantise<'_>) {
    let Quantise { input, row, out } = job;
    for (g, out) in out.iter_mut().enumerate() {
        let x = [s.get(input.at(row, g * 2)), s.get(input.at(row, g * 2 + 1))];
        let zero = s.splat(0.0);
        let magnitude = [s.max(x[0], s.sub(zero, x[0])), s.max(x[1], s.sub(zero, x[1]))];
        let largest = s.max_lane(s.max(magnitude[0], magnitude[1]));
        let inverse = s.splat(if largest > 0.0 { QUANTUM_MAX / largest } else { 0.0 });
        let ((highs, _), (lows, _)) = (out.high.as_chunks_mut::<16>(), out.low.as_chunks_mut::<16>());
        let mut sums = [0; 2];
        for half in 0..2 {
            // A denormal `largest` makes `inverse` infinite: stay inside the range.
            let scaled = s.max(s.min(s.mul(x[half], inverse), s.splat(QUANTUM_MAX)), s.splat(-QUANTUM_MAX));
            let (high, low) = s.split(s.round(scaled));
            s.store_bytes(high, &mut highs[half]);
            s.store_bytes(low, &mut lows[half]);
            for i in 0..16 {
                sums[half] += i32::from(highs[half][i]) * 128 + i32::from(lows[half][i]);
            }
        }
        let scale = largest / QUANTUM_MAX;
        *out = QGroup { high: out.high, low: out.low, scale, scaled_sum: scale * (sums[0] + sums[1]) as f32, sums };
    }
}

/// gate ← silu(gate) × up.
#[inline(always)]
pub(super) fn swiglu<S: Simd>(s: S, gate: &mut [Vec16], up: &[Vec16]) {
    for (gate, up) in gate.iter_mut().zip(up) {
        let x = s.get(gate);
        let denominator = s.add(s.splat(1.0), exp(s, s.sub(s.splat(0.0), x)));
        s.store(s.mul(s.div(x, denominator), s.get(up)), &mut gate.0);
    }
}

/// To half precision.
#[inline(always)]
pub(super) fn to_half<S: Simd>(s: S, from: &[Vec16], to: &mut [u16]) {
    for (from, to) in from.iter().zip(to.as_chunks_mut::<16>().0) {
        s.store_half(s.get(from), to);
    }
}
