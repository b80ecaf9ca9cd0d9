//! Sixteen outputs of a matrix times any number of rows.
//!
//! The sum of one output of one row is always built the same way: the inputs in groups of 32 from the first to the
//! last, each group's integers summed exactly, then scaled and added by fused multiply-add. How many rows are computed
//! together changes only how often a weight is loaded: one row of a decode step gets the bits it would get in a prompt.

use super::lanes::Simd;
use super::{Multiply, Vec16};
use crate::cpu::layout::{Acts, ByteBlock, GROUP, NibbleBlock, PlainBlock, QGroup};
use crate::cpu::matrix::Weights;

/// Rows computed together at most: their accumulators, the weights of a group and its scales fill the registers.
const ROWS: usize = 8;

#[inline(always)]
pub(super) fn multiply<S: Simd>(s: S, job: Multiply<'_>) {
    let Multiply { matrix, tile, acts, out, add } = job;
    let blocks = tile * acts.groups..(tile + 1) * acts.groups;
    match &matrix.weights {
        Weights::Nibbles(w) => by_rows(s, &w[blocks], acts, out, add, Nibbles),
        Weights::Bytes(w) => by_rows(s, &w[blocks], acts, out, add, Bytes),
        Weights::HalfBytes(w) => by_rows(s, &w[blocks], acts, out, add, HalfBytes),
        Weights::F16(w) => by_rows(s, &w[blocks], acts, out, add, Half),
        Weights::F32(w) => by_rows(s, &w[blocks], acts, out, add, Single),
    }
}

/// The inner product of one kind of weights with `R` rows.
trait Kind<S: Simd>: Copy {
    type Block;
    fn rows<const R: usize>(self, s: S, tile: &[Self::Block], acts: &Acts, first: usize) -> [S::F; R];
}

#[inline(always)]
fn by_rows<S: Simd, K: Kind<S>>(s: S, tile: &[K::Block], acts: &Acts, out: &mut [Vec16], add: bool, kind: K) {
    let mut row = 0;
    while row < out.len() {
        match out.len() - row {
            ROWS.. => put::<S, ROWS>(s, kind.rows(s, tile, acts, row), &mut out[row..], add),
            4.. => put::<S, 4>(s, kind.rows(s, tile, acts, row), &mut out[row..], add),
            2.. => put::<S, 2>(s, kind.rows(s, tile, acts, row), &mut out[row..], add),
            _ => put::<S, 1>(s, kind.rows(s, tile, acts, row), &mut out[row..], add),
        }
        row += match out.len() - row {
            ROWS.. => ROWS,
            4.. => 4,
            2.. => 2,
            _ => 1,
        };
    }
}

#[inline(always)]
fn put<S: Simd, const R: usize>(s: S, sums: [S::F; R], out: &mut [Vec16], add: bool) {
    for (sum, out) in sums.into_iter().zip(out) {
        let value = if add { s.add(s.get(out), sum) } else { sum };
        s.store(value, &mut out.0);
    }
}

#[inline(always)]
fn quantised<const R: usize>(acts: &Acts, first: usize, groups: usize) -> [&[QGroup]; R] {
    std::array::from_fn(|r| &acts.quantised[(first + r) * acts.groups..][..groups])
}

#[derive(Clone, Copy)]
struct Nibbles;
impl<S: Simd> Kind<S> for Nibbles {
    type Block = NibbleBlock;
    #[inline(always)]
    fn rows<const R: usize>(self, s: S, tile: &[NibbleBlock], acts: &Acts, first: usize) -> [S::F; R] {
        let rows = quantised::<R>(acts, first, tile.len());
        let mut sums = [s.splat(0.0); R];
        for (g, block) in tile.iter().enumerate() {
            let [a, b, c, d] = &block.q;
            let (a, b, c, d) = (s.load_bytes(a), s.load_bytes(b), s.load_bytes(c), s.load_bytes(d));
            let w = [s.low(a), s.low(b), s.low(c), s.low(d), s.high(a), s.high(b), s.high(c), s.high(d)];
            let (scale, offset) = (s.load(&block.scale), s.load(&block.offset));
            for r in 0..R {
                let x = &rows[r][g];
                let dot = s.to_float(s.dot_nibbles(&w, &x.high, &x.low));
                sums[r] = s.fma(dot, s.mul(scale, s.splat(x.scale)), sums[r]);
                sums[r] = s.fma(offset, s.splat(x.scaled_sum), sums[r]);
            }
        }
        sums
    }
}

