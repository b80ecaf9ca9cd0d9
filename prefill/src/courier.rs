//! The courier: one task a request, from its place in the line to its last acknowledged byte.
//!
//! It talks to the decode node, asks for leases, and awaits what has been handed to the transfer engine. All waiting happens here (for the lease, the peer, the wire, a slow reader), so a request in trouble costs the
//! executor nothing. Every wait ends: by what it waits for, by the deadline, by the peer's going, or by the node's.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use kvrail_engine::BlockId;
use kvrail_kv::KvFormat;
use kvrail_node::{Failure, FailureCode, convert};
use kvrail_proto::v1;
use kvrail_proto::v1::prefill_reply::Message as Reply;
use kvrail_proto::v1::prefill_request::Message as Request;
use kvrail_transfer::{LeaseTicket, Peer, Quiesce, Report, TransferError};
use tokio::sync::mpsc;
use tokio::time::{sleep, sleep_until};
use tonic::{Status, Streaming};

use crate::dispatch::{Dispatched, Grant, Route, Sent};
use crate::handoff::Piece;
use crate::job::{First, Job};
use crate::shared::Shared;

/// Replies that may wait for the decode node to read them; more and it counts as gone.
pub(crate) const REPLIES_MAX: usize = 64;
/// Replies that must stay possible when progress is told, which a later one tells anyway.
const REPLIES_KEPT: usize = 16;
/// Wait before the transfer engine is asked again after it was full and nothing of ours is in flight.
const FULL_RETRY: Duration = Duration::from_millis(1);

/// Replies to the decode node.
pub(crate) type Replies = mpsc::Sender<Result<v1::PrefillReply, Status>>;

/// Where the decode node's transfer engine is.
pub(crate) struct Target {
    /// `host:port`.
    pub address: String,
    /// Its generation, if told.
    pub generation: Option<u64>,
}

/// A parcel that has been reported.
struct Landed {
    number: u64,
    pieces: Vec<Piece>,
    report: Report,
}

pub(crate) struct Courier {
    shared: Arc<Shared>,
    job: Arc<Job>,
    replies: Replies,
    requests: Streaming<v1::PrefillRequest>,
    deadline: Instant,
    format: KvFormat,
    /// Leading blocks of the chain that are at the decode node, or for which a place was asked.
    wanted: u32,
    in_flight: FuturesUnordered<BoxFuture<'static, Landed>>,
    /// By parcel number: what may still read the job's blocks.
    lent: HashMap<u64, Quiesce>,
    parcel_number: u64,
    visible: Visible,
    first: Option<First>,
    payload_bytes: u64,
    retried_bytes: u64,
    last_visible: Option<Instant>,
}

impl Courier {
    pub(crate) fn new(
        shared: Arc<Shared>,
        job: Arc<Job>,
        replies: Replies,
        requests: Streaming<v1::PrefillRequest>,
        deadline: Instant,
    ) -> Self {
        let format = shared.node.spec().format;
        Self {
            visible: Visible::new(job.held, format.blocks_for(job.total()), format.layers),
            wanted: job.held,
            shared,
            job,
            replies,
            requests,
            deadline,
            format,
            in_flight: FuturesUnordered::new(),
            lent: HashMap::new(),
            parcel_number: 0,
            first: None,
            payload_bytes: 0,
            retried_bytes: 0,
            last_visible: None,
        }
    }

    /// Serves the request to its end, and lets go of its blocks when nothing can read them any more.
    pub(crate) async fn run(mut self, queued: v1::PrefillQueued, target: Target) -> Result<(), Failure> {
        let result = match reply(&self.replies, Reply::Queued(queued)) {
            Ok(()) => self.serve(target).await,
            Err(failure) => Err(failure),
        };
        self.shared.queue.remove(&self.job);
        if let Err(failure) = &result {
            // If it cannot be told, nobody listens.
            let _ = reply(&self.replies, Reply::Failure(failure.clone().into()));
        }
        // Nothing is handed over from here on, and what was is known here.
        let Dispatched { sent, .. } = self.job.with(|_, dispatch| {
            dispatch.close();
            dispatch.take_news()
        });
        self.await_sent(sent);
        let Self { shared, job, replies, requests, in_flight, lent, .. } = self;
        drop((replies, requests));
        // Cancels what has not been sent.
        drop(in_flight);
        for quiesce in lent.into_values() {
            quiesce.await;
        }
        drop(job);
        shared.publish_load();
        result
    }

