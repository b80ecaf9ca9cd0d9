//! Who goes next: strict priority for control, weighted fair sharing between classes and between tenants within a class, earliest
//! deadline first within a tenant.
//!
//! Start-time fair queueing (Goyal, Vin, Cheng 1996) on two levels: each class and each tenant has a virtual time that runs
//! at bytes / weight; the least is served. One that was away or blocked comes back at the present, at most
//! [`LAG_BYTES`] behind: no credit is hoarded. Transfers to different peers queue apart, so that a peer whose paths are full holds up
//! nobody else. A pick costs O(flows with work), a flow being (class, tenant, peer).

use std::collections::BTreeSet;

use super::time::Time;
use super::{Class, PeerId, TenantId, TransferId};

/// What one that could not be served may catch up on.
const LAG_BYTES: u128 = 8 << 20;
/// Virtual time is bytes × this / weight; 128 bits never run out.
const SCALE: u128 = 1 << 10;

/// A place in the queue of flows; valid until the next removal.
pub(crate) type FlowIx = usize;

#[derive(Debug)]
pub(crate) struct Classes {
    weights: [u32; 4],
    class_virtual: [u128; 4],
    class_present: u128,
    tenants: Vec<Tenant>,
    flows: Vec<Flow>,
    /// Of a flow that ended, empty: small transfers one after the other end a flow each.
    spare: BTreeSet<(Time, TransferId)>,
}

#[derive(Debug)]
struct Tenant {
    class: Class,
    id: TenantId,
    weight: u32,
    virtual_time: u128,
    flows: u32,
}

#[derive(Debug)]
struct Flow {
    class: Class,
    tenant: TenantId,
    peer: PeerId,
    queue: BTreeSet<(Time, TransferId)>,
    blocked_in: u64,
}

impl Classes {
    pub(crate) fn new(weights: [u32; 4]) -> Self {
        let weights = weights.map(|weight| weight.max(1));
        Self {
            weights,
            class_virtual: [0; 4],
            class_present: 0,
            tenants: Vec::new(),
            flows: Vec::new(),
            spare: BTreeSet::new(),
        }
    }

    /// Queues a transfer that has bytes to hand out. Twice is once.
    pub(crate) fn insert(&mut self, key: FlowKey, deadline: Time, transfer: TransferId, weight: u32) {
        let FlowKey { class, tenant, peer } = key;
        let found = self.flows.iter().position(|f| f.class == class && f.tenant == tenant && f.peer == peer);
        let flow = found.unwrap_or_else(|| {
            self.activate(class, tenant, weight.max(1));
            let queue = std::mem::take(&mut self.spare);
            self.flows.push(Flow { class, tenant, peer, queue, blocked_in: 0 });
            self.flows.len() - 1
        });
        self.flows[flow].queue.insert((deadline, transfer));
    }

    pub(crate) fn remove(&mut self, key: FlowKey, deadline: Time, transfer: TransferId) {
        let FlowKey { class, tenant, peer } = key;
        let Some(at) = self.flows.iter().position(|f| f.class == class && f.tenant == tenant && f.peer == peer) else {
            return;
        };
        self.flows[at].queue.remove(&(deadline, transfer));
        if self.flows[at].queue.is_empty() {
            self.spare = self.flows.swap_remove(at).queue;
            if let Some(t) = self.tenants.iter().position(|t| t.class == class && t.id == tenant) {
                self.tenants[t].flows -= 1;
                if self.tenants[t].flows == 0 {
                    self.tenants.swap_remove(t);
                }
            }
        }
    }

    /// Counts a new flow of `tenant` in `class`; both start at their level's present if they had none.
    fn activate(&mut self, class: Class, tenant: TenantId, weight: u32) {
        let peers = || self.tenants.iter().filter(|t| t.class == class);
        if peers().next().is_none() {
            let virtual_time = &mut self.class_virtual[class as usize];
            *virtual_time = (*virtual_time).max(self.class_present);
        }
        let present = peers().map(|t| t.virtual_time).min().unwrap_or(0);
        match self.tenants.iter_mut().find(|t| t.class == class && t.id == tenant) {
            Some(known) => known.flows += 1,
            None => self.tenants.push(Tenant { class, id: tenant, weight, virtual_time: present, flows: 1 }),
        }
    }

    /// The flow to serve next, of those not blocked in `round`.
    pub(crate) fn best(&self, round: u64) -> Option<FlowIx> {
        if let [only] = self.flows.as_slice() {
            return (only.blocked_in != round).then_some(0);
        }
        let open = self.flows.iter().enumerate().filter(|(_, flow)| flow.blocked_in != round);
        open.min_by_key(|(_, flow)| {
            let tenant = self.tenant(flow).map_or(0, |t| t.virtual_time);
            let class = self.class_virtual[flow.class as usize];
            (flow.class != Class::Control, class, flow.class, tenant, flow.tenant, flow.queue.first().copied())
        })
        .map(|(at, _)| at)
    }

    pub(crate) fn key(&self, flow: FlowIx) -> FlowKey {
        let Flow { class, tenant, peer, .. } = self.flows[flow];
        FlowKey { class, tenant, peer }
    }

