//! The control thread: listener, handshakes, control connections; `timers` has what is due.
//!
//! It owns every socket that is not a data stream in service, sleeps in one poller, and does nothing on the data path.
//! `handshake` makes sessions, `streams` opens, fences and reopens their data streams.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use slab::Slab;

use crate::core::{Core, STREAMS_MAX};
use crate::engine::ConnectError;
use crate::plan::{Action, Cause, Failure, PathId, PeerId, RailSet, Time};
use crate::session::lease::fencing_is_off;
use crate::session::line::Line;
use crate::session::peer::{Reply, Session};
use crate::session::pipe::{Pipe, PipeError};
use crate::session::ports::Ports;
use crate::session::rails::{FarRail, NearNic, TCP_RAILS_MAX, Way, nic_ways, ways};
use crate::session::resume::Redial;
use crate::session::streams::Streams;
use crate::session::vouches::{Place, Vouches};
use crate::session::wire::{CREDITS_SINCE, Identity, Message, ONE_SIDED_SINCE, RefuseCode, StreamId, VERSIONS};
use crate::telemetry::{Fallback, Rejection, count};
use crate::transfer::{FailureKind, Report, Shared, TransferError};
use crate::transport::TransportKind;
use crate::transport::rdma::{self, Nics};
use crate::transport::sim::Nic;
use crate::transport::sys::Poller;

/// Connections that have not said who they are, at most.
const STRANGERS_MAX: usize = 256;
/// How often it is said that connections are turned away.
const TELL_AGAIN: Duration = Duration::from_secs(30);
/// Keys of the listeners in the poller: that of shared memory, and downwards from there those of TCP.
const UNIX_LISTENER: u64 = u64::MAX - 1;
const LISTENERS: std::ops::Range<u64> = UNIX_LISTENER - 1 - TCP_RAILS_MAX as u64..UNIX_LISTENER;

/// What other threads tell the control thread.
pub(crate) enum Command {
    /// Connect, or find the session that is there. Refused when too many wait.
    Connect { address: SocketAddr, expected: Option<u64>, reply: Arc<Reply> },
    /// The planner's wish; at most a fence and an opening for each path.
    Action(Action),
    /// A worker has taken a stream into service; once for each attach.
    Attached { session: u64, stream: StreamId },
    /// Nothing of a stream can touch memory here any more; once for each attach or detach. The socket, if there is one,
    /// ends when nothing of the stream can touch memory over there.
    Detached { session: u64, stream: StreamId, linger: Option<OwnedFd> },
    /// A peer's frame was more than its limit; once for each stream that it ends.
    Overdrawn { session: u64 },
    /// Rails have vouched for what they brought: see `Session::vouched`; once until that has been looked at.
    Vouched { session: u64 },
    /// All bytes of a transfer have landed: say so to the peer, then to the caller; once for each transfer.
    Notify { session: Arc<Session>, payload: Bytes, deadline: Instant, report: Box<Report>, shared: Arc<Shared> },
}

impl Command {
    /// The engine stops: whoever waits is told, descriptors are closed.
    pub(crate) fn abandon(self) {
        match self {
            Self::Connect { reply, .. } => reply.give(Err(ConnectError::Stopped)),
            Self::Notify { report, shared, deadline, .. } => {
                Notice { behind: Vec::new(), deadline, report, shared }.end(Some(FailureKind::Stopped));
            }
            Self::Vouched { .. }
            | Self::Action(_)
            | Self::Attached { .. }
            | Self::Detached { .. }
            | Self::Overdrawn { .. } => {}
        }
    }
}

/// What a connection is.
pub(super) enum Role {
    /// Has not said who it is.
    Accepted,
    /// Was offered a session.
    Offered { peer: Identity, version: u16 },
    /// We dialled, to make a session.
    Dial(Dial),
    /// Control connection of a session.
    Control { session: u64 },
    /// We dialled, to have a session go on over it.
    Redial { session: u64, greeted: bool },
    /// The peer wants a session to go on over it, and has our answer.
    Resuming { session: u64 },
    /// We dialled, to make a data stream.
    Stream { session: u64, stream: StreamId, greeted: bool },
    /// A closed shared-memory stream whose other end may still be copying.
    Linger { session: u64, stream: StreamId },
    /// Was refused; waits for its last words to be sent.
    Closing,
}

