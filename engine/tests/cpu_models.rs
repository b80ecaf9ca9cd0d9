//! What the executor computes, and what it refuses.

mod support;

use kvrail_engine::cpu::{CpuExecutor, CpuOptions, LoadError};
use kvrail_engine::{BlockId, Chunk, ExecError, Executor, KvMemory};
use kvrail_gguf::writer::GgufWriter;
use kvrail_gguf::{Gguf, TensorType};
use kvrail_kv::{DType, KvFormat};
use support::{load, pool, run, table, tokens};

/// Logits of the first ten vocabulary items after forty tokens. They pin the numerics id: a change here is a change of
/// `cpu1`. The tolerance is for what the id does not cover, the host's sine and cosine.
const GOLDEN_TOLERANCE: f32 = 1e-5;
const GOLDEN_LLAMA: [f32; 10] = [
    -1.265307,
    -2.1692314,
    1.1283447,
    -0.5043134,
    -1.9158499,
    -1.2900845,
    1.1391672,
    -0.31002644,
    -0.37183374,
    -0.10772021,
];
const GOLDEN_QWEN: [f32; 10] = [
    2.7609806,
    -0.38203835,
    0.24631555,
    1.0502532,
    -0.782718,
    -0.006796364,
    0.20903058,
    -0.35631824,
    0.97673357,
    -0.53271186,
];

#[test]
fn golden_logits() {
    for (model, golden) in [(support::llama(), GOLDEN_LLAMA), (support::qwen(), GOLDEN_QWEN)] {
        let mut exec = load(&model, CpuOptions::default());
        assert_eq!(exec.spec().numerics, "cpu1");
        let kv = pool(&exec);
        let table = table(&kv, 0, 1, 3);
        let logits = run(&mut exec, &kv, &table, &tokens(40, 3), 0, 64);
        let near = logits.iter().zip(golden).all(|(a, b)| (a - b).abs() <= GOLDEN_TOLERANCE);
        assert!(near, "{:?} is not {golden:?}", &logits[..10]);
    }
}

#[test]
fn the_spec_says_what_the_file_says() {
    let options = CpuOptions { block_tokens: 8, context_tokens: Some(100), ..CpuOptions::default() };
    let exec = load(&support::llama(), options);
    let spec = exec.spec();
    assert_eq!((spec.name.as_str(), spec.vocab, spec.context_tokens), ("synthetic", 77, 100));
    assert_eq!(spec.eos, [2]);
    assert!(spec.digest.starts_with("blake3:"));
    let format = KvFormat { layers: 2, kv_heads: 2, head_dim: 32, block_tokens: 8, dtype: DType::F16 };
    assert_eq!(spec.format, format);
    let longer = load(&support::llama(), CpuOptions { context_tokens: Some(1 << 30), ..CpuOptions::default() });
    assert_eq!(longer.spec().context_tokens, 1024, "the model's own limit stays");
}

#[test]
fn malformed_batches_are_refused_before_anything_is_written() {
    let mut exec = load(&support::llama(), CpuOptions { threads: 1, ..CpuOptions::default() });
    let kv = pool(&exec);
    let two = table(&kv, 0, 1, 2);
    let good = Chunk { tokens: &[1, 2, 3], position: 0, table: &two, want_logits: true };
    let bad = [
        Chunk { tokens: &[], ..good },
        Chunk { tokens: &[77], ..good },
        Chunk { position: 30, ..good },
        Chunk { position: u32::MAX, ..good },
        Chunk { table: &[BlockId(1 << 20)], ..good },
    ];
    for chunk in bad {
        let refused = exec.forward(&[good, chunk], &kv, &mut |_| panic!("nothing may be announced"));
        assert!(matches!(refused, Err(ExecError::BadChunk { index: 1, .. })), "{chunk:?}");
    }
    let other = KvMemory::on_heap(KvFormat { block_tokens: 32, ..exec.spec().format }, 4);
    assert!(matches!(exec.forward(&[good], &other, &mut |_| {}), Err(ExecError::FormatMismatch { .. })));
    assert!(support::contents(&kv, &two, 32).iter().all(|&byte| byte == 0));
    assert!(exec.forward(&[], &kv, &mut |_| {}).unwrap().is_empty());
}

fn refusal(writer: &GgufWriter) -> LoadError {
    let file = Gguf::from_bytes(writer.finish()).unwrap();
    match CpuExecutor::from_gguf(&file, "", CpuOptions { threads: 1, ..CpuOptions::default() }) {
        Ok(_) => panic!("must be refused"),
        Err(error) => error,
    }
}

