//! The endpoints: from an HTTP request to a running one.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderValue, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use kvrail_kv::Chain;
use kvrail_proto::v1;
use kvrail_text::{TextError, TextModel};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::answer::{EVENTS_MAX, Running, Tally};
use super::body;
use super::drive::{Task, drive};
use super::error::ApiError;
use super::render::Renderer;
use super::request::{self, Asked, Bounds, Endpoint, Prompt};
use super::state::{Gateway, Ticket};
use super::view::Serving;
use crate::admin;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const REQUEST_ID: &str = "x-request-id";
/// Longest request id that is taken from a client.
const REQUEST_ID_BYTES_MAX: usize = 128;

/// The id of a request, as it goes back to the client and on to the nodes.
#[derive(Clone, Debug)]
struct RequestId(String);

/// All routes of a gateway.
pub(super) fn router(gateway: Arc<Gateway>) -> Router {
    let api = Router::new()
        .route(CHAT, post(chat))
        .route(COMPLETIONS, post(completions))
        .route("/v1/models", get(models))
        .route("/v1/models/{*model}", get(model))
        .with_state(Arc::clone(&gateway));
    api.merge(admin::router(gateway as _))
        .fallback(|request: Request| async move { ApiError::no_such_path(request.uri().path()) })
        .method_not_allowed_fallback(|request: Request| async move {
            let path = request.uri().path();
            let allowed = if matches!(path, CHAT | COMPLETIONS) { "POST" } else { "GET" };
            ApiError::method(request.method().as_str(), path, allowed)
        })
        .layer(from_fn(with_request_id))
}

/// Takes a usable `X-Request-Id` from the client, or makes one, and sends it back.
async fn with_request_id(mut request: Request, next: Next) -> Response {
    let given = request.headers().get(REQUEST_ID).and_then(|v| v.to_str().ok());
    let usable =
        given.filter(|id| (1..=REQUEST_ID_BYTES_MAX).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_graphic()));
    let id = usable.map_or_else(|| format!("req-{:032x}", rand::random::<u128>()), str::to_owned);
    request.extensions_mut().insert(RequestId(id.clone()));
    let mut response = next.run(request).await;
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    response
}

fn tenant<'a>(gateway: &'a Gateway, request: &Request) -> Result<&'a str, ApiError> {
    gateway.keys.tenant(request.headers().get(header::AUTHORIZATION).map(HeaderValue::as_bytes))
}

fn model_card(gateway: &Gateway) -> serde_json::Value {
    json!({"id": gateway.config.model, "object": "model", "created": 0, "owned_by": "kvrail"})
}

async fn models(State(gateway): State<Arc<Gateway>>, request: Request) -> Result<Response, ApiError> {
    tenant(&gateway, &request)?;
    Ok(Json(json!({"object": "list", "data": [model_card(&gateway)]})).into_response())
}

async fn model(
    State(gateway): State<Arc<Gateway>>,
    asked: Result<Path<String>, PathRejection>,
    request: Request,
) -> Result<Response, ApiError> {
    tenant(&gateway, &request)?;
    let asked = asked.map_or_else(|_| request.uri().path().to_owned(), |Path(name)| name);
    if asked != gateway.config.model {
        return Err(ApiError::model_not_found(&asked, &gateway.config.model));
    }
    Ok(Json(model_card(&gateway)).into_response())
}

async fn chat(State(gateway): State<Arc<Gateway>>, request: Request) -> Response {
    serve(gateway, Endpoint::Chat, request).await.unwrap_or_else(IntoResponse::into_response)
}

async fn completions(State(gateway): State<Arc<Gateway>>, request: Request) -> Response {
    serve(gateway, Endpoint::Completions, request).await.unwrap_or_else(IntoResponse::into_response)
}

async fn serve(gateway: Arc<Gateway>, endpoint: Endpoint, request: Request) -> Result<Response, ApiError> {
    let mut ticket = gateway.arrive(endpoint);
    let deadline = Instant::now() + gateway.config.request_timeout;
    let started = tokio::select! {
        started = start(&gateway, endpoint, request, &mut ticket, deadline) => started,
        () = gateway.ended() => Err(ApiError::cut_off()),
    };
    let Started { asked, renderer, tasks, prompt_tokens } = started.inspect_err(|error| ticket.fail(error))?;

    let (sender, events) = mpsc::channel(EVENTS_MAX);
    let mut choices = JoinSet::new();
    let count = tasks.len() as u32 * asked.n;
    for (at, task) in tasks.into_iter().enumerate() {
        for choice in 0..asked.n {
            let index = at as u32 * asked.n + choice;
            choices.spawn(drive(Arc::clone(&task), index, choice, sender.clone()));
        }
    }
    let usage = Tally { prompt_tokens, cached_tokens: 0, output_tokens: vec![0; count as usize] };
    let running = Running {
        renderer,
        ticket,
        events,
        choices,
        count,
        per_prompt: asked.n,
        continuous_usage: asked.continuous_usage,
        usage,
    };
    if asked.stream { running.stream().await } else { running.whole().await }
}

/// A request that was read, checked and tokenised.
struct Started {
    asked: Asked,
    renderer: Renderer,
    /// One for each prompt.
    tasks: Vec<Arc<Task>>,
    prompt_tokens: u64,
}

