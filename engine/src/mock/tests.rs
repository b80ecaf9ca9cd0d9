//! The mock keeps its own promises; the laws of any executor are `testing`'s.

use std::time::{Duration, Instant};

use kvrail_kv::{DType, KvFormat};

use super::*;
use crate::memory::BlockId;
use crate::testing;

fn small() -> MockExecutor {
    let format = KvFormat { layers: 3, kv_heads: 2, head_dim: 6, block_tokens: 4, dtype: DType::F16 };
    MockExecutor::new(MockOptions { format, ..MockOptions::default() }).unwrap()
}

fn run(executor: &mut MockExecutor, kv: &KvMemory, table: &[BlockId], tokens: &[TokenId]) -> Logits {
    let chunk = Chunk { tokens, position: 0, table, want_logits: true };
    executor.forward(&[chunk], kv, &mut |_| {}).unwrap().remove(0).unwrap()
}

#[test]
fn it_is_an_executor() {
    testing::check_executor(&mut small());
    testing::check_executor(&mut MockExecutor::new(MockOptions::default()).unwrap());
}

#[test]
fn anybody_can_compute_its_bytes_and_logits() {
    let mut executor = small();
    let tokens: Vec<u32> = (0..10).map(|i| i * 7 % 250).collect();
    let kv = KvMemory::on_heap(executor.spec().format, 5);
    let table = [BlockId(4), BlockId(0), BlockId(2)];
    let logits = run(&mut executor, &kv, &table, &tokens);
    for (index, &block) in (0..).zip(&table) {
        executor.arithmetic().check_block(&kv, block, &tokens, index).unwrap();
    }
    assert_eq!(logits, executor.arithmetic().expected_logits(&tokens));
    let other = [&[9], &tokens[1..]].concat();
    assert!(executor.arithmetic().check_block(&kv, BlockId(2), &other, 2).is_err(), "all tokens before it matter");
}

#[test]
fn every_bit_of_a_valid_row_matters_and_no_other() {
    let mut executor = small();
    let tokens: Vec<u32> = (0..6).collect();
    let format = executor.spec().format;
    let kv = KvMemory::on_heap(format, 2);
    let table = [BlockId(0), BlockId(1)];
    run(&mut executor, &kv, &table, &tokens);
    // One more token, so that the cache is read as a decode node reads it.
    let step = Chunk { tokens: &[6], position: 6, table: &table, want_logits: true };
    let mut decode = |kv: &KvMemory| executor.forward(&[step], kv, &mut |_| {}).unwrap().remove(0).unwrap();
    let clean = decode(&kv);
    assert_eq!(clean, decode(&kv));
    let valid_rows: Vec<u64> = (0..6_u32)
        .flat_map(|p| {
            (0..format.layers).flat_map(move |layer| {
                bytes::planes(&format)
                    .map(move |(v, h)| u64::from(p / 4) * format.block_bytes() + format.row_offset(layer, v, h, p % 4))
            })
        })
        .collect();
    let is_valid = |at: u64| valid_rows.iter().any(|row| (*row..row + format.row_bytes()).contains(&at));
    let is_stepped = |at: u64| {
        // The step itself writes the row of position 6, and with it over any damage there.
        let in_block = at.checked_sub(format.block_bytes());
        in_block.is_some_and(|at| at % format.plane_bytes() / format.row_bytes() == 2)
    };
    for at in 0..2 * format.block_bytes() {
        let (block, offset) = (BlockId((at / format.block_bytes()) as u32), at % format.block_bytes());
        let mut byte = [0];
        kv.read(block, offset, &mut byte);
        for bit in [0, 3, 7] {
            kv.write(block, offset, &[byte[0] ^ 1 << bit]);
            let same = decode(&kv) == clean;
            assert_eq!(same, !is_valid(at) || is_stepped(at), "byte {at}, bit {bit}");
            kv.write(block, offset, &byte);
        }
    }
    assert_eq!(decode(&kv), clean);
}

#[test]
fn layers_complete_evenly_over_the_step() {
    let step = StepModel::Constant { prefill_per_token: Duration::from_millis(3), decode_step: Duration::ZERO };
    let mut executor = MockExecutor::new(MockOptions { step, ..MockOptions::default() }).unwrap();
    let kv = KvMemory::on_heap(executor.spec().format, 1);
    let chunk = Chunk { tokens: &[1; 10], position: 0, table: &[BlockId(0)], want_logits: false };
    let started = Instant::now();
    let mut at = Vec::new();
    executor.forward(&[chunk], &kv, &mut |_| at.push(started.elapsed())).unwrap();
    // Lower bounds only: a busy machine may be late, never early.
    assert!(at[0] >= Duration::from_millis(15) && at[1] >= Duration::from_millis(30), "{at:?}");
}
