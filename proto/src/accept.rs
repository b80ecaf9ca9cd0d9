//! Taking connections from a listener without spinning on errors.

use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

/// Pause after a failed accept (no file descriptors, say), so that the loop does not spin.
const PAUSE: Duration = Duration::from_millis(50);
/// Failed accepts are told at most so often.
const WARN_INTERVAL: Duration = Duration::from_secs(10);

/// A listener that gives connections and keeps its errors to itself and the log.
#[derive(Debug)]
pub struct Acceptor {
    listener: TcpListener,
    quiet_until: Option<Instant>,
}

impl Acceptor {
    /// Takes from `listener`.
    #[must_use]
    pub const fn new(listener: TcpListener) -> Self {
        Self { listener, quiet_until: None }
    }

    /// The next connection, without delay (`TCP_NODELAY`). Nothing is lost when it is dropped early.
    pub async fn next(&mut self) -> TcpStream {
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    let _ = stream.set_nodelay(true);
                    return stream;
                }
                Err(error) => {
                    if self.may_warn(Instant::now()) {
                        tracing::warn!(%error, "connections cannot be accepted");
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    fn may_warn(&mut self, now: Instant) -> bool {
        let may = self.quiet_until.is_none_or(|until| now >= until);
        if may {
            self.quiet_until = Some(now + WARN_INTERVAL);
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn errors_are_told_once_an_interval() {
        let mut acceptor = Acceptor::new(TcpListener::bind("127.0.0.1:0").await.unwrap());
        let now = Instant::now();
        assert!(acceptor.may_warn(now));
        assert!(!acceptor.may_warn(now + PAUSE));
        assert!(acceptor.may_warn(now + WARN_INTERVAL));
        assert!(!acceptor.may_warn(now + WARN_INTERVAL + PAUSE));
    }
}
