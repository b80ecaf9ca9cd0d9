//! Data streams of a session: opening, fencing, reopening.
//!
//! The dialler of the session dials its streams; the other side asks for it with `OpenStream`. Each opening has a number,
//! so that the fence of an old one neither touches nor waits for a new one.
//!
//! **Fence.** The planner wants the word that nothing of a stream can touch memory, here or there. Here: the worker has
//! closed it (`Detached`). There: the peer says so over the control connection (`StreamFenced`), or, where the session is
//! over, its own leases guard its memory; only a shared-memory stream, out of whose other end the peer may still be copying
//! from us, is then waited for until its socket ends.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::core::{Core, STREAMS_MAX, kind_of, rail_of};
use crate::plan::{Cause, PathId, PathLimits, PathSpec, PortId, RailSet};
use crate::session::control::{Control, Role};
use crate::session::handshake::begin_connect;
use crate::session::inflow::Inflow;
use crate::session::peer::Session;
use crate::session::pipe::Pipe;
use crate::session::resume::TRY_FOR;
use crate::session::vouches::Place;
use crate::session::wire::{Message, RefuseCode, StreamId};
use crate::telemetry::Fallback;
use crate::transport::fault::{FaultPlan, Faulty};
use crate::transport::rdma::{CHUNK_BYTES, Nic};
use crate::transport::{PIECES_MAX, Rail, TransportKind, rdma, shm, sim, tcp};
use crate::worker;

/// One place for a stream, and what became of its openings.
#[derive(Default)]
struct Stream {
    /// Highest opening seen.
    incarnation: u32,
    /// Which of our NICs it goes over, with RDMA.
    nic: u8,
    /// The port where it ends here; the peer has been told.
    port: Option<PortId>,
    /// What the planner was told of it when it was attached.
    spec: Option<PathSpec>,
    /// Openings up to here are fenced: they must not come up.
    barred: Option<u32>,
    /// A worker has it, or has been told to close it.
    attached: bool,
    dialling: bool,
    /// The first try has ended, either way.
    tried: bool,
    /// The planner waits for its fence.
    fencing: bool,
    /// The peer has fenced it.
    fenced_there: bool,
    /// The peer may still be copying.
    lingering: bool,
    /// The peer waits for our fence of this opening.
    peer_waits: Option<StreamId>,
    /// The peer was asked to dial; given up then.
    open_by: Option<Instant>,
}

/// The streams of a session.
pub(super) struct Streams {
    places: HashMap<Place, Stream>,
}

impl Streams {
    /// So many of each kind. Where the peer dials, it alone knows how many go over TCP and RDMA.
    pub(super) fn new(kinds: &[TransportKind], count_of: impl Fn(TransportKind) -> u8) -> Self {
        let places = kinds.iter().flat_map(|kind| (0..count_of(*kind)).map(move |index| (*kind, index)));
        Self { places: places.map(|place| (place, Stream::default())).collect() }
    }

    /// The place of a stream that the peer dials: how many go over TCP and RDMA depends on rails that it alone knows.
    fn dialled(&mut self, session: &Session, place @ (kind, index): Place) -> Option<&mut Stream> {
        let is_told = matches!(kind, TransportKind::Tcp | TransportKind::Rdma);
        let may = is_told && index < STREAMS_MAX && !session.dialler && session.kinds.contains(&kind);
        if may { Some(self.places.entry(place).or_default()) } else { self.places.get_mut(&place) }
    }

    /// A stream ends at this port of ours. True: that is news.
    pub(super) fn ends_at(&mut self, kind: TransportKind, index: u8, port: PortId) -> bool {
        let place = self.places.get_mut(&(kind, index));
        place.is_some_and(|place| place.port.replace(port) != Some(port))
    }

    /// A worker has it.
    pub(super) fn is_attached(&self, place: Place) -> bool {
        self.places.get(&place).is_some_and(|stream| stream.attached)
    }

