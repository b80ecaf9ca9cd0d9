//! The receiver's credit ledger: how many bytes each sender may have on the way to one of our NICs. No incast, no round trip to a conductor.
//!
//! One [`Ledger`] a local NIC. Senders say what they want ([`Demand`]); [`Ledger::poll_grant`] answers with totals. Every number that
//! crosses the wire is cumulative since the peer came, so loss, repetition and overtaking do no harm. Between tenants by weight,
//! within one by laxity (deadline − now − time to move the rest) in powers of two, then shortest rest first; who waits is promoted
//! by one power each [`CreditConfig::promote_after`], so that nobody starves. At most `senders_max` senders are served at once: two to four
//! fill a NIC, and each is done sooner (SIRD, NSDI 2025; Homa's overcommitment).
//!
//! **Invariants** (property-tested): what is granted and has neither arrived, been lost nor been given back never exceeds the
//! window; grants only grow; where somebody eligible wants more and a quantum fits, a grant follows; everything comes back.
//!
//! A poll costs O(senders). Pure: arrivals and `now` come in, grants go out.

use std::collections::BTreeMap;
use std::time::Duration;

use super::time::nanos;
use super::{PeerId, TenantId, Time};

/// Knobs of a [`Ledger`].
#[derive(Clone, Debug, PartialEq)]
pub struct CreditConfig {
    /// Bytes on the way to this NIC, at most: about 1.5 × rate × time from grant to arrival.
    pub window_bytes: u64,
    /// Bytes of one grant, at most.
    pub quantum_bytes: u64,
    /// Senders with bytes on the way at a time.
    pub senders_max: usize,
    /// Bytes a second that this NIC takes.
    pub rate: u64,
    /// Who waits so long moves up by one power of two of laxity.
    pub promote_after: Duration,
    /// A sender that holds credit and sent nothing for so long no longer counts among `senders_max`.
    pub idle_after: Duration,
}

impl Default for CreditConfig {
    fn default() -> Self {
        Self {
            window_bytes: 3 << 20,
            quantum_bytes: 1 << 20,
            senders_max: 4,
            rate: 10_000_000_000,
            promote_after: Duration::from_millis(10),
            idle_after: Duration::from_millis(5),
        }
    }
}

/// What a sender says of one of its peer's NICs. The latest counts, by `sequence`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Grows with each demand of this sender for this NIC.
    pub sequence: u64,
    /// Bytes sent so far and still to be sent.
    pub wanted: u64,
    /// Granted bytes that it will never use (cumulative): what it cancelled or sent elsewhere.
    pub returned: u64,
    /// Earliest deadline among what it wants to send.
    pub deadline: Time,
    /// On whose account.
    pub tenant: TenantId,
}

/// Credit granted to one sender, in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// To whom.
    pub peer: PeerId,
    /// Bytes since the peer came; see [`Planner::handle_credit`](super::Planner::handle_credit).
    pub granted: u64,
}

#[derive(Debug)]
struct Sender {
    demand: Demand,
    granted: u64,
    /// Arrived, or lost on a path that is fenced.
    settled: u64,
    /// Last arrival, grant or first demand.
    active_at: Time,
    /// Since when it waits for its next grant.
    waits_since: Time,
}

impl Sender {
    fn outstanding(&self) -> u64 {
        self.granted.saturating_sub(self.demand.returned).saturating_sub(self.settled)
    }

    /// Bytes that it wants and may not send yet.
    fn unmet(&self) -> u64 {
        self.demand.wanted.saturating_sub(self.granted - self.demand.returned)
    }
}

/// One NIC's ledger: who wants to send, and what each may.
#[derive(Debug)]
pub struct Ledger {
    config: CreditConfig,
    senders: BTreeMap<PeerId, Sender>,
    /// Weight and virtual time (bytes / weight, scaled) of tenants.
    tenants: BTreeMap<TenantId, (u32, u128)>,
    present: u128,
}

impl Ledger {
    /// An empty ledger.
    #[must_use]
    pub fn new(config: CreditConfig) -> Self {
        Self { config, senders: BTreeMap::new(), tenants: BTreeMap::new(), present: 0 }
    }

    /// Bytes granted that may still arrive.
    #[must_use]
    pub fn outstanding(&self) -> u64 {
        self.senders.values().map(Sender::outstanding).sum()
    }

    /// A new window: measured anew, or capped by the conductor. What is granted beyond it is not taken back.
    pub fn set_window(&mut self, bytes: u64) {
        self.config.window_bytes = bytes;
    }

