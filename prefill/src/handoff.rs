//! What of a prompt's KV is to be sent next, and as which descriptors. Pure.
//!
//! The step thread publishes how far it is ([`Computed`]: a state, not a queue), the courier keeps how far it has handed over
//! ([`Cursor`]). The difference is a list of [`Piece`]s: a range of blocks × a range of layers. A courier that falls behind
//! finds larger pieces, never more of them, so nothing grows. Each (block, layer) is sent once; only valid tokens are.

use std::ops::Range;

use kvrail_engine::BlockId;
use kvrail_kv::KvFormat;
use kvrail_transfer::{Op, Strided};

/// How far a prompt is computed: all layers of the tokens before `done`, and `layers` layers of `done..chunk_end`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Computed {
    /// Tokens with all layers.
    pub done: u32,
    /// End of the chunk that is being computed; `done` if none is.
    pub chunk_end: u32,
    /// Leading layers of the chunk that are complete.
    pub layers: u32,
}

impl Computed {
    /// What of this may be sent when only the tokens before `granted` have a place at the receiver: a chunk goes layer by
    /// layer only if all of it has.
    #[must_use]
    pub fn within(self, granted: u32) -> Self {
        let done = self.done.min(granted);
        if done < self.done || self.chunk_end > granted {
            return Self { done, chunk_end: done, layers: 0 };
        }
        self
    }
}

/// Layers of consecutive blocks of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Tokens, from a block's first; the last block may be filled in part.
    pub tokens: Range<u32>,
    /// Layers.
    pub layers: Range<u32>,
}

impl Piece {
    /// Indices of its blocks in the prompt's chain.
    #[must_use]
    pub fn blocks(&self, format: &KvFormat) -> Range<u32> {
        self.tokens.start / format.block_tokens..format.blocks_for(self.tokens.end)
    }
}

/// How far a prompt's KV has been handed to the transfer engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    first: u32,
    layers_total: u32,
    at: Computed,
}

impl Cursor {
    /// Nothing handed over; tokens before `first` (whole blocks) never will be.
    #[must_use]
    pub fn new(first: u32, format: &KvFormat) -> Self {
        Self { first, layers_total: format.layers, at: Computed { done: first, chunk_end: first, layers: 0 } }
    }

    /// Tokens that have been handed over with all layers.
    #[must_use]
    pub fn done(&self) -> u32 {
        if self.at.layers == self.layers_total { self.at.chunk_end } else { self.at.done }
    }

    /// Moves on to `to`, which is at or after what was moved to before; what lies between is to be sent.
    pub fn advance(&mut self, to: Computed) -> Vec<Piece> {
        let to = Computed { done: to.done.max(self.first), chunk_end: to.chunk_end.max(self.first), ..to };
        let mut pieces = Vec::new();
        let mut add = |tokens: Range<u32>, layers: Range<u32>| {
            if !tokens.is_empty() && !layers.is_empty() {
                pieces.push(Piece { tokens, layers });
            }
        };
        if to.done >= self.at.chunk_end {
            add(self.at.done..self.at.chunk_end, self.at.layers..self.layers_total);
            add(self.at.chunk_end..to.done, 0..self.layers_total);
            self.at = Computed { done: to.done, chunk_end: to.done, layers: 0 };
        }
        if to.done == self.at.done && to.chunk_end > to.done && to.layers > self.at.layers {
            add(to.done..to.chunk_end, self.at.layers..to.layers);
            self.at = to;
        }
        pieces
    }
}

/// Valid bytes of a piece.
#[must_use]
pub fn bytes(format: &KvFormat, piece: &Piece) -> u64 {
    let token_layer_bytes = format.token_bytes() / u64::from(format.layers);
    u64::from(piece.tokens.end - piece.tokens.start)
        * u64::from(piece.layers.end - piece.layers.start)
        * token_layer_bytes
}