    /// The transfer after `last` in a flow, by deadline.
    pub(crate) fn after(&self, flow: FlowIx, last: Option<(Time, TransferId)>) -> Option<(Time, TransferId)> {
        use std::ops::Bound::{Excluded, Unbounded};
        match last {
            None => self.flows[flow].queue.first().copied(),
            Some(last) => self.flows[flow].queue.range((Excluded(last), Unbounded)).next().copied(),
        }
    }

    /// Leaves the flow out for the rest of `round`.
    pub(crate) fn block(&mut self, flow: FlowIx, round: u64) {
        self.flows[flow].blocked_in = round;
    }

    /// `bytes` of a flow were handed out.
    pub(crate) fn charge(&mut self, key: FlowKey, bytes: u64) {
        if key.class == Class::Control {
            return;
        }
        let class = key.class as usize;
        let lag = |weight: u32| LAG_BYTES * SCALE / u128::from(weight);
        let served = &mut self.class_virtual[class];
        *served = (*served).max(self.class_present.saturating_sub(lag(self.weights[class])));
        self.class_present = self.class_present.max(*served);
        *served += u128::from(bytes) * SCALE / u128::from(self.weights[class]);

        let newest = self.tenants.iter().filter(|t| t.class == key.class).map(|t| t.virtual_time).max().unwrap_or(0);
        if let Some(tenant) = self.tenants.iter_mut().find(|t| t.class == key.class && t.id == key.tenant) {
            tenant.virtual_time = tenant.virtual_time.max(newest.saturating_sub(lag(tenant.weight)));
            tenant.virtual_time += u128::from(bytes) * SCALE / u128::from(tenant.weight);
        }
    }

    fn tenant(&self, flow: &Flow) -> Option<&Tenant> {
        self.tenants.iter().find(|t| t.class == flow.class && t.id == flow.tenant)
    }
}

/// Names a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlowKey {
    pub(crate) class: Class,
    pub(crate) tenant: TenantId,
    pub(crate) peer: PeerId,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(class: Class, tenant: u32, peer: u64) -> FlowKey {
        FlowKey { class, tenant: TenantId(tenant), peer: PeerId::from_bits(peer) }
    }

    fn serve(classes: &mut Classes, picks: usize) -> Vec<(FlowKey, TransferId)> {
        let pick = |_| {
            let flow = classes.best(1).unwrap();
            let (key, (_, transfer)) = (classes.key(flow), classes.after(flow, None).unwrap());
            classes.charge(key, 1 << 16);
            (key, transfer)
        };
        (0..picks).map(pick).collect()
    }

    #[test]
    fn control_first_then_by_weight_then_by_tenant() {
        let mut classes = Classes::new([1, 8, 2, 1]);
        let (kv, copy) = (key(Class::KvHandoff, 0, 0), key(Class::Replication, 0, 0));
        let (weights_a, weights_b) = (key(Class::Weights, 1, 0), key(Class::Weights, 2, 0));
        classes.insert(kv, Time(9), TransferId::from_bits(0), 1);
        classes.insert(copy, Time(1), TransferId::from_bits(1), 1);
        classes.insert(weights_a, Time(1), TransferId::from_bits(2), 3);
        classes.insert(weights_b, Time(1), TransferId::from_bits(3), 1);
        let served = serve(&mut classes, 11 * 40);
        let count = |key| served.iter().filter(|(k, _)| *k == key).count() as i64;
        assert!((count(kv) - 320).abs() <= 2 && (count(copy) - 80).abs() <= 2, "{} {}", count(kv), count(copy));
        assert!((count(weights_a) - 30).abs() <= 1 && (count(weights_b) - 10).abs() <= 1);

        let control = key(Class::Control, 0, 7);
        classes.insert(control, Time(99), TransferId::from_bits(4), 1);
        assert!(serve(&mut classes, 50).iter().all(|(k, _)| *k == control));
        classes.remove(control, Time(99), TransferId::from_bits(4));
        assert_ne!(serve(&mut classes, 1)[0].0, control);
    }

    #[test]
    fn earliest_deadline_first_across_peers_and_blocked_ones_are_passed_over() {
        let mut classes = Classes::new([1; 4]);
        for (peer, deadline) in [(0, 30), (1, 10), (2, 20), (1, 15)] {
            classes.insert(key(Class::KvHandoff, 0, peer), Time(deadline), TransferId::from_bits(deadline), 1);
        }
        let first = classes.best(1).unwrap();
        assert_eq!(classes.after(first, None), Some((Time(10), TransferId::from_bits(10))));
        assert_eq!(classes.after(first, classes.after(first, None)), Some((Time(15), TransferId::from_bits(15))));
        classes.block(first, 1);
        assert_eq!(classes.key(classes.best(1).unwrap()).peer, PeerId::from_bits(2));
        assert_eq!(classes.best(2), Some(first));
    }

    #[test]
    fn one_that_was_away_hoards_no_credit() {
        let mut classes = Classes::new([1; 4]);
        let (busy, away) = (key(Class::Replication, 0, 0), key(Class::Weights, 0, 0));
        classes.insert(busy, Time(1), TransferId::from_bits(0), 1);
        serve(&mut classes, 10_000);
        classes.insert(away, Time(1), TransferId::from_bits(1), 1);
        let share = serve(&mut classes, 100).iter().filter(|(k, _)| *k == away).count();
        assert!((45..=55).contains(&share), "{share}");
    }
}
