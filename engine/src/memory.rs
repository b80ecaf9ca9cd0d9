//! The bytes of the block pool: one aligned range, block `id` at `id × block_bytes`.
//!
//! The bytes are shared with other processes and with the transfer engine, so no `&[u8]` over them is ever held across
//! a hand-off: whoever owns a block (by the pool's state machine) reads and writes it through raw pointers.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::sync::Arc;

use kvrail_kv::KvFormat;

/// Index of a block in its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(pub u32);

/// Memory that a pool lies in. The transfer engine's regions implement it, so that the pool is registered once.
///
/// # Safety
/// `base()` must point to `len()` readable and writable bytes, 64-byte aligned, that stay valid and in place as long as
/// `self` lives.
pub unsafe trait Backing: Send + Sync {
    /// First byte.
    fn base(&self) -> *mut u8;
    /// Length in bytes.
    fn len(&self) -> usize;
    /// Whether there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Plain zeroed heap memory, for tests and for runs that ship nothing.
pub struct HeapBacking {
    base: *mut u8,
    layout: Layout,
}

impl HeapBacking {
    /// Allocates `len` bytes on a page boundary.
    ///
    /// # Panics
    /// If `len` is zero or no allocation of that size can exist.
    #[must_use]
    pub fn new(len: usize) -> Self {
        assert!(len > 0, "an empty pool has no memory");
        let layout = Layout::from_size_align(len, 4096).expect("size of a pool");
        // SAFETY: the layout has a non-zero size.
        let base = unsafe { alloc_zeroed(layout) };
        if base.is_null() {
            handle_alloc_error(layout);
        }
        Self { base, layout }
    }
}

impl Drop for HeapBacking {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, freed once.
        unsafe { dealloc(self.base, self.layout) }
    }
}

// SAFETY: the allocation is owned, aligned to a page and lives as long as `self`.
unsafe impl Backing for HeapBacking {
    fn base(&self) -> *mut u8 {
        self.base
    }
    fn len(&self) -> usize {
        self.layout.size()
    }
}

// SAFETY: only an address and a layout; what is behind it is handed out under the pool's ownership rules.
unsafe impl Send for HeapBacking {}
// SAFETY: as above.
unsafe impl Sync for HeapBacking {}

/// A pool's memory with the shape of its blocks.
#[derive(Clone)]
pub struct KvMemory {
    format: KvFormat,
    blocks: u32,
    backing: Arc<dyn Backing>,
}

impl KvMemory {
    /// Lays `blocks` blocks of `format` over `backing`.
    ///
    /// # Panics
    /// If the backing is too small or the format invalid: both are decided at start-up.
    #[must_use]
    pub fn new(format: KvFormat, blocks: u32, backing: Arc<dyn Backing>) -> Self {
        format.validate().expect("a valid KV format");
        let needed = format.block_bytes() * u64::from(blocks);
        assert!(backing.len() as u64 >= needed, "{blocks} blocks need {needed} bytes, {} are there", backing.len());
        Self { format, blocks, backing }
    }

    /// A pool on the heap.
    #[must_use]
    pub fn on_heap(format: KvFormat, blocks: u32) -> Self {
        let len = usize::try_from(format.block_bytes() * u64::from(blocks)).expect("fits the address space");
        Self::new(format, blocks, Arc::new(HeapBacking::new(len)))
    }

    /// Shape of the blocks.
    #[must_use]
    pub fn format(&self) -> &KvFormat {
        &self.format
    }

    /// Number of blocks.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Byte offset of a block in the backing; what a transfer names.
    #[must_use]
    pub fn block_offset(&self, block: BlockId) -> u64 {
        u64::from(block.0) * self.format.block_bytes()
    }

    /// First byte of a block.
    ///
    /// # Panics
    /// If the block is outside the pool.
    #[must_use]
    pub fn block_ptr(&self, block: BlockId) -> *mut u8 {
        assert!(block.0 < self.blocks, "block {} is outside the pool of {}", block.0, self.blocks);
        self.backing.base().wrapping_add(self.block_offset(block) as usize)
    }

    /// Copies `out.len()` bytes out of a block, from `offset`. The caller owns the block or holds it shared.
    ///
    /// # Panics
    /// If the range is outside the block.
    pub fn read(&self, block: BlockId, offset: u64, out: &mut [u8]) {
        let end = offset + out.len() as u64;
        assert!(end <= self.format.block_bytes(), "read past the end of a block");
        // SAFETY: in bounds by the checks above; `out` is ours, so the ranges do not overlap.
        unsafe {
            let from = self.block_ptr(block).add(offset as usize);
            std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len());
        }
    }

    /// Copies `bytes` into a block at `offset`. The caller owns the block.
    ///
    /// # Panics
    /// If the range is outside the block.
    pub fn write(&self, block: BlockId, offset: u64, bytes: &[u8]) {
        let end = offset + bytes.len() as u64;
        assert!(end <= self.format.block_bytes(), "write past the end of a block");
        // SAFETY: in bounds by the checks above; `bytes` is borrowed, so the ranges do not overlap.
        unsafe {
            let to = self.block_ptr(block).add(offset as usize);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
    }
}

impl std::fmt::Debug for KvMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KvMemory({} blocks of {})", self.blocks, self.format)
    }
}
