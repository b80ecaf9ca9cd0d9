//! One order of arithmetic: the same tokens give the same KV bytes and logits, bit for bit, however they are computed.

mod support;

use kvrail_engine::cpu::{CpuOptions, Isa};
use kvrail_engine::{BlockId, Chunk, Executor};
use kvrail_gguf::writer::GgufWriter;
use kvrail_kv::DType;
use support::{bits, contents, load, pool, run, table, tokens};

const PROMPT: usize = 300;

fn one_thread() -> CpuOptions {
    CpuOptions { threads: 1, ..CpuOptions::default() }
}

/// The KV bytes and logits of the prompt, in one chunk, by the options.
fn whole(model: &GgufWriter, options: CpuOptions) -> (Vec<u8>, Vec<u32>) {
    let mut exec = load(model, options);
    let kv = pool(&exec);
    let table = table(&kv, 0, 1, kv.format().blocks_for(PROMPT as u32));
    let logits = run(&mut exec, &kv, &table, &tokens(PROMPT, 1), 0, 4096);
    assert!(logits.iter().all(|v| v.is_finite()) && logits.len() == support::VOCAB);
    (contents(&kv, &table, PROMPT), bits(&logits))
}

#[test]
fn chunking_changes_no_bit() {
    for model in [support::llama(), support::qwen()] {
        for kv_dtype in [DType::F16, DType::F32] {
            let options = CpuOptions { kv_dtype, ..one_thread() };
            let expected = whole(&model, options.clone());
            let mut exec = load(&model, options);
            for size in [512, 128, 100, 16, 7, 1] {
                let kv = pool(&exec);
                let table = table(&kv, 5, 7, kv.format().blocks_for(PROMPT as u32));
                let logits = run(&mut exec, &kv, &table, &tokens(PROMPT, 1), 0, size);
                assert!(contents(&kv, &table, PROMPT) == expected.0, "KV bytes, {kv_dtype:?}, chunks of {size}");
                assert!(bits(&logits) == expected.1, "logits, {kv_dtype:?}, chunks of {size}");
            }
        }
    }
}

#[test]
fn threads_change_no_bit() {
    for model in [support::llama(), support::qwen()] {
        let expected = whole(&model, one_thread());
        for threads in [2, 3, 5] {
            assert!(whole(&model, CpuOptions { threads, ..one_thread() }) == expected, "{threads} threads");
        }
    }
}

/// The tolerance between instruction sets is zero.
#[test]
fn instruction_sets_change_no_bit() {
    assert!(Isa::available().count() >= 1);
    for model in [support::llama(), support::qwen()] {
        let scalar = whole(&model, CpuOptions { isa: Some(Isa::Scalar), ..one_thread() });
        for isa in Isa::available() {
            assert!(whole(&model, CpuOptions { isa: Some(isa), ..one_thread() }) == scalar, "{isa}");
        }
    }
}

#[test]
fn the_size_of_a_block_changes_no_bit() {
    let model = support::llama();
    let expected = whole(&model, one_thread());
    for block_tokens in [1, 8, 24, 64] {
        assert!(
            whole(&model, CpuOptions { block_tokens, ..one_thread() }) == expected,
            "{block_tokens} tokens a block"
        );
    }
}

#[test]
fn a_prefix_hit_changes_no_bit() {
    let model = support::llama();
    let expected = whole(&model, one_thread());
    let mut exec = load(&model, one_thread());
    let kv = pool(&exec);
    let prompt = tokens(PROMPT, 1);
    // Another request has left the first ten blocks, and went on otherwise.
    let first = table(&kv, 0, 1, 20);
    let other = [&prompt[..160], &tokens(100, 9)[..]].concat();
    run(&mut exec, &kv, &first, &other, 0, 64);
    let second = [&first[..10], &table(&kv, 100, 1, 9)[..]].concat();
    let logits = run(&mut exec, &kv, &second, &prompt[160..], 160, 4096);
    assert!(contents(&kv, &second, PROMPT) == expected.0);
    assert!(bits(&logits) == expected.1);
}