pub(super) struct Dial {
    pub(super) address: SocketAddr,
    pub(super) expected: Option<u64>,
    pub(super) waiters: Vec<Arc<Reply>>,
    pub(super) stage: Stage,
    pub(super) peer: Option<Identity>,
    /// The protocol's version that it has chosen.
    pub(super) version: u16,
    /// Its rails, and the rail numbers of its RDMA NICs.
    pub(super) far: Vec<FarRail>,
    pub(super) far_nics: Vec<u16>,
}

/// Where a session's streams are dialled.
#[derive(Default)]
pub(super) struct Doors {
    /// Name of the peer's Unix listener.
    pub(super) unix: Vec<u8>,
    /// Its rails.
    pub(super) tcp: Vec<FarRail>,
    /// Rail numbers of its RDMA NICs.
    pub(super) nics: Vec<u16>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Connecting,
    Hello,
    Commit,
    /// The peer's own dial goes on in place of ours.
    Yielded,
}

pub(super) struct Conn {
    pub(super) pipe: Pipe,
    pub(super) role: Role,
    pub(super) deadline: Option<Instant>,
    pub(super) from: Option<SocketAddr>,
}

/// A notification under way.
pub(super) struct Notice {
    /// Rails that are to vouch for the bytes it speaks of.
    behind: Vec<Place>,
    pub(super) deadline: Instant,
    report: Box<Report>,
    shared: Arc<Shared>,
}

impl Notice {
    /// Whether it waits for the word of this rail.
    pub(super) fn is_behind(&self, place: Place) -> bool {
        self.behind.contains(&place)
    }

    pub(super) fn end(mut self, failure: Option<FailureKind>) {
        if let Some(kind) = failure {
            self.report.status = Err(TransferError { kind, memory_is_free: true });
        }
        self.shared.finish(*self.report);
    }
}

/// A session as the control thread keeps it.
pub(super) struct Live {
    pub(super) session: Arc<Session>,
    /// None while it is being opened anew.
    pub(super) conn: Option<usize>,
    pub(super) line: Line,
    pub(super) redial: Redial,
    pub(super) token: [u8; 16],
    pub(super) doors: Doors,
    /// Of the TCP streams that we dial.
    pub(super) ways: Vec<Way>,
    /// Of the RDMA streams that we dial.
    pub(super) nic_ways: Vec<Way>,
    pub(super) identity: Identity,
    /// Both sides speak of credits.
    pub(super) credits: bool,
    pub(super) streams: Streams,
    /// Connects that wait for the first streams.
    pub(super) waiters: Vec<Arc<Reply>>,
    pub(super) heard: Instant,
    pub(super) said: Instant,
    /// That something was heard is said by then, with whatever else there is to say.
    pub(super) ack_by: Option<Instant>,
    pub(super) notices: HashMap<u64, Notice>,
    next_notice: u64,
    /// The peer's notifications.
    pub(super) vouches: Vouches,
    /// Over: kept until its last stream is detached and its last linger has ended.
    pub(super) over: bool,
}

/// What an engine has to move bytes over.
pub(crate) struct Own {
    /// For the simulated transport.
    pub(crate) nic: Option<Arc<Nic>>,
    /// For RDMA.
    pub(crate) nics: Option<Nics>,
    /// Where the listeners of TCP rails are, for peers.
    pub(crate) rails: Vec<FarRail>,
}

impl Own {
    /// Rail numbers of the RDMA NICs.
    pub(super) fn nic_rails(&self) -> Vec<u16> {
        self.nics.iter().flat_map(|nics| &nics.all).map(|nic| nic.rail).collect()
    }

    /// And how many queue pairs each wants.
    fn near_nics(&self) -> Vec<NearNic> {
        let near = |nic: &Arc<rdma::Nic>| NearNic { rail: nic.rail, queue_pairs: nic.queue_pairs() };
        self.nics.iter().flat_map(|nics| &nics.all).map(near).collect()
    }
}

