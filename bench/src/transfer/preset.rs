//! KV caches of well-known models, as shapes: how many bytes a block of one layer has, and how many of them a prompt.
//!
//! The numbers are fields of the configurations that the models were published with. Blocks are laid out as paged caches
//! lay them out: one contiguous piece for each layer and block, keys and values apart; with multi-head latent attention one
//! piece for both (its cache holds one latent vector and one rotary key a token).

use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A model whose KV is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Preset {
    /// What the command line calls it.
    pub name: &'static str,
    /// Where its numbers stand.
    pub source: &'static str,
    /// Layers.
    pub layers: u64,
    /// What attention keeps of a token.
    pub attention: Attention,
    /// Tokens of a block where none are given.
    pub block_tokens: u64,
}

/// What a layer keeps of each token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Attention {
    /// Keys and values of some heads, each a piece of its own.
    Heads {
        /// Heads that have keys and values.
        kv_heads: u64,
        /// Numbers of a head.
        head_dim: u64,
    },
    /// One latent vector and one rotary key for all heads, one piece.
    Latent {
        /// Numbers of the latent vector.
        rank: u64,
        /// Numbers of the rotary key.
        rope_dim: u64,
    },
}

/// How wide a number is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// 16 bits.
    Bf16,
    /// 8 bits.
    Fp8,
}

/// All presets. Hugging Face repository and file are named; `head_dim` is `hidden_size / num_attention_heads` where the file
/// has none.
pub const PRESETS: [Preset; 4] = [
    Preset {
        name: "llama-3-70b",
        source: "meta-llama/Meta-Llama-3-70B, config.json: num_hidden_layers 80, num_key_value_heads 8, 8192 / 64 heads",
        layers: 80,
        attention: Attention::Heads { kv_heads: 8, head_dim: 128 },
        block_tokens: 16,
    },
    Preset {
        name: "qwen3-32b",
        source: "Qwen/Qwen3-32B, config.json: num_hidden_layers 64, num_key_value_heads 8, head_dim 128",
        layers: 64,
        attention: Attention::Heads { kv_heads: 8, head_dim: 128 },
        block_tokens: 16,
    },
    Preset {
        name: "qwen3-235b-a22b",
        source: "Qwen/Qwen3-235B-A22B, config.json: num_hidden_layers 94, num_key_value_heads 4, head_dim 128",
        layers: 94,
        attention: Attention::Heads { kv_heads: 4, head_dim: 128 },
        block_tokens: 16,
    },
    Preset {
        name: "deepseek-v3",
        source: "deepseek-ai/DeepSeek-V3, config.json: num_hidden_layers 61, kv_lora_rank 512, qk_rope_head_dim 64",
        layers: 61,
        attention: Attention::Latent { rank: 512, rope_dim: 64 },
        block_tokens: 64,
    },
];

/// No preset of that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is no preset; there is {}", PRESETS.map(|preset| preset.name).join(", "))]
pub struct PresetError {
    given: String,
}

impl FromStr for Preset {
    type Err = PresetError;

    fn from_str(text: &str) -> Result<Self, PresetError> {
        PRESETS.into_iter().find(|p| p.name == text).ok_or_else(|| PresetError { given: text.to_owned() })
    }
}

/// The KV of a prompt as blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kv {
    /// Bytes of a piece that lies in one place.
    pub block_bytes: u64,
    /// How many of them.
    pub blocks: u64,
}

impl Preset {
    /// What a prompt of so many tokens keeps, in blocks of so many; a last block that is not full moves whole.
    #[must_use]
    pub fn kv(&self, tokens: u64, block_tokens: u64, dtype: Dtype) -> Kv {
        let width = match dtype {
            Dtype::Bf16 => 2,
            Dtype::Fp8 => 1,
        };
        let (numbers, pieces) = match self.attention {
            Attention::Heads { kv_heads, head_dim } => (kv_heads * head_dim, 2),
            Attention::Latent { rank, rope_dim } => (rank + rope_dim, 1),
        };
        Kv { block_bytes: numbers * width * block_tokens, blocks: tokens.div_ceil(block_tokens) * self.layers * pieces }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_a_token(name: &str, dtype: Dtype) -> u64 {
        let kv = name.parse::<Preset>().unwrap().kv(1, 1, dtype);
        kv.block_bytes * kv.blocks
    }

    #[test]
    fn bytes_a_token_are_what_the_models_keep() {
        // 2 (K and V) × layers × heads × dimension × 2 bytes.
        assert_eq!(bytes_a_token("llama-3-70b", Dtype::Bf16), 320 << 10);
        assert_eq!(bytes_a_token("qwen3-32b", Dtype::Bf16), 256 << 10);
        assert_eq!(bytes_a_token("qwen3-235b-a22b", Dtype::Bf16), 2 * 94 * 4 * 128 * 2);
        // 61 × (512 + 64) × 2 bytes.
        assert_eq!(bytes_a_token("deepseek-v3", Dtype::Bf16), 70_272);
        assert_eq!(bytes_a_token("llama-3-70b", Dtype::Fp8), 160 << 10);
    }

    #[test]
    fn a_prompt_is_blocks_of_each_layer_keys_and_values_apart() {
        let llama: Preset = "llama-3-70b".parse().unwrap();
        assert_eq!(llama.kv(8192, 16, Dtype::Bf16), Kv { block_bytes: 32 << 10, blocks: 512 * 80 * 2 });
        let deepseek: Preset = "deepseek-v3".parse().unwrap();
        assert_eq!(deepseek.kv(8192, 64, Dtype::Bf16), Kv { block_bytes: 73_728, blocks: 128 * 61 });
        assert_eq!(deepseek.kv(65, 64, Dtype::Bf16).blocks, 2 * 61, "a last block that is not full moves whole");
    }

    #[test]
    fn an_unknown_name_is_told_all_that_there_are() {
        let error = "llama".parse::<Preset>().unwrap_err().to_string();
        assert!(PRESETS.iter().all(|preset| error.contains(preset.name)), "{error}");
    }
}
