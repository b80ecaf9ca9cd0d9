//! What is refused, and how: a typed failure as the last message, and nothing held afterwards.

mod support;

use kvrail_proto::v1;
use kvrail_proto::v1::prefill_reply::Message as Reply;
use kvrail_proto::v1::prefill_request::Message as Request;
use kvrail_transfer::TransportKind;
use support::{Call, Decode, Node, prompt, within};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_requests_are_refused_by_code() {
    let node = Node::start("mock:context=512", TransportKind::Tcp, |config| {
        config.node.pool = kvrail_node::PoolSize::Blocks(16);
    })
    .await;
    let decode = Decode::new(&node, TransportKind::Tcp, 4);
    let mut client = node.client();
    let good = decode.start(&prompt(1, 40));
    let cases: [(&str, v1::PrefillStart); 9] = [
        ("wrong_namespace", v1::PrefillStart { namespace_id: 7, ..good.clone() }),
        ("too_long", decode.start(&prompt(1, 600))),
        ("too_long", decode.start(&prompt(1, 300))),
        ("invalid_request", v1::PrefillStart { tokens: vec![], ..good.clone() }),
        ("invalid_request", v1::PrefillStart { tokens: vec![1_000_000; 40], ..good.clone() }),
        ("invalid_request", v1::PrefillStart { blocks_held: 3, ..good.clone() }),
        ("invalid_request", v1::PrefillStart { stop: None, ..good.clone() }),
        ("invalid_request", v1::PrefillStart { decode_transfer_address: String::new(), ..good.clone() }),
        (
            "invalid_request",
            v1::PrefillStart {
                sampling: Some(v1::Sampling { temperature: f32::NAN, ..Default::default() }),
                ..good.clone()
            },
        ),
    ];
    for (code, start) in cases {
        let failure = Call::open(&mut client, start).await.failure().await;
        assert_eq!(failure.code, code, "{failure:?}");
    }
    for first in [
        v1::PrefillRequest { message: None },
        v1::PrefillRequest { message: Some(Request::Cancel(v1::PrefillCancel::default())) },
    ] {
        let failure = Call::open_with(&mut client, first).await.failure().await;
        assert_eq!(failure.code, "invalid_request", "{failure:?}");
    }
    // Nobody listens at the address.
    let nobody = v1::PrefillStart { decode_transfer_address: "127.0.0.1:1".into(), ..good.clone() };
    assert_eq!(Call::open(&mut client, nobody).await.failure().await.code, "peer_lost");
    node.idle().await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_line_says_when_to_come_back() {
    let node = Node::start("mock:prefill_us=2000", TransportKind::Tcp, |config| {
        config.limits.tokens_max = 600;
    })
    .await;
    let decode = Decode::new(&node, TransportKind::Tcp, 4);
    let mut client = node.client();
    let mut first = Call::open(&mut client, decode.start(&prompt(1, 500))).await;
    assert_eq!(first.next().await, Some(Reply::Queued(v1::PrefillQueued { position: 0, tokens_ahead: 0 })));
    let failure = Call::open(&mut client, decode.start(&prompt(2, 500))).await.failure().await;
    assert_eq!(failure.code, "queue_full");
    assert!(failure.retryable && failure.retry_after_ms >= 100, "{failure:?}");
    // A short one still fits, and stands before the long one.
    let mut short = Call::open(&mut client, decode.start(&prompt(3, 20))).await;
    assert_eq!(short.next().await, Some(Reply::Queued(v1::PrefillQueued { position: 0, tokens_ahead: 0 })));
    drop((first, short));
    node.idle().await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_draining_node_refuses_and_ends_what_takes_too_long() {
    let mut node = Node::start("mock:prefill_us=1000", TransportKind::Tcp, |_| {}).await;
    let decode = Decode::new(&node, TransportKind::Tcp, 4);
    let mut client = node.client();
    // It waits for a lease that never comes.
    let mut stuck = Call::open(&mut client, decode.start(&prompt(1, 40))).await;
    let Some(Reply::Queued(_)) = stuck.next().await else { panic!("queued first") };
    node.begin_shutdown(std::time::Duration::from_millis(300));
    within("the drain to begin", async {
        loop {
            let late = Call::open(&mut client, decode.start(&prompt(2, 40))).await.failure().await;
            if late.code == "draining" {
                return;
            }
        }
    })
    .await;
    assert_eq!(stuck.failure().await.code, "draining");
    node.stop().await;
}