    /// Nothing is attached and nothing lingers.
    pub(super) fn is_quiet(&self) -> bool {
        self.places.values().all(|s| !s.attached && !s.lingering)
    }

    /// Places whose fence the planner waits for.
    pub(super) fn fences(&self) -> Vec<Place> {
        self.places.iter().filter(|(_, s)| s.fencing).map(|(place, _)| *place).collect()
    }

    pub(super) fn wakes_at(&self) -> impl Iterator<Item = Instant> + '_ {
        self.places.values().filter_map(|s| s.open_by)
    }
}

/// What the planner is told of a stream when it comes up. The rates are starting points, corrected by the first slices; how fast a
/// network is nobody can tell.
///
/// `sharing` streams go between the same two NICs: what their windows begin with is one NIC's, or many queue pairs are a burst that a
/// switch drops.
fn path_spec(kind: TransportKind, session: &Session, sharing: u64) -> PathSpec {
    let tcp = session.address.ip().is_loopback().then_some(2_000_000_000);
    let (rate, base_delay, tier) = match kind {
        TransportKind::Shm => (Some(4_000_000_000), Duration::from_micros(20), 0),
        TransportKind::Sim => (Some(4_000_000_000), Duration::from_micros(20), 0),
        // The NIC's own speed says little of a fabric with slower links in it, and too much at once is lost there.
        TransportKind::Rdma => (None, Duration::from_micros(10), 1),
        TransportKind::Tcp => (tcp, Duration::from_micros(50), 2),
    };
    // A stream has its own congestion control and wants large writes. A NIC sends what it is given.
    let is_rdma = kind == TransportKind::Rdma;
    let window_min_rdma = (256 << 10) / sharing.max(1);
    let (slice_bytes_min, window_min) =
        if is_rdma { (32 << 10, window_min_rdma.clamp(16 << 10, 64 << 10)) } else { (1 << 20, 8 << 20) };
    let chunk = if is_rdma { CHUNK_BYTES } else { u64::MAX };
    let limits = PathLimits {
        slice_bytes_min,
        slice_bytes_max: 2 << 20,
        slice_pieces_max: PIECES_MAX as u32,
        slices_max: 64,
        window_min,
        window_max: 64 << 20,
        local_chunk_bytes: chunk,
        remote_chunk_bytes: chunk,
    };
    PathSpec { rate, base_delay, penalty: Duration::ZERO, tier, lanes: 1, limits }
}

impl Control {
    fn stream(&mut self, session: u64, place: Place) -> Option<&mut Stream> {
        self.sessions.get_mut(&session)?.streams.places.get_mut(&place)
    }

    // ---- opening

    pub(super) fn dial_streams(&mut self, id: u64) {
        let Some(live) = self.sessions.get(&id) else { return };
        let places: Vec<Place> = live.streams.places.keys().copied().collect();
        for place in places {
            self.dial_stream(id, place);
        }
        // Where there was nothing to dial nobody else will answer.
        self.answer_waiters(id);
    }

