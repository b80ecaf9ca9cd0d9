//! The planner's accounts: with the NICs of peers, which our writes go to, and with our own, which our reads come to.
//!
//! A read is debited where its bytes arrive: at the reader's own NIC, whose ledger also limits those who write to it.

use slab::Slab;

use super::account::{Account, Demand, Limit};
use super::path::Path;
use super::planner::{Peer, Planner, Timer};
use super::{Direction, PathId, PeerId, PortId, TenantId, Time};

/// An account's place in the planner's table.
pub(crate) type AccountIx = usize;

#[derive(Debug)]
struct Entry {
    /// None: with a NIC of our own.
    peer: Option<PeerId>,
    port: PortId,
    account: Account,
    /// It waits in the list of those that something happened to.
    touched: bool,
    /// What settled has made room since it was looked at.
    freed: bool,
}

/// Where a path ends.
#[derive(Clone, Copy, Debug)]
struct End {
    port: PortId,
    /// It is our own.
    is_near: bool,
    /// Its owner sees what is written to it arrive.
    counts: bool,
}

/// All accounts of a planner.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    all: Slab<Entry>,
    touched: Vec<AccountIx>,
    /// Ends of paths that have not come up yet.
    early: Vec<(PathId, End)>,
    /// What is to be told.
    demands: Vec<(Option<PeerId>, PortId, Demand)>,
}

impl Accounts {
    fn find(&self, peer: Option<PeerId>, port: PortId) -> Option<AccountIx> {
        self.all.iter().find(|(_, entry)| entry.peer == peer && entry.port == port).map(|(ix, _)| ix)
    }

    pub(super) fn touch(&mut self, ix: AccountIx) {
        if let Some(entry) = self.all.get_mut(ix)
            && !std::mem::replace(&mut entry.touched, true)
        {
            self.touched.push(ix);
        }
    }

    pub(super) fn on_sent(&mut self, ix: Option<AccountIx>, bytes: u64) {
        if let Some(ix) = ix
            && let Some(entry) = self.all.get_mut(ix)
        {
            entry.account.on_sent(bytes);
            self.touch(ix);
        }
    }

    pub(super) fn on_settled(&mut self, ix: Option<AccountIx>, bytes: u64, landed: bool) {
        if let Some(ix) = ix
            && let Some(entry) = self.all.get_mut(ix)
        {
            entry.freed |= entry.account.on_settled(bytes, landed);
            self.touch(ix);
        }
    }

    /// The peer is gone, and with it everything that was sent to it.
    pub(super) fn forget(&mut self, peer: PeerId) {
        self.all.retain(|_, entry| entry.peer != Some(peer));
        self.touched.retain(|ix| self.all.contains(*ix));
        self.early.retain(|(path, ..)| path.peer != peer);
        self.demands.retain(|(of, ..)| *of != Some(peer));
    }
}

impl Planner {
    /// A path leads to this NIC of its peer, by the peer's word; from here on the peer may limit what is written to it. `counts`: it
    /// sees bytes arrive, and gives standing credit. What went over the path before counts. The path need not have come up yet.
    pub fn handle_port(&mut self, path: PathId, port: PortId, counts: bool) {
        self.set_port(path, End { port, is_near: false, counts });
    }

    /// A path comes from this NIC of ours, of the same kind: from here on what is read over it is debited there.
    pub fn handle_near_port(&mut self, path: PathId, port: PortId, counts: bool) {
        self.set_port(path, End { port, is_near: true, counts });
    }

    /// A path has come up for the first time.
    pub(super) fn set_early_ports(&mut self, path: PathId) {
        while let Some(at) = self.accounts.early.iter().position(|(of, ..)| *of == path) {
            let (_, end) = self.accounts.early.swap_remove(at);
            self.set_port(path, end);
        }
    }

    fn set_port(&mut self, id: PathId, end: End) {
        let End { port, is_near, counts } = end;
        let Some(ix) = self.path_ix(id) else {
            self.accounts.early.retain(|(path, other)| (*path, other.is_near) != (id, is_near));
            if !self.is_lost(id.peer) {
                self.accounts.early.push((id, end));
            }
            return;
        };
        let peer = (!is_near).then_some(id.peer);
        let account = self.accounts.find(peer, port).unwrap_or_else(|| {
            // What we read, we alone know of.
            let account = Account::new(is_near || !counts, counts);
            self.accounts.all.insert(Entry { peer, port, account, touched: false, freed: false })
        });
        let Some(path) = self.paths.get_mut(ix) else { return };
        let direction = if is_near { Direction::Read } else { Direction::Write };
        let place = if is_near { &mut path.near } else { &mut path.far };
        if place.replace(account) == Some(account) {
            return;
        }
        let before = std::mem::take(&mut path.unaccounted[direction as usize]);
        let (mut next, mut on_the_way) = (path.oldest, 0);
        while let Some(attempt) = next.and_then(|slice| self.attempts.get_mut(slice)) {
            next = attempt.newer;
            let transfer = self.transfers.get(attempt.transfer);
            if attempt.account.is_none() && transfer.is_some_and(|t| t.request.direction == direction) {
                attempt.account = Some(account);
                on_the_way += attempt.bytes;
            }
        }
        self.accounts.on_sent(Some(account), before);
        self.accounts.on_settled(Some(account), before.saturating_sub(on_the_way), false);
        self.accounts.touch(account);
    }

