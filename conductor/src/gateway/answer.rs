//! From the events of a request's choices to its answer: one body, or a stream of server-sent events.
//!
//! The struct owns the tasks that drive the choices and the request's place in the gateway: when the connection drops the
//! body, everything stops.

use std::collections::VecDeque;
use std::convert::Infallible;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures::stream::unfold;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::drive::{Event, Finish};
use super::error::ApiError;
use super::render::{Answer, Renderer, Usage};
use super::state::Ticket;

/// Events of a request that wait for its client; past that its nodes wait.
pub(super) const EVENTS_MAX: usize = 64;

/// A request whose choices are being driven.
pub(super) struct Running {
    pub renderer: Renderer,
    pub ticket: Ticket,
    pub events: mpsc::Receiver<(u32, Event)>,
    /// Ends with this struct.
    pub choices: JoinSet<()>,
    /// Number of choices, and how many belong to one prompt.
    pub count: u32,
    pub per_prompt: u32,
    pub continuous_usage: bool,
    pub usage: Tally,
}

/// Usage as it adds up.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    /// Over all prompts, each counted once.
    pub prompt_tokens: u64,
    /// Of the first choice of each prompt.
    pub cached_tokens: u64,
    /// By choice.
    pub output_tokens: Vec<u32>,
}

impl Tally {
    fn usage(&self) -> Usage {
        Usage {
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached_tokens,
            output_tokens: self.output_tokens.iter().map(|n| u64::from(*n)).sum(),
        }
    }

    fn set(&mut self, index: u32, output_tokens: u32) {
        if let Some(slot) = self.output_tokens.get_mut(index as usize) {
            *slot = output_tokens;
        }
    }
}

impl Running {
    async fn next(&mut self) -> Result<(u32, Event), ApiError> {
        // Every choice ends with a last event; a channel that closes before means that its task panicked.
        self.events.recv().await.ok_or_else(|| ApiError::internal("the request's task ended early"))
    }

    fn finished(&mut self, index: u32, output_tokens: u32, cached_tokens: u32) {
        self.usage.set(index, output_tokens);
        if index.is_multiple_of(self.per_prompt) {
            self.usage.cached_tokens += u64::from(cached_tokens);
        }
    }

    /// Waits for all choices and answers at once.
    pub(super) async fn whole(mut self) -> Result<Response, ApiError> {
        let mut answers = vec![Answer::default(); self.count as usize];
        let mut open = self.count;
        while open > 0 {
            let (index, event) = self.next().await?;
            let Some(answer) = answers.get_mut(index as usize) else { continue };
            match event {
                Event::Piece { piece, output_tokens } => {
                    answer.text += &piece.text;
                    answer.tokens.extend(piece.tokens);
                    self.usage.set(index, output_tokens);
                    self.ticket.token_came();
                }
                Event::Finished { finish, output_tokens, cached_tokens } => {
                    answer.finish = Some(finish);
                    self.finished(index, output_tokens, cached_tokens);
                    open -= 1;
                }
                Event::Failed(error) => {
                    self.ticket.fail(&error);
                    return Err(error);
                }
            }
        }
        let usage = self.usage.usage();
        self.ticket.succeed(usage);
        Ok(Json(self.renderer.whole(answers, usage)).into_response())
    }

    /// Waits for the first event, so that what fails before the first byte is an HTTP error, then streams.
    pub(super) async fn stream(mut self) -> Result<Response, ApiError> {
        let first = match self.next().await? {
            (_, Event::Failed(error)) => {
                self.ticket.fail(&error);
                return Err(error);
            }
            event => event,
        };
        let mut stream = Stream {
            greeted: vec![false; self.count as usize],
            open: self.count,
            queue: VecDeque::new(),
            over: false,
            running: self,
        };
        stream.take(first);
        let body = Body::from_stream(unfold(stream, |mut stream| async move {
            let bytes = stream.next().await?;
            Some((Ok::<_, Infallible>(bytes), stream))
        }));
        let mut response = Response::new(body);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        // Asks nginx and its like not to gather the events.
        headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
        Ok(response)
    }
}

struct Stream {
    running: Running,
    /// Choices that have had their first chunk.
    greeted: Vec<bool>,
    /// Choices that have not ended.
    open: u32,
    queue: VecDeque<Bytes>,
    over: bool,
}

fn data(value: &Value) -> Bytes {
    format!("data: {value}\n\n").into()
}

impl Stream {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(bytes) = self.queue.pop_front() {
                return Some(bytes);
            }
            if self.over {
                return None;
            }
            match self.running.next().await {
                Ok(event) => self.take(event),
                Err(error) => self.fail(&error),
            }
        }
    }

    fn take(&mut self, (index, event): (u32, Event)) {
        if let Some(greeted) = self.greeted.get_mut(index as usize)
            && !std::mem::replace(greeted, true)
            && !matches!(event, Event::Failed(_))
        {
            self.queue.extend(self.running.renderer.role_chunk(index).as_ref().map(data));
        }
        match event {
            Event::Piece { piece, output_tokens } => {
                self.running.ticket.token_came();
                self.running.usage.set(index, output_tokens);
                // Tokens without text are of interest only with their log-probabilities.
                if !piece.text.is_empty() || (self.running.renderer.logprobs && !piece.tokens.is_empty()) {
                    let usage = self.continuous();
                    let chunk = self.running.renderer.text_chunk(index, &piece.text, &piece.tokens, usage);
                    self.queue.push_back(data(&chunk));
                }
            }
            Event::Finished { finish, output_tokens, cached_tokens } => {
                self.running.finished(index, output_tokens, cached_tokens);
                self.finish(index, finish);
            }
            Event::Failed(error) => self.fail(&error),
        }
    }

    fn continuous(&self) -> Option<Usage> {
        self.running.continuous_usage.then(|| self.running.usage.usage())
    }

    fn finish(&mut self, index: u32, finish: Finish) {
        let chunk = self.running.renderer.finish_chunk(index, finish, self.continuous());
        self.queue.push_back(data(&chunk));
        self.open -= 1;
        if self.open > 0 {
            return;
        }
        let usage = self.running.usage.usage();
        if self.running.renderer.include_usage {
            self.queue.push_back(data(&self.running.renderer.usage_chunk(usage)));
        }
        self.queue.push_back(Bytes::from_static(b"data: [DONE]\n\n"));
        self.running.ticket.succeed(usage);
        self.over = true;
    }

    /// After the first byte: an `error` event, and then neither a finish reason nor `[DONE]`.
    fn fail(&mut self, error: &ApiError) {
        self.running.ticket.fail(error);
        self.running.choices.abort_all();
        self.queue.push_back(format!("event: error\ndata: {}\n\n", error.to_json()).into());
        self.over = true;
    }
}
