//! What the engine's threads and handles share: the planner behind its lock, the leases, the sessions, the mailboxes.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::config::EngineConfig;
use crate::mailbox::Mailbox;
use crate::notify::Notifications;
use crate::plan::{self, Action, Completion, Event, PathId, Planner, RailId, RailSet, SliceBatch, Time, TransferId};
use crate::session::control::Command;
use crate::session::lease::{LeaseState, LeaseTable};
use crate::session::peer::Session;
use crate::session::ticket::RANGES_MAX;
use crate::session::{LeaseError, LeaseRequest};
use crate::sync;
use crate::telemetry::{Counters, EngineStats, count};
use crate::transfer::{Cancel, RailBytes, Report, Shared, TransferError, is_small};
use crate::transport::fault::Flipper;
use crate::transport::{Job, Owner, TransportKind};
use crate::worker;

/// Wire time of a slice.
const SLICE_TIME: Duration = Duration::from_micros(400);
/// A path that is alone has slices that take so many times as long: they cost a system call or two each, and priorities are still felt.
/// Those of a fast path end at the transport's limit before.
const ALONE_FACTOR: u32 = 16;
/// The control thread is woken for a planner's timer only where it would be this late otherwise: timers move with every
/// slice, and workers look at them in passing.
const TIMER_SLACK: Duration = Duration::from_millis(2);

/// Streams of a transport to a peer, at most. Each transport has as many rails of its own.
pub(crate) const STREAMS_MAX: u8 = 32;

pub(crate) fn rail_of(kind: TransportKind, index: u8) -> RailId {
    let first = match kind {
        TransportKind::Tcp => 0,
        TransportKind::Shm => STREAMS_MAX,
        TransportKind::Sim => 2 * STREAMS_MAX,
        TransportKind::Rdma => 3 * STREAMS_MAX,
    };
    RailId(first + index)
}

pub(crate) fn kind_of(rail: RailId) -> (TransportKind, u8) {
    let kind = match rail.0 / STREAMS_MAX {
        0 => TransportKind::Tcp,
        1 => TransportKind::Shm,
        2 => TransportKind::Sim,
        _ => TransportKind::Rdma,
    };
    (kind, rail.0 % STREAMS_MAX)
}

/// A transfer that is not quiesced.
struct Active {
    job: Arc<Job>,
    shared: Arc<Shared>,
    session: Arc<Session>,
    notify: Option<Bytes>,
    deadline: Instant,
}

/// The planner and what belongs to its transfers, behind one lock.
///
/// Workers take it once for a batch of completions and slices (some thousand times a second at most, for microseconds),
/// never for a block or a frame.
pub(crate) struct Plan {
    pub(crate) planner: Planner,
    active: Vec<Option<Active>>,
}

impl Plan {
    /// The job of a transfer that slices are handed out for.
    pub(crate) fn job(&self, id: TransferId) -> Option<Arc<Job>> {
        self.active.get(id.index())?.as_ref().map(|a| Arc::clone(&a.job))
    }
}

/// What the planner wanted said, taken out under the lock and done outside of it.
#[derive(Default)]
struct Orders {
    finished: Vec<(Arc<Shared>, Report)>,
    notifies: Vec<Command>,
    quiesced: Vec<Arc<Shared>>,
    actions: Vec<Action>,
    wakes: RailSet,
    timeout: Option<Time>,
    /// Peers are to be told what is sent to them.
    credits: bool,
}

pub(crate) struct Core {
    pub(crate) config: EngineConfig,
    pub(crate) generation: u64,
    pub(crate) local_addr: SocketAddr,
    pub(crate) owner: Arc<Owner>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) notifications: Notifications,
    /// Live sessions by the peer's generation.
    pub(crate) sessions: Mutex<HashMap<u64, Arc<Session>>>,
    pub(crate) workers: Vec<worker::Handle>,
    pub(crate) control: Mailbox<Command>,
    pub(crate) stopping: AtomicBool,
    /// Set when the last thread has ended.
    pub(crate) stopped: Arc<sync::Event>,
    /// The planner has something to say of credits.
    pub(crate) credits_due: AtomicBool,
    /// The control thread will look at that before it sleeps.
    pub(crate) control_is_up: AtomicBool,
    threads: AtomicUsize,
    plan: Mutex<Plan>,
    origin: Instant,
    /// Workers were not told of something that the first one, driven by a caller, was to do.
    others_sleep: AtomicBool,
    /// When the control thread will wake by itself, in planner time; `u64::MAX` for never.
    pub(crate) control_wakes_at: std::sync::atomic::AtomicU64,
}

