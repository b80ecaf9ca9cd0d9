//! Every request of the node and where it is; what happens to it next.
//!
//! Threading: one mutex around scheduler and slots, held for microseconds and never across an await, a forward pass or a
//! send. A [`Sequence`] has one owner at any time: its slot, the step loop (for one step), or its hiring task. Who
//! holds the lock may take the block cache's lock, never the other way round. The step loop sleeps on [`Core::next_batch`].
//!
//! Ending: the client is told at once, whoever owns the sequence; the owner finds the verdict when it hands the sequence
//! back ([`Slot::ended`]), and only then are its blocks given back. So a block is never freed under a forward pass.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kvrail_engine::sampling::Finish;
use kvrail_node::{Failure, FailureCode, Node};
use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::config::DecodeConfig;
use crate::hire;
use crate::holding::Holding;
use crate::lend::Fencer;
use crate::lifecycle::{Event, State};
use crate::outlet::Outlet;
use crate::peers::Peers;
use crate::scheduler::{Limits, Scheduler, Ticket, Work};
use crate::sequence::{Sequence, StepError};
use crate::telemetry::{Outcome, Telemetry};

/// Waits told to refused clients lie between these.
const RETRY_AFTER: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));

/// The requests of a node.
pub struct Core {
    node: Node,
    config: DecodeConfig,
    requests: Mutex<Requests>,
    work: Condvar,
    tickets: AtomicU64,
    telemetry: Telemetry,
    peers: Peers,
    fencer: Fencer,
    runtime: Handle,
}

struct Requests {
    scheduler: Scheduler,
    slots: HashMap<Ticket, Slot>,
    /// Tokens to compute of the requests in the queue.
    queued_tokens: u64,
    stopping: bool,
}

struct Slot {
    state: State,
    place: Place,
    out: Outlet,
    /// Cancelled when the request is over or must end.
    cancel: CancellationToken,
    /// The verdict on a request whose sequence is elsewhere.
    ended: Option<Failure>,
}

enum Place {
    /// Here: queued or runnable.
    Here(Box<Sequence>),
    /// In the step that runs now.
    InStep,
    /// With its hiring task.
    Hired,
}

/// What a step came to for one sequence.
pub struct Stepped {
    /// The sequence, advanced.
    pub sequence: Box<Sequence>,
    /// How far it came.
    pub result: Result<Progress, StepError>,
}

/// How far a step brought a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Part of a prompt was computed.
    Chunk,
    /// A token was sampled.
    Token,
    /// A token was sampled, and the answer ends with it.
    Last(Finish),
}

impl Core {
    /// Nothing runs. Must be called on the runtime that the node lives on.
    #[must_use]
    pub fn new(node: Node, config: DecodeConfig) -> Arc<Self> {
        let limits = Limits {
            block_tokens: node.spec().format.block_tokens,
            batch_max: config.batch_max.max(1),
            prefill_tokens_max: config.prefill_tokens_max.max(1),
            step_target: config.step_target,
        };
        let requests =
            Requests { scheduler: Scheduler::new(limits), slots: HashMap::new(), queued_tokens: 0, stopping: false };
        let runtime = Handle::current();
        Arc::new_cyclic(|core: &std::sync::Weak<Self>| {
            let core = core.clone();
            let freed = move || {
                if let Some(core) = core.upgrade() {
                    core.blocks_freed();
                }
            };
            Self {
                telemetry: Telemetry::new(&node),
                peers: Peers::new(node.config().grpc.clone(), config.prefill_suspect),
                fencer: Fencer::new(runtime.clone(), Arc::new(freed)),
                node,
                config,
                requests: Mutex::new(requests),
                work: Condvar::new(),
                tickets: AtomicU64::new(1),
                runtime,
            }
        })
    }

    /// The node below.
    #[must_use]
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// The settings.
    #[must_use]
    pub fn config(&self) -> &DecodeConfig {
        &self.config
    }

    /// The counters.
    #[must_use]
    pub fn telemetry(&self) -> &Telemetry {
        &self.telemetry
    }

    /// Channels to prefill nodes.
    #[must_use]
    pub fn peers(&self) -> &Peers {
        &self.peers
    }

    /// Who frees lent blocks.
    #[must_use]
    pub fn fencer(&self) -> &Fencer {
        &self.fencer
    }

    /// A new place in the order of arrival.
    #[must_use]
    pub fn ticket(&self) -> Ticket {
        Ticket(self.tickets.fetch_add(1, Ordering::Relaxed))
    }

