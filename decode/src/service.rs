//! The door: the gRPC service, and the checks that a request passes before anything is held for it.

use std::sync::Arc;
use std::time::Instant;

use kvrail_engine::sampling::{Finish, Sampler};
use kvrail_node::convert;
use kvrail_node::serve::Service;
use kvrail_node::{Failure, FailureCode, grpc};
use kvrail_proto::v1;
use serde_json::{Map, Value};
use tokio::sync::mpsc;
use tonic::{Request as GrpcRequest, Response, Status};
use v1::decode_server::Decode;

use crate::core::Core;
use crate::lifecycle::State;
use crate::outlet::{Cancel, Outlet, Replies};
use crate::scheduler::Ticket;
use crate::sequence::{Request, Sequence};
use crate::telemetry::Outcome;

/// Most prefill nodes that a request may name.
const PREFILL_CHOICES_MAX: usize = 64;
/// Longest request id and salt, in bytes.
const NAME_BYTES_MAX: usize = 256;

/// The decode service.
#[derive(Clone)]
pub struct DecodeService {
    core: Arc<Core>,
}

/// Cancels a request when its stream is dropped.
struct OnDrop {
    core: Arc<Core>,
    ticket: Ticket,
}

impl Cancel for OnDrop {
    fn cancel(&self) {
        self.core.fail(self.ticket, Failure::new(FailureCode::Cancelled, "the gateway closed the stream"));
    }
}

impl DecodeService {
    /// Serves the requests of `core`.
    #[must_use]
    pub fn new(core: Arc<Core>) -> Self {
        Self { core }
    }

    /// Checks a request and takes it in.
    fn take_in(&self, wire: v1::GenerateRequest) -> Result<Replies, Failure> {
        let (core, now) = (&self.core, Instant::now());
        let node = core.node();
        let Some(in_flight) = node.drain().enter() else {
            return Err(Failure::new(FailureCode::Draining, "the node is going away"));
        };
        let checked = check(core, &wire)?;
        let request = Arc::new(Request {
            request_id: wire.request_id,
            block_tokens: node.spec().format.block_tokens,
            prompt_tokens: wire.prompt.len() as u32,
            forced_tokens: wire.forced.len() as u32,
            sampling: wire.sampling,
            stop: wire.stop,
            prefill: wire.prefill,
            arrived: now,
            deadline: grpc::deadline(now, wire.deadline_ms, core.config().deadline_default, core.config().deadline_max),
            salt: wire.salt,
        });
        let (out, messages) = Outlet::new(checked.sampler.stop().max_tokens());
        let tokens = [wire.prompt, wire.forced].concat();
        let namespace = node.namespace(&request.salt);
        let sequence =
            Sequence::new(core.ticket(), request, tokens, checked.sampler, &namespace, out.clone(), in_flight);
        let ticket = sequence.ticket;
        if let Some(finish) = checked.finish {
            // A stream moved here after its last token: there is only its end to tell.
            out.accepted(0);
            out.done(sequence.done(finish));
            core.telemetry().ended(&sequence, Outcome::Finished(finish));
            return Ok(self.replies(messages, None));
        }
        core.submit(Box::new(sequence))?;
        Ok(self.replies(messages, Some(ticket)))
    }

    fn replies(&self, messages: mpsc::Receiver<v1::GenerateReply>, ticket: Option<Ticket>) -> Replies {
        let on_drop = ticket.map(|ticket| Box::new(OnDrop { core: Arc::clone(&self.core), ticket }) as Box<dyn Cancel>);
        Replies::new(messages, self.core.config().heartbeat, on_drop)
    }
}

#[tonic::async_trait]
impl Decode for DecodeService {
    type GenerateStream = Replies;

    async fn generate(&self, request: GrpcRequest<v1::GenerateRequest>) -> Result<Response<Replies>, Status> {
        self.core.telemetry().arrived();
        let replies = self.take_in(request.into_inner()).unwrap_or_else(|failure| {
            self.core.telemetry().refused(Outcome::Failed(failure.code));
            let (out, messages) = Outlet::new(0);
            out.failed(failure);
            self.replies(messages, None)
        });
        Ok(Response::new(replies))
    }
}

