//! The rule of the index, said the slow way, and random histories against it.

use std::collections::HashMap;

use kvrail_kv::{ChainHash, KvEvent, Tier};
use proptest::prelude::*;

use super::{FlatIndex, Match, PrefixIndex};
use crate::members::MemberId;

/// Counts copies and walks the chain for each holder.
#[derive(Default)]
struct Oracle {
    copies: HashMap<(MemberId, ChainHash, Tier), u64>,
}

impl Oracle {
    fn apply(&mut self, holder: MemberId, event: &KvEvent) {
        match event {
            KvEvent::Stored { blocks, tier, .. } => {
                for block in blocks {
                    *self.copies.entry((holder, *block, *tier)).or_default() += 1;
                }
            }
            KvEvent::Removed { blocks, tier } => {
                for block in blocks {
                    let count = self.copies.entry((holder, *block, *tier)).or_default();
                    *count = count.saturating_sub(1);
                }
            }
            KvEvent::Cleared => self.copies.retain(|(who, ..), _| *who != holder),
        }
    }

    fn holds(&self, holder: MemberId, block: ChainHash, tier: Tier) -> bool {
        self.copies.get(&(holder, block, tier)).is_some_and(|count| *count > 0)
    }

    fn query(&self, chain: &[ChainHash]) -> Vec<Match> {
        let mut found = Vec::new();
        for holder in (0..HOLDERS).map(MemberId) {
            let device = |b: &&ChainHash| self.holds(holder, **b, Tier::Device);
            let any = |b: &&ChainHash| device(b) || self.holds(holder, **b, Tier::Host);
            let blocks = chain.iter().take_while(any).count() as u32;
            let device_blocks = chain.iter().take_while(device).count() as u32;
            if blocks > 0 {
                found.push(Match { holder, blocks, device_blocks });
            }
        }
        found
    }
}

const HOLDERS: u32 = 4;

/// Few blocks, so that histories collide: three chains of six that share their first two.
fn chain(branch: u64) -> Vec<ChainHash> {
    (0..6).map(|depth| ChainHash(if depth < 2 { depth } else { 100 * branch + depth })).collect()
}

fn event() -> impl Strategy<Value = KvEvent> {
    let tier = prop_oneof![4 => Just(Tier::Device), 1 => Just(Tier::Host)];
    let run = (0..3u64, 0..6usize, 1..6usize).prop_map(|(branch, start, len)| {
        let all = chain(branch);
        let end = (start + len).min(all.len());
        (start.checked_sub(1).map(|parent| all[parent]), all[start..end].to_vec())
    });
    prop_oneof![
        6 => (run.clone(), tier.clone()).prop_map(|((parent, blocks), tier)| KvEvent::Stored { parent, blocks, tier }),
        4 => (run, tier).prop_map(|((_, mut blocks), tier)| {
            blocks.reverse();
            KvEvent::Removed { blocks, tier }
        }),
        1 => Just(KvEvent::Cleared),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn any_history_gives_the_oracles_answer(history in proptest::collection::vec((0..HOLDERS, event()), 0..80)) {
        let mut index = FlatIndex::new(usize::MAX);
        let mut oracle = Oracle::default();
        for (holder, event) in history {
            index.handle_event(MemberId(holder), &event);
            oracle.apply(MemberId(holder), &event);
            for branch in 0..3 {
                let chain = chain(branch);
                prop_assert_eq!(index.query(&chain), oracle.query(&chain));
                prop_assert_eq!(index.query(&chain[..3]), oracle.query(&chain[..3]));
            }
        }
    }

    #[test]
    fn a_tight_bound_never_over_reports(
        history in proptest::collection::vec((0..HOLDERS, event()), 0..80),
        bound in 1..12usize,
    ) {
        let mut index = FlatIndex::new(bound);
        let mut oracle = Oracle::default();
        for (holder, event) in history {
            index.handle_event(MemberId(holder), &event);
            oracle.apply(MemberId(holder), &event);
            prop_assert!(index.stats().memberships <= bound);
            for branch in 0..3 {
                let chain = chain(branch);
                let truth = oracle.query(&chain);
                for found in index.query(&chain) {
                    let most = truth.iter().find(|m| m.holder == found.holder).map_or(0, |m| m.blocks);
                    prop_assert!(found.blocks <= most, "{:?} of {}", found, most);
                }
            }
        }
    }
}
