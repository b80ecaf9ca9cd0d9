//! Pieces of a slice as work requests: neighbours on the far side become one request with a gather (or scatter) list.

use kvrail_verbs::Segment;

use crate::plan::Piece;
use crate::transport::onesided::Key;

/// One work request: a stretch of the far side, and where its bytes are on ours, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Work {
    /// Where the peer's NIC sees it.
    pub(super) remote: u64,
    pub(super) rkey: u32,
    /// How many of the segments are its own.
    pub(super) segments: usize,
}

/// Cuts a slice into work requests, at most one a piece.
/// Segments go into `segments`, requests into `works`. `None`: a piece lies in a part that there is no key for.
pub(super) fn build(
    pieces: &[Piece],
    (local, remote): (&[Key], &[Key]),
    segments_max: usize,
    segments: &mut Vec<Segment>,
    works: &mut Vec<Work>,
) -> Option<()> {
    segments.clear();
    works.clear();
    let mut end = None;
    for piece in pieces {
        let (lkey, address) = Key::of(local, piece.local, piece.len)?;
        let (rkey, far) = Key::of(remote, piece.remote, piece.len)?;
        segments.push(Segment { address, bytes: u32::try_from(piece.len).ok()?, lkey });
        match works.last_mut() {
            // A part begins a request of its own: its key is another.
            Some(last) if end == Some(piece.remote) && last.rkey == rkey && last.segments < segments_max => {
                last.segments += 1;
            }
            _ => works.push(Work { remote: far, rkey, segments: 1 }),
        }
        end = Some(piece.remote + piece.len);
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(local: u64, remote: u64, len: u64) -> Piece {
        Piece { local, remote, len }
    }

    fn cut(pieces: &[Piece], segments_max: usize) -> Option<Vec<(u64, u32, usize)>> {
        let part = |n: u64, key, shift| Key { offset: n * 1000, len: 1000, key, address: n * 1000 + shift };
        let (local, remote) = ([part(0, 1, 16), part(1, 2, 16)], [part(0, 11, 7), part(1, 12, 7)]);
        let (mut segments, mut works) = (Vec::new(), Vec::new());
        build(pieces, (&local, &remote), segments_max, &mut segments, &mut works)?;
        assert_eq!(segments.len(), pieces.len());
        for (segment, piece) in segments.iter().zip(pieces) {
            let lkey = if piece.local < 1000 { 1 } else { 2 };
            assert_eq!(*segment, Segment { address: piece.local + 16, bytes: piece.len as u32, lkey });
        }
        Some(works.into_iter().map(|work| (work.remote - 7, work.rkey, work.segments)).collect())
    }

    #[test]
    fn neighbours_on_the_far_side_are_one_request_up_to_the_devices_segments() {
        let pieces = [piece(0, 100, 10), piece(500, 110, 10), piece(300, 120, 5), piece(310, 200, 5)];
        assert_eq!(cut(&pieces, 8), Some(vec![(100, 11, 3), (200, 11, 1)]));
        assert_eq!(cut(&pieces, 2), Some(vec![(100, 11, 2), (120, 11, 1), (200, 11, 1)]));
        assert_eq!(cut(&pieces, 1).unwrap().len(), 4);
    }

    #[test]
    fn a_request_stays_in_one_part_and_a_missing_key_is_noticed() {
        assert_eq!(cut(&[piece(0, 990, 10), piece(10, 1000, 10)], 8), Some(vec![(990, 11, 1), (1000, 12, 1)]));
        assert_eq!(cut(&[piece(2000, 0, 10)], 8), None);
        assert_eq!(cut(&[piece(0, 2000, 10)], 8), None);
        assert_eq!(cut(&[piece(0, 995, 10)], 8), None, "one piece in two parts");
        assert_eq!(cut(&[piece(0, u64::MAX, 10)], 8), None);
        assert_eq!(cut(&[piece(0, 10, u64::from(u32::MAX))], 8), None);
    }
}
