//! Element types and the tensor table.

use crate::GgufError;
use crate::cursor::Cursor;

/// Most dimensions of a tensor.
const DIMS_MAX: u32 = 4;

/// How a tensor's elements are stored: in blocks of some elements that share scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, non_camel_case_types)] // ggml's types by name
pub enum TensorType {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
}

impl TensorType {
    /// All types, with ggml's number of each, elements a block and bytes a block.
    const TABLE: [(Self, u32, u64, u64); 13] = [
        (Self::F32, 0, 1, 4),
        (Self::F16, 1, 1, 2),
        (Self::Q4_0, 2, 32, 18),
        (Self::Q4_1, 3, 32, 20),
        (Self::Q5_0, 6, 32, 22),
        (Self::Q5_1, 7, 32, 24),
        (Self::Q8_0, 8, 32, 34),
        (Self::Q2_K, 10, 256, 84),
        (Self::Q3_K, 11, 256, 110),
        (Self::Q4_K, 12, 256, 144),
        (Self::Q5_K, 13, 256, 176),
        (Self::Q6_K, 14, 256, 210),
        (Self::BF16, 30, 1, 2),
    ];

    fn row(self) -> (Self, u32, u64, u64) {
        // Every variant is in the table: a unit test walks them.
        Self::TABLE.into_iter().find(|row| row.0 == self).unwrap_or(Self::TABLE[0])
    }

    /// The type with ggml's number `id`.
    #[must_use]
    pub fn from_id(id: u32) -> Option<Self> {
        Self::TABLE.iter().find(|row| row.1 == id).map(|row| row.0)
    }

    /// ggml's number of the type.
    #[must_use]
    pub fn id(self) -> u32 {
        self.row().1
    }

    /// Elements of one block.
    #[must_use]
    pub fn block_elements(self) -> u64 {
        self.row().2
    }

    /// Bytes of one block.
    #[must_use]
    pub fn block_bytes(self) -> u64 {
        self.row().3
    }
}

/// One row of the tensor table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// Elements in each dimension, the contiguous one first.
    pub dims: Vec<u64>,
    /// How elements are stored.
    pub dtype: TensorType,
    /// Byte offset from the start of the file's data section.
    pub offset: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// Where in the file its row of the table begins, for errors.
    pub(crate) at: u64,
}

impl TensorInfo {
    /// Elements over all dimensions.
    #[must_use]
    pub fn elements(&self) -> u64 {
        self.dims.iter().product() // checked when it was read
    }

    pub(crate) fn read(cursor: &mut Cursor<'_>, index: u64) -> Result<Self, GgufError> {
        let at = cursor.offset();
        let name = cursor.string(&format!("tensor {index}: name"))?.to_owned();
        let field = |part: &str| format!("tensor `{}`: {part}", shortened(&name));
        let dims_at = cursor.offset();
        let dims_field = field("dimensions");
        let count = cursor.u32(&dims_field)?;
        if count == 0 || count > DIMS_MAX {
            return Err(cursor.invalid(&dims_field, dims_at, format!("{count} of them; 1 to {DIMS_MAX} are legal")));
        }
        let mut dims = Vec::with_capacity(count as usize);
        for _ in 0..count {
            dims.push(cursor.u64(&dims_field)?);
        }
        let type_at = cursor.offset();
        let type_id = cursor.u32(&field("type"))?;
        let Some(dtype) = TensorType::from_id(type_id) else {
            return Err(cursor.invalid(&field("type"), type_at, format!("{type_id} is not a type known here")));
        };
        let elements = dims.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim)).filter(|&n| n > 0);
        let Some(elements) = elements else {
            return Err(cursor.invalid(&dims_field, dims_at, format!("{dims:?} is empty or overflows")));
        };
        if !dims[0].is_multiple_of(dtype.block_elements()) {
            let reason = format!("rows of {} are not whole blocks of {} ({dtype:?})", dims[0], dtype.block_elements());
            return Err(cursor.invalid(&dims_field, dims_at, reason));
        }
        let Some(bytes) = (elements / dtype.block_elements()).checked_mul(dtype.block_bytes()) else {
            return Err(cursor.invalid(&dims_field, dims_at, format!("{dims:?} overflows")));
        };
        let offset = cursor.u64(&field("offset"))?;
        Ok(Self { name, dims, dtype, offset, bytes, at })
    }
}

/// Names are quoted in errors; a hostile one may be as long as the file.
pub(crate) fn shortened(name: &str) -> &str {
    match name.char_indices().nth(80) {
        Some((end, _)) => &name[..end],
        None => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_sizes_are_ggmls() {
        use TensorType::*;
        for dtype in [F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K] {
            assert_eq!(TensorType::from_id(dtype.id()), Some(dtype));
        }
        // 4.5, 5, 8.5, 4.5 and 6.5625 bits a weight.
        let bits = |t: TensorType| t.block_bytes() as f64 * 8.0 / t.block_elements() as f64;
        assert_eq!([Q4_0, Q4_1, Q8_0, Q4_K, Q6_K].map(bits), [4.5, 5.0, 8.5, 4.5, 6.5625]);
        assert_eq!(TensorType::from_id(4), None);
    }
}