impl Core {
    pub(crate) fn new(
        config: EngineConfig,
        local_addr: SocketAddr,
        workers: Vec<worker::Handle>,
        control: Mailbox<Command>,
    ) -> Arc<Self> {
        let generation = crate::random::u64();
        let counters = Arc::new(Counters::default());
        let leases = LeaseTable::new(config.leases_max);
        // Kernel sockets and copies cost more a slice than a NIC's work request does: bigger slices, and no small ones where
        // the rate is low because the processor is short.
        let planner = plan::Config {
            slice_time: SLICE_TIME,
            alone_factor: ALONE_FACTOR,
            transfers_max: config.transfers_max,
            ignores_limits: config.faults.as_ref().is_some_and(|faults| faults.ignores_limits),
            ..plan::Config::default()
        };
        let mut planner = Planner::new(planner, generation);
        for (tenant, weight) in &config.tenant_weights {
            planner.set_tenant_weight(*tenant, *weight);
        }
        Arc::new(Self {
            generation,
            local_addr,
            owner: Arc::new(Owner {
                generation,
                leases,
                counters: Arc::clone(&counters),
                flipper: Flipper::of(config.faults.as_ref()),
                copy_gate: config.faults.as_ref().and_then(|plan| plan.copy_gate.clone()),
            }),
            counters,
            notifications: Notifications::new(config.notifications_max),
            sessions: Mutex::default(),
            credits_due: AtomicBool::new(false),
            control_is_up: AtomicBool::new(false),
            threads: AtomicUsize::new(workers.len() + 1),
            workers,
            control,
            stopping: AtomicBool::new(false),
            stopped: Arc::default(),
            plan: Mutex::new(Plan { planner, active: Vec::new() }),
            origin: Instant::now(),
            others_sleep: AtomicBool::new(false),
            control_wakes_at: 0.into(),
            config,
        })
    }

    pub(crate) fn now(&self) -> Time {
        self.time(Instant::now())
    }

    pub(crate) fn time(&self, at: Instant) -> Time {
        Time(u64::try_from(at.saturating_duration_since(self.origin).as_nanos()).unwrap_or(u64::MAX))
    }

    pub(crate) fn instant(&self, at: Time) -> Instant {
        self.origin.checked_add(Duration::from_nanos(at.0)).unwrap_or(self.origin)
    }

    /// Runs `f` on the planner, then does what the planner wants done. Rails of `own` that have something to do are
    /// returned, those of other workers are woken.
    pub(crate) fn plan<R>(&self, own: RailSet, f: impl FnOnce(&mut Plan, Time) -> R) -> (R, RailSet) {
        self.plan_at(Instant::now(), own, f)
    }

    /// The same for who has looked at the clock: that is a system call on some machines.
    pub(crate) fn plan_at<R>(&self, now: Instant, own: RailSet, f: impl FnOnce(&mut Plan, Time) -> R) -> (R, RailSet) {
        let now = self.time(now);
        let (result, orders) = {
            let mut plan = self.plan.lock();
            let result = f(&mut plan, now);
            // After what `f` heard: a late look at the clock must not take our own sleep for a peer's.
            if plan.planner.poll_timeout().is_some_and(|due| due <= now) {
                plan.planner.handle_timeout(now);
            }
            (result, self.collect(&mut plan, now))
        };
        let wakes = orders.wakes;
        self.carry_out(orders, own);
        (result, RailSet(wakes.0 & own.0))
    }

    /// When the planner's next timer is due.
    pub(crate) fn next_timeout(&self) -> Option<Time> {
        self.plan.lock().planner.poll_timeout()
    }