    /// Takes a request in; it is admitted at once if headroom is there and nobody waits before it.
    ///
    /// # Errors
    /// `queue_full`, with when to come back.
    pub fn submit(self: &Arc<Self>, sequence: Box<Sequence>) -> Result<(), Failure> {
        let (ticket, deadline) = (sequence.ticket, sequence.request.deadline);
        let cancel = CancellationToken::new();
        {
            let mut requests = self.requests.lock();
            let queued = requests.scheduler.queued();
            if queued >= self.config.queue_max {
                let message = format!("{queued} requests wait already; at most {} do", self.config.queue_max);
                let wait = self.wait_estimate(&requests);
                return Err(Failure::new(FailureCode::QueueFull, message).retry_after(wait));
            }
            let slot = Slot {
                state: State::Queued,
                out: sequence.out.clone(),
                place: Place::Here(sequence),
                cancel: cancel.clone(),
                ended: None,
            };
            requests.slots.insert(ticket, slot);
            requests.enqueue(ticket);
            self.admit(&mut requests);
        }
        self.runtime.spawn(watch(Arc::clone(self), ticket, cancel, deadline, self.config.queue_wait_max));
        Ok(())
    }

    /// Ends a request wherever it is. Its client hears it now; its blocks are given back when nothing touches them any
    /// more. Does nothing to a request that is over.
    pub fn fail(self: &Arc<Self>, ticket: Ticket, failure: Failure) {
        self.end(&mut self.requests.lock(), ticket, failure);
    }

    /// Ends a request that still waits for its first admission.
    fn fail_if_waiting(self: &Arc<Self>, ticket: Ticket) {
        let mut requests = self.requests.lock();
        let is_new = |sequence: &Sequence| sequence.attempts == 0 && sequence.account.preempted == 0;
        let slot = requests.slots.get(&ticket);
        if slot.is_some_and(|s| s.state == State::Queued && matches!(&s.place, Place::Here(q) if is_new(q))) {
            let waited = self.config.queue_wait_max.as_secs_f64();
            let message = format!("no KV headroom within {waited} s");
            let failure = Failure::new(FailureCode::NoCapacity, message).retry_after(RETRY_AFTER.1);
            self.end(&mut requests, ticket, failure);
        }
    }

    /// Ends every request.
    pub fn fail_all(self: &Arc<Self>, failure: &Failure) {
        let tickets: Vec<_> = self.requests.lock().slots.keys().copied().collect();
        for ticket in tickets {
            self.fail(ticket, failure.clone());
        }
    }

    /// Ends the step loop.
    pub fn stop(&self) {
        self.requests.lock().stopping = true;
        self.work.notify_all();
    }

    /// How many requests are in each state.
    #[must_use]
    pub fn states(&self) -> Vec<(State, u32)> {
        let requests = self.requests.lock();
        let count = |state| requests.slots.values().filter(|s| s.state == state).count() as u32;
        State::ALL.into_iter().map(|state| (state, count(state))).collect()
    }

    // ---- the step loop's side ----

    /// Waits for work and takes it: sequences with the tokens to run, their tables grown to hold them. `None` to stop.
    pub fn next_batch(self: &Arc<Self>) -> Option<Vec<(Box<Sequence>, u32)>> {
        let mut requests = self.requests.lock();
        loop {
            if requests.stopping {
                return None;
            }
            let mut plan = requests.scheduler.plan();
            if plan.is_empty() {
                self.work.wait(&mut requests);
                continue;
            }
            // Oldest first, so that preemption takes from the younger before these take their blocks.
            plan.sort_unstable_by_key(|work| work.ticket);
            let planned = plan.len();
            plan.retain(|work| self.grow(&mut requests, *work));
            let batch: Vec<_> = plan.into_iter().filter_map(|work| requests.check_out(work)).collect();
            if batch.len() < planned {
                // Somebody was preempted; what is left over may do for the head of the queue.
                self.admit(&mut requests);
            }
            if !batch.is_empty() {
                return Some(batch);
            }
        }
    }

