//! The members as a gateway knows them: what the conductor last told, kept when it falls silent.
//!
//! Pure. A conductor that just restarted knows nobody until the nodes have come back, so for a while after a new stream
//! began, members that it does not name are kept (as not connected: the last choice) instead of dropped.

use std::collections::HashMap;
use std::time::Duration;

use kvrail_kv::{Namespace, NamespaceParts};

use crate::members::{Load, Member, MemberId, Node, Role};

/// The members, with ids of this gateway's own: one for each life of each node.
#[derive(Debug, Default)]
pub(super) struct View {
    members: Vec<Member>,
    ids: HashMap<(String, u64), MemberId>,
    next_id: u32,
    /// Until when members that are not named are kept.
    keep_until: Duration,
}

/// What a new list of members changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    /// Those whose load is newer.
    pub reported: Vec<MemberId>,
    /// Those that are gone.
    pub gone: Vec<MemberId>,
}

/// What requests need to know of the pool that serves a model.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Serving {
    /// A node of the pool, for what all of its nodes have in common.
    pub node: Node,
    /// The longest sequence that any decode node takes, and by which limit.
    pub tokens_max: u64,
}

impl Serving {
    /// The namespace of a tenant.
    pub(super) fn namespace(&self, salt: &str) -> Namespace {
        Namespace::new(&NamespaceParts {
            model: &self.node.model_digest,
            format: &self.node.format,
            numerics: &self.node.numerics,
            adapter: "",
            salt,
        })
    }
}

impl View {
    /// A stream of members begins at `now`; those that it does not name are kept for `keep`.
    pub(super) fn handle_stream(&mut self, now: Duration, keep: Duration) {
        self.keep_until = now + keep;
    }

    /// The whole list, newest state.
    pub(super) fn handle_members(&mut self, listed: Vec<(Node, Load)>, now: Duration) -> Changes {
        let mut changes = Changes::default();
        let mut members = Vec::with_capacity(listed.len());
        for (node, load) in listed {
            let next_id = &mut self.next_id;
            let id = *self.ids.entry((node.node_id.clone(), node.generation)).or_insert_with(|| {
                *next_id += 1;
                MemberId(*next_id)
            });
            let before = self.members.iter().find(|m| m.id == id);
            if before.is_some_and(|m| m.load != load) {
                changes.reported.push(id);
            }
            members.push(Member { id, node, load, connected: true, lease_until: Duration::MAX });
        }
        for old in std::mem::take(&mut self.members) {
            let named = members.iter().any(|m| m.node.node_id == old.node.node_id);
            if !named && now < self.keep_until {
                members.push(Member { connected: false, ..old });
            } else if members.iter().all(|m| m.id != old.id) {
                changes.gone.push(old.id);
            }
        }
        members.sort_by_key(|m| m.id);
        self.members = members;
        self.ids.retain(|_, id| self.members.binary_search_by_key(id, |m| m.id).is_ok());
        changes
    }

    pub(super) fn members(&self) -> &[Member] {
        &self.members
    }

    /// Whether some members are kept that the conductor does not name.
    pub(super) fn knows_more(&self) -> bool {
        self.members.iter().any(|m| !m.connected)
    }

    /// Generation of a node by its name.
    pub(super) fn generation(&self, node_id: &str) -> Option<u64> {
        self.members.iter().find(|m| m.node.node_id == node_id).map(|m| m.node.generation)
    }

    /// The pool that serves a model file, by its digest if that is known, else by the name that nodes register: of several
    /// namespaces, the one with the most decode nodes.
    pub(super) fn serving(&self, model: &str, digest: Option<&str>) -> Option<Serving> {
        let fits = |m: &&Member| {
            let same = digest.map_or(m.node.model == model, |digest| m.node.model_digest == digest);
            m.node.role == Role::Decode && same
        };
        let mut pools: HashMap<u64, (usize, u64, &Node)> = HashMap::new();
        for member in self.members.iter().filter(fits) {
            let longest = u64::from(member.node.context_tokens).min(member.node.pool_tokens());
            let pool = pools.entry(member.node.namespace_id).or_insert((0, 0, &member.node));
            pool.0 += 1;
            pool.1 = pool.1.max(longest);
        }
        let largest = pools.into_iter().max_by_key(|(id, (count, ..))| (*count, *id));
        largest.map(|(_, (_, tokens_max, node))| Serving { node: node.clone(), tokens_max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::node;

    const T0: Duration = Duration::from_secs(10);
    const KEEP: Duration = Duration::from_secs(5);

    fn listed(names: &[&str]) -> Vec<(Node, Load)> {
        names.iter().map(|name| (node(name), Load::default())).collect()
    }

    fn names(view: &View) -> Vec<(&str, bool)> {
        view.members().iter().map(|m| (m.node.node_id.as_str(), m.connected)).collect()
    }

    #[test]
    fn a_restarted_conductor_does_not_empty_the_view() {
        let mut view = View::default();
        view.handle_members(listed(&["a", "b"]), T0);
        view.handle_stream(T0, KEEP);
        assert_eq!(view.handle_members(vec![], T0), Changes::default());
        assert_eq!(names(&view), [("a", false), ("b", false)]);
        assert!(view.knows_more() && view.serving("m", None).is_some());
        view.handle_members(listed(&["b"]), T0);
        assert_eq!(names(&view), [("a", false), ("b", true)]);
        let changes = view.handle_members(listed(&["b"]), T0 + KEEP);
        assert_eq!((names(&view), changes.gone.len()), (vec![("b", true)], 1));
    }

    #[test]
    fn a_node_that_returns_has_a_new_id_and_load_changes_are_told() {
        let mut view = View::default();
        view.handle_members(listed(&["a"]), T0);
        let old = view.members()[0].id;
        let load = Load { running: 3, ..Load::default() };
        assert_eq!(view.handle_members(vec![(node("a"), load)], T0), Changes { reported: vec![old], gone: vec![] });
        view.handle_stream(T0, KEEP);
        let changes = view.handle_members(vec![(Node { generation: 8, ..node("a") }, load)], T0);
        assert_eq!(changes, Changes { reported: vec![], gone: vec![old] });
        assert_ne!(view.members()[0].id, old);
        assert_eq!((view.generation("a"), view.generation("b"), view.ids.len()), (Some(8), None, 1));
    }

    #[test]
    fn the_largest_pool_of_the_right_model_serves() {
        let mut view = View::default();
        let other = Node { namespace_id: 9, ..node("x") };
        let wrong = Node { model_digest: "wrong".into(), namespace_id: 3, ..node("y") };
        let prefill = Node { role: Role::Prefill, namespace_id: 9, ..node("p") };
        let small = Node { pool_blocks: 10, ..node("a") };
        let all = [other, wrong, prefill, small, node("b")];
        view.handle_members(all.into_iter().map(|n| (n, Load::default())).collect(), T0);
        let serving = view.serving("m", Some("digest")).unwrap();
        assert_eq!((serving.node.namespace_id, serving.tokens_max), (1, 4096));
        assert_eq!(view.serving("public name", Some("digest")), Some(serving));
        assert_eq!(view.serving("other", None), None);
        assert_eq!(view.serving("m", Some("none")), None);
    }
}
