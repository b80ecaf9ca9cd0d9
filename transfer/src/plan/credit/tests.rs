//! The ledger's laws: by hand, and under random schedules.

use super::*;
use crate::plan::retry::Rng;

fn peer(bits: u64) -> PeerId {
    PeerId::from_bits(bits)
}

fn ms(n: u64) -> Time {
    Time(n * 1_000_000)
}

/// A sender as it is seen from here: it says what it wants and moves what it may.
#[derive(Clone, Copy, Default)]
struct Party {
    sequence: u64,
    epoch: u32,
    used: u64,
    settled: u64,
    wanted: u64,
    limit: Option<u64>,
    /// Of that, what may be on the way at a time, where a raise is a turn.
    at_once: Option<u64>,
    tenant: u32,
}

impl Party {
    fn wanting(bytes: u64) -> Self {
        Self { wanted: bytes, ..Self::default() }
    }

    fn word(&mut self) -> Demand {
        self.sequence += 1;
        let Self { sequence, epoch, used, settled, wanted, tenant, .. } = *self;
        Demand { sequence, epoch, used, settled, lost: 0, wanted, tenant: TenantId(tenant) }
    }

    fn hear(&mut self, limit: Limit) {
        if limit.epoch > self.epoch {
            (self.epoch, self.limit) = (limit.epoch, Some(limit.total));
        } else if limit.epoch == self.epoch {
            self.limit = self.limit.map(|total| total.max(limit.total));
        }
        self.at_once = (limit.at_once != Limit::ALL).then_some(limit.at_once.into());
    }

    fn send(&mut self, bytes: u64) -> u64 {
        let may = self.limit.unwrap_or(Limit::NONE).saturating_sub(self.used);
        let at_once = self.at_once.map_or(u64::MAX, |bytes| bytes.saturating_sub(self.used - self.settled));
        let sent = bytes.min(may).min(self.wanted - self.used).min(at_once);
        self.used += sent;
        sent
    }
}

/// Words until there are none, heard by everybody; questions are answered at once.
fn exchange(ledger: &mut Ledger, parties: &mut [Party], now: Time) -> Vec<(u64, Limit)> {
    let mut words = Vec::new();
    while let Some((to, limit)) = ledger.poll_word(now) {
        let party = &mut parties[to.to_bits() as usize];
        party.hear(limit);
        if limit.total == 0 {
            ledger.handle_demand(to, party.word(), now);
        }
        words.push((to.to_bits(), limit));
    }
    words
}

#[test]
fn one_sender_is_not_limited_two_are_and_again_one_is_not() {
    let mut ledger = Ledger::new(CreditConfig::default());
    let mut parties = [Party::wanting(10 << 20), Party::wanting(1 << 20)];
    ledger.handle_demand(peer(0), parties[0].word(), ms(0));
    assert_eq!((exchange(&mut ledger, &mut parties, ms(0)).len(), ledger.is_limiting()), (0, false));
    parties[0].send(3 << 20);
    ledger.handle_demand(peer(1), parties[1].word(), ms(1));
    let words = exchange(&mut ledger, &mut parties, ms(1));
    assert!(words.iter().filter(|(_, limit)| limit.total == 0).count() == 2 && ledger.is_limiting());
    assert_eq!(ledger.ceiling(peer(0)), Some(3 << 20), "what was under way may arrive");
    let granted: Vec<u64> = words.iter().filter(|(to, limit)| *to == 0 && limit.total > 0).map(|w| w.1.total).collect();
    assert!(granted.is_empty(), "3 MiB are more than a window, no more before they are here: {granted:?}");

    ledger.handle_arrived(peer(0), 3 << 20, ms(2));
    assert!(exchange(&mut ledger, &mut parties, ms(2)).iter().any(|(to, limit)| *to == 0 && limit.total > 3 << 20));
    parties[1] = Party { used: 1 << 20, settled: 1 << 20, ..parties[1] };
    ledger.handle_demand(peer(1), parties[1].word(), ms(3));
    assert!(ledger.is_limiting(), "not at once");
    let lift = ledger.poll_timeout().unwrap();
    assert_eq!(lift, ms(3) + CreditConfig::default().lift_after);
    let words = exchange(&mut ledger, &mut parties, lift);
    assert!(words.iter().all(|(_, limit)| limit.total == Limit::NONE) && words.len() == 2, "{words:?}");
    assert_eq!((ledger.ceiling(peer(0)), ledger.is_limiting(), ledger.poll_timeout()), (None, false, None));
}