    /// Puts the sequences of a step back, ends those that are over, and learns from its time.
    pub fn step_done(self: &Arc<Self>, batch: Vec<Stepped>, rows: u32, took: Duration) {
        let mut requests = self.requests.lock();
        requests.scheduler.observe(rows, took);
        let before = requests.slots.len();
        for Stepped { sequence, result } in batch {
            let prompt = requests.slots.get(&sequence.ticket).is_some_and(|slot| slot.state == State::Prefilling);
            match result {
                Ok(Progress::Chunk) => self.settle(&mut requests, sequence, None),
                Ok(Progress::Token) => self.settle(&mut requests, sequence, prompt.then_some(Event::FirstToken)),
                Ok(Progress::Last(finish)) => self.finish(&mut requests, sequence, finish),
                Err(error) => {
                    tracing::error!(request = %sequence.request.request_id, %error, "a step failed");
                    self.over_with(&mut requests, sequence, error.into());
                }
            }
        }
        if requests.slots.len() < before {
            self.admit(&mut requests);
        }
    }

    // ---- the hiring task's side ----

    /// Appends a token and streams it.
    pub fn push(&self, sequence: &mut Sequence, token: kvrail_proto::v1::Token) -> Option<Finish> {
        let now = Instant::now();
        if sequence.account.first_token.is_none() {
            self.telemetry.first_token(sequence.request.arrived, now);
        }
        sequence.push(token, now)
    }

    /// The prompt's KV is here and fenced, or the answer has ended already.
    pub fn hired(self: &Arc<Self>, sequence: Box<Sequence>, finish: Option<Finish>) {
        let mut requests = self.requests.lock();
        match finish {
            Some(finish) => self.finish(&mut requests, sequence, finish),
            None => self.settle(&mut requests, sequence, Some(Event::KvVisible)),
        }
        self.admit(&mut requests);
    }

    /// No prefill node did it: the rest of the prompt is computed here.
    pub fn not_hired(self: &Arc<Self>, sequence: Box<Sequence>) {
        let mut requests = self.requests.lock();
        if requests.slots.get(&sequence.ticket).is_some_and(|slot| slot.ended.is_none()) {
            self.telemetry.local();
        }
        self.settle(&mut requests, sequence, Some(Event::PrefillFailed));
        self.admit(&mut requests);
    }

    /// Lent blocks could not be had back in time: the request waits for others.
    pub fn requeue(self: &Arc<Self>, sequence: Box<Sequence>) {
        let mut requests = self.requests.lock();
        self.back_to_queue(&mut requests, sequence, Event::Requeued);
        self.admit(&mut requests);
    }

    /// The hiring task broke and its sequence is gone.
    pub fn lost(&self, ticket: Ticket) {
        let mut requests = self.requests.lock();
        if let Some(slot) = requests.slots.remove(&ticket) {
            slot.cancel.cancel();
            slot.out.failed(Failure::new(FailureCode::Internal, "the request was lost by a bug; see the node's log"));
            self.telemetry.refused(Outcome::Failed(FailureCode::Internal));
        }
    }

    // ---- under the lock ----

    fn end(self: &Arc<Self>, requests: &mut Requests, ticket: Ticket, failure: Failure) {
        let Some(slot) = requests.slots.get_mut(&ticket) else { return };
        slot.out.failed(failure.clone());
        slot.cancel.cancel();
        match std::mem::replace(&mut slot.place, Place::InStep) {
            Place::Here(sequence) => {
                requests.dequeue(ticket, sequence.pending());
                requests.scheduler.pause(ticket);
                self.over(requests, sequence, Outcome::Failed(failure.code));
                self.admit(requests);
            }
            elsewhere => {
                slot.place = elsewhere;
                slot.ended.get_or_insert(failure);
            }
        }
    }

    fn blocks_freed(self: &Arc<Self>) {
        self.admit(&mut self.requests.lock());
    }

    /// Admits from the head of the queue while headroom lasts.
    fn admit(self: &Arc<Self>, requests: &mut Requests) {
        while let Some(ticket) = requests.scheduler.head() {
            let Some(slot) = requests.slots.get_mut(&ticket) else {
                requests.scheduler.dequeue(ticket);
                continue;
            };
            let Place::Here(sequence) = &mut slot.place else {
                requests.scheduler.dequeue(ticket);
                continue;
            };
            // Once preempted, never again: the second time everything is reserved.
            let growth = if sequence.account.preempted > 0 { 1.0 } else { self.config.growth_reserved.clamp(0.0, 1.0) };
            let blocks = sequence.blocks_wanted(growth);
            let Ok(holding) = Holding::admit(self.node.cache(), sequence.lookup_keys(), blocks) else { break };
            let waiting = sequence.pending();
            sequence.admitted(holding);
            requests.dequeue(ticket, waiting);
            self.start(requests, ticket);
        }
        self.report(requests);
    }

