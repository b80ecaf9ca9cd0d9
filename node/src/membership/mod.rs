//! The node's one stream to the conductor: registers, renews, reports load, tells KV events, sends snapshots.
//!
//! Law 6 rules here: without a conductor the node serves on. This task only ever reads what the node publishes, waits for
//! nobody else, and holds a bounded backlog ([`log`]); when that overflows, or the conductor asks, a snapshot starts anew.
//!
//! ```text
//! connect ─▶ Register ─▶ Registered ─▶ Snapshot ─▶ { Events | Load | Snapshot when asked } … ─▶ Leave
//!    ▲                                                              │ stream broke
//!    └────────────────────── back-off with jitter ◀─────────────────┘
//! ```

pub mod log;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kvrail_kv::KvEvent;
use kvrail_proto::v1;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use v1::conductor_client::ConductorClient;
use v1::{conductor_message, node_message};

use crate::backoff::Backoff;
use crate::grpc::{self, GrpcConfig};
use log::Backlog;

/// Events a message; a message stays far below its bound.
const EVENTS_PER_MESSAGE: usize = 1024;
/// Block hashes a snapshot message.
const HASHES_PER_SNAPSHOT: usize = 65_536;
/// Time the conductor has to answer a registration.
const REGISTER_TIMEOUT: Duration = Duration::from_secs(3);
/// How often it is said again that the conductor cannot be joined.
const TELL_AGAIN: Duration = Duration::from_secs(30);
/// Messages on their way into the stream.
const OUTBOX: usize = 8;

/// Where KV events come from. The node's cache implements it.
pub trait EventSource: Send + Sync + 'static {
    /// Takes waiting events.
    fn take(&self, events_max: usize) -> Backlog;
    /// Everything held now, as `Stored` events, and the sequence number of the next event after it.
    fn snapshot(&self) -> (u64, Vec<KvEvent>);
    /// Sequence number of the next event that happens.
    fn next_sequence(&self) -> u64;
    /// The listener is gone: keep nothing for it.
    fn drop_listener(&self);
    /// Notified when events were added.
    fn changed(&self) -> &Notify;
}

/// How the node keeps in touch.
#[derive(Clone, Debug)]
pub struct MembershipConfig {
    /// `host:port` of the conductor's gRPC.
    pub conductor: String,
    /// Changes within this time travel together.
    pub coalesce: Duration,
    /// Bound of the first wait before reconnecting; doubles.
    pub backoff: Duration,
    /// Bound of the longest wait.
    pub backoff_max: Duration,
}

impl MembershipConfig {
    /// Defaults for the conductor at `address`.
    #[must_use]
    pub fn new(address: impl Into<String>) -> Self {
        Self {
            conductor: address.into(),
            coalesce: Duration::from_millis(10),
            backoff: Duration::from_millis(100),
            backoff_max: Duration::from_secs(2),
        }
    }
}

/// The running client.
#[derive(Debug)]
pub struct Membership {
    connected: Connected,
    leave: CancellationToken,
    task: JoinHandle<()>,
}

/// Whether the conductor has this node registered, as far as the node knows. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Connected(Arc<AtomicBool>);

