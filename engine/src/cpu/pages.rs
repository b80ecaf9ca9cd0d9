//! One KV head of one layer of one sequence, as positions.

use kvrail_kv::DType;

use crate::memory::{BlockId, KvMemory};

/// Reads and writes rows by position, through the sequence's block table.
#[derive(Clone, Copy)]
pub(super) struct Pages<'a> {
    pub kv: &'a KvMemory,
    pub table: &'a [BlockId],
    pub layer: u32,
    pub head: u32,
}

impl Pages<'_> {
    pub(super) fn head_dim(&self) -> usize {
        self.kv.format().head_dim as usize
    }

    pub(super) fn dtype(&self) -> DType {
        self.kv.format().dtype
    }

    /// Reads the rows of keys or values of consecutive positions from `first`; `out` is a whole number of rows.
    pub(super) fn read(&self, value: bool, first: usize, out: &mut [u8]) {
        let format = self.kv.format();
        let (row, block_tokens) = (format.row_bytes() as usize, format.block_tokens as usize);
        let (mut position, mut out) = (first, out);
        while !out.is_empty() {
            let token = position % block_tokens;
            let rows = (block_tokens - token).min(out.len() / row);
            let (here, rest) = out.split_at_mut(rows * row);
            let offset = format.row_offset(self.layer, value, self.head, token as u32);
            self.kv.read(self.table[position / block_tokens], offset, here);
            position += rows;
            out = rest;
        }
    }

    /// Writes the row of one position.
    pub(super) fn write(&self, value: bool, position: usize, row: &[u8]) {
        let format = self.kv.format();
        let (block, token) = (position / format.block_tokens as usize, position % format.block_tokens as usize);
        self.kv.write(self.table[block], format.row_offset(self.layer, value, self.head, token as u32), row);
    }
}
