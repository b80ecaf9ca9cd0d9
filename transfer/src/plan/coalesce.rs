//! From descriptors to pieces: a cursor that walks runs as they are needed, merges neighbours and cuts to size.
//!
//! A transfer of a million runs is a list of a few descriptors and a cursor of 16 bytes; pieces exist only in the slice that is
//! being handed out. Cost: O(1) a piece, nothing allocated but the caller's reused buffer.

use super::{Op, PathLimits, Piece};

/// Offsets inside a piece that is cut are rounded to this, so that neither side starts in the middle of a page or packet.
const CUT_ALIGN: u64 = 4096;

/// A position in a list of ops. Zero-length ops are walked over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    op: u32,
    run: u32,
    byte: u64,
}

impl Cursor {
    /// First op of which some byte lies at or after the cursor, provided that any has.
    pub(crate) fn op(&self) -> usize {
        self.op as usize
    }

    /// Has any byte of [`Self::op`] been passed?
    pub(crate) fn is_inside(&self) -> bool {
        self.run > 0 || self.byte > 0
    }

    /// The rest of the run under the cursor, whole.
    fn peek(&mut self, ops: &[Op]) -> Option<Piece> {
        loop {
            let op = ops.get(self.op as usize)?.normalised();
            if self.run < op.local.count && self.byte < op.local.len {
                return Some(Piece {
                    local: op.local.run(self.run) + self.byte,
                    remote: op.remote.run(self.run) + self.byte,
                    len: op.local.len - self.byte,
                });
            }
            *self = Self { op: self.op + 1, run: 0, byte: 0 };
        }
    }

    /// Passes `bytes`, at most the rest of the run.
    fn pass(&mut self, bytes: u64, rest_of_run: u64) {
        if bytes == rest_of_run {
            self.run += 1;
            self.byte = 0;
        } else {
            self.byte += bytes;
        }
    }

    /// Appends the next slice's pieces to `out` and passes them: at most `want` bytes of the `budget` bytes that are left of the
    /// range, within `limits`. Returns the bytes taken: 0 only where `want` or `budget` is 0.
    ///
    /// A run that would fit a slice of its own is not split over two; what is left of a split run is never less than
    /// `crumb` bytes, unless limits force it. Neighbours that touch on both sides become one piece.
    pub(crate) fn take(
        &mut self,
        ops: &[Op],
        want: u64,
        budget: u64,
        crumb: u64,
        limits: &PathLimits,
        out: &mut Vec<Piece>,
    ) -> u64 {
        let first = out.len();
        let pieces_max = limits.slice_pieces_max.max(1) as usize;
        let want = want.min(limits.slice_bytes_max).min(budget);
        let (mut taken, mut cut) = (0, false);
        while taken < want && !cut {
            let Some(mut piece) = self.peek(ops) else { break };
            let rest_of_run = piece.len;
            let room = want - taken;
            if piece.len > room {
                if taken > 0 && piece.len <= want {
                    break;
                }
                // The crumb rule may overshoot `want`, never the budget or the limit.
                let ceiling = (limits.slice_bytes_max - taken).min(budget - taken);
                cut = piece.len > ceiling || piece.len - room >= crumb;
                if cut {
                    piece.len =
                        if room >= 2 * CUT_ALIGN && room < budget - taken { room - room % CUT_ALIGN } else { room };
                }
            }
            piece.len = piece.len.min(limits.local_chunk_bytes - piece.local % limits.local_chunk_bytes);
            piece.len = piece.len.min(limits.remote_chunk_bytes - piece.remote % limits.remote_chunk_bytes);
            let pieces = out.len() - first;
            match out[first..].last_mut() {
                Some(last) if touches(last, &piece) && !at_chunk(limits, &piece) => last.len += piece.len,
                _ if pieces >= pieces_max => break,
                _ => out.push(piece),
            }
            self.pass(piece.len, rest_of_run);
            taken += piece.len;
        }
        taken
    }

    /// Passes `bytes` and tells `each` how many of them belong to which op.
    pub(crate) fn walk(mut self, ops: &[Op], mut bytes: u64, mut each: impl FnMut(usize, u64)) {
        while bytes > 0 {
            let Some(op) = ops.get(self.op as usize).map(|op| op.normalised()) else { return };
            let passed = op.local.len * u64::from(self.run) + self.byte;
            let share = (op.bytes() - passed).min(bytes);
            if share > 0 {
                each(self.op as usize, share);
            }
            bytes -= share;
            self = Self { op: self.op + 1, run: 0, byte: 0 };
        }
    }
}

fn touches(last: &Piece, next: &Piece) -> bool {
    last.local + last.len == next.local && last.remote + last.len == next.remote
}

fn at_chunk(limits: &PathLimits, piece: &Piece) -> bool {
    let starts = |offset: u64, chunk: u64| chunk != u64::MAX && offset.is_multiple_of(chunk);
    starts(piece.local, limits.local_chunk_bytes) || starts(piece.remote, limits.remote_chunk_bytes)
}

/// The side on which a run of pieces is contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The local region.
    Local,
    /// The remote region.
    Remote,
}

