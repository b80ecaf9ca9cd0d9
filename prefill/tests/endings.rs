//! Requests that do not end well: the executor stops within a chunk, memory that was taken back stays as it is, others
//! notice nothing, and nothing stays held.

mod support;

use std::time::{Duration, Instant};

use kvrail_proto::v1;
use kvrail_proto::v1::prefill_reply::Message as Reply;
use kvrail_proto::v1::prefill_request::Message as Request;
use kvrail_transfer::{LeaseTicket, TransportKind};
use support::{Call, Decode, Node, greedy, hand_off, prompt, table, within};

/// 64 tokens a chunk at 1 ms a token: a prompt of 4,000 tokens takes 4 s.
const SLOW: &str = "mock:layers=4,prefill_us=1000";
const LONG: u32 = 4000;

/// Opens a long request and grants its first blocks, under a lease of all; returns when some of it has landed.
async fn begin(
    decode: &Decode,
    node: &Node,
    table: &[kvrail_engine::BlockId],
    start: v1::PrefillStart,
) -> (Call, kvrail_transfer::Lease) {
    let mut call = Call::open(&mut node.client(), start).await;
    let lease = decode.lend(table);
    loop {
        match call.next().await.expect("a lease is wanted") {
            Reply::LeaseWanted(wanted) => {
                grant(&call, &wanted, table, &lease.ticket()).await;
                break;
            }
            Reply::Queued(_) => {}
            other => panic!("{other:?}"),
        }
    }
    within("bytes to land", async {
        while lease.bytes_landed() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    (call, lease)
}

/// Grants what is wanted.
async fn grant(call: &Call, wanted: &v1::LeaseWanted, table: &[kvrail_engine::BlockId], ticket: &LeaseTicket) {
    let ids = &table[wanted.first_block as usize..(wanted.first_block + wanted.count) as usize];
    call.grant(wanted.first_block, ids, ticket).await;
}

/// Goes on granting under a lease that is gone: whether the node was writing then, or comes to write only under the next
/// grant, it must fail.
async fn failure_while_granting(
    call: &mut Call,
    table: &[kvrail_engine::BlockId],
    ticket: &LeaseTicket,
) -> v1::Failure {
    loop {
        match call.next().await.expect("a failure") {
            Reply::LeaseWanted(wanted) => grant(call, &wanted, table, ticket).await,
            Reply::Failure(failure) => return failure,
            _ => {}
        }
    }
}

/// The node computed no more than what a chunk or two take after `begin`: far from the whole prompt.
async fn stopped_early(node: &Node) {
    let status = node.idle().await;
    let computed = status["prefill"]["computed_tokens"].as_u64().expect("a number");
    assert!(computed < u64::from(LONG) / 2, "{computed} of {LONG} tokens were computed");
    // And it serves on.
    let decode = Decode::new(node, TransportKind::Tcp, 8);
    let tokens = prompt(77, 20);
    let blocks = table(&decode, 20, 0);
    let outcome = hand_off(&decode, &mut node.client(), decode.start(&tokens), &blocks).await;
    assert_eq!(outcome.first.token.map(|t| t.token), Some(greedy(&decode, &tokens)));
    decode.check(&tokens, &blocks, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_request_stops_within_a_chunk() {
    let node = Node::start(SLOW, TransportKind::Tcp, |_| {}).await;
    let decode = Decode::new(&node, TransportKind::Tcp, 1024);
    let tokens = prompt(1, LONG);
    let blocks = table(&decode, LONG as usize, 0);
    let (mut call, _lease) = begin(&decode, &node, &blocks, decode.start(&tokens)).await;
    call.send(Request::Cancel(v1::PrefillCancel { reason: "enough".into() })).await;
    let failure = call.failure().await;
    assert_eq!((failure.code.as_str(), failure.message.as_str()), ("cancelled", "enough"));
    stopped_early(&node).await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_stream_cancels() {
    let node = Node::start(SLOW, TransportKind::Tcp, |_| {}).await;
    let decode = Decode::new(&node, TransportKind::Tcp, 1024);
    let tokens = prompt(1, LONG);
    let blocks = table(&decode, LONG as usize, 0);
    let (call, _lease) = begin(&decode, &node, &blocks, decode.start(&tokens)).await;
    drop(call);
    stopped_early(&node).await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_lease_stops_and_the_memory_stays_as_it_is() {
    let node = Node::start(SLOW, TransportKind::Tcp, |_| {}).await;
    let decode = Decode::new(&node, TransportKind::Tcp, 1024);
    let tokens = prompt(1, LONG);
    let blocks = table(&decode, LONG as usize, 0);
    let (mut call, lease) = begin(&decode, &node, &blocks, decode.start(&tokens)).await;
    let ticket = lease.ticket();
    within("the fence", lease.revoke()).await;
    let fill = vec![support::UNTOUCHED; decode.format.block_bytes() as usize];
    blocks.iter().for_each(|&block| decode.kv.write(block, 0, &fill));
    let failure = failure_while_granting(&mut call, &blocks, &ticket).await;
    assert_eq!(failure.code, "lease_expired");
    stopped_early(&node).await;
    decode.check_untouched(blocks.iter().copied());
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_decode_engine_is_a_lost_peer() {
    let node = Node::start(SLOW, TransportKind::Tcp, |_| {}).await;
    let decode = Decode::new(&node, TransportKind::Tcp, 1024);
    let tokens = prompt(1, LONG);
    let blocks = table(&decode, LONG as usize, 0);
    let (mut call, lease) = begin(&decode, &node, &blocks, decode.start(&tokens)).await;
    let ticket = lease.ticket();
    drop((lease, decode));
    let code = failure_while_granting(&mut call, &blocks, &ticket).await.code;
    assert!(code == "peer_lost" || code == "lease_expired", "{code}");
    stopped_early(&node).await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_gets_no_lease_delays_nobody_and_ends_by_its_deadline() {
    let node = Node::start("mock:layers=4,prefill_us=200", TransportKind::Shm, |_| {}).await;
    let decode = Decode::new(&node, TransportKind::Shm, 64);
    let mut client = node.client();
    let asked = Instant::now();
    let stuck = v1::PrefillStart { deadline_ms: 1500, ..decode.start(&prompt(9, 60)) };
    let mut stuck = Call::open(&mut client, stuck).await;
    for salt in 0..3 {
        let tokens = prompt(salt, 60);
        let blocks = table(&decode, 60, salt);
        hand_off(&decode, &mut client, decode.start(&tokens), &blocks).await;
        decode.check(&tokens, &blocks, 0);
    }
    // It was computed and its first token told, without a lease.
    let mut first = false;
    let failure = loop {
        match stuck.next().await.expect("a failure") {
            Reply::FirstToken(_) => first = true,
            Reply::Failure(failure) => break failure,
            _ => {}
        }
    };
    assert!(first);
    assert_eq!(failure.code, "deadline_exceeded");
    assert!(asked.elapsed() >= Duration::from_millis(1500));
    node.idle().await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_that_were_not_asked_for_are_refused() {
    let node = Node::start(SLOW, TransportKind::Tcp, |_| {}).await;
    let decode = Decode::new(&node, TransportKind::Tcp, 64);
    let mut client = node.client();
    let blocks = table(&decode, 100, 0);
    let lease = decode.lend(&blocks);
    let granted = |first_block: u32, count: u32, ids: usize, ticket: Vec<u8>| v1::LeaseGranted {
        first_block,
        count,
        ticket,
        block_ids: blocks[..ids].iter().map(|b| b.0).collect(),
    };
    let ticket = lease.ticket().to_bytes().to_vec();
    // Prompts that share no block, so that each asks for the four blocks of its first chunk first.
    for (salt, bad) in (0..).zip([
        granted(1, 1, 1, ticket.clone()),
        granted(0, 0, 0, ticket.clone()),
        granted(0, 2, 1, ticket.clone()),
        granted(0, u32::MAX, 1, ticket.clone()),
        granted(0, 7, 7, ticket.clone()),
        granted(0, 1, 1, vec![1, 2, 3]),
    ]) {
        let mut call = Call::open(&mut client, decode.start(&prompt(salt, 100))).await;
        while !matches!(call.next().await.expect("a lease is wanted"), Reply::LeaseWanted(_)) {}
        call.send(Request::LeaseGranted(bad.clone())).await;
        assert_eq!(call.failure().await.code, "invalid_request", "{bad:?}");
    }
    // Another block than the ticket is for.
    let mut call = Call::open(&mut client, decode.start(&prompt(99, 100))).await;
    while !matches!(call.next().await.expect("a lease is wanted"), Reply::LeaseWanted(_)) {}
    let elsewhere = v1::LeaseGranted { block_ids: vec![50], ..granted(0, 1, 1, ticket) };
    call.send(Request::LeaseGranted(elsewhere)).await;
    assert_eq!(call.failure().await.code, "invalid_request");
    node.idle().await;
    decode.check_untouched((0..64).map(kvrail_engine::BlockId));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_lets_what_runs_end() {
    let mut node = Node::start(SLOW, TransportKind::Tcp, |_| {}).await;
    let decode = Decode::new(&node, TransportKind::Tcp, 64);
    let tokens = prompt(1, 300);
    let blocks = table(&decode, 300, 0);
    let mut client = node.client();
    let call = hand_off(&decode, &mut client, decode.start(&tokens), &blocks);
    let drain = async {
        while node.status().await["requests"]["running"] == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        node.begin_shutdown(support::PATIENCE);
    };
    let (outcome, ()) = tokio::join!(call, drain);
    assert_eq!(outcome.first.token.map(|t| t.token), Some(greedy(&decode, &tokens)));
    decode.check(&tokens, &blocks, 0);
    node.stop().await;
}
