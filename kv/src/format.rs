//! The bytes of a block: `[layer][K|V][kv_head][token][head_dim]`, contiguous over all layers.
//!
//! A whole block is one contiguous range, one layer of it another, one (layer, K or V, head) plane a third. A block that
//! is filled only in part is valid in a strided pattern: the first tokens of every plane.

use std::fmt;
use std::str::FromStr;

/// Element type of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE half precision.
    F16,
    /// IEEE single precision.
    F32,
}

impl DType {
    /// Bytes of one element.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        match self {
            Self::F16 => 2,
            Self::F32 => 4,
        }
    }
}

/// Shape of one block. Its `Display` is the canonical string that namespaces and handshakes compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvFormat {
    /// Transformer layers that keep KV.
    pub layers: u32,
    /// KV heads a layer.
    pub kv_heads: u32,
    /// Elements of one head's key or value.
    pub head_dim: u32,
    /// Tokens a block.
    pub block_tokens: u32,
    /// Element type.
    pub dtype: DType,
}

/// Evenly spaced pieces of a block: `count` pieces of `len` bytes, `stride` bytes from start to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// Byte offset of the first piece from the start of the block.
    pub offset: u64,
    /// Bytes of each piece.
    pub len: u64,
    /// Bytes between the starts of two pieces.
    pub stride: u64,
    /// Number of pieces.
    pub count: u32,
}

/// Why a format is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// A field is zero or larger than any real model's.
    #[error("KV format field `{field}` is {value}; it must be between 1 and {max}")]
    OutOfRange {
        /// Name of the field.
        field: &'static str,
        /// What it was.
        value: u32,
        /// Largest accepted value.
        max: u32,
    },
    /// A string that is not a format's canonical form.
    #[error("`{0}` is not a KV format; one looks like lkhtd/layers=30/kv_heads=3/head_dim=64/block=16/f16")]
    Malformed(String),
}

impl KvFormat {
    /// Refuses shapes that no real model has, so that sizes cannot overflow later.
    ///
    /// # Errors
    /// [`FormatError::OutOfRange`] names the first bad field.
    pub fn validate(&self) -> Result<(), FormatError> {
        let fields = [
            ("layers", self.layers, 4096),
            ("kv_heads", self.kv_heads, 4096),
            ("head_dim", self.head_dim, 8192),
            ("block_tokens", self.block_tokens, 1024),
        ];
        for (field, value, max) in fields {
            if value == 0 || value > max {
                return Err(FormatError::OutOfRange { field, value, max });
            }
        }
        Ok(())
    }

    /// Bytes of one token in one plane: `head_dim` elements.
    #[must_use]
    pub const fn row_bytes(&self) -> u64 {
        self.head_dim as u64 * self.dtype.bytes() as u64
    }

    /// Bytes of one plane: K or V of one head of one layer.
    #[must_use]
    pub const fn plane_bytes(&self) -> u64 {
        self.row_bytes() * self.block_tokens as u64
    }

    /// Bytes of one layer of a block: K and V of all heads.
    #[must_use]
    pub const fn layer_bytes(&self) -> u64 {
        self.plane_bytes() * 2 * self.kv_heads as u64
    }

    /// Bytes of a whole block.
    #[must_use]
    pub const fn block_bytes(&self) -> u64 {
        self.layer_bytes() * self.layers as u64
    }

    /// Bytes of one token over all layers.
    #[must_use]
    pub const fn token_bytes(&self) -> u64 {
        self.row_bytes() * 2 * self.kv_heads as u64 * self.layers as u64
    }

    /// Blocks that hold `tokens` tokens.
    #[must_use]
    pub const fn blocks_for(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.block_tokens)
    }

    /// Byte offset in a block of the row of (`layer`, K = false / V = true, `head`, `token`).
    #[must_use]
    pub const fn row_offset(&self, layer: u32, value: bool, head: u32, token: u32) -> u64 {
        layer as u64 * self.layer_bytes()
            + (value as u64 * self.kv_heads as u64 + head as u64) * self.plane_bytes()
            + token as u64 * self.row_bytes()
    }

    /// The bytes of `layer` that hold the first `tokens` tokens: one piece if the block is full, else one a plane.
    ///
    /// # Panics
    /// If `layer` or `tokens` is outside the format.
    #[must_use]
    pub fn layer_span(&self, layer: u32, tokens: u32) -> Span {
        assert!(layer < self.layers && tokens <= self.block_tokens, "span outside the block");
        let offset = u64::from(layer) * self.layer_bytes();
        if tokens == self.block_tokens {
            return Span { offset, len: self.layer_bytes(), stride: self.layer_bytes(), count: 1 };
        }
        Span { offset, len: u64::from(tokens) * self.row_bytes(), stride: self.plane_bytes(), count: 2 * self.kv_heads }
    }
}