    fn dial_stream(&mut self, id: u64, (kind, index): Place) {
        let Some(live) = self.sessions.get_mut(&id).filter(|l| !l.over) else { return };
        let ways = if kind == TransportKind::Rdma { &live.nic_ways } else { &live.ways };
        let way = ways.get(usize::from(index)).copied().unwrap_or_default();
        let far = way.far.and_then(|far| live.doors.tcp.get(usize::from(far)));
        let (control, unix) = (live.session.address, live.doors.unix.clone());
        let address = far.map_or(control, |far| far.address);
        let near = way.near.and_then(|near| self.core.config.tcp_rails.get(usize::from(near)));
        let Some(stream) = live.streams.places.get_mut(&(kind, index)) else { return };
        if stream.attached || stream.dialling {
            return;
        }
        stream.dialling = true;
        stream.incarnation += 1;
        stream.nic = way.near.unwrap_or(0);
        let stream = StreamId { kind, index, incarnation: stream.incarnation };
        let socket = match kind {
            TransportKind::Tcp => begin_connect(address, near, self.core.config.peer_timeout).and_then(|s| {
                let congestion = self.core.config.tcp_congestion.as_deref();
                tcp::tune_data(&s, address.ip().is_loopback(), congestion).map(|()| OwnedFd::from(s))
            }),
            TransportKind::Shm => shm::connect(&unix),
            TransportKind::Sim | TransportKind::Rdma => {
                begin_connect(control, None, self.core.config.peer_timeout).map(OwnedFd::from)
            }
        };
        match socket {
            Ok(socket) => {
                let role = Role::Stream { session: id, stream, greeted: false };
                let key = self.add(Pipe::new(socket), role, None);
                if stream.incarnation > 1
                    && let Some(conn) = self.conns.get_mut(key)
                {
                    // It was there before: a link that is back answers soon, and one that is not is tried again.
                    conn.deadline = Some(Instant::now() + TRY_FOR.min(self.core.config.connect_timeout));
                }
                self.pump(key);
            }
            Err(error) => {
                tracing::warn!(?stream, %error, "a data stream cannot be opened");
                self.stream_failed(id, stream);
            }
        }
    }

    /// First word on a stream that has just connected.
    pub(super) fn greet_stream(&mut self, key: usize) -> bool {
        let Some(conn) = self.conns.get_mut(key) else { return false };
        let Role::Stream { session, stream, greeted } = &mut conn.role else { return false };
        *greeted = true;
        let Some(live) = self.sessions.get(session).filter(|l| !l.over) else { return false };
        let way = live.nic_ways.get(usize::from(stream.index)).filter(|_| stream.kind == TransportKind::Rdma);
        let nic = way.and_then(|way| way.far).unwrap_or(0);
        let hello = Message::StreamHello { session: *session, token: live.token, stream: *stream, nic };
        conn.pipe.send(&hello).is_ok()
    }

    /// An opening did not come up.
    pub(super) fn stream_failed(&mut self, id: u64, stream: StreamId) {
        let Some(live) = self.sessions.get_mut(&id) else { return };
        let path = Core::path(&live.session, stream.kind, stream.index);
        if stream.kind == TransportKind::Shm && !live.over && live.session.kinds.contains(&TransportKind::Tcp) {
            live.session.falls_back(Fallback::NotOpened, &self.core.counters);
        }
        if let Some(place) = live.streams.places.get_mut(&(stream.kind, stream.index)) {
            place.dialling = false;
            place.tried = true;
        }
        self.core.plan(RailSet::default(), |p, now| p.planner.handle_path_failed(path, Cause::PathFault, now));
        self.answer_waiters(id);
    }

    /// A peer dials one of its session's streams.
    pub(super) fn stream_hello(&mut self, key: usize, id: u64, token: [u8; 16], stream: StreamId, nic: u8) {
        let Some(conn) = self.conns.get(key) else { return };
        let over_unix = conn.from.is_none();
        let live = self.sessions.get_mut(&id).filter(|l| !l.over && l.token == token);
        let place = live.and_then(|l| l.streams.dialled(&l.session, (stream.kind, stream.index)));
        let Some(place) = place else {
            return self.refuse(key, RefuseCode::UnknownSession);
        };
        let old = place.barred.is_some_and(|b| stream.incarnation <= b) || stream.incarnation <= place.incarnation;
        if old || place.attached || over_unix != (stream.kind == TransportKind::Shm) {
            return self.refuse(key, RefuseCode::Fenced);
        }
        place.incarnation = stream.incarnation;
        place.nic = nic;
        let Some(conn) = self.conns.get_mut(key) else { return };
        if conn.pipe.send(&Message::StreamWelcome).is_err() || !conn.pipe.is_flushed() {
            return self.close(key);
        }
        self.attach(key, id, stream);
    }

