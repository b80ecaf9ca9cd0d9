//! The reader's face: open, ask for metadata, ask for tensors.

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;

use crate::cursor::Cursor;
use crate::tensor::shortened;
use crate::{Array, GgufError, TensorInfo, Value};

const MAGIC: [u8; 4] = *b"GGUF";
/// Where tensors are aligned when `general.alignment` does not say.
const ALIGNMENT_DEFAULT: u64 = 32;
const KEY_BYTES_MAX: usize = 65_535;

/// A GGUF file whose structure has been checked.
pub struct Gguf {
    bytes: Bytes,
    version: u32,
    metadata: Vec<(String, Value)>,
    keys: HashMap<String, usize>,
    tensors: Vec<TensorInfo>,
    names: HashMap<String, usize>,
    data_start: u64,
}

enum Bytes {
    Owned(Vec<u8>),
    Mapped(memmap2::Mmap),
}

impl std::ops::Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Self::Owned(bytes) => bytes,
            Self::Mapped(map) => map,
        }
    }
}

impl Gguf {
    /// Maps and checks a file. Its bytes are not read yet, but for metadata and the tensor table.
    ///
    /// The file must not be truncated while it is open: the system kills a process that touches pages which are gone.
    ///
    /// # Errors
    /// [`GgufError::Io`] if it cannot be opened; others name the first field that is wrong.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        let io = |source| GgufError::Io { path: path.to_owned(), source };
        let file = File::open(path).map_err(io)?;
        if file.metadata().map_err(io)?.len() == 0 {
            return Err(GgufError::NotGguf { found: Vec::new() }); // an empty file cannot be mapped everywhere
        }
        // SAFETY: the map is private and read-only. Another process that rewrites the file under us can only change
        // bytes: structure is parsed once, and tensor data is plain numbers, valid whatever they are.
        #[allow(unsafe_code)]
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(io)?;
        Self::parse(Bytes::Mapped(map))
    }

    /// Checks a file that is in memory.
    ///
    /// # Errors
    /// Names the first field that is wrong.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, GgufError> {
        Self::parse(Bytes::Owned(bytes))
    }

    fn parse(bytes: Bytes) -> Result<Self, GgufError> {
        if !bytes.starts_with(&MAGIC) {
            return Err(GgufError::NotGguf { found: bytes[..bytes.len().min(4)].to_vec() });
        }
        let mut cursor = Cursor::new(&bytes, MAGIC.len());
        let version = cursor.u32("version")?;
        if !(2..=3).contains(&version) {
            return Err(GgufError::Version { found: version });
        }
        let tensor_count = cursor.u64("tensor_count")?;
        let metadata_count = cursor.u64("metadata_count")?;
        let (metadata, keys) = read_metadata(&mut cursor, metadata_count)?;
        let alignment = alignment(&metadata, &keys)?;
        let tensors = read_tensors(&mut cursor, tensor_count)?;
        let mut names = HashMap::with_capacity(tensors.len());
        for (index, tensor) in tensors.iter().enumerate() {
            if names.insert(tensor.name.clone(), index).is_some() {
                return Err(cursor.invalid(&field_of(tensor), tensor.at, "a tensor of that name came before"));
            }
        }
        let data_start = cursor.offset().next_multiple_of(alignment);
        check_placement(&tensors, alignment, data_start, bytes.len() as u64)?;
        Ok(Self { version, metadata, keys, tensors, names, data_start, bytes })
    }

    /// Version of the container: 2 or 3.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Size of the file in bytes.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// `blake3:` and the hash of the whole file in hexadecimal. Reads every byte: two models that differ in one weight
    /// have different digests.
    #[must_use]
    pub fn digest(&self) -> String {
        format!("blake3:{}", blake3::hash(&self.bytes).to_hex())
    }

    /// All metadata, in the file's order.
    pub fn metadata(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.metadata.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// A metadata value, if the key is there.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.keys.get(key).map(|&index| &self.metadata[index].1)
    }

    fn require<'a, T>(
        &'a self,
        key: &str,
        wanted: &'static str,
        pick: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<T, GgufError> {
        let value = self.get(key).ok_or_else(|| GgufError::Missing { key: key.to_owned() })?;
        pick(value).ok_or_else(|| GgufError::WrongType { key: key.to_owned(), wanted, found: value.type_name() })
    }

    /// A number that fits `u32`, whatever integer type holds it.
    ///
    /// # Errors
    /// [`GgufError::Missing`] or [`GgufError::WrongType`].
    pub fn u32(&self, key: &str) -> Result<u32, GgufError> {
        self.require(key, "a u32", |value| value.as_u64().and_then(|v| v.try_into().ok()))
    }

    /// A floating-point number.
    ///
    /// # Errors
    /// [`GgufError::Missing`] or [`GgufError::WrongType`].
    pub fn f32(&self, key: &str) -> Result<f32, GgufError> {
        self.require(key, "an f32", |value| match *value {
            Value::F32(v) => Some(v),
            Value::F64(v) => Some(v as f32),
            _ => None,
        })
    }

    /// A bool.
    ///
    /// # Errors
    /// [`GgufError::Missing`] or [`GgufError::WrongType`].
    pub fn bool(&self, key: &str) -> Result<bool, GgufError> {
        self.require(key, "a bool", |value| if let Value::Bool(v) = *value { Some(v) } else { None })
    }

    /// A string.
    ///
    /// # Errors
    /// [`GgufError::Missing`] or [`GgufError::WrongType`].
    pub fn str(&self, key: &str) -> Result<&str, GgufError> {
        self.require(key, "a string", |value| if let Value::Str(v) = value { Some(v.as_str()) } else { None })
    }

    /// An array of strings.
    ///
    /// # Errors
    /// [`GgufError::Missing`] or [`GgufError::WrongType`].
    pub fn strings(&self, key: &str) -> Result<&[String], GgufError> {
        self.require(key, "an array of strings", |value| match value {
            Value::Array(Array::Str(v)) => Some(v.as_slice()),
            _ => None,
        })
    }

    /// An array of any element type.
    ///
    /// # Errors
    /// [`GgufError::Missing`] or [`GgufError::WrongType`].
    pub fn array(&self, key: &str) -> Result<&Array, GgufError> {
        self.require(key, "an array", |value| if let Value::Array(v) = value { Some(v) } else { None })
    }

    /// The tensor table, in the file's order.
    #[must_use]
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// A tensor's row of the table, if it is there.
    #[must_use]
    pub fn find_tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.names.get(name).map(|&index| &self.tensors[index])
    }

    /// A tensor's row of the table and its bytes.
    ///
    /// # Errors
    /// [`GgufError::NoTensor`].
    pub fn tensor(&self, name: &str) -> Result<(&TensorInfo, &[u8]), GgufError> {
        let info = self.find_tensor(name).ok_or_else(|| GgufError::NoTensor { name: shortened(name).to_owned() })?;
        // In bounds: `check_placement` saw to it.
        let start = (self.data_start + info.offset) as usize;
        Ok((info, &self.bytes[start..start + info.bytes as usize]))
    }
}