    /// Starts a request that was admitted just now.
    fn start(self: &Arc<Self>, requests: &mut Requests, ticket: Ticket) {
        let Some(slot) = requests.slots.get_mut(&ticket) else { return };
        let Place::Here(mut sequence) = std::mem::replace(&mut slot.place, Place::Hired) else { return };
        if sequence.attempts == 0 && sequence.account.preempted == 0 {
            let held = sequence.computed().min(sequence.request.prompt_tokens);
            sequence.account.held_tokens = held;
            sequence.out.accepted(held);
            self.telemetry.admitted(held);
        }
        let remote = sequence.account.preempted == 0
            && hire::next_choice(&sequence, self.config.prefill_attempts_max).is_some()
            && sequence.pending() > self.config.local_prefill_tokens;
        let event = if remote { Event::AdmittedRemote } else { Event::AdmittedLocal };
        if !step(&mut slot.state, event) {
            return self.over_with(requests, sequence, bug());
        }
        if remote {
            let cancel = slot.cancel.clone();
            self.runtime.spawn(hire::run(Arc::clone(self), sequence, cancel));
        } else {
            self.telemetry.local();
            self.make_runnable(requests, sequence);
        }
    }

    /// Grows the table of a sequence for its work, preempting younger ones if nothing else helps. False if it must wait.
    fn grow(self: &Arc<Self>, requests: &mut Requests, work: Work) -> bool {
        loop {
            let Some(Slot { place: Place::Here(sequence), .. }) = requests.slots.get_mut(&work.ticket) else {
                return false;
            };
            let tokens = sequence.computed() + work.tokens;
            let blocks = tokens.div_ceil(sequence.request.block_tokens);
            match sequence.holding_mut().map(|holding| holding.grow(blocks)) {
                Some(Ok(())) => return true,
                Some(Err(_)) => {}
                None => return false,
            }
            let victim = requests.scheduler.younger_than(work.ticket).unwrap_or(work.ticket);
            self.preempt(requests, victim);
            if victim == work.ticket {
                return false;
            }
        }
    }

    fn preempt(self: &Arc<Self>, requests: &mut Requests, ticket: Ticket) {
        let Some(slot) = requests.slots.get_mut(&ticket) else { return };
        let Place::Here(mut sequence) = std::mem::replace(&mut slot.place, Place::InStep) else { return };
        tracing::info!(request = %sequence.request.request_id, tokens = sequence.tokens().len(), "preempted");
        sequence.account.preempted += 1;
        self.telemetry.preempted();
        requests.scheduler.pause(ticket);
        self.back_to_queue(requests, sequence, Event::Preempted);
    }

    fn back_to_queue(self: &Arc<Self>, requests: &mut Requests, mut sequence: Box<Sequence>, event: Event) {
        let ticket = sequence.ticket;
        let Some(slot) = requests.slots.get_mut(&ticket) else { return };
        if let Some(failure) = slot.ended.take() {
            return self.over_with(requests, sequence, failure);
        }
        if !step(&mut slot.state, event) {
            return self.over_with(requests, sequence, bug());
        }
        sequence.give_up_blocks();
        slot.place = Place::Here(sequence);
        requests.enqueue(ticket);
    }

    /// A sequence comes back from a step or from being hired, and goes on unless its verdict is here.
    fn settle(self: &Arc<Self>, requests: &mut Requests, sequence: Box<Sequence>, event: Option<Event>) {
        let Some(slot) = requests.slots.get_mut(&sequence.ticket) else { return };
        if let Some(failure) = slot.ended.take() {
            return self.over_with(requests, sequence, failure);
        }
        if event.is_some_and(|event| !step(&mut slot.state, event)) {
            return self.over_with(requests, sequence, bug());
        }
        self.make_runnable(requests, sequence);
    }

    /// The answer is whole. It is told so, unless its failure was told a moment ago.
    fn finish(self: &Arc<Self>, requests: &mut Requests, sequence: Box<Sequence>, finish: Finish) {
        let told = sequence.out.done(sequence.done(finish));
        let verdict = requests.slots.get_mut(&sequence.ticket).and_then(|slot| slot.ended.take());
        let outcome = match verdict {
            Some(failure) if !told => Outcome::Failed(failure.code),
            _ => Outcome::Finished(finish),
        };
        self.over(requests, sequence, outcome);
    }

    fn make_runnable(&self, requests: &mut Requests, sequence: Box<Sequence>) {
        let ticket = sequence.ticket;
        let yields = sequence.account.preempted == 0;
        requests.scheduler.run(ticket, sequence.computed(), sequence.pending(), yields);
        if let Some(slot) = requests.slots.get_mut(&ticket) {
            slot.place = Place::Here(sequence);
        }
        self.work.notify_one();
    }

