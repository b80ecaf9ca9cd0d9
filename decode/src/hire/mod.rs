//! Hiring a prefill node: one task a request, from admission until the prompt's KV is visible here.
//!
//! The request's prefill nodes are tried in order, skipping those that were lost a moment ago; when none does it, this
//! node computes what is missing. What one attempt brought is kept: a first token that the client has is forced on the
//! next node, and blocks that were acknowledged are not sent again. After every attempt, good or bad, the lease is fenced
//! before anybody else touches the blocks.
//!
//! Map: [`conversation`] what a prefill node may say, and when.

pub mod conversation;

use std::sync::Arc;
use std::time::{Duration, Instant};

use conversation::{Action, Conversation, Terms};
use kvrail_engine::sampling::Finish;
use kvrail_node::{Failure, FailureCode};
use kvrail_proto::v1;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use v1::prefill_request;

use crate::core::Core;
use crate::scheduler::Ticket;
use crate::sequence::Sequence;

/// Time for a fence. It waits for no peer, so this is far more than it takes.
const FENCE_MAX: Duration = Duration::from_secs(2);
/// Messages on their way to the prefill node.
const OUTBOX: usize = 64;

/// The prefill node that is tried next, if any is left.
#[must_use]
pub fn next_choice(sequence: &Sequence, attempts_max: u32) -> Option<v1::PrefillChoice> {
    if sequence.attempts >= attempts_max {
        return None;
    }
    sequence.request.prefill.get(sequence.next_choice).cloned()
}

/// What an attempt came to.
enum Attempt {
    /// The prompt's KV is here.
    Visible,
    /// The answer ended with the first token.
    Finished(Finish),
    /// It failed; another node may do it.
    Failed(Failure),
    /// Its blocks are in quarantine.
    Unfenced,
}

/// Tells the core if the task ends without handing its sequence back.
struct Guard(Option<(Arc<Core>, Ticket)>);

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some((core, ticket)) = self.0.take() {
            core.lost(ticket);
        }
    }
}

/// Hires for `sequence` until its KV is here, it is over, or nobody is left to ask. Hands it back to the core.
pub async fn run(core: Arc<Core>, mut sequence: Box<Sequence>, cancel: CancellationToken) {
    let mut guard = Guard(Some((Arc::clone(&core), sequence.ticket)));
    let outcome = hire(&core, &mut sequence, &cancel).await;
    guard.0 = None;
    match outcome {
        Attempt::Visible => core.hired(sequence, None),
        Attempt::Finished(finish) => core.hired(sequence, Some(finish)),
        Attempt::Failed(_) => core.not_hired(sequence),
        Attempt::Unfenced => core.requeue(sequence),
    }
}

async fn hire(core: &Arc<Core>, sequence: &mut Sequence, cancel: &CancellationToken) -> Attempt {
    let mut last = Failure::new(FailureCode::NoNodes, "no prefill node was named");
    while let Some(choice) = next_choice(sequence, core.config().prefill_attempts_max) {
        sequence.next_choice += 1;
        if core.peers().is_suspect(&choice.grpc_address, Instant::now()) {
            continue;
        }
        sequence.attempts += 1;
        match attempt(core, sequence, &choice, cancel).await {
            Attempt::Failed(failure) => last = failure,
            outcome => return outcome,
        }
        if cancel.is_cancelled() {
            break;
        }
        core.telemetry().prefill_failed(last.code);
        if last.code == FailureCode::PeerLost {
            core.peers().lost(&choice.grpc_address, Instant::now());
        }
        tracing::warn!(request = %sequence.request.request_id, node = %choice.node_id, failure = %last, "prefill failed");
    }
    Attempt::Failed(last)
}

/// One attempt at one node, fence included.
async fn attempt(
    core: &Arc<Core>,
    sequence: &mut Sequence,
    choice: &v1::PrefillChoice,
    cancel: &CancellationToken,
) -> Attempt {
    let format = *core.node().kv().format();
    let held = sequence.table().len() as u32;
    let tokens = sequence.tokens().len() as u32;
    let payload_bytes = u64::from(tokens - held * format.block_tokens) * format.token_bytes();
    let mut conversation = Conversation::new(Terms {
        tokens,
        blocks_held: held,
        blocks: format.blocks_for(tokens),
        output_index: sequence.outputs(),
        vocab: core.node().spec().vocab,
        payload_bytes,
    });
    let outcome = converse(core, sequence, &mut conversation, choice, cancel).await;

    let Some(holding) = sequence.holding_mut() else { return Attempt::Failed(no_blocks()) };
    let Ok(landed) = holding.end_lease(FENCE_MAX).await else { return Attempt::Unfenced };
    let failure = match outcome {
        Ok(Reached::Done(done)) if landed >= payload_bytes => {
            sequence.prefill_node.clone_from(&choice.node_id);
            sequence.account.payload_bytes += payload_bytes;
            core.telemetry().transferred(tokens - held * format.block_tokens, format.blocks_for(tokens) - held, &done);
            return match sequence.advance_to(tokens) {
                Ok(()) => Attempt::Visible,
                Err(error) => Attempt::Failed(Failure::new(FailureCode::Internal, error.to_string())),
            };
        }
        Ok(Reached::Done(_)) => Failure::new(
            FailureCode::TransferFailed,
            format!("the prefill node is done with {payload_bytes} bytes, {landed} landed"),
        ),
        Ok(Reached::Finished(finish)) => {
            sequence.prefill_node.clone_from(&choice.node_id);
            keep_visible(sequence, &conversation, held, landed, format.block_tokens, format.token_bytes());
            return Attempt::Finished(finish);
        }
        Err(failure) => failure,
    };
    keep_visible(sequence, &conversation, held, landed, format.block_tokens, format.token_bytes());
    Attempt::Failed(failure)
}

