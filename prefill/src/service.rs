//! The gRPC door: checks a request, gives it a place in the line or a typed refusal, and hands it to a courier.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kvrail_node::metrics::name;
use kvrail_node::{Failure, FailureCode, grpc};
use kvrail_proto::v1;
use kvrail_proto::v1::prefill_reply::Message as Reply;
use kvrail_proto::v1::prefill_request::Message as Request;
use kvrail_proto::v1::prefill_server::Prefill;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Response, Status, Streaming};

use crate::courier::{Courier, REPLIES_MAX, Replies, Target, reply};
use crate::job::Job;
use crate::schedule::JobId;
use crate::shared::Shared;

/// Time that a stream may take to say what it wants.
const START_TIMEOUT: Duration = Duration::from_secs(5);

/// The service behind the door.
pub(crate) struct PrefillService {
    shared: Arc<Shared>,
    next_job: AtomicU64,
}

impl PrefillService {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, next_job: AtomicU64::new(1) }
    }
}

#[tonic::async_trait]
impl Prefill for PrefillService {
    type RunStream = ReceiverStream<Result<v1::PrefillReply, Status>>;

    async fn run(
        &self,
        request: tonic::Request<Streaming<v1::PrefillRequest>>,
    ) -> Result<Response<Self::RunStream>, Status> {
        let (replies, stream) = mpsc::channel(REPLIES_MAX);
        let (shared, id) = (Arc::clone(&self.shared), JobId(self.next_job.fetch_add(1, Ordering::Relaxed)));
        tokio::spawn(async move {
            let outcome = match serve(&shared, id, request.into_inner(), replies).await {
                Ok(()) => "done",
                Err(failure) => failure.code.as_str(),
            };
            shared.node.metrics().counter(name::REQUESTS_ENDED, &[("outcome", outcome)]).increment(1);
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

async fn serve(
    shared: &Arc<Shared>,
    id: JobId,
    mut requests: Streaming<v1::PrefillRequest>,
    replies: Replies,
) -> Result<(), Failure> {
    shared.stats.requests.increment(1);
    let admitted = match shared.node.drain().enter() {
        Some(in_flight) => admit(shared, id, &mut requests).await.map(|admitted| (in_flight, admitted)),
        None => Err(Failure::new(FailureCode::Draining, "the node is going away")),
    };
    let (in_flight, admitted) = match admitted {
        Ok(admitted) => admitted,
        Err(failure) => {
            tracing::debug!(code = %failure.code, message = failure.message, "refused");
            let _ = reply(&replies, Reply::Failure(failure.clone().into()));
            return Err(failure);
        }
    };
    let Admitted { job, queued, target, deadline } = admitted;
    shared.publish_load();
    let request_id = job.request_id.clone();
    let courier = Courier::new(Arc::clone(shared), job, replies, requests, deadline);
    let result = courier.run(queued, target).await;
    drop(in_flight);
    shared.publish_load();
    if let Err(failure) = &result {
        tracing::debug!(request = request_id, code = %failure.code, message = failure.message, "ended");
    }
    result
}

/// A request with its place in the line.
struct Admitted {
    job: Arc<Job>,
    queued: v1::PrefillQueued,
    target: Target,
    deadline: Instant,
}

async fn admit(shared: &Shared, id: JobId, requests: &mut Streaming<v1::PrefillRequest>) -> Result<Admitted, Failure> {
    let invalid = |message: &str| Failure::new(FailureCode::InvalidRequest, message);
    let start = match tokio::time::timeout(START_TIMEOUT, requests.message()).await {
        Ok(Ok(Some(v1::PrefillRequest { message: Some(Request::Start(start)) }))) => start,
        Ok(Ok(Some(_))) => return Err(invalid("the first message must be `start`")),
        Ok(Ok(None)) => return Err(Failure::new(FailureCode::Cancelled, "the stream ended before `start`")),
        // What came, and cannot be read.
        Ok(Err(status)) if matches!(status.code(), tonic::Code::Internal | tonic::Code::OutOfRange) => {
            return Err(invalid(&format!("the first message cannot be read: {}", status.message())));
        }
        Ok(Err(status)) => return Err(Failure::new(FailureCode::Cancelled, format!("the stream broke: {status}"))),
        Err(_) => return Err(invalid("no `start` within 5 seconds")),
    };
    let node = &shared.node;
    if start.namespace_id != node.info().namespace_id {
        let message =
            format!("namespace {:016x}; this node's is {:016x}", start.namespace_id, node.info().namespace_id);
        return Err(Failure::new(FailureCode::WrongNamespace, message));
    }
    if start.decode_transfer_address.is_empty() {
        return Err(invalid("`decode_transfer_address` is missing"));
    }
    let config = &shared.config;
    let deadline = grpc::deadline(Instant::now(), start.deadline_ms, config.deadline_default, config.deadline_max);
    let target = Target {
        address: start.decode_transfer_address.clone(),
        generation: (start.decode_generation != 0).then_some(start.decode_generation),
    };
    let namespace = node.namespace(&start.salt);
    let job = Arc::new(Job::new(id, start, node.spec(), &namespace, node.kv().blocks(), deadline)?);
    let place = shared.queue.offer(&job).map_err(|full| {
        let message = format!("{} requests with {} tokens are waiting", full.requests, full.tokens);
        Failure::new(FailureCode::QueueFull, message).retry_after(shared.retry_after())
    })?;
    let queued = v1::PrefillQueued { position: place.position, tokens_ahead: place.tokens_ahead };
    Ok(Admitted { job, queued, target, deadline })
}
