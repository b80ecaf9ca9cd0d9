//! Which bytes the mock writes and which logits it reads out of them.

use kvrail_kv::{KvFormat, TokenId};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::executor::{Logits, ModelSpec};
use crate::memory::{BlockId, KvMemory};

/// The mock's arithmetic, public so that any receiver can check any byte.
///
/// The *state* at a position is a hash of the model's digest and all tokens up to it. A position's rows are a stream
/// expanded from (state, layer, K or V, head); the first eight bytes of the first row are the state itself, so that the
/// next chunk can go on from the cache alone. Logits are a hash of every valid byte of the sequence.
#[derive(Clone, Debug)]
pub struct MockKv {
    format: KvFormat,
    vocab: u32,
    seed: u64,
}

/// Mixes 64 bits so that each input bit touches each output bit (the finaliser of SplitMix64).
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Odd constant of SplitMix64's counter.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

impl MockKv {
    /// The arithmetic of the mock whose spec this is.
    #[must_use]
    pub fn new(spec: &ModelSpec) -> Self {
        Self { format: spec.format, vocab: spec.vocab, seed: xxh3_64(spec.digest.as_bytes()) }
    }

    /// State before the first token.
    pub(super) fn start(&self) -> u64 {
        self.seed
    }

    /// State after `token`.
    pub(super) fn next(&self, state: u64, token: TokenId) -> u64 {
        xxh3_64_with_seed(&token.to_le_bytes(), state)
    }

    /// State after the token at `position`, read back from the cache.
    pub(super) fn state_in(&self, kv: &KvMemory, table: &[BlockId], position: u32) -> u64 {
        let mut bytes = [0; 8];
        let row = self.format.row_offset(0, false, 0, position % self.format.block_tokens);
        kv.read(table[(position / self.format.block_tokens) as usize], row, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// Fills the row of (`layer`, K or V, `head`) of the position with `state`.
    pub(super) fn row(&self, state: u64, layer: u32, value: bool, head: u32, row: &mut [u8]) {
        let plane = u64::from(layer) << 32 | u64::from(value) << 31 | u64::from(head);
        let stream = if plane == 0 { state } else { mix(state ^ plane.wrapping_mul(GOLDEN)) };
        for (i, word) in row.chunks_mut(8).enumerate() {
            let bytes = if i == 0 { stream } else { mix(stream.wrapping_add(GOLDEN.wrapping_mul(i as u64))) };
            word.copy_from_slice(&bytes.to_le_bytes()[..word.len()]);
        }
    }

    /// Hash of every valid byte of the first `tokens` tokens of a sequence, in block order.
    pub(super) fn hash(&self, kv: &KvMemory, table: &[BlockId], tokens: u32) -> u64 {
        let mut buffer = vec![0; self.format.block_bytes() as usize];
        let mut hash = self.seed;
        let mut left = tokens;
        for &block in table {
            if left == 0 {
                break;
            }
            let valid = left.min(self.format.block_tokens);
            left -= valid;
            let length = self.read_valid(kv, block, valid, &mut buffer);
            hash = xxh3_64_with_seed(&buffer[..length], hash);
        }
        hash
    }

    /// Copies the bytes of a block's first `valid` tokens, packed; returns how many.
    fn read_valid(&self, kv: &KvMemory, block: BlockId, valid: u32, out: &mut [u8]) -> usize {
        if valid == self.format.block_tokens {
            kv.read(block, 0, out);
            return out.len();
        }
        let mut at = 0;
        for layer in 0..self.format.layers {
            let span = self.format.layer_span(layer, valid);
            for piece in 0..u64::from(span.count) {
                kv.read(block, span.offset + piece * span.stride, &mut out[at..at + span.len as usize]);
                at += span.len as usize;
            }
        }
        at
    }

    /// Logits in [-8, 8) from a hash.
    pub(super) fn logits(&self, hash: u64) -> Logits {
        let logit = |i: u32| {
            let bits = mix(hash.wrapping_add(GOLDEN.wrapping_mul(u64::from(i) + 1))) >> 40;
            bits as f32 / (1 << 24) as f32 * 16.0 - 8.0
        };
        (0..self.vocab).map(logit).collect()
    }

    /// The bytes of block number `index` of a sequence that begins with `tokens`, and how many of its tokens are valid;
    /// rows past them are zero.
    #[must_use]
    pub fn expected_block(&self, tokens: &[TokenId], index: u32) -> (Vec<u8>, u32) {
        let format = &self.format;
        let first = (index * format.block_tokens) as usize;
        let valid = tokens.len().saturating_sub(first).min(format.block_tokens as usize) as u32;
        let mut block = vec![0; format.block_bytes() as usize];
        let mut state = tokens.iter().take(first).fold(self.start(), |state, &token| self.next(state, token));
        for slot in 0..valid {
            state = self.next(state, tokens[first + slot as usize]);
            for layer in 0..format.layers {
                for (value, head) in planes(format) {
                    let at = format.row_offset(layer, value, head, slot) as usize;
                    self.row(state, layer, value, head, &mut block[at..at + format.row_bytes() as usize]);
                }
            }
        }
        (block, valid)
    }

    /// Compares every valid byte of a block in memory with what it must be.
    ///
    /// # Errors
    /// Names the first wrong row.
    pub fn check_block(&self, kv: &KvMemory, block: BlockId, tokens: &[TokenId], index: u32) -> Result<(), String> {
        let (expected, valid) = self.expected_block(tokens, index);
        let mut actual = vec![0; expected.len()];
        kv.read(block, 0, &mut actual);
        for layer in 0..self.format.layers {
            for (value, head) in planes(&self.format) {
                for token in 0..valid {
                    let at = self.format.row_offset(layer, value, head, token) as usize;
                    let row = at..at + self.format.row_bytes() as usize;
                    if actual[row.clone()] != expected[row] {
                        let plane = if value { "V" } else { "K" };
                        return Err(format!(
                            "block {index}: layer {layer}, {plane}, head {head}, token {token} is wrong"
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    /// The logits after `tokens`, from the tokens alone: what any executor of this mock must answer.
    #[must_use]
    pub fn expected_logits(&self, tokens: &[TokenId]) -> Logits {
        let blocks = self.format.blocks_for(tokens.len() as u32);
        let kv = KvMemory::on_heap(self.format, blocks.max(1));
        let table: Vec<BlockId> = (0..blocks).map(BlockId).collect();
        for &block in &table {
            kv.write(block, 0, &self.expected_block(tokens, block.0).0);
        }
        self.logits(self.hash(&kv, &table, tokens.len() as u32))
    }
}

/// The planes of a layer in memory order: K of all heads, V of all heads.
pub(super) fn planes(format: &KvFormat) -> impl Iterator<Item = (bool, u32)> + use<> {
    let heads = format.kv_heads;
    [false, true].into_iter().flat_map(move |value| (0..heads).map(move |head| (value, head)))
}
