//! The policy on small pools, and its laws on random ones.

use std::collections::HashMap;
use std::time::Duration;

use proptest::prelude::*;

use super::{Decision, Refusal, Request, RouteConfig, Router};
use crate::index::Match;
use crate::members::{Load, Member, MemberId, Node, Role};
use crate::testing::node;

const NOW: Duration = Duration::from_secs(10);

fn member(id: u32, role: Role) -> Member {
    let name = match role {
        Role::Prefill => format!("p{id}"),
        Role::Decode => format!("d{id}"),
    };
    let node = Node { role, ..node(&name) };
    let load = Load { blocks_free: node.pool_blocks, ..Load::default() };
    Member { id: MemberId(id), node, load, connected: true, lease_until: NOW * 2 }
}

fn pool(prefill: u32, decode: u32) -> Vec<Member> {
    let ps = (0..prefill).map(|id| member(id, Role::Prefill));
    ps.chain((100..100 + decode).map(|id| member(id, Role::Decode))).collect()
}

const REQUEST: Request<'static> =
    Request { model: "m", namespace_id: 1, prompt_tokens: 1000, max_tokens: 100, exclude: &[], matches: &[] };

fn held(holder: u32, blocks: u32) -> Match {
    Match { holder: MemberId(holder), blocks, device_blocks: blocks }
}

fn route(router: &mut Router, request: &Request<'_>, pool: &[Member]) -> Result<Decision, Refusal> {
    router.route(request, &pool.iter().collect::<Vec<_>>(), NOW)
}

fn once(request: &Request<'_>, pool: &[Member]) -> Result<Decision, Refusal> {
    route(&mut Router::new(RouteConfig::default()), request, pool)
}

#[test]
fn a_long_prompt_is_handed_off_and_a_short_one_is_not() {
    let long = once(&REQUEST, &pool(2, 2)).unwrap();
    assert_eq!(long.prefill.len(), 2, "the other P is named too, for when the first fails");
    let short = once(&Request { prompt_tokens: 20, ..REQUEST }, &pool(2, 2)).unwrap();
    assert!(short.prefill.is_empty() && short.reason.contains("short"), "{}", short.reason);
    let alone = once(&REQUEST, &pool(0, 2)).unwrap();
    assert!(alone.prefill.is_empty() && alone.reason.contains("no prefill node"), "{}", alone.reason);
}

#[test]
fn everything_moves_where_the_setting_says_so() {
    let config = RouteConfig { local_prefill_tokens_max: 0, ..RouteConfig::default() };
    let mut nodes = pool(1, 2);
    nodes[0].load.queued_tokens = 100_000;
    let tiny = Request { prompt_tokens: 1, ..REQUEST };
    assert_eq!(route(&mut Router::new(config), &tiny, &nodes).unwrap().prefill.len(), 1);
    nodes.remove(0);
    assert!(route(&mut Router::new(config), &tiny, &nodes).unwrap().prefill.is_empty(), "there is no P");
}

#[test]
fn an_uncached_remainder_that_is_short_stays_on_the_node_that_holds_the_rest() {
    let decision = once(&Request { matches: &[held(101, 61)], ..REQUEST }, &pool(2, 2)).unwrap();
    assert_eq!((decision.decode, decision.prefill.len()), (MemberId(101), 0));
    assert_eq!((decision.best_cached_tokens, decision.chosen_cached_tokens), (976, 976));
}

#[test]
fn the_prefix_decides_until_load_outweighs_it() {
    let request = Request { matches: &[held(1, 50)], ..REQUEST };
    let mut nodes = pool(2, 1);
    let decision = once(&request, &nodes).unwrap();
    assert_eq!((decision.prefill[0].id, decision.prefill[0].cached_blocks), (MemberId(1), 50));
    assert_eq!(decision.prefill[1].id, MemberId(0));
    nodes[1].load.queued_tokens = 5000;
    assert_eq!(once(&request, &nodes).unwrap().prefill[0].id, MemberId(0), "a hot prefix does not bury its holder");
}

