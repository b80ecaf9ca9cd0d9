//! What is due: beats, deadlines, silence.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::engine::ConnectError;
use crate::plan::{Failure, RailSet};
use crate::session::control::{Control, Live, Role};
use crate::session::wire::RefuseCode;

impl Control {
    pub(super) fn timers(&mut self, now: Instant) {
        let core = Arc::clone(&self.core);
        if core.owner.leases.next_expiry().is_some_and(|at| at <= now) && core.owner.leases.expire(now) {
            core.fence_workers();
        }
        if core.next_timeout().is_some_and(|at| core.instant(at) <= now) {
            // Whatever is done with the planner handles what is due.
            core.plan(RailSet::default(), |_, _| ());
        }
        if self.due.is_some_and(|due| due > now) {
            return;
        }
        self.due = None;
        let late: Vec<usize> =
            self.conns.iter().filter(|(_, c)| c.deadline.is_some_and(|d| d <= now)).map(|(key, _)| key).collect();
        for key in late {
            self.timed_out(key);
        }
        let ids: Vec<u64> = self.sessions.iter().filter(|(_, l)| !l.over).map(|(id, _)| *id).collect();
        for id in ids {
            self.session_timers(id, now);
        }
    }

    fn session_timers(&mut self, id: u64, now: Instant) {
        let patience = self.core.config.peer_timeout;
        let is_silent = |live: &Live| now.duration_since(live.heard) >= patience;
        if let Some(conn) = self.sessions.get(&id).filter(|live| is_silent(live)).and_then(|live| live.conn) {
            // Perhaps it was we who slept, stopped with our whole process, and what it said meanwhile lies unread.
            self.pump(conn);
        }
        let Some(live) = self.sessions.get_mut(&id).filter(|live| !live.over) else { return };
        if is_silent(live) {
            self.lose(id, "the peer has fallen silent");
            return;
        }
        let late: Vec<u64> = live.notices.iter().filter(|(_, n)| n.deadline <= now).map(|(seq, _)| *seq).collect();
        for notice in late.into_iter().filter_map(|seq| live.notices.remove(&seq)) {
            notice.end(Some(Failure::Deadline.into()));
        }
        // A little early, so that all sessions come to beat at the same time and we wake once for all.
        let beats = now.duration_since(live.said) >= self.core.config.heartbeat * 7 / 8;
        let owes_word = live.ack_by.is_some_and(|at| at <= now);
        let redials = live.redial_at(self.core.config.heartbeat).is_some_and(|at| at <= now);
        self.stream_timers(id, now);
        if beats || owes_word {
            self.beat(id);
        }
        if redials {
            self.redial(id, now);
        }
    }

    fn timed_out(&mut self, key: usize) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        conn.deadline = None;
        match &conn.role {
            Role::Dial(dial) => {
                let error = ConnectError::TimedOut { address: dial.address };
                self.dial_failed(key, &error);
            }
            Role::Stream { session, stream, .. } => {
                let (session, stream) = (*session, *stream);
                self.close(key);
                self.stream_failed(session, stream);
            }
            Role::Accepted | Role::Offered { .. } => self.refuse(key, RefuseCode::Timeout),
            Role::Closing => self.close(key),
            Role::Redial { session, .. } => {
                let session = *session;
                self.redial_failed(key, session);
            }
            Role::Resuming { .. } => self.close(key),
            Role::Control { .. } | Role::Linger { .. } => {}
        }
    }

    /// How long to sleep; published so that whoever sets an earlier timer knows to wake us.
    pub(super) fn next_timer(&mut self) -> Option<Duration> {
        let core = &self.core;
        // Published first as "wake me": a timer set while the others are read is not missed.
        core.control_wakes_at.store(u64::MAX, Ordering::Release);
        if self.due.is_none() {
            let conns = self.conns.iter().filter_map(|(_, c)| c.deadline);
            let sessions = self.sessions.values().filter(|l| !l.over).map(|l| self.session_wakes_at(l));
            self.due = conns.chain(sessions).min();
        }
        let planner = core.next_timeout().map(|at| core.instant(at));
        let next = [planner, core.owner.leases.next_expiry(), self.due].into_iter().flatten();
        let next = next.chain(self.ports.wakes_at(core)).min();
        let at = next.map_or(u64::MAX, |at| core.time(at).0);
        core.control_wakes_at.store(at, Ordering::Release);
        next.map(|at| at.saturating_duration_since(self.now))
    }

    fn session_wakes_at(&self, live: &Live) -> Instant {
        let beat = live.said + self.core.config.heartbeat;
        let dead = live.heard + self.core.config.peer_timeout;
        let notices = live.notices.values().map(|n| n.deadline);
        let redial = live.redial_at(self.core.config.heartbeat);
        notices.chain(live.streams.wakes_at()).chain(redial).chain(live.ack_by).fold(beat.min(dead), Instant::min)
    }
}
