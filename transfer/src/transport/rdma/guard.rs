//! Which stretches of a region a guarded lease's keys open, pure.
//!
//! A guard is a registration of its own, whose key the NIC checks request by request. Registering costs, so there are no more of them than
//! [`GUARDS_MAX`] a lease; where a lease has more ranges, the smallest gaps between them are open as well.

use crate::session::lease::ByteRange;

/// Registrations of a lease, at most, before they are cut where parts of a region end.
pub(super) const GUARDS_MAX: usize = 64;

/// Stretches that hold all of the `ranges` (sorted, merged): at most `max` of them, cut at multiples of `part`.
pub(super) fn stretches(ranges: &[ByteRange], max: usize, part: u64) -> Vec<ByteRange> {
    // Gaps by the range before them; the largest stay closed.
    let gap = |n: &usize| ranges[n + 1].offset - ranges[*n].offset - ranges[*n].len;
    let mut gaps: Vec<usize> = (0..ranges.len().saturating_sub(1)).collect();
    gaps.sort_by_key(|n| std::cmp::Reverse(gap(n)));
    gaps.truncate(max.saturating_sub(1));
    gaps.sort_unstable();
    let ends = gaps.iter().map(|n| n + 1).chain([ranges.len()]);
    let mut first = 0;
    let mut stretches = Vec::new();
    for end in ends {
        let Some(run) = ranges.get(first..end).filter(|run| !run.is_empty()) else { continue };
        first = end;
        let (mut offset, until) = (run[0].offset, run[run.len() - 1].offset + run[run.len() - 1].len);
        while offset < until {
            let cut = until.min((offset / part + 1) * part);
            stretches.push(ByteRange { offset, len: cut - offset });
            offset = cut;
        }
    }
    stretches
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Rng;
    use crate::session::lease::{covers, normalise};

    fn ranges(of: &[(u64, u64)]) -> Vec<ByteRange> {
        of.iter().map(|(offset, len)| ByteRange { offset: *offset, len: *len }).collect()
    }

    #[test]
    fn few_ranges_are_guarded_each_and_cut_where_parts_end() {
        assert_eq!(stretches(&ranges(&[(10, 5), (20, 5)]), 64, 1000), ranges(&[(10, 5), (20, 5)]));
        assert_eq!(
            stretches(&ranges(&[(990, 2020)]), 64, 1000),
            ranges(&[(990, 10), (1000, 1000), (2000, 1000), (3000, 10)])
        );
        assert!(stretches(&[], 64, 1000).is_empty());
    }

    #[test]
    fn many_ranges_leave_the_largest_gaps_closed() {
        let many = ranges(&[(0, 1), (2, 1), (100, 1), (103, 1), (200, 1)]);
        assert_eq!(stretches(&many, 3, 1000), ranges(&[(0, 3), (100, 4), (200, 1)]));
        assert_eq!(stretches(&many, 1, 1000), ranges(&[(0, 201)]));
    }

    #[test]
    fn whatever_the_ranges_all_of_them_are_held_and_nothing_outside_their_span() {
        let mut rng = Rng::new(7);
        for _ in 0..2000 {
            let part = 1 + rng.below(500);
            let count = 1 + rng.below(40);
            let some = (0..count).map(|_| ByteRange { offset: rng.below(4000), len: 1 + rng.below(60) }).collect();
            let merged = normalise(some, 5000).unwrap();
            let max = 1 + rng.below(8) as usize;
            let guards = stretches(&merged, max, part);
            assert!(guards.iter().all(|g| g.offset / part == (g.offset + g.len - 1) / part), "in one part");
            assert!(guards.is_sorted_by_key(|g| g.offset));
            let joined = normalise(guards.clone(), 5000).unwrap();
            assert!(joined.len() <= max);
            assert!(merged.iter().all(|range| covers(&joined, range.offset, range.len)));
            let (first, last) = (merged[0].offset, merged[merged.len() - 1]);
            assert!(joined[0].offset == first && joined[joined.len() - 1].end() == last.end());
        }
    }
}