#[test]
fn a_burst_between_two_reports_does_not_herd() {
    let nodes = pool(4, 4);
    let mut router = Router::new(RouteConfig { local_prefill_penalty: 1e9, ..RouteConfig::default() });
    let matches = [held(2, 50)];
    let (mut prefill, mut decode) = (HashMap::new(), HashMap::new());
    for _ in 0..400 {
        let decision = route(&mut router, &Request { matches: &matches, ..REQUEST }, &nodes).unwrap();
        *prefill.entry(decision.prefill[0].id).or_insert(0) += 1;
        *decode.entry(decision.decode).or_insert(0) += 1;
    }
    assert!(decode.values().all(|n| (90..=110).contains(n)), "{decode:?}");
    assert_eq!(prefill.len(), 4, "{prefill:?}");
    // The holder computes a fifth of each prompt, so it takes about five times as many; the others share the rest.
    assert!((200..300).contains(&prefill[&MemberId(2)]), "{prefill:?}");
    let others: Vec<_> = prefill.iter().filter(|(id, _)| **id != MemberId(2)).map(|(_, n)| *n).collect();
    assert!(others.iter().all(|n| (40..60).contains(n)), "{prefill:?}");
}

#[test]
fn when_the_prefill_queues_are_long_enough_decode_nodes_help() {
    let mut nodes = pool(1, 1);
    nodes[0].load.queued_tokens = 2000;
    assert_eq!(once(&REQUEST, &nodes).unwrap().prefill.len(), 1, "1000 tokens alone are priced as 4000");
    nodes[0].load.queued_tokens = 4000;
    let decision = once(&REQUEST, &nodes).unwrap();
    assert!(decision.prefill.is_empty() && decision.reason.contains("hand-off costs more"), "{}", decision.reason);
    assert!(decision.ttft < Duration::from_secs(3), "the prediction is without the price: {:?}", decision.ttft);
}

#[test]
fn reports_take_the_place_of_credits() {
    let nodes = pool(0, 2);
    let mut router = Router::new(RouteConfig::default());
    let first = route(&mut router, &REQUEST, &nodes).unwrap().decode;
    let second = route(&mut router, &REQUEST, &nodes).unwrap().decode;
    assert_ne!(first, second);
    // `first` reports itself idle again (its request is done): it is the better one now.
    router.handle_load(first, NOW + Duration::from_millis(200));
    let all: Vec<_> = nodes.iter().collect();
    assert_eq!(router.route(&REQUEST, &all, NOW + Duration::from_millis(200)).unwrap().decode, first);
}

#[test]
fn who_drains_failed_or_lost_its_stream_is_passed_over() {
    let mut nodes = pool(2, 3);
    nodes[2].load.draining = true;
    nodes[3].connected = false;
    for seed in 0..20 {
        let mut router = Router::new(RouteConfig { seed, ..RouteConfig::default() });
        assert_eq!(route(&mut router, &REQUEST, &nodes).unwrap().decode, MemberId(102));
    }
    let failed = ["d102".to_owned(), "p0".to_owned()];
    let decision = once(&Request { exclude: &failed, ..REQUEST }, &nodes).unwrap();
    assert_eq!(decision.decode, MemberId(101), "a node whose stream broke is better than none");
    assert_eq!(decision.prefill.iter().map(|p| p.id).collect::<Vec<_>>(), [MemberId(1)]);
    let failed = ["d101".to_owned(), "d102".to_owned()];
    let refusal = once(&Request { exclude: &failed, ..REQUEST }, &nodes).unwrap_err();
    assert_eq!((refusal.code(), refusal.retry_after()), ("no_nodes", Some(Duration::from_secs(1))));
    assert_eq!(once(&Request { model: "other", ..REQUEST }, &nodes).unwrap_err().code(), "no_nodes");
    assert_eq!(once(&Request { namespace_id: 2, ..REQUEST }, &nodes).unwrap_err().code(), "no_nodes");
}

#[test]
fn what_fits_nowhere_is_refused_with_the_limit_named() {
    let nodes = pool(1, 1);
    let refusal = once(&Request { prompt_tokens: 4000, max_tokens: 97, ..REQUEST }, &nodes).unwrap_err();
    assert_eq!(refusal.code(), "too_long");
    assert!(refusal.to_string().contains("4096 tokens that the model's context"), "{refusal}");
    assert!(once(&Request { prompt_tokens: 4000, max_tokens: 96, ..REQUEST }, &nodes).is_ok());
    let huge = Request { prompt_tokens: u32::MAX, max_tokens: u32::MAX, ..REQUEST };
    assert_eq!(once(&huge, &nodes).unwrap_err().code(), "too_long");

    let mut nodes = pool(0, 2);
    nodes[0].node.pool_blocks = 10;
    nodes[1].node.pool_blocks = 20;
    let refusal = once(&Request { prompt_tokens: 300, max_tokens: 21, ..REQUEST }, &nodes).unwrap_err();
    assert!(refusal.to_string().contains("320 tokens that the KV pool"), "{refusal}");
    let fits = once(&Request { prompt_tokens: 300, max_tokens: 20, ..REQUEST }, &nodes).unwrap();
    assert_eq!(fits.decode, MemberId(101), "only the larger one holds it");
}

