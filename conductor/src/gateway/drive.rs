//! One choice from its first routing to its last token, over as many nodes as it takes.
//!
//! The journal decides: whatever a node says is held against it, and a node that breaks, falls silent or contradicts it is
//! left for another, which is given the journal to force. Dropping the future that drives a choice drops the node's
//! stream, and with it the work.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kvrail_kv::ChainHash;
use kvrail_proto::v1::{self, FinishReason, generate_reply};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use super::error::ApiError;
use super::journal::{Accepted, Journal};
use super::pool::Placed;
use super::state::Gateway;
use super::transcript::{Piece, Transcript};

/// Pause before asking again who can take a stream that lost its node.
const PLACE_PAUSE: Duration = Duration::from_millis(100);

/// What all choices of one prompt have in common.
pub(super) struct Task {
    pub gateway: Arc<Gateway>,
    pub request_id: String,
    /// The name that nodes of the pool register.
    pub pool_model: String,
    pub namespace_id: u64,
    pub salt: String,
    pub prompt: Vec<u32>,
    /// Chain hashes of the prompt's complete blocks.
    pub chain: Vec<ChainHash>,
    pub sampling: v1::Sampling,
    pub stop: v1::StopRule,
    pub stop_strings: Vec<String>,
    /// The field that holds the prompt, for error messages.
    pub prompt_param: &'static str,
    pub deadline: Instant,
}

/// How a choice ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finish {
    Stop,
    Length,
}

/// What happens to a choice.
#[derive(Debug)]
pub(super) enum Event {
    /// Text and tokens to show; `output_tokens` so far.
    Piece { piece: Piece, output_tokens: u32 },
    /// The last event of a choice that went well.
    Finished { finish: Finish, output_tokens: u32, cached_tokens: u32 },
    /// The last event of one that did not.
    Failed(ApiError),
}

/// Where a choice's events go: its index and the request's channel.
pub(super) type Events = mpsc::Sender<(u32, Event)>;

