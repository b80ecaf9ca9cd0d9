//! A namespace names everything that must be equal for two nodes to share a block.

use crate::KvFormat;

/// The parts a namespace is made of. Two nodes share blocks only if every part is equal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceParts<'a> {
    /// Model name and revision, or better the digest of its weights.
    pub model: &'a str,
    /// Shape and dtype of a block.
    pub format: &'a KvFormat,
    /// *Numerics id*: kernel revision and ISA class. Within one id the same tokens give the same bytes.
    pub numerics: &'a str,
    /// Adapter (LoRA) name, empty for none.
    pub adapter: &'a str,
    /// Tenant salt, empty where tenants may share. Keeps one tenant from probing another's cache.
    pub salt: &'a str,
}

/// A namespace: a 64-bit id to compare and index by, and the key under which proofs are made.
///
/// ```
/// use kvrail_kv::{DType, KvFormat, Namespace, NamespaceParts};
/// let format = KvFormat { layers: 2, kv_heads: 1, head_dim: 8, block_tokens: 16, dtype: DType::F16 };
/// let parts = NamespaceParts { model: "m", format: &format, numerics: "mock", adapter: "", salt: "" };
/// let a = Namespace::new(&parts);
/// let b = Namespace::new(&NamespaceParts { salt: "tenant-b", ..parts });
/// assert_ne!(a.id(), b.id());
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Namespace {
    key: [u8; 32],
}

impl Namespace {
    /// Derives the namespace from its parts (BLAKE3 key derivation over their length-prefixed encoding).
    #[must_use]
    pub fn new(parts: &NamespaceParts<'_>) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("kvrail 2026 kv namespace v1");
        let format = parts.format.to_string();
        for part in [parts.model, &format, parts.numerics, parts.adapter, parts.salt] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        Self { key: *hasher.finalize().as_bytes() }
    }

    /// The 64-bit id that travels in requests, events and handshakes.
    #[must_use]
    pub fn id(&self) -> u64 {
        u64::from_le_bytes(self.key[..8].try_into().expect("8 of 32 bytes"))
    }

    /// Seed of the chain hash. Distinct from the id so that a leaked id does not help to craft collisions.
    pub(crate) fn seed(&self) -> u64 {
        u64::from_le_bytes(self.key[8..16].try_into().expect("8 of 32 bytes"))
    }

    pub(crate) fn key(&self) -> &[u8; 32] {
        &self.key
    }
}

impl std::fmt::Debug for Namespace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Namespace({:016x})", self.id())
    }
}
