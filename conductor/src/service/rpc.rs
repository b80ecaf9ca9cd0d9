//! The gRPC face of the conductor: `Join`, `Route`, `Watch`.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::Stream;
use futures::stream::unfold;
use kvrail_kv::{ChainHash, KvEvent, KvEventBatch};
use kvrail_proto::convert::Malformed;
use kvrail_proto::v1;
use kvrail_proto::v1::conductor_server::Conductor;
use kvrail_proto::v1::{conductor_message, node_message, route_reply};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::state::State;
use crate::core::CoreError;
use crate::members::{MemberId, MembershipError, Node};
use crate::route::{self, Refusal};

/// Time a new stream has for its registration.
const REGISTER_MAX: Duration = Duration::from_secs(5);
/// Messages waiting for a node that does not read them; past that its stream is ended.
const OUTBOUND_MAX: usize = 8;
/// Most node ids in a request's `exclude`.
const EXCLUDE_MAX: usize = 64;

pub(super) struct Rpc(pub(super) Arc<State>);

type Outbound = Result<v1::ConductorMessage, Status>;

fn malformed(error: Malformed) -> Status {
    Status::invalid_argument(error.to_string())
}

fn refused(error: &CoreError) -> Status {
    match error {
        CoreError::Membership(MembershipError::Unknown) => Status::failed_precondition(error.to_string()),
        CoreError::Membership(MembershipError::Full { .. }) => Status::resource_exhausted(error.to_string()),
        CoreError::Membership(MembershipError::Node(_)) | CoreError::Source(_) => {
            Status::invalid_argument(error.to_string())
        }
    }
}

fn to_node(message: conductor_message::Message) -> v1::ConductorMessage {
    v1::ConductorMessage { message: Some(message) }
}

/// In words, why no KV can move between `me` and the others that serve the same model; `None` if it can with one of them,
/// or there are none.
fn odd_one_out<'a>(me: &Node, nodes: impl Iterator<Item = &'a Node>) -> Option<String> {
    let others: Vec<&Node> = nodes.filter(|n| n.node_id != me.node_id && n.model == me.model).collect();
    if others.iter().any(|n| n.namespace_id == me.namespace_id) {
        return None;
    }
    let other = others.first()?;
    let parts = [
        ("KV format", me.format.to_string(), other.format.to_string()),
        ("numerics", me.numerics.clone(), other.numerics.clone()),
        ("model file", me.model_digest.clone(), other.model_digest.clone()),
    ];
    let differs = parts.iter().filter(|(_, mine, theirs)| mine != theirs);
    let differs: Vec<String> = differs.map(|(what, mine, theirs)| format!("{what} {mine} against {theirs}")).collect();
    Some(format!(
        "no KV can move between it and {}, which serves `{}` too: {}",
        other.node_id,
        me.model,
        differs.join(", ")
    ))
}

#[tonic::async_trait]
impl Conductor for Rpc {
    type JoinStream = ReceiverStream<Outbound>;

    async fn join(&self, request: Request<Streaming<v1::NodeMessage>>) -> Result<Response<Self::JoinStream>, Status> {
        let mut inbound = request.into_inner();
        let first = tokio::time::timeout(REGISTER_MAX, inbound.message())
            .await
            .map_err(|_| Status::deadline_exceeded("no registration came"))??;
        let Some(node_message::Message::Register(info)) = first.and_then(|m| m.message) else {
            return Err(Status::invalid_argument("the first message must be `register`"));
        };
        let node = Node::try_from(info).map_err(malformed)?;
        let (name, role, generation) = (node.node_id.clone(), node.role, node.generation);
        let me = node.clone();
        let id = self.0.with(|core, now| core.handle_register(node, now)).map_err(|e| refused(&e))?;
        tracing::info!(node = %name, ?role, generation = format!("{generation:016x}"), "node joined");
        if let Some(odd) = self.0.with(|core, _| odd_one_out(&me, core.members().iter().map(|m| &m.node))) {
            tracing::warn!(node = %name, "{odd}");
        }

        let (outbound, replies) = mpsc::channel(OUTBOUND_MAX);
        let registered =
            v1::Registered { lease_ms: self.0.config.core.lease.as_millis() as u64, conductor_epoch: self.0.epoch };
        // The channel is empty and its receiver is here: this cannot fail.
        let _ = outbound.try_send(Ok(to_node(conductor_message::Message::Registered(registered))));
        let state = Arc::clone(&self.0);
        tokio::spawn(async move {
            let end = follow(&state, id, &mut inbound, &outbound).await;
            tracing::info!(node = %name, reason = %end.as_ref().map_or("left", Status::message), "node's stream ended");
            if let Some(status) = end {
                state.with(|core, _| core.handle_disconnected(id));
                let _ = outbound.try_send(Err(status));
            }
        });
        Ok(Response::new(ReceiverStream::new(replies)))
    }

