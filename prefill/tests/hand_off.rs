//! The KV that arrives is the KV that was computed: every byte, over both transports, cold and warm, alone and in a crowd.

mod support;

use kvrail_engine::BlockId;
use kvrail_engine::sampling::{Sampler, SamplingParams, StopRule};
use kvrail_proto::v1;
use kvrail_transfer::TransportKind;
use support::{Decode, Node, greedy, hand_off, prompt, table, within};

/// A model with several planes a layer, so that tails are strided.
const MODEL: &str = "mock:layers=4,kv_heads=2,head_dim=8,block_tokens=16";

async fn every_byte_arrives(transport: TransportKind) {
    let node = Node::start(MODEL, transport, |_| {}).await;
    let decode = Decode::new(&node, transport, 128);
    let mut client = node.client();
    let mut first_id = 0;
    for (salt, len) in [(1, 1), (2, 15), (3, 16), (4, 17), (5, 64), (6, 65), (7, 250)] {
        let tokens = prompt(salt, len);
        let table = table(&decode, tokens.len(), first_id);
        first_id = (first_id + 1) % 3;
        let outcome = hand_off(&decode, &mut client, decode.start(&tokens), &table).await;
        decode.check(&tokens, &table, 0);
        assert_eq!(outcome.first.token.as_ref().map(|t| (t.index, t.token)), Some((0, greedy(&decode, &tokens))));
        assert_eq!(outcome.first.cached_tokens, 0);
        assert_eq!(outcome.done.payload_bytes, u64::from(len) * decode.format.token_bytes(), "each valid byte once");
        assert_eq!(outcome.done.computed_tokens, len);
        for lease in outcome.leases {
            within("the fence", lease.revoke()).await;
        }
        let fill = vec![support::UNTOUCHED; decode.format.block_bytes() as usize];
        table.iter().for_each(|&block| decode.kv.write(block, 0, &fill));
    }
    let status = node.idle().await;
    assert_eq!(status["kv"]["payload_bytes"], (1 + 15 + 16 + 17 + 64 + 65 + 250) * decode.format.token_bytes());
    assert_eq!(status["blocks"]["cached"], 1 + 1 + 4 + 4 + 15, "whole blocks stay as cache");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_byte_arrives_over_tcp() {
    every_byte_arrives(TransportKind::Tcp).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_byte_arrives_over_shared_memory() {
    every_byte_arrives(TransportKind::Shm).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_either_side_holds_is_not_done_again() {
    let node = Node::start(MODEL, TransportKind::Tcp, |_| {}).await;
    let decode = Decode::new(&node, TransportKind::Tcp, 128);
    let mut client = node.client();
    let tokens = prompt(1, 100);
    // (blocks D holds, tokens P must have cached): cold, then warm with D holding none, some, and more than P may reuse.
    for (held, cached) in [(2, 0), (0, 96), (3, 96), (6, 96)] {
        let table = table(&decode, tokens.len(), 0);
        let start = v1::PrefillStart { blocks_held: held, ..decode.start(&tokens) };
        let outcome = hand_off(&decode, &mut client, start, &table).await;
        assert_eq!(outcome.first.cached_tokens, cached);
        assert_eq!(outcome.first.token.map(|t| t.token), Some(greedy(&decode, &tokens)));
        assert_eq!(outcome.done.payload_bytes, u64::from(100 - held * 16) * decode.format.token_bytes());
        decode.check(&tokens, &table, held);
        decode.check_untouched(table[..held as usize].iter().copied());
        for lease in outcome.leases {
            within("the fence", lease.revoke()).await;
        }
        let fill = vec![support::UNTOUCHED; decode.format.block_bytes() as usize];
        table.iter().for_each(|&block| decode.kv.write(block, 0, &fill));
    }
    // D holds every block of a prompt that fills its last one: the first token alone is wanted.
    let start = v1::PrefillStart { blocks_held: 4, ..decode.start(&tokens[..64]) };
    let outcome = hand_off(&decode, &mut client, start, &table(&decode, 64, 0)).await;
    assert_eq!((outcome.first.cached_tokens, outcome.done.payload_bytes, outcome.leases.len()), (48, 0, 0));
    // Another tenant's salt finds nothing.
    let start = v1::PrefillStart { salt: "other".into(), ..decode.start(&tokens) };
    let outcome = hand_off(&decode, &mut client, start, &table(&decode, tokens.len(), 0)).await;
    assert_eq!(outcome.first.cached_tokens, 0);
    node.idle().await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sampling_goes_on_after_a_forced_output() {
    let node = Node::start(MODEL, TransportKind::Shm, |_| {}).await;
    let decode = Decode::new(&node, TransportKind::Shm, 128);
    let mut client = node.client();
    let params = SamplingParams {
        temperature: 0.9,
        top_p: 0.8,
        repetition_penalty: 1.3,
        frequency_penalty: 0.5,
        seed: 11,
        choice: 2,
        logprobs: true,
        top_logprobs: 3,
        ..SamplingParams::default()
    };
    let tokens = prompt(9, 50);
    let (prompt_tokens, forced) = tokens.split_at(40);
    let mut sampler = Sampler::new(params.clone(), StopRule::length(16), prompt_tokens).expect("valid");
    forced.iter().for_each(|&token| assert!(sampler.push(token).is_none()));
    let expected = sampler.sample(&decode.arithmetic.expected_logits(&tokens)).expect("a token");

    let start = v1::PrefillStart {
        prompt_tokens: 40,
        sampling: Some(v1::Sampling {
            temperature: params.temperature,
            top_p: params.top_p,
            repetition_penalty: params.repetition_penalty,
            frequency_penalty: params.frequency_penalty,
            seed: params.seed,
            choice: params.choice,
            logprobs: true,
            top_logprobs: 3,
            ..Default::default()
        }),
        ..decode.start(&tokens)
    };
    let outcome = hand_off(&decode, &mut client, start, &table(&decode, 50, 0)).await;
    let token = outcome.first.token.expect("a token");
    assert_eq!((token.index, token.token, token.logprob), (10, expected.token, expected.logprob));
    let top: Vec<(u32, f32)> = token.top.iter().map(|t| (t.token, t.logprob)).collect();
    assert_eq!(top, expected.top);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_of_one_token_ends_its_lease() {
    let node = Node::start(MODEL, TransportKind::Tcp, |_| {}).await;
    let decode = Decode::new(&node, TransportKind::Tcp, 32);
    let mut client = node.client();
    let tokens = prompt(1, 40);
    let stop = v1::StopRule { max_tokens: 1, ..Default::default() };
    let start = v1::PrefillStart { stop: Some(stop), ..decode.start(&tokens) };
    let outcome = hand_off(&decode, &mut client, start, &table(&decode, 40, 0)).await;
    assert_eq!(outcome.first.finish, i32::from(v1::FinishReason::Length));
    for lease in outcome.leases {
        within("the fence", lease.revoke()).await;
    }
    node.idle().await;
    node.stop().await;
}

/// Requests of all lengths at once, some sharing prefixes, on a pool that cannot hold them all.
async fn a_crowd(transport: TransportKind) {
    let node = Node::start(MODEL, transport, |config| {
        config.node.pool = kvrail_node::PoolSize::Blocks(40);
        config.limits.running_max = 4;
    })
    .await;
    let decode = std::sync::Arc::new(Decode::new(&node, transport, 1024));
    let mut calls = Vec::new();
    let mut next_block = 0;
    for i in 0..32_u32 {
        let len = 1 + (i * 61) % 200;
        let mut tokens = prompt(i % 5, len);
        if i % 3 == 0 && len > 20 {
            tokens[20] ^= 1;
        }
        let blocks = decode.format.blocks_for(len);
        let table: Vec<BlockId> = (next_block..next_block + blocks).map(BlockId).collect();
        next_block += blocks;
        let (decode, mut client) = (std::sync::Arc::clone(&decode), node.client());
        calls.push(tokio::spawn(async move {
            let outcome = hand_off(&decode, &mut client, decode.start(&tokens), &table).await;
            decode.check(&tokens, &table, 0);
            assert_eq!(outcome.first.token.map(|t| t.token), Some(greedy(&decode, &tokens)));
            outcome.done.payload_bytes
        }));
    }
    let mut bytes = 0;
    for call in calls {
        bytes += within("a call", call).await.expect("no panic");
    }
    let status = node.idle().await;
    assert_eq!(status["kv"]["payload_bytes"], bytes);
    let free = status["blocks"]["free"].as_u64().expect("a number");
    assert_eq!(free + status["blocks"]["cached"].as_u64().expect("a number"), 40, "no block is lost");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_over_tcp() {
    a_crowd(TransportKind::Tcp).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_over_shared_memory() {
    a_crowd(TransportKind::Shm).await;
}
