//! Making sessions: dial, hello, offer, commit, welcome.
//!
//! ```text
//! dialler                 listener
//!   Hello(versions, me) →
//!                       ← Offer(version, me)          nothing is bound yet
//!   Commit              →
//!                       ← Welcome(session, token)     or Exists, Yield, Refuse
//! ```
//!
//! Two engines that dial each other at once both know the other's generation when they commit: the one with the lower
//! generation answers the other's commit with `Yield`, the higher one accepts. So exactly one of the two goes on.

use std::net::SocketAddr;
use std::sync::Arc;

use socket2::Socket;

use crate::engine::ConnectError;
use crate::session::control::{Control, Dial, Doors, Role, Stage};
use crate::session::parts::transport_bit;
use crate::session::peer::Reply;
use crate::session::pipe::Pipe;
use crate::session::rails::TcpRail;
use crate::session::wire::{Identity, Message, RefuseCode, VERSIONS};
use crate::transport::{TransportKind, tcp};

impl Control {
    /// Transports that both sides may use with each other, preferred first.
    pub(super) fn common(&self, peer: &Identity) -> Vec<TransportKind> {
        let both = self.me.transports & peer.transports;
        let reachable = |kind: TransportKind| match kind {
            TransportKind::Shm => peer.host == self.me.host,
            TransportKind::Sim => self.own.nic.as_ref().is_some_and(|nic| nic.reaches(peer.generation)),
            TransportKind::Rdma => self.own.nics.is_some(),
            TransportKind::Tcp => true,
        };
        TransportKind::ALL.into_iter().filter(|kind| both & transport_bit(*kind) != 0 && reachable(*kind)).collect()
    }

    pub(super) fn connect(&mut self, address: SocketAddr, expected: Option<u64>, reply: Arc<Reply>) {
        let fits = |generation: u64| expected.is_none_or(|e| e == generation);
        let live = self
            .sessions
            .values_mut()
            .find(|l| !l.over && l.session.dialler && l.session.address == address && fits(l.session.generation));
        if let Some(live) = live {
            live.waiters.push(reply);
            let id = live.session.id;
            self.answer_waiters(id);
            return;
        }
        let same = self.conns.iter_mut().find_map(|(_, conn)| match &mut conn.role {
            Role::Dial(dial) if dial.address == address && dial.expected == expected => Some(dial),
            _ => None,
        });
        if let Some(dial) = same {
            dial.waiters.push(reply);
            return;
        }
        match begin_connect(address, None, self.core.config.peer_timeout) {
            Ok(socket) => {
                let (stage, waiters) = (Stage::Connecting, vec![reply]);
                let role = Role::Dial(Dial {
                    address,
                    expected,
                    waiters,
                    stage,
                    peer: None,
                    version: VERSIONS.0,
                    far: Vec::new(),
                    far_nics: Vec::new(),
                });
                self.add(Pipe::new(socket.into()), role, Some(address));
            }
            Err(error) => reply.give(Err(ConnectError::Unreachable { address, reason: error.to_string() })),
        }
    }

    /// A dialled socket became ready; true when it is connected and greeted.
    pub(super) fn connected(&mut self, key: usize) -> bool {
        let Some(conn) = self.conns.get_mut(key) else { return false };
        let socket = socket2::SockRef::from(conn.pipe.socket());
        let error = match socket.take_error() {
            Ok(None) if socket.peer_addr().is_err() => return false,
            Ok(None) => None,
            Ok(Some(error)) | Err(error) => Some(error),
        };
        match (&mut conn.role, error) {
            (Role::Dial(dial), None) => {
                dial.stage = Stage::Hello;
                let hello = Message::Hello { versions: VERSIONS, me: self.me };
                if let Err(error) = conn.pipe.send(&hello) {
                    let (address, reason) = (dial.address, error.to_string());
                    self.dial_failed(key, &ConnectError::Unreachable { address, reason });
                    return false;
                }
                true
            }
            (Role::Redial { session, .. }, error) => {
                let session = *session;
                if error.is_none() && self.greet_redial(key) {
                    return true;
                }
                self.redial_failed(key, session);
                false
            }
            (Role::Dial(dial), Some(error)) => {
                let error = ConnectError::Unreachable { address: dial.address, reason: error.to_string() };
                self.dial_failed(key, &error);
                false
            }
            (Role::Stream { session, stream, .. }, error) => {
                let (session, stream) = (*session, *stream);
                if error.is_none() && self.greet_stream(key) {
                    return true;
                }
                self.close(key);
                self.stream_failed(session, stream);
                false
            }
            _ => false,
        }
    }

    pub(super) fn dial_failed(&mut self, key: usize, error: &ConnectError) {
        if let Some(conn) = self.conns.get_mut(key)
            && let Role::Dial(dial) = &mut conn.role
        {
            dial.waiters.drain(..).for_each(|w| w.give(Err(error.clone())));
        }
        self.close(key);
    }

