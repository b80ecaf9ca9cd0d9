//! The planner's state and its outer face: peers, paths, submission, cancellation, time. Handing out is in `poll`, what comes back
//! in `flight`.

use std::collections::{BTreeSet, VecDeque};

use super::accounts::{AccountIx, Accounts};
use super::classes::Classes;
use super::coalesce::Cursor;
use super::path::{Path, State};
use super::rate::Sent;
use super::retry::Rng;
use super::slice::Fleet;
use super::slots::Slots;
use super::transfer::Transfer;
use super::{
    Action, Cause, Config, Direction, Event, Failure, PathId, PathIx, PathSpec, PeerId, RailId, RailSet, Request,
    SliceId, SubmitError, TenantId, Time, TransferId,
};

/// The transfer planner: see the [module](super) for its rules.
///
/// ```
/// use std::{sync::Arc, time::Duration};
/// use kvrail_transfer::plan::*;
///
/// let mut planner = Planner::new(Config::default(), 1);
/// let (now, rail) = (Time(0), RailId(0));
/// let peer = planner.add_peer().unwrap();
/// let spec = PathSpec {
///     rate: Some(1_000_000_000), base_delay: Duration::from_micros(20), penalty: Duration::ZERO, tier: 0, lanes: 1,
///     limits: PathLimits::default(),
/// };
/// planner.handle_path_up(PathId { peer, local: rail, remote: rail }, spec, now).unwrap();
/// let id = planner.submit(Request {
///     peer, direction: Direction::Write, ops: Arc::new(vec![Op::contiguous(0, 4096, 10_000)]), local_bytes: 1 << 20,
///     remote_bytes: 1 << 20, class: Class::KvHandoff, tenant: TenantId::default(), deadline: now + Duration::from_secs(1),
///     checksum: false, distance: None,
/// }, now).unwrap();
///
/// let mut batch = SliceBatch::default();
/// assert_eq!(planner.poll_slices(rail, 16, now, &mut batch), 1);
/// assert_eq!(batch.pieces(&batch.slices[0]), [Piece { local: 0, remote: 4096, len: 10_000 }]);
///
/// let landed = Completion { slice: batch.slices[0].id, outcome: Outcome::Landed };
/// planner.handle_completions(&[landed], now + Duration::from_micros(30));
/// let Some(Event::Done(done, report)) = planner.poll_event() else { panic!() };
/// assert_eq!((done, report.status, report.bytes), (id, Ok(()), 10_000));
/// assert_eq!(planner.poll_event(), Some(Event::Quiesced(id)));
/// ```
#[derive(Debug)]
pub struct Planner {
    pub(super) config: Config,
    pub(super) rng: Rng,
    pub(super) peers: Slots<PeerId, Peer>,
    pub(super) paths: Slots<PathIx, Path>,
    pub(super) transfers: Slots<TransferId, Transfer>,
    pub(super) attempts: Slots<SliceId, Attempt>,
    pub(super) classes: Classes,
    pub(super) round: u64,
    pub(super) wakes: RailSet,
    pub(super) accounts: Accounts,
    tenant_weights: Vec<(TenantId, u32)>,
    timers: BTreeSet<(Time, Timer)>,
    actions: VecDeque<Action>,
    events: VecDeque<Event>,
    ops: usize,
}

/// What is known of one peer.
#[derive(Debug, Default)]
pub(super) struct Peer {
    pub(super) paths: Vec<PathIx>,
    /// Bytes that wait to be handed out.
    pub(super) pending: u64,
    /// Since when that is not zero.
    pub(super) busy_since: Time,
    /// Rails that left the rest to faster ones.
    pub(super) declined: RailSet,
    /// Of the pending bytes, those that are to be read.
    pub(super) reads: u64,
    /// Of the latest transfer.
    pub(super) tenant: TenantId,
    transfers: u32,
    lost: bool,
}

impl Peer {
    pub(super) fn add_pending(&mut self, direction: Direction, bytes: u64, now: Time) {
        if self.pending == 0 {
            self.busy_since = now;
        }
        self.pending += bytes;
        self.reads += if direction == Direction::Read { bytes } else { 0 };
    }

    pub(super) fn take_pending(&mut self, direction: Direction, bytes: u64) {
        self.pending -= bytes;
        self.reads -= if direction == Direction::Read { bytes } else { 0 };
    }
}

