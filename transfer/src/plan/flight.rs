//! What comes back: completions, faults, stalls, fences; and what follows from them for paths and transfers.

use super::path::{Path, State};
use super::planner::{Attempt, Planner, Timer};
use super::retry::{Retry, avoids};
use super::slice::{Fleet, delay_target};
use super::{Action, Cause, Completion, Failure, Fate, Outcome, PathId, PathIx, PeerId, SliceId, Time};

impl Planner {
    /// News of attempts. Order, batching and repetition do not matter.
    pub fn handle_completions(&mut self, completions: &[Completion], now: Time) {
        for completion in completions {
            match completion.outcome {
                Outcome::Waits => self.on_waiting(completion.slice, now),
                Outcome::Leaves => self.on_leaving(completion.slice, now),
                Outcome::Landed => self.on_landed(completion.slice, now),
                Outcome::Failed(cause, Fate::Settled) => self.on_settled(completion.slice, cause, now),
                Outcome::Failed(cause, Fate::MayLand) => self.on_in_doubt(completion.slice, cause, now),
            }
        }
    }

    /// No slice of the path that has not been completed can touch memory any more. Unasked, it also says that the path broke.
    pub fn handle_fenced(&mut self, id: PathId, now: Time) {
        let Some(ix) = self.path_ix(id) else { return };
        if self.paths.get(ix).is_some_and(Path::is_usable) {
            self.open_circuit(ix, Cause::PathFault, now);
        }
        while let Some(oldest) = self.paths.get(ix).and_then(|path| path.oldest) {
            let Some(attempt) = self.take_attempt(oldest, false) else { break };
            if let Some(cause) = attempt.held {
                self.give_back(&attempt, cause, now);
            }
            self.release(&attempt, now);
        }
        if self.paths.get(ix).is_some_and(|path| path.state == State::Fencing) {
            self.rest(ix, now);
        }
        self.drop_if_over(ix, now);
        self.forget_peer_if_over(id.peer);
    }

    fn on_waiting(&mut self, slice: SliceId, now: Time) {
        let Some(attempt) = self.attempts.get_mut(slice) else { return };
        attempt.waits = true;
        let path = attempt.path;
        self.arm_path(path, now);
    }

    /// Its time begins anew: making what it waited for says nothing of the path.
    fn on_leaving(&mut self, slice: SliceId, now: Time) {
        let Some(attempt) = self.attempts.get_mut(slice) else { return };
        let Some(path) = self.paths.get_mut(attempt.path) else { return };
        attempt.waits = false;
        attempt.sent = path.rate.on_sent(now, path.in_flight_bytes - attempt.bytes);
        let path = attempt.path;
        self.arm_path(path, now);
    }

    fn on_landed(&mut self, slice: SliceId, now: Time) {
        let Some(attempt) = self.take_attempt(slice, true) else { return };
        if !attempt.abandoned {
            self.learn(&attempt, now);
        }
        if !attempt.abandoned || attempt.held.is_some() {
            let path = self.paths.get(attempt.path).map(|path| path.id);
            let transfer = self.transfers.get_mut(attempt.transfer).filter(|transfer| !transfer.ended);
            if let (Some(path), Some(transfer)) = (path, transfer) {
                transfer.on_landed(attempt.start, attempt.bytes, path, now);
            }
        }
        self.release(&attempt, now);
    }

    fn on_settled(&mut self, slice: SliceId, cause: Cause, now: Time) {
        let Some(attempt) = self.take_attempt(slice, false) else { return };
        if attempt.held.is_some() {
            self.give_back(&attempt, cause, now);
        }
        if !attempt.abandoned {
            self.give_back(&attempt, cause, now);
            let config = &self.config;
            // The owner's word speaks against no path. Damage does, but not against the last one: its rest would only put
            // off what the limit on damaged attempts decides.
            let last = self.paths.get(attempt.path).is_some_and(|path| self.is_alone(path));
            let blameless = matches!(cause, Cause::Refused(_)) || (cause == Cause::Corrupt && last);
            if let Some(path) = self.paths.get_mut(attempt.path) {
                if blameless {
                    path.heard_at = now;
                } else if path.is_usable() && path.on_failure(config, now) {
                    self.trip(attempt.path, cause, now);
                }
            }
        }
        self.release(&attempt, now);
        self.wake_waiting(attempt.path);
    }