    /// Serves one message of any connection.
    pub(super) fn message(&mut self, key: usize, message: Message) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        match (&mut conn.role, message) {
            (Role::Control { session }, message) => {
                let session = *session;
                self.control_message(session, message);
            }
            (Role::Accepted, Message::Hello { versions, me }) => self.hello(key, versions, me),
            (Role::Accepted, Message::StreamHello { session, token, stream, nic }) => {
                self.stream_hello(key, session, token, stream, nic);
            }
            (Role::Offered { peer, version }, Message::Commit { supersede }) => {
                let (peer, version) = (*peer, *version);
                self.commit(key, peer, version, supersede);
            }
            (Role::Stream { session, stream, .. }, Message::StreamWelcome) => {
                let (session, stream) = (*session, *stream);
                self.attach(key, session, stream);
            }
            (Role::Stream { session, stream, .. }, _) => {
                let (session, stream) = (*session, *stream);
                self.close(key);
                self.stream_failed(session, stream);
            }
            (Role::Accepted, Message::Resume { session, token, heard }) => self.resume(key, session, token, heard),
            (Role::Resuming { session }, Message::Heartbeat { heard })
            | (Role::Redial { session, .. }, Message::Resumed { heard }) => {
                let session = *session;
                self.switch_over(key, session, heard);
            }
            (Role::Redial { session, .. }, Message::Refuse { .. }) => {
                let session = *session;
                self.lose(session, "the peer does not know the session any more");
            }
            (Role::Redial { session, .. }, _) => {
                let session = *session;
                self.redial_failed(key, session);
            }
            (Role::Resuming { .. }, _) => self.refuse(key, RefuseCode::NotAnEngine),
            (Role::Dial(_), message) => self.dial_message(key, message),
            (Role::Accepted | Role::Offered { .. }, _) => self.refuse(key, RefuseCode::NotAnEngine),
            (Role::Linger { .. } | Role::Closing, _) => {}
        }
    }

    // ---- the listener's side

    fn hello(&mut self, key: usize, versions: (u16, u16), peer: Identity) {
        let version = versions.1.min(VERSIONS.1);
        if version < versions.0.max(VERSIONS.0) {
            return self.refuse(key, RefuseCode::Version);
        }
        if peer.generation == self.me.generation {
            return self.refuse(key, RefuseCode::Myself);
        }
        if self.common(&peer).is_empty() || peer.streams == 0 {
            return self.refuse(key, RefuseCode::NoTransport);
        }
        let Some(conn) = self.conns.get_mut(key) else { return };
        if conn.from.is_none() {
            // Sessions are made over TCP: the Unix listener is for streams.
            return self.refuse(key, RefuseCode::NotAnEngine);
        }
        conn.role = Role::Offered { peer, version };
        let (rails, nics) = (self.own.rails.clone(), self.own.nic_rails());
        let sent = conn.pipe.send(&Message::Offer { version, me: self.me, rails, nics });
        if sent.is_err() {
            self.close(key);
        }
    }

    fn commit(&mut self, key: usize, peer: Identity, version: u16, supersede: u64) {
        let live = self.sessions.values().find(|l| !l.over && l.session.generation == peer.generation);
        if let Some(id) = live.map(|l| l.session.id) {
            if supersede == id {
                self.lose(id, "the peer has lost the session");
            } else {
                self.reply(key, &Message::Exists { session: id });
                return;
            }
        }
        if self.me.generation < peer.generation && self.committed_to(peer.generation).is_some() {
            self.reply(key, &Message::Yield);
            return;
        }
        let (id, token) = (crate::random::u64(), crate::random::token());
        // The dialler opens the streams, so it alone needs names; ours goes to it.
        match self.begin(key, (id, token), peer, version, None) {
            None => self.refuse(key, RefuseCode::TooManyPeers),
            Some(id) => {
                let welcome = Message::Welcome { session: id, token, unix: self.unix_name.clone() };
                self.reply(key, &welcome);
                self.hand_over_yielded(id, peer.generation);
            }
        }
    }

    fn reply(&mut self, key: usize, message: &Message) {
        if let Some(conn) = self.conns.get_mut(key)
            && conn.pipe.send(message).is_err()
        {
            self.close(key);
        }
    }

    // ---- the dialler's side

    /// Our dial that has committed to a peer of this generation.
    fn committed_to(&self, generation: u64) -> Option<usize> {
        let committed = |role: &Role| match role {
            Role::Dial(d) => d.stage == Stage::Commit && d.peer.is_some_and(|p| p.generation == generation),
            _ => false,
        };
        self.conns.iter().find(|(_, conn)| committed(&conn.role)).map(|(key, _)| key)
    }

    /// Gives a dial's waiters to a session, and closes it.
    fn hand_over(&mut self, key: usize, session: u64) {
        if let Some(conn) = self.conns.get_mut(key)
            && let Role::Dial(dial) = &mut conn.role
            && let Some(live) = self.sessions.get_mut(&session)
        {
            live.waiters.append(&mut dial.waiters);
        }
        self.close(key);
        self.answer_waiters(session);
    }

    fn hand_over_yielded(&mut self, session: u64, generation: u64) {
        let yielded = |role: &Role| match role {
            Role::Dial(d) => d.stage == Stage::Yielded && d.peer.is_some_and(|p| p.generation == generation),
            _ => false,
        };
        let keys: Vec<usize> = self.conns.iter().filter(|(_, conn)| yielded(&conn.role)).map(|(key, _)| key).collect();
        for key in keys {
            self.hand_over(key, session);
        }
    }

    fn dial_message(&mut self, key: usize, message: Message) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        let Role::Dial(dial) = &mut conn.role else { return };
        let address = dial.address;
        let known = dial.peer.map(|p| p.generation);
        match (message, dial.stage) {
            (Message::Offer { version, me, rails, nics }, Stage::Hello) => {
                if !(VERSIONS.0..=VERSIONS.1).contains(&version) {
                    self.dial_failed(key, &ConnectError::NotAnEngine { address });
                } else if dial.expected.is_some_and(|e| e != me.generation) {
                    let error =
                        ConnectError::WrongGeneration { expected: dial.expected.unwrap_or(0), found: me.generation };
                    self.dial_failed(key, &error);
                } else {
                    (dial.peer, dial.version) = (Some(me), version);
                    (dial.far, dial.far_nics) = (rails, nics);
                    self.offered(key, me);
                }
            }
            (Message::Welcome { session, token, unix }, Stage::Commit) => {
                let (Some(peer), waiters) = (dial.peer, std::mem::take(&mut dial.waiters)) else { return };
                let (tcp, nics) = (std::mem::take(&mut dial.far), std::mem::take(&mut dial.far_nics));
                let (doors, version) = (Doors { unix, tcp, nics }, dial.version);
                match self.begin(key, (session, token), peer, version, Some(doors)) {
                    Some(id) => {
                        if let Some(live) = self.sessions.get_mut(&id) {
                            live.waiters = waiters;
                        }
                        self.dial_streams(id);
                        self.hand_over_yielded(id, peer.generation);
                    }
                    None => {
                        let error = ConnectError::TooManyPeers { limit: self.core.config.peers_max };
                        waiters.iter().for_each(|w| w.give(Err(error.clone())));
                        self.close(key);
                    }
                }
            }
            (Message::Exists { session }, Stage::Commit) => {
                if self.sessions.get(&session).is_some_and(|l| !l.over) {
                    self.hand_over(key, session);
                } else {
                    self.reply(key, &Message::Commit { supersede: session });
                }
            }
            (Message::Yield, Stage::Commit) => {
                dial.stage = Stage::Yielded;
                let live = self.sessions.values().find(|l| !l.over && Some(l.session.generation) == known);
                if let Some(id) = live.map(|l| l.session.id) {
                    self.hand_over(key, id);
                }
            }
            (Message::Refuse { code, versions }, _) => {
                let error = match code {
                    RefuseCode::Version => ConnectError::Version {
                        peer_min: versions.0,
                        peer_max: versions.1,
                        min: VERSIONS.0,
                        max: VERSIONS.1,
                    },
                    RefuseCode::Myself => ConnectError::Myself,
                    RefuseCode::NoTransport => ConnectError::NoTransport,
                    code => ConnectError::Refused { reason: format!("{code:?}") },
                };
                self.dial_failed(key, &error);
            }
            _ => self.dial_failed(key, &ConnectError::NotAnEngine { address }),
        }
    }

    fn offered(&mut self, key: usize, peer: Identity) {
        if peer.generation == self.me.generation {
            return self.dial_failed(key, &ConnectError::Myself);
        }
        if self.common(&peer).is_empty() {
            return self.dial_failed(key, &ConnectError::NoTransport);
        }
        let live = self.sessions.values().find(|l| !l.over && l.session.generation == peer.generation);
        if let Some(id) = live.map(|l| l.session.id) {
            return self.hand_over(key, id);
        }
        if let Some(other) = self.committed_to(peer.generation) {
            // The same engine under another address: one dial is enough.
            let moved = match self.conns.get_mut(key).map(|c| &mut c.role) {
                Some(Role::Dial(dial)) => std::mem::take(&mut dial.waiters),
                _ => Vec::new(),
            };
            if let Some(Role::Dial(dial)) = self.conns.get_mut(other).map(|c| &mut c.role) {
                dial.waiters.extend(moved);
            }
            return self.close(key);
        }
        if let Some(Role::Dial(dial)) = self.conns.get_mut(key).map(|c| &mut c.role) {
            dial.stage = Stage::Commit;
        }
        self.reply(key, &Message::Commit { supersede: 0 });
    }
}

/// A socket that is connecting, over a rail if one is given.
pub(super) fn begin_connect(
    address: SocketAddr,
    rail: Option<&TcpRail>,
    silence: std::time::Duration,
) -> std::io::Result<Socket> {
    let socket = rail.map_or_else(|| tcp::socket(address), TcpRail::socket)?;
    tcp::tune(&socket, silence)?;
    match socket.connect(&address.into()) {
        Ok(()) => Ok(socket),
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => Ok(socket),
        Err(error) => Err(error),
    }
}
