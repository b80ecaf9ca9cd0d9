//! The conductor without its sockets: members, event cursors, index and router as one state machine.
//!
//! Everything that must change together changes in one call: a member that goes takes its index entries, its cursor and
//! its credits with it. Threading: none, the service locks; no call blocks.

use std::collections::HashMap;
use std::time::Duration;

use kvrail_kv::{ChainHash, KvEvent, KvEventBatch};

use crate::events::{Action, Source, SourceError, SourceStats};
use crate::index::{FlatIndex, IndexStats, PrefixIndex};
use crate::members::{InMemory, Load, Member, MemberId, Membership, MembershipError, Node};
use crate::route::{Decision, Refusal, Request, RouteConfig, Router};

/// Bounds and settings of the state machine.
#[derive(Clone, Copy, Debug)]
pub struct CoreConfig {
    /// A member that does not report for so long is gone.
    pub lease: Duration,
    /// Most members.
    pub members_max: usize,
    /// Most (holder, block) pairs in the index.
    pub index_memberships_max: usize,
    /// Most blocks in one source's snapshot.
    pub snapshot_blocks_max: u64,
    /// Routing.
    pub route: RouteConfig,
}

impl Default for CoreConfig {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(3),
            members_max: 4096,
            index_memberships_max: 20_000_000,
            snapshot_blocks_max: 4_000_000,
            route: RouteConfig::default(),
        }
    }
}

/// Why a node's message ends its stream.
#[derive(Debug, thiserror::Error)]
pub enum CoreError {
    /// Its registration is refused or over.
    #[error(transparent)]
    Membership(#[from] MembershipError),
    /// Its events break the protocol.
    #[error(transparent)]
    Source(#[from] SourceError),
}

/// Totals since the start, for status and metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreStats {
    /// Registrations.
    pub registrations: u64,
    /// Members whose lease ran out.
    pub leases_expired: u64,
    /// Decisions with a P.
    pub routed_pairs: u64,
    /// Decisions for D alone.
    pub routed_alone: u64,
    /// Refusals.
    pub refused: u64,
    /// Prompt tokens of routed requests.
    pub prompt_tokens: u64,
    /// Of these, the most that any eligible node held.
    pub best_cached_tokens: u64,
    /// Of these, what the chosen one held.
    pub chosen_cached_tokens: u64,
    /// Of all event sources, those that are gone included.
    pub events: SourceStats,
}

/// The state machine.
pub struct Core {
    members: Box<dyn Membership>,
    index: Box<dyn PrefixIndex>,
    sources: HashMap<MemberId, Source>,
    router: Router,
    config: CoreConfig,
    revision: u64,
    stats: CoreStats,
}

impl Core {
    /// Nobody there yet.
    #[must_use]
    pub fn new(config: CoreConfig) -> Self {
        Self {
            members: Box::new(InMemory::new(config.lease, config.members_max)),
            index: Box::new(FlatIndex::new(config.index_memberships_max)),
            sources: HashMap::new(),
            router: Router::new(config.route),
            config,
            revision: 1,
            stats: CoreStats::default(),
        }
    }

    /// A node registers; what an earlier registration of it held is dropped.
    ///
    /// # Errors
    /// [`CoreError::Membership`].
    pub fn handle_register(&mut self, node: Node, now: Duration) -> Result<MemberId, CoreError> {
        let registered = self.members.handle_register(node, now)?;
        if let Some(old) = registered.replaced {
            self.forget(old);
        }
        self.sources.insert(registered.id, Source::new(self.config.snapshot_blocks_max));
        self.stats.registrations += 1;
        self.revision += 1;
        Ok(registered.id)
    }

    /// A member reports its load.
    ///
    /// # Errors
    /// [`CoreError::Membership`] if it is none any more.
    pub fn handle_load(&mut self, id: MemberId, load: Load, now: Duration) -> Result<(), CoreError> {
        if self.members.handle_load(id, load, now)? {
            self.router.handle_load(id, now);
            self.revision += 1;
        }
        Ok(())
    }