#[test]
fn who_sends_beyond_its_limit_or_never_answers_is_found() {
    let config = CreditConfig { under_way_max: 1 << 20, ..CreditConfig::default() };
    let mut ledger = Ledger::new(config.clone());
    let mut parties = [Party::wanting(10 << 20); 4];
    for bits in 0..4 {
        ledger.handle_demand(peer(bits), parties[bits as usize].word(), ms(0));
    }
    while let Some((to, limit)) = ledger.poll_word(ms(0)) {
        let party = &mut parties[to.to_bits() as usize];
        party.hear(limit);
        match to.to_bits() {
            _ if limit.total > 0 => {}
            3 => {}
            2 => {
                party.used = 2 << 20;
                ledger.handle_demand(to, party.word(), ms(0));
            }
            _ => ledger.handle_demand(to, party.word(), ms(0)),
        }
    }
    assert_eq!(ledger.poll_overdrawn(ms(1)), Some(peer(2)), "claims more to have been under way than can be");
    assert_eq!(ledger.poll_overdrawn(ms(1)), None);
    parties[1].used = parties[1].limit.unwrap() + 1;
    ledger.handle_demand(peer(1), parties[1].word(), ms(1));
    assert_eq!(ledger.poll_overdrawn(ms(1)), Some(peer(1)));
    let late = Time(0) + config.answer_within;
    assert_eq!(ledger.poll_overdrawn(late), Some(peer(3)));
    assert_eq!(ledger.poll_overdrawn(late), None);
}

#[test]
fn a_sender_that_holds_credit_and_sleeps_holds_up_nobody() {
    let mut ledger = Ledger::new(CreditConfig::default());
    let mut parties = [Party::wanting(10 << 20); 2];
    for bits in 0..2 {
        ledger.handle_demand(peer(bits), parties[bits as usize].word(), ms(0));
    }
    exchange(&mut ledger, &mut parties, ms(0));
    // 1 moves all it gets and 0 nothing, until 0 holds what it can hold.
    let mut total = 0;
    for n in 0..40 {
        total += parties[1].send(u64::MAX);
        ledger.handle_arrived(peer(1), total, ms(n));
        exchange(&mut ledger, &mut parties, ms(n));
    }
    let wakes = ledger.poll_timeout().unwrap();
    assert!(wakes > ms(40), "{wakes}");
    let before = parties[1].limit.unwrap();
    for n in 60..100 {
        total += parties[1].send(u64::MAX);
        ledger.handle_arrived(peer(1), total, ms(n));
        exchange(&mut ledger, &mut parties, ms(n));
    }
    assert!(parties[1].limit.unwrap() > before + (1 << 20), "the whole window is 1's");
}

/// Everybody always wants more: shares by weight, divided among a tenant's senders; the window is kept and never idle.
#[test]
fn tenants_share_by_weight_and_senders_of_one_alike() {
    let config = CreditConfig::default();
    let mut ledger = Ledger::new(config.clone());
    ledger.set_tenant_weight(TenantId(1), 2);
    ledger.set_tenant_weight(TenantId(2), 4);
    let tenants = [0, 1, 2, 2];
    let mut parties = tenants.map(|tenant| Party { tenant, ..Party::wanting(1 << 40) });
    for (bits, party) in parties.iter_mut().enumerate() {
        ledger.handle_demand(peer(bits as u64), party.word(), ms(0));
    }
    let mut totals = [0u64; 4];
    for round in 0..8000u64 {
        let now = Time(round * 1_000_000);
        exchange(&mut ledger, &mut parties, now);
        assert!(ledger.outstanding() <= ledger.window() && ledger.outstanding() > 0, "round {round}");
        for (bits, party) in parties.iter_mut().enumerate() {
            totals[bits] += party.send(u64::MAX);
            ledger.handle_arrived(peer(bits as u64), totals[bits], now);
        }
    }
    let all: u64 = totals.iter().sum();
    let shares = totals.map(|total| total as f64 / all as f64 * 7.0);
    for (share, due) in shares.iter().zip([1.0, 2.0, 2.0, 2.0]) {
        assert!((share / due - 1.0).abs() < 0.02, "{shares:?}");
    }
}

