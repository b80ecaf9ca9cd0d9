//! Good files read back; bad ones give an error that names the field, and never a panic.

use kvrail_gguf::writer::GgufWriter;
use kvrail_gguf::{Array, Gguf, GgufError, TensorType, Value};

/// One value of every type, two tensors.
fn sample() -> GgufWriter {
    let mut w = GgufWriter::new();
    w.metadata("general.architecture", "llama")
        .metadata("a.u8", 8u8)
        .metadata("a.i8", -8i8)
        .metadata("a.u16", 16u16)
        .metadata("a.i16", -16i16)
        .metadata("a.u32", 32u32)
        .metadata("a.i32", -32i32)
        .metadata("a.u64", u64::MAX)
        .metadata("a.i64", i64::MIN)
        .metadata("a.f32", 1.5f32)
        .metadata("a.f64", 2.5f64)
        .metadata("a.bool", true)
        .metadata("b.strings", vec!["α", "", "c"])
        .metadata("b.i32s", vec![1i32, -2, 3])
        .metadata("b.f32s", vec![0.5f32; 5])
        .metadata("b.bools", vec![true, false])
        .metadata("b.nested", Value::Array(Array::Array(vec![Array::U8(vec![1, 2]), Array::Str(vec!["x".into()])])))
        .tensor("first", &[32, 2], TensorType::Q4_1, (0..40).collect())
        .tensor("second", &[3], TensorType::F32, vec![7; 12]);
    w
}

#[test]
fn every_type_reads_back() {
    let bytes = sample().finish();
    let file = Gguf::from_bytes(bytes.clone()).unwrap();
    assert_eq!(file.version(), 3);
    assert_eq!(file.str("general.architecture").unwrap(), "llama");
    assert_eq!(file.u32("a.u8").unwrap(), 8);
    assert_eq!(file.get("a.i8"), Some(&Value::I8(-8)));
    assert_eq!(file.u32("a.u16").unwrap(), 16);
    assert_eq!(file.get("a.i16"), Some(&Value::I16(-16)));
    assert_eq!(file.get("a.i32"), Some(&Value::I32(-32)));
    assert_eq!(file.get("a.u64").and_then(Value::as_u64), Some(u64::MAX));
    assert_eq!(file.get("a.i64"), Some(&Value::I64(i64::MIN)));
    assert_eq!((file.f32("a.f32").unwrap(), file.f32("a.f64").unwrap()), (1.5, 2.5));
    assert!(file.bool("a.bool").unwrap());
    assert_eq!(file.strings("b.strings").unwrap(), ["α", "", "c"]);
    assert_eq!(file.array("b.i32s").unwrap(), &Array::I32(vec![1, -2, 3]));
    assert_eq!(file.array("b.nested").unwrap().len(), 2);
    assert_eq!(file.metadata().count(), 17);
    let (info, data) = file.tensor("first").unwrap();
    assert_eq!((info.dims.as_slice(), info.dtype, info.elements()), (&[32u64, 2][..], TensorType::Q4_1, 64));
    assert_eq!(data, (0..40).collect::<Vec<u8>>());
    assert_eq!(file.tensor("second").unwrap().1, [7; 12]);

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sample.gguf");
    std::fs::write(&path, &bytes).unwrap();
    let mapped = Gguf::open(&path).unwrap();
    assert_eq!(mapped.digest(), file.digest());
    assert_eq!(mapped.tensors(), file.tensors());
}

#[test]
fn asking_for_what_is_not_there_is_a_typed_error() {
    let file = Gguf::from_bytes(sample().finish()).unwrap();
    assert!(matches!(file.u32("nothing"), Err(GgufError::Missing { key }) if key == "nothing"));
    assert!(matches!(file.u32("a.f32"), Err(GgufError::WrongType { found: "f32", .. })));
    assert!(matches!(file.u32("a.u64"), Err(GgufError::WrongType { .. })), "does not fit");
    assert!(matches!(file.u32("a.i32"), Err(GgufError::WrongType { .. })), "negative");
    assert!(matches!(file.strings("b.i32s"), Err(GgufError::WrongType { found: "[i32]", .. })));
    assert!(matches!(file.tensor("third"), Err(GgufError::NoTensor { name }) if name == "third"));
    let missing = Gguf::open(std::path::Path::new("/nonexistent/model.gguf"));
    assert!(matches!(missing, Err(GgufError::Io { .. })));
}

#[test]
fn a_digest_sees_one_bit_of_one_weight() {
    let bytes = sample().finish();
    let mut other = bytes.clone();
    *other.last_mut().unwrap() ^= 1;
    assert_ne!(Gguf::from_bytes(bytes).unwrap().digest(), Gguf::from_bytes(other).unwrap().digest());
}

#[test]
fn every_truncation_is_an_error() {
    let bytes = sample().finish();
    for len in 0..bytes.len() {
        let error = Gguf::from_bytes(bytes[..len].to_vec()).expect_err("cut files are refused");
        let text = error.to_string();
        assert!(!text.is_empty() && text.len() < 400, "{text}");
    }
}

/// xorshift64*: enough to scatter mutations, and the same in every run.
struct Random(u64);
impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
}