    /// Hands a greeted stream to its worker.
    pub(super) fn attach(&mut self, key: usize, id: u64, stream: StreamId) {
        let Some(conn) = self.conns.try_remove(key) else { return };
        self.poller.remove(conn.pipe.fd());
        let Some(live) = self.sessions.get(&id).filter(|l| !l.over) else { return };
        let session = live.session.clone();
        let nic = live.streams.places.get(&(stream.kind, stream.index)).map_or(0, |place| place.nic);
        let sharing = live.streams.places.keys().filter(|(kind, _)| *kind == stream.kind).count();
        let inflow = self.attach_port(id, stream, nic, conn.pipe.socket());
        let nic = self.own.nics.as_ref().and_then(|nics| nics.all.get(usize::from(nic))).cloned();
        let nics = self.own.nics.as_ref().map_or(1, |nics| nics.all.len());
        let spec = path_spec(stream.kind, &session, (sharing / nics.max(1)) as u64);
        let rail = self.rail(conn.pipe.into_socket(), &session, stream, nic, inflow);
        let Some(place) = self.stream(id, (stream.kind, stream.index)) else { return };
        place.dialling = false;
        place.open_by = None;
        let fenced = place.barred.is_some_and(|b| stream.incarnation <= b);
        let Some(rail) = rail.filter(|_| !place.attached && !fenced) else {
            return self.stream_failed(id, stream);
        };
        place.attached = true;
        place.spec = Some(spec);
        place.fenced_there = false;
        let worker = self.core.worker_of(rail_of(stream.kind, stream.index));
        worker.post(worker::Message::Attach { rail, session, stream, spec });
    }

    /// The rail over a stream's socket, with the faults that are planned for it.
    fn rail(
        &self,
        socket: OwnedFd,
        session: &Session,
        stream: StreamId,
        nic: Option<Arc<Nic>>,
        inflow: Option<Arc<Inflow>>,
    ) -> Option<Box<dyn Rail>> {
        let owner = self.core.owner.clone();
        let salt = u64::from(rail_of(stream.kind, stream.index).0) << 32 | u64::from(stream.incarnation);
        let rail: Box<dyn Rail> = match stream.kind {
            TransportKind::Tcp => {
                // Buffers of an accepted socket; a failure costs speed, not correctness.
                let loopback = session.address.ip().is_loopback();
                let congestion = self.core.config.tcp_congestion.as_deref();
                let _ = tcp::tune_data(&socket2::SockRef::from(&socket), loopback, congestion);
                Box::new(tcp::rail(socket, owner, inflow))
            }
            TransportKind::Shm => {
                let rail = shm::rail(socket, owner);
                Box::new(rail.inspect_err(|error| tracing::warn!(?stream, %error, "a rail cannot be made")).ok()?)
            }
            TransportKind::Sim => {
                let rail = sim::rail(socket, owner, self.own.nic.clone()?, salt);
                Box::new(rail.inspect_err(|error| tracing::warn!(?stream, %error, "a rail cannot be made")).ok()?)
            }
            TransportKind::Rdma => {
                let clerk = Arc::clone(&self.own.nics.as_ref()?.clerk);
                let rail = rdma::rail(socket, owner, nic?, clerk, self.core.config.guard_leases);
                Box::new(rail.inspect_err(|error| tracing::warn!(?stream, %error, "a rail cannot be made")).ok()?)
            }
        };
        let hit = |plan: &&FaultPlan| plan.openings.is_none_or(|n| stream.incarnation <= n);
        Some(match self.core.config.faults.as_ref().filter(hit) {
            Some(plan) => Box::new(Faulty::new(rail, plan.clone(), salt)),
            None => rail,
        })
    }

    pub(super) fn attached(&mut self, id: u64, stream: StreamId) {
        if let Some(place) = self.stream(id, (stream.kind, stream.index)) {
            place.tried = true;
        }
        self.vouch_again(id, (stream.kind, stream.index));
        self.answer_waiters(id);
    }

