//! Bodies that say when they have passed.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::body::{Body, Frame, SizeHint};

use super::waiting::Connection;

/// A body on a connection, whose end or drop changes whether the connection waits for its client.
pub(super) struct Tracked<B> {
    body: B,
    end: Option<End>,
}

/// What the end of a body means.
struct End {
    connection: Arc<Connection>,
    then: fn(&Connection),
}

impl Drop for End {
    fn drop(&mut self) {
        (self.then)(&self.connection);
    }
}

impl<B: Body> Tracked<B> {
    /// The body of a request: the connection waits until it has all of it.
    pub(super) fn request(body: B, connection: Arc<Connection>) -> Self {
        connection.waits();
        let end = End { connection, then: Connection::works };
        Self { end: (!body.is_end_stream()).then_some(end), body }
    }

    /// The body of an answer: once it is out, the connection waits for the next request.
    pub(super) fn response(body: B, connection: Arc<Connection>) -> Self {
        Self { body, end: Some(End { connection, then: Connection::waits }) }
    }
}

impl<B: Body + Unpin> Body for Tracked<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if matches!(frame, Poll::Ready(None | Some(Err(_)))) || self.body.is_end_stream() {
            self.end = None;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
