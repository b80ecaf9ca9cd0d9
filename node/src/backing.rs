//! The transfer engine's region as the memory of the block pool: allocated and registered once, no copy in between.
//!
//! The one place of this crate with `unsafe`. [`RegionBacking`] owns a clone of the region, so the bytes stay mapped and in
//! place for as long as any [`KvMemory`](kvrail_engine::KvMemory) over it lives. Who may touch which block is the block
//! cache's state machine and the transfer engine's leases, not this type.
#![allow(unsafe_code)]

use kvrail_engine::Backing;
use kvrail_transfer::Region;

/// A transfer region that the executor writes.
#[derive(Debug)]
pub struct RegionBacking(Region);

impl RegionBacking {
    /// Wraps a region.
    ///
    /// # Panics
    /// If it is not aligned as executors need: decided at start-up by the transfer engine, which maps whole pages.
    #[must_use]
    pub fn new(region: Region) -> Self {
        assert!((region.as_ptr() as usize).is_multiple_of(64), "a region is not aligned to a cache line");
        Self(region)
    }
}

// SAFETY: a `Region` is a live, writable mapping of `len()` bytes that neither moves nor goes while a clone of it exists
// (the transfer engine's contract), and `self` holds one; the alignment was checked in `new`.
unsafe impl Backing for RegionBacking {
    fn base(&self) -> *mut u8 {
        self.0.as_ptr()
    }
    fn len(&self) -> usize {
        self.0.len()
    }
}
