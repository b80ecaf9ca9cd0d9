//! How numbers lie in memory: in vectors of sixteen lanes, so that no kernel ever sums across lanes of a product.
//!
//! - **Weights** of a matrix with `n` outputs are stored as ⌈n/16⌉ *tiles* of sixteen outputs; a tile is a run of blocks,
//!   one for 32 inputs, that a kernel streams through once. Lane = output.
//! - **Activations** of a pass are [`Tiles`]: chunk `c` of row `r` (columns 16c to 16c+15) at `c × rows + r`. The job
//!   that computes an output tile owns a contiguous range.
//! - **Quantised activations** are [`QGroup`]s of 32, row after row.

use bytemuck::{Pod, Zeroable};

/// Elements that share a scale.
pub(super) const GROUP: usize = 32;

/// Sixteen lanes, aligned to a cache line.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C, align(64))]
pub(super) struct Vec16(pub [f32; 16]);

impl Vec16 {
    pub(super) const ZERO: Self = Self([0.0; 16]);
}

/// Largest magnitude of a quantised activation: both bytes of it stay far from the corners of 8-bit products.
pub(super) const QUANTUM_MAX: f32 = 127.0 * 128.0;

/// Thirty-two activations of one row, quantised to 15 bits: `value = (128 × high + low) × scale`.
///
/// Eight bits would do for a chat; they move logits by tenths, though, and with that greedy tokens away from those of
/// exact arithmetic. The second byte costs one more integer product, which memory mostly hides.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, align(16))]
pub(super) struct QGroup {
    pub high: [i8; GROUP],
    /// −64 to 63.
    pub low: [i8; GROUP],
    pub scale: f32,
    /// `scale × Σ(128 × high + low)`: what a block's offset is multiplied with.
    pub scaled_sum: f32,
    /// Σ(128 × high + low) of each half.
    pub sums: [i32; 2],
}

impl QGroup {
    pub(super) const ZERO: Self = Self { high: [0; GROUP], low: [0; GROUP], scale: 0.0, scaled_sum: 0.0, sums: [0; 2] };
}

/// Weights `scale × nibble + offset`.
///
/// Step `s` (inputs 4s to 4s+3) is in the low nibbles of bytes `64·(s mod 4)…` where s < 4, else in the high ones; a
/// lane has four bytes there.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct NibbleBlock {
    pub scale: [f32; 16],
    pub offset: [f32; 16],
    pub q: [[u8; 64]; 4],
}

/// Weights `scale × signed byte`, with `SCALES` scales for the 32 inputs (1 or 2). Step `s` is in `q[s]`.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct ByteBlock<const SCALES: usize> {
    pub scale: [[f32; 16]; SCALES],
    pub q: [[u8; 64]; 8],
}

/// Weights as they are: sixteen outputs for each of 32 inputs.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct PlainBlock<T>(pub [[T; 16]; GROUP]);

/// A matrix of activations; see the module's text for its order.
pub(super) struct Tiles {
    pub rows: usize,
    pub data: Vec<Vec16>,
}

impl Tiles {
    pub(super) fn new(rows: usize, columns: usize) -> Self {
        Self { rows, data: vec![Vec16::ZERO; rows * columns.div_ceil(16)] }
    }

    pub(super) fn view(&self) -> View<'_> {
        View { data: &self.data, segment_chunks: 1, segment_stride: self.rows, row_stride: 1 }
    }

    pub(super) fn at(&self, row: usize, chunk: usize) -> &Vec16 {
        &self.data[chunk * self.rows + row]
    }

    /// These rows alone.
    pub(super) fn pick(&self, rows: &[usize]) -> Self {
        let chunks = self.data.chunks_exact(self.rows);
        Self { rows: rows.len(), data: chunks.flat_map(|chunk| rows.iter().map(|&row| chunk[row])).collect() }
    }
}

/// Rows of activations, in segments of `segment_chunks` contiguous chunks.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub data: &'a [Vec16],
    pub segment_chunks: usize,
    pub segment_stride: usize,
    pub row_stride: usize,
}

impl<'a> View<'a> {
    /// One row, contiguous.
    pub(super) fn row(data: &'a [Vec16]) -> Self {
        Self { data, segment_chunks: data.len(), segment_stride: 0, row_stride: 0 }
    }

    #[inline(always)]
    pub(super) fn at(&self, row: usize, chunk: usize) -> &'a Vec16 {
        let (segment, inside) = (chunk / self.segment_chunks, chunk % self.segment_chunks);
        &self.data[segment * self.segment_stride + row * self.row_stride + inside]
    }
}

/// What a matrix is multiplied with: rows in the form that its weights need.
#[derive(Default)]
pub(super) struct Acts {
    pub rows: usize,
    /// Groups of a row.
    pub groups: usize,
    pub quantised: Vec<QGroup>,
    /// The rows as they are, for plain weights; empty where no such matrix follows.
    pub plain: Vec<Vec16>,
}
