//! Worker threads: each owns its streams and moves their bytes.
//!
//! A round: messages, fences, progress of what is ready, then one exchange with the planner (what ended, what there is
//! room for), then sleep in epoll if nothing moved. A caller that waits may drive in the thread's place ([`Seat`]); no stream is ever
//! touched by two threads at once.
//!
//! Streams whose peer speaks through memory are looked at without a system call while somebody looks, and told to ring before the thread
//! sleeps in epoll (`doze`). Whoever touches a stream after that ends their sleep, and has them doze again if it leaves while the
//! thread is still asleep.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use foldhash::HashMap;
use parking_lot::{Mutex, MutexGuard};
use slab::Slab;

use crate::core::{Core, STREAMS_MAX, rail_of};
use crate::mailbox::Mailbox;
use crate::plan::{Cause, Completion, Fate, Outcome, PathId, PathSpec, RailId, RailSet, SliceBatch, Time};
use crate::seat::Seat;
use crate::session::control::Command;
use crate::session::peer::Session;
use crate::session::wire::StreamId;
use crate::spin::Spin;
use crate::sync::Event;
use crate::telemetry::{Rejection, count};
use crate::transport::sys::{Poller, Readiness, Waker};
use crate::transport::{Job, Post, Rail, RailError, TransportKind};

/// Longest that a caller drives: what its transfer waits for is the work of others then.
const STINT: Duration = Duration::from_millis(10);
/// Looks at memory between two at the descriptors, where some streams' peers speak through memory.
const LOOKS: u32 = 256;
/// And longest that descriptors are not looked at while there is always something in memory.
const UNSEEN: Duration = Duration::from_micros(50);
/// Looks between two at the clock, for who drives; where something moved fewer, for it may have been much.
const LOOKS_A_CLOCK: u32 = 16;
const MOVES_A_CLOCK: u32 = 4;

/// What the control thread tells a worker. At most one of each for each stream of a session.
pub(crate) enum Message {
    /// A stream is up and yours.
    Attach { rail: Box<dyn Rail>, session: Arc<Session>, stream: StreamId, spec: PathSpec },
    /// It is to vouch for what it has brought; one for each notification.
    Vouch { session: u64, kind: TransportKind, index: u8, word: u32 },
    /// Close it; say `Detached` when nothing of it can touch memory here.
    Detach { session: u64, stream: StreamId },
}

/// A worker as other threads see it.
pub(crate) struct Handle {
    /// Rails that are its own.
    pub(crate) rails: RailSet,
    mailbox: Mailbox<Message>,
    fence: AtomicBool,
    seat: Seat<Worker>,
    /// What streams are ready for, whoever was told of it, by key.
    ready: Mutex<Vec<(u64, Readiness)>>,
    /// The thread sleeps in its poller, or is about to. Set by it in its seat.
    asleep: AtomicBool,
}

impl Handle {
    /// Of worker number `index` of so many.
    pub(crate) fn new(waker: Waker, index: usize, workers: usize) -> Self {
        Self {
            rails: rails(index, workers),
            mailbox: Mailbox::new(waker),
            fence: AtomicBool::new(false),
            seat: Seat::default(),
            ready: Mutex::default(),
            asleep: AtomicBool::new(false),
        }
    }

    pub(crate) fn post(&self, message: Message) {
        self.mailbox.leave(message);
        self.kick();
    }

    /// Drops what was posted; for when the worker has ended.
    pub(crate) fn clear(&self) {
        drop(self.mailbox.take());
    }

    /// There may be something to send.
    pub(crate) fn kick(&self) {
        if self.mailbox.mark() && !self.seat.is_alert() {
            self.mailbox.rouse();
        }
    }

    /// Leases were revoked.
    pub(crate) fn fence(&self) {
        self.fence.store(true, Ordering::Release);
        self.kick();
    }

    /// Whether a caller drives it, or did a moment ago.
    pub(crate) fn is_driven(&self, now: impl FnOnce() -> Time) -> bool {
        self.seat.is_a_callers(now)
    }

    /// The worker's thread, until the engine stops.
    pub(crate) fn run(&self, worker: Worker) {
        let core = Arc::clone(&worker.core);
        let mut poller = worker.poller.twin();
        self.seat.furnish(worker);
        let (mut spin, mut rested) = (Spin::default(), false);
        while !core.stopping.load(Ordering::Acquire) {
            if let Err(error) = self.turn(&core, &mut poller, &mut spin, &mut rested) {
                tracing::error!(%error, "a transfer worker cannot wait for its streams and ends");
                core.stop();
            }
        }
        // Streams go first: what they pinned is let go before anybody is told that the engine has stopped.
        drop(self.seat.clear());
        core.thread_ended();
    }

