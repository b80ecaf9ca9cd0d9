//! Handing out: the next slices for a rail that has room.

use std::time::Duration;

use super::classes::FlowIx;
use super::path::Path;
use super::planner::{Attempt, Peer, Planner, Timer, is_hopeless};
use super::retry::Retry;
use super::slice::{Fleet, cost_ns, floor, size};
use super::time::nanos;
use super::{Failure, PathIx, RailId, Request, Slice, SliceBatch, Time, TransferId};

/// Where the next slice of a transfer comes from.
#[derive(Clone, Copy)]
enum Source {
    /// The range at this position of the retry list.
    Retry(usize),
    /// What was never sent.
    Fresh,
}

/// A slice that is about to be made.
struct Plan {
    path: PathIx,
    source: Source,
    bytes: u64,
    fleet: Fleet,
}

/// What one rail can do for one transfer now.
enum Choice {
    /// This.
    Take(Plan),
    /// Nothing: its ranges back off, avoid this rail, or cannot be reached by it. Another transfer may be luckier.
    NotThis,
    /// Nothing for its peer at all.
    Blocked,
}

impl Planner {
    /// Binds up to `room` slices to paths of `local` and appends them to `out`; returns how many. The slices are in flight from `now`
    /// on: post them, in any order.
    ///
    /// Nothing is allocated once `out` has grown. Cost: O(pieces), and O(paths of the peer + flows with work) a slice.
    pub fn poll_slices(&mut self, local: RailId, room: usize, now: Time, out: &mut SliceBatch) -> usize {
        self.round += 1;
        let mut handed = 0;
        while handed < room {
            let Some(flow) = self.classes.best(self.round) else { break };
            if self.serve_flow(flow, local, now, out) {
                handed += 1;
            }
        }
        handed
    }

    /// Hands out one slice of the flow, or blocks it for this round.
    fn serve_flow(&mut self, flow: FlowIx, local: RailId, now: Time, out: &mut SliceBatch) -> bool {
        let key = self.classes.key(flow);
        let mut last = None;
        while let Some(entry) = self.classes.after(flow, last) {
            last = Some(entry);
            let id = entry.1;
            match self.choose(id, local, now) {
                Choice::NotThis => {}
                Choice::Blocked => break,
                Choice::Take(plan) if self.gives_up(id, &plan.fleet, now) => {
                    return false; // the flow may have gone with its last transfer: pick again
                }
                Choice::Take(plan) => {
                    let bytes = self.hand_out(id, &plan, now, out);
                    self.classes.charge(key, bytes);
                    return true;
                }
            }
        }
        self.classes.block(flow, self.round);
        false
    }

    /// Fails a transfer that cannot make its deadline any more.
    fn gives_up(&mut self, id: TransferId, fleet: &Fleet, now: Time) -> bool {
        let Some(transfer) = self.transfers.get(id) else { return false };
        let hopeless = is_hopeless(&self.config, fleet, transfer.pending(), transfer.request.deadline, now);
        if hopeless {
            self.fail(id, Failure::Hopeless, None, now);
        }
        hopeless
    }