    /// A member's KV events. `Some(sequence)`: events from there on were lost, and it must send a snapshot.
    ///
    /// # Errors
    /// [`CoreError`] ends the stream.
    pub fn handle_events(
        &mut self,
        id: MemberId,
        batch: KvEventBatch,
        now: Duration,
    ) -> Result<Option<u64>, CoreError> {
        let action = self.source(id, now)?.handle_events(batch)?;
        Ok(self.apply(id, action))
    }

    /// A part of a member's snapshot.
    ///
    /// # Errors
    /// [`CoreError`] ends the stream.
    pub fn handle_snapshot(
        &mut self,
        id: MemberId,
        stored: Vec<KvEvent>,
        next_sequence: u64,
        last: bool,
        now: Duration,
    ) -> Result<(), CoreError> {
        let action = self.source(id, now)?.handle_snapshot(stored, next_sequence, last)?;
        self.apply(id, action);
        Ok(())
    }

    fn source(&mut self, id: MemberId, now: Duration) -> Result<&mut Source, CoreError> {
        self.members.handle_alive(id, now)?;
        self.sources.get_mut(&id).ok_or(CoreError::Membership(MembershipError::Unknown))
    }

    fn apply(&mut self, id: MemberId, action: Action) -> Option<u64> {
        match action {
            Action::Ignore => None,
            Action::Apply(events) => {
                for event in &events {
                    self.index.handle_event(id, event);
                }
                None
            }
            Action::Replace(stored) => {
                self.index.handle_snapshot(id, &stored);
                None
            }
            Action::ClearAndResync { expected_sequence } => {
                self.index.handle_cleared(id);
                Some(expected_sequence)
            }
        }
    }

    /// A member's stream broke: it is the last choice until its lease runs out.
    pub fn handle_disconnected(&mut self, id: MemberId) {
        if self.members.handle_disconnected(id) {
            self.revision += 1;
        }
    }

    /// A member leaves.
    pub fn handle_leave(&mut self, id: MemberId) {
        if self.members.handle_leave(id) {
            self.forget(id);
            self.revision += 1;
        }
    }

    /// Time passed. The members whose lease ran out.
    pub fn handle_timeout(&mut self, now: Duration) -> Vec<MemberId> {
        let over = self.members.handle_timeout(now);
        for &id in &over {
            self.forget(id);
        }
        if !over.is_empty() {
            self.stats.leases_expired += over.len() as u64;
            self.revision += 1;
        }
        over
    }

    /// When [`Self::handle_timeout`] is next of use.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.members.poll_timeout()
    }

    fn forget(&mut self, id: MemberId) {
        self.index.handle_cleared(id);
        self.router.handle_gone(id);
        if let Some(source) = self.sources.remove(&id) {
            add(&mut self.stats.events, source.stats());
        }
    }

    /// Who serves a request whose prompt has this chain of complete blocks.
    ///
    /// # Errors
    /// A [`Refusal`].
    pub fn route(
        &mut self,
        request: &Request<'_>,
        chain: &[ChainHash],
        now: Duration,
    ) -> Result<(Decision, &dyn Membership), Refusal> {
        let matches = self.index.query(chain);
        let members = self.members.members();
        let decision = self.router.route(&Request { matches: &matches, ..*request }, &members, now);
        match &decision {
            Err(_) => self.stats.refused += 1,
            Ok(decision) => {
                let routed = if decision.prefill.is_empty() {
                    &mut self.stats.routed_alone
                } else {
                    &mut self.stats.routed_pairs
                };
                *routed += 1;
                self.stats.prompt_tokens += u64::from(request.prompt_tokens);
                self.stats.best_cached_tokens += u64::from(decision.best_cached_tokens);
                self.stats.chosen_cached_tokens += u64::from(decision.chosen_cached_tokens);
            }
        }
        Ok((decision?, &*self.members))
    }

    /// Grows with every change of membership or load.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// All members, ordered by registration.
    #[must_use]
    pub fn members(&self) -> Vec<&Member> {
        self.members.members()
    }

