//! Single transitions by example, then random histories against a model that knows only sets and recomputes everything.

use std::collections::{BTreeMap, BTreeSet};

use kvrail_kv::{BlockKey, BlockProof, Chain, ChainHash, DType, KvEvent, KvFormat, Namespace, NamespaceParts};
use proptest::prelude::*;

use super::*;
use crate::memory::BlockId;

const BLOCK_TOKENS: u32 = 2;

fn chain(tokens: &[u32]) -> Vec<BlockKey> {
    let format = KvFormat { layers: 1, kv_heads: 1, head_dim: 8, block_tokens: BLOCK_TOKENS, dtype: DType::F16 };
    let parts = NamespaceParts { model: "m", format: &format, numerics: "n", adapter: "", salt: "" };
    Chain::keys(&Namespace::new(&parts), BLOCK_TOKENS, tokens)
}

/// Computes what is missing of `keys` and holds it all: what a request does.
fn hold(cache: &mut BlockCache, keys: &[BlockKey]) -> Vec<BlockId> {
    let mut table = cache.lookup(keys);
    let mut promised = cache.reserve((keys.len() - table.len()) as u32).unwrap();
    for key in &keys[table.len()..] {
        let block = cache.take(&mut promised).unwrap();
        cache.complete(block, *key, table.last().copied()).unwrap();
        table.push(block);
    }
    cache.cancel(promised);
    table
}

fn release_all(cache: &mut BlockCache, table: &[BlockId]) {
    for &block in table {
        cache.release(block).unwrap();
    }
}

#[test]
fn an_equal_hash_with_another_proof_is_a_counted_miss() {
    let mut cache = BlockCache::new(4);
    let keys = chain(&[1, 2, 3, 4]);
    let table = hold(&mut cache, &keys);
    let forged = BlockKey { hash: keys[1].hash, proof: BlockProof([7; 16]) };
    let found = cache.lookup(&[keys[0], forged]);
    assert_eq!(found, table[..1]);
    assert_eq!(cache.stats().collisions, 1);
    assert_eq!(cache.held(&[keys[0], forged]), 1);

    // Neither does the forged one displace the true one when it completes.
    let mut promised = cache.reserve(1).unwrap();
    let block = cache.take(&mut promised).unwrap();
    cache.cancel(promised);
    assert_eq!(cache.complete(block, forged, Some(found[0])), Ok(Completion::Private));
    assert_eq!(cache.held(&keys), 2);
}

#[test]
fn eviction_takes_the_oldest_chain_from_its_tail() {
    let mut cache = BlockCache::new(4);
    let (old, new) = (chain(&[1, 2, 3, 4]), chain(&[5, 6, 7, 8]));
    let (a, b) = (hold(&mut cache, &old), hold(&mut cache, &new));
    release_all(&mut cache, &a);
    release_all(&mut cache, &b);
    cache.drain_events();
    let mut promised = cache.reserve(3).unwrap();
    let taken: Vec<BlockId> = (0..3).map(|_| cache.take(&mut promised).unwrap()).collect();
    assert_eq!(taken, [a[1], a[0], b[1]]);
    let removed =
        vec![KvEvent::Removed { blocks: vec![old[1].hash, old[0].hash, new[1].hash], tier: kvrail_kv::Tier::Device }];
    assert_eq!(cache.drain_events(), removed);
    assert_eq!(cache.lookup(&new), [b[0]], "what is left is still found");
}

#[test]
fn a_lookup_never_takes_what_is_promised() {
    let mut cache = BlockCache::new(2);
    let keys = chain(&[1, 2, 3, 4]);
    let table = hold(&mut cache, &keys);
    release_all(&mut cache, &table);
    let mut promised = cache.reserve(1).unwrap();
    assert_eq!(cache.lookup(&keys), table[..1], "one of the two is promised");
    assert_eq!(cache.stats().pins_refused, 1);
    assert_eq!(cache.take(&mut promised), Ok(table[1]), "and the promise is kept");
    assert_eq!(cache.reserve(1), Err(CacheError::NoCapacity { wanted: 1, available: 0, total: 2 }));
    assert_eq!(cache.take(&mut promised), Err(CacheError::ReservationSpent));
    cache.cancel(promised);
}

