//! Metadata values.

use crate::GgufError;
use crate::cursor::Cursor;

/// Arrays in arrays are legal and unused; deeper than this is an attack on the stack.
const NESTING_MAX: u32 = 4;

/// One metadata value.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // the variants are GGUF's types by name
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    Str(String),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// An array of values of one type.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    Str(Vec<String>),
    Array(Vec<Array>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

impl Value {
    /// Name of the type, as errors give it.
    #[must_use]
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::U8(_) => "u8",
            Self::I8(_) => "i8",
            Self::U16(_) => "u16",
            Self::I16(_) => "i16",
            Self::U32(_) => "u32",
            Self::I32(_) => "i32",
            Self::F32(_) => "f32",
            Self::Bool(_) => "bool",
            Self::Str(_) => "string",
            Self::Array(array) => array.type_name(),
            Self::U64(_) => "u64",
            Self::I64(_) => "i64",
            Self::F64(_) => "f64",
        }
    }

    /// The value as an unsigned number, from any integer type that holds one.
    #[must_use]
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Self::U8(v) => Some(v.into()),
            Self::U16(v) => Some(v.into()),
            Self::U32(v) => Some(v.into()),
            Self::U64(v) => Some(v),
            Self::I8(v) => v.try_into().ok(),
            Self::I16(v) => v.try_into().ok(),
            Self::I32(v) => v.try_into().ok(),
            Self::I64(v) => v.try_into().ok(),
            _ => None,
        }
    }

    pub(crate) fn read(cursor: &mut Cursor<'_>, field: &str) -> Result<Self, GgufError> {
        let at = cursor.offset();
        Ok(match cursor.u32(field)? {
            0 => Self::U8(u8::from_le_bytes(cursor.array(field)?)),
            1 => Self::I8(i8::from_le_bytes(cursor.array(field)?)),
            2 => Self::U16(u16::from_le_bytes(cursor.array(field)?)),
            3 => Self::I16(i16::from_le_bytes(cursor.array(field)?)),
            4 => Self::U32(cursor.u32(field)?),
            5 => Self::I32(i32::from_le_bytes(cursor.array(field)?)),
            6 => Self::F32(f32::from_le_bytes(cursor.array(field)?)),
            7 => Self::Bool(read_bool(cursor, field)?),
            8 => Self::Str(cursor.string(field)?.to_owned()),
            9 => Self::Array(Array::read(cursor, field, 0)?),
            10 => Self::U64(cursor.u64(field)?),
            11 => Self::I64(i64::from_le_bytes(cursor.array(field)?)),
            12 => Self::F64(f64::from_le_bytes(cursor.array(field)?)),
            other => return Err(cursor.invalid(field, at, format!("value type {other} is unknown (0 to 12 are)"))),
        })
    }

    pub(crate) fn type_id(&self) -> u32 {
        match self {
            Self::U8(_) => 0,
            Self::I8(_) => 1,
            Self::U16(_) => 2,
            Self::I16(_) => 3,
            Self::U32(_) => 4,
            Self::I32(_) => 5,
            Self::F32(_) => 6,
            Self::Bool(_) => 7,
            Self::Str(_) => 8,
            Self::Array(_) => 9,
            Self::U64(_) => 10,
            Self::I64(_) => 11,
            Self::F64(_) => 12,
        }
    }
}