/// Why a node is left.
enum Lost {
    /// Its stream broke, or it said nothing for too long, or what it said cannot be.
    Node { cause: &'static str, reason: String },
    /// It says that it is too busy or that it failed; another may do better.
    Refused(v1::Failure),
    /// Nobody can do better.
    Fatal(ApiError),
    /// The client is gone.
    Client,
}

/// Drives choice `index` (`choice` of its prompt) to its end.
pub(super) async fn drive(task: Arc<Task>, index: u32, choice: u32, events: Events) {
    let mut state = match Run::new(&task, index, choice, &events) {
        Ok(state) => state,
        Err(error) => return drop(events.send((index, Event::Failed(error))).await),
    };
    let limit = task.gateway.config.request_timeout;
    let result = tokio::select! {
        result = timeout_at(task.deadline, state.run()) => result.unwrap_or_else(|_| Err(ApiError::deadline(limit))),
        () = task.gateway.ended() => Err(ApiError::cut_off()),
    };
    if let Err(error) = result {
        tracing::info!(request = %task.request_id, choice = index, code = error.code, message = %error.message, "choice failed");
        drop(events.send((index, Event::Failed(error))).await);
    }
}

/// A node that failed this choice.
struct Failed {
    node_id: String,
    /// In which life: if it comes back, it is another node under the same name.
    generation: Option<u64>,
    /// It was lost; else it only refused, and may do better later.
    lost: bool,
}

struct Run<'a> {
    task: &'a Task,
    index: u32,
    choice: u32,
    events: &'a Events,
    journal: Journal,
    transcript: Transcript,
    cached_tokens: u32,
    failed: Vec<Failed>,
    /// Since when nodes have only refused.
    refused_since: Option<Instant>,
    last_token: Option<std::time::Instant>,
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        self.task.gateway.choices.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<'a> Run<'a> {
    fn new(task: &'a Task, index: u32, choice: u32, events: &'a Events) -> Result<Self, ApiError> {
        let transcript = Transcript::new(&task.gateway.config.text, &task.stop_strings)
            .map_err(|e| ApiError::field("stop", e.to_string()))?;
        task.gateway.choices.fetch_add(1, Ordering::Relaxed);
        Ok(Self {
            task,
            index,
            choice,
            events,
            journal: Journal::new(task.stop.max_tokens),
            transcript,
            cached_tokens: 0,
            failed: Vec::new(),
            refused_since: None,
            last_token: None,
        })
    }

    async fn send(&self, event: Event) -> Result<(), Lost> {
        self.events.send((self.index, event)).await.map_err(|_| Lost::Client)
    }

    async fn run(&mut self) -> Result<(), ApiError> {
        let mut moves = 0;
        let mut last = None;
        loop {
            let placed = self.place(last.as_ref()).await?;
            let (cause, failure) = match self.follow(&placed).await {
                Ok(()) | Err(Lost::Client) => return Ok(()),
                Err(Lost::Fatal(error)) => return Err(error),
                Err(Lost::Refused(failure)) => {
                    let busy = matches!(failure.code.as_str(), "queue_full" | "no_capacity" | "draining");
                    (if busy { "refused" } else { "failed" }, failure)
                }
                Err(Lost::Node { cause, reason }) => {
                    let message = format!("decode node {} was lost: {reason}", placed.node_id);
                    (cause, v1::Failure { code: "peer_lost".into(), message, retryable: true, retry_after_ms: 0 })
                }
            };
            // The last token may have come without the word that it was the last.
            if let Some(finish) = self.ended_by_itself() {
                return match self.finish(finish).await {
                    Err(Lost::Fatal(error)) => Err(error),
                    _ => Ok(()),
                };
            }
            tracing::warn!(request = %self.task.request_id, choice = self.index, node = %placed.node_id, cause,
                reason = %failure.message, tokens = self.journal.len(), "moving to another decode node");
            let lost = cause != "refused";
            if lost {
                moves += 1;
                self.refused_since = None;
            } else {
                self.refused_since.get_or_insert_with(Instant::now);
            }
            if moves > self.task.gateway.config.migrations_max {
                return Err(ApiError::from_failure(&failure, self.task.prompt_param));
            }
            self.task.gateway.meters.migrated(cause);
            self.failed.push(Failed { node_id: placed.node_id, generation: placed.generation, lost });
            let wait = !self.journal.is_empty() || !matches!(cause, "refused" | "failed");
            last = Some((failure, wait));
        }
    }

    /// Finds a node. At first whatever is said counts. After a failure (`last`, and whether to wait): a stream that lost its
    /// node waits for one that takes it, a request that a node declined before its first token does not.
    async fn place(&mut self, last: Option<&(v1::Failure, bool)>) -> Result<Placed, ApiError> {
        let task = self.task;
        let config = &task.gateway.config;
        let give_up = self.refused_since.unwrap_or_else(Instant::now) + config.migration_wait;
        loop {
            let exclude = task.gateway.pool.with_view(|view| {
                let same_life = |failed: &&Failed| {
                    let now = view.generation(&failed.node_id);
                    now.is_none() || failed.generation.is_none() || now == failed.generation
                };
                self.failed.iter().filter(same_life).map(|failed| failed.node_id.clone()).collect()
            });
            let request = v1::RouteRequest {
                request_id: task.request_id.clone(),
                model: task.pool_model.clone(),
                namespace_id: task.namespace_id,
                chain: task.chain.iter().map(|hash| hash.0).collect(),
                prompt_tokens: task.prompt.len() as u32 + self.journal.len(),
                max_tokens: self.journal.remaining(),
                exclude,
            };
            let failure = match task.gateway.pool.route(request).await {
                Ok(placed) => return Ok(placed),
                Err(failure) => failure,
            };
            let Some((last, wait)) = last.filter(|_| failure.retryable) else {
                return Err(ApiError::from_failure(&failure, task.prompt_param));
            };
            if !wait || Instant::now() >= give_up {
                return Err(ApiError::from_failure(last, task.prompt_param));
            }
            tokio::time::sleep(PLACE_PAUSE).await;
            self.failed.retain(|failed| failed.lost);
        }
    }

    /// Takes what one node says, until the choice is finished or the node is lost.
    async fn follow(&mut self, placed: &Placed) -> Result<(), Lost> {
        let task = self.task;
        let silence = task.gateway.config.silence_max;
        let broken = |reason: String| Lost::Node { cause: "broken", reason };
        let silent = |_| Lost::Node { cause: "silent", reason: format!("nothing came for {silence:?}") };

        let mut node = task.gateway.pool.decode(&placed.address).map_err(|e| broken(e.to_string()))?;
        let request = v1::GenerateRequest {
            request_id: format!("{}-{}", task.request_id, self.index),
            namespace_id: task.namespace_id,
            salt: task.salt.clone(),
            prompt: task.prompt.clone(),
            forced: self.journal.forced(),
            sampling: Some(v1::Sampling { choice: self.choice, ..task.sampling.clone() }),
            stop: Some(task.stop.clone()),
            deadline_ms: task.deadline.saturating_duration_since(Instant::now()).as_millis().max(1) as u64,
            prefill: placed.prefill.clone(),
        };
        let opened = timeout_at(Instant::now() + silence, node.generate(request)).await.map_err(silent)?;
        let mut stream = opened.map_err(|status| broken(status.message().to_owned()))?.into_inner();
        loop {
            let reply = timeout_at(Instant::now() + silence, stream.message()).await.map_err(silent)?;
            let reply = reply.map_err(|status| broken(status.message().to_owned()))?;
            let reply = reply.ok_or_else(|| broken("the stream ended without an end".into()))?;
            match reply.message {
                None | Some(generate_reply::Message::Heartbeat(_)) => {}
                Some(generate_reply::Message::Accepted(accepted)) => {
                    self.cached_tokens = accepted.cached_tokens.min(task.prompt.len() as u32);
                }
                Some(generate_reply::Message::Token(token)) => {
                    if self.token(token).await? {
                        return self.finish(Finish::Stop).await;
                    }
                }
                Some(generate_reply::Message::Done(done)) => return self.done(&done).await,
                Some(generate_reply::Message::Failure(failure)) if failure.retryable => {
                    return Err(Lost::Refused(failure));
                }
                Some(generate_reply::Message::Failure(failure)) => {
                    return Err(Lost::Fatal(ApiError::from_failure(&failure, task.prompt_param)));
                }
            }
        }
    }

    /// One token of a node; true when a stop string ended the answer.
    async fn token(&mut self, token: v1::Token) -> Result<bool, Lost> {
        let fault = |reason: String| Lost::Node { cause: "fault", reason };
        let accepted = self.journal.accept(token).map_err(|e| fault(e.to_string()))?;
        let Some(token) = self.journal.last().filter(|_| accepted == Accepted::New) else { return Ok(false) };
        self.refused_since = None;
        let now = std::time::Instant::now();
        if let Some(before) = self.last_token.replace(now) {
            self.task.gateway.meters.itl.record(now - before);
        }
        // The token that ends the answer is counted and reported, and has no text.
        if self.is_end(token) {
            self.transcript.end(token.clone());
            return Ok(false);
        }
        let piece = self.transcript.push(token.clone()).map_err(|e| fault(e.to_string()))?;
        let stopped = piece.stopped;
        self.show(piece).await?;
        Ok(stopped)
    }

    async fn show(&self, piece: Piece) -> Result<(), Lost> {
        // The first token opens the answer even if it has no text yet: a client counts its time from there.
        if piece.is_empty() && self.journal.len() != 1 {
            return Ok(());
        }
        self.send(Event::Piece { piece, output_tokens: self.journal.len() }).await
    }

    async fn done(&mut self, done: &v1::GenerateDone) -> Result<(), Lost> {
        let fault = |reason: &str| Lost::Node { cause: "fault", reason: reason.into() };
        if done.output_tokens != self.journal.len() {
            return Err(fault("it counts other tokens than it sent"));
        }
        self.cached_tokens = done.cached_tokens.min(self.task.prompt.len() as u32);
        match done.reason() {
            FinishReason::Stop => self.finish(Finish::Stop).await,
            FinishReason::Length => self.finish(Finish::Length).await,
            FinishReason::Unspecified => Err(fault("it ended without a reason")),
        }
    }

    async fn finish(&mut self, finish: Finish) -> Result<(), Lost> {
        let piece = self.transcript.finish();
        // What was held back may hold a stop string to its end.
        let finish = if piece.stopped { Finish::Stop } else { finish };
        if !piece.is_empty() {
            self.send(Event::Piece { piece, output_tokens: self.journal.len() }).await?;
        }
        let (output_tokens, cached_tokens) = (self.journal.len(), self.cached_tokens);
        self.send(Event::Finished { finish, output_tokens, cached_tokens }).await
    }

    /// Whether the answer is over by its last token, whatever became of the node.
    fn ended_by_itself(&self) -> Option<Finish> {
        let last = self.journal.last()?;
        if self.is_end(last) {
            return Some(Finish::Stop);
        }
        (self.journal.remaining() == 0).then_some(Finish::Length)
    }

    fn is_end(&self, token: &v1::Token) -> bool {
        let rule = &self.task.stop;
        let is_stop = rule.stop_tokens.contains(&token.token)
            || (!rule.ignore_eos && self.task.gateway.config.text.eos_tokens().contains(&token.token));
        is_stop && token.index + 1 >= rule.min_tokens
    }
}