impl Connected {
    /// The state now.
    #[must_use]
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Membership {
    /// Starts the client; it never ends by itself.
    ///
    /// # Errors
    /// [`grpc::GrpcError::Address`] if the conductor's address is none. That it is not there is no error.
    pub fn start(
        config: MembershipConfig,
        grpc: &GrpcConfig,
        info: v1::NodeInfo,
        source: Arc<dyn EventSource>,
        load: watch::Receiver<v1::Load>,
    ) -> Result<Self, grpc::GrpcError> {
        let channel = grpc::channel(grpc, &config.conductor)?;
        let client = ConductorClient::new(channel)
            .max_decoding_message_size(grpc.message_bytes_max)
            .max_encoding_message_size(grpc.message_bytes_max);
        let connected = Connected::default();
        let leave = CancellationToken::new();
        let member = Member {
            client,
            source,
            load,
            load_sequence: 0,
            coalesce: config.coalesce,
            connected: connected.clone(),
            leave: leave.clone(),
            info,
        };
        let backoff = Backoff::new(config.backoff, config.backoff_max, member.info.generation);
        let task = tokio::spawn(member.run(config.conductor, backoff));
        Ok(Self { connected, leave, task })
    }

    /// Whether the stream stands; goes on telling after [`Membership::leave`].
    #[must_use]
    pub fn connected(&self) -> Connected {
        self.connected.clone()
    }

    /// Tells the conductor that the node goes, for at most `within`.
    pub async fn leave(self, within: Duration) {
        self.leave.cancel();
        let abort = self.task.abort_handle();
        if tokio::time::timeout(within, self.task).await.is_err() {
            abort.abort();
        }
    }
}

struct Member {
    client: ConductorClient<tonic::transport::Channel>,
    info: v1::NodeInfo,
    source: Arc<dyn EventSource>,
    load: watch::Receiver<v1::Load>,
    load_sequence: u64,
    coalesce: Duration,
    connected: Connected,
    leave: CancellationToken,
}

/// Why a stream ended.
#[derive(Debug, thiserror::Error)]
enum StreamError {
    #[error("{0}")]
    Status(#[from] Box<tonic::Status>),
    #[error("the conductor closed the stream")]
    Closed,
    #[error("the conductor did not answer the registration within {} s", REGISTER_TIMEOUT.as_secs())]
    NoAnswer,
    #[error("the conductor's first message is not a registration")]
    Unexpected,
}

impl Member {
    async fn run(mut self, conductor: String, mut backoff: Backoff) {
        let leave = self.leave.clone();
        let mut told: Option<Instant> = None;
        loop {
            let ended = self.stream(&mut backoff).await;
            self.source.drop_listener();
            let was_connected = self.connected.0.swap(false, Ordering::Relaxed);
            match ended {
                Ok(()) => return,
                Err(error) if was_connected => {
                    tracing::warn!(%conductor, %error, "lost the conductor; serving on without it");
                    told = Some(Instant::now());
                }
                Err(error) if told.is_none_or(|at| at.elapsed() >= TELL_AGAIN) => {
                    tracing::warn!(%conductor, %error, "cannot join the conductor; trying again");
                    told = Some(Instant::now());
                }
                Err(error) => tracing::debug!(%conductor, %error, "cannot join the conductor"),
            }
            tokio::select! {
                () = tokio::time::sleep(backoff.next_wait()) => {}
                () = leave.cancelled() => return,
            }
        }
    }