async fn start(
    gateway: &Arc<Gateway>,
    endpoint: Endpoint,
    request: Request<Body>,
    ticket: &mut Ticket,
    deadline: Instant,
) -> Result<Started, ApiError> {
    let config = &gateway.config;
    let welcome = tenant(gateway, &request).and_then(|salt| gateway.has_room().map(|()| salt.to_owned()));
    let (parts, body) = request.into_parts();
    let salt = match welcome {
        Ok(salt) => salt,
        Err(error) => {
            body::refuse(&parts.headers, body).await;
            return Err(error);
        }
    };
    let request_id = parts.extensions.get::<RequestId>().map_or_else(String::new, |id| id.0.clone());
    let body = gateway.intake.read(&parts.headers, body).await?;
    ticket.admit()?;
    let bounds = Bounds { vocab: config.text.vocab_size(), choices_max: config.choices_max };
    let asked = request::parse(endpoint, &body, bounds)?;
    drop(body);
    if asked.model != config.model {
        return Err(ApiError::model_not_found(&asked.model, &config.model));
    }
    let serving = gateway
        .pool
        .serving()
        .ok_or_else(|| ApiError::no_nodes(format!("no decode node serves `{}`", config.model)))?;

    // Long prompts take milliseconds to tokenise: not on the threads that carry the streams. The number of such jobs is
    // bounded by the number of requests.
    let (text, prompts) = (config.text.clone(), asked.prompts.clone());
    let tokenised = tokio::task::spawn_blocking(move || {
        prompts.iter().map(|prompt| tokenise(&text, prompt, endpoint)).collect::<Result<Vec<_>, _>>()
    });
    let prompts = tokenised.await.map_err(|_| ApiError::internal("the tokenizer failed"))??;

    let namespace = serving.namespace(&salt);
    let block_tokens = serving.node.format.block_tokens;
    let sampling = sampling(&asked);
    let mut tasks = Vec::with_capacity(prompts.len());
    let mut prompt_tokens = 0;
    for prompt in prompts {
        let max_tokens = room(&asked, &prompt, &serving, config.max_tokens_default)?;
        prompt_tokens += prompt.len() as u64;
        tasks.push(Arc::new(Task {
            gateway: Arc::clone(gateway),
            request_id: request_id.clone(),
            pool_model: serving.node.model.clone(),
            namespace_id: serving.node.namespace_id,
            salt: salt.clone(),
            chain: Chain::keys(&namespace, block_tokens, &prompt).iter().map(|key| key.hash).collect(),
            prompt,
            sampling: sampling.clone(),
            stop: v1::StopRule {
                max_tokens,
                stop_tokens: Vec::new(),
                ignore_eos: asked.ignore_eos,
                min_tokens: asked.min_tokens,
            },
            stop_strings: asked.stop.clone(),
            prompt_param: endpoint.prompt_param(),
            deadline,
        }));
    }
    let prefix = match endpoint {
        Endpoint::Chat => "chatcmpl",
        Endpoint::Completions => "cmpl",
    };
    let renderer = Renderer {
        endpoint,
        id: format!("{prefix}-{:032x}", rand::random::<u128>()),
        model: config.model.clone(),
        created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
        text: config.text.clone(),
        logprobs: asked.logprobs.is_some(),
        include_usage: asked.include_usage,
    };
    tracing::debug!(request = %request_id, prompt_tokens, choices = asked.n, stream = asked.stream, "request");
    Ok(Started { asked, renderer, tasks, prompt_tokens })
}

fn tokenise(text: &TextModel, prompt: &Prompt, endpoint: Endpoint) -> Result<Vec<u32>, ApiError> {
    let param = endpoint.prompt_param();
    let tokens = match prompt {
        Prompt::Chat(messages) => text.encode_chat(messages),
        Prompt::Text(text_prompt) => text.encode_completion(text_prompt),
        Prompt::Tokens(tokens) => Ok(tokens.clone()),
    };
    let tokens = tokens.map_err(|error| match error {
        TextError::NoChatTemplate | TextError::Refused(_) | TextError::Encode(_) => {
            ApiError::field(param, error.to_string())
        }
        other => ApiError::internal(other.to_string()),
    })?;
    if tokens.is_empty() {
        return Err(ApiError::field(param, format!("`{param}` has no tokens")));
    }
    Ok(tokens)
}

/// Output tokens that a request gets: what it asked for, if the pool has room for that behind its prompt.
fn room(asked: &Asked, prompt: &[u32], serving: &Serving, default: u32) -> Result<u32, ApiError> {
    let (prompt_tokens, limit) = (prompt.len() as u64, serving.tokens_max);
    let wanted = u64::from(asked.max_tokens.unwrap_or(1).max(asked.min_tokens));
    if prompt_tokens + wanted > limit {
        let param = asked.endpoint.prompt_param();
        let message = format!(
            "This model takes at most {limit} tokens; the request has {prompt_tokens} in `{param}` and asks for \
             {wanted} more"
        );
        return Err(ApiError::too_long(param, message));
    }
    let left = limit - prompt_tokens;
    Ok(asked.max_tokens.unwrap_or_else(|| left.min(u64::from(default.max(asked.min_tokens))) as u32))
}

fn sampling(asked: &Asked) -> v1::Sampling {
    v1::Sampling {
        temperature: asked.temperature,
        top_k: asked.top_k,
        top_p: asked.top_p,
        min_p: asked.min_p,
        repetition_penalty: asked.repetition_penalty,
        presence_penalty: asked.presence_penalty,
        frequency_penalty: asked.frequency_penalty,
        // Drawn once for the request: whichever node goes on with it draws the same numbers.
        seed: asked.seed.unwrap_or_else(rand::random),
        choice: 0,
        logprobs: asked.logprobs.is_some(),
        top_logprobs: asked.logprobs.unwrap_or(0),
        logit_bias: asked.logit_bias.iter().copied().collect(),
    }
}