/// Groups pieces that are contiguous on `side` into runs of at most `max_sge` pieces: one work request (or frame entry) with a
/// gather or scatter list for the other side. For RDMA writes and reads that is `Remote`.
///
/// ```
/// use kvrail_transfer::plan::{Piece, Side, runs};
/// let piece = |local, remote| Piece { local, remote, len: 4 };
/// let scattered_here = [piece(100, 0), piece(50, 4), piece(70, 8), piece(0, 99)];
/// let lens: Vec<usize> = runs(&scattered_here, Side::Remote, 30).map(|run| run.len()).collect();
/// assert_eq!(lens, [3, 1]);
/// ```
pub fn runs(pieces: &[Piece], side: Side, max_sge: usize) -> impl Iterator<Item = &[Piece]> {
    let mut rest = pieces;
    std::iter::from_fn(move || {
        let start = |piece: &Piece| if side == Side::Local { piece.local } else { piece.remote };
        let follows = |pair: &[Piece]| start(&pair[0]) + pair[0].len == start(&pair[1]);
        let len = 1 + rest.windows(2).take(max_sge.max(1) - 1).take_while(|pair| follows(pair)).count();
        let (run, after) = rest.split_at_checked(len)?;
        rest = after;
        Some(run)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Strided;
    use crate::plan::retry::Rng;

    fn limits() -> PathLimits {
        PathLimits { slice_bytes_max: 1 << 20, ..PathLimits::default() }
    }

    fn all(ops: &[Op], want: u64, limits: &PathLimits) -> Vec<Vec<Piece>> {
        let mut budget = ops.iter().map(Op::bytes).sum::<u64>();
        let (mut cursor, mut slices) = (Cursor::default(), Vec::new());
        while budget > 0 {
            let mut out = Vec::new();
            let taken = cursor.take(ops, want, budget, 16 << 10, limits, &mut out);
            assert!(taken > 0 && taken == out.iter().map(|p| p.len).sum::<u64>());
            budget -= taken;
            slices.push(out);
        }
        slices
    }

    #[test]
    fn neighbours_on_both_sides_become_one_piece() {
        let ops = [Op::contiguous(0, 1000, 100), Op::contiguous(100, 1100, 50), Op::contiguous(150, 2000, 50)];
        let piece = |local, remote, len| Piece { local, remote, len };
        assert_eq!(all(&ops, 1 << 20, &limits()), [vec![piece(0, 1000, 150), piece(150, 2000, 50)]]);
    }

    #[test]
    fn blocks_are_not_split_where_a_slice_can_hold_them_whole() {
        let blocks: Vec<Op> = (0..10).map(|i| Op::contiguous(i * 65536, i * 131072, 32768)).collect();
        let slices = all(&blocks, 100_000, &limits());
        assert!(slices.iter().all(|slice| slice.iter().all(|p| p.len == 32768)));
        assert_eq!(slices.iter().map(Vec::len).collect::<Vec<_>>(), [3, 3, 3, 1]);
    }

    #[test]
    fn a_large_run_is_cut_on_pages_and_leaves_no_crumb() {
        let slices = all(&[Op::contiguous(0, 0, 205_000)], 100_000, &limits());
        assert_eq!(slices.iter().map(|s| s[0].len).collect::<Vec<_>>(), [98304, 106_696]);
    }

    #[test]
    fn chunks_of_registration_and_piece_limits_are_kept() {
        let tight = PathLimits { local_chunk_bytes: 1000, remote_chunk_bytes: 700, slice_pieces_max: 3, ..limits() };
        for slice in all(&[Op::contiguous(10, 20, 9000)], 1 << 20, &tight) {
            assert!(slice.len() <= 3);
            for p in slice {
                assert_eq!(p.local / 1000, (p.local + p.len - 1) / 1000);
                assert_eq!(p.remote / 700, (p.remote + p.len - 1) / 700);
            }
        }
    }

    /// Any list, any limits: the pieces are exactly the bytes asked for, in order, and `walk` credits each op its own.
    #[test]
    fn pieces_cover_each_byte_once_in_order() {
        for seed in 0..500 {
            let mut rng = Rng::new(seed);
            let ops: Vec<Op> = (0..rng.below(8))
                .map(|_| {
                    let (len, count) = (rng.below(40_000), rng.below(9) as u32);
                    let mut side =
                        || Strided { offset: rng.below(1 << 20), len, stride: len + rng.below(3) / 2 * 100, count };
                    Op { local: side(), remote: side() }
                })
                .collect();
            let limits = PathLimits {
                slice_bytes_max: 1 + rng.below(200_000),
                slice_pieces_max: rng.below(6) as u32,
                local_chunk_bytes: if rng.below(2) == 0 { u64::MAX } else { 5_000 + rng.below(9_000) },
                ..PathLimits::default()
            };
            let want = 1 + rng.below(100_000);
            let bytes_of = |local: u64, remote: u64, len: u64| (0..len).map(move |i| (local + i, remote + i));
            let expected = ops.iter().flat_map(|op| {
                (0..op.local.count).flat_map(move |r| bytes_of(op.local.run(r), op.remote.run(r), op.local.len))
            });
            let slices = all(&ops, want, &limits);
            let got = slices.iter().flatten().flat_map(|p| bytes_of(p.local, p.remote, p.len));
            assert!(expected.eq(got), "seed {seed}");

            let mut cursor = Cursor::default();
            let mut by_op = vec![0; ops.len()];
            for slice in &slices {
                let bytes = slice.iter().map(|p| p.len).sum();
                cursor.walk(&ops, bytes, |op, share| by_op[op] += share);
                cursor.take(&ops, want, u64::MAX, 16 << 10, &limits, &mut Vec::new());
            }
            if limits.slice_bytes_max > want {
                continue; // the last slice's budget differs from the one above: the crumb rule may take more
            }
            assert_eq!(by_op, ops.iter().map(Op::bytes).collect::<Vec<_>>(), "seed {seed}");
        }
    }
}
