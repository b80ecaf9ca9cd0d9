//! Weight matrices, repacked once at load from ggml's row-major blocks into tiles.
//!
//! Nothing is requantised: every weight keeps the exact value that its file gives it, but for Q4_K, whose products
//! of two scales are rounded to `f32`.

use half::f16;
use kvrail_gguf::TensorType;

use super::layout::{ByteBlock, GROUP, NibbleBlock, PlainBlock, Vec16};

/// A matrix of `outputs × inputs`; inputs are a multiple of 32.
pub(super) struct Matrix {
    pub outputs: usize,
    pub inputs: usize,
    pub weights: Weights,
}

/// Tiles of weights, by how they are stored.
pub(super) enum Weights {
    /// Q4_0, Q4_1, Q4_K.
    Nibbles(Vec<NibbleBlock>),
    /// Q8_0.
    Bytes(Vec<ByteBlock<1>>),
    /// Q6_K.
    HalfBytes(Vec<ByteBlock<2>>),
    F16(Vec<PlainBlock<u16>>),
    F32(Vec<PlainBlock<f32>>),
}

/// Takes one group of a row: scale, offset and nibbles.
type PutGroup<'a> = &'a mut dyn FnMut(f32, f32, &[u8; GROUP]);

/// Outputs and bytes of a tensor.
pub(super) type Part<'a> = (usize, &'a [u8]);

/// Types that [`Matrix::pack`] takes.
pub(super) fn is_supported(dtype: TensorType) -> bool {
    use TensorType::*;
    matches!(dtype, Q4_0 | Q4_1 | Q4_K | Q8_0 | Q6_K | F16 | F32)
}