/// Descriptors of a piece: `local` and `remote` give the ids of its blocks, in chain order. A full block's layers are one
/// range, a run of evenly spaced full blocks one strided descriptor; a tail is a stride over the planes of its layers.
#[must_use]
pub fn ops(format: &KvFormat, piece: &Piece, local: &[BlockId], remote: &[BlockId]) -> Vec<Op> {
    let layers = u64::from(piece.layers.end - piece.layers.start);
    let (offset, len) = (u64::from(piece.layers.start) * format.layer_bytes(), layers * format.layer_bytes());
    let base = |block: BlockId| u64::from(block.0) * format.block_bytes() + offset;

    let full = ((piece.tokens.end - piece.tokens.start) / format.block_tokens) as usize;
    let mut pairs: Vec<(BlockId, BlockId)> = local.iter().copied().zip(remote.iter().copied()).collect();
    let tail = pairs.split_off(full.min(pairs.len()));
    pairs.sort_unstable();

    let mut ops = Vec::new();
    let mut rest = &pairs[..];
    while let Some(&first) = rest.first() {
        let (count, strides) = run(rest);
        let side = |block: BlockId, step: u32| Strided {
            offset: base(block),
            len,
            stride: u64::from(step) * format.block_bytes(),
            count: count as u32,
        };
        ops.push(Op { local: side(first.0, strides.0), remote: side(first.1, strides.1) }.normalised());
        rest = &rest[count..];
    }
    for (local, remote) in tail {
        let rows = Strided {
            offset: 0,
            len: u64::from(piece.tokens.end % format.block_tokens) * format.row_bytes(),
            stride: format.plane_bytes(),
            count: layers as u32 * 2 * format.kv_heads,
        };
        let side = |block| Strided { offset: base(block), ..rows };
        ops.push(Op { local: side(local), remote: side(remote) });
    }
    ops
}