    fn on_in_doubt(&mut self, slice: SliceId, cause: Cause, now: Time) {
        let Some(path) = self.attempts.get(slice).map(|attempt| attempt.path) else { return };
        self.abandon(slice, cause, now);
        if self.paths.get(path).is_some_and(Path::is_usable) {
            self.trip(path, cause, now);
        }
    }

    /// Feeds the path's estimates, window and circuit.
    fn learn(&mut self, attempt: &Attempt, now: Time) {
        let Some(id) = self.paths.get(attempt.path).map(|path| path.id) else { return };
        let fleet = Fleet::of(self.best_tier(id.peer).map(|path| (path, 0)), now);
        let Some(path) = self.paths.get_mut(attempt.path) else { return };
        let config = &self.config;
        path.learn(&attempt.sent, attempt.bytes, config, |path| delay_target(config, path, &fleet), now);
        self.wake_waiting(attempt.path);
    }

    /// Something left a path: whoever waited for its window, or left the work to it, may look again.
    fn wake_waiting(&mut self, ix: PathIx) {
        let Some(path) = self.paths.get_mut(ix) else { return };
        let Some(peer) = self.peers.get_mut(path.id.peer) else { return };
        if peer.pending > 0 {
            if std::mem::take(&mut path.blocked) {
                self.wakes.insert(path.id.local);
            }
            self.wakes.0 |= std::mem::take(&mut peer.declined).0;
        }
    }

    /// Opens a path's circuit; what was in flight on it goes elsewhere and its fence is asked for.
    pub(super) fn trip(&mut self, ix: PathIx, cause: Cause, now: Time) {
        if self.open_circuit(ix, cause, now)
            && let Some(path) = self.paths.get(ix)
        {
            self.act(Action::Fence(path.id));
        }
    }

    /// Like [`Self::trip`], but says whether a fence is needed.
    fn open_circuit(&mut self, ix: PathIx, cause: Cause, now: Time) -> bool {
        let Some(path) = self.paths.get_mut(ix) else { return false };
        let (id, mut next) = (path.id, path.oldest);
        let needs_fence = path.trip(&self.config, &mut self.rng, now);
        while let Some(slice) = next {
            next = self.attempts.get(slice).and_then(|attempt| attempt.newer);
            self.abandon(slice, cause, now);
        }
        self.arm_path(ix, now);
        self.touch_accounts(id.peer);
        self.wake_peer(id.peer);
        needs_fence
    }

    /// The path rests before it is opened again (not at all if its peer is gone).
    pub(super) fn rest(&mut self, ix: PathIx, now: Time) {
        if let Some(path) = self.paths.get_mut(ix) {
            path.rest(&self.config, &mut self.rng, now);
        }
        self.arm_path(ix, now);
    }

    /// Gives an attempt's range to another one; the attempt itself stays until it completes or is fenced. Under a checksum
    /// the other has to wait for that: the receiver may still write damaged bytes for the first, and would say so too late.
    fn abandon(&mut self, slice: SliceId, cause: Cause, now: Time) {
        let Some(attempt) = self.attempts.get_mut(slice).filter(|attempt| !attempt.abandoned) else { return };
        attempt.abandoned = true;
        let (id, path, start) = (attempt.transfer, attempt.path, attempt.start);
        let (bytes, attempts, corrupt) = (attempt.bytes, attempt.attempt, attempt.corrupt);
        if let Some(transfer) = self.transfers.get_mut(id) {
            transfer.live -= 1;
            transfer.abandoned += 1;
            if transfer.request.checksum {
                attempt.held = Some(cause);
                return;
            }
        }
        let failed_on = self.path_id(path);
        self.requeue(id, Retry { start, bytes, attempts, corrupt, cause, failed_on, not_before: now }, now);
    }

