//! What every [`Executor`] must pass, whatever it computes: bitwise invariance under chunking, prefix hits and batching,
//! layers told in order and final when told, and no byte touched that is not its own.
//!
//! Each check panics with what went wrong: they are meant for tests.

use kvrail_kv::{KvFormat, TokenId};

use crate::executor::{Chunk, ExecError, Executor, Logits};
use crate::memory::{BlockId, KvMemory};

/// What memory holds before anything is computed: writes outside a sequence's own rows show.
const UNTOUCHED: u8 = 0xa5;

/// All checks, on prompts of a few blocks.
///
/// # Panics
/// On the first law that does not hold.
pub fn check_executor(executor: &mut dyn Executor) {
    check_chunking(executor);
    check_prefix_hit(executor);
    check_ragged_batch(executor);
    check_layers(executor);
    check_refusals(executor);
}

/// A deterministic prompt; different `salt`s share no prefix (in a vocabulary of more than a few tokens).
fn prompt(executor: &dyn Executor, salt: u32, len: u32) -> Vec<TokenId> {
    let vocab = executor.spec().vocab;
    (0..len).map(|i| (i * 31 + salt * 97 + i * i % 13 + 1) % vocab).collect()
}

fn pool(format: KvFormat, blocks: u32) -> KvMemory {
    let kv = KvMemory::on_heap(format, blocks);
    let fill = vec![UNTOUCHED; format.block_bytes() as usize];
    (0..blocks).for_each(|block| kv.write(BlockId(block), 0, &fill));
    kv
}

/// Runs `tokens` from `position` on in chunks of `size`; the logits after the last.
fn run(
    executor: &mut dyn Executor,
    kv: &KvMemory,
    table: &[BlockId],
    tokens: &[TokenId],
    position: usize,
    size: usize,
) -> Logits {
    let mut last = None;
    let mut at = position;
    for piece in tokens[position..].chunks(size) {
        let want_logits = at + piece.len() == tokens.len();
        let chunk = Chunk { tokens: piece, position: at as u32, table, want_logits };
        let mut answers = executor.forward(&[chunk], kv, &mut |_| {}).expect("a well-formed batch");
        assert_eq!(answers.len(), 1, "one answer a chunk");
        last = answers.remove(0);
        assert_eq!(last.is_some(), want_logits, "logits exactly where they are wanted");
        at += piece.len();
    }
    let logits = last.expect("logits of the last chunk");
    assert_eq!(logits.len(), executor.spec().vocab as usize, "one logit a vocabulary item");
    logits
}

/// The rows of a sequence in token order.
fn rows(kv: &KvMemory, table: &[BlockId], tokens: u32) -> Vec<u8> {
    let format = *kv.format();
    let mut bytes = Vec::new();
    let mut row = vec![0; format.row_bytes() as usize];
    for token in 0..tokens {
        for layer in 0..format.layers {
            for value in [false, true] {
                for head in 0..format.kv_heads {
                    let at = format.row_offset(layer, value, head, token % format.block_tokens);
                    kv.read(table[(token / format.block_tokens) as usize], at, &mut row);
                    bytes.extend_from_slice(&row);
                }
            }
        }
    }
    bytes
}

fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

/// Blocks of a sequence scattered backwards over the pool, from `first` on in steps of `step`.
fn table(format: KvFormat, tokens: u32, first: u32, step: u32) -> Vec<BlockId> {
    (0..format.blocks_for(tokens)).rev().map(|i| BlockId(first + i * step)).collect()
}