    /// One turn of the thread: a round and sleep, or rest where a caller drives.
    fn turn(&self, core: &Core, poller: &mut Poller, spin: &mut Spin, rested: &mut bool) -> std::io::Result<()> {
        let seat = if self.seat.is_a_callers(|| core.now()) { None } else { self.seat.sit() };
        let Some(mut seat) = seat else {
            self.seat.rest();
            *rested = true;
            return Ok(());
        };
        if std::mem::take(rested) {
            core.wake_spared();
            let was_warm = self.seat.was_left_warm();
            self.watch(poller, Some(Duration::ZERO))?;
            if was_warm && seat.as_ref().is_some_and(|worker| worker.is_awaited(&self.ready.lock())) {
                self.seat.made_a_peer_wait(core.now());
            }
        }
        let Some(worker) = seat.as_mut() else { return Ok(()) };
        let sleep = worker.round(self);
        let patience = core.config.spin;
        let looks = worker.is_between() && sleep.is_none_or(|sleep| sleep > patience) && !patience.is_zero();
        if looks && spin.pays() {
            // Memory is looked at by who has the seat, and then nobody is kept out of it for longer than a look.
            let held = (worker.in_memory > 0).then_some(seat);
            let came = self.seat.alert(|| self.look(core, poller, held))?;
            if came || self.mailbox.is_marked() {
                spin.hit();
                return Ok(());
            }
            spin.missed();
            // Whoever took it meanwhile has the streams now.
            let Some(again) = self.seat.sit() else { return Ok(()) };
            seat = again;
        }
        let Some(worker) = seat.as_mut() else { return Ok(()) };
        if sleep.is_none_or(|sleep| !sleep.is_zero()) {
            // Also for streams that a caller is handed meanwhile.
            self.asleep.store(true, Ordering::SeqCst);
            if worker.doze() || worker.is_ready() {
                self.asleep.store(false, Ordering::SeqCst);
                return Ok(());
            }
        }
        drop(seat);
        let watched = self.watch(poller, sleep);
        self.asleep.store(false, Ordering::SeqCst);
        watched.map(drop)
    }

    /// Waits for streams and callers. True: a stream is ready.
    fn watch(&self, poller: &mut Poller, timeout: Option<Duration>) -> std::io::Result<bool> {
        let mut came = false;
        poller.wait(timeout, |key, is| {
            self.ready.lock().push((key, is));
            came = true;
        })?;
        Ok(came)
    }