/// Reads all that a mutated file still offers; a panic or an out-of-bounds read fails the test.
fn exercise(bytes: Vec<u8>) -> bool {
    let len = bytes.len() as u64;
    let Ok(file) = Gguf::from_bytes(bytes) else { return false };
    for info in file.tensors() {
        let (_, data) = file.tensor(&info.name).unwrap();
        assert!(data.len() as u64 == info.bytes && info.bytes <= len);
        assert_eq!(info.elements() / info.dtype.block_elements() * info.dtype.block_bytes(), info.bytes);
    }
    assert!(file.metadata().count() as u64 <= len);
    true
}

#[test]
fn random_mutations_never_panic() {
    let clean = sample().finish();
    let interesting = [0, 1, 0x7f, 0x80, 0xff, 9, 12, 13];
    let (mut accepted, rounds) = (0, 20_000);
    for seed in 1..=rounds {
        let mut random = Random(seed);
        let mut bytes = clean.clone();
        for _ in 0..1 + random.next() % 8 {
            let at = (random.next() % bytes.len() as u64) as usize;
            match random.next() % 4 {
                0 => bytes[at] = random.next() as u8,
                1 => bytes[at] = interesting[(random.next() % interesting.len() as u64) as usize],
                // A whole count or length goes wild.
                2 if at + 8 <= bytes.len() => bytes[at..at + 8].copy_from_slice(&random.next().to_le_bytes()),
                _ => bytes[at] ^= 1 << (random.next() % 8),
            }
        }
        if random.next().is_multiple_of(4) {
            bytes.truncate((random.next() % bytes.len() as u64) as usize);
        }
        accepted += u64::from(exercise(bytes));
    }
    // Both kinds must have been seen, or the mutations test nothing.
    assert!(accepted > 0 && accepted < rounds, "{accepted} of {rounds} were accepted");
}

/// Overwrites the 8 bytes that follow the only occurrence of `mark`, `skip` bytes further.
fn patch(bytes: &mut [u8], mark: &[u8], skip: usize, value: u64) {
    let at = bytes.windows(mark.len()).position(|w| w == mark).unwrap() + mark.len() + skip;
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

#[track_caller]
fn refused(bytes: Vec<u8>, field: &str, reason: &str) {
    let error = Gguf::from_bytes(bytes).expect_err("hostile").to_string();
    assert!(error.contains(field) && error.contains(reason), "`{error}` names neither `{field}` nor `{reason}`");
}

#[test]
fn hostile_fields_are_refused_by_name() {
    let clean = sample().finish();
    let with = |edit: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = clean.clone();
        edit(&mut bytes);
        bytes
    };
    refused(b"PK\x03\x04".to_vec(), "not a GGUF", "");
    refused(with(&|b| b[4] = 1), "version 1", "");
    refused(with(&|b| b[4..8].copy_from_slice(&3u32.to_be_bytes())), "version 50331648", "little endian");
    refused(with(&|b| b[8..16].copy_from_slice(&u64::MAX.to_le_bytes())), "tensor_count", "needs");
    refused(with(&|b| b[16..24].copy_from_slice(&(u64::MAX / 13 + 2).to_le_bytes())), "metadata_count", "needs");
    refused(with(&|b| patch(b, b"b.strings", 8, u64::MAX)), "b.strings", "needs");
    refused(with(&|b| patch(b, b"b.f32s", 8, 1 << 62)), "b.f32s", "needs");
    refused(with(&|b| patch(b, b"a.bool", 0, 0x0002_0000_0007)), "a.bool", "not 0 or 1");
    refused(with(&|b| patch(b, b"a.u32", 0, 99)), "a.u32", "type 99");
    // Tensor `first`: dimension count (4 bytes), two dimensions, type (4), offset.
    refused(with(&|b| patch(b, b"first", 4, 33)), "first", "whole blocks");
    refused(with(&|b| patch(b, b"first", 4, 0)), "first", "empty");
    refused(with(&|b| patch(b, b"first", 12, u64::MAX)), "first", "overflows");
    refused(with(&|b| patch(b, b"first", 24, 1)), "first", "multiple of 32");
    refused(with(&|b| patch(b, b"first", 24, u64::MAX - 31)), "first", "not in the data");
    refused(with(&|b| patch(b, b"second", 16, 32)), "second", "overlaps");
    let twice = sample().metadata("a.u8", 1u8).finish();
    refused(twice, "a.u8", "came before");
    let twice = sample().tensor("first", &[1], TensorType::F32, vec![0; 4]).finish();
    refused(twice, "first", "came before");
    refused(GgufWriter::new().metadata("general.alignment", 24u32).finish(), "alignment", "power of two");
    let mut bomb = Array::U8(vec![]);
    for _ in 0..8 {
        bomb = Array::Array(vec![bomb]);
    }
    refused(GgufWriter::new().metadata("deep", Value::Array(bomb)).finish(), "deep", "nested");
    let mut bytes = GgufWriter::new().metadata("k", "text").finish();
    *bytes.last_mut().unwrap() = 0xff;
    refused(bytes, "`k`", "UTF-8");
}