#[test]
fn models_that_would_be_computed_wrongly_are_refused_by_name() {
    let named = |error: LoadError, name: &str| {
        assert!(error.to_string().contains(name), "`{error}` does not name `{name}`");
    };
    let mut with_more = support::llama();
    with_more.tensor("blk.0.ffn_gate_inp.weight", &[32], TensorType::F32, vec![0; 128]);
    named(refusal(&with_more), "ffn_gate_inp");
    let mut experts = support::llama();
    experts.metadata("llama.expert_count", 8u32);
    named(refusal(&experts), "expert_count");
    let mut yarn = support::llama();
    yarn.metadata("llama.rope.scaling.type", "yarn");
    named(refusal(&yarn), "yarn");
    let mut wide = support::llama();
    wide.metadata("llama.attention.key_length", 48u32);
    assert!(matches!(refusal(&wide), LoadError::Shape { .. }));
    let mut odd = support::llama();
    odd.metadata("llama.attention.key_length", 20u32);
    named(refusal(&odd), "multiple of 16");
    let mut bert = GgufWriter::new();
    bert.metadata("general.architecture", "bert");
    named(refusal(&bert), "bert");
    let mut bare = GgufWriter::new();
    bare.metadata("general.architecture", "llama");
    named(refusal(&bare), "llama.embedding_length");
}

/// A file may be any bytes: loading ends in a model or an error, and a model that loads runs.
#[test]
fn mutated_models_never_panic() {
    let clean = support::llama().finish();
    // Metadata and the tensor table are in front; weights can be any numbers.
    let head = 3_000;
    let mut loaded = 0;
    for seed in 1..=400u64 {
        let mut random = support::Random(seed);
        let mut bytes = clean.clone();
        for _ in 0..1 + random.bits() % 3 {
            let at = (random.bits() % head) as usize;
            bytes[at] = match random.bits() % 3 {
                0 => random.bits() as u8,
                1 => 0,
                _ => bytes[at] ^ 1 << (random.bits() % 8),
            };
        }
        let Ok(file) = Gguf::from_bytes(bytes) else { continue };
        let options = CpuOptions { threads: 1, ..CpuOptions::default() };
        let Ok(mut exec) = CpuExecutor::from_gguf(&file, "mutant", options) else { continue };
        loaded += 1;
        let kv = KvMemory::on_heap(exec.spec().format, 1);
        if exec.spec().context_tokens >= 3 {
            run(&mut exec, &kv, &[BlockId(0)], &[0, 1, 2], 0, 2);
        }
    }
    assert!(loaded > 10, "only {loaded} mutants loaded: the test has no teeth");
}

/// On the real model: greedy continuation of a prompt, the same for f16 and f32 caches and for one token at a time.
#[test]
fn the_real_model_says_paris() {
    let Some(path) = std::env::var_os("KVRAIL_TEST_MODEL") else {
        eprintln!("skipped: KVRAIL_TEST_MODEL names no model");
        return;
    };
    // "The capital of France is", by the model's tokenizer.
    let prompt = [504, 3575, 282, 4649, 314];
    for kv_dtype in [DType::F16, DType::F32] {
        let mut exec =
            CpuExecutor::load(path.as_ref(), CpuOptions { kv_dtype, ..CpuOptions::default() }).expect("a model");
        let kv = KvMemory::on_heap(exec.spec().format, 4);
        let table = table(&kv, 0, 1, 4);
        let whole = run(&mut exec, &kv, &table, &prompt, 0, 64);
        let single = run(&mut exec, &kv, &table, &prompt, 0, 1);
        assert!(support::bits(&whole) == support::bits(&single));
        let best = whole.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0;
        assert_eq!(best, 7042, "Paris");
    }
}

/// The next token's logits hang on every layer's keys and values: with the exponents of one row inverted they are others.
fn inverted_exponents_change_the_logits(exec: &mut CpuExecutor, prompt: &[u32]) {
    let format = exec.spec().format;
    let kv = KvMemory::on_heap(format, 4);
    let table = table(&kv, 0, 1, 4);
    let (last, before) = prompt.split_last().expect("a prompt");
    run(exec, &kv, &table, before, 0, 64);
    let mut step = || run(exec, &kv, &table, &[*last], before.len() as u32, 1);
    let clean = step();
    for layer in 0..format.layers {
        for value in [false, true] {
            let position = layer % before.len() as u32;
            let block = table[(position / format.block_tokens) as usize];
            let at = format.row_offset(layer, value, layer % format.kv_heads, position % format.block_tokens);
            let mut row = vec![0; format.row_bytes() as usize];
            kv.read(block, at, &mut row);
            let inverted: Vec<u8> = row.iter().enumerate().map(|(i, byte)| byte ^ [0, 0x7c][i % 2]).collect();
            kv.write(block, at, &inverted);
            let other = step();
            let same = clean.iter().zip(&other).all(|(a, b)| (a - b).abs() <= 1e-4);
            assert!(!same, "layer {layer}, {}, position {position}", if value { "V" } else { "K" });
            kv.write(block, at, &row);
        }
    }
    assert!(support::bits(&step()) == support::bits(&clean), "and nothing else did");
}

#[test]
fn inverted_exponents_of_any_layer_change_the_logits() {
    for model in [support::llama(), support::qwen()] {
        inverted_exponents_change_the_logits(&mut load(&model, CpuOptions::default()), &tokens(40, 8));
    }
    let Some(path) = std::env::var_os("KVRAIL_TEST_MODEL") else {
        eprintln!("not on the real model: KVRAIL_TEST_MODEL names none");
        return;
    };
    let mut exec = CpuExecutor::load(path.as_ref(), CpuOptions::default()).expect("a model");
    inverted_exponents_change_the_logits(&mut exec, &[504, 3575, 282, 4649, 314]);
}