    fn give_back(&mut self, attempt: &Attempt, cause: Cause, now: Time) {
        let failed_on = self.path_id(attempt.path);
        let Attempt { start, bytes, attempt: attempts, .. } = *attempt;
        let corrupt = attempt.corrupt.saturating_add(u8::from(cause == Cause::Corrupt));
        self.requeue(
            attempt.transfer,
            Retry { start, bytes, attempts, corrupt, cause, failed_on, not_before: now },
            now,
        );
    }

    /// Queues a failed range again: at once where another path can take it, else after a wait; or ends its transfer.
    fn requeue(&mut self, id: super::TransferId, mut retry: Retry, now: Time) {
        let Some(transfer) = self.transfers.get(id).filter(|transfer| !transfer.ended) else { return };
        let peer = transfer.request.peer;
        retry.attempts = retry.attempts.saturating_add(1);
        let config = &self.config;
        let spent = retry.attempts >= config.attempts_max || retry.corrupt >= config.corrupt_max;
        if spent || matches!(retry.cause, Cause::Refused(_)) {
            let culprit = Some((retry.start, retry.bytes, retry.cause));
            return self.fail(id, Failure::Fault(retry.cause), culprit, now);
        }
        let alternative = self.best_tier(peer).any(|other| !avoids(retry.cause, &retry.failed_on, &other.id));
        if !alternative {
            retry.not_before = now + self.config.slice_backoff.wait(u32::from(retry.attempts) - 1, &mut self.rng);
        }
        let Some(transfer) = self.transfers.get_mut(id) else { return };
        transfer.retries.push_back(retry);
        let direction = transfer.request.direction;
        self.arm_retry(id, now);
        if let Some(known) = self.peers.get_mut(peer) {
            known.add_pending(direction, retry.bytes, now);
        }
        self.touch_accounts(peer);
        self.enqueue(id);
        self.wake_peer(peer);
    }

    /// Takes an attempt that landed, or never will, out of the table and of its path's list.
    fn take_attempt(&mut self, slice: SliceId, landed: bool) -> Option<Attempt> {
        let attempt = self.attempts.remove(slice)?;
        self.accounts.on_settled(attempt.account, attempt.bytes, landed);
        if let Some(older) = attempt.older.and_then(|older| self.attempts.get_mut(older)) {
            older.newer = attempt.newer;
        }
        if let Some(newer) = attempt.newer.and_then(|newer| self.attempts.get_mut(newer)) {
            newer.older = attempt.older;
        }
        let path = self.paths.get_mut(attempt.path)?;
        if path.oldest == Some(slice) {
            path.oldest = attempt.newer;
        }
        if path.newest == Some(slice) {
            path.newest = attempt.older;
        }
        path.in_flight -= 1;
        path.in_flight_bytes -= attempt.bytes;
        Some(attempt)
    }

    /// An attempt is over for good: its transfer may be, too.
    fn release(&mut self, attempt: &Attempt, now: Time) {
        if let Some(transfer) = self.transfers.get_mut(attempt.transfer) {
            let count = if attempt.abandoned { &mut transfer.abandoned } else { &mut transfer.live };
            *count -= 1;
        }
        self.settle(attempt.transfer, now);
    }

    // ---- timers of paths

    /// Sets the path's one timer by its state.
    pub(super) fn arm_path(&mut self, ix: PathIx, now: Time) {
        let Some(path) = self.paths.get(ix) else { return };
        let at = match path.state {
            State::Up | State::Probing => path
                .oldest
                .and_then(|oldest| self.attempts.get(oldest))
                .map(|oldest| oldest.sent.at() + self.patience(path, oldest)),
            State::Resting(until) => Some(until),
            State::Fencing | State::Opening => None,
        };
        self.set_path_timer(ix, at, now);
    }