    /// A tenant's share; 1 if never set.
    pub fn set_tenant_weight(&mut self, tenant: TenantId, weight: u32) {
        self.tenants.entry(tenant).or_insert((1, self.present)).0 = weight.max(1);
    }

    /// A sender says what it wants; older words than the last are ignored. It can give back only what was granted and not used.
    pub fn handle_demand(&mut self, peer: PeerId, demand: Demand, now: Time) {
        let sender = self.senders.entry(peer).or_insert_with(|| {
            let nothing = Demand { sequence: 0, wanted: 0, returned: 0, ..demand };
            Sender { demand: nothing, granted: 0, settled: 0, active_at: now, waits_since: now }
        });
        if demand.sequence < sender.demand.sequence {
            return;
        }
        if sender.unmet() == 0 {
            sender.waits_since = now;
        }
        let unused = sender.granted.saturating_sub(sender.settled);
        let returned = demand.returned.min(unused).max(sender.demand.returned);
        sender.demand = Demand { returned, ..demand };
    }

    /// Bytes of a sender arrived at this NIC, repetitions included.
    pub fn handle_arrived(&mut self, peer: PeerId, bytes: u64, now: Time) {
        if let Some(sender) = self.senders.get_mut(&peer) {
            let room = sender.granted - sender.demand.returned;
            sender.settled = sender.settled.saturating_add(bytes).min(room);
            sender.active_at = now;
        }
    }

    /// Bytes that were sent on a path that is now fenced and never arrived: what its sender says it sent there, less what came.
    pub fn handle_lost(&mut self, peer: PeerId, bytes: u64, now: Time) {
        self.handle_arrived(peer, bytes, now);
    }

    /// The peer is gone and fenced: what it held is free.
    pub fn handle_peer_lost(&mut self, peer: PeerId) {
        self.senders.remove(&peer);
    }

    /// The next grant to send, if one is due.
    pub fn poll_grant(&mut self, now: Time) -> Option<Grant> {
        let outstanding = self.outstanding();
        let is_active = |s: &Sender| s.outstanding() > 0 && now.since(s.active_at) < self.config.idle_after;
        let free_seat = self.senders.values().filter(|s| is_active(s)).count() < self.config.senders_max.max(1);
        let eligible = |s: &&Sender| s.unmet() > 0 && (free_seat || is_active(s));
        let virtual_of = |tenant: TenantId| self.tenants.get(&tenant).map_or(0, |(_, v)| *v).max(self.present);
        let tenant =
            self.senders.values().filter(eligible).map(|s| s.demand.tenant).min_by_key(|t| (virtual_of(*t), *t))?;
        let of_tenant = |(_, s): &(&PeerId, &Sender)| s.demand.tenant == tenant && eligible(s);
        let (peer, _) =
            self.senders.iter().filter(of_tenant).min_by_key(|(peer, s)| (self.urgency(s, now), s.unmet(), **peer))?;
        let peer = *peer;

        let sender = self.senders.get_mut(&peer)?;
        let window = self.config.window_bytes.max(1);
        let bytes = sender.unmet().min(self.config.quantum_bytes.max(1)).min(window);
        if outstanding + bytes > window {
            return None; // the next in order waits for room; nobody overtakes it with less
        }
        sender.granted += bytes;
        (sender.active_at, sender.waits_since) = (now, now);
        let granted = sender.granted;

        let start = virtual_of_mut(&mut self.tenants, tenant, self.present);
        self.present = start;
        if let Some((weight, virtual_time)) = self.tenants.get_mut(&tenant) {
            *virtual_time = start + u128::from(bytes) * 1024 / u128::from(*weight);
        }
        Some(Grant { peer, granted })
    }

    /// Power of two of its laxity in ms, less one for each `promote_after` waited; what is lost comes last, until it has waited.
    fn urgency(&self, sender: &Sender, now: Time) -> i64 {
        let rest = Duration::from_secs_f64(sender.unmet() as f64 / self.config.rate.max(1) as f64);
        let left = sender.demand.deadline.since(now);
        let power = if left < rest { 64 } else { i64::from((left - rest).as_millis().max(1).ilog2()) };
        let promotions = nanos(now.since(sender.waits_since)) / nanos(self.config.promote_after).max(1);
        power.saturating_sub_unsigned(promotions)
    }
}