/// One slice under way.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) transfer: TransferId,
    pub(super) path: PathIx,
    pub(super) start: Cursor,
    pub(super) bytes: u64,
    pub(super) sent: Sent,
    pub(super) attempt: u8,
    /// Attempts before it that failed their checksum.
    pub(super) corrupt: u8,
    /// It is not on its way yet.
    pub(super) waits: bool,
    /// Its path has failed it: its range goes to another attempt, but it may still land.
    pub(super) abandoned: bool,
    /// Why, where the other attempt waits until this one can touch nothing any more; landing, it still counts.
    pub(super) held: Option<Cause>,
    /// What it was debited to.
    pub(super) account: Option<AccountIx>,
    pub(super) older: Option<SliceId>,
    pub(super) newer: Option<SliceId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    Deadline(TransferId),
    Retry(TransferId),
    Path(PathIx),
    Wake(RailId),
    Account(AccountIx),
}

/// Why a path was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// The peer is unknown or gone.
    #[error("peer unknown")]
    UnknownPeer,
    /// Rail numbers end at [`RailId::MAX_RAILS`].
    #[error("rail number too high")]
    BadRail,
    /// It is still being fenced.
    #[error("path is not fenced yet")]
    NotFenced,
}

/// What is going on, for status pages and leak checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauges {
    /// Known peers.
    pub peers: usize,
    /// Transfers that are not quiesced.
    pub transfers: usize,
    /// Slices handed out and neither completed nor fenced.
    pub slices: usize,
    /// Ops of transfers that have no report yet.
    pub ops: usize,
}

/// A path as the planner sees it, for status pages.
#[derive(Clone, Debug, PartialEq)]
pub struct PathView {
    /// Which.
    pub id: PathId,
    /// Carries slices now.
    pub usable: bool,
    /// Bytes a second, estimated.
    pub rate: u64,
    /// Window in bytes.
    pub window: u64,
    /// Bytes in flight.
    pub in_flight: u64,
}

impl Planner {
    /// An empty planner. `seed` drives its jitter and nothing else.
    #[must_use]
    pub fn new(config: Config, seed: u64) -> Self {
        Self {
            rng: Rng::new(seed),
            peers: Slots::new(),
            paths: Slots::new(),
            transfers: Slots::new(),
            attempts: Slots::new(),
            classes: Classes::new(config.class_weights),
            round: 0,
            wakes: RailSet::default(),
            accounts: Accounts::default(),
            tenant_weights: Vec::new(),
            timers: BTreeSet::new(),
            actions: VecDeque::new(),
            events: VecDeque::new(),
            ops: 0,
            config,
        }
    }

    // ---- getters

    /// Counters that are zero when nothing is left behind.
    #[must_use]
    pub fn gauges(&self) -> Gauges {
        Gauges { peers: self.peers.len(), transfers: self.transfers.len(), slices: self.attempts.len(), ops: self.ops }
    }