    /// Connects resolve when every stream has come up or failed once.
    pub(super) fn answer_waiters(&mut self, id: u64) {
        let Some(live) = self.sessions.get_mut(&id).filter(|l| !l.over) else { return };
        // The listener's side cannot know when the dialler is done, nor how many there will be; one stream is enough there.
        let any = live.streams.places.values().any(|s| s.tried && s.attached);
        let known = live.session.dialler || !live.streams.places.is_empty();
        let all = known && live.streams.places.values().all(|s| s.tried);
        if all || (any && !live.session.dialler) {
            let session = live.session.clone();
            for waiter in live.waiters.drain(..) {
                waiter.give(if any { Ok(session.clone()) } else { Err(crate::ConnectError::NoTransport) });
            }
        }
    }

    /// The planner wants a path (again).
    pub(super) fn open(&mut self, path: PathId) {
        let Some(&id) = self.by_peer.get(&path.peer) else { return };
        let place @ (kind, index) = kind_of(path.local);
        let Some(live) = self.sessions.get_mut(&id).filter(|l| !l.over) else { return };
        let session = Arc::clone(&live.session);
        let Some(stream) = live.streams.places.get_mut(&place) else { return };
        if stream.attached {
            // It came up while the planner was not ready for it.
            let Some(spec) = stream.spec else { return };
            let up = |p: &mut crate::core::Plan, now| p.planner.handle_path_up(path, spec, now);
            if let (Err(error), _) = self.core.plan(RailSet::default(), up) {
                tracing::debug!(?path, %error, "a path that is up was not taken");
            }
        } else if session.dialler {
            self.dial_stream(id, place);
        } else {
            stream.open_by = Some(Instant::now() + (2 * TRY_FOR).min(self.core.config.connect_timeout));
            self.tell(id, &Message::OpenStream { kind, index });
        }
    }

    pub(super) fn open_for_peer(&mut self, id: u64, kind: TransportKind, index: u8) {
        if self.sessions.get(&id).is_some_and(|l| l.session.dialler) {
            self.dial_stream(id, (kind, index));
        }
    }

    pub(super) fn stream_timers(&mut self, id: u64, now: Instant) {
        let Some(live) = self.sessions.get_mut(&id) else { return };
        let session = live.session.clone();
        let late = live.streams.places.iter_mut().filter(|(_, s)| s.open_by.is_some_and(|at| at <= now));
        let late: Vec<Place> = late
            .map(|(place, stream)| {
                stream.open_by = None;
                *place
            })
            .collect();
        for (kind, index) in late {
            let path = Core::path(&session, kind, index);
            self.core.plan(RailSet::default(), |p, now| p.planner.handle_path_failed(path, Cause::PathFault, now));
        }
    }

    // ---- fencing

    fn tell_worker_to_close(&self, id: u64, stream: StreamId) {
        let worker = self.core.worker_of(rail_of(stream.kind, stream.index));
        worker.post(worker::Message::Detach { session: id, stream });
    }

    /// The planner has abandoned a path.
    pub(super) fn fence(&mut self, path: PathId) {
        let place @ (kind, index) = kind_of(path.local);
        let id = self.by_peer.get(&path.peer).copied();
        let Some(live) = id.and_then(|id| self.sessions.get_mut(&id)) else {
            // Buried: nothing of it is left.
            return self.report_fenced(path);
        };
        let (id, over) = (live.session.id, live.over);
        let Some(stream) = live.streams.places.get_mut(&place) else { return self.report_fenced(path) };
        stream.fencing = true;
        let closing = StreamId { kind, index, incarnation: stream.incarnation };
        stream.barred = Some(stream.incarnation);
        if stream.attached {
            self.tell_worker_to_close(id, closing);
        }
        if !over {
            self.tell(id, &Message::FenceStream(closing));
        }
        self.settle_fence(id, place);
    }