    fn collect(&self, plan: &mut Plan, now: Time) -> Orders {
        let credits = plan.planner.review_accounts(now);
        let mut orders = Orders { wakes: plan.planner.poll_wakes(), credits, ..Orders::default() };
        while let Some(event) = plan.planner.poll_event() {
            match event {
                Event::Done(id, report) => {
                    let Some(active) = plan.active.get_mut(id.index()).and_then(Option::as_mut) else { continue };
                    let report = self.translate(*report);
                    count(&self.counters.bytes_moved, report.bytes);
                    count(&self.counters.bytes_retried, report.retried_bytes);
                    match active.notify.take() {
                        Some(payload) if report.status.is_ok() => orders.notifies.push(Command::Notify {
                            session: Arc::clone(&active.session),
                            payload,
                            deadline: active.deadline,
                            report: Box::new(report),
                            shared: Arc::clone(&active.shared),
                        }),
                        _ => orders.finished.push((Arc::clone(&active.shared), report)),
                    }
                }
                Event::Quiesced(id) => {
                    if let Some(active) = plan.active.get_mut(id.index()).and_then(Option::take) {
                        orders.quiesced.push(active.shared);
                    }
                }
            }
        }
        while let Some(action) = plan.planner.poll_action() {
            orders.actions.push(action);
        }
        orders.timeout = plan.planner.poll_timeout();
        orders
    }

    fn translate(&self, report: plan::Report) -> Report {
        let memory_is_free = !report.lent;
        Report {
            status: report.status.map_err(|failure| TransferError { kind: failure.into(), memory_is_free }),
            ops: report.ops,
            bytes: report.bytes,
            retried_bytes: report.retried_bytes,
            bytes_by_rail: report
                .bytes_by_path
                .into_iter()
                .map(|(path, bytes)| {
                    let (transport, stream) = kind_of(path.local);
                    RailBytes { transport, stream, bytes }
                })
                .collect(),
            queued: report.queued,
            wire: report.wire,
            last_landed: report.last_landed.map(|at| self.instant(at)),
        }
    }

    fn carry_out(&self, orders: Orders, own: RailSet) {
        // Memory first: who awaits the report may look at `quiesce` at once.
        orders.quiesced.iter().for_each(|shared| shared.quiesced());
        for (shared, report) in orders.finished {
            shared.finish(report);
        }
        // At most one for each transfer.
        orders.notifies.into_iter().for_each(|n| self.control.post(n));
        // At most one fence and one opening outstanding for each path.
        orders.actions.into_iter().for_each(|a| self.control.post(Command::Action(a)));
        let others = |worker: &&worker::Handle| orders.wakes.0 & worker.rails.0 & !own.0 != 0;
        self.workers.iter().filter(others).for_each(worker::Handle::kick);
        if orders.credits {
            self.credits_due.store(true, Ordering::SeqCst);
            if !self.control_is_up.load(Ordering::SeqCst) {
                self.control.wake();
            }
        }
        let wakes_at = self.control_wakes_at.load(Ordering::Acquire);
        if orders.timeout.is_some_and(|at| (at + TIMER_SLACK).0 < wakes_at) {
            self.control.wake();
        }
    }

    pub(crate) fn worker_of(&self, rail: RailId) -> &worker::Handle {
        &self.workers[usize::from(kind_of(rail).1) % self.workers.len()]
    }

    /// A worker's round: what ended, then what its rails have room for.
    pub(crate) fn exchange(
        &self,
        now: Instant,
        own: RailSet,
        completions: &[Completion],
        rooms: &[(RailId, usize)],
        batch: &mut SliceBatch,
        jobs: &mut Vec<Option<Arc<Job>>>,
    ) -> RailSet {
        let ((), wakes) = self.plan_at(now, own, |plan, now| {
            if !completions.is_empty() {
                plan.planner.handle_completions(completions, now);
            }
            for (rail, room) in rooms {
                plan.planner.poll_slices(*rail, *room, now, batch);
            }
            jobs.extend(batch.slices.iter().map(|slice| plan.job(slice.transfer)));
        });
        wakes
    }