pub(crate) struct Control {
    pub(super) core: Arc<Core>,
    pub(super) poller: Poller,
    /// The first is for everything, the others are of the rails.
    listeners: Vec<TcpListener>,
    unix: Option<UnixListener>,
    pub(super) unix_name: Vec<u8>,
    pub(super) conns: Slab<Conn>,
    pub(super) sessions: HashMap<u64, Live>,
    pub(super) by_peer: HashMap<PeerId, u64>,
    pub(super) me: Identity,
    pub(super) own: Own,
    pub(super) ports: Ports,
    /// The clock when it was looked at last: a look is a system call on some machines.
    pub(super) now: Instant,
    told_of_rejection: Option<Instant>,
    /// When a connection or a session has a timer, at the earliest; `None` when that may have changed. Heartbeats only ever put it off, so
    /// that they are heard without a look at everybody.
    pub(super) due: Option<Instant>,
}

impl Control {
    pub(crate) fn new(
        core: Arc<Core>,
        poller: Poller,
        listeners: Vec<TcpListener>,
        unix: Option<(UnixListener, Vec<u8>)>,
        own: Own,
        me: Identity,
        ports: Ports,
    ) -> std::io::Result<Self> {
        for (key, listener) in LISTENERS.zip(&listeners) {
            poller.add(listener.as_raw_fd(), key)?;
        }
        if let Some((unix, _)) = &unix {
            poller.add(unix.as_raw_fd(), UNIX_LISTENER)?;
        }
        let (unix, unix_name) = unix.map_or((None, Vec::new()), |(u, name)| (Some(u), name));
        let (conns, sessions, by_peer) = (Slab::new(), HashMap::new(), HashMap::new());
        let (told_of_rejection, due) = (None, None);
        Ok(Self {
            core,
            poller,
            listeners,
            unix,
            unix_name,
            conns,
            sessions,
            by_peer,
            me,
            own,
            ports,
            now: Instant::now(),
            told_of_rejection,
            due,
        })
    }

    /// Runs until the engine stops.
    pub(crate) fn run(mut self) {
        let core = Arc::clone(&self.core);
        let mut ready = Vec::new();
        while !core.stopping.load(Ordering::Acquire) {
            core.control.listen();
            for command in core.control.take() {
                self.due = None;
                self.command(command);
            }
            // Timers come after what was heard: a late look at the clock must not take our own sleep for a peer's.
            self.now = Instant::now();
            self.timers(self.now);
            self.credits();
            let timeout = self.next_timer();
            core.control_is_up.store(false, Ordering::SeqCst);
            let is_due = core.credits_due.load(Ordering::SeqCst);
            let timeout = if is_due { Some(Duration::ZERO) } else { timeout };
            let wait = self.poller.wait(timeout, |key, is| ready.push((key, is.ended)));
            core.control_is_up.store(true, Ordering::SeqCst);
            core.control_wakes_at.store(0, Ordering::Release);
            if let Err(error) = wait {
                tracing::error!(%error, "the transfer engine cannot wait for its connections and ends");
                core.stop();
            }
            for (key, ended) in ready.drain(..) {
                if ended && let Some(conn) = self.conns.get_mut(key as usize) {
                    conn.pipe.end_is_near();
                }
                if self.conns.get(key as usize).is_none_or(|conn| !matches!(conn.role, Role::Control { .. })) {
                    self.due = None;
                }
                match key {
                    UNIX_LISTENER => self.accept_unix(),
                    key if LISTENERS.contains(&key) => self.accept((key - LISTENERS.start) as usize),
                    key => self.pump(key as usize),
                }
            }
        }
        self.end();
        drop(self);
        core.thread_ended();
    }

    /// The same as the planner and the ledgers have it.
    pub(super) fn time(&self) -> Time {
        self.core.time(self.now)
    }