impl Array {
    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::U8(v) => v.len(),
            Self::I8(v) => v.len(),
            Self::U16(v) => v.len(),
            Self::I16(v) => v.len(),
            Self::U32(v) => v.len(),
            Self::I32(v) => v.len(),
            Self::F32(v) => v.len(),
            Self::Bool(v) => v.len(),
            Self::Str(v) => v.len(),
            Self::Array(v) => v.len(),
            Self::U64(v) => v.len(),
            Self::I64(v) => v.len(),
            Self::F64(v) => v.len(),
        }
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn type_name(&self) -> &'static str {
        match self {
            Self::U8(_) => "[u8]",
            Self::I8(_) => "[i8]",
            Self::U16(_) => "[u16]",
            Self::I16(_) => "[i16]",
            Self::U32(_) => "[u32]",
            Self::I32(_) => "[i32]",
            Self::F32(_) => "[f32]",
            Self::Bool(_) => "[bool]",
            Self::Str(_) => "[string]",
            Self::Array(_) => "[array]",
            Self::U64(_) => "[u64]",
            Self::I64(_) => "[i64]",
            Self::F64(_) => "[f64]",
        }
    }

    fn read(cursor: &mut Cursor<'_>, field: &str, depth: u32) -> Result<Self, GgufError> {
        let at = cursor.offset();
        let element = cursor.u32(field)?;
        let count = cursor.u64(field)?;
        Ok(match element {
            0 => Self::U8(cursor.take(count, field)?.to_vec()),
            1 => Self::I8(numbers(cursor, count, field, i8::from_le_bytes)?),
            2 => Self::U16(numbers(cursor, count, field, u16::from_le_bytes)?),
            3 => Self::I16(numbers(cursor, count, field, i16::from_le_bytes)?),
            4 => Self::U32(numbers(cursor, count, field, u32::from_le_bytes)?),
            5 => Self::I32(numbers(cursor, count, field, i32::from_le_bytes)?),
            6 => Self::F32(numbers(cursor, count, field, f32::from_le_bytes)?),
            // A string is at least its length; an array at least its type and count.
            7 => Self::Bool(items(cursor, count, 1, field, read_bool)?),
            8 => Self::Str(items(cursor, count, 8, field, |c, f| c.string(f).map(str::to_owned))?),
            9 if depth < NESTING_MAX => {
                Self::Array(items(cursor, count, 12, field, |c, f| Self::read(c, f, depth + 1))?)
            }
            9 => return Err(cursor.invalid(field, at, format!("arrays nested deeper than {NESTING_MAX}"))),
            10 => Self::U64(numbers(cursor, count, field, u64::from_le_bytes)?),
            11 => Self::I64(numbers(cursor, count, field, i64::from_le_bytes)?),
            12 => Self::F64(numbers(cursor, count, field, f64::from_le_bytes)?),
            other => return Err(cursor.invalid(field, at, format!("element type {other} is unknown (0 to 12 are)"))),
        })
    }

    pub(crate) fn type_id(&self) -> u32 {
        match self {
            Self::U8(_) => 0,
            Self::I8(_) => 1,
            Self::U16(_) => 2,
            Self::I16(_) => 3,
            Self::U32(_) => 4,
            Self::I32(_) => 5,
            Self::F32(_) => 6,
            Self::Bool(_) => 7,
            Self::Str(_) => 8,
            Self::Array(_) => 9,
            Self::U64(_) => 10,
            Self::I64(_) => 11,
            Self::F64(_) => 12,
        }
    }
}

fn read_bool(cursor: &mut Cursor<'_>, field: &str) -> Result<bool, GgufError> {
    let at = cursor.offset();
    match cursor.array(field)? {
        [0] => Ok(false),
        [1] => Ok(true),
        [other] => Err(cursor.invalid(field, at, format!("a bool is {other}, not 0 or 1"))),
    }
}

fn numbers<T, const N: usize>(
    cursor: &mut Cursor<'_>,
    count: u64,
    field: &str,
    from: fn([u8; N]) -> T,
) -> Result<Vec<T>, GgufError> {
    let count = cursor.expect_items(count, N as u64, field)?;
    let (chunks, _) = cursor.take((count * N) as u64, field)?.as_chunks::<N>();
    Ok(chunks.iter().copied().map(from).collect())
}

fn items<'a, T>(
    cursor: &mut Cursor<'a>,
    count: u64,
    bytes_each_min: u64,
    field: &str,
    mut read: impl FnMut(&mut Cursor<'a>, &str) -> Result<T, GgufError>,
) -> Result<Vec<T>, GgufError> {
    let count = cursor.expect_items(count, bytes_each_min, field)?;
    let mut out = Vec::with_capacity(count);
    for _ in 0..count {
        out.push(read(cursor, field)?);
    }
    Ok(out)
}

macro_rules! from {
    ($($rust:ty => $variant:ident),*) => {$(
        impl From<$rust> for Value {
            fn from(value: $rust) -> Self {
                Self::$variant(value.into())
            }
        }
        impl From<Vec<$rust>> for Value {
            fn from(values: Vec<$rust>) -> Self {
                Self::Array(Array::$variant(values.into_iter().map(Into::into).collect()))
            }
        }
    )*};
}
from!(u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, f32 => F32, bool => Bool, &str => Str,
      String => Str, u64 => U64, i64 => I64, f64 => F64);