/// Keeps the leading blocks whose every write was acknowledged, and gives the others back to the promise.
fn keep_visible(
    sequence: &mut Sequence,
    conversation: &Conversation,
    held: u32,
    landed: u64,
    block_tokens: u32,
    token_bytes: u64,
) {
    // One token at least is left to run, for its logits.
    let full = (sequence.tokens().len() as u32 - 1) / block_tokens;
    let mut keep = conversation.blocks_visible().min(full).max(held);
    if landed < u64::from(keep - held) * u64::from(block_tokens) * token_bytes {
        keep = held;
    }
    let advanced = sequence.advance_to(keep * block_tokens);
    if let Some(holding) = sequence.holding_mut() {
        let complete = holding.complete();
        holding.shrink(if advanced.is_ok() { keep } else { complete });
    }
}

fn no_blocks() -> Failure {
    Failure::new(FailureCode::Internal, "a request without blocks was to be hired for")
}

/// How far the conversation came.
enum Reached {
    Done(v1::PrefillDone),
    Finished(Finish),
}

async fn converse(
    core: &Arc<Core>,
    sequence: &mut Sequence,
    conversation: &mut Conversation,
    choice: &v1::PrefillChoice,
    cancel: &CancellationToken,
) -> Result<Reached, Failure> {
    let lost = |what: String| Failure::new(FailureCode::PeerLost, what);
    let mut client = core.peers().client(&choice.grpc_address, Instant::now()).map_err(|e| lost(e.to_string()))?;
    let (outbox, requests) = mpsc::channel(OUTBOX);
    let say = |message| match outbox.try_send(v1::PrefillRequest { message: Some(message) }) {
        // A node that is done reads no more, but what it said last may still be on the way: go on listening.
        Ok(()) | Err(TrySendError::Closed(_)) => Ok(()),
        Err(TrySendError::Full(_)) => Err(lost("the prefill node takes no messages".into())),
    };
    say(prefill_request::Message::Start(start(core, sequence, conversation)))?;

    let config = core.config();
    let cancelled = || Failure::new(FailureCode::Cancelled, "the request ended");
    let opened = tokio::select! {
        opened = tokio::time::timeout(config.prefill_answer_max, client.run(ReceiverStream::new(requests))) => opened,
        () = cancel.cancelled() => return Err(cancelled()),
    };
    let mut replies = match opened {
        Ok(Ok(replies)) => replies.into_inner(),
        Ok(Err(status)) => return Err(lost(format!("the prefill node answered {status}"))),
        Err(_) => return Err(lost("the prefill node did not answer".into())),
    };
    let mut answered = false;
    loop {
        // In its queue a node may be silent for long: keep-alive tells that it lives, and the deadline bounds the wait.
        let silence_max = match (answered, conversation.is_working()) {
            (false, _) => config.prefill_answer_max,
            (true, true) => config.prefill_silence_max,
            (true, false) => config.deadline_max,
        };
        let reply = tokio::select! {
            reply = tokio::time::timeout(silence_max, replies.message()) => reply,
            () = cancel.cancelled() => {
                let _ = say(prefill_request::Message::Cancel(v1::PrefillCancel { reason: "the request ended".into() }));
                return Err(cancelled());
            }
        };
        let reply = match reply {
            Ok(Ok(Some(reply))) => reply,
            Ok(Ok(None)) => return Err(lost("the prefill node closed the stream".into())),
            Ok(Err(status)) => return Err(lost(format!("the stream to the prefill node broke: {status}"))),
            Err(_) => return Err(lost(format!("the prefill node was silent for {} s", silence_max.as_secs_f32()))),
        };
        answered = true;
        match conversation.handle(reply.message)? {
            Action::Wait => {}
            Action::Lend { first_block, count } => {
                say(prefill_request::Message::LeaseGranted(lend(core, sequence, first_block, count)?))?;
            }
            Action::Token { token, cached_tokens } => {
                sequence.account.remote_cached_tokens = cached_tokens;
                if let Some(finish) = core.push(sequence, token) {
                    return Ok(Reached::Finished(finish));
                }
            }
            Action::Done(done) => return Ok(Reached::Done(done)),
        }
    }
}

fn start(core: &Core, sequence: &Sequence, conversation: &Conversation) -> v1::PrefillStart {
    let (node, request) = (core.node(), &sequence.request);
    let left = request.deadline.saturating_duration_since(Instant::now());
    v1::PrefillStart {
        request_id: request.request_id.clone(),
        namespace_id: node.info().namespace_id,
        salt: request.salt.clone(),
        tokens: sequence.tokens().to_vec(),
        prompt_tokens: request.prompt_tokens,
        blocks_held: conversation.blocks_visible(),
        sampling: request.sampling.clone(),
        stop: request.stop.clone(),
        deadline_ms: u64::try_from(left.as_millis()).unwrap_or(u64::MAX).max(1),
        decode_transfer_address: node.info().transfer_address.clone(),
        decode_generation: node.generation(),
    }
}

fn lend(core: &Core, sequence: &mut Sequence, first_block: u32, count: u32) -> Result<v1::LeaseGranted, Failure> {
    // A little longer than the request: its end revokes the lease, not the clock.
    let left = sequence.request.deadline.saturating_duration_since(Instant::now()) + Duration::from_secs(5);
    let holding = sequence.holding_mut().ok_or_else(no_blocks)?;
    let grant = holding.lend(core.node(), core.fencer(), count, left);
    let grant = grant.map_err(|error| Failure::new(FailureCode::NoCapacity, format!("cannot lend blocks: {error}")))?;
    core.telemetry().leased();
    Ok(v1::LeaseGranted { first_block, count, ticket: grant.ticket, block_ids: grant.blocks })
}