    async fn serve(&mut self, target: Target) -> Result<(), Failure> {
        let engine = self.shared.node.engine().clone();
        let mut connecting = Box::pin(async move { connect(&engine, target).await });
        let (job, mut connected) = (Arc::clone(&self.job), false);
        loop {
            let full = self.advance()?;
            if let Some(done) = self.done() {
                return reply(&self.replies, Reply::Done(done));
            }
            tokio::select! {
                message = self.requests.message() => self.handle(message)?,
                () = job.news() => {}
                Some(landed) = self.in_flight.next() => self.landed(landed)?,
                peer = &mut connecting, if !connected => {
                    let (engine, region) = (self.shared.node.engine().clone(), self.shared.node.region().clone());
                    let route = Route { engine, region, peer: peer? };
                    job.with(|_, dispatch| dispatch.connected(route));
                    connected = true;
                }
                () = sleep(FULL_RETRY), if full => {}
                () = sleep_until(self.deadline.into()) => {
                    return Err(Failure::new(FailureCode::DeadlineExceeded, "the request's deadline has passed"));
                }
                () = self.replies.closed() => {
                    return Err(Failure::new(FailureCode::Cancelled, "the decode node has gone"));
                }
                () = self.shared.abort.cancelled() => {
                    return Err(Failure::new(FailureCode::Draining, "the node is going away"));
                }
            }
        }
    }

    /// Acts on what was published and handed over; true if the transfer engine was full.
    fn advance(&mut self) -> Result<bool, Failure> {
        let (progress, news) = self.job.with(|progress, dispatch| (progress.clone(), dispatch.take_news()));
        self.await_sent(news.sent);
        if let Some(failure) = news.failed {
            return Err(failure);
        }
        if news.full {
            self.shared.stats.waits();
        }
        let need = self.format.blocks_for(progress.computed.chunk_end);
        if need > self.wanted {
            let wanted = v1::LeaseWanted { first_block: self.wanted, count: need - self.wanted };
            self.wanted = need;
            reply(&self.replies, Reply::LeaseWanted(wanted))?;
        }
        if let (None, Some(end)) = (&self.first, progress.end) {
            let first = end?;
            let finish = first.finish.map_or(v1::FinishReason::Unspecified, convert::finish_reason);
            reply(
                &self.replies,
                Reply::FirstToken(v1::FirstToken {
                    token: Some(first.token.clone()),
                    finish: finish.into(),
                    cached_tokens: first.cached_tokens,
                }),
            )?;
            let ttft = self.job.arrived.elapsed();
            self.shared.stats.ttft.record(ttft.as_secs_f64());
            self.shared.stats.ttft_quantiles.record(ttft);
            self.shared.stats.cached(first.cached_tokens);
            self.first = Some(first);
        }
        Ok(news.full)
    }

    /// The answer ends with its first token: nobody needs the KV.
    fn answer_ended(&self) -> bool {
        self.first.as_ref().is_some_and(|first| first.finish.is_some())
    }

    /// Takes charge of what the transfer engine has accepted.
    fn await_sent(&mut self, sent: Vec<Sent>) {
        for Sent { transfer, pieces } in sent {
            self.parcel_number += 1;
            let number = self.parcel_number;
            self.lent.insert(number, transfer.quiesce());
            self.in_flight.push(Box::pin(async move { Landed { number, pieces, report: transfer.await } }));
        }
    }

    /// A parcel has been reported.
    fn landed(&mut self, landed: Landed) -> Result<(), Failure> {
        let Landed { number, pieces, report } = landed;
        self.payload_bytes += report.bytes;
        self.retried_bytes += report.retried_bytes;
        self.shared.stats.sent(report.bytes, report.retried_bytes);
        match report.status {
            Ok(()) => drop(self.lent.remove(&number)),
            Err(error) => {
                if error.memory_is_free() {
                    self.lent.remove(&number);
                }
                return Err(failed(&error));
            }
        }
        self.last_visible = self.last_visible.max(report.last_landed);
        let moved = pieces.iter().map(|piece| self.visible.add(piece.blocks(&self.format), piece.layers.len() as u32));
        let moved: u32 = moved.sum();
        self.shared.stats.blocks_visible.fetch_add(moved.into(), std::sync::atomic::Ordering::Relaxed);
        if moved > 0 && self.replies.capacity() > REPLIES_KEPT {
            reply(&self.replies, Reply::Progress(v1::PrefillProgress { blocks_visible: self.visible.leading }))?;
        }
        Ok(())
    }

    /// The last reply, once everything is there.
    fn done(&self) -> Option<v1::PrefillDone> {
        let first = self.first.as_ref()?;
        let (handed_over, last_layer) = self.job.with(|progress, dispatch| (dispatch.is_done(), progress.last_layer));
        let there = handed_over && self.in_flight.is_empty();
        if !there && !self.answer_ended() {
            return None;
        }
        let tail = match (last_layer, self.last_visible) {
            (Some(layer), Some(visible)) if !self.answer_ended() => {
                let tail = visible.saturating_duration_since(layer);
                self.shared.stats.tail_quantiles.record(tail);
                tail
            }
            _ => Duration::ZERO,
        };
        Some(v1::PrefillDone {
            payload_bytes: self.payload_bytes,
            retried_bytes: self.retried_bytes,
            last_layer_to_visible_us: tail.as_micros() as u64,
            compute_us: first.compute.as_micros() as u64,
            computed_tokens: self.job.total() - first.cached_tokens,
        })
    }

