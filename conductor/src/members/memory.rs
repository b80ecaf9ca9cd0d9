//! Membership in memory, for one conductor.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::{Load, Member, MemberId, Membership, MembershipError, Node, Registered};

/// [`Membership`] in two maps: members by id, and the current registration of each node.
#[derive(Debug)]
pub struct InMemory {
    members: BTreeMap<MemberId, Member>,
    by_name: HashMap<String, MemberId>,
    next_id: u32,
    lease: Duration,
    members_max: usize,
}

impl InMemory {
    /// Nobody there yet; leases last `lease`.
    #[must_use]
    pub fn new(lease: Duration, members_max: usize) -> Self {
        Self { members: BTreeMap::new(), by_name: HashMap::new(), next_id: 1, lease, members_max }
    }

    fn remove(&mut self, id: MemberId) -> bool {
        let Some(member) = self.members.remove(&id) else { return false };
        // The name may stand for a later registration by now.
        if self.by_name.get(&member.node.node_id) == Some(&id) {
            self.by_name.remove(&member.node.node_id);
        }
        true
    }

    fn renewed(&mut self, id: MemberId, now: Duration) -> Result<&mut Member, MembershipError> {
        let lease_until = now + self.lease;
        let member = self.members.get_mut(&id).ok_or(MembershipError::Unknown)?;
        member.lease_until = lease_until;
        Ok(member)
    }
}

impl Membership for InMemory {
    fn handle_register(&mut self, node: Node, now: Duration) -> Result<Registered, MembershipError> {
        node.validate()?;
        let replaced = self.by_name.get(&node.node_id).copied();
        if replaced.is_none() && self.members.len() >= self.members_max {
            return Err(MembershipError::Full { max: self.members_max });
        }
        if let Some(old) = replaced {
            self.remove(old);
        }
        let id = MemberId(self.next_id);
        self.next_id += 1;
        self.by_name.insert(node.node_id.clone(), id);
        // Until it reports, a node counts as idle with its whole pool free.
        let load = Load { blocks_free: node.pool_blocks, ..Load::default() };
        let member = Member { id, node, load, connected: true, lease_until: now + self.lease };
        self.members.insert(id, member);
        Ok(Registered { id, replaced })
    }

    fn handle_load(&mut self, id: MemberId, load: Load, now: Duration) -> Result<bool, MembershipError> {
        let member = self.renewed(id, now)?;
        // Reports start at any number; only one older than the last is not news.
        let news = load.sequence > member.load.sequence || member.load.sequence == 0;
        if news {
            member.load = load.sane();
        }
        Ok(news)
    }

    fn handle_alive(&mut self, id: MemberId, now: Duration) -> Result<(), MembershipError> {
        self.renewed(id, now).map(|_| ())
    }

    fn handle_disconnected(&mut self, id: MemberId) -> bool {
        self.members.get_mut(&id).map(|member| member.connected = false).is_some()
    }

    fn handle_leave(&mut self, id: MemberId) -> bool {
        self.remove(id)
    }

    fn handle_timeout(&mut self, now: Duration) -> Vec<MemberId> {
        let over: Vec<_> = self.members.values().filter(|m| m.lease_until <= now).map(|m| m.id).collect();
        for &id in &over {
            self.remove(id);
        }
        over
    }

    fn poll_timeout(&self) -> Option<Duration> {
        self.members.values().map(|m| m.lease_until).min()
    }

    fn get(&self, id: MemberId) -> Option<&Member> {
        self.members.get(&id)
    }

