//! The way of an answer's messages from the node to the gateway.
//!
//! The sending side ([`Outlet`]) never blocks and never waits: its channel has room for every message that the answer can
//! have. The receiving side ([`Replies`]) is the gRPC stream: it adds heartbeats, and dropping it cancels the request.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use kvrail_node::Failure;
use kvrail_proto::v1;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep};
use tokio_stream::Stream;
use v1::generate_reply::Message;

/// Messages of an answer beside its tokens: accepted, done or failure.
const OTHER_MESSAGES: usize = 4;

/// Sends an answer. Clones share it; after the last message of the answer the others say nothing.
#[derive(Clone, Debug)]
pub struct Outlet(Arc<Mutex<Option<mpsc::Sender<v1::GenerateReply>>>>);

impl Outlet {
    /// A way for at most `tokens_max` tokens.
    #[must_use]
    pub fn new(tokens_max: u32) -> (Self, mpsc::Receiver<v1::GenerateReply>) {
        let (sender, receiver) = mpsc::channel(tokens_max as usize + OTHER_MESSAGES);
        (Self(Arc::new(Mutex::new(Some(sender)))), receiver)
    }

    /// Tells that the request was admitted.
    pub fn accepted(&self, cached_tokens: u32) {
        self.send(Message::Accepted(v1::GenerateAccepted { cached_tokens }));
    }

    /// Sends a token.
    pub fn token(&self, token: v1::Token) {
        self.send(Message::Token(token));
    }

    /// Ends the answer. True the first time.
    pub fn done(&self, done: v1::GenerateDone) -> bool {
        self.end(Message::Done(done))
    }

    /// Ends the answer with a failure. True the first time.
    pub fn failed(&self, failure: Failure) -> bool {
        self.end(Message::Failure(failure.into()))
    }

    fn send(&self, message: Message) {
        if let Some(sender) = &*self.0.lock() {
            // Closed: the gateway has gone, and its cancellation is on the way. Full cannot be.
            let _ = sender.try_send(v1::GenerateReply { message: Some(message) });
        }
    }

    fn end(&self, message: Message) -> bool {
        let Some(sender) = self.0.lock().take() else { return false };
        let _ = sender.try_send(v1::GenerateReply { message: Some(message) });
        true
    }
}

/// What is told when the stream is dropped.
pub trait Cancel: Send + Sync {
    /// Nobody listens any more.
    fn cancel(&self);
}

/// The gRPC stream of an answer.
pub struct Replies {
    messages: mpsc::Receiver<v1::GenerateReply>,
    every: Duration,
    silence: Pin<Box<Sleep>>,
    on_drop: Option<Box<dyn Cancel>>,
}

impl Replies {
    /// A stream that says at least something each `every`, and cancels through `on_drop` when it is dropped.
    #[must_use]
    pub fn new(messages: mpsc::Receiver<v1::GenerateReply>, every: Duration, on_drop: Option<Box<dyn Cancel>>) -> Self {
        Self { messages, every, silence: Box::pin(tokio::time::sleep(every)), on_drop }
    }
}

impl Stream for Replies {
    type Item = Result<v1::GenerateReply, tonic::Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        let message = match this.messages.poll_recv(cx) {
            Poll::Ready(message) => message,
            Poll::Pending => {
                std::task::ready!(this.silence.as_mut().poll(cx));
                Some(v1::GenerateReply { message: Some(Message::Heartbeat(v1::Heartbeat {})) })
            }
        };
        this.silence.as_mut().reset(Instant::now() + this.every);
        Poll::Ready(message.map(Ok))
    }
}

impl Drop for Replies {
    fn drop(&mut self) {
        if let Some(cancel) = self.on_drop.take() {
            cancel.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use kvrail_node::FailureCode;
    use tokio_stream::StreamExt;

    use super::*;

    struct Count(Arc<AtomicU32>);
    impl Cancel for Count {
        fn cancel(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_stream_beats_and_a_dropped_one_cancels() {
        let (outlet, receiver) = Outlet::new(2);
        let cancelled = Arc::new(AtomicU32::new(0));
        let every = Duration::from_secs(1);
        let mut replies = Replies::new(receiver, every, Some(Box::new(Count(Arc::clone(&cancelled)))));
        outlet.accepted(5);
        let next = replies.next().await.expect("open").expect("a message");
        assert!(matches!(next.message, Some(Message::Accepted(a)) if a.cached_tokens == 5));
        let before = Instant::now();
        let next = replies.next().await.expect("open").expect("a message");
        assert!(matches!(next.message, Some(Message::Heartbeat(_))));
        assert_eq!(before.elapsed(), every);
        drop(replies);
        assert_eq!(cancelled.load(Ordering::Relaxed), 1);
        outlet.token(v1::Token::default());
    }

    #[tokio::test]
    async fn nothing_follows_the_end() {
        let (outlet, receiver) = Outlet::new(2);
        assert!(outlet.failed(Failure::new(FailureCode::Draining, "going")));
        outlet.token(v1::Token::default());
        assert!(!outlet.done(v1::GenerateDone::default()));
        let replies = Replies::new(receiver, Duration::from_secs(1), None);
        let all: Vec<_> = replies.collect().await;
        assert_eq!(all.len(), 1);
    }
}
