//! Hyperparameters, from a GGUF's metadata.

use kvrail_gguf::{Gguf, GgufError, Value};

use super::LoadError;
use super::layout::GROUP;

/// Shape of a model. Sizes are those the executor computes with; `check` has refused all that it cannot.
#[derive(Clone, Debug)]
pub(super) struct Config {
    pub layers: usize,
    pub hidden: usize,
    pub ffn: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub epsilon: f32,
    pub context: u32,
    pub rope_dims: usize,
    pub rope_base: f32,
    pub rope_scale: f32,
    /// RoPE pairs the halves of a head, not neighbours.
    pub rope_split: bool,
}

/// Largest size of any one dimension: no real model comes near, and products of two stay far from overflow.
const SIZE_MAX: u32 = 1 << 20;

impl Config {
    pub(super) fn read(file: &Gguf) -> Result<Self, LoadError> {
        let arch = file.str("general.architecture")?;
        let rope_split = match arch {
            "llama" => false,
            "qwen2" | "qwen3" => true,
            _ => return Err(unsupported("general.architecture", arch, "llama, qwen2 and qwen3 are supported")),
        };
        let key = |name: &str| format!("{arch}.{name}");
        let size = |name: &str| -> Result<usize, LoadError> {
            let value = file.u32(&key(name))?;
            if value == 0 || value > SIZE_MAX {
                return Err(unsupported(&key(name), value, "a size is at least 1 and at most 2^20"));
            }
            Ok(value as usize)
        };
        let or = |result: Result<usize, LoadError>, default| match result {
            Err(LoadError::Gguf(GgufError::Missing { .. })) => Ok(default),
            other => other,
        };
        let hidden = size("embedding_length")?;
        let heads = size("attention.head_count")?;
        let head_dim = or(size("attention.key_length"), hidden / heads)?;
        let config = Self {
            layers: size("block_count")?,
            hidden,
            ffn: size("feed_forward_length")?,
            heads,
            kv_heads: or(size("attention.head_count_kv"), heads)?,
            head_dim,
            epsilon: file.f32(&key("attention.layer_norm_rms_epsilon"))?,
            context: size("context_length")? as u32,
            rope_dims: or(size("rope.dimension_count"), head_dim)?,
            rope_base: optional(file.f32(&key("rope.freq_base")))?.unwrap_or(10_000.0),
            rope_scale: rope_scale(file, arch)?,
            rope_split,
        };
        if or(size("attention.value_length"), head_dim)? != head_dim {
            return Err(unsupported(&key("attention.value_length"), "another size", "it must be the key's"));
        }
        for name in ["expert_count", "attention.sliding_window"] {
            if file.get(&key(name)).and_then(Value::as_u64).unwrap_or(0) > 0 {
                return Err(unsupported(&key(name), "set", "dense models with full attention are supported"));
            }
        }
        config.check(arch)?;
        Ok(config)
    }

    fn check(&self, arch: &str) -> Result<(), LoadError> {
        let multiples = [
            ("embedding_length", self.hidden, GROUP),
            ("feed_forward_length", self.ffn, GROUP),
            ("attention.key_length", self.head_dim, 16),
            ("attention.key_length × head_count", self.head_dim * self.heads, GROUP),
            ("rope.dimension_count", self.rope_dims, 2),
        ];
        for (name, value, of) in multiples {
            if value == 0 || !value.is_multiple_of(of) {
                return Err(unsupported(&format!("{arch}.{name}"), value, format!("it must be a multiple of {of}")));
            }
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            let reason = format!("it must divide the {} query heads", self.heads);
            return Err(unsupported(&format!("{arch}.attention.head_count_kv"), self.kv_heads, reason));
        }
        if self.rope_dims > self.head_dim {
            let reason = format!("a head has {} dimensions", self.head_dim);
            return Err(unsupported(&format!("{arch}.rope.dimension_count"), self.rope_dims, reason));
        }
        let finite = [
            ("attention.layer_norm_rms_epsilon", self.epsilon),
            ("rope.freq_base", self.rope_base),
            ("rope.scaling.factor", self.rope_scale),
        ];
        for (name, value) in finite {
            if !(value.is_finite() && value > 0.0) {
                return Err(unsupported(&format!("{arch}.{name}"), value, "it must be a positive number"));
            }
        }
        Ok(())
    }
}

fn rope_scale(file: &Gguf, arch: &str) -> Result<f32, LoadError> {
    let key = format!("{arch}.rope.scaling.type");
    match optional(file.str(&key))? {
        None | Some("none") => Ok(1.0),
        Some("linear") => Ok(file.f32(&format!("{arch}.rope.scaling.factor"))?),
        Some(other) => Err(unsupported(&key, other, "none and linear are supported")),
    }
}

fn optional<T>(result: Result<T, GgufError>) -> Result<Option<T>, GgufError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(GgufError::Missing { .. }) => Ok(None),
        Err(other) => Err(other),
    }
}

fn unsupported(field: &str, found: impl ToString, reason: impl Into<String>) -> LoadError {
    let found: String = found.to_string().chars().take(80).collect();
    LoadError::Unsupported { field: field.to_owned(), found, reason: reason.into() }
}