impl Matrix {
    /// Repacks a tensor, or several that are computed together, one below the other.
    ///
    /// Each part is (outputs, bytes); all have `inputs` inputs and the type `dtype`, which is supported, and the size
    /// that their type gives them: the caller has checked.
    pub(super) fn pack(dtype: TensorType, inputs: usize, parts: &[Part<'_>]) -> Self {
        let outputs: usize = parts.iter().map(|part| part.0).sum();
        let row_bytes = inputs / dtype.block_elements() as usize * dtype.block_bytes() as usize;
        let rows = || parts.iter().flat_map(|(_, bytes)| bytes.chunks_exact(row_bytes)).enumerate();
        let groups = inputs / GROUP;
        let blocks = outputs.div_ceil(16) * groups;
        let weights = match dtype {
            TensorType::Q8_0 => {
                let mut out = vec![ByteBlock::<1> { scale: [[0.0; 16]], q: [[0; 64]; 8] }; blocks];
                rows().for_each(|(n, row)| q8_0(row, &mut out[n / 16 * groups..], n % 16));
                Weights::Bytes(out)
            }
            TensorType::Q6_K => {
                let mut out = vec![ByteBlock::<2> { scale: [[0.0; 16]; 2], q: [[0; 64]; 8] }; blocks];
                rows().for_each(|(n, row)| q6_k(row, &mut out[n / 16 * groups..], n % 16));
                Weights::HalfBytes(out)
            }
            TensorType::F16 => {
                let mut out = vec![PlainBlock([[0u16; 16]; GROUP]); blocks];
                rows().for_each(|(n, row)| plain(row, &mut out[n / 16 * groups..], n % 16, u16::from_le_bytes));
                Weights::F16(out)
            }
            TensorType::F32 => {
                let mut out = vec![PlainBlock([[0f32; 16]; GROUP]); blocks];
                rows().for_each(|(n, row)| plain(row, &mut out[n / 16 * groups..], n % 16, f32::from_le_bytes));
                Weights::F32(out)
            }
            _ => {
                let unpack: fn(&[u8], PutGroup<'_>) = match dtype {
                    TensorType::Q4_0 => q4_0,
                    TensorType::Q4_1 => q4_1,
                    _ => q4_k,
                };
                let empty = NibbleBlock { scale: [0.0; 16], offset: [0.0; 16], q: [[0; 64]; 4] };
                let mut out = vec![empty; blocks];
                for (n, row) in rows() {
                    let mut tile = out[n / 16 * groups..].iter_mut();
                    unpack(row, &mut |scale, offset, q| {
                        if let Some(block) = tile.next() {
                            put_nibbles(block, n % 16, scale, offset, q);
                        }
                    });
                }
                Weights::Nibbles(out)
            }
        };
        Self { outputs, inputs, weights }
    }

    /// Tiles of sixteen outputs.
    pub(super) fn tiles(&self) -> usize {
        self.outputs.div_ceil(16)
    }

    /// Whether it is multiplied with unquantised activations.
    pub(super) fn is_plain(&self) -> bool {
        matches!(self.weights, Weights::F16(_) | Weights::F32(_))
    }

    /// Writes the weights of one output, as numbers: an embedding.
    pub(super) fn row(&self, output: usize, mut put: impl FnMut(usize, f32)) {
        let (lane, groups) = (output % 16, self.inputs / GROUP);
        let first = output / 16 * groups;
        for k in 0..self.inputs {
            let (block, e) = (first + k / GROUP, k % GROUP);
            let byte = lane * 4 + e % 4;
            let value = match &self.weights {
                Weights::Nibbles(blocks) => {
                    let b = &blocks[block];
                    let nibble = b.q[e / 4 % 4][byte] >> (e / 16 * 4) & 15;
                    f32::from(nibble) * b.scale[lane] + b.offset[lane]
                }
                Weights::Bytes(blocks) => f32::from(blocks[block].q[e / 4][byte] as i8) * blocks[block].scale[0][lane],
                Weights::HalfBytes(blocks) => {
                    f32::from(blocks[block].q[e / 4][byte] as i8) * blocks[block].scale[e / 16][lane]
                }
                Weights::F16(blocks) => f16::from_bits(blocks[block].0[e][lane]).to_f32(),
                Weights::F32(blocks) => blocks[block].0[e][lane],
            };
            put(k, value);
        }
    }
}

/// A vector of weights (norms, biases) from F32 bytes.
pub(super) fn vector(bytes: &[u8]) -> Vec<Vec16> {
    let (values, _) = bytes.as_chunks::<4>();
    let mut out = vec![Vec16::ZERO; values.len().div_ceil(16)];
    for (i, value) in values.iter().enumerate() {
        out[i / 16].0[i % 16] = f32::from_le_bytes(*value);
    }
    out
}

fn put_nibbles(block: &mut NibbleBlock, lane: usize, scale: f32, offset: f32, q: &[u8; GROUP]) {
    block.scale[lane] = scale;
    block.offset[lane] = offset;
    for (e, &v) in q.iter().enumerate() {
        block.q[e / 4 % 4][lane * 4 + e % 4] |= (v & 15) << (e / 16 * 4);
    }
}

fn half(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// The sixteen bytes of Q4_0 and Q4_1: element i in the low nibbles, i + 16 in the high ones.
fn two_halves(bytes: &[u8]) -> [u8; GROUP] {
    std::array::from_fn(|i| if i < 16 { bytes[i] & 15 } else { bytes[i - 16] >> 4 })
}

fn q4_0(row: &[u8], put: PutGroup<'_>) {
    for block in row.chunks_exact(18) {
        let scale = half(block, 0);
        put(scale, -8.0 * scale, &two_halves(&block[2..]));
    }
}

fn q4_1(row: &[u8], put: PutGroup<'_>) {
    for block in row.chunks_exact(20) {
        put(half(block, 0), half(block, 2), &two_halves(&block[4..]));
    }
}

/// 256 elements: two `f16` super-scales, eight pairs of 6-bit scales in 12 bytes, then 64 elements in every 32 bytes.
fn q4_k(row: &[u8], put: PutGroup<'_>) {
    for block in row.chunks_exact(144) {
        let (d, dmin) = (half(block, 0), half(block, 2));
        let (s, q) = (&block[4..16], &block[16..]);
        for j in 0..8 {
            let (scale, min) = if j < 4 {
                (s[j] & 63, s[j + 4] & 63)
            } else {
                ((s[j + 4] & 15) | (s[j - 4] >> 6 << 4), (s[j + 4] >> 4) | (s[j] >> 6 << 4))
            };
            let part = &q[j / 2 * 32..];
            let nibbles = std::array::from_fn(|i| part[i] >> (j % 2 * 4) & 15);
            put(d * f32::from(scale), -dmin * f32::from(min), &nibbles);
        }
    }
}

fn q8_0(row: &[u8], tile: &mut [ByteBlock<1>], lane: usize) {
    for (block, out) in row.chunks_exact(34).zip(tile) {
        out.scale[0][lane] = half(block, 0);
        for e in 0..GROUP {
            out.q[e / 4][lane * 4 + e % 4] = block[2 + e];
        }
    }
}

/// 256 elements: low nibbles (128 bytes), high bit pairs (64), sixteen signed scales, one `f16` scale.
fn q6_k(row: &[u8], tile: &mut [ByteBlock<2>], lane: usize) {
    for (block, out) in row.chunks_exact(210).zip(tile.chunks_exact_mut(8)) {
        let (low, high, scales, d) = (&block[..128], &block[128..192], &block[192..208], half(block, 208));
        for k in 0..256 {
            // Each half of 128 elements holds four quarters of 32 that share bytes.
            let (h, quarter, i) = (k / 128, k % 128 / 32, k % 32);
            let nibble = low[h * 64 + quarter % 2 * 32 + i] >> (quarter / 2 * 4) & 15;
            let bits = high[h * 32 + i] >> (quarter * 2) & 3;
            let q = (nibble | bits << 4) as i8 - 32;
            let (group, e) = (&mut out[k / GROUP], k % GROUP);
            group.q[e / 4][lane * 4 + e % 4] = q as u8;
            group.scale[e / 16][lane] = d * f32::from(scales[k / 16] as i8);
        }
    }
}

fn plain<T: Copy, const N: usize>(row: &[u8], tile: &mut [PlainBlock<T>], lane: usize, from: fn([u8; N]) -> T) {
    for (k, bytes) in row.as_chunks::<N>().0.iter().enumerate() {
        tile[k / GROUP].0[k % GROUP][lane] = from(*bytes);
    }
}