    /// Rails whose workers need not be woken for so many bytes: where callers drive the first worker, it does a small transfer alone.
    fn spared(&self, bytes: u64, now: Instant) -> RailSet {
        let first = &self.workers[0];
        if self.workers.len() == 1 || !is_small(bytes) || !first.is_driven(|| self.time(now)) {
            return RailSet::default();
        }
        self.others_sleep.store(true, Ordering::Release);
        RailSet(!first.rails.0)
    }

    /// The first worker is driven no longer: what it did not do is for all.
    pub(crate) fn wake_spared(&self) {
        if self.others_sleep.swap(false, Ordering::AcqRel) {
            self.workers.iter().for_each(worker::Handle::kick);
        }
    }

    /// Hands an accepted request to the planner.
    pub(crate) fn submit(
        &self,
        session: &Arc<Session>,
        request: plan::Request,
        bytes: u64,
        job: Arc<Job>,
        notify: Option<Bytes>,
        deadline: Instant,
    ) -> Result<(TransferId, Arc<Shared>), plan::SubmitError> {
        let at = Instant::now();
        let (result, _) = self.plan_at(at, self.spared(bytes, at), |plan, now| {
            let id = plan.planner.submit(request, now)?;
            let shared = Arc::<Shared>::default();
            if plan.active.len() <= id.index() {
                plan.active.resize_with(id.index() + 1, || None);
            }
            let session = Arc::clone(session);
            plan.active[id.index()] = Some(Active { job, shared: Arc::clone(&shared), session, notify, deadline });
            Ok((id, shared))
        });
        result
    }

    pub(crate) fn path(session: &Session, kind: TransportKind, index: u8) -> PathId {
        let rail = rail_of(kind, index);
        PathId { peer: session.peer, local: rail, remote: rail }
    }

    pub(crate) fn grant(&self, request: LeaseRequest<'_>) -> Result<Arc<LeaseState>, LeaseError> {
        if self.stopping.load(Ordering::Acquire) {
            return Err(LeaseError::Stopped);
        }
        let lease = self.owner.leases.grant(request, RANGES_MAX, Instant::now())?;
        if self.time(lease.deadline).0 < self.control_wakes_at.load(Ordering::Acquire) {
            self.control.wake();
        }
        Ok(lease)
    }

    pub(crate) fn revoke(&self, lease: &LeaseState) {
        if lease.revoke() {
            self.fence_workers();
        }
    }

    /// Has every worker let go of memory whose lease has been revoked.
    pub(crate) fn fence_workers(&self) {
        self.workers.iter().for_each(worker::Handle::fence);
    }

    pub(crate) fn stats(&self) -> EngineStats {
        let (transfers, lent) = {
            let plan = self.plan.lock();
            let all = plan.active.iter().flatten();
            let done = all.clone().filter(|a| a.shared.is_done()).count();
            (all.count() - done, done)
        };
        let mut stats = EngineStats {
            peers: self.sessions.lock().len() as u64,
            leases: self.owner.leases.len() as u64,
            leases_quarantined: self.owner.leases.quarantined() as u64,
            transfers: transfers as u64,
            transfers_lent: lent as u64,
            ..EngineStats::default()
        };
        self.counters.read_into(&mut stats);
        stats
    }

    /// Tells all threads to end.
    pub(crate) fn stop(&self) {
        if !self.stopping.swap(true, Ordering::AcqRel) {
            self.control.wake();
            self.workers.iter().for_each(worker::Handle::kick);
        }
    }

    /// Called by each thread as its last act; the last one reports what is left as stopped.
    pub(crate) fn thread_ended(&self) {
        if self.threads.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        // What was posted to a thread that had ended: a stream whose other end waits for it to close, somebody who waits.
        self.workers.iter().for_each(worker::Handle::clear);
        self.control.take().into_iter().for_each(Command::abandon);
        let left: Vec<Active> = self.plan.lock().active.drain(..).flatten().collect();
        for active in left {
            active.shared.stopped();
        }
        self.stopped.set();
    }
}

impl Cancel for Core {
    fn cancel(&self, id: TransferId) {
        self.plan(RailSet::default(), |plan, now| plan.planner.cancel(id, now));
    }

    fn drive(&self, done: &sync::Event) {
        self.workers[0].drive(self, done);
        if !done.is_set() {
            self.wake_spared();
        }
    }
}
