//! The messages of a session: heard, served, said.

use std::time::{Duration, Instant};

use crate::core::rail_of;
use crate::notify::Notification;
use crate::plan::RailSet;
use crate::session::control::Control;
use crate::session::line::Heard;
use crate::session::vouches::Place;
use crate::session::wire::Message;
use crate::telemetry::Rejection;
use crate::transfer::FailureKind;
use crate::worker;

/// That a word about credits was heard is said this late.
const ACK_AFTER: Duration = Duration::from_millis(20);

impl Control {
    /// Serves a message of a session's control connection.
    pub(super) fn control_message(&mut self, id: u64, message: Message) {
        let Some(live) = self.sessions.get_mut(&id) else { return };
        // Not the clock of the last look: whoever was stopped since then, and finds all of a peer's beats at once, must not count them as old.
        self.now = Instant::now();
        live.heard = self.now;
        let (known, inner) = match message {
            Message::Heartbeat { heard } => (live.line.was_heard(heard), None),
            Message::Numbered { number, heard, body } => {
                let known = live.line.was_heard(heard);
                match live.line.hear(number) {
                    Heard::New => (known, Some(Message::decode(&body).ok())),
                    Heard::Again => (known, None),
                    Heard::Gap => (false, None),
                }
            }
            _ => (false, None),
        };
        match inner {
            _ if !known => self.out_of_turn(id),
            // Ours would be due before the next of theirs: said now, both sides beat at one time, and an engine with many peers hears
            // them at once.
            None if live.heard.saturating_duration_since(live.said) >= self.core.config.heartbeat / 2 => self.beat(id),
            None => {}
            Some(inner) => {
                self.due = None;
                let before = live.said;
                if matches!(inner, Some(Message::Demand { .. } | Message::Limit { .. })) {
                    // There are many of these, and words of ours that say that they were heard.
                    live.ack_by = live.ack_by.or(Some(live.heard + ACK_AFTER));
                    return self.serve(id, inner);
                }
                self.serve(id, inner);
                // An answer says that it was heard; without one it is said so.
                if self.sessions.get(&id).is_some_and(|live| live.said == before) {
                    self.beat(id);
                }
            }
        }
    }

    fn out_of_turn(&mut self, id: u64) {
        let from = self.sessions.get(&id).map(|live| live.session.address);
        self.reject(Rejection::Session, from);
        self.lose(id, "a message out of turn");
    }

    fn serve(&mut self, id: u64, message: Option<Message>) {
        let Some(live) = self.sessions.get_mut(&id) else { return };
        match message {
            Some(Message::FenceStream(stream)) => self.fence_for_peer(id, stream),
            Some(Message::StreamFenced(stream)) => self.fenced_by_peer(id, stream),
            Some(Message::OpenStream { kind, index }) => self.open_for_peer(id, kind, index),
            Some(Message::Notify { seq, payload }) => self.notified(id, seq, payload),
            Some(Message::NotifyBehind { seq, payload, streams }) => {
                if live.vouches.hold(seq, payload, streams) {
                    self.review_notifications(id);
                } else {
                    self.tell(id, &Message::NotifyAck { seq, accepted: false });
                }
            }
            Some(Message::NotifyAck { seq, accepted }) => {
                if let Some(notice) = live.notices.remove(&seq) {
                    notice.end((!accepted).then_some(FailureKind::NotifyRefused));
                }
            }
            Some(Message::Port { kind, index, port }) if live.credits => {
                let peer = live.session.peer;
                self.port_there(peer, kind, index, port);
            }
            Some(Message::Demand { port, demand }) if live.credits => {
                let peer = live.session.peer;
                self.ports.demand(peer, port, demand, self.time());
            }
            Some(Message::Limit { port, limit }) if live.credits => {
                let peer = Some(live.session.peer);
                self.core.plan_at(self.now, RailSet::default(), |plan, _| plan.planner.handle_limit(peer, port, limit));
            }
            Some(Message::Bye) => self.lose(id, "the peer says good-bye"),
            _ => self.out_of_turn(id),
        }
    }

    /// A notification whose bytes are visible.
    fn notified(&mut self, id: u64, seq: u64, payload: Vec<u8>) {
        let Some(live) = self.sessions.get(&id) else { return };
        let notification = Notification { from: live.session.generation, payload: payload.into() };
        // Done means visible, on devices too.
        let accepted = self.core.owner.leases.make_visible() && self.core.notifications.push(notification);
        self.tell(id, &Message::NotifyAck { seq, accepted });
    }

    /// Delivers the notifications that wait for no rail any more.
    pub(super) fn review_notifications(&mut self, id: u64) {
        let Some(live) = self.sessions.get_mut(&id).filter(|l| !l.over) else { return };
        let streams = &live.streams;
        let ready = live.vouches.ready(|place| streams.is_attached(place));
        for (seq, payload) in ready {
            self.notified(id, seq, payload);
        }
    }

    /// Rails have vouched for what they brought.
    pub(super) fn vouched(&mut self, id: u64) {
        let Some(live) = self.sessions.get_mut(&id) else { return };
        for (place, word) in live.session.vouched.lock().drain() {
            live.vouches.hear(place, word);
        }
        self.review_notifications(id);
    }

    /// Has a rail vouch for the bytes of notification `seq` and all before it.
    pub(super) fn have_vouch(&self, id: u64, (kind, index): Place, seq: u64) {
        let worker = self.core.worker_of(rail_of(kind, index));
        worker.post(worker::Message::Vouch { session: id, kind, index, word: seq as u32 });
    }

    /// A stream has come up again: what its last opening may not have vouched for is said anew.
    pub(super) fn vouch_again(&self, id: u64, place: Place) {
        let Some(live) = self.sessions.get(&id) else { return };
        let waiting = live.notices.iter().filter(|(_, notice)| notice.is_behind(place)).map(|(seq, _)| *seq);
        if let Some(last) = waiting.max() {
            self.have_vouch(id, place, last);
        }
    }

    /// Says something to a session's peer, once, whatever becomes of the connection.
    pub(super) fn tell(&mut self, id: u64, message: &Message) {
        let Some(live) = self.sessions.get_mut(&id).filter(|l| !l.over) else { return };
        match live.line.say(message, self.now) {
            Some(numbered) => self.send(id, &numbered),
            None => self.lose(id, "the peer does not hear"),
        }
    }

    /// Says that we live, and what we have heard.
    pub(super) fn beat(&mut self, id: u64) {
        let Some(heard) = self.sessions.get(&id).map(|live| live.line.heard()) else { return };
        self.send(id, &Message::Heartbeat { heard });
    }

    /// Sends over a session's connection, if it has one.
    pub(super) fn send(&mut self, id: u64, message: &Message) {
        let Some(live) = self.sessions.get_mut(&id).filter(|l| !l.over) else { return };
        live.said = self.now;
        live.ack_by = None;
        let Some(key) = live.conn else { return };
        if let Some(conn) = self.conns.get_mut(key)
            && let Err(error) = conn.pipe.send(message)
        {
            self.broken(key, &error);
        }
    }
}
