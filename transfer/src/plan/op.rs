//! Descriptors: what a caller asks to have moved. Strided ones stay strided; nothing here allocates.

use std::ops::Range;

/// `count` runs of `len` bytes, `stride` bytes from start to start, the first at `offset` of its region.
///
/// `count` 1 is a plain range and ignores `stride`.
///
/// ```
/// use kvrail_transfer::plan::Strided;
/// let layer = Strided { offset: 4096, len: 1024, stride: 8192, count: 3 };
/// assert_eq!(layer.bytes(), Some(3072));
/// assert_eq!(layer.extent(), Some(4096..4096 + 2 * 8192 + 1024));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Strided {
    /// Bytes from the region's start to the first run.
    pub offset: u64,
    /// Bytes of one run.
    pub len: u64,
    /// Bytes from the start of one run to the start of the next.
    pub stride: u64,
    /// Number of runs.
    pub count: u32,
}

impl Strided {
    /// One contiguous range.
    #[must_use]
    pub const fn contiguous(offset: u64, len: u64) -> Self {
        Self { offset, len, stride: len, count: 1 }
    }

    /// Payload bytes; `None` where the number does not fit.
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        self.len.checked_mul(u64::from(self.count))
    }

    /// From the first byte touched to the last, gaps included; `None` on overflow. Empty where there are no bytes.
    #[must_use]
    pub fn extent(&self) -> Option<Range<u64>> {
        if self.count == 0 || self.len == 0 {
            return Some(self.offset..self.offset);
        }
        let last = self.stride.checked_mul(u64::from(self.count - 1))?;
        let end = self.offset.checked_add(last)?.checked_add(self.len)?;
        Some(self.offset..end)
    }

    /// Offset of run `index`. Only for descriptors that [`Op::check`] passed.
    pub(crate) fn run(&self, index: u32) -> u64 {
        self.offset + self.stride * u64::from(index)
    }

    /// The runs touch: all of it is one range.
    fn is_dense(&self) -> bool {
        self.count <= 1 || self.stride == self.len
    }
}

/// Moves `local` to `remote` (write) or back (read): the same run length and count on both sides, offset and stride as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Op {
    /// In the caller's region.
    pub local: Strided,
    /// In the lease owner's region.
    pub remote: Strided,
}

/// Why a descriptor cannot be planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpError {
    /// The two sides differ in run length or count.
    #[error("local and remote differ in run length or count")]
    Unlike,
    /// Runs of one side overlap: which bytes land last would depend on the order.
    #[error("stride {stride} is less than run length {len}")]
    Overlap {
        /// Bytes from run to run.
        stride: u64,
        /// Bytes of a run.
        len: u64,
    },
    /// An end lies past the region, or past what 64 bits count.
    #[error("range ends past its region of {region_bytes} bytes")]
    PastEnd {
        /// Length of the region.
        region_bytes: u64,
    },
}

impl Op {
    /// One contiguous range to another.
    #[must_use]
    pub const fn contiguous(local: u64, remote: u64, len: u64) -> Self {
        Self { local: Strided::contiguous(local, len), remote: Strided::contiguous(remote, len) }
    }

    /// Payload bytes. Only for descriptors that [`Op::check`] passed.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.local.len * u64::from(self.local.count)
    }

    /// Checks shape and bounds against both regions' lengths in bytes.
    ///
    /// # Errors
    /// Sides unlike, overlapping runs, or an end past its region.
    pub fn check(&self, local_bytes: u64, remote_bytes: u64) -> Result<(), OpError> {
        if self.local.len != self.remote.len || self.local.count != self.remote.count {
            return Err(OpError::Unlike);
        }
        for (side, region_bytes) in [(&self.local, local_bytes), (&self.remote, remote_bytes)] {
            if side.count > 1 && side.stride < side.len {
                return Err(OpError::Overlap { stride: side.stride, len: side.len });
            }
            let past = OpError::PastEnd { region_bytes };
            side.bytes().ok_or(past)?;
            if side.extent().ok_or(past)?.end > region_bytes {
                return Err(past);
            }
        }
        Ok(())
    }

    /// The same bytes in the fewest runs: a descriptor that is dense on both sides becomes one range.
    /// Only for descriptors that [`Op::check`] passed.
    #[must_use]
    pub fn normalised(self) -> Self {
        if self.local.count > 1 && self.local.is_dense() && self.remote.is_dense() {
            let bytes = self.bytes();
            return Self::contiguous(self.local.offset, self.remote.offset, bytes);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strided(offset: u64, len: u64, stride: u64, count: u32) -> Strided {
        Strided { offset, len, stride, count }
    }

    #[test]
    fn bounds_are_checked_to_the_last_byte() {
        let op = Op { local: strided(0, 10, 20, 5), remote: strided(10, 10, 10, 5) };
        assert_eq!(op.check(90, 60), Ok(()));
        assert_eq!(op.check(89, 60), Err(OpError::PastEnd { region_bytes: 89 }));
        assert_eq!(op.check(90, 59), Err(OpError::PastEnd { region_bytes: 59 }));
    }

    #[test]
    fn numbers_that_do_not_fit_are_refused_not_wrapped() {
        for side in [
            strided(u64::MAX, 2, 2, 1),
            strided(1, u64::MAX, u64::MAX, 1),
            strided(0, 1 << 40, 1 << 40, u32::MAX),
            strided(0, 1, u64::MAX, 3),
        ] {
            let other = Strided { offset: 0, ..side };
            assert!(matches!(Op { local: side, remote: other }.check(1 << 50, 1 << 50), Err(OpError::PastEnd { .. })));
        }
    }

    #[test]
    fn unlike_sides_and_overlap_are_refused_and_nothing_is_fine() {
        let a = strided(0, 8, 8, 4);
        assert_eq!(Op { local: a, remote: strided(0, 8, 8, 5) }.check(100, 100), Err(OpError::Unlike));
        assert_eq!(Op { local: a, remote: strided(0, 4, 8, 4) }.check(100, 100), Err(OpError::Unlike));
        let overlap = Op { local: a, remote: strided(0, 8, 7, 4) };
        assert_eq!(overlap.check(100, 100), Err(OpError::Overlap { stride: 7, len: 8 }));
        assert_eq!(Op { local: strided(100, 0, 0, 9), remote: strided(100, 0, 0, 9) }.check(100, 100), Ok(()));
    }

    #[test]
    fn dense_on_both_sides_becomes_one_range() {
        let op = Op { local: strided(64, 16, 16, 4), remote: strided(0, 16, 16, 4) };
        assert_eq!(op.normalised(), Op::contiguous(64, 0, 64));
        let half = Op { local: strided(64, 16, 32, 4), remote: strided(0, 16, 16, 4) };
        assert_eq!(half.normalised(), half);
    }
}