    /// The peer has abandoned a stream.
    pub(super) fn fence_for_peer(&mut self, id: u64, stream: StreamId) {
        let Some(place) = self.stream(id, (stream.kind, stream.index)) else { return };
        place.barred = place.barred.max(Some(stream.incarnation));
        if place.attached && place.incarnation <= stream.incarnation {
            place.peer_waits = Some(stream);
            let closing = StreamId { incarnation: place.incarnation, ..stream };
            self.tell_worker_to_close(id, closing);
        } else {
            self.tell(id, &Message::StreamFenced(stream));
        }
    }

    pub(super) fn fenced_by_peer(&mut self, id: u64, stream: StreamId) {
        if let Some(place) = self.stream(id, (stream.kind, stream.index))
            && place.barred.is_some_and(|b| stream.incarnation >= b)
        {
            place.fenced_there = true;
        }
        self.settle_fence(id, (stream.kind, stream.index));
    }

    /// A worker has closed a stream.
    pub(super) fn detached(&mut self, id: u64, stream: StreamId, linger: Option<OwnedFd>) {
        let Some(live) = self.sessions.get_mut(&id) else { return };
        let (over, path) = (live.over, Core::path(&live.session, stream.kind, stream.index));
        let place = (stream.kind, stream.index);
        let Some(state) = live.streams.places.get_mut(&place) else { return };
        if stream.incarnation == state.incarnation {
            state.attached = false;
        }
        let peer_waits = state.peer_waits.take();
        if let Some(socket) = linger {
            state.lingering = true;
            shm::say_farewell(&socket);
            let key = self.add(Pipe::new(socket), Role::Linger { session: id, stream }, None);
            if let Some(conn) = self.conns.get_mut(key) {
                conn.deadline = None;
            }
            self.pump(key);
        }
        if let Some(waiting) = peer_waits {
            self.tell(id, &Message::StreamFenced(waiting));
        }
        // Its queue pairs are destroyed: nothing waits for its word.
        self.review_notifications(id);
        if !over {
            self.core.plan(RailSet::default(), |p, now| p.planner.handle_path_failed(path, Cause::PathFault, now));
        }
        self.settle_fence(id, place);
    }

    /// The last socket of a shared-memory stream has ended: the peer copies no more.
    pub(super) fn lingered(&mut self, id: u64, stream: StreamId) {
        if let Some(place) = self.stream(id, (stream.kind, stream.index)) {
            place.lingering = false;
        }
        self.settle_fence(id, (stream.kind, stream.index));
    }

    fn settle_fence(&mut self, id: u64, place: Place) {
        let Some(live) = self.sessions.get_mut(&id) else { return };
        let (over, path) = (live.over, Core::path(&live.session, place.0, place.1));
        let Some(stream) = live.streams.places.get_mut(&place) else { return };
        let there = if over { !stream.lingering } else { stream.fenced_there };
        if stream.fencing && !stream.attached && there {
            stream.fencing = false;
            self.report_fenced(path);
        }
        self.bury(id);
    }

    /// The session is over: all its streams are closed.
    pub(super) fn close_streams(&mut self, id: u64) {
        let dials = |role: &Role| matches!(role, Role::Stream { session, .. } if *session == id);
        let keys: Vec<usize> = self.conns.iter().filter(|(_, c)| dials(&c.role)).map(|(key, _)| key).collect();
        for key in keys {
            self.close(key);
        }
        let Some(live) = self.sessions.get_mut(&id) else { return };
        let mut closing = Vec::new();
        for (&(kind, index), stream) in &mut live.streams.places {
            stream.dialling = false;
            stream.open_by = None;
            stream.peer_waits = None;
            if stream.attached {
                closing.push(StreamId { kind, index, incarnation: stream.incarnation });
            }
        }
        for stream in closing {
            self.tell_worker_to_close(id, stream);
        }
    }
}