impl Service for DecodeService {
    fn status(&self, status: &mut Map<String, Value>) {
        self.core.telemetry().status(&self.core.states(), status);
    }

    fn refresh_metrics(&self) {
        let metrics = self.core.node().metrics();
        for (state, count) in self.core.states() {
            if state != State::Over {
                let name = kvrail_node::metrics::name::REQUESTS_IN_STATE;
                metrics.gauge(name, &[("state", state.as_str())]).set(count);
            }
        }
        let leases = self.core.node().engine().stats().leases;
        metrics.gauge(kvrail_node::metrics::name::LEASES_OPEN, &[]).set(leases as f64);
    }

    fn abort(&self) {
        self.core.fail_all(&Failure::new(FailureCode::Draining, "the node goes away before the answer is whole"));
    }
}

struct Checked {
    sampler: Sampler,
    /// How the forced output ended the answer, if it did.
    finish: Option<Finish>,
}

fn check(core: &Core, wire: &v1::GenerateRequest) -> Result<Checked, Failure> {
    let (node, spec) = (core.node(), core.node().spec());
    let invalid = |message: String| Err(Failure::new(FailureCode::InvalidRequest, message));
    if wire.namespace_id != node.info().namespace_id {
        let (got, own) = (wire.namespace_id, node.info().namespace_id);
        let message = format!("the request is of namespace {got:016x}, this node is of {own:016x}");
        return Err(Failure::new(FailureCode::WrongNamespace, message));
    }
    for (field, value) in [("request_id", &wire.request_id), ("salt", &wire.salt)] {
        if value.len() > NAME_BYTES_MAX {
            return invalid(format!("`{field}` has {} bytes; at most {NAME_BYTES_MAX} are taken", value.len()));
        }
    }
    if wire.prompt.is_empty() {
        return invalid("`prompt` is empty; at least one token is needed".into());
    }
    if wire.prefill.len() > PREFILL_CHOICES_MAX {
        return invalid(format!("{} prefill nodes are named; at most {PREFILL_CHOICES_MAX} are", wire.prefill.len()));
    }
    let stop = convert::stop_rule(wire.stop.clone(), spec)?;
    let params = convert::sampling(wire.sampling.clone(), spec)?;
    check_length(core, wire.prompt.len(), stop.max_tokens())?;
    convert::check_tokens("prompt", &wire.prompt, spec)?;
    convert::check_tokens("forced", &wire.forced, spec)?;

    let mut sampler = Sampler::new(params, stop, &wire.prompt)
        .map_err(|error| Failure::new(FailureCode::InvalidRequest, error.to_string()))?;
    let mut finish = None;
    for (at, &token) in wire.forced.iter().enumerate() {
        if finish.is_some() {
            return invalid(format!("`forced` goes on after the answer ended, from place {at}"));
        }
        finish = sampler.push(token);
    }
    Ok(Checked { sampler, finish })
}

/// The longest the request can grow to must fit into the context and into the pool.
fn check_length(core: &Core, prompt: usize, max_tokens: u32) -> Result<(), Failure> {
    let (spec, pool) = (core.node().spec(), core.node().kv().blocks());
    let too_long = |message| Err(Failure::new(FailureCode::TooLong, message));
    let total = prompt as u64 + u64::from(max_tokens);
    if total > u64::from(spec.context_tokens) {
        return too_long(format!(
            "prompt and max_tokens are {prompt} + {max_tokens} tokens; context_tokens is {}",
            spec.context_tokens
        ));
    }
    // The last output token is never run, so it needs no KV.
    let blocks = (total - 1).div_ceil(u64::from(spec.format.block_tokens));
    if blocks > u64::from(pool) {
        return too_long(format!("prompt and max_tokens need {blocks} KV blocks; the pool has {pool}"));
    }
    Ok(())
}
