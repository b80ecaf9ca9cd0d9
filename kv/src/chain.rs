//! Chain hashes and proofs: the identity of a block is its tokens *and all tokens before it*.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::{Namespace, TokenId};

/// Hash of a block and all before it: XXH3-64 of (parent hash, token ids), seeded by the namespace. Finds, never proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChainHash(pub u64);

/// Keyed BLAKE3 of (parent proof, token ids), cut to 128 bits. Equal proofs mean equal tokens in an equal namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockProof(pub [u8; 16]);

/// What identifies one complete block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockKey {
    /// Finds the block.
    pub hash: ChainHash,
    /// Proves it.
    pub proof: BlockProof,
}

/// Rolling hasher over the blocks of one token sequence.
///
/// ```
/// use kvrail_kv::{Chain, DType, KvFormat, Namespace, NamespaceParts};
/// let format = KvFormat { layers: 2, kv_heads: 1, head_dim: 8, block_tokens: 4, dtype: DType::F16 };
/// let parts = NamespaceParts { model: "m", format: &format, numerics: "mock", adapter: "", salt: "" };
/// let ns = Namespace::new(&parts);
/// let keys = Chain::keys(&ns, 4, &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
/// assert_eq!(keys.len(), 2, "the tail of one token is not a block yet");
/// ```
#[derive(Clone, Debug)]
pub struct Chain {
    namespace: Namespace,
    parent: Option<BlockKey>,
}

impl Chain {
    /// A chain with no block yet.
    #[must_use]
    pub fn new(namespace: &Namespace) -> Self {
        Self { namespace: *namespace, parent: None }
    }

    /// A chain that goes on after `parent`.
    #[must_use]
    pub fn after(namespace: &Namespace, parent: Option<BlockKey>) -> Self {
        Self { namespace: *namespace, parent }
    }

    /// Appends one complete block and returns its key.
    pub fn push(&mut self, block: &[TokenId]) -> BlockKey {
        let mut bytes = Vec::with_capacity(16 + block.len() * 4);
        let parent_hash = self.parent.map_or(0, |p| p.hash.0);
        bytes.extend_from_slice(&parent_hash.to_le_bytes());
        for token in block {
            bytes.extend_from_slice(&token.to_le_bytes());
        }
        let hash = ChainHash(xxh3_64_with_seed(&bytes, self.namespace.seed()));

        let mut keyed = blake3::Hasher::new_keyed(self.namespace.key());
        keyed.update(&self.parent.map_or([0; 16], |p| p.proof.0));
        keyed.update(&bytes[8..]);
        let mut proof = [0; 16];
        proof.copy_from_slice(&keyed.finalize().as_bytes()[..16]);

        let key = BlockKey { hash, proof: BlockProof(proof) };
        self.parent = Some(key);
        key
    }

    /// Keys of all complete blocks of `tokens`; the tail that does not fill a block has none.
    #[must_use]
    pub fn keys(namespace: &Namespace, block_tokens: u32, tokens: &[TokenId]) -> Vec<BlockKey> {
        let mut chain = Self::new(namespace);
        tokens.chunks_exact(block_tokens as usize).map(|block| chain.push(block)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, KvFormat, NamespaceParts};

    fn namespace(salt: &str) -> Namespace {
        let format = KvFormat { layers: 2, kv_heads: 1, head_dim: 8, block_tokens: 4, dtype: DType::F16 };
        Namespace::new(&NamespaceParts { model: "m", format: &format, numerics: "n", adapter: "", salt })
    }

    #[test]
    fn a_block_is_named_by_everything_before_it() {
        let ns = namespace("");
        let a = Chain::keys(&ns, 4, &[1, 2, 3, 4, 5, 6, 7, 8]);
        let b = Chain::keys(&ns, 4, &[1, 2, 3, 9, 5, 6, 7, 8]);
        assert_ne!(a[0], b[0]);
        assert_ne!(a[1].hash, b[1].hash, "same tokens after another parent are another block");
        assert_ne!(a[1].proof, b[1].proof);
    }

    #[test]
    fn a_prefix_gives_a_prefix_of_keys_and_a_chain_can_go_on() {
        let ns = namespace("");
        let tokens: Vec<u32> = (0..64).collect();
        let all = Chain::keys(&ns, 4, &tokens);
        assert_eq!(Chain::keys(&ns, 4, &tokens[..17]), all[..4]);
        let mut rest = Chain::after(&ns, Some(all[7]));
        assert_eq!(rest.push(&tokens[32..36]), all[8]);
    }

    #[test]
    fn namespaces_do_not_meet() {
        let tokens = [1, 2, 3, 4];
        let a = Chain::keys(&namespace("a"), 4, &tokens);
        let b = Chain::keys(&namespace("b"), 4, &tokens);
        assert_ne!(a[0].hash, b[0].hash);
        assert_ne!(a[0].proof, b[0].proof);
    }
}