    /// Looks for a while, without sleeping, whether something comes: at memory too, in the seat.
    fn look(
        &self,
        core: &Core,
        poller: &mut Poller,
        mut held: Option<MutexGuard<'_, Option<Worker>>>,
    ) -> std::io::Result<bool> {
        let since = Instant::now();
        if let Some(worker) = held.as_deref_mut().and_then(Option::as_mut) {
            worker.keep_time(since);
        }
        while !self.mailbox.is_marked() {
            let worker = held.as_deref_mut().and_then(Option::as_mut);
            let is_due = match worker {
                Some(worker) if worker.looks < LOOKS && worker.is_called() => return Ok(true),
                Some(worker) => worker.turns_to_descriptors(),
                None => true,
            };
            if is_due && self.watch(poller, Some(Duration::ZERO))? {
                return Ok(true);
            }
            if self.seat.is_a_callers(|| core.now()) || (is_due && since.elapsed() >= core.config.spin) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Moves bytes on the caller's thread, until `done` is set, nothing has moved for a while, or it has moved enough of others.
    pub(crate) fn drive(&self, core: &Core, done: &Event) {
        let (patience, since) = (core.config.spin, Instant::now());
        let Some(caller) = self.seat.apply(core.time(since)).filter(|_| !patience.is_zero()) else { return };
        let (mut seat, mut looks, mut is_over) = (None, 0, false);
        let (mut last, mut moved, mut has_moved) = (since, since, false);
        while !done.is_set() && !is_over {
            if seat.is_none() {
                seat = self.seat.sit();
                if let Some(worker) = seat.as_deref_mut().and_then(Option::as_mut) {
                    worker.keep_time(last);
                }
            }
            let worker = seat.as_deref_mut().and_then(Option::as_mut);
            let moves = worker.is_some_and(|worker| worker.glance(self));
            has_moved |= moves;
            looks += if moves { LOOKS_A_CLOCK / MOVES_A_CLOCK } else { 1 };
            if looks >= LOOKS_A_CLOCK {
                (looks, last) = (0, Instant::now());
                if std::mem::take(&mut has_moved) {
                    moved = last;
                }
                is_over = last - moved >= patience || moved - since >= STINT || core.stopping.load(Ordering::Acquire);
                if let Some(worker) = seat.as_deref_mut().and_then(Option::as_mut) {
                    worker.keep_time(last);
                }
            }
        }
        if let Some(worker) = seat.as_deref_mut().and_then(Option::as_mut)
            && self.asleep.load(Ordering::SeqCst)
            && (worker.doze() || worker.is_ready())
        {
            // The thread counts on being told.
            self.kick();
        }
        drop(seat);
        if done.is_set() {
            // Some looks old at most: not worth another at the clock.
            caller.leave_warm(core.time(last));
        }
    }
}

/// Rails of a worker: every stream index that falls to it, of all transports.
fn rails(worker: usize, workers: usize) -> RailSet {
    let mut set = RailSet::default();
    for index in (worker..usize::from(STREAMS_MAX)).step_by(workers) {
        TransportKind::ALL.iter().for_each(|kind| set.insert(rail_of(*kind, index as u8)));
    }
    set
}

struct Slot {
    rail: Box<dyn Rail>,
    session: Arc<Session>,
    stream: StreamId,
    path: PathId,
    ready: bool,
    /// Its peer speaks through memory.
    in_memory: bool,
}

impl Slot {
    fn is_called(&self) -> bool {
        self.in_memory && self.rail.calls()
    }
}

pub(crate) struct Worker {
    core: Arc<Core>,
    own: RailSet,
    poller: Poller,
    slots: Slab<Slot>,
    by_path: HashMap<PathId, usize>,
    batch: SliceBatch,
    jobs: Vec<Option<Arc<Job>>>,
    completions: Vec<Completion>,
    rooms: Vec<(RailId, usize)>,
    /// The planner may have something for us.
    hungry: bool,
    /// Streams whose peers speak through memory.
    in_memory: usize,
    /// These have been told that we sleep.
    dozing: bool,
    /// Looks at memory since the last at descriptors, and when it was noted last that these had their turn.
    looks: u32,
    seen: Instant,
}

impl Worker {
    pub(crate) fn new(core: Arc<Core>, own: RailSet, poller: Poller) -> Self {
        Self {
            own,
            core,
            poller,
            slots: Slab::new(),
            by_path: HashMap::default(),
            batch: SliceBatch::default(),
            jobs: Vec::new(),
            completions: Vec::new(),
            rooms: Vec::new(),
            hungry: false,
            in_memory: 0,
            dozing: false,
            looks: 0,
            seen: Instant::now(),
        }
    }

    /// Whether a stream has more to do.
    fn is_ready(&self) -> bool {
        self.slots.iter().any(|(_, slot)| slot.ready)
    }

    /// Whether a peer has said something in memory.
    fn is_called(&self) -> bool {
        self.in_memory > 0 && self.slots.iter().any(|(_, slot)| slot.is_called())
    }

    /// Whether a peer has said something, of all that is `ready`. Of a peer that speaks through memory a descriptor says only that it has
    /// rung, which it may have done for what a caller has served since.
    fn is_awaited(&self, ready: &[(u64, Readiness)]) -> bool {
        let is_word = |key: u64| self.slots.get(key as usize).is_some_and(|slot| !slot.in_memory);
        self.is_called() || ready.iter().any(|(key, _)| is_word(*key))
    }

    /// Counts a look at memory. True: descriptors are next.
    fn turns_to_descriptors(&mut self) -> bool {
        self.looks += 1;
        let is_due = self.in_memory == 0 || self.looks > LOOKS;
        if is_due {
            self.looks = 0;
        }
        is_due
    }

    /// Descriptors are next if they have waited for long, whatever there is in memory.
    fn keep_time(&mut self, now: Instant) {
        if now.saturating_duration_since(self.seen) >= UNSEEN {
            (self.looks, self.seen) = (LOOKS, now);
        }
    }

    /// Has all peers ring from here on. True: one has said something before it knew.
    fn doze(&mut self) -> bool {
        self.dozing = self.in_memory > 0;
        // All of them, whatever the first says.
        self.slots.iter_mut().filter(|(_, slot)| slot.in_memory).fold(false, |any, (_, slot)| slot.rail.doze() || any)
    }

    /// Peers need not ring: somebody looks.
    fn rouse(&mut self) {
        if std::mem::take(&mut self.dozing) {
            self.slots.iter_mut().filter(|(_, slot)| slot.in_memory).for_each(|(_, slot)| slot.rail.rouse());
        }
    }

    /// Messages, fences, progress of what is ready, one exchange with the planner. How long there is nothing to do then, if
    /// nobody calls: for ever where there is no bound.
    fn round(&mut self, me: &Handle) -> Option<Duration> {
        self.rouse();
        for (key, is) in me.ready.lock().drain(..) {
            if let Some(slot) = self.slots.get_mut(key as usize) {
                slot.rail.ready(is);
                slot.ready = true;
            }
        }
        if me.mailbox.listen() {
            self.hungry = true;
            if me.fence.swap(false, Ordering::AcqRel) {
                self.slots.iter_mut().for_each(|(_, slot)| slot.rail.fence());
            }
            for message in me.mailbox.take() {
                self.handle(message);
            }
        }
        if self.slots.iter().any(|(_, slot)| slot.ready || slot.is_called() || slot.rail.wake_at().is_some()) {
            self.progress(Instant::now());
        }
        // What was handed out goes on its way before anything else is looked at.
        if let Some(now) = self.exchange() {
            self.progress(now);
            self.exchange();
        }
        if !self.completions.is_empty() || self.slots.iter().any(|(_, slot)| slot.ready || slot.is_called()) {
            return Some(Duration::ZERO);
        }
        let next = self.slots.iter().filter_map(|(_, slot)| slot.rail.wake_at()).min();
        next.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// Looks once, without sleeping, and does what there is to do. False: nothing.
    fn glance(&mut self, me: &Handle) -> bool {
        self.rouse();
        let called = self.is_called();
        let came = self.turns_to_descriptors()
            // An error is the thread's to find.
            && (me.watch(&mut self.poller, Some(Duration::ZERO)).unwrap_or(false) || !me.ready.lock().is_empty());
        // The mark last: looking at descriptors may have taken the wake-up that came with it.
        if called || came || me.mailbox.is_marked() || self.is_ready() {
            self.round(me);
            return true;
        }
        false
    }

    /// No payload is half here: what comes next is likely something new.
    fn is_between(&self) -> bool {
        self.slots.iter().all(|(_, slot)| !slot.rail.is_mid_payload())
    }

    fn handle(&mut self, message: Message) {
        match message {
            Message::Attach { rail, session, stream, spec } => {
                let path = Core::path(&session, stream.kind, stream.index);
                let entry = self.slots.vacant_entry();
                let key = entry.key();
                let watched = self.poller.add(rail.readiness(), key as u64);
                let in_memory = rail.is_in_memory();
                self.in_memory += usize::from(in_memory);
                entry.insert(Slot { rail, session, stream, path, ready: true, in_memory });
                self.by_path.insert(path, key);
                count(&self.core.counters.streams, 1);
                match watched {
                    Ok(()) => {
                        // Refused while an older opening is being fenced: the planner asks for the path when it is done.
                        let (_, wakes) = self.core.plan(self.own, |p, now| p.planner.handle_path_up(path, spec, now));
                        self.hungry |= !wakes.is_empty();
                        self.core.control.post(Command::Attached { session: self.slots[key].session.id, stream });
                    }
                    Err(error) => self.fail(key, &RailError::Os(error)),
                }
            }
            Message::Vouch { session, kind, index, word } => {
                let is_it = |s: &Slot| s.session.id == session && (s.stream.kind, s.stream.index) == (kind, index);
                // Gone: the peer's end goes too, which vouches as well.
                if let Some((_, slot)) = self.slots.iter_mut().find(|(_, slot)| is_it(slot)) {
                    slot.rail.vouch(word);
                    slot.ready = true;
                }
            }
            Message::Detach { session, stream } => {
                let found = self.slots.iter().find(|(_, s)| s.session.id == session && s.stream == stream);
                match found.map(|(key, _)| key) {
                    Some(key) => self.detach(key),
                    // It ended by itself just before; that was said already.
                    None => self.core.control.post(Command::Detached { session, stream, linger: None }),
                }
            }
        }
    }

    /// Closes a stream and tells the control thread, once nothing of it can touch memory here.
    fn detach(&mut self, key: usize) {
        let slot = self.slots.remove(key);
        self.in_memory -= usize::from(slot.in_memory);
        if self.by_path.get(&slot.path) == Some(&key) {
            self.by_path.remove(&slot.path);
        }
        self.core.counters.streams.fetch_sub(1, Ordering::Relaxed);
        let linger: Option<OwnedFd> = slot.rail.close();
        self.core.control.post(Command::Detached { session: slot.session.id, stream: slot.stream, linger });
    }

    fn fail(&mut self, key: usize, error: &RailError) {
        let Some(slot) = self.slots.get(key) else { return };
        let (path, stream) = (slot.path, slot.stream);
        match error {
            RailError::Protocol(reason) => {
                self.core.counters.reject(Rejection::Stream);
                tracing::warn!(peer = slot.session.generation, ?stream, reason, "a peer broke the protocol");
            }
            RailError::Overdrawn => self.core.control.post(Command::Overdrawn { session: slot.session.id }),
            error => tracing::debug!(peer = slot.session.generation, ?stream, %error, "a stream ended"),
        }
        self.detach(key);
        let (_, wakes) = self.core.plan(self.own, |p, now| p.planner.handle_path_failed(path, Cause::PathFault, now));
        self.hungry |= !wakes.is_empty();
    }

    fn progress(&mut self, now: Instant) {
        let mut failed = Vec::new();
        for (key, slot) in &mut self.slots {
            if slot.ready || slot.is_called() || slot.rail.wake_at().is_some_and(|at| at <= now) {
                match slot.rail.progress(now) {
                    Ok(more) => slot.ready = more,
                    Err(error) => failed.push((key, error)),
                }
                self.completions.extend(std::iter::from_fn(|| slot.rail.completion()));
                if let Some(word) = slot.rail.vouched()
                    && slot.session.has_vouched((slot.stream.kind, slot.stream.index), word)
                {
                    self.core.control.post(Command::Vouched { session: slot.session.id });
                }
            }
        }
        for (key, error) in failed {
            self.fail(key, &error);
        }
    }

    /// Tells the planner what ended, and takes what there is room for; when that was something.
    fn exchange(&mut self) -> Option<Instant> {
        let mut posted = None;
        loop {
            self.rooms.clear();
            if self.hungry || !self.completions.is_empty() {
                for (_, slot) in &self.slots {
                    let room = slot.rail.room();
                    match self.rooms.iter_mut().find(|(rail, _)| *rail == slot.path.local) {
                        Some((_, sum)) => *sum += room,
                        None if room > 0 => self.rooms.push((slot.path.local, room)),
                        None => {}
                    }
                }
            }
            if self.completions.is_empty() && self.rooms.is_empty() {
                return posted;
            }
            let wanted: usize = self.rooms.iter().map(|(_, room)| room).sum();
            self.batch.clear();
            self.jobs.clear();
            let now = Instant::now();
            let (ended, rooms) = (&self.completions, &self.rooms);
            let wakes = self.core.exchange(now, self.own, ended, rooms, &mut self.batch, &mut self.jobs);
            self.completions.clear();
            // Handed out all that was asked for: there may be more when there is room again.
            self.hungry = !wakes.is_empty() || self.batch.slices.len() >= wanted;
            if self.batch.slices.is_empty() {
                return posted;
            }
            self.post(now);
            posted = Some(now);
        }
    }

    fn post(&mut self, now: Instant) {
        for (slice, job) in self.batch.slices.iter().zip(&self.jobs) {
            let posted = match (self.by_path.get(&slice.path).and_then(|key| self.slots.get_mut(*key)), job) {
                (Some(slot), Some(job)) => {
                    slot.ready = true;
                    let pieces = self.batch.pieces(slice);
                    let post = Post { id: slice.id, job, direction: slice.direction, pieces, bytes: slice.bytes };
                    let taken = slot.rail.submit(&post, now).is_ok();
                    self.completions.extend(std::iter::from_fn(|| slot.rail.completion()));
                    taken
                }
                _ => false,
            };
            if !posted {
                // Never on its way: nothing can land of it.
                let outcome = Outcome::Failed(Cause::LocalFault, Fate::Settled);
                self.completions.push(Completion { slice: slice.id, outcome });
            }
        }
    }
}