#[test]
fn full_queues_refuse_with_a_time_to_come_back() {
    let mut nodes = pool(1, 1);
    nodes[0].load.queued_tokens = 262_144;
    let refusal = once(&REQUEST, &nodes).unwrap_err();
    assert!(matches!(&refusal, Refusal::QueueFull { what: "prefill", .. }), "{refusal}");
    assert_eq!(refusal.retry_after(), Some(Duration::from_secs(30)), "the wait is capped");
    assert!(once(&Request { prompt_tokens: 20, ..REQUEST }, &nodes).is_ok(), "a short one needs no P");

    let mut nodes = pool(1, 1);
    nodes[1].load.queued = 256;
    let refusal = once(&REQUEST, &nodes).unwrap_err();
    assert!(matches!(&refusal, Refusal::QueueFull { what: "decode", .. }), "{refusal}");
    assert_eq!(refusal.code(), "queue_full");
}

#[test]
fn a_node_without_kv_room_is_the_second_choice() {
    let mut nodes = pool(0, 2);
    nodes[0].load.blocks_free = 3;
    for seed in 0..20 {
        let mut router = Router::new(RouteConfig { seed, ..RouteConfig::default() });
        assert_eq!(route(&mut router, &REQUEST, &nodes).unwrap().decode, MemberId(101));
    }
}

fn any_member(id: u32) -> impl Strategy<Value = Member> {
    let load = (any::<(u16, u16, u32, u16)>(), any::<bool>(), 0.0..1e4f64, 0.0..500.0f64);
    (any::<bool>(), load, any::<bool>(), 1..200u32).prop_map(move |(prefill, load, connected, pool_blocks)| {
        let mut member = member(id, if prefill { Role::Prefill } else { Role::Decode });
        let ((running, queued, queued_tokens, free), draining, rate, step) = load;
        member.node.pool_blocks = pool_blocks;
        member.connected = connected;
        member.load = Load {
            running: running.into(),
            queued: u32::from(queued) % 300,
            queued_tokens: queued_tokens.into(),
            blocks_free: free.into(),
            prefill_tokens_per_s: rate,
            step_ms: step,
            draining,
            ..Load::default()
        };
        member
    })
}

proptest! {
    #[test]
    fn a_decision_is_admissible_and_the_same_for_the_same_seed(
        nodes in (0..8u32).prop_flat_map(|n| (0..n).map(any_member).collect::<Vec<_>>()),
        prompts in proptest::collection::vec((1..3000u32, 1..600u32, any::<u8>(), any::<u8>()), 1..20),
        seed: u64,
    ) {
        let config = RouteConfig { seed, ..RouteConfig::default() };
        let (mut router, mut twin) = (Router::new(config), Router::new(config));
        for (prompt_tokens, max_tokens, excluded, holder) in prompts {
            let exclude: Vec<String> =
                nodes.iter().filter(|m| excluded >> (m.id.0 % 8) & 1 == 1).map(|m| m.node.node_id.clone()).collect();
            let matches = [held(u32::from(holder) % 8, prompt_tokens / 16 + 1)];
            let request = Request { prompt_tokens, max_tokens, exclude: &exclude, matches: &matches, ..REQUEST };
            let decision = route(&mut router, &request, &nodes);
            prop_assert_eq!(&decision, &route(&mut twin, &request, &nodes));
            let Ok(decision) = decision else { continue };
            let find = |id| nodes.iter().find(|m| m.id == id).unwrap();
            let d = find(decision.decode);
            prop_assert!(d.node.role == Role::Decode && !d.load.draining && d.load.queued < 256);
            prop_assert!(!exclude.contains(&d.node.node_id));
            prop_assert!(d.node.pool_tokens() >= u64::from(prompt_tokens + max_tokens));
            for pick in &decision.prefill {
                let p = find(pick.id);
                prop_assert!(p.node.role == Role::Prefill && !p.load.draining);
                prop_assert!(!exclude.contains(&p.node.node_id) && p.node.pool_tokens() >= u64::from(prompt_tokens));
            }
            prop_assert!(decision.chosen_cached_tokens < prompt_tokens);
        }
    }
}