impl std::fmt::Debug for Gguf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (values, tensors) = (self.metadata.len(), self.tensors.len());
        write!(f, "Gguf(v{}, {values} values, {tensors} tensors, {} bytes)", self.version, self.bytes.len())
    }
}

type Metadata = (Vec<(String, Value)>, HashMap<String, usize>);

fn read_metadata(cursor: &mut Cursor<'_>, count: u64) -> Result<Metadata, GgufError> {
    // A pair is at least a key's length, a type and a byte.
    let count = cursor.expect_items(count, 13, "metadata_count")?;
    let mut metadata = Vec::with_capacity(count);
    let mut keys = HashMap::with_capacity(count);
    for index in 0..count {
        let at = cursor.offset();
        let key = cursor.string(&format!("metadata key {index}"))?;
        let field = format!("metadata `{}`", shortened(key));
        if key.len() > KEY_BYTES_MAX {
            return Err(cursor.invalid(
                &field,
                at,
                format!("a key of {} bytes; {KEY_BYTES_MAX} is the most", key.len()),
            ));
        }
        let value = Value::read(cursor, &field)?;
        if keys.insert(key.to_owned(), index).is_some() {
            return Err(cursor.invalid(&field, at, "the key came before"));
        }
        metadata.push((key.to_owned(), value));
    }
    Ok((metadata, keys))
}

fn alignment(metadata: &[(String, Value)], keys: &HashMap<String, usize>) -> Result<u64, GgufError> {
    const KEY: &str = "general.alignment";
    let Some(&index) = keys.get(KEY) else { return Ok(ALIGNMENT_DEFAULT) };
    match metadata[index].1 {
        Value::U32(v) if v.is_power_of_two() => Ok(v.into()),
        ref other => {
            let found = other.as_u64().map_or_else(|| other.type_name().to_owned(), |v| v.to_string());
            let reason = format!("{found} is not a power of two in a u32");
            Err(GgufError::Invalid { field: format!("metadata `{KEY}`"), offset: 0, reason })
        }
    }
}

fn read_tensors(cursor: &mut Cursor<'_>, count: u64) -> Result<Vec<TensorInfo>, GgufError> {
    // A row is at least a name's length, a dimension count, one dimension, a type and an offset.
    let rows = cursor.expect_items(count, 32, "tensor_count")?;
    let mut tensors = Vec::with_capacity(rows);
    for index in 0..count {
        tensors.push(TensorInfo::read(cursor, index)?);
    }
    Ok(tensors)
}

fn field_of(tensor: &TensorInfo) -> String {
    format!("tensor `{}`", shortened(&tensor.name))
}

/// Every tensor is aligned, inside the file, and overlaps no other.
fn check_placement(tensors: &[TensorInfo], alignment: u64, data_start: u64, file_bytes: u64) -> Result<(), GgufError> {
    let data_bytes = file_bytes.saturating_sub(data_start);
    for tensor in tensors {
        let invalid = |reason| GgufError::Invalid { field: field_of(tensor), offset: tensor.at, reason };
        if !tensor.offset.is_multiple_of(alignment) {
            return Err(invalid(format!("offset {} is not a multiple of {alignment}", tensor.offset)));
        }
        if tensor.offset.checked_add(tensor.bytes).is_none_or(|end| end > data_bytes) {
            let (from, len) = (tensor.offset, tensor.bytes);
            return Err(invalid(format!("{len} bytes from {from} are not in the data section of {data_bytes} bytes")));
        }
    }
    let mut by_offset: Vec<&TensorInfo> = tensors.iter().collect();
    by_offset.sort_unstable_by_key(|tensor| tensor.offset);
    for pair in by_offset.windows(2) {
        if pair[0].offset + pair[0].bytes > pair[1].offset {
            let reason = format!("overlaps `{}`", shortened(&pair[0].name));
            return Err(GgufError::Invalid { field: field_of(pair[1]), offset: pair[1].at, reason });
        }
    }
    Ok(())
}