impl fmt::Display for KvFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dtype = match self.dtype {
            DType::F16 => "f16",
            DType::F32 => "f32",
        };
        write!(
            f,
            "lkhtd/layers={}/kv_heads={}/head_dim={}/block={}/{dtype}",
            self.layers, self.kv_heads, self.head_dim, self.block_tokens
        )
    }
}

/// Reads the canonical string that `Display` writes, and nothing else.
impl FromStr for KvFormat {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Self, FormatError> {
        let malformed = || FormatError::Malformed(text.chars().take(120).collect());
        let mut parts = text.split('/');
        if parts.next() != Some("lkhtd") {
            return Err(malformed());
        }
        let mut number = |name: &str| {
            let part = parts.next()?.strip_prefix(name)?.strip_prefix('=')?;
            part.parse::<u32>().ok()
        };
        let layers = number("layers").ok_or_else(malformed)?;
        let kv_heads = number("kv_heads").ok_or_else(malformed)?;
        let head_dim = number("head_dim").ok_or_else(malformed)?;
        let block_tokens = number("block").ok_or_else(malformed)?;
        let dtype = match (parts.next(), parts.next()) {
            (Some("f16"), None) => DType::F16,
            (Some("f32"), None) => DType::F32,
            _ => return Err(malformed()),
        };
        let format = Self { layers, kv_heads, head_dim, block_tokens, dtype };
        format.validate()?;
        // Other spellings of the same numbers ("016", "+3") would be other namespaces.
        if format.to_string() == text { Ok(format) } else { Err(malformed()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SmolLM2-135M: the figures of a real model, worked out by hand.
    const SMOL: KvFormat = KvFormat { layers: 30, kv_heads: 3, head_dim: 64, block_tokens: 16, dtype: DType::F16 };

    #[test]
    fn sizes_of_a_real_model() {
        assert_eq!(SMOL.token_bytes(), 23_040);
        assert_eq!(SMOL.block_bytes(), 368_640);
        assert_eq!(SMOL.layer_bytes(), 12_288);
        assert_eq!((SMOL.blocks_for(0), SMOL.blocks_for(16), SMOL.blocks_for(17)), (0, 1, 2));
    }

    #[test]
    fn the_span_of_a_tail_covers_exactly_the_valid_rows() {
        for tokens in [1, 7, 15, 16] {
            for layer in [0, 1, 29] {
                let span = SMOL.layer_span(layer, tokens);
                let mut spanned = vec![false; SMOL.block_bytes() as usize];
                for piece in 0..u64::from(span.count) {
                    let start = (span.offset + piece * span.stride) as usize;
                    spanned[start..start + span.len as usize].fill(true);
                }
                let mut rows = vec![false; SMOL.block_bytes() as usize];
                for value in [false, true] {
                    for head in 0..SMOL.kv_heads {
                        for token in 0..tokens {
                            let start = SMOL.row_offset(layer, value, head, token) as usize;
                            rows[start..start + SMOL.row_bytes() as usize].fill(true);
                        }
                    }
                }
                assert!(spanned == rows, "layer {layer}, {tokens} tokens");
            }
        }
    }

    #[test]
    fn hostile_shapes_are_refused_by_name() {
        let zero = KvFormat { layers: 0, ..SMOL };
        assert!(matches!(zero.validate(), Err(FormatError::OutOfRange { field: "layers", .. })));
        let huge = KvFormat { block_tokens: u32::MAX, ..SMOL };
        assert!(matches!(huge.validate(), Err(FormatError::OutOfRange { field: "block_tokens", .. })));
        assert_eq!(SMOL.validate(), Ok(()));
    }

    #[test]
    fn the_canonical_string_is_read_back_and_nothing_else_is() {
        assert_eq!(SMOL.to_string().parse(), Ok(SMOL));
        let canonical = SMOL.to_string();
        for hostile in [
            "",
            "lkhtd",
            "lkhtd/layers=30",
            &canonical[1..],
            &format!("{canonical}/"),
            &canonical.replace("=16", "=016"),
        ] {
            assert!(matches!(hostile.parse::<KvFormat>(), Err(FormatError::Malformed(_))), "{hostile:?}");
        }
        let zero = canonical.replace("layers=30", "layers=0").parse::<KvFormat>();
        assert!(matches!(zero, Err(FormatError::OutOfRange { field: "layers", .. })));
    }
}
