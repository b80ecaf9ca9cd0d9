//! Worker threads: each owns its streams and moves their bytes.
//!
//! A round: messages, fences, progress of what is ready, then one exchange with the planner (what ended, what there is
//! room for), then sleep in epoll if nothing moved. No stream is ever touched by another thread.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use slab::Slab;

use crate::core::{Core, STREAMS_MAX, rail_of};
use crate::mailbox::Mailbox;
use crate::plan::{Cause, Completion, Fate, Outcome, PathId, PathSpec, RailId, RailSet, SliceBatch};
use crate::session::control::Command;
use crate::session::peer::Session;
use crate::session::wire::StreamId;
use crate::telemetry::{Rejection, count};
use crate::transport::sys::{Poller, Waker};
use crate::transport::{Job, Post, Rail, RailError, TransportKind};

/// What the control thread tells a worker. At most one of each for each stream of a session.
pub(crate) enum Message {
    /// A stream is up and yours.
    Attach { rail: Box<dyn Rail>, session: Arc<Session>, stream: StreamId, spec: PathSpec },
    /// Close it; say `Detached` when nothing of it can touch memory here.
    Detach { session: u64, stream: StreamId },
}

/// A worker as other threads see it.
pub(crate) struct Handle {
    /// Rails that are its own.
    pub(crate) rails: RailSet,
    mailbox: Mailbox<Message>,
    fence: AtomicBool,
}

impl Handle {
    /// Of worker number `index` of so many.
    pub(crate) fn new(waker: Waker, index: usize, workers: usize) -> Self {
        Self { rails: rails(index, workers), mailbox: Mailbox::new(waker), fence: AtomicBool::new(false) }
    }

    pub(crate) fn post(&self, message: Message) {
        self.mailbox.post(message);
    }

    /// Drops what was posted; for when the worker has ended.
    pub(crate) fn clear(&self) {
        drop(self.mailbox.take());
    }

    /// There may be something to send.
    pub(crate) fn kick(&self) {
        self.mailbox.wake();
    }

    /// Leases were revoked.
    pub(crate) fn fence(&self) {
        self.fence.store(true, Ordering::Release);
        self.mailbox.wake();
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
}

pub(crate) struct Worker {
    core: Arc<Core>,
    index: usize,
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
}

impl Worker {
    pub(crate) fn new(core: Arc<Core>, index: usize, poller: Poller) -> Self {
        Self {
            own: core.workers[index].rails,
            core,
            index,
            poller,
            slots: Slab::new(),
            by_path: HashMap::new(),
            batch: SliceBatch::default(),
            jobs: Vec::new(),
            completions: Vec::new(),
            rooms: Vec::new(),
            hungry: false,
        }
    }

    /// Runs until the engine stops.
    pub(crate) fn run(mut self) {
        let core = Arc::clone(&self.core);
        while !core.stopping.load(Ordering::Acquire) {
            let me = &core.workers[self.index];
            if me.mailbox.listen() {
                self.hungry = true;
                if me.fence.swap(false, Ordering::AcqRel) {
                    self.slots.iter_mut().for_each(|(_, slot)| slot.rail.fence());
                }
                for message in me.mailbox.take() {
                    self.handle(message);
                }
            }
            self.progress();
            // What was handed out goes on its way before anything else is looked at.
            if self.exchange() {
                self.progress();
                self.exchange();
            }
            if let Err(error) = self.sleep() {
                tracing::error!(%error, "a transfer worker cannot wait for its streams and ends");
                core.stop();
            }
        }
        // Streams go first: what they pinned is let go before anybody is told that the engine has stopped.
        drop(self);
        core.thread_ended();
    }

    fn handle(&mut self, message: Message) {
        match message {
            Message::Attach { rail, session, stream, spec } => {
                let path = Core::path(&session, stream.kind, stream.index);
                let entry = self.slots.vacant_entry();
                let key = entry.key();
                let watched = self.poller.add(rail.readiness(), key as u64);
                entry.insert(Slot { rail, session, stream, path, ready: true });
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
            error => tracing::debug!(peer = slot.session.generation, ?stream, %error, "a stream ended"),
        }
        self.detach(key);
        let (_, wakes) = self.core.plan(self.own, |p, now| p.planner.handle_path_failed(path, Cause::PathFault, now));
        self.hungry |= !wakes.is_empty();
    }

    fn progress(&mut self) {
        let now = Instant::now();
        let mut failed = Vec::new();
        for (key, slot) in &mut self.slots {
            if slot.ready || slot.rail.wake_at().is_some_and(|at| at <= now) {
                match slot.rail.progress(now) {
                    Ok(more) => slot.ready = more,
                    Err(error) => failed.push((key, error)),
                }
                while let Some(completion) = slot.rail.completion() {
                    self.completions.push(completion);
                }
            }
        }
        for (key, error) in failed {
            self.fail(key, &error);
        }
    }

    /// Tells the planner what ended, and takes what there is room for; true if that was something.
    fn exchange(&mut self) -> bool {
        let mut posted = false;
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
            let wakes = self.core.exchange(self.own, &self.completions, &self.rooms, &mut self.batch, &mut self.jobs);
            self.completions.clear();
            // Handed out all that was asked for: there may be more when there is room again.
            self.hungry = !wakes.is_empty() || self.batch.slices.len() >= wanted;
            if self.batch.slices.is_empty() {
                return posted;
            }
            self.post();
            posted = true;
        }
    }

    fn post(&mut self) {
        let now = Instant::now();
        for (slice, job) in self.batch.slices.iter().zip(&self.jobs) {
            let posted = match (self.by_path.get(&slice.path).and_then(|key| self.slots.get_mut(*key)), job) {
                (Some(slot), Some(job)) => {
                    slot.ready = true;
                    let pieces = self.batch.pieces(slice);
                    let post = Post { id: slice.id, job, direction: slice.direction, pieces, bytes: slice.bytes };
                    slot.rail.submit(&post, now).is_ok()
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

    fn sleep(&mut self) -> std::io::Result<()> {
        let busy = !self.completions.is_empty() || self.slots.iter().any(|(_, slot)| slot.ready);
        let timeout = if busy {
            Some(std::time::Duration::ZERO)
        } else {
            let next = self.slots.iter().filter_map(|(_, slot)| slot.rail.wake_at()).min();
            next.map(|at| at.saturating_duration_since(Instant::now()))
        };
        let slots = &mut self.slots;
        self.poller.wait(timeout, |key, readable, writable| {
            if let Some(slot) = slots.get_mut(key as usize) {
                slot.rail.ready(readable, writable);
                slot.ready = true;
            }
        })
    }
}