    /// The word of a NIC's owner on what may be sent there; `None`: a NIC of our own. Unknown NICs are ignored.
    pub fn handle_limit(&mut self, peer: Option<PeerId>, port: PortId, limit: Limit) {
        let Some(ix) = self.accounts.find(peer, port) else { return };
        let Some(entry) = self.accounts.all.get_mut(ix) else { return };
        let raised = entry.account.handle_limit(limit);
        self.accounts.touch(ix);
        if raised {
            self.wake_account(ix);
        }
    }

    /// An account has room: the rails that it feeds may look.
    fn wake_account(&mut self, ix: AccountIx) {
        let paths = self.paths.keys().filter_map(|path| self.paths.get(path));
        let fed = paths.filter(|path| path.is_usable() && (path.far == Some(ix) || path.near == Some(ix)));
        fed.for_each(|path| self.wakes.insert(path.id.local));
    }

    /// Looks at the accounts that something happened to. True: somebody is to be told of it ([`Self::poll_demand`]).
    pub fn review_accounts(&mut self, now: Time) -> bool {
        while let Some(ix) = self.accounts.touched.pop() {
            let Some(entry) = self.accounts.all.get_mut(ix) else { continue };
            entry.touched = false;
            let (peer, port) = (entry.peer, entry.port);
            let (pending, tenant) = self.pending_on(ix, peer);
            let Some(entry) = self.accounts.all.get_mut(ix) else { continue };
            let demand = entry.account.poll(pending, tenant, now);
            // The rail that it settled on has had its turn by now.
            let is_left = std::mem::take(&mut entry.freed) && pending > 0 && entry.account.room() > 0;
            if let Some(at) = entry.account.wakes_at() {
                self.arm(at, Timer::Account(ix));
            }
            if let Some(demand) = demand {
                self.accounts.demands.retain(|(of, at, _)| (*of, *at) != (peer, port));
                self.accounts.demands.push((peer, port, demand));
            }
            if is_left {
                self.wake_account(ix);
            }
        }
        !self.accounts.demands.is_empty()
    }

    /// The next word to a NIC's owner, the peer or ([`None`]) ourselves.
    pub fn poll_demand(&mut self) -> Option<(Option<PeerId>, PortId, Demand)> {
        self.accounts.demands.pop()
    }

    /// Work for the peer came or went: what was told of it may have changed.
    pub(super) fn touch_accounts(&mut self, peer: PeerId) {
        let Some(peer) = self.peers.get(peer).filter(|_| !self.accounts.all.is_empty()) else { return };
        for path in peer.paths.iter().filter_map(|ix| self.paths.get(*ix)) {
            [path.far, path.near].into_iter().flatten().for_each(|ix| self.accounts.touch(ix));
        }
    }

    /// Bytes that may be sent under an account now.
    pub(super) fn room_of(&self, account: Option<AccountIx>) -> u64 {
        let account = account.filter(|_| !self.config.ignores_limits).and_then(|ix| self.accounts.all.get(ix));
        account.map_or(u64::MAX, |entry| entry.account.room())
    }

    /// Bytes that wait and could go under an account, and on whose behalf.
    fn pending_on(&self, ix: AccountIx, peer: Option<PeerId>) -> (u64, TenantId) {
        let uses = |id: PeerId| self.best_tier(id).any(|path: &Path| path.far == Some(ix) || path.near == Some(ix));
        let write = |peer: &Peer| peer.pending - peer.reads;
        match peer {
            Some(id) => match self.peers.get(id) {
                Some(known) if uses(id) => (write(known), known.tenant),
                _ => (0, TenantId::default()),
            },
            None => {
                let readers = self.peers.keys().filter_map(|id| Some((id, self.peers.get(id)?)));
                let readers = readers.filter(|(id, peer)| peer.reads > 0 && uses(*id));
                readers.fold((0, TenantId::default()), |(sum, _), (_, peer)| (sum + peer.reads, peer.tenant))
            }
        }
    }
}