    /// Usable paths to a peer that reach the request's memory.
    fn usable<'a>(&'a self, peer: &'a Peer, request: &'a Request) -> impl Iterator<Item = &'a Path> + Clone {
        let paths = peer.paths.iter().filter_map(|ix| self.paths.get(*ix));
        paths.filter(|path| path.is_usable() && distance(request, path.id.local) != u32::MAX)
    }

    /// Which path of `local` takes the next slice of a transfer, if one should.
    fn choose(&mut self, id: TransferId, local: RailId, now: Time) -> Choice {
        let Some(transfer) = self.transfers.get(id) else { return Choice::NotThis };
        let request = &transfer.request;
        let Some(peer) = self.peers.get(request.peer) else { return Choice::NotThis };
        let penalty = distance(request, local);
        let Some(tier) = self.usable(peer, request).map(|path| path.spec.tier).min() else { return Choice::NotThis };
        let mates = || self.usable(peer, request).filter(|path| path.spec.tier == tier);
        let with_distance = |path| (path, distance(request, Path::local(path)));
        let fleet = Fleet::of(mates().map(with_distance), now);

        let mut best: Option<(f64, PathIx, Source, u64)> = None;
        let (mut full, mut luckless) = (None, penalty == u32::MAX);
        for &ix in &peer.paths {
            let Some(path) = self.paths.get(ix) else { continue };
            if path.id.local != local || path.spec.tier != tier || !path.is_usable() || penalty == u32::MAX {
                continue;
            }
            let credit = self.room_of(path.account(request.direction));
            // What goes the other way has another credit, and may wait behind it.
            luckless |= credit == 0 && peer.reads > 0 && peer.reads < peer.pending;
            let probe = path.wants_probe(&self.config, now);
            let whole = size(&self.config, path, &fleet, peer.pending, probe).min(peer.pending);
            let room = path.room(floor(&self.config, path).min(peer.pending).min(credit).max(1));
            let bytes = room.and_then(|room| path.fits(whole, room)).map_or(0, |bytes| bytes.min(credit));
            if bytes == 0 {
                full = Some(ix);
                continue;
            }
            let elsewhere = |retry: &Retry| mates().any(|other| !retry.avoids(&other.id));
            let ready = |retry: &Retry| retry.not_before <= now && (!retry.avoids(&path.id) || !elsewhere(retry));
            let source = match transfer.retries.iter().position(ready) {
                Some(at) => Source::Retry(at),
                None if transfer.unsent > 0 => Source::Fresh,
                None => {
                    luckless = true;
                    continue;
                }
            };
            let cost = cost_ns(path, bytes, penalty, probe, now);
            if best.is_none_or(|(least, ..)| cost < least) {
                best = Some((cost, ix, source, bytes));
            }
        }
        let Some((cost, path, source, bytes)) = best else {
            if let Some(path) = full.and_then(|ix| self.paths.get_mut(ix)) {
                path.blocked = true;
            }
            return if luckless { Choice::NotThis } else { Choice::Blocked };
        };
        let retry = if let Source::Retry(at) = source { transfer.retries.get(at) } else { None };
        let other = |path: &&Path| path.id.local != local && !retry.is_some_and(|retry| retry.avoids(&path.id));
        let others = || mates().filter(other).map(with_distance);
        let worth = cost - nanos(self.config.hand_over) as f64;
        // All of it, spread evenly; and one slice whole, for work does not spread below slices.
        let sooner = Fleet::of(others(), now).drain_ns(peer.pending) < worth
            && others().any(|(path, distance)| cost_ns(path, bytes, distance, false, now) < worth);
        if sooner && self.declines(path, cost, now) {
            return Choice::Blocked;
        }
        Choice::Take(Plan { path, source, bytes, fleet })
    }

    /// The other rails would be done with all of it before this path with one slice. It steps back, for as long as that slice would have
    /// taken: if the work is still there then, the estimates were wrong.
    fn declines(&mut self, ix: PathIx, cost_ns: f64, now: Time) -> bool {
        let Some(path) = self.paths.get_mut(ix) else { return false };
        let Some(peer) = self.peers.get_mut(path.id.peer) else { return false };
        match path.declines {
            Some((from, until)) if from >= peer.busy_since => {
                if now >= until {
                    return false;
                }
            }
            _ => {
                let until = now + Duration::from_nanos(cost_ns as u64).min(self.config.probe_after);
                path.declines = Some((now, until));
                let rail = path.id.local;
                peer.declined.insert(rail);
                self.arm(until, Timer::Wake(rail));
                return true;
            }
        }
        peer.declined.insert(path.id.local);
        true
    }

    /// Makes the slice.
    fn hand_out(&mut self, id: TransferId, plan: &Plan, now: Time, out: &mut SliceBatch) -> u64 {
        let (Some(transfer), Some(path)) = (self.transfers.get(id), self.paths.get(plan.path)) else { return 0 };
        // A crumb comes along where credit allows it.
        let spare = self.room_of(path.account(transfer.request.direction)).saturating_sub(plan.bytes);
        let crumb = floor(&self.config, path).min(plan.bytes / 4).min(spare); // its path was chosen for this size
        let (Some(transfer), Some(path)) = (self.transfers.get_mut(id), self.paths.get_mut(plan.path)) else {
            return 0;
        };
        let Some(peer) = self.peers.get_mut(transfer.request.peer) else { return 0 };
        let first = out.pieces.len() as u32;
        let (cursor, budget, tries, corrupt) = match plan.source {
            Source::Retry(at) => {
                let retry = &mut transfer.retries[at];
                (&mut retry.start, &mut retry.bytes, retry.attempts, retry.corrupt)
            }
            Source::Fresh => (&mut transfer.cursor, &mut transfer.unsent, 0, 0),
        };
        let start = *cursor;
        let bytes = cursor.take(&transfer.request.ops, plan.bytes, *budget, crumb, &path.spec.limits, &mut out.pieces);
        *budget -= bytes;
        transfer.retries.retain(|retry| retry.bytes > 0);

        peer.take_pending(transfer.request.direction, bytes);
        // Who left the work to this path, as it was, may see it otherwise now.
        self.wakes.0 |= std::mem::take(&mut peer.declined).0;
        let account = path.account(transfer.request.direction);
        self.accounts.on_sent(account, bytes);
        if account.is_none() {
            path.unaccounted[transfer.request.direction as usize] += bytes;
        }
        transfer.on_sent(bytes, tries, now);
        let sent = path.rate.on_sent(now, path.in_flight_bytes);
        path.in_flight += 1;
        path.in_flight_bytes += bytes;
        path.declines = None;
        let older = path.newest;
        let attempt = Attempt {
            transfer: id,
            path: plan.path,
            start,
            bytes,
            sent,
            attempt: tries,
            corrupt,
            waits: false,
            abandoned: false,
            held: None,
            account,
            older,
            newer: None,
        };
        let slice = self.attempts.insert(attempt);
        path.newest = Some(slice);
        path.oldest.get_or_insert(slice);
        if let Some(older) = older.and_then(|older| self.attempts.get_mut(older)) {
            older.newer = Some(slice);
        }
        let pieces = first..out.pieces.len() as u32;
        let (path_id, direction) = (path.id, transfer.request.direction);
        out.slices.push(Slice { id: slice, transfer: id, path: path_id, direction, pieces, bytes, attempt: tries });

        let (idle_timer, done) = (path.timer.is_none(), transfer.unsent == 0 && transfer.retries.is_empty());
        if idle_timer {
            self.arm_path(plan.path, now);
        }
        if done {
            self.dequeue(id);
        }
        self.touch_accounts(path_id.peer);
        bytes
    }
}

/// Nanoseconds of penalty between the request's memory and a local rail; `u32::MAX` for never.
fn distance(request: &Request, local: RailId) -> u32 {
    let table = request.distance.as_deref().unwrap_or(&[]);
    table.get(usize::from(local.0)).copied().unwrap_or(0)
}