#[test]
fn admission_is_all_or_nothing() {
    let mut cache = BlockCache::new(4);
    let keys = chain(&[1, 2, 3, 4]);
    let table = hold(&mut cache, &keys);
    release_all(&mut cache, &table);
    let before = cache.counters();
    assert_eq!(cache.admit(&keys, 5), Err(CacheError::NoCapacity { wanted: 3, available: 2, total: 4 }));
    assert_eq!(cache.counters(), before);
    let (pinned, promised) = cache.admit(&keys, 4).unwrap();
    assert_eq!((pinned, promised.left()), (table.clone(), 2));
    cache.cancel(promised);
    release_all(&mut cache, &table);
    let (pinned, promised) = cache.admit(&keys, 1).unwrap();
    assert_eq!((pinned, promised.left()), (table[..1].to_vec(), 0), "no more than the sequence has");
    cache.cancel(promised);
}

#[test]
fn the_second_of_two_equal_blocks_stays_private_and_its_child_is_found() {
    let mut cache = BlockCache::new(4);
    let keys = chain(&[1, 2, 3, 4]);
    let mut promised = cache.reserve(3).unwrap();
    let [a, b, c] = [0; 3].map(|_| cache.take(&mut promised).unwrap());
    cache.cancel(promised);
    assert_eq!(cache.complete(a, keys[0], None), Ok(Completion::Stored));
    assert_eq!(cache.complete(b, keys[0], None), Ok(Completion::Private));
    cache.release(a).unwrap();
    assert_eq!(cache.counters().shared, 1, "the private block keeps its twin");
    assert_eq!(cache.complete(c, keys[1], Some(b)), Ok(Completion::Stored));
    release_all(&mut cache, &[b, c]);
    assert_eq!(cache.counters(), CacheCounters { free: 2, cached: 2, ..CacheCounters::default() });
    assert_eq!(cache.lookup(&keys), [a, c]);
}

#[test]
fn wrong_calls_are_typed_and_change_nothing() {
    let mut cache = BlockCache::new(3);
    let keys = chain(&[1, 2, 3, 4]);
    let wrong = |block, operation, state| Err(CacheError::WrongState { block, operation, state });
    assert_eq!(cache.release(BlockId(0)), wrong(0, "release", "free"));
    assert_eq!(cache.release(BlockId(9)), Err(CacheError::NoSuchBlock { block: 9, total: 3 }));
    let mut promised = cache.reserve(2).unwrap();
    let (a, b) = (cache.take(&mut promised).unwrap(), cache.take(&mut promised).unwrap());
    cache.cancel(promised);
    assert_eq!(cache.unquarantine(a), wrong(a.0, "unquarantine", "being written"));
    assert_eq!(cache.complete(b, keys[1], Some(a)).map(drop), wrong(a.0, "append to", "being written"));
    cache.complete(a, keys[0], None).unwrap();
    assert_eq!(cache.quarantine(a), wrong(a.0, "quarantine", "shared"));
    cache.release(a).unwrap();
    assert_eq!(cache.release(a), wrong(a.0, "release", "cached, held by nobody"));
    assert_eq!(cache.complete(b, keys[1], Some(a)).map(drop), wrong(a.0, "append to", "cached, held by nobody"));
    cache.quarantine(b).unwrap();
    assert_eq!(cache.release(b), wrong(b.0, "release", "quarantined"));
    cache.unquarantine(b).unwrap();
    assert_eq!(cache.counters(), CacheCounters { free: 2, cached: 1, ..CacheCounters::default() });
}

#[test]
fn a_log_that_overflows_tells_everything_anew() {
    let mut cache = BlockCache::new(2);
    for token in 0..5000 {
        let table = hold(&mut cache, &chain(&[token, 0, token, 1]));
        release_all(&mut cache, &table);
    }
    let events = cache.drain_events();
    assert_eq!(events[0], KvEvent::Cleared);
    assert_eq!(events[1..], cache.snapshot());
    assert_eq!(cache.drain_events(), [], "and once");
}

/// Replays events as an index would, checking that parents are known and nothing is told twice.
#[derive(Default)]
struct Index(BTreeMap<u64, Option<u64>>);

