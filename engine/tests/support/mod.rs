//! Tiny random models, written as GGUF, so that the executor is tested on every machine.

use kvrail_engine::cpu::{CpuExecutor, CpuOptions};
use kvrail_engine::{BlockId, Chunk, Executor, KvMemory, Logits};
use kvrail_gguf::{Gguf, TensorType, writer::GgufWriter};

pub const HIDDEN: usize = 256;
pub const FFN: usize = 512;
pub const HEAD_DIM: usize = 32;
pub const HEADS: usize = 8;
pub const KV_HEADS: usize = 2;
pub const LAYERS: usize = 2;
/// Not a multiple of sixteen: the last tile of the output is padded.
pub const VOCAB: usize = 77;

/// xorshift64*, the same everywhere.
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
    /// Uniform in −1..1.
    fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
    fn byte(&mut self) -> u8 {
        (self.bits() >> 32) as u8
    }
}

/// Random weights of about the size 1/√inputs, in the bytes of `dtype`.
fn weights(random: &mut Random, dtype: TensorType, inputs: usize, outputs: usize) -> Vec<u8> {
    let size = 1.0 / (inputs as f32).sqrt();
    let half = |v: f32| half::f16::from_f32(v).to_le_bytes();
    let mut out = Vec::new();
    for _ in 0..inputs * outputs / dtype.block_elements() as usize {
        let spread = size * (1.0 + 0.5 * random.unit());
        let mut bytes = |out: &mut Vec<u8>, n: usize| out.extend((0..n).map(|_| random.byte()));
        match dtype {
            TensorType::F32 => out.extend((random.unit() * size * 1.7).to_le_bytes()),
            TensorType::F16 => out.extend(half(random.unit() * size * 1.7)),
            TensorType::Q4_0 => {
                out.extend(half(spread / 5.0));
                bytes(&mut out, 16);
            }
            TensorType::Q4_1 => {
                out.extend([half(spread / 5.0), half(-1.5 * spread)].concat());
                bytes(&mut out, 16);
            }
            TensorType::Q8_0 => {
                out.extend(half(spread / 80.0));
                bytes(&mut out, 32);
            }
            TensorType::Q4_K => {
                out.extend([half(spread / 160.0), half(spread / 22.0)].concat());
                bytes(&mut out, 12 + 128);
            }
            TensorType::Q6_K => {
                bytes(&mut out, 128 + 64 + 16);
                out.extend(half(spread / 1200.0));
            }
            other => panic!("no writer for {other:?}"),
        }
    }
    out
}

/// Llama-like, with a tensor of every supported type.
pub fn llama() -> GgufWriter {
    use TensorType::*;
    let mut w = writer("llama");
    let mut random = Random(0x5EED);
    let mut add = |name: &str, dtype, inputs: usize, outputs: usize| {
        let bytes = weights(&mut random, dtype, inputs, outputs);
        w.tensor(name, &[inputs as u64, outputs as u64], dtype, bytes);
    };
    add("token_embd.weight", Q8_0, HIDDEN, VOCAB);
    add("output.weight", Q6_K, HIDDEN, VOCAB);
    let types = [[Q4_0, Q4_0, Q6_K, F16, Q4_K, Q4_K, Q4_1], [Q4_1, Q8_0, Q8_0, Q4_1, F32, Q8_0, Q6_K]];
    for (layer, types) in types.into_iter().enumerate() {
        matrices(&mut add, layer, types);
    }
    norms(&mut w, &mut random);
    w
}

/// Qwen-like: split RoPE, biases, norms of heads, tied embedding.
pub fn qwen() -> GgufWriter {
    use TensorType::*;
    let mut w = writer("qwen3");
    let mut random = Random(0xCAFE);
    let mut add = |name: &str, dtype, inputs: usize, outputs: usize| {
        let bytes = weights(&mut random, dtype, inputs, outputs);
        w.tensor(name, &[inputs as u64, outputs as u64], dtype, bytes);
    };
    add("token_embd.weight", F16, HIDDEN, VOCAB);
    for layer in 0..LAYERS {
        matrices(&mut add, layer, [Q4_1, Q4_1, Q4_1, Q8_0, Q4_0, Q4_0, Q8_0]);
    }
    norms(&mut w, &mut random);
    for layer in 0..LAYERS {
        for (part, len) in [("q", HEADS * HEAD_DIM), ("k", KV_HEADS * HEAD_DIM), ("v", KV_HEADS * HEAD_DIM)] {
            vector(&mut w, &mut random, &format!("blk.{layer}.attn_{part}.bias"), len, 0.0);
        }
        for part in ["q", "k"] {
            vector(&mut w, &mut random, &format!("blk.{layer}.attn_{part}_norm.weight"), HEAD_DIM, 1.0);
        }
    }
    w
}