/// However a prompt is cut, its KV and logits are the same bits.
///
/// # Panics
/// If not.
pub fn check_chunking(executor: &mut dyn Executor) {
    let format = executor.spec().format;
    let block = format.block_tokens;
    let tokens = prompt(executor, 1, 3 * block + block / 2 + 1);
    let n = tokens.len() as u32;
    let blocks = table(format, n, 1, 1);
    let whole_kv = pool(format, 8);
    let whole = run(executor, &whole_kv, &blocks, &tokens, 0, tokens.len());
    let whole_rows = rows(&whole_kv, &blocks, n);
    for size in [1, 7, block as usize, 2 * block as usize] {
        let kv = pool(format, 8);
        let logits = run(executor, &kv, &blocks, &tokens, 0, size);
        assert!(same_bits(&logits, &whole), "chunks of {size} give other logits");
        assert!(rows(&kv, &blocks, n) == whole_rows, "chunks of {size} give other KV");
    }
}

/// KV copied into other blocks goes on as if it had been computed there.
///
/// # Panics
/// If not.
pub fn check_prefix_hit(executor: &mut dyn Executor) {
    let format = executor.spec().format;
    let tokens = prompt(executor, 2, 3 * format.block_tokens + 2);
    let n = tokens.len() as u32;
    let kv = pool(format, 16);
    let first = table(format, n, 0, 1);
    let whole = run(executor, &kv, &first, &tokens, 0, tokens.len());
    for hit in 1..=3_u32 {
        let second = table(format, n, 8, 2);
        let mut bytes = vec![0; format.block_bytes() as usize];
        for i in 0..hit as usize {
            kv.read(first[i], 0, &mut bytes);
            kv.write(second[i], 0, &bytes);
        }
        let position = (hit * format.block_tokens) as usize;
        let logits = run(executor, &kv, &second, &tokens, position, tokens.len());
        assert!(same_bits(&logits, &whole), "a hit of {hit} blocks gives other logits");
        assert!(rows(&kv, &second, n) == rows(&kv, &first, n), "a hit of {hit} blocks gives other KV");
    }
}

/// Prompts and decode steps in one batch answer as each would alone, and nobody's other bytes change.
///
/// # Panics
/// If not.
pub fn check_ragged_batch(executor: &mut dyn Executor) {
    let format = executor.spec().format;
    let block = format.block_tokens;
    // A decode step, a whole prompt, the middle of a prompt, another decode step.
    let sequences = [
        (prompt(executor, 3, 2 * block + 1), 2 * block, true),
        (prompt(executor, 4, block + 3), 0, true),
        (prompt(executor, 5, 3 * block), block, false),
        (prompt(executor, 6, 2), 1, true),
    ];
    let kv = pool(format, 24);
    let tables: Vec<Vec<BlockId>> = (0..).zip(&sequences).map(|(i, s)| table(format, s.0.len() as u32, i, 4)).collect();
    for ((tokens, position, _), table) in sequences.iter().zip(&tables) {
        if *position > 0 {
            run(executor, &kv, table, &tokens[..*position as usize], 0, tokens.len());
        }
    }
    let batch: Vec<Chunk<'_>> = sequences
        .iter()
        .zip(&tables)
        .map(|((tokens, position, want_logits), table)| Chunk {
            tokens: &tokens[*position as usize..],
            position: *position,
            table,
            want_logits: *want_logits,
        })
        .collect();
    let answers = executor.forward(&batch, &kv, &mut |_| {}).expect("a well-formed batch");
    assert_eq!(answers.len(), batch.len(), "one answer a chunk");
    for (i, ((tokens, _, want_logits), answer)) in sequences.iter().zip(&answers).enumerate() {
        let n = tokens.len() as u32;
        let alone_kv = pool(format, 8);
        let alone_table = table(format, n, 0, 1);
        let alone = run(executor, &alone_kv, &alone_table, tokens, 0, tokens.len());
        assert!(rows(&kv, &tables[i], n) == rows(&alone_kv, &alone_table, n), "sequence {i}: other KV in the batch");
        assert_eq!(answer.is_some(), *want_logits, "sequence {i}: logits exactly where they are wanted");
        if let Some(logits) = answer {
            assert!(same_bits(logits, &alone), "sequence {i}: other logits in the batch");
        }
    }
    check_untouched(&kv, &tables, &sequences.each_ref().map(|s| s.0.len() as u32));
}