    /// All paths.
    pub fn paths(&self) -> impl Iterator<Item = PathView> + '_ {
        self.paths.keys().filter_map(|ix| self.paths.get(ix)).map(|path| PathView {
            id: path.id,
            usable: path.is_usable(),
            rate: (path.rate.bytes_per_ns() * 1e9) as u64,
            window: path.window.bytes(),
            in_flight: path.in_flight_bytes,
        })
    }

    // ---- peers and paths

    /// A new peer, without paths yet. `None` at the limit.
    pub fn add_peer(&mut self) -> Option<PeerId> {
        (self.peers.len() < self.config.peers_max).then(|| self.peers.insert(Peer::default()))
    }

    /// A path came up: for the first time, or in answer to [`Action::Open`]. On one that is up it only renews what is known of it.
    ///
    /// # Errors
    /// Unknown peer, a rail number past the limit, or a path whose fence is outstanding.
    pub fn handle_path_up(&mut self, id: PathId, spec: PathSpec, now: Time) -> Result<(), PathError> {
        if id.local.0 as usize >= RailId::MAX_RAILS || id.remote.0 as usize >= RailId::MAX_RAILS {
            return Err(PathError::BadRail);
        }
        let peer = self.peers.get_mut(id.peer).filter(|peer| !peer.lost).ok_or(PathError::UnknownPeer)?;
        match find_path(&self.paths, peer, id) {
            None => {
                peer.paths.push(self.paths.insert(Path::new(id, spec, &self.config, now)));
                self.set_early_ports(id);
            }
            Some(ix) => {
                if let Some(path) = self.paths.get_mut(ix) {
                    match path.state {
                        State::Fencing => return Err(PathError::NotFenced),
                        State::Up | State::Probing => path.renew(spec, &self.config),
                        State::Resting(_) | State::Opening => path.reopen(spec, &self.config, now),
                    }
                }
            }
        }
        // Mates that were alone are no longer: they need not be waited for as long.
        let mates = self.peers.get(id.peer).map(|peer| peer.paths.clone()).unwrap_or_default();
        for ix in mates {
            self.arm_path(ix, now);
        }
        self.wakes.insert(id.local);
        self.touch_accounts(id.peer);
        Ok(())
    }

    /// A path broke, or could not be opened. Its slices are abandoned, fenced and sent elsewhere.
    pub fn handle_path_failed(&mut self, id: PathId, cause: Cause, now: Time) {
        let Some(ix) = self.path_ix(id) else { return };
        match self.paths.get(ix).map(|path| path.state) {
            Some(State::Up | State::Probing) => self.trip(ix, cause, now),
            Some(State::Opening) => self.rest(ix, now),
            _ => {}
        }
    }

    /// The peer is gone for good (died, or came back under a new generation): its transfers fail, and its id is free when the
    /// last [`Action::Fence`] of its paths has been answered.
    pub fn handle_peer_lost(&mut self, id: PeerId, now: Time) {
        let Some(peer) = self.peers.get_mut(id).filter(|peer| !peer.lost) else { return };
        peer.lost = true;
        let paths = peer.paths.clone();
        let of_peer = |t: &TransferId| self.transfers.get(*t).is_some_and(|t| t.request.peer == id);
        let transfers: Vec<TransferId> = self.transfers.keys().filter(of_peer).collect();
        for transfer in transfers {
            self.fail(transfer, Failure::Fault(Cause::PeerLost), None, now);
        }
        for ix in paths {
            if self.paths.get(ix).is_some_and(Path::is_usable) {
                self.trip(ix, Cause::PeerLost, now);
            }
            self.drop_if_over(ix, now);
        }
        self.forget_peer_if_over(id);
    }

    /// Weight of a tenant in every class, from its next flow on; 1 if never set. At most 1,024 tenants have one of their own.
    pub fn set_tenant_weight(&mut self, tenant: TenantId, weight: u32) {
        self.tenant_weights.retain(|(known, _)| *known != tenant);
        if weight > 1 && self.tenant_weights.len() < 1024 {
            self.tenant_weights.push((tenant, weight));
        }
    }

    // ---- transfers

    /// Takes a request or refuses it; never waits. An empty one is done at once.
    ///
    /// # Errors
    /// A wrong descriptor, a bound that would be passed, a peer that is gone, a deadline that cannot be met.
    pub fn submit(&mut self, request: Request, now: Time) -> Result<TransferId, SubmitError> {
        let exceeds = |what, limit: usize| Err(SubmitError::WouldExceed { what, limit: limit as u64 });
        let peer = self.peers.get(request.peer).filter(|peer| !peer.lost).ok_or(SubmitError::PeerLost)?;
        if self.transfers.len() >= self.config.transfers_max {
            return exceeds("transfers", self.config.transfers_max);
        }
        if request.ops.len() > self.config.ops_max.saturating_sub(self.ops) {
            return exceeds("ops", self.config.ops_max);
        }
        let mut bytes = Vec::with_capacity(request.ops.len());
        let mut total = 0u64;
        for (index, op) in request.ops.iter().enumerate() {
            let checked = op.check(request.local_bytes, request.remote_bytes);
            checked.map_err(|source| SubmitError::BadOp { index, source })?;
            bytes.push(op.bytes());
            let sum = total.checked_add(op.bytes());
            total = sum.ok_or(SubmitError::WouldExceed { what: "bytes", limit: u64::MAX })?;
        }
        let usable = peer.paths.iter().filter_map(|ix| self.paths.get(*ix)).filter(|path| path.is_usable());
        let fleet = Fleet::of(usable.map(|path| (path, 0)), now);
        if request.deadline <= now || is_hopeless(&self.config, &fleet, total, request.deadline, now) {
            return Err(SubmitError::Hopeless);
        }

        self.ops += bytes.len();
        let (peer, deadline) = (request.peer, request.deadline);
        let (direction, tenant) = (request.direction, request.tenant);
        let id = self.transfers.insert(Transfer::new(request, bytes, now));
        if let Some(known) = self.peers.get_mut(peer) {
            known.transfers += 1;
            known.add_pending(direction, total, now);
            known.tenant = tenant;
        }
        self.touch_accounts(peer);
        self.timers.insert((deadline, Timer::Deadline(id)));
        if total == 0 {
            self.settle(id, now);
        } else {
            self.enqueue(id);
            // All rails, even for one slice: the first whose worker gets a core takes it. Waking only the best one made a slice
            // half as long again on the way where the cores compute (docs/benchmarks.md). Without credit there is nothing to take.
            self.wake_paths(peer, |planner, path| planner.room_of(path.account(direction)) > 0);
        }
        Ok(id)
    }

    /// Ends a transfer that has no report yet: it gets one now, and `Quiesced` when what is in flight has completed or is fenced.
    pub fn cancel(&mut self, id: TransferId, now: Time) {
        self.fail(id, Failure::Cancelled, None, now);
    }

    // ---- time and outputs

    /// When to call [`Self::handle_timeout`], if nothing happens before. Reap completions first: a late planner must not
    /// take its own sleep for a peer's.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Time passed.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(&(at, timer)) = self.timers.first() {
            if at > now {
                break;
            }
            self.timers.pop_first();
            match timer {
                Timer::Deadline(id) => self.fail(id, Failure::Deadline, None, now),
                Timer::Wake(rail) => self.wakes.insert(rail),
                Timer::Account(ix) => self.accounts.touch(ix),
                Timer::Path(ix) => self.on_path_timer(ix, at, now),
                Timer::Retry(id) => {
                    let Some(transfer) = self.transfers.get_mut(id) else { continue };
                    transfer.retry_timer = None;
                    let peer = transfer.request.peer;
                    self.wake_peer(peer);
                    self.arm_retry(id, now);
                }
            }
        }
    }

    /// Local rails that may have something to hand out since the last call: their idle workers should poll.
    pub fn poll_wakes(&mut self) -> RailSet {
        std::mem::take(&mut self.wakes)
    }

    /// What the session and transports are to do, oldest first.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// What the owners of transfers are to be told, oldest first.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    // ---- shared by `poll` and `flight`

    pub(super) fn path_ix(&self, id: PathId) -> Option<PathIx> {
        find_path(&self.paths, self.peers.get(id.peer)?, id)
    }

    pub(super) fn is_lost(&self, peer: PeerId) -> bool {
        self.peers.get(peer).is_none_or(|peer| peer.lost)
    }

    pub(super) fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    /// All rails that could carry something to `peer` have a reason to look.
    pub(super) fn wake_peer(&mut self, peer: PeerId) {
        self.wake_paths(peer, |_, _| true);
    }

    fn wake_paths(&mut self, peer: PeerId, which: impl Fn(&Self, &Path) -> bool) {
        let Some(peer) = self.peers.get(peer) else { return };
        let paths = peer.paths.iter().filter_map(|ix| self.paths.get(*ix)).filter(|path| path.is_usable());
        let mut wakes = self.wakes;
        paths.filter(|path| which(self, path)).for_each(|path| wakes.insert(path.id.local));
        self.wakes = wakes;
    }

    pub(super) fn arm(&mut self, at: Time, timer: Timer) {
        self.timers.insert((at, timer));
    }

    pub(super) fn disarm(&mut self, at: Time, timer: Timer) {
        self.timers.remove(&(at, timer));
    }

    /// Sets the transfer's one timer to the end of the first back-off among its ranges.
    pub(super) fn arm_retry(&mut self, id: TransferId, now: Time) {
        let Some(transfer) = self.transfers.get_mut(id) else { return };
        let first = transfer.retries.iter().map(|retry| retry.not_before).filter(|at| *at > now).min();
        let old = std::mem::replace(&mut transfer.retry_timer, first);
        if old != first {
            old.map(|at| self.timers.remove(&(at, Timer::Retry(id))));
            first.map(|at| self.timers.insert((at, Timer::Retry(id))));
        }
    }

    /// Puts a transfer with pending bytes in its flow.
    pub(super) fn enqueue(&mut self, id: TransferId) {
        let Some(transfer) = self.transfers.get_mut(id) else { return };
        if !transfer.queued {
            transfer.queued = true;
            let known = self.tenant_weights.iter().find(|(tenant, _)| *tenant == transfer.request.tenant);
            let weight = known.map_or(1, |(_, weight)| *weight);
            self.classes.insert(transfer.flow(), transfer.request.deadline, id, weight);
        }
    }

    pub(super) fn dequeue(&mut self, id: TransferId) {
        let Some(transfer) = self.transfers.get_mut(id) else { return };
        if transfer.queued {
            transfer.queued = false;
            self.classes.remove(transfer.flow(), transfer.request.deadline, id);
        }
    }

    /// Reports what can be reported: success once all landed and nothing abandoned is left, quiescence after the report.
    pub(super) fn settle(&mut self, id: TransferId, now: Time) {
        let Some(transfer) = self.transfers.get(id) else { return };
        if !transfer.is_quiet() {
            return;
        }
        if !transfer.ended {
            if !transfer.has_landed() {
                return;
            }
            self.end(id, Ok(()), None, now);
        }
        self.events.push_back(Event::Quiesced(id));
        if let Some(transfer) = self.transfers.remove(id) {
            if let Some(peer) = self.peers.get_mut(transfer.request.peer) {
                peer.transfers -= 1;
            }
            self.forget_peer_if_over(transfer.request.peer);
        }
    }

    /// Ends a transfer in failure, if it has no report yet.
    pub(super) fn fail(&mut self, id: TransferId, why: Failure, culprit: Option<(Cursor, u64, Cause)>, now: Time) {
        if self.transfers.get(id).is_some_and(|transfer| !transfer.ended) {
            self.end(id, Err(why), culprit, now);
            self.settle(id, now);
        }
    }

    fn end(&mut self, id: TransferId, status: Result<(), Failure>, culprit: Option<(Cursor, u64, Cause)>, now: Time) {
        self.dequeue(id);
        let Some(transfer) = self.transfers.get_mut(id) else { return };
        if let Some(peer) = self.peers.get_mut(transfer.request.peer) {
            peer.take_pending(transfer.request.direction, transfer.pending());
        }
        let peer = transfer.request.peer;
        self.ops -= transfer.op_count();
        self.timers.remove(&(transfer.request.deadline, Timer::Deadline(id)));
        if let Some(at) = transfer.retry_timer.take() {
            self.timers.remove(&(at, Timer::Retry(id)));
        }
        let report = transfer.end(status, culprit, now);
        self.touch_accounts(peer);
        self.events.push_back(Event::Done(id, Box::new(report)));
    }

    /// Removes a lost peer's path that has nothing in flight.
    pub(super) fn drop_if_over(&mut self, ix: PathIx, now: Time) {
        let Some(path) = self.paths.get(ix) else { return };
        let peer = path.id.peer;
        if path.in_flight == 0 && self.is_lost(peer) {
            self.set_path_timer(ix, None, now);
            self.paths.remove(ix);
            if let Some(peer) = self.peers.get_mut(peer) {
                peer.paths.retain(|known| *known != ix);
            }
        }
    }

    pub(super) fn forget_peer_if_over(&mut self, id: PeerId) {
        if self.peers.get(id).is_some_and(|peer| peer.lost && peer.paths.is_empty() && peer.transfers == 0) {
            self.peers.remove(id);
            self.accounts.forget(id);
        }
    }
}

fn find_path(paths: &Slots<PathIx, Path>, peer: &Peer, id: PathId) -> Option<PathIx> {
    peer.paths.iter().copied().find(|ix| paths.get(*ix).is_some_and(|path| path.id == id))
}

/// Would `bytes` miss the deadline even at several times the measured rate of all paths?
pub(super) fn is_hopeless(config: &Config, fleet: &Fleet, bytes: u64, deadline: Time, now: Time) -> bool {
    let needed_ns = bytes as f64 / fleet.bytes_per_ns / f64::from(config.hopeless_factor.max(1));
    fleet.paths > 0 && fleet.measured && needed_ns > deadline.since(now).as_nanos() as f64
}