/// Length of the longest leading run whose ids grow evenly on both sides, and by how much.
fn run(pairs: &[(BlockId, BlockId)]) -> (usize, (u32, u32)) {
    let step = |a: (BlockId, BlockId), b: (BlockId, BlockId)| {
        Some((b.0.0.checked_sub(a.0.0)?, b.1.0.checked_sub(a.1.0)?)).filter(|s| s.0 > 0 && s.1 > 0)
    };
    let Some(strides) = pairs.get(1).and_then(|&second| step(pairs[0], second)) else { return (1, (1, 1)) };
    let even = pairs.windows(2).take_while(|w| step(w[0], w[1]) == Some(strides)).count();
    (even + 1, strides)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use kvrail_kv::DType;
    use proptest::prelude::*;

    use super::*;

    const FORMAT: KvFormat = KvFormat { layers: 3, kv_heads: 2, head_dim: 4, block_tokens: 4, dtype: DType::F16 };

    fn computed(done: u32, chunk_end: u32, layers: u32) -> Computed {
        Computed { done, chunk_end, layers }
    }

    fn piece(tokens: Range<u32>, layers: Range<u32>) -> Piece {
        Piece { tokens, layers }
    }

    #[test]
    fn layers_go_as_they_complete_and_what_was_missed_goes_at_once() {
        let mut cursor = Cursor::new(4, &FORMAT);
        assert_eq!(cursor.advance(computed(8, 16, 0)), [piece(4..8, 0..3)], "the cached prefix, whole");
        assert_eq!(cursor.advance(computed(8, 16, 1)), [piece(8..16, 0..1)]);
        assert_eq!(cursor.advance(computed(8, 16, 1)), []);
        // The rest of that chunk, a chunk that was missed, and a layer of the next.
        assert_eq!(cursor.advance(computed(24, 30, 1)), [piece(8..16, 1..3), piece(16..24, 0..3), piece(24..30, 0..1)]);
        assert_eq!(cursor.advance(computed(24, 30, 3)), [piece(24..30, 1..3)]);
        assert_eq!(cursor.done(), 30);
        assert_eq!(cursor.advance(computed(30, 30, 0)), []);
    }

    #[test]
    fn nothing_goes_where_no_place_was_granted() {
        assert_eq!(computed(8, 16, 2).within(16), computed(8, 16, 2));
        assert_eq!(computed(8, 16, 2).within(12), computed(8, 8, 0));
        assert_eq!(computed(8, 16, 2).within(4), computed(4, 4, 0));
    }

    #[test]
    fn even_runs_become_one_descriptor() {
        let ids = |ids: &[u32]| ids.iter().map(|&i| BlockId(i)).collect::<Vec<_>>();
        let block = FORMAT.block_bytes();
        let whole = ops(&FORMAT, &piece(0..12, 0..3), &ids(&[5, 6, 7]), &ids(&[1, 2, 3]));
        assert_eq!(whole, [Op::contiguous(5 * block, block, 3 * block)]);
        // Both descending: the same run the other way round.
        let down = ops(&FORMAT, &piece(0..12, 0..3), &ids(&[7, 6, 5]), &ids(&[3, 2, 1]));
        assert_eq!(down, whole);
        let layer = ops(&FORMAT, &piece(0..12, 1..2), &ids(&[5, 6, 7]), &ids(&[1, 3, 5]));
        assert_eq!(layer.len(), 1);
        assert_eq!((layer[0].local.stride, layer[0].remote.stride), (block, 2 * block));
        let crossed = ops(&FORMAT, &piece(0..8, 1..2), &ids(&[5, 6]), &ids(&[2, 1]));
        assert_eq!(crossed.len(), 2);
    }

    /// Bytes that an op moves, as (local, remote) pairs.
    fn moved(op: &Op) -> Vec<(u64, u64)> {
        assert_eq!((op.local.len, op.local.count), (op.remote.len, op.remote.count));
        let piece = |i: u64| {
            let (l, r) = (op.local.offset + i * op.local.stride, op.remote.offset + i * op.remote.stride);
            (0..op.local.len).map(move |b| (l + b, r + b))
        };
        (0..u64::from(op.local.count)).flat_map(piece).collect()
    }

    proptest! {
        /// However the courier is scheduled and the lease arrives, each valid byte after the held blocks goes exactly once
        /// to its place, and no other byte goes anywhere.
        #[test]
        fn every_valid_byte_goes_once(
            total in 1..60_u32,
            held in 0..6_u32,
            cached in 0..6_u32,
            chunk_blocks in 1..5_u32,
            looks in prop::collection::vec(any::<bool>(), 0..80),
            grants in prop::collection::vec(0..6_u32, 0..80),
            shuffle in any::<u64>(),
        ) {
            let bt = FORMAT.block_tokens;
            let held = held.min(total / bt);
            let cached = cached.min((total - 1) / bt) * bt;
            // The step thread's states, in order.
            let mut states = vec![];
            let mut done = cached;
            while done < total {
                let end = (done + chunk_blocks * bt).min(total);
                (0..=FORMAT.layers).for_each(|layers| states.push(computed(done, end, layers)));
                done = end;
            }
            states.push(computed(total, total, 0));

            let blocks = FORMAT.blocks_for(total);
            let local: Vec<BlockId> = (0..blocks).map(|i| BlockId(i * 7919 % 61 + (shuffle % 3) as u32)).collect();
            let remote: Vec<BlockId> = (0..blocks).map(|i| BlockId((i ^ (shuffle as u32 & 1)) + 2)).collect();
            let mut cursor = Cursor::new(held * bt, &FORMAT);
            let mut granted = held;
            let mut sent: BTreeMap<(u64, u64), u32> = BTreeMap::new();
            let mut sent_bytes = 0;
            let last = states.len() - 1;
            for (i, state) in states.into_iter().enumerate() {
                granted = if i == last { blocks } else { (granted + grants.get(i).copied().unwrap_or(0)).min(blocks) };
                if i != last && looks.get(i).copied().unwrap_or(false) {
                    continue;
                }
                for piece in cursor.advance(state.within((granted * bt).min(total))) {
                    prop_assert!(piece.blocks(&FORMAT).end <= granted);
                    sent_bytes += bytes(&FORMAT, &piece);
                    let range = piece.blocks(&FORMAT).start as usize..piece.blocks(&FORMAT).end as usize;
                    for op in ops(&FORMAT, &piece, &local[range.clone()], &remote[range]) {
                        prop_assert_eq!(op.check(1 << 20, 1 << 20), Ok(()));
                        moved(&op).into_iter().for_each(|pair| *sent.entry(pair).or_default() += 1);
                    }
                }
            }
            prop_assert_eq!(cursor.done(), total.max(held * bt));

            let mut expected: BTreeMap<(u64, u64), u32> = BTreeMap::new();
            for token in held * bt..total {
                let (l, r) = (local[(token / bt) as usize], remote[(token / bt) as usize]);
                for layer in 0..FORMAT.layers {
                    for (value, head) in [(false, 0), (false, 1), (true, 0), (true, 1)] {
                        let row = FORMAT.row_offset(layer, value, head, token % bt);
                        for byte in row..row + FORMAT.row_bytes() {
                            let pair = (u64::from(l.0) * FORMAT.block_bytes() + byte, u64::from(r.0) * FORMAT.block_bytes() + byte);
                            expected.insert(pair, 1);
                        }
                    }
                }
            }
            prop_assert_eq!(sent_bytes, expected.len() as u64);
            prop_assert_eq!(sent, expected);
        }
    }
}