#[test]
fn who_wants_little_goes_first_but_not_for_ever() {
    let mut ledger = Ledger::new(CreditConfig { slack_max: 0, ..CreditConfig::default() });
    let mut parties = [Party::wanting(1 << 40), Party::wanting(1 << 40), Party::default()];
    for (bits, party) in parties[..2].iter_mut().enumerate() {
        ledger.handle_demand(peer(bits as u64), party.word(), ms(0));
    }
    let mut totals = [0u64; 3];
    let mut firsts = 0;
    for round in 0..4000u64 {
        let now = ms(round);
        if parties[2].wanted == parties[2].used {
            // One short after the other: it gets its share, and no more than a short one ahead of it.
            parties[2].wanted += 64 << 10;
            ledger.handle_demand(peer(2), Demand { settled: parties[2].used, ..parties[2].word() }, now);
            firsts += u64::from(round < 8);
        }
        exchange(&mut ledger, &mut parties, now);
        for (bits, party) in parties.iter_mut().enumerate() {
            totals[bits] += party.send(u64::MAX);
            ledger.handle_arrived(peer(bits as u64), totals[bits], now);
        }
    }
    let share = totals[2] as f64 * 3.0 / totals.iter().sum::<u64>() as f64;
    assert!((0.85..1.1).contains(&share), "{share:.2} of a third: {totals:?}");
    assert!(firsts >= 3, "the first ones went at once, {firsts} of them in eight rounds");
}

#[test]
fn a_turn_is_many_slices_of_which_half_a_window_is_on_the_way() {
    let mut ledger = Ledger::new(CreditConfig::one_sided());
    let mut parties = [Party::wanting(1 << 30); 4];
    for bits in 0..4 {
        ledger.handle_demand(peer(bits), parties[bits as usize].word(), ms(0));
    }
    let words = exchange(&mut ledger, &mut parties, ms(0));
    let turns: Vec<_> = words.iter().filter(|(_, limit)| limit.total > 0).collect();
    assert_eq!(turns.len(), 2, "two of them have all of the window");
    let turn = ledger.quantum();
    assert!(
        turn > 64 << 10 && turns.iter().all(|(_, limit)| (limit.total, limit.at_once) == (turn, 64 << 10)),
        "{turns:?}"
    );
    // One of them is through with its turn: another's begins.
    let (first, _) = *turns[0];
    let party = &mut parties[first as usize];
    (party.used, party.settled) = (turn, turn);
    ledger.handle_demand(peer(first), party.word(), ms(8));
    let words = exchange(&mut ledger, &mut parties, ms(8));
    assert!(matches!(words[..], [(to, _)] if turns.iter().all(|(had, _)| *had != to)), "{words:?}");
}

#[test]
fn who_has_no_work_has_a_little_credit_that_counts_against_nothing() {
    let mut ledger = Ledger::new(CreditConfig::default());
    let mut parties = [Party::wanting(1 << 30), Party::wanting(1 << 30), Party::default()];
    for (bits, party) in parties.iter_mut().enumerate() {
        ledger.handle_demand(peer(bits as u64), party.word(), ms(0));
    }
    exchange(&mut ledger, &mut parties, ms(0));
    let standing = CreditConfig::default().standing_bytes.0;
    assert_eq!((parties[2].limit, ledger.outstanding()), (Some(standing), ledger.window()));
    // It is used without a word, and given anew when that has come in.
    ledger.handle_arrived(peer(2), standing, ms(1));
    exchange(&mut ledger, &mut parties, ms(1));
    assert_eq!(parties[2].limit, Some(2 * standing));
    // But no more than its share.
    for n in 2..20 {
        ledger.handle_arrived(peer(2), n * standing, ms(n));
        while let Some((to, limit)) = ledger.poll_word(ms(n)) {
            parties[to.to_bits() as usize].hear(limit);
        }
    }
    let ahead = CreditConfig::default().short_bytes + 2 * standing;
    assert!(parties[2].limit.unwrap() <= ahead, "{:?}", parties[2].limit);
}

/// Window, monotony, conservation and work by random schedules: demands, arrivals, losses, cancellations, deaths; some words are said
/// twice, some demands come late.
#[test]
fn invariants_hold_under_random_schedules() {
    invariants(CreditConfig::default());
}

#[test]
fn invariants_hold_with_turns() {
    invariants(CreditConfig::one_sided());
}