#[test]
fn the_rest_of_a_batch_changes_no_bit() {
    for model in [support::llama(), support::qwen()] {
        let mut exec = load(&model, CpuOptions { threads: 2, ..one_thread() });
        // Sequences with so many positions in the cache already, and the tokens that come next.
        let lengths = [37usize, 1, 160, 15, 16];
        let next: [Vec<u32>; 5] = [vec![3], vec![9], vec![70], tokens(33, 5), tokens(2, 6)];
        let alone = pool(&exec);
        let together = pool(&exec);
        let tables: Vec<Vec<BlockId>> = (0..5).map(|i| table(&alone, i * 40, 1, 16)).collect();
        for (i, (&length, table)) in lengths.iter().zip(&tables).enumerate() {
            run(&mut exec, &alone, table, &tokens(length, 50 + i as u64), 0, 64);
            run(&mut exec, &together, table, &tokens(length, 50 + i as u64), 0, 64);
        }
        let chunks: Vec<Chunk<'_>> = (0..5)
            .map(|i| Chunk {
                tokens: &next[i],
                position: lengths[i] as u32,
                table: &tables[i],
                want_logits: i != 3, // a prompt's middle chunk wants none
            })
            .collect();
        let batch = exec.forward(&chunks, &together, &mut |_| {}).unwrap();
        assert!(batch[3].is_none());
        for (i, chunk) in chunks.iter().enumerate() {
            let logits = exec.forward(&[*chunk], &alone, &mut |_| {}).unwrap().remove(0);
            assert!(logits.as_deref().map(bits) == batch[i].as_deref().map(bits), "logits of sequence {i}");
            let count = lengths[i] + chunk.tokens.len();
            let same = contents(&alone, chunk.table, count) == contents(&together, chunk.table, count);
            assert!(same, "KV bytes of sequence {i}");
        }
    }
}

/// Bytes past the last valid token are whatever another sequence left: they must not be read.
#[test]
fn what_lies_behind_the_last_token_is_not_read() {
    let model = support::llama();
    let expected = whole(&model, one_thread());
    let mut exec = load(&model, one_thread());
    let kv = pool(&exec);
    for block in 0..kv.blocks() {
        kv.write(BlockId(block), 0, &vec![0xff; kv.format().block_bytes() as usize]); // NaN in f16
    }
    let table = table(&kv, 0, 1, kv.format().blocks_for(PROMPT as u32));
    for size in [1, 100] {
        let logits = run(&mut exec, &kv, &table, &tokens(PROMPT, 1), 0, size);
        assert!(bits(&logits) == expected.1, "chunks of {size}");
    }
}

#[test]
fn a_layer_is_complete_when_it_is_announced() {
    let model = support::llama();
    let mut exec = load(&model, CpuOptions { threads: 2, ..one_thread() });
    let kv = pool(&exec);
    let (first, second) = (table(&kv, 0, 1, 4), table(&kv, 10, 1, 4));
    let (a, b) = (tokens(50, 1), tokens(20, 2));
    let chunks = [
        Chunk { tokens: &a, position: 0, table: &first, want_logits: false },
        Chunk { tokens: &b, position: 0, table: &second, want_logits: true },
    ];
    let layer_bytes = |layer: u32| {
        let format = kv.format();
        let mut bytes = vec![0; format.layer_bytes() as usize];
        let mut all = Vec::new();
        for &block in first.iter().chain(&second) {
            kv.read(block, format.layer_span(layer, format.block_tokens).offset, &mut bytes);
            all.extend_from_slice(&bytes);
        }
        all
    };
    let mut announced = Vec::new();
    exec.forward(&chunks, &kv, &mut |layer| announced.push((layer, layer_bytes(layer)))).unwrap();
    assert_eq!(announced.iter().map(|a| a.0).collect::<Vec<_>>(), (0..support::LAYERS as u32).collect::<Vec<_>>());
    for (layer, then) in announced {
        assert!(then.iter().any(|&byte| byte != 0) && then == layer_bytes(layer), "layer {layer}");
    }
}
