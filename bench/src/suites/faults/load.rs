//! Requests in flight, watched while they run.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::answer::{Answer, Ask, Collector, follow};
use crate::client::{Client, ClientError};

/// The deadline of every request: the gateway is told it, and hands it on to the nodes.
pub(super) const DEADLINE: Duration = Duration::from_secs(20);
/// What a request that ends at its deadline may take to be heard here.
const GRACE: Duration = Duration::from_secs(1);

/// A request in flight.
pub(super) struct Stream {
    /// Which of the round's questions.
    pub index: usize,
    tokens_max: usize,
    collector: Arc<Mutex<Collector>>,
    task: JoinHandle<Over>,
}

struct Over {
    /// When it was sent, if it ended well; `None` if it did not end in time.
    end: Option<Result<Instant, ClientError>>,
    began: Instant,
    ended: Instant,
}

/// How one ended.
pub(super) struct Ended {
    pub index: usize,
    /// `None`: not at all, by its deadline.
    pub outcome: Option<Result<Answer, ClientError>>,
    /// What came, also where it broke.
    pub collected: Collector,
    /// When it ended.
    pub at: Instant,
    pub took: Duration,
}

impl Stream {
    pub(super) fn open(client: &Client, model: &str, index: usize, ask: &Ask) -> Self {
        let (client, model, question) = (client.clone(), model.to_owned(), ask.clone());
        let collector = Arc::<Mutex<Collector>>::default();
        let tokens_max = ask.max_tokens as usize;
        let task = tokio::spawn({
            let collector = Arc::clone(&collector);
            async move {
                let began = Instant::now();
                let end = timeout(DEADLINE + GRACE, follow(&client, &model, &question, &collector)).await.ok();
                Over { end, began, ended: Instant::now() }
            }
        });
        Self { index, tokens_max, collector, task }
    }

    /// Tokens that have come.
    pub(super) fn tokens(&self) -> usize {
        self.collector.lock().unwrap_or_else(PoisonError::into_inner).tokens.len()
    }

    /// It has ended, in whatever way.
    pub(super) fn is_over(&self) -> bool {
        self.task.is_finished()
    }

    /// No token has come yet.
    pub(super) fn is_waiting(&self) -> bool {
        !self.is_over() && self.tokens() == 0
    }

    /// In the middle of its answer, with half of it still to come.
    pub(super) fn is_answering(&self) -> bool {
        (1..=self.tokens_max / 2).contains(&self.tokens())
    }

    /// Hangs up, and gives what came until then.
    pub(super) fn disconnect(self) -> (usize, Collector) {
        self.task.abort();
        (self.index, self.collector.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    pub(super) async fn end(self) -> Result<Ended, String> {
        let Over { end, began, ended } = self.task.await.map_err(|e| e.to_string())?;
        let collected = self.collector.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let outcome = end.map(|end| end.and_then(|sent| collected.clone().finish(sent)));
        Ok(Ended { index: self.index, outcome, collected, at: ended, took: ended - began })
    }
}