impl Index {
    fn apply(&mut self, events: &[KvEvent]) {
        for event in events {
            match event {
                KvEvent::Stored { parent, blocks, .. } => {
                    let mut parent = parent.map(|p| p.0);
                    for block in blocks {
                        assert!(parent.is_none_or(|p| self.0.contains_key(&p)), "parent told before child");
                        assert!(self.0.insert(block.0, parent).is_none(), "stored twice");
                        parent = Some(block.0);
                    }
                }
                KvEvent::Removed { blocks, .. } => {
                    for block in blocks {
                        assert!(self.0.remove(&block.0).is_some(), "removed what was not there");
                        assert!(!self.0.values().any(|p| *p == Some(block.0)), "removed a parent before its child");
                    }
                }
                KvEvent::Cleared => self.0.clear(),
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Action {
    /// A request: look up, reserve for the rest and for `extra` more, start to write.
    Begin {
        prompt: usize,
        extra: u32,
    },
    /// Request number `request` completes its next block, if it has one to fill.
    Advance {
        request: usize,
    },
    /// It lets go of everything, in its order or reversed; blocks being written are quarantined if `lent`.
    End {
        request: usize,
        reversed: bool,
        lent: bool,
    },
    Fence,
    Drain,
}

struct Request {
    keys: Vec<BlockKey>,
    table: Vec<BlockId>,
    complete: usize,
    /// Leading complete blocks that hang on a chain that lookups find: its own or their twins.
    linked: usize,
    promised: Reservation,
}

/// Short prompts over two token values, so that prefixes, branches and duplicates abound.
fn prompts() -> Vec<Vec<BlockKey>> {
    let mut prompts = Vec::new();
    for bits in 0..16_u32 {
        for blocks in 1..=4 {
            let tokens: Vec<u32> = (0..blocks).flat_map(|i| [bits >> i & 1, 9]).collect();
            prompts.push(chain(&tokens));
        }
    }
    prompts
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let action = prop_oneof![
        3 => (0..64_usize, 0..3_u32).prop_map(|(prompt, extra)| Action::Begin { prompt, extra }),
        6 => (0..8_usize).prop_map(|request| Action::Advance { request }),
        3 => (0..8_usize, any::<bool>(), any::<bool>())
            .prop_map(|(request, reversed, lent)| Action::End { request, reversed, lent }),
        1 => Just(Action::Fence),
        1 => Just(Action::Drain),
    ];
    prop::collection::vec(action, 1..120)
}

/// Findable blocks as a model sees them: who is below whom, who is held, when each was last held.
#[derive(Default)]
struct Model {
    parent: BTreeMap<u64, Option<u64>>,
    last_held: BTreeMap<u64, usize>,
}

impl Model {
    /// Hashes that are held, given the requests; requests hold whole prefixes, so no ancestor is missing.
    fn active(&self, requests: &[Request]) -> BTreeSet<u64> {
        requests.iter().flat_map(|r| r.keys[..r.linked].iter().map(|key| key.hash.0)).collect()
    }

    /// Follows `events`, demanding that each removal takes a leaf that is not active and none older exists.
    fn follow(&mut self, events: &[KvEvent], active: &BTreeSet<u64>, now: usize) {
        for event in events {
            match event {
                KvEvent::Stored { parent, blocks, .. } => {
                    let mut before = parent.map(|p| p.0);
                    for ChainHash(block) in blocks {
                        self.parent.insert(*block, before);
                        self.last_held.insert(*block, now);
                        before = Some(*block);
                    }
                }
                KvEvent::Removed { blocks, .. } => {
                    for ChainHash(block) in blocks {
                        let leaf = |b: &u64| !self.parent.values().any(|p| *p == Some(*b));
                        assert!(!active.contains(block), "evicted a block that is held");
                        assert!(leaf(block), "evicted a parent before its child");
                        let oldest = self
                            .parent
                            .keys()
                            .filter(|b| !active.contains(b) && leaf(b))
                            .map(|b| self.last_held[b])
                            .min();
                        assert_eq!(Some(self.last_held[block]), oldest, "evicted a younger leaf");
                        self.parent.remove(block);
                    }
                }
                KvEvent::Cleared => unreachable!("the log of these runs does not overflow"),
            }
        }
    }
}

fn check(cache: &BlockCache, requests: &[Request], quarantined: &[BlockId], model: &Model) {
    let counters = cache.counters();
    let total =
        counters.free + counters.writing + counters.private + counters.shared + counters.cached + counters.quarantined;
    assert_eq!(total, cache.blocks(), "counters add up: {counters:?}");
    assert_eq!(counters.reserved, requests.iter().map(|r| r.promised.left()).sum::<u32>());
    assert!(counters.free + counters.cached >= counters.reserved, "promises are covered");
    assert_eq!(counters.quarantined as usize, quarantined.len());

    // No block in two hands: what requests are writing or hold privately is in one table only, and not findable.
    let findable: BTreeMap<BlockId, u64> =
        model.parent.keys().map(|hash| (cache.index[&ChainHash(*hash)], *hash)).collect();
    let mut exclusive = BTreeSet::new();
    for request in requests {
        for block in &request.table {
            if !findable.contains_key(block) {
                assert!(exclusive.insert(*block), "block {block:?} in two hands");
                assert!(!quarantined.contains(block));
            }
        }
    }
    assert_eq!(counters.writing + counters.private, exclusive.len() as u32);
    let active = model.active(requests);
    assert_eq!(counters.shared as usize, active.len(), "shared is what requests hold");
    assert_eq!(counters.cached as usize, model.parent.len() - active.len());
}

fn run(pool: u32, actions: Vec<Action>) {
    let prompts = prompts();
    let mut cache = BlockCache::new(pool);
    let mut requests: Vec<Request> = Vec::new();
    let mut quarantined = Vec::new();
    let mut model = Model::default();
    let mut index = Index::default();
    for (now, action) in actions.into_iter().enumerate() {
        let active_before = model.active(&requests);
        for hash in &active_before {
            model.last_held.insert(*hash, now);
        }
        let mut undrained = Vec::new();
        match action {
            Action::Begin { prompt, extra } if requests.len() < 8 => {
                let keys = prompts[prompt].clone();
                let hint = cache.held(&keys);
                let held = cache.stats().hits;
                let admitted = cache.admit(&keys, keys.len() as u32 + extra);
                let touched = (cache.stats().hits - held) as usize;
                assert!(touched <= hint as usize);
                for key in &keys[..touched] {
                    model.last_held.insert(key.hash.0, now);
                }
                if let Ok((table, promised)) = admitted {
                    let complete = table.len();
                    requests.push(Request { keys, table, complete, linked: complete, promised });
                }
            }
            Action::Advance { request } if request < requests.len() => {
                let available = cache.counters().available();
                let request = &mut requests[request];
                if request.table.len() == request.complete {
                    if request.promised.left() > 0 {
                        // The promise: this never fails.
                        request.table.push(cache.take(&mut request.promised).unwrap());
                    }
                } else if request.complete < request.keys.len() {
                    let parent = request.complete.checked_sub(1).map(|i| request.table[i]);
                    let block = request.table[request.complete];
                    let key = request.keys[request.complete];
                    let found = model.parent.contains_key(&key.hash.0);
                    let can_link = !found || active_before.contains(&key.hash.0) || available > 0;
                    let links = request.linked == request.complete && can_link;
                    let stored = cache.complete(block, key, parent).unwrap() == Completion::Stored;
                    assert_eq!(stored, links && !found);
                    request.linked += usize::from(links);
                    request.complete += 1;
                }
            }
            Action::End { request, reversed, lent } if request < requests.len() => {
                let mut request = requests.swap_remove(request);
                for block in request.table.split_off(request.complete) {
                    if lent {
                        cache.quarantine(block).unwrap();
                        quarantined.push(block);
                    } else {
                        cache.release(block).unwrap();
                    }
                }
                if reversed {
                    request.table.reverse();
                }
                release_all(&mut cache, &request.table);
                cache.cancel(request.promised);
            }
            Action::Fence => {
                for block in quarantined.drain(..) {
                    cache.unquarantine(block).unwrap();
                }
            }
            Action::Drain => {
                let mut fresh = Index::default();
                fresh.apply(&cache.snapshot());
                assert_eq!(fresh.0, index.0, "events replayed give the snapshot");
            }
            _ => {}
        }
        undrained.extend(cache.drain_events());
        index.apply(&undrained);
        // What was held before the action or is held after it is not evictable during it.
        let held: BTreeSet<u64> = active_before.intersection(&model.active(&requests)).copied().collect();
        model.follow(&undrained, &held, now);
        check(&cache, &requests, &quarantined, &model);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn random_histories_agree_with_the_model(pool in 1..14_u32, actions in actions()) {
        run(pool, actions);
    }
}