    fn members(&self) -> Vec<&Member> {
        self.members.values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::NodeError;
    use super::*;
    use crate::testing::node;

    const LEASE: Duration = Duration::from_secs(3);
    const T0: Duration = Duration::from_secs(100);

    fn store() -> InMemory {
        InMemory::new(LEASE, 3)
    }

    #[test]
    fn a_lease_runs_out_unless_renewed() {
        let mut members = store();
        let a = members.handle_register(node("a"), T0).unwrap().id;
        let b = members.handle_register(node("b"), T0).unwrap().id;
        assert_eq!(members.poll_timeout(), Some(T0 + LEASE));
        members.handle_load(a, Load { sequence: 1, ..Load::default() }, T0 + LEASE / 2).unwrap();
        assert_eq!(members.handle_timeout(T0 + LEASE), [b]);
        assert!(members.get(a).is_some() && members.get(b).is_none());
        assert_eq!(members.handle_alive(b, T0 + LEASE), Err(MembershipError::Unknown), "late: it must register again");
        members.handle_alive(a, T0 + LEASE).unwrap();
        assert!(members.handle_timeout(T0 + LEASE + LEASE / 2).is_empty());
        assert_eq!(members.handle_timeout(T0 + LEASE * 2), [a]);
        assert_eq!(members.poll_timeout(), None);
    }

    #[test]
    fn a_node_that_returns_is_new() {
        let mut members = store();
        let first = members.handle_register(node("a"), T0).unwrap();
        assert_eq!(first.replaced, None);
        let again = members.handle_register(Node { generation: 8, ..node("a") }, T0).unwrap();
        assert_eq!(again.replaced, Some(first.id));
        assert_ne!(again.id, first.id);
        assert_eq!(members.members().len(), 1);
        assert!(!members.handle_leave(first.id), "the old life cannot end the new one");
        assert!(!members.handle_disconnected(first.id));
        assert!(members.get(again.id).unwrap().connected);
        assert!(members.handle_leave(again.id));
        assert_eq!(members.handle_register(node("a"), T0).unwrap().replaced, None);
    }

    #[test]
    fn a_broken_stream_keeps_the_member_until_its_lease_is_over() {
        let mut members = store();
        let id = members.handle_register(node("a"), T0).unwrap().id;
        assert!(members.handle_disconnected(id));
        assert!(!members.get(id).unwrap().connected);
        assert_eq!(members.handle_timeout(T0 + LEASE), [id]);
    }

    #[test]
    fn an_old_report_renews_but_tells_nothing() {
        let mut members = store();
        let id = members.handle_register(node("a"), T0).unwrap().id;
        assert_eq!(members.get(id).unwrap().load.blocks_free, 1000, "idle until it says otherwise");
        let at = |sequence, running| Load { sequence, running, ..Load::default() };
        assert_eq!(members.handle_load(id, at(5, 1), T0), Ok(true));
        assert_eq!(members.handle_load(id, at(4, 9), T0 + LEASE / 2), Ok(false));
        assert_eq!(members.get(id).unwrap().load.running, 1);
        assert!(members.handle_timeout(T0 + LEASE).is_empty());
    }

    #[test]
    fn bounds_and_nonsense_are_refused_by_name() {
        let mut members = store();
        for name in ["a", "b", "c"] {
            members.handle_register(node(name), T0).unwrap();
        }
        assert_eq!(members.handle_register(node("d"), T0), Err(MembershipError::Full { max: 3 }));
        assert!(members.handle_register(node("c"), T0).is_ok(), "coming back needs no room");

        let refused = |node: Node| match store().handle_register(node, T0) {
            Err(MembershipError::Node(NodeError { field, .. })) => field,
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(node("")), "node_id");
        assert_eq!(refused(node(&"x".repeat(1000))), "node_id");
        assert_eq!(refused(Node { grpc_address: "a\nb".into(), ..node("a") }), "grpc_address");
        assert_eq!(refused(Node { pool_blocks: 0, ..node("a") }), "pool_blocks");
        let mut hostile = node("a");
        hostile.format.layers = u32::MAX;
        assert_eq!(refused(hostile), "kv_format");
        let load = Load { prefill_tokens_per_s: f64::NAN, step_ms: -1.0, ..Load::default() }.sane();
        assert_eq!((load.prefill_tokens_per_s, load.step_ms), (0.0, 0.0));
    }
}