    /// One stream from registration to its end; `Ok` after taking leave.
    async fn stream(&mut self, backoff: &mut Backoff) -> Result<(), StreamError> {
        let (outbox, messages) = mpsc::channel(OUTBOX);
        send(&outbox, node_message::Message::Register(self.info.clone())).await?;
        let join = self.client.join(ReceiverStream::new(messages));
        let registration = async {
            let mut replies = join.await.map_err(Box::new)?.into_inner();
            match replies.message().await.map_err(Box::new)?.and_then(|m| m.message) {
                Some(conductor_message::Message::Registered(registered)) => Ok((replies, registered)),
                Some(conductor_message::Message::Resync(_)) => Err(StreamError::Unexpected),
                None => Err(StreamError::Closed),
            }
        };
        let leave = self.leave.clone();
        let (mut replies, registered) = tokio::select! {
            answer = tokio::time::timeout(REGISTER_TIMEOUT, registration) => answer.map_err(|_| StreamError::NoAnswer)??,
            // Nobody to take leave of yet.
            () = leave.cancelled() => return Ok(()),
        };
        tracing::info!(lease_ms = registered.lease_ms, epoch = registered.conductor_epoch, "joined the conductor");
        self.connected.0.store(true, Ordering::Relaxed);
        backoff.reset();

        self.send_snapshot(&outbox).await?;
        self.send_load(&outbox).await?;
        let renew = Duration::from_millis(registered.lease_ms / 3).max(Duration::from_millis(10));
        let mut renew_at = Instant::now() + renew;
        let mut flush_at: Option<Instant> = None;
        let mut flushed = Instant::now();
        let source = Arc::clone(&self.source);
        loop {
            let flush = async {
                match flush_at {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                reply = replies.message() => {
                    match reply.map_err(Box::new)?.ok_or(StreamError::Closed)?.message {
                        Some(conductor_message::Message::Resync(wanted)) => {
                            tracing::info!(expected = wanted.expected_sequence, "the conductor wants a snapshot");
                            self.send_snapshot(&outbox).await?;
                        }
                        Some(conductor_message::Message::Registered(_)) | None => {}
                    }
                }
                () = source.changed().notified(), if flush_at.is_none() => flush_at = Some(flushed + self.coalesce),
                changed = self.load.changed(), if flush_at.is_none() => {
                    if changed.is_err() {
                        return Ok(());
                    }
                    flush_at = Some(flushed + self.coalesce);
                }
                () = flush => {
                    self.send_events(&outbox).await?;
                    self.send_load(&outbox).await?;
                    flush_at = None;
                    flushed = Instant::now();
                    renew_at = flushed + renew;
                }
                () = tokio::time::sleep_until(renew_at) => {
                    self.send_load(&outbox).await?;
                    renew_at = Instant::now() + renew;
                }
                () = leave.cancelled() => {
                    self.send_events(&outbox).await?;
                    send(&outbox, node_message::Message::Leave(v1::Leave {})).await?;
                    drop(outbox);
                    // The conductor closes its side once it has read the farewell.
                    while let Ok(Some(_)) = replies.message().await {}
                    return Ok(());
                }
            }
        }
    }

    async fn send_load(&mut self, outbox: &Outbox) -> Result<(), StreamError> {
        self.load_sequence += 1;
        let load = v1::Load {
            sequence: self.load_sequence,
            kv_next_sequence: self.source.next_sequence(),
            ..*self.load.borrow_and_update()
        };
        send(outbox, node_message::Message::Load(load)).await
    }

    async fn send_events(&self, outbox: &Outbox) -> Result<(), StreamError> {
        loop {
            match self.source.take(EVENTS_PER_MESSAGE) {
                Backlog::Empty => return Ok(()),
                Backlog::Lost => return self.send_snapshot(outbox).await,
                Backlog::Events(batch) => {
                    let events = batch.events.iter().map(Into::into).collect();
                    let message = v1::KvEvents { first_sequence: batch.first_sequence, events };
                    send(outbox, node_message::Message::Events(message)).await?;
                }
            }
        }
    }

    async fn send_snapshot(&self, outbox: &Outbox) -> Result<(), StreamError> {
        let (next_sequence, events) = self.source.snapshot();
        for message in snapshot_messages(next_sequence, &events) {
            send(outbox, node_message::Message::Snapshot(message)).await?;
        }
        Ok(())
    }
}

type Outbox = mpsc::Sender<v1::NodeMessage>;

async fn send(outbox: &Outbox, message: node_message::Message) -> Result<(), StreamError> {
    outbox.send(v1::NodeMessage { message: Some(message) }).await.map_err(|_| StreamError::Closed)
}

/// Cuts a snapshot into messages of at most [`HASHES_PER_SNAPSHOT`] hashes; the last one says so.
fn snapshot_messages(next_sequence: u64, events: &[KvEvent]) -> Vec<v1::KvSnapshot> {
    let mut messages = vec![];
    let (mut stored, mut hashes) = (vec![], 0);
    for event in events {
        let wire = v1::KvEvent::from(event);
        let Some(v1::kv_event::Event::Stored(run)) = wire.event else { continue };
        hashes += 1 + run.blocks.len();
        stored.push(run);
        if hashes >= HASHES_PER_SNAPSHOT {
            messages.push(v1::KvSnapshot { next_sequence, stored: std::mem::take(&mut stored), last: false });
            hashes = 0;
        }
    }
    messages.push(v1::KvSnapshot { next_sequence, stored, last: true });
    messages
}

#[cfg(test)]
mod tests {
    use kvrail_kv::{ChainHash, Tier};

    use super::*;

    #[test]
    fn a_large_snapshot_is_cut_and_loses_nothing() {
        let run = |i: u64| KvEvent::Stored {
            parent: None,
            blocks: (0..1000).map(|b| ChainHash(i * 1000 + b)).collect(),
            tier: Tier::Device,
        };
        let events: Vec<_> = (0..200).map(run).collect();
        let messages = snapshot_messages(7, &events);
        assert!(messages.len() > 2);
        assert!(messages.iter().all(|m| m.next_sequence == 7));
        assert_eq!(messages.iter().filter(|m| m.last).count(), 1);
        assert!(messages.last().is_some_and(|m| m.last));
        let sent: Vec<u64> = messages.iter().flat_map(|m| &m.stored).flat_map(|s| s.blocks.clone()).collect();
        assert_eq!(sent, (0..200_000).collect::<Vec<_>>());
        assert_eq!(snapshot_messages(1, &[]).len(), 1, "an empty node says so");
    }
}