fn writer(arch: &str) -> GgufWriter {
    let mut w = GgufWriter::new();
    let key = |name: &str| format!("{arch}.{name}");
    w.metadata("general.architecture", arch)
        .metadata("general.name", "synthetic")
        .metadata(&key("block_count"), LAYERS as u32)
        .metadata(&key("embedding_length"), HIDDEN as u32)
        .metadata(&key("feed_forward_length"), FFN as u32)
        .metadata(&key("attention.head_count"), HEADS as u32)
        .metadata(&key("attention.head_count_kv"), KV_HEADS as u32)
        .metadata(&key("attention.layer_norm_rms_epsilon"), 1e-5f32)
        .metadata(&key("context_length"), 1024u32)
        .metadata(&key("rope.freq_base"), 1e4f32)
        .metadata("tokenizer.ggml.eos_token_id", 2u32);
    w
}

fn matrices(add: &mut dyn FnMut(&str, TensorType, usize, usize), layer: usize, types: [TensorType; 7]) {
    let (q, kv) = (HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM);
    let parts = [
        ("attn_q", HIDDEN, q),
        ("attn_k", HIDDEN, kv),
        ("attn_v", HIDDEN, kv),
        ("attn_output", q, HIDDEN),
        ("ffn_gate", HIDDEN, FFN),
        ("ffn_up", HIDDEN, FFN),
        ("ffn_down", FFN, HIDDEN),
    ];
    for ((name, inputs, outputs), dtype) in parts.into_iter().zip(types) {
        add(&format!("blk.{layer}.{name}.weight"), dtype, inputs, outputs);
    }
}

fn norms(w: &mut GgufWriter, random: &mut Random) {
    vector(w, random, "output_norm.weight", HIDDEN, 1.0);
    for layer in 0..LAYERS {
        vector(w, random, &format!("blk.{layer}.attn_norm.weight"), HIDDEN, 1.0);
        vector(w, random, &format!("blk.{layer}.ffn_norm.weight"), HIDDEN, 1.0);
    }
}

fn vector(w: &mut GgufWriter, random: &mut Random, name: &str, len: usize, around: f32) {
    let bytes = (0..len).flat_map(|_| (around + 0.3 * random.unit()).to_le_bytes()).collect();
    w.tensor(name, &[len as u64], TensorType::F32, bytes);
}

pub fn load(writer: &GgufWriter, options: CpuOptions) -> CpuExecutor {
    let file = Gguf::from_bytes(writer.finish()).expect("what the writer writes is sound");
    CpuExecutor::from_gguf(&file, "synthetic", options).expect("a supported model")
}

/// Token ids that look like nothing in particular.
pub fn tokens(count: usize, seed: u64) -> Vec<u32> {
    let mut random = Random(seed);
    (0..count).map(|_| (random.bits() >> 33) as u32 % VOCAB as u32).collect()
}

/// A pool with room for some sequences of up to 1,024 tokens.
pub fn pool(exec: &CpuExecutor) -> KvMemory {
    let format = exec.spec().format;
    KvMemory::on_heap(format, 4 * format.blocks_for(1024))
}

/// Blocks `from, from + step, …`: a table that is not in order of memory.
pub fn table(kv: &KvMemory, from: u32, step: u32, blocks: u32) -> Vec<BlockId> {
    (0..blocks).map(|i| BlockId((from + i * step) % kv.blocks())).collect()
}

/// Runs a prompt from `position` on in chunks of `size`, and gives the logits after the last token.
pub fn run(
    exec: &mut CpuExecutor,
    kv: &KvMemory,
    table: &[BlockId],
    tokens: &[u32],
    position: u32,
    size: usize,
) -> Logits {
    let mut logits = None;
    for (i, part) in tokens.chunks(size).enumerate() {
        let position = position + (i * size) as u32;
        let chunk = Chunk { tokens: part, position, table, want_logits: true };
        logits = exec.forward(&[chunk], kv, &mut |_| {}).expect("a sound batch").remove(0);
    }
    logits.expect("logits were asked for")
}

/// The bytes of the first `count` positions, `[position][layer][K|V][head]`: equal for equal contents whatever the table.
pub fn contents(kv: &KvMemory, table: &[BlockId], count: usize) -> Vec<u8> {
    let format = *kv.format();
    let mut out = Vec::new();
    let mut row = vec![0; format.row_bytes() as usize];
    for position in 0..count as u32 {
        let (block, token) = (table[(position / format.block_tokens) as usize], position % format.block_tokens);
        for layer in 0..format.layers {
            for value in [false, true] {
                for head in 0..format.kv_heads {
                    kv.read(block, format.row_offset(layer, value, head, token), &mut row);
                    out.extend_from_slice(&row);
                }
            }
        }
    }
    out
}

/// Equality of bits, not of numbers.
pub fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|v| v.to_bits()).collect()
}
