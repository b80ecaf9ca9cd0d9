//! A session outlives the connection of its messages.
//!
//! ```text
//! dialler                          listener
//!   Resume(session, token, heard) →           over any rail
//!                                 ← Resumed(heard)
//!   Heartbeat                     →           from here on this is the session's connection, on both sides
//! ```
//!
//! A connection that the other side *closed* is the end of the session: its process is gone. One that broke otherwise, or
//! over which nothing is heard, says nothing of the peer where there is another way to it. So the dialler tries the ways in turn until one
//! answers, and the peer is given up when `peer_timeout` has passed in silence.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::session::control::{Control, Live, Role};
use crate::session::handshake::begin_connect;
use crate::session::pipe::Pipe;
use crate::session::wire::{Message, RefuseCode};

/// An answer is missed after this; a worker thread or a scheduler never takes as long.
const ANSWER_WITHIN: Duration = Duration::from_millis(200);
/// A way that does not answer in this time is left for the next.
pub(super) const TRY_FOR: Duration = Duration::from_millis(500);

/// The dialler's attempts to open a session's connection anew.
#[derive(Default)]
pub(super) struct Redial {
    /// Of the ways, which is next.
    next: usize,
    /// The connection that is being opened.
    pub(super) conn: Option<usize>,
    not_before: Option<Instant>,
}

impl Live {
    /// Where the peer can be reached, and over which of our rails.
    fn doors_in_turn(&self) -> Vec<(SocketAddr, Option<usize>)> {
        let first = (self.session.address, None);
        let rails = self.ways.iter().filter_map(|way| {
            let far = self.doors.tcp.get(usize::from(way.far?))?;
            Some((far.address, way.near.map(usize::from)))
        });
        let mut doors = vec![first];
        rails.for_each(|door| {
            if !doors.contains(&door) {
                doors.push(door);
            }
        });
        doors
    }

    /// When the connection is to be opened anew, as things stand.
    pub(super) fn redial_at(&self, heartbeat: Duration) -> Option<Instant> {
        if self.over || !self.session.dialler || self.redial.conn.is_some() {
            return None;
        }
        let now_or = |at: Instant| self.redial.not_before.map_or(at, |not_before| at.max(not_before));
        if self.conn.is_none() {
            return Some(now_or(self.heard));
        }
        if self.ways.iter().filter(|way| way.far.is_some()).count() < 2 {
            return None;
        }
        let silent = self.heard + heartbeat * 5 / 2;
        let unanswered = self.line.waits_since().map(|at| at + ANSWER_WITHIN);
        Some(now_or(unanswered.map_or(silent, |at| at.min(silent))))
    }
}

impl Control {
    /// A session's connection broke, and not by the peer's will.
    pub(super) fn cut_off(&mut self, id: u64, why: &str) {
        let Some(live) = self.sessions.get_mut(&id).filter(|l| !l.over) else { return };
        tracing::info!(peer = live.session.generation, why, "a session has lost its connection");
        if let Some(conn) = live.conn.take() {
            self.close(conn);
        }
    }

    /// The dialler's: opens the connection over the next way.
    pub(super) fn redial(&mut self, id: u64, now: Instant) {
        let Some(live) = self.sessions.get_mut(&id).filter(|l| !l.over) else { return };
        let doors = live.doors_in_turn();
        // The first try goes another way than the session went.
        live.redial.next = (live.redial.next + 1) % doors.len();
        let (address, near) = doors[live.redial.next];
        live.redial.not_before = Some(now + TRY_FOR);
        let near = near.and_then(|near| self.core.config.tcp_rails.get(near));
        tracing::debug!(peer = live.session.generation, %address, "opening a session's connection anew");
        let Ok(socket) = begin_connect(address, near, self.core.config.peer_timeout) else { return };
        let role = Role::Redial { session: id, greeted: false };
        let key = self.add(Pipe::new(socket.into()), role, Some(address));
        if let Some(conn) = self.conns.get_mut(key) {
            conn.deadline = Some(now + TRY_FOR.min(self.core.config.connect_timeout));
        }
        if let Some(live) = self.sessions.get_mut(&id) {
            live.redial.conn = Some(key);
        }
        self.pump(key);
    }

    /// First word on a connection that was opened anew.
    pub(super) fn greet_redial(&mut self, key: usize) -> bool {
        let Some(conn) = self.conns.get_mut(key) else { return false };
        let Role::Redial { session, greeted } = &mut conn.role else { return false };
        *greeted = true;
        let Some(live) = self.sessions.get(session).filter(|l| !l.over) else { return false };
        let resume = Message::Resume { session: *session, token: live.token, heard: live.line.heard() };
        conn.pipe.send(&resume).is_ok()
    }

    /// A way did not work: the next is tried when its time comes, at once if there was none to be waited for.
    pub(super) fn redial_failed(&mut self, key: usize, id: u64) {
        self.close(key);
        if let Some(live) = self.sessions.get_mut(&id)
            && live.redial.conn == Some(key)
        {
            live.redial.conn = None;
        }
    }

    /// The listener's: somebody has a session's token.
    pub(super) fn resume(&mut self, key: usize, id: u64, token: [u8; 16], heard: u64) {
        let known = self.sessions.get_mut(&id).filter(|l| !l.over && !l.session.dialler && l.token == token);
        let answer = known.and_then(|live| live.line.was_heard(heard).then(|| live.line.heard()));
        let Some(heard) = answer else { return self.refuse(key, RefuseCode::UnknownSession) };
        let answer = Message::Resumed { heard };
        let Some(conn) = self.conns.get_mut(key) else { return };
        conn.role = Role::Resuming { session: id };
        if conn.pipe.send(&answer).is_err() {
            self.close(key);
        }
    }

    /// Both sides': this is the session's connection from here on. What has not been heard is said again.
    pub(super) fn switch_over(&mut self, key: usize, id: u64, heard: u64) {
        let Some(live) = self.sessions.get_mut(&id).filter(|l| !l.over) else { return self.close(key) };
        if !live.line.was_heard(heard) {
            return self.lose(id, "the peer has heard what was never said");
        }
        live.redial.conn = None;
        live.redial.not_before = None;
        let now = Instant::now();
        live.heard = now;
        let old = live.conn.replace(key);
        let again = live.line.again(now);
        tracing::info!(
            peer = live.session.generation,
            again = again.len(),
            "a session goes on over another connection"
        );
        if let Some(conn) = self.conns.get_mut(key) {
            conn.role = Role::Control { session: id };
            conn.pipe.keep();
            conn.deadline = None;
        }
        if let Some(old) = old.filter(|old| *old != key) {
            self.close(old);
        }
        self.beat(id);
        again.iter().for_each(|message| self.send(id, message));
    }
}