#[derive(Clone, Copy)]
struct Bytes;
impl<S: Simd> Kind<S> for Bytes {
    type Block = ByteBlock<1>;
    #[inline(always)]
    fn rows<const R: usize>(self, s: S, tile: &[ByteBlock<1>], acts: &Acts, first: usize) -> [S::F; R] {
        let rows = quantised::<R>(acts, first, tile.len());
        let mut sums = [s.splat(0.0); R];
        for (g, block) in tile.iter().enumerate() {
            let w = steps(s, &block.q);
            let scale = s.load(&block.scale[0]);
            for r in 0..R {
                let x = &rows[r][g];
                let (high, low) = (halves(&x.high), halves(&x.low));
                let first = s.dot_bytes(&w[0], high.0, low.0, x.sums[0]);
                let dot = s.add_int(first, s.dot_bytes(&w[1], high.1, low.1, x.sums[1]));
                sums[r] = s.fma(s.to_float(dot), s.mul(scale, s.splat(x.scale)), sums[r]);
            }
        }
        sums
    }
}

#[derive(Clone, Copy)]
struct HalfBytes;
impl<S: Simd> Kind<S> for HalfBytes {
    type Block = ByteBlock<2>;
    #[inline(always)]
    fn rows<const R: usize>(self, s: S, tile: &[ByteBlock<2>], acts: &Acts, first: usize) -> [S::F; R] {
        let rows = quantised::<R>(acts, first, tile.len());
        let mut sums = [s.splat(0.0); R];
        for (g, block) in tile.iter().enumerate() {
            let w = steps(s, &block.q);
            let scale = [s.load(&block.scale[0]), s.load(&block.scale[1])];
            for r in 0..R {
                let x = &rows[r][g];
                let (high, low) = (halves(&x.high), halves(&x.low));
                let first = s.dot_bytes(&w[0], high.0, low.0, x.sums[0]);
                let dots = [first, s.dot_bytes(&w[1], high.1, low.1, x.sums[1])];
                for (dot, scale) in dots.into_iter().zip(scale) {
                    sums[r] = s.fma(s.to_float(dot), s.mul(scale, s.splat(x.scale)), sums[r]);
                }
            }
        }
        sums
    }
}

/// The eight steps of a block of bytes, in two halves. No closures here: they are not compiled for the instruction set.
#[inline(always)]
fn steps<S: Simd>(s: S, q: &[[u8; 64]; 8]) -> [[S::B; 4]; 2] {
    let mut w = [[s.load_bytes(&q[0]); 4]; 2];
    for half in 0..2 {
        for step in 0..4 {
            w[half][step] = s.prepare_bytes(s.load_bytes(&q[half * 4 + step]));
        }
    }
    w
}

#[inline(always)]
fn halves(q: &[i8; GROUP]) -> (&[i8; 16], &[i8; 16]) {
    let (parts, _) = q.as_chunks::<16>();
    (&parts[0], &parts[1])
}

/// Plain weights: the inputs one after the other.
#[inline(always)]
fn plain<S: Simd, T, const R: usize>(
    s: S,
    tile: &[PlainBlock<T>],
    acts: &Acts,
    first: usize,
    load: impl Fn(&[T; 16]) -> S::F,
) -> [S::F; R] {
    let chunks = tile.len() * 2;
    let rows: [&[Vec16]; R] = std::array::from_fn(|r| &acts.plain[(first + r) * chunks..][..chunks]);
    let mut sums = [s.splat(0.0); R];
    for (g, block) in tile.iter().enumerate() {
        for (k, w) in block.0.iter().enumerate() {
            let w = load(w);
            for r in 0..R {
                sums[r] = s.fma(w, s.splat(rows[r][g * 2 + k / 16].0[k % 16]), sums[r]);
            }
        }
    }
    sums
}

#[derive(Clone, Copy)]
struct Half;
impl<S: Simd> Kind<S> for Half {
    type Block = PlainBlock<u16>;
    #[inline(always)]
    fn rows<const R: usize>(self, s: S, tile: &[PlainBlock<u16>], acts: &Acts, first: usize) -> [S::F; R] {
        plain(
            s,
            tile,
            acts,
            first,
            #[inline(always)]
            |w| s.load_half(w),
        )
    }
}

#[derive(Clone, Copy)]
struct Single;
impl<S: Simd> Kind<S> for Single {
    type Block = PlainBlock<f32>;
    #[inline(always)]
    fn rows<const R: usize>(self, s: S, tile: &[PlainBlock<f32>], acts: &Acts, first: usize) -> [S::F; R] {
        plain(
            s,
            tile,
            acts,
            first,
            #[inline(always)]
            |w| s.load(w),
        )
    }
}