/// Every byte outside the valid rows of the sequences is as it was.
fn check_untouched(kv: &KvMemory, tables: &[Vec<BlockId>], tokens: &[u32]) {
    let format = *kv.format();
    let mut valid = vec![0; kv.blocks() as usize];
    for (table, &tokens) in tables.iter().zip(tokens) {
        for (i, block) in (0..).zip(table) {
            valid[block.0 as usize] = (tokens - i * format.block_tokens).min(format.block_tokens);
        }
    }
    let mut bytes = vec![0; format.block_bytes() as usize];
    for (block, valid) in (0..).zip(valid) {
        kv.read(BlockId(block), 0, &mut bytes);
        let mut free = bytes.chunks(format.row_bytes() as usize).enumerate().filter(|(row, _)| {
            let token = *row as u64 % u64::from(format.block_tokens);
            token >= valid.into()
        });
        let ok = free.all(|(_, row)| row.iter().all(|&byte| byte == UNTOUCHED));
        assert!(ok, "block {block} was written past its {valid} valid tokens");
    }
}

/// `on_layer` fires once a layer, in order, and the layer's rows do not change afterwards.
///
/// # Panics
/// If not.
pub fn check_layers(executor: &mut dyn Executor) {
    let format = executor.spec().format;
    let tokens = prompt(executor, 7, format.block_tokens + 3);
    let kv = pool(format, 4);
    let blocks = table(format, tokens.len() as u32, 1, 1);
    let layer_of = |kv: &KvMemory, layer: u32| {
        let mut bytes = vec![0; format.layer_bytes() as usize * blocks.len()];
        for (block, out) in blocks.iter().zip(bytes.chunks_mut(format.layer_bytes() as usize)) {
            kv.read(*block, format.layer_span(layer, format.block_tokens).offset, out);
        }
        bytes
    };
    let mut told = Vec::new();
    let chunk = Chunk { tokens: &tokens, position: 0, table: &blocks, want_logits: false };
    executor
        .forward(&[chunk], &kv, &mut |layer| told.push((layer, layer_of(&kv, layer))))
        .expect("a well-formed batch");
    let order: Vec<u32> = told.iter().map(|t| t.0).collect();
    assert_eq!(order, (0..format.layers).collect::<Vec<_>>(), "every layer once, in order");
    for (layer, bytes) in told {
        assert!(bytes == layer_of(&kv, layer), "layer {layer} changed after it was told");
    }
}

/// Malformed batches are refused by index before anything is written or told.
///
/// # Panics
/// If not.
pub fn check_refusals(executor: &mut dyn Executor) {
    let spec = executor.spec().clone();
    let kv = pool(spec.format, 2);
    let good = Chunk { tokens: &[0], position: 0, table: &[BlockId(0)], want_logits: true };
    let too_many = vec![0; spec.format.block_tokens as usize + 1];
    let bad = [
        Chunk { tokens: &[], ..good },
        Chunk { tokens: &[spec.vocab], ..good },
        Chunk { tokens: &too_many, ..good },
        Chunk { table: &[BlockId(2)], ..good },
        Chunk { position: spec.context_tokens, ..good },
        Chunk { position: u32::MAX, ..good },
    ];
    for chunk in bad {
        let mut told = false;
        let answer = executor.forward(&[good, chunk], &kv, &mut |_| told = true);
        assert!(matches!(answer, Err(ExecError::BadChunk { index: 1, .. })), "{chunk:?} gave {answer:?}");
        assert!(!told, "a layer was told of a refused batch");
        check_untouched(&kv, &[], &[]);
    }
    let other = KvFormat { layers: spec.format.layers + 1, ..spec.format };
    let answer = executor.forward(&[good], &pool(other, 2), &mut |_| {});
    assert!(matches!(answer, Err(ExecError::FormatMismatch { .. })), "another format gave {answer:?}");
}