    /// Events that `member` has emitted and the index has not; `None` while that is not known.
    #[must_use]
    pub fn lag(&self, member: &Member) -> Option<u64> {
        self.sources.get(&member.id)?.lag(member.load.kv_next_sequence)
    }

    /// Decisions for a member that none of its load reports shows yet.
    #[must_use]
    pub fn credits(&self, member: &Member, now: Duration) -> usize {
        self.router.credits(member.id, now)
    }

    /// Sizes of the index.
    #[must_use]
    pub fn index_stats(&self) -> IndexStats {
        self.index.stats()
    }

    /// Totals since the start.
    #[must_use]
    pub fn stats(&self) -> CoreStats {
        let mut stats = self.stats;
        for source in self.sources.values() {
            add(&mut stats.events, source.stats());
        }
        stats
    }
}

fn add(sum: &mut SourceStats, more: SourceStats) {
    sum.applied += more.applied;
    sum.duplicates += more.duplicates;
    sum.gaps += more.gaps;
    sum.snapshots += more.snapshots;
}

#[cfg(test)]
mod tests {
    use kvrail_kv::Tier;

    use super::*;
    use crate::testing::node;

    const T0: Duration = Duration::from_secs(1);

    fn stored(range: std::ops::Range<u64>) -> KvEvent {
        KvEvent::Stored { parent: None, blocks: range.map(ChainHash).collect(), tier: Tier::Device }
    }

    fn cached(core: &mut Core, now: Duration) -> u32 {
        let chain: Vec<_> = (0..10).map(ChainHash).collect();
        let request =
            Request { model: "m", namespace_id: 1, prompt_tokens: 200, max_tokens: 10, exclude: &[], matches: &[] };
        core.route(&request, &chain, now).unwrap().0.chosen_cached_tokens
    }

    #[test]
    fn a_member_that_goes_takes_its_entries_along() {
        let mut core = Core::new(CoreConfig::default());
        let a = core.handle_register(node("a"), T0).unwrap();
        core.handle_snapshot(a, vec![stored(0..10)], 1, true, T0).unwrap();
        assert_eq!(cached(&mut core, T0), 160);
        let again = core.handle_register(node("a"), T0).unwrap();
        assert_eq!(cached(&mut core, T0), 0, "a node that returns is new");
        assert!(matches!(
            core.handle_snapshot(a, vec![stored(0..10)], 1, true, T0),
            Err(CoreError::Membership(MembershipError::Unknown))
        ));
        core.handle_snapshot(again, vec![stored(0..4)], 1, true, T0).unwrap();
        assert_eq!(cached(&mut core, T0), 64);
        assert_eq!(core.handle_timeout(T0 * 5), [again]);
        assert_eq!(core.index_stats().memberships, 0);
        assert!(core.sources.is_empty() && core.members().is_empty());
        assert_eq!((core.stats().leases_expired, core.stats().events.snapshots), (1, 2));
    }

    #[test]
    fn a_gap_empties_the_source_until_its_snapshot_comes() {
        let mut core = Core::new(CoreConfig::default());
        let a = core.handle_register(node("a"), T0).unwrap();
        core.handle_snapshot(a, vec![], 0, true, T0).unwrap();
        let batch = |first_sequence, event| KvEventBatch { first_sequence, events: vec![event] };
        assert_eq!(core.handle_events(a, batch(0, stored(0..5)), T0).unwrap(), None);
        assert_eq!(cached(&mut core, T0), 80);
        assert_eq!(core.handle_events(a, batch(2, stored(5..6)), T0).unwrap(), Some(1));
        assert_eq!(cached(&mut core, T0), 0);
        core.handle_snapshot(a, vec![stored(0..6)], 3, true, T0).unwrap();
        assert_eq!(cached(&mut core, T0), 96);
        let load = Load { sequence: 1, kv_next_sequence: 7, ..Load::default() };
        core.handle_load(a, load, T0).unwrap();
        assert_eq!(core.lag(core.members()[0]), Some(4));
    }
}