    pub(super) fn set_path_timer(&mut self, ix: PathIx, at: Option<Time>, now: Time) {
        let Some(path) = self.paths.get_mut(ix) else { return };
        let at = at.map(|at| at.max(now));
        let old = std::mem::replace(&mut path.timer, at);
        if old != at {
            if let Some(old) = old {
                self.disarm(old, Timer::Path(ix));
            }
            if let Some(at) = at {
                self.arm(at, Timer::Path(ix));
            }
        }
    }

    /// A path's timer fired: `due` is when it should have.
    pub(super) fn on_path_timer(&mut self, ix: PathIx, due: Time, now: Time) {
        let Some(path) = self.paths.get_mut(ix) else { return };
        path.timer = None;
        match path.state {
            State::Resting(_) => {
                path.state = State::Opening;
                let id = path.id;
                self.act(Action::Open(id));
            }
            State::Up | State::Probing => self.check_stall(ix, due, now),
            State::Fencing | State::Opening => {}
        }
    }

    fn check_stall(&mut self, ix: PathIx, due: Time, now: Time) {
        let Some(path) = self.paths.get(ix) else { return };
        let Some(oldest) = path.oldest.and_then(|oldest| self.attempts.get(oldest)) else { return };
        let patience = self.patience(path, oldest);
        if now.since(oldest.sent.at()) < patience {
            return self.arm_path(ix, now);
        }
        // Where nothing comes from any, it may not be this path's fault.
        if self.all_are_silent(ix, oldest.sent.at()) && now.since(oldest.sent.at()) < self.config.stall_min_silent {
            return self.set_path_timer(ix, Some(now + patience / 4), now);
        }
        // A planner that was itself held up has not looked at what arrived meanwhile: it looks once more.
        let overslept = now.since(due) > patience / 4;
        if overslept && !path.forgiven {
            if let Some(path) = self.paths.get_mut(ix) {
                path.forgiven = true;
            }
            return self.set_path_timer(ix, Some(now + patience / 4), now);
        }
        self.trip(ix, Cause::Timeout, now);
    }

    /// How long an attempt may take on a path. While the path's first slices wait for what is made for them, that takes what it takes; on a
    /// path that failed before, making it is part of the proof.
    fn patience(&self, path: &Path, attempt: &Attempt) -> std::time::Duration {
        let patience = path.patience(&self.config, self.is_alone(path));
        let waits = attempt.waits && path.state == State::Up;
        if waits { patience.max(self.config.stall_min_waiting) } else { patience }
    }

    /// Other paths to the peer have slices out, and nothing was heard of any since then.
    fn all_are_silent(&self, ix: PathIx, since: Time) -> bool {
        let Some(peer) = self.paths.get(ix).and_then(|path| self.peers.get(path.id.peer)) else { return false };
        let others = peer.paths.iter().filter(|other| **other != ix).filter_map(|other| self.paths.get(*other));
        let mut busy = others.filter(|other| other.is_usable() && other.in_flight > 0).peekable();
        busy.peek().is_some() && busy.all(|other| other.heard_at <= since)
    }

    /// No other path to its peer is usable.
    fn is_alone(&self, path: &Path) -> bool {
        let Some(peer) = self.peers.get(path.id.peer) else { return true };
        let others = peer.paths.iter().filter_map(|ix| self.paths.get(*ix)).filter(|other| other.id != path.id);
        !others.into_iter().any(Path::is_usable)
    }

    /// The usable paths to a peer, of its best tier.
    pub(super) fn best_tier(&self, peer: PeerId) -> impl Iterator<Item = &Path> {
        let paths = self.peers.get(peer).map_or(&[][..], |peer| &peer.paths);
        let usable = paths.iter().filter_map(|ix| self.paths.get(*ix)).filter(|path| path.is_usable());
        let tier = usable.clone().map(|path| path.spec.tier).min();
        usable.filter(move |path| Some(path.spec.tier) == tier)
    }

    /// The name of a path that has attempts, and so exists.
    fn path_id(&self, ix: PathIx) -> PathId {
        let nobody = PathId { peer: PeerId::from_bits(u64::MAX), local: super::RailId(0), remote: super::RailId(0) };
        self.paths.get(ix).map_or(nobody, |path| path.id)
    }
}
