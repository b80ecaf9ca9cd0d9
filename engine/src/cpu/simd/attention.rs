//! Attention of consecutive rows of one sequence, for one KV head and the query heads that share it.
//!
//! Keys and values are taken in tiles of sixteen positions from the start of the sequence, whatever the size of a block,
//! and each query row folds them in by online softmax in that order: its result does not depend on which other rows
//! are computed with it. Rows in flight together only share the conversion of a tile.

use kvrail_kv::DType;

use super::lanes::{Simd, exp};
use super::{Attend, Vec16};
use crate::cpu::pages::Pages;

/// Positions of a tile: one a lane.
const TILE: usize = 16;
/// Query rows computed together.
const ROWS: usize = 4;

/// One tile of a KV head, in single precision.
struct Tile {
    /// `[dimension]`, lane = position.
    keys: Vec<Vec16>,
    /// `[position][chunk of sixteen dimensions]`.
    values: Vec<Vec16>,
    halves: Vec<u16>,
}

/// Online softmax of one query row.
#[derive(Clone, Copy)]
struct Softmax {
    largest: f32,
    sum: f32,
}

#[inline(always)]
pub(super) fn attend<S: Simd>(s: S, job: Attend<'_>) {
    let Attend { pages, first, group, queries, scale, out } = job;
    let chunks = pages.head_dim() / 16;
    let count = out.len() / chunks;
    let scaled: Vec<f32> = queries.iter().flat_map(|q| q.0).map(|q| q * scale).collect();
    let mut softmax = vec![Softmax { largest: f32::NEG_INFINITY, sum: 0.0 }; count];
    out.fill(Vec16::ZERO);
    let mut tile = Tile {
        keys: vec![Vec16::ZERO; chunks * 16],
        values: vec![Vec16::ZERO; TILE * chunks],
        halves: vec![0; TILE * chunks * 16],
    };
    let end = first + count / group;
    for start in (0..end).step_by(TILE) {
        load(s, &pages, start, (end - start).min(TILE), &mut tile);
        let mut query = start.saturating_sub(first) * group;
        // Positions of the tile that a query sees.
        let seen = |query: usize| (first + query / group + 1 - start).min(TILE);
        while query < count {
            let here = query * chunks;
            if query + ROWS <= count && seen(query) == TILE {
                fold::<S, ROWS>(s, &tile, TILE, &scaled[here * 16..], &mut softmax[query..], &mut out[here..]);
                query += ROWS;
            } else {
                fold::<S, 1>(s, &tile, seen(query), &scaled[here * 16..], &mut softmax[query..], &mut out[here..]);
                query += 1;
            }
        }
    }
    for (out, softmax) in out.chunks_exact_mut(chunks).zip(&softmax) {
        for out in out {
            s.store(s.div(s.get(out), s.splat(softmax.sum)), &mut out.0);
        }
    }
}

/// Fills a tile with `count` positions from `start`; keys past them become zero and are masked later.
#[inline(always)]
fn load<S: Simd>(s: S, pages: &Pages<'_>, start: usize, count: usize, tile: &mut Tile) {
    let chunks = pages.head_dim() / 16;
    let Tile { keys, values, halves } = tile;
    for is_value in [false, true] {
        match pages.dtype() {
            DType::F32 => pages.read(is_value, start, bytemuck::cast_slice_mut(&mut values[..count * chunks])),
            DType::F16 => {
                let halves = &mut halves[..count * chunks * 16];
                pages.read(is_value, start, bytemuck::cast_slice_mut(halves));
                for (from, to) in halves.as_chunks::<16>().0.iter().zip(values.iter_mut()) {
                    s.store(s.load_half(from), &mut to.0);
                }
            }
        }
        if is_value {
            break;
        }
        // Keys came in through `values`, which the second turn overwrites.
        for chunk in 0..chunks {
            let mut rows = [s.splat(0.0); 16];
            for (position, row) in rows.iter_mut().enumerate().take(count) {
                *row = s.get(&values[position * chunks + chunk]);
            }
            s.transpose(&mut rows);
            for (row, key) in rows.into_iter().zip(&mut keys[chunk * 16..]) {
                s.store(row, &mut key.0);
            }
        }
    }
}

/// Folds a tile into `R` query rows, which see its first `seen` positions.
#[inline(always)]
fn fold<S: Simd, const R: usize>(
    s: S,
    tile: &Tile,
    seen: usize,
    queries: &[f32],
    softmax: &mut [Softmax],
    out: &mut [Vec16],
) {
    let dims = tile.keys.len();
    let chunks = dims / 16;
    let queries: [&[f32]; R] = std::array::from_fn(|r| &queries[r * dims..][..dims]);
    // Two sums, even and odd dimensions, to hide the latency of an addition.
    let (mut even, mut odd) = ([s.splat(0.0); R], [s.splat(0.0); R]);
    for (pair, keys) in tile.keys.as_chunks::<2>().0.iter().enumerate() {
        let keys = [s.get(&keys[0]), s.get(&keys[1])];
        for r in 0..R {
            even[r] = s.fma(keys[0], s.splat(queries[r][pair * 2]), even[r]);
            odd[r] = s.fma(keys[1], s.splat(queries[r][pair * 2 + 1]), odd[r]);
        }
    }
    let mut weights = [Vec16::ZERO; R];
    let mut rescale = [s.splat(0.0); R];
    for r in 0..R {
        let mut scores = s.add(even[r], odd[r]);
        if seen < TILE {
            scores = hide(s, scores, seen, f32::NEG_INFINITY);
        }
        let before = softmax[r].largest;
        let largest = before.max(s.max_lane(scores));
        let mut weight = exp(s, s.sub(scores, s.splat(largest)));
        if seen < TILE {
            weight = hide(s, weight, seen, 0.0);
        }
        rescale[r] = exp(s, s.splat(before - largest));
        let mut factor = [0.0; 16];
        s.store(rescale[r], &mut factor);
        softmax[r] = Softmax { largest, sum: softmax[r].sum * factor[0] + s.sum(weight) };
        s.store(weight, &mut weights[r].0);
    }
    for chunk in 0..chunks {
        let mut sums: [S::F; R] = [s.splat(0.0); R];
        for r in 0..R {
            sums[r] = s.mul(s.get(&out[r * chunks + chunk]), rescale[r]);
        }
        for position in 0..seen {
            let value = s.get(&tile.values[position * chunks + chunk]);
            for r in 0..R {
                sums[r] = s.fma(s.splat(weights[r].0[position]), value, sums[r]);
            }
        }
        for r in 0..R {
            s.store(sums[r], &mut out[r * chunks + chunk].0);
        }
    }
}

/// Lanes from `keep` on become `fill`.
#[inline(always)]
fn hide<S: Simd>(s: S, v: S::F, keep: usize, fill: f32) -> S::F {
    let mut lanes = [0.0; 16];
    s.store(v, &mut lanes);
    lanes[keep..].fill(fill);
    s.load(&lanes)
}