fn invariants(config: CreditConfig) {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let config = CreditConfig {
            idle_after: Duration::from_secs(3600),
            answer_within: Duration::from_secs(3600),
            ..config.clone()
        };
        let standing = config.standing_bytes.0;
        let mut ledger = Ledger::new(config);
        let mut parties = [Party::default(); 5];
        // What arrived by our count, and where each one's was before the present epoch's limits.
        let (mut arrived, mut excess) = ([0u64; 5], [0u64; 5]);
        let mut late: Vec<(u64, Demand)> = Vec::new();
        let (mut now, mut widest) = (Time(0), 0);
        for step in 0..3000u64 {
            now = now + Duration::from_nanos(rng.below(400_000));
            let bits = rng.below(5);
            let party = &mut parties[bits as usize];
            let counts = bits.is_multiple_of(2);
            match rng.below(9) {
                0 => party.wanted += rng.below(2 << 20),
                1 | 2 => {
                    let word = party.word();
                    (0..=rng.below(2)).for_each(|_| ledger.handle_demand(peer(bits), word, now));
                    late.push((bits, word));
                }
                3 | 4 => {
                    party.send(rng.below(1 << 20));
                }
                5 | 6 => {
                    let bytes = rng.below(party.used - party.settled + 1);
                    party.settled += bytes;
                    // Some are lost on the way: the sender alone knows.
                    if counts && rng.below(8) > 0 {
                        arrived[bits as usize] += bytes;
                        ledger.handle_arrived(peer(bits), arrived[bits as usize], now);
                    }
                }
                7 if rng.below(8) == 0 => {
                    // A cancel: what is unused goes back.
                    let unused = party.limit.filter(|l| *l != Limit::NONE).map_or(0, |l| l.saturating_sub(party.used));
                    (party.used, party.settled) = (party.used + unused, party.settled + unused);
                    party.wanted = party.used;
                }
                8 if rng.below(60) == 0 => {
                    ledger.handle_peer_lost(peer(bits), now);
                    *party = Party::default();
                    (arrived[bits as usize], excess[bits as usize]) = (0, 0);
                    late.retain(|(of, _)| *of != bits);
                }
                _ => {
                    if let Some((of, word)) =
                        (!late.is_empty()).then(|| late.swap_remove(rng.below(late.len() as u64) as usize))
                    {
                        ledger.handle_demand(peer(of), word, now);
                    }
                }
            }
            while let Some((to, limit)) = ledger.poll_word(now) {
                let index = to.to_bits() as usize;
                let party = &mut parties[index];
                assert!(
                    limit.epoch > party.epoch || party.limit.is_some_and(|l| limit.total > l),
                    "seed {seed} step {step}"
                );
                party.hear(limit);
                if limit.total == 0 {
                    excess[index] = party.used - party.settled;
                    ledger.handle_demand(to, party.word(), now);
                }
            }
            assert_eq!(ledger.poll_overdrawn(now), None, "seed {seed} step {step}: all are honest");
            if ledger.is_limiting() {
                let under_way = |(party, excess): (&Party, &u64)| (party.used - party.settled).saturating_sub(*excess);
                // Who has not been told yet is not limited yet.
                let limited =
                    parties.iter().zip(&excess).filter(|(party, _)| party.limit.is_some_and(|l| l != Limit::NONE));
                let all: u64 = limited.map(under_way).sum();
                widest = widest.max(ledger.window());
                let bound = widest + 5 * standing;
                assert!(all <= bound, "seed {seed} step {step}: {all} under way, {bound} at most");
                if ledger.outstanding() == 0 {
                    let unmet = ledger.senders.values().map(Sender::unmet).sum::<u64>();
                    assert_eq!(unmet, 0, "seed {seed} step {step}: idle with demand");
                }
            }
            for (bits, total) in arrived.iter().enumerate().filter(|(bits, _)| bits.is_multiple_of(2)) {
                let ceiling = ledger.ceiling(peer(bits as u64));
                assert!(ceiling.is_none_or(|c| *total <= c), "seed {seed} step {step}: {bits} is honest");
            }
        }
        for (bits, party) in parties.iter_mut().enumerate() {
            party.used = party.limit.filter(|l| *l != Limit::NONE).map_or(party.used, |l| l.max(party.used));
            (party.settled, party.wanted) = (party.used, party.used);
            ledger.handle_demand(peer(bits as u64), party.word(), now);
        }
        while let Some((to, limit)) = ledger.poll_word(now) {
            let party = &mut parties[to.to_bits() as usize];
            party.hear(limit);
            if limit.total != Limit::NONE && limit.total > party.used {
                (party.used, party.settled, party.wanted) = (limit.total, limit.total, limit.total);
            }
            ledger.handle_demand(to, party.word(), now);
        }
        assert_eq!(ledger.outstanding(), 0, "seed {seed}: everything comes back");
        assert!(ledger.senders.values().all(|s| s.outstanding() <= standing), "seed {seed}: but for what stands");
    }
}