    async fn route(&self, request: Request<v1::RouteRequest>) -> Result<Response<v1::RouteReply>, Status> {
        let asked = Instant::now();
        let request = request.into_inner();
        if request.chain.len() > request.prompt_tokens as usize || request.exclude.len() > EXCLUDE_MAX {
            return Err(Status::invalid_argument("more chain hashes than prompt tokens, or too many nodes excluded"));
        }
        let chain: Vec<ChainHash> = request.chain.iter().copied().map(ChainHash).collect();
        let wanted = route::Request {
            model: &request.model,
            namespace_id: request.namespace_id,
            prompt_tokens: request.prompt_tokens,
            max_tokens: request.max_tokens,
            exclude: &request.exclude,
            matches: &[],
        };
        let reply = self.0.with(|core, now| match core.route(&wanted, &chain, now) {
            Err(refusal) => route_reply::Reply::Failure(failure(&refusal)),
            Ok((decision, members)) => match choice(&decision, members) {
                Some(choice) => route_reply::Reply::Choice(choice),
                None => route_reply::Reply::Failure(failure(&Refusal::NoNodes { why: "it left just now" })),
            },
        });
        if let route_reply::Reply::Choice(choice) = &reply {
            tracing::debug!(request = %request.request_id, reason = %choice.reason, "routed");
        }
        self.0.route_seconds.record(asked.elapsed());
        Ok(Response::new(v1::RouteReply { reply: Some(reply) }))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<v1::Members, Status>> + Send>>;

    async fn watch(&self, _: Request<v1::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let permit = Arc::clone(&self.0.watchers)
            .try_acquire_owned()
            .map_err(|_| Status::resource_exhausted("too many gateways watch already"))?;
        let mut members = self.0.published.subscribe();
        members.mark_changed();
        let stop = self.0.stop.clone();
        // Only the newest state is sent: a slow gateway skips what it missed.
        let stream = unfold((members, stop, permit), |(mut members, stop, permit)| async move {
            tokio::select! {
                changed = members.changed() => changed.ok()?,
                () = stop.cancelled() => return None,
            }
            let newest = v1::Members::clone(&members.borrow_and_update());
            Some((Ok(newest), (members, stop, permit)))
        });
        Ok(Response::new(Box::pin(stream)))
    }
}

/// Takes a member's messages until its stream ends. `None`: it left; else why the stream is over.
async fn follow(
    state: &State,
    id: MemberId,
    inbound: &mut Streaming<v1::NodeMessage>,
    outbound: &mpsc::Sender<Outbound>,
) -> Option<Status> {
    loop {
        let message = tokio::select! {
            message = inbound.message() => message,
            () = outbound.closed() => return Some(Status::cancelled("the node closed the stream")),
            () = state.stop.cancelled() => return Some(Status::unavailable("the conductor is stopping")),
        };
        let message = match message {
            Err(status) => return Some(status),
            Ok(None) => return Some(Status::cancelled("the node closed the stream")),
            Ok(Some(message)) => message,
        };
        let Some(message) = message.message else {
            return Some(malformed(Malformed("message")));
        };
        match take(state, id, message) {
            Err(status) => return Some(status),
            Ok(Taken::Left) => return None,
            Ok(Taken::Done) => {}
            Ok(Taken::Resync { expected_sequence }) => {
                tracing::warn!(member = id.0, expected_sequence, "KV events were lost; asking for a snapshot");
                let resync = v1::ResyncWanted { expected_sequence };
                if outbound.try_send(Ok(to_node(conductor_message::Message::Resync(resync)))).is_err() {
                    return Some(Status::resource_exhausted("the node does not read what it is told"));
                }
            }
        }
    }
}

enum Taken {
    Done,
    Left,
    Resync { expected_sequence: u64 },
}

fn take(state: &State, id: MemberId, message: node_message::Message) -> Result<Taken, Status> {
    let result = match message {
        node_message::Message::Register(_) => return Err(Status::invalid_argument("registered already")),
        node_message::Message::Leave(_) => {
            state.with(|core, _| core.handle_leave(id));
            return Ok(Taken::Left);
        }
        node_message::Message::Load(load) => state.with(|core, now| core.handle_load(id, load.into(), now)),
        node_message::Message::Events(batch) => {
            let events: Result<Vec<_>, _> = batch.events.into_iter().map(KvEvent::try_from).collect();
            let batch = KvEventBatch { first_sequence: batch.first_sequence, events: events.map_err(malformed)? };
            match state.with(|core, now| core.handle_events(id, batch, now)) {
                Ok(Some(expected_sequence)) => return Ok(Taken::Resync { expected_sequence }),
                other => other.map(|_| ()),
            }
        }
        node_message::Message::Snapshot(part) => {
            let stored: Result<Vec<_>, _> = part.stored.into_iter().map(KvEvent::try_from).collect();
            let (stored, next, last) = (stored.map_err(malformed)?, part.next_sequence, part.last);
            state.with(|core, now| core.handle_snapshot(id, stored, next, last, now))
        }
    };
    result.map(|()| Taken::Done).map_err(|e| refused(&e))
}

fn failure(refusal: &Refusal) -> v1::Failure {
    let retry_after = refusal.retry_after();
    v1::Failure {
        code: refusal.code().into(),
        message: refusal.to_string(),
        retryable: retry_after.is_some(),
        retry_after_ms: retry_after.map_or(0, |d| d.as_millis() as u32),
    }
}

/// The decision with its members' addresses.
fn choice(decision: &route::Decision, members: &dyn crate::members::Membership) -> Option<v1::RouteChoice> {
    let decode = &members.get(decision.decode)?.node;
    let prefill = decision.prefill.iter().filter_map(|pick| {
        let node = &members.get(pick.id)?.node;
        Some(v1::PrefillChoiceRef {
            node_id: node.node_id.clone(),
            grpc_address: node.grpc_address.clone(),
            cached_blocks: pick.cached_blocks,
        })
    });
    Some(v1::RouteChoice {
        decode_node: decode.node_id.clone(),
        decode_address: decode.grpc_address.clone(),
        prefill: prefill.collect(),
        reason: decision.reason.clone(),
    })
}

#[cfg(test)]
mod tests {
    use kvrail_kv::DType;

    use super::*;
    use crate::testing::node;

    #[test]
    fn a_node_that_fits_nobody_is_told_apart_and_why() {
        let (a, b) = (node("a"), node("b"));
        assert_eq!(odd_one_out(&a, [].into_iter()), None, "the first of its model");
        assert_eq!(odd_one_out(&b, [&a, &b].into_iter()), None);
        let mut odd = node("odd");
        odd.namespace_id = 2;
        odd.format.dtype = DType::F32;
        let why = odd_one_out(&odd, [&a, &odd].into_iter()).expect("it fits nobody");
        assert!(why.contains("between it and a,") && why.contains("KV format") && !why.contains("numerics"), "{why}");
        odd.model = "another".into();
        assert_eq!(odd_one_out(&odd, [&a, &odd].into_iter()), None);
    }
}