    fn over_with(self: &Arc<Self>, requests: &mut Requests, sequence: Box<Sequence>, failure: Failure) {
        let code = failure.code;
        sequence.out.failed(failure);
        self.over(requests, sequence, Outcome::Failed(code));
    }

    /// The request is over: its slot goes, and with the sequence its blocks.
    fn over(self: &Arc<Self>, requests: &mut Requests, sequence: Box<Sequence>, outcome: Outcome) {
        if let Some(mut slot) = requests.slots.remove(&sequence.ticket) {
            slot.cancel.cancel();
            let ended = step(&mut slot.state, Event::Ended);
            debug_assert!(ended, "every state can end");
        }
        let Sequence { request, account, .. } = &*sequence;
        tracing::debug!(
            request = %request.request_id, ?outcome, outputs = sequence.outputs(), preempted = account.preempted,
            prefill_node = %sequence.prefill_node, "over"
        );
        self.telemetry.ended(&sequence, outcome);
        drop(sequence);
        // Not `admit`: this runs inside of it too. Whoever ends requests admits afterwards.
        self.report(requests);
    }

    fn report(&self, requests: &Requests) {
        let (blocks, queued) = (self.node.cache().counters(), requests.scheduler.queued() as u32);
        self.node.load().update(|load| {
            load.running = requests.slots.len() as u32 - queued;
            load.queued = queued;
            load.queued_tokens = requests.queued_tokens;
            load.blocks_free = blocks.available();
            load.blocks_reserved = blocks.reserved;
            load.blocks_quarantined = blocks.quarantined;
            load.step_ms = self.telemetry.step_ms();
        });
    }

    fn wait_estimate(&self, requests: &MutexGuard<'_, Requests>) -> Duration {
        // A rough guess: the queue drains one request a step.
        let steps = requests.scheduler.queued() as f64;
        Duration::from_secs_f64(steps * self.telemetry.step_ms() / 1e3).clamp(RETRY_AFTER.0, RETRY_AFTER.1)
    }
}

impl Requests {
    fn enqueue(&mut self, ticket: Ticket) {
        if let Some(Slot { place: Place::Here(sequence), .. }) = self.slots.get(&ticket) {
            self.queued_tokens += u64::from(sequence.pending());
            self.scheduler.enqueue(ticket);
        }
    }

    /// Out of the queue, where it counted with `pending` tokens; nothing if it was not there.
    fn dequeue(&mut self, ticket: Ticket, pending: u32) {
        if self.scheduler.dequeue(ticket) {
            self.queued_tokens = self.queued_tokens.saturating_sub(pending.into());
        }
    }

    fn check_out(&mut self, work: Work) -> Option<(Box<Sequence>, u32)> {
        let slot = self.slots.get_mut(&work.ticket)?;
        // A sequence that was preempted since the plan was made is in the queue, and not runnable.
        if !matches!(slot.state, State::Prefilling | State::Decoding) {
            return None;
        }
        match std::mem::replace(&mut slot.place, Place::InStep) {
            Place::Here(sequence) => {
                self.scheduler.pause(work.ticket);
                Some((sequence, work.tokens))
            }
            elsewhere => {
                slot.place = elsewhere;
                None
            }
        }
    }
}

/// Moves along the table; an illegal step is told and not made.
fn step(state: &mut State, event: Event) -> bool {
    match state.after(event) {
        Ok(next) => {
            *state = next;
            true
        }
        Err(error) => {
            tracing::error!(%error, "a bug in the life cycle");
            false
        }
    }
}

fn bug() -> Failure {
    Failure::new(FailureCode::Internal, "the request's life cycle broke; see the node's log")
}

/// Ends the request at its deadline, or when it has waited too long for headroom.
async fn watch(
    core: Arc<Core>,
    ticket: Ticket,
    cancel: CancellationToken,
    deadline: Instant,
    queue_wait_max: Duration,
) {
    let overdue = async {
        if Instant::now() + queue_wait_max < deadline {
            tokio::time::sleep(queue_wait_max).await;
            core.fail_if_waiting(ticket);
        }
        tokio::time::sleep_until(deadline.into()).await;
    };
    tokio::select! {
        () = cancel.cancelled() => {}
        () = overdue => {
            core.fail(ticket, Failure::new(FailureCode::DeadlineExceeded, "the request's deadline has passed"));
        }
    }
}