    fn end(&mut self) {
        let ids: Vec<u64> = self.sessions.keys().copied().collect();
        for id in ids {
            self.tell(id, &Message::Bye);
            self.lose(id, "the engine stops");
        }
        for (_, conn) in &mut self.conns {
            if let Role::Dial(dial) = &mut conn.role {
                dial.waiters.drain(..).for_each(|w| w.give(Err(ConnectError::Stopped)));
            }
        }
        self.core.control.take().into_iter().for_each(Command::abandon);
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Connect { address, expected, reply } => self.connect(address, expected, reply),
            Command::Action(Action::Fence(path)) => self.fence(path),
            Command::Action(Action::Open(path)) => self.open(path),
            Command::Attached { session, stream } => self.attached(session, stream),
            Command::Overdrawn { session } => self.overdrawn(session),
            Command::Detached { session, stream, linger } => self.detached(session, stream, linger),
            Command::Vouched { session } => self.vouched(session),
            Command::Notify { session, payload, deadline, report, shared } => {
                let streams = report.bytes_by_rail.iter().map(|by| (by.transport, by.stream));
                let behind = streams.filter(|(kind, _)| kind.is_one_sided()).collect();
                let notice = Notice { behind, deadline, report, shared };
                let Some(live) = self.sessions.get_mut(&session.id).filter(|l| !l.over) else {
                    notice.end(Some(Failure::Fault(Cause::PeerLost).into()));
                    return;
                };
                let seq = live.next_notice;
                live.next_notice += 1;
                let behind = notice.behind.clone();
                live.notices.insert(seq, notice);
                let payload = payload.to_vec();
                if behind.is_empty() {
                    return self.tell(session.id, &Message::Notify { seq, payload });
                }
                for place in &behind {
                    self.have_vouch(session.id, *place, seq);
                }
                self.tell(session.id, &Message::NotifyBehind { seq, payload, streams: behind });
            }
        }
    }

    // ---- connections

    fn accept(&mut self, listener: usize) {
        loop {
            match self.listeners[listener].accept() {
                Ok((socket, from)) => {
                    let socket = socket2::Socket::from(socket);
                    if crate::transport::tcp::tune(&socket, self.core.config.peer_timeout).is_ok() {
                        self.stranger(socket.into(), Some(from));
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    return;
                }
            }
        }
    }

    fn accept_unix(&mut self) {
        while let Some(Ok((socket, _))) = self.unix.as_ref().map(UnixListener::accept) {
            // Another user's process has no business with our memory, whatever it claims.
            let same_user = crate::transport::shm::peer_user(&socket).is_some_and(|u| u == self.me.host.user);
            if same_user && socket.set_nonblocking(true).is_ok() {
                self.stranger(socket.into(), None);
            } else {
                self.reject(Rejection::OtherUser, None);
            }
        }
    }

    fn stranger(&mut self, socket: OwnedFd, from: Option<SocketAddr>) {
        let known = |role: &Role| !matches!(role, Role::Accepted | Role::Offered { .. } | Role::Closing);
        if self.conns.iter().filter(|(_, c)| !known(&c.role)).count() >= STRANGERS_MAX {
            self.reject(Rejection::TooMany, from);
            return;
        }
        let key = self.add(Pipe::new(socket), Role::Accepted, from);
        self.pump(key);
    }

    /// Takes a connection in, with the handshake's time to prove itself.
    pub(super) fn add(&mut self, pipe: Pipe, role: Role, from: Option<SocketAddr>) -> usize {
        let deadline = Some(Instant::now() + self.core.config.connect_timeout);
        let fd = pipe.fd();
        let key = self.conns.insert(Conn { pipe, role, deadline, from });
        if let Err(error) = self.poller.add(fd, key as u64) {
            tracing::warn!(%error, "a connection cannot be watched");
        }
        key
    }

    /// Reads and serves what is there, sends what waits.
    pub(super) fn pump(&mut self, key: usize) {
        loop {
            let Some(conn) = self.conns.get_mut(key) else { return };
            let connecting = match &conn.role {
                Role::Dial(dial) => dial.stage == Stage::Connecting,
                Role::Stream { greeted, .. } | Role::Redial { greeted, .. } => !greeted,
                _ => false,
            };
            if connecting {
                if !self.connected(key) {
                    return;
                }
                continue;
            }
            if let Err(error) = conn.pipe.flush() {
                self.broken(key, &error);
                return;
            }
            if matches!(conn.role, Role::Closing) && conn.pipe.is_flushed() {
                self.close(key);
                return;
            }
            match conn.pipe.receive() {
                Ok(Some(message)) => self.message(key, message),
                Ok(None) => return,
                Err(error) => {
                    self.broken(key, &error);
                    return;
                }
            }
        }
    }

    pub(super) fn close(&mut self, key: usize) {
        // Closing the descriptor also ends its watch.
        self.conns.try_remove(key);
    }

    /// Counts a connection that is dropped for what it said, and tells of it: the log is not the stranger's to fill.
    pub(super) fn reject(&mut self, why: Rejection, from: Option<SocketAddr>) {
        self.core.counters.reject(why);
        if self.told_of_rejection.is_none_or(|at| at.elapsed() >= TELL_AGAIN) {
            self.told_of_rejection = Some(Instant::now());
            let from = from.map(tracing::field::display);
            tracing::warn!(
                reason = why.as_str(),
                from,
                "a connection was turned away; others are only counted for a while"
            );
        }
    }

    /// Last words to a connection that is not wanted.
    pub(super) fn refuse(&mut self, key: usize, code: RefuseCode) {
        let from = self.conns.get(key).and_then(|conn| conn.from);
        self.reject(code.into(), from);
        if let Some(conn) = self.conns.get_mut(key) {
            conn.role = Role::Closing;
            let sent = conn.pipe.send(&Message::Refuse { code, versions: VERSIONS });
            if sent.is_err() || conn.pipe.is_flushed() {
                self.close(key);
            }
        }
    }

    /// A connection has ended by itself.
    pub(super) fn broken(&mut self, key: usize, error: &PipeError) {
        self.due = None;
        let Some(conn) = self.conns.get_mut(key) else { return };
        let not_ours = matches!(error, PipeError::NotOurs);
        match &mut conn.role {
            Role::Accepted | Role::Offered { .. } if not_ours => self.refuse(key, RefuseCode::NotAnEngine),
            Role::Accepted | Role::Offered { .. } | Role::Closing => self.close(key),
            Role::Dial(dial) => {
                let address = dial.address;
                let error = if not_ours {
                    ConnectError::NotAnEngine { address }
                } else {
                    ConnectError::Unreachable { address, reason: error.to_string() }
                };
                self.dial_failed(key, &error);
            }
            Role::Control { session } => {
                let (session, from) = (*session, conn.from);
                if not_ours {
                    self.reject(Rejection::Session, from);
                }
                // Closed by the peer, or nonsense: it is gone, unless it goes on elsewhere. Broken by the network: there may be
                // another way.
                let by_network =
                    matches!(error, PipeError::Os(cause) if cause.kind() != std::io::ErrorKind::ConnectionReset);
                let goes_on = |role: &Role| matches!(role, Role::Resuming { session: of } if *of == session);
                if by_network || (!not_ours && self.conns.iter().any(|(_, conn)| goes_on(&conn.role))) {
                    self.cut_off(session, &error.to_string());
                } else {
                    self.lose(session, &error.to_string());
                }
            }
            Role::Redial { session, .. } => {
                let session = *session;
                self.redial_failed(key, session);
            }
            Role::Resuming { .. } => self.close(key),
            Role::Stream { session, stream, .. } => {
                let (session, stream) = (*session, *stream);
                self.close(key);
                self.stream_failed(session, stream);
            }
            Role::Linger { session, stream } => {
                let (session, stream) = (*session, *stream);
                self.close(key);
                self.lingered(session, stream);
            }
        }
    }

    // ---- life and death of sessions

    /// A handshake is done; the dialler knows the other side's doors. `None` when there are too many peers already.
    pub(super) fn begin(
        &mut self,
        conn: usize,
        (id, token): (u64, [u8; 16]),
        identity: Identity,
        version: u16,
        doors: Option<Doors>,
    ) -> Option<u64> {
        let from = self.conns.get(conn)?.from?;
        // Whoever lived at the same place before is dead, although nobody told us.
        let place = |live: &Live| (live.session.address.ip(), live.identity.port);
        let dead = |live: &Live| {
            !live.over && (live.session.generation == identity.generation || place(live) == (from.ip(), identity.port))
        };
        let old: Vec<u64> = self.sessions.iter().filter(|(_, live)| dead(live)).map(|(id, _)| *id).collect();
        for id in old {
            self.lose(id, "the peer has come back");
        }
        if self.sessions.len() >= self.core.config.peers_max {
            return None;
        }
        let (peer, _) = self.core.plan(RailSet::default(), |p, _| p.planner.add_peer());
        let (peer, generation, mut kinds) = (peer?, identity.generation, self.common(&identity));
        kinds.retain(|kind| version >= ONE_SIDED_SINCE || !kind.is_one_sided());
        let dialler = doors.is_some();
        let doors = doors.unwrap_or_default();
        let count = self.me.streams.min(identity.streams);
        let ways = if dialler { ways(&self.core.config.tcp_rails, &doors.tcp, count) } else { Vec::new() };
        if dialler && ways.is_empty() {
            tracing::warn!(peer = generation, address = %from, "no TCP rail here goes with one of the peer's");
        }
        let nic_ways = nic_ways(&self.own.near_nics(), &doors.nics, count);
        let streams = Streams::new(&kinds, |kind| match kind {
            TransportKind::Tcp => ways.len() as u8,
            TransportKind::Rdma => nic_ways.len() as u8,
            TransportKind::Shm | TransportKind::Sim => count.min(STREAMS_MAX),
        });
        let (ended, told, vouched) = Default::default();
        let session = Arc::new(Session { id, generation, address: from, peer, dialler, kinds, ended, told, vouched });
        tracing::info!(peer = generation, address = %from, dialler, transports = ?session.kinds, "transfer session up");
        if self.me.is_of_other_user(&identity) {
            session.falls_back(Fallback::OtherUser, &self.core.counters);
        }
        self.core.sessions.lock().insert(generation, Arc::clone(&session));
        self.by_peer.insert(peer, id);
        let now = Instant::now();
        self.sessions.insert(
            id,
            Live {
                session,
                conn: Some(conn),
                line: Line::default(),
                redial: Redial::default(),
                token,
                doors,
                ways,
                nic_ways,
                identity,
                credits: version >= CREDITS_SINCE,
                streams,
                waiters: Vec::new(),
                heard: now,
                said: now,
                ack_by: None,
                notices: HashMap::new(),
                next_notice: 0,
                vouches: Vouches::default(),
                over: false,
            },
        );
        if let Some(conn) = self.conns.get_mut(conn) {
            conn.role = Role::Control { session: id };
            conn.pipe.keep();
            conn.deadline = None;
        }
        Some(id)
    }

    /// A session is over: everything of it fails, its streams are closed and fenced.
    pub(super) fn lose(&mut self, id: u64, why: &str) {
        let Some(live) = self.sessions.get_mut(&id).filter(|l| !l.over) else { return };
        live.over = true;
        live.session.ended.set();
        tracing::info!(peer = live.session.generation, why, "transfer session over");
        count(&self.core.counters.peers_lost, 1);
        let session = Arc::clone(&live.session);
        let conns = [live.conn.take(), live.redial.conn.take()];
        for (_, notice) in live.notices.drain() {
            notice.end(Some(Failure::Fault(Cause::PeerLost).into()));
        }
        let address = session.address;
        for waiter in live.waiters.drain(..) {
            waiter.give(Err(ConnectError::Unreachable { address, reason: why.to_string() }));
        }
        {
            let mut sessions = self.core.sessions.lock();
            if sessions.get(&session.generation).is_some_and(|s| s.id == id) {
                sessions.remove(&session.generation);
            }
        }
        conns.into_iter().flatten().for_each(|conn| self.close(conn));
        if !fencing_is_off() {
            self.close_streams(id);
        }
        self.core.plan(RailSet::default(), |p, now| p.planner.handle_peer_lost(session.peer, now));
        self.ports.peer_lost(session.peer, self.time());
        self.bury(id);
    }

    /// Forgets a session that is over and of which nothing is left.
    pub(super) fn bury(&mut self, id: u64) {
        let Some(live) = self.sessions.get(&id).filter(|l| l.over && l.streams.is_quiet()) else { return };
        let (peer, fences) = (live.session.peer, live.streams.fences());
        let session = Arc::clone(&live.session);
        self.sessions.remove(&id);
        self.by_peer.remove(&peer);
        for (kind, index) in fences {
            self.report_fenced(Core::path(&session, kind, index));
        }
    }

    pub(super) fn report_fenced(&self, path: PathId) {
        self.core.plan(RailSet::default(), |p, now| p.planner.handle_fenced(path, now));
    }
}