/// A tenant's virtual time, brought up to the present.
fn virtual_of_mut(tenants: &mut BTreeMap<TenantId, (u32, u128)>, tenant: TenantId, present: u128) -> u128 {
    let (_, virtual_time) = tenants.entry(tenant).or_insert((1, present));
    *virtual_time = (*virtual_time).max(present);
    *virtual_time
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::retry::Rng;

    fn demand(sequence: u64, wanted: u64, deadline_ms: u64) -> Demand {
        Demand { sequence, wanted, returned: 0, deadline: Time(deadline_ms * 1_000_000), tenant: TenantId(0) }
    }

    fn peer(bits: u64) -> PeerId {
        PeerId::from_bits(bits)
    }

    fn grants(ledger: &mut Ledger, now: Time) -> Vec<(u64, u64)> {
        std::iter::from_fn(|| ledger.poll_grant(now)).map(|grant| (grant.peer.to_bits(), grant.granted)).collect()
    }

    #[test]
    fn urgent_before_lax_then_short_before_long_and_the_lost_last() {
        let mut ledger =
            Ledger::new(CreditConfig { window_bytes: 100 << 20, senders_max: 9, ..CreditConfig::default() });
        for (bits, bytes, deadline_ms) in [(1, 500, 2_000), (2, 900, 20), (3, 300, 2_000), (4, 1 << 20, 0)] {
            ledger.handle_demand(peer(bits), demand(1, bytes, deadline_ms), Time(0));
        }
        assert_eq!(grants(&mut ledger, Time(0)), [(2, 900), (3, 300), (1, 500), (4, 1 << 20)]);
    }

    #[test]
    fn few_senders_at_a_time_and_an_idle_one_gives_up_its_seat() {
        let config = CreditConfig { senders_max: 2, window_bytes: 100 << 20, ..CreditConfig::default() };
        let mut ledger = Ledger::new(config);
        for bits in 0..3 {
            ledger.handle_demand(peer(bits), demand(1, 1000, 1000), Time(0));
        }
        assert_eq!(grants(&mut ledger, Time(0)), [(0, 1000), (1, 1000)]);
        ledger.handle_arrived(peer(0), 1000, Time(1));
        assert_eq!(grants(&mut ledger, Time(1)), [(2, 1000)]);
        ledger.handle_demand(peer(3), demand(1, 1000, 1000), Time(1));
        assert_eq!(grants(&mut ledger, Time(2)), []);
        assert_eq!(grants(&mut ledger, Time(6_000_000)), [(3, 1000)], "1 and 2 hold credit and do not send");
    }

    #[test]
    fn old_words_are_ignored_and_no_more_is_given_back_than_is_held() {
        let mut ledger = Ledger::new(CreditConfig::default());
        ledger.handle_demand(peer(0), demand(2, 5000, 1000), Time(0));
        ledger.handle_demand(peer(0), demand(1, 9000, 1000), Time(0));
        assert_eq!(grants(&mut ledger, Time(0)), [(0, 5000)]);
        ledger.handle_arrived(peer(0), 2000, Time(0));
        ledger.handle_demand(peer(0), Demand { returned: 1 << 40, ..demand(3, 2000, 1000) }, Time(0));
        assert_eq!(ledger.outstanding(), 0);
        ledger.handle_arrived(peer(0), 1 << 40, Time(0));
        ledger.handle_demand(peer(0), demand(4, 6000, 1000), Time(0));
        assert_eq!(grants(&mut ledger, Time(0)), [(0, 9000)], "4,000 more than the 2,000 used and 3,000 given back");
    }

    /// I1 window, I2 work conserving, I4 monotone, I5 conservation: random demands, arrivals, losses, returns, deaths; control messages
    /// lost, repeated and late.
    #[test]
    fn invariants_hold_under_random_schedules() {
        for seed in 0..400 {
            let mut rng = Rng::new(seed);
            let quantum = 1 + rng.below(1 << 20);
            let config = CreditConfig {
                window_bytes: quantum + rng.below(4 << 20),
                quantum_bytes: quantum,
                senders_max: 1 + rng.below(5) as usize,
                ..CreditConfig::default()
            };
            let mut ledger = Ledger::new(config.clone());
            // What each sender knows: (wanted, granted as far as heard, sent, arrived or lost, returned, sequence).
            let mut senders = [[0u64; 6]; 6];
            let mut told = [0u64; 6];
            let mut now = Time(0);
            for step in 0..2_000u64 {
                now = now + Duration::from_nanos(rng.below(200_000));
                let bits = rng.below(6);
                let [wanted, granted, sent, settled, returned, sequence] = &mut senders[bits as usize];
                match rng.below(8) {
                    0 => *wanted += rng.below(3 << 20),
                    1 => {
                        *sequence += 1;
                        let stale = u64::from(rng.below(4) == 0 && *sequence > 1);
                        let word = Demand {
                            sequence: *sequence - stale,
                            wanted: *wanted,
                            returned: *returned,
                            deadline: now + Duration::from_millis(rng.below(100)),
                            tenant: TenantId(bits as u32 % 3),
                        };
                        for _ in 0..rng.below(3) {
                            ledger.handle_demand(peer(bits), word, now);
                        }
                    }
                    2 | 3 => *sent = (*sent + rng.below(2 << 20)).min(*granted - *returned).min((*wanted).max(*sent)),
                    4 | 5 => {
                        let bytes = rng.below(*sent - *settled + 1);
                        *settled += bytes;
                        ledger.handle_arrived(peer(bits), bytes, now);
                    }
                    6 if rng.below(4) == 0 => {
                        *returned = *granted - *sent; // a cancel: what is unused goes back
                        *wanted = *sent;
                    }
                    7 if rng.below(60) == 0 => {
                        ledger.handle_peer_lost(peer(bits));
                        senders[bits as usize] = [0; 6];
                        told[bits as usize] = 0;
                    }
                    _ => {}
                }
                while let Some(grant) = ledger.poll_grant(now) {
                    let index = grant.peer.to_bits() as usize;
                    assert!(grant.granted > told[index], "I4, seed {seed} step {step}");
                    told[index] = grant.granted;
                    if rng.below(3) > 0 {
                        senders[index][1] = grant.granted; // else the grant is lost: a later one says more
                    }
                }
                assert!(ledger.outstanding() <= config.window_bytes, "I1, seed {seed} step {step}");
                let in_flight: u64 = senders.iter().map(|s| s[2] - s[3]).sum();
                assert!(in_flight <= ledger.outstanding(), "I1 by what is really on the way, seed {seed} step {step}");
                let unmet = ledger.senders.values().any(|s| s.unmet() > 0);
                if unmet && ledger.outstanding() == 0 {
                    panic!("I2, seed {seed} step {step}: idle with demand");
                }
            }
            for bits in 0..6 {
                let [_, _, sent, settled, ..] = senders[bits as usize];
                ledger.handle_lost(peer(bits), sent - settled, now);
                let give_back = Demand { returned: u64::MAX, ..demand(u64::MAX, sent, 0) };
                ledger.handle_demand(peer(bits), give_back, now);
            }
            assert_eq!(ledger.outstanding(), 0, "I5, seed {seed}: everything comes back");
        }
    }

    /// I3: backlogged tenants share by weight, and within one nobody waits for ever behind who is always more urgent.
    #[test]
    fn tenants_share_by_weight_and_nobody_starves() {
        let mut ledger = Ledger::new(CreditConfig {
            quantum_bytes: 64 << 10,
            window_bytes: 256 << 10,
            senders_max: 2,
            promote_after: Duration::from_millis(1),
            ..CreditConfig::default()
        });
        ledger.set_tenant_weight(TenantId(0), 3);
        let word = |bits: u64, sequence, deadline| Demand {
            deadline,
            tenant: TenantId(bits as u32 / 3),
            ..demand(sequence, 1 << 40, 0)
        };
        for bits in 0..6 {
            ledger.handle_demand(peer(bits), word(bits, 1, Time(60_000_000_000)), Time(0));
        }
        let (mut totals, mut longest, mut last) = ([0u64; 6], [0u64; 6], [0u64; 6]);
        let mut on_the_way = Vec::new();
        for round in 0..20_000u64 {
            let now = Time(round * 6_000);
            ledger.handle_demand(peer(5), word(5, 2 + round, now + Duration::from_millis(100)), now);
            for (peer, bytes) in on_the_way.drain(..) {
                ledger.handle_arrived(peer, bytes, now);
            }
            while let Some(grant) = ledger.poll_grant(now) {
                let index = grant.peer.to_bits() as usize;
                on_the_way.push((grant.peer, grant.granted - totals[index]));
                totals[index] = grant.granted;
                longest[index] = longest[index].max(now.0 - last[index]);
                last[index] = now.0;
            }
        }
        let (first, second): (u64, u64) = (totals[..3].iter().sum(), totals[3..].iter().sum());
        let ratio = first as f64 / second as f64;
        assert!((2.8..3.2).contains(&ratio), "3 to 1, got {ratio:.2}");
        // The others of tenant 1 are 9 powers less urgent: 9 promotions, and a turn.
        let waits = longest.iter().zip(last).map(|(longest, last)| (*longest).max(120_000_000 - last));
        assert!(waits.clone().all(|wait| wait < 15_000_000), "longest waits, ns: {:?}", waits.collect::<Vec<_>>());
    }
}
