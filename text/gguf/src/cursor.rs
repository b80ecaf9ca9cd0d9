//! Moves through untrusted bytes; the only code that turns their lengths into slices.

use crate::GgufError;

/// A position in the file's bytes. Each read checks what is left first and names `field` when it is too little.
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at: at.min(bytes.len()) }
    }

    pub(crate) fn offset(&self) -> u64 {
        self.at as u64
    }

    fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// Refuses a count of items that could not lie in what is left, before memory is reserved for them.
    pub(crate) fn expect_items(&self, count: u64, bytes_each: u64, field: &str) -> Result<usize, GgufError> {
        let needed = count.saturating_mul(bytes_each);
        if needed > self.left() as u64 {
            return Err(self.truncated(field, needed));
        }
        // Fits: it is at most the number of bytes that are in memory.
        Ok(count as usize)
    }

    pub(crate) fn take(&mut self, len: u64, field: &str) -> Result<&'a [u8], GgufError> {
        let len = self.expect_items(len, 1, field)?;
        let slice = &self.bytes[self.at..self.at + len];
        self.at += len;
        Ok(slice)
    }

    pub(crate) fn array<const N: usize>(&mut self, field: &str) -> Result<[u8; N], GgufError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64, field)?);
        Ok(out)
    }

    pub(crate) fn u32(&mut self, field: &str) -> Result<u32, GgufError> {
        self.array(field).map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self, field: &str) -> Result<u64, GgufError> {
        self.array(field).map(u64::from_le_bytes)
    }

    /// A string: its length as `u64`, then UTF-8.
    pub(crate) fn string(&mut self, field: &str) -> Result<&'a str, GgufError> {
        let len = self.u64(field)?;
        let start = self.offset();
        let bytes = self.take(len, field)?;
        std::str::from_utf8(bytes).map_err(|e| GgufError::Invalid {
            field: field.to_owned(),
            offset: start + e.valid_up_to() as u64,
            reason: "not UTF-8".to_owned(),
        })
    }

    pub(crate) fn invalid(&self, field: &str, offset: u64, reason: impl Into<String>) -> GgufError {
        GgufError::Invalid { field: field.to_owned(), offset, reason: reason.into() }
    }

    fn truncated(&self, field: &str, needed: u64) -> GgufError {
        GgufError::Truncated { field: field.to_owned(), offset: self.offset(), needed, left: self.left() as u64 }
    }
}