    fn handle(&mut self, message: Result<Option<v1::PrefillRequest>, Status>) -> Result<(), Failure> {
        let cancelled = |message: String| Err(Failure::new(FailureCode::Cancelled, message));
        match message {
            Ok(Some(v1::PrefillRequest { message: Some(Request::LeaseGranted(granted)) })) => self.grant(granted),
            Ok(Some(v1::PrefillRequest { message: Some(Request::Cancel(cancel)) })) => cancelled(cancel.reason),
            Ok(Some(v1::PrefillRequest { message: Some(Request::Start(_)) })) => {
                Err(Failure::new(FailureCode::InvalidRequest, "a second `start` on one stream"))
            }
            Ok(Some(v1::PrefillRequest { message: None })) => {
                Err(Failure::new(FailureCode::InvalidRequest, "a message without content"))
            }
            Ok(None) => cancelled("the decode node closed the stream".into()),
            Err(status) => cancelled(format!("the stream broke: {status}")),
        }
    }

    fn grant(&mut self, granted: v1::LeaseGranted) -> Result<(), Failure> {
        let invalid = |message: String| Err(Failure::new(FailureCode::InvalidRequest, message));
        let (first, count) = (granted.first_block, granted.count);
        let expected = self.job.with(|_, dispatch| dispatch.granted());
        let fits = count > 0 && first == expected && count <= self.wanted.saturating_sub(first);
        if !fits || granted.block_ids.len() != count as usize {
            return invalid(format!(
                "a lease of {count} blocks from {first} on with {} ids; blocks {expected}..{} are wanted",
                granted.block_ids.len(),
                self.wanted
            ));
        }
        let ticket = match LeaseTicket::from_bytes(&granted.ticket) {
            Ok(ticket) => ticket,
            Err(error) => return invalid(format!("`ticket`: {error}")),
        };
        let ids = granted.block_ids.into_iter().map(BlockId).collect();
        self.job.with(|_, dispatch| dispatch.grant(Grant { blocks: first..first + count, ticket, ids }));
        Ok(())
    }
}

/// Sends a reply without waiting: a decode node that reads nothing is as good as gone.
pub(crate) fn reply(replies: &Replies, message: Reply) -> Result<(), Failure> {
    replies.try_send(Ok(v1::PrefillReply { message: Some(message) })).map_err(|error| match error {
        mpsc::error::TrySendError::Closed(_) => Failure::new(FailureCode::Cancelled, "the decode node has gone"),
        mpsc::error::TrySendError::Full(_) => {
            Failure::new(FailureCode::PeerLost, format!("the decode node left {REPLIES_MAX} replies unread"))
        }
    })
}

async fn connect(engine: &kvrail_transfer::Engine, target: Target) -> Result<Peer, Failure> {
    let unreachable =
        |why: String| Failure::new(FailureCode::PeerLost, format!("the decode node's transfer engine: {why}"));
    let mut addresses =
        tokio::net::lookup_host(&target.address).await.map_err(|e| unreachable(format!("{}: {e}", target.address)))?;
    let address = addresses.next().ok_or_else(|| unreachable(format!("{} has no address", target.address)))?;
    engine.connect(address, target.generation).await.map_err(|error| unreachable(error.to_string()))
}

fn failed(error: &TransferError) -> Failure {
    let code = if error.is_stale() {
        FailureCode::LeaseExpired
    } else if error.is_peer_lost() {
        FailureCode::PeerLost
    } else if error.is_deadline() {
        FailureCode::DeadlineExceeded
    } else {
        FailureCode::TransferFailed
    };
    Failure::new(code, error.to_string())
}

/// Which blocks are whole at the receiver.
struct Visible {
    first: u32,
    /// Layers that are still missing, by block from `first` on.
    missing: Vec<u32>,
    /// Leading blocks of the chain that are whole there.
    leading: u32,
}

impl Visible {
    fn new(held: u32, total: u32, layers: u32) -> Self {
        Self { first: held, missing: vec![layers; total.saturating_sub(held) as usize], leading: held }
    }

    /// `layers` more layers of these blocks are there; by how much the whole prefix grew.
    fn add(&mut self, blocks: Range<u32>, layers: u32) -> u32 {
        for block in blocks {
            if let Some(missing) = self.missing.get_mut((block - self.first) as usize) {
                *missing -= layers;
            }
        }
        let before = self.leading;
        while self.missing.get((self.leading - self.first) as usize) == Some(&0) {
            self.leading += 1;
        }
        self.leading - before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_visible_with_its_last_layer_and_all_before_it() {
        let mut visible = Visible::new(2, 5, 3);
        assert_eq!(visible.add(3..5, 3), 0, "later blocks first");
        assert_eq!(visible.add(2..3, 2), 0);
        assert_eq!(visible.add(2..3, 1), 3);
        assert_eq!(visible.leading, 5);
    }
}
