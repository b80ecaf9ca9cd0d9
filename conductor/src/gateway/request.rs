//! What a request asks for: the body of either endpoint, every field checked, in one shape.

use kvrail_text::ChatMessage;
use kvrail_text::stop::STOP_BYTES_MAX;
use serde_json::{Value, json};

use super::error::ApiError;
use super::fields::{Fields, expected};
use super::json;

/// Most stop strings, as OpenAI has it.
pub(super) const STOPS_MAX: usize = 4;
/// Most alternatives reported for a token.
const TOP_LOGPROBS_MAX: i64 = 20;
/// Most entries of `logit_bias`.
const LOGIT_BIAS_MAX: usize = 1024;

/// Bounds that a body is checked against.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Size of the vocabulary.
    pub vocab: u32,
    /// Most choices of one request, over all its prompts.
    pub choices_max: u32,
}

/// One prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Prompt {
    Chat(Vec<ChatMessage>),
    Text(String),
    Tokens(Vec<u32>),
}

/// Which endpoint, with what only it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Endpoint {
    Chat,
    Completions,
}

impl Endpoint {
    /// The field that holds the prompt.
    pub(super) fn prompt_param(self) -> &'static str {
        match self {
            Self::Chat => "messages",
            Self::Completions => "prompt",
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Completions => "completions",
        }
    }
}

/// A checked request.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Asked {
    pub endpoint: Endpoint,
    pub model: String,
    /// At least one; several only for completions.
    pub prompts: Vec<Prompt>,
    /// Choices for each prompt.
    pub n: u32,
    pub max_tokens: Option<u32>,
    pub min_tokens: u32,
    pub temperature: f32,
    pub top_p: f32,
    pub top_k: u32,
    pub min_p: f32,
    pub repetition_penalty: f32,
    pub presence_penalty: f32,
    pub frequency_penalty: f32,
    pub seed: Option<u64>,
    pub ignore_eos: bool,
    pub stop: Vec<String>,
    pub logit_bias: Vec<(u32, f32)>,
    /// `None`: no log-probabilities; else that many alternatives.
    pub logprobs: Option<u32>,
    pub stream: bool,
    pub include_usage: bool,
    pub continuous_usage: bool,
}

/// Reads a body.
///
/// # Errors
/// 400 that names the field.
pub(super) fn parse(endpoint: Endpoint, body: &[u8], bounds: Bounds) -> Result<Asked, ApiError> {
    let text = std::str::from_utf8(body)
        .map_err(|e| ApiError::body(format!("The body is not valid UTF-8 at byte {}", e.valid_up_to())))?;
    let value = json::parse(text).map_err(|e| ApiError::body(format!("The body is not valid JSON: {e}")))?;
    let mut fields = Fields::top(value)?;

    let model = match fields.required("model")? {
        Value::String(model) if !model.is_empty() => model,
        other => return Err(expected("model", "the name of a model", &other)),
    };
    let (prompts, logprobs) = match endpoint {
        Endpoint::Chat => chat_fields(&mut fields)?,
        Endpoint::Completions => completions_fields(&mut fields, bounds)?,
    };
    let n = fields.integer("n", 1..=i64::from(bounds.choices_max))?.unwrap_or(1) as u32;
    if prompts.len() as u64 * u64::from(n) > u64::from(bounds.choices_max) {
        let message = format!("{} prompts with n = {n} are more than {} choices", prompts.len(), bounds.choices_max);
        return Err(ApiError::field("n", message));
    }

    let max_tokens = max_tokens(&mut fields, endpoint)?;
    let min_tokens = fields.integer("min_tokens", 0..=i64::from(u32::MAX))?.unwrap_or(0) as u32;
    if max_tokens.is_some_and(|max| min_tokens > max) {
        return Err(ApiError::field("min_tokens", "`min_tokens` is more than the most tokens asked for"));
    }
    let stream = fields.bool("stream")?.unwrap_or(false);
    let (include_usage, continuous_usage) = stream_options(&mut fields, stream)?;
    let asked = Asked {
        endpoint,
        model,
        prompts,
        n,
        max_tokens,
        min_tokens,
        temperature: fields.number("temperature", 0.0, 2.0, false)?.unwrap_or(1.0),
        top_p: fields.number("top_p", 0.0, 1.0, true)?.unwrap_or(1.0),
        // -1 is another way to say "off".
        top_k: fields.integer("top_k", -1..=i64::from(u32::MAX))?.unwrap_or(0).max(0) as u32,
        min_p: fields.number("min_p", 0.0, 1.0, false)?.unwrap_or(0.0),
        repetition_penalty: fields.number("repetition_penalty", 0.01, 10.0, false)?.unwrap_or(1.0),
        presence_penalty: fields.number("presence_penalty", -2.0, 2.0, false)?.unwrap_or(0.0),
        frequency_penalty: fields.number("frequency_penalty", -2.0, 2.0, false)?.unwrap_or(0.0),
        // The bits matter, not the sign.
        seed: fields.integer("seed", i64::MIN..=i64::MAX)?.map(|seed| seed as u64),
        ignore_eos: fields.bool("ignore_eos")?.unwrap_or(false),
        stop: stop(&mut fields)?,
        logit_bias: logit_bias(&mut fields, bounds.vocab)?,
        logprobs,
        stream,
        include_usage,
        continuous_usage,
    };
    // A label for the caller's own use; nothing here depends on it.
    fields.string("user", 512)?;
    fields.finish()?;
    Ok(asked)
}

fn chat_fields(fields: &mut Fields) -> Result<(Vec<Prompt>, Option<u32>), ApiError> {
    fields.unsupported(&[
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "functions",
        "function_call",
        "modalities",
        "audio",
        "prediction",
        "reasoning_effort",
        "verbosity",
        "web_search_options",
        "metadata",
        "service_tier",
        "prompt_cache_key",
        "safety_identifier",
    ])?;
    fields.only("store", &json!(false))?;
    fields.only("response_format", &json!({"type": "text"}))?;
    let messages = messages(fields.required("messages")?)?;
    let wanted = fields.bool("logprobs")?.unwrap_or(false);
    let top = fields.integer("top_logprobs", 0..=TOP_LOGPROBS_MAX)?;
    if top.is_some() && !wanted {
        return Err(ApiError::field("top_logprobs", "`top_logprobs` needs `logprobs` to be true"));
    }
    Ok((vec![Prompt::Chat(messages)], wanted.then(|| top.unwrap_or(0) as u32)))
}

fn completions_fields(fields: &mut Fields, bounds: Bounds) -> Result<(Vec<Prompt>, Option<u32>), ApiError> {
    fields.unsupported(&["suffix", "response_format", "tools"])?;
    fields.only("echo", &json!(false))?;
    fields.only("best_of", &json!(1))?;
    let prompts = prompts(fields.required("prompt")?, bounds)?;
    let logprobs = fields.integer("logprobs", 0..=TOP_LOGPROBS_MAX)?;
    Ok((prompts, logprobs.map(|top| top as u32)))
}

fn messages(value: Value) -> Result<Vec<ChatMessage>, ApiError> {
    let items = match value {
        Value::Array(items) if !items.is_empty() => items,
        other => return Err(expected("messages", "an array of at least one message", &other)),
    };
    items.into_iter().enumerate().map(|(at, item)| message(item, &format!("messages[{at}]"))).collect()
}

fn message(item: Value, path: &str) -> Result<ChatMessage, ApiError> {
    let mut fields = Fields::nested(item, path)?;
    let role = match fields.required("role")? {
        // OpenAI's newer name for the same thing.
        Value::String(role) if role == "developer" => "system".to_owned(),
        Value::String(role) if ["system", "user", "assistant"].contains(&role.as_str()) => role,
        other => return Err(expected(&format!("{path}.role"), "one of system, developer, user, assistant", &other)),
    };
    let content_path = format!("{path}.content");
    let content = match fields.required("content")? {
        Value::String(text) => text,
        Value::Array(parts) => {
            let parts = parts.into_iter().enumerate();
            let texts: Result<Vec<_>, _> =
                parts.map(|(at, part)| part_text(part, &format!("{content_path}[{at}]"))).collect();
            texts?.join("\n")
        }
        other => return Err(expected(&content_path, "a string or an array of text parts", &other)),
    };
    fields.unsupported(&["name", "tool_calls", "tool_call_id", "function_call", "audio", "refusal"])?;
    fields.finish()?;
    Ok(ChatMessage::new(role, content))
}

fn part_text(part: Value, path: &str) -> Result<String, ApiError> {
    let mut fields = Fields::nested(part, path)?;
    match fields.required("type")? {
        Value::String(kind) if kind == "text" => {}
        other => return Err(expected(&format!("{path}.type"), "`text`, the only kind of part supported", &other)),
    }
    let text = match fields.required("text")? {
        Value::String(text) => text,
        other => return Err(expected(&format!("{path}.text"), "a string", &other)),
    };
    fields.finish()?;
    Ok(text)
}

fn prompts(value: Value, bounds: Bounds) -> Result<Vec<Prompt>, ApiError> {
    const WANTED: &str = "a string, an array of strings, an array of token ids, or an array of such arrays, none empty";
    let prompts = match value {
        Value::String(_) => vec![prompt(value, "prompt", bounds)?],
        Value::Array(items) if items.first().is_some_and(Value::is_number) => {
            vec![prompt(Value::Array(items), "prompt", bounds)?]
        }
        Value::Array(items) if !items.is_empty() => {
            if items.len() > bounds.choices_max as usize {
                let message = format!("{} prompts in one request; at most {}", items.len(), bounds.choices_max);
                return Err(ApiError::field("prompt", message));
            }
            let items = items.into_iter().enumerate();
            items.map(|(at, item)| prompt(item, &format!("prompt[{at}]"), bounds)).collect::<Result<_, _>>()?
        }
        other => return Err(expected("prompt", WANTED, &other)),
    };
    Ok(prompts)
}

fn prompt(value: Value, path: &str, bounds: Bounds) -> Result<Prompt, ApiError> {
    match value {
        Value::String(text) if !text.is_empty() => Ok(Prompt::Text(text)),
        Value::Array(items) if !items.is_empty() => {
            let id = |(at, item): (usize, &Value)| {
                let id = item.as_u64().filter(|id| *id < u64::from(bounds.vocab));
                let wanted = format!("a token id below {}", bounds.vocab);
                id.map(|id| id as u32).ok_or_else(|| expected(&format!("{path}[{at}]"), &wanted, item))
            };
            Ok(Prompt::Tokens(items.iter().enumerate().map(id).collect::<Result<_, _>>()?))
        }
        other => Err(expected(path, "a string or an array of token ids, not empty", &other)),
    }
}

fn max_tokens(fields: &mut Fields, endpoint: Endpoint) -> Result<Option<u32>, ApiError> {
    let range = 1..=i64::from(u32::MAX);
    let old = fields.integer("max_tokens", range.clone())?;
    let new = match endpoint {
        Endpoint::Chat => fields.integer("max_completion_tokens", range)?,
        Endpoint::Completions => None,
    };
    if let (Some(old), Some(new)) = (old, new)
        && old != new
    {
        let message = "`max_tokens` and `max_completion_tokens` say different things; send one";
        return Err(ApiError::field("max_completion_tokens", message));
    }
    Ok(new.or(old).map(|max| max as u32))
}

fn stream_options(fields: &mut Fields, stream: bool) -> Result<(bool, bool), ApiError> {
    let Some(value) = fields.take("stream_options") else { return Ok((false, false)) };
    if !stream {
        return Err(ApiError::field("stream_options", "`stream_options` needs `stream` to be true"));
    }
    let mut options = Fields::nested(value, "stream_options")?;
    let include = options.bool("include_usage")?.unwrap_or(false);
    let continuous = options.bool("continuous_usage_stats")?.unwrap_or(false);
    options.only("include_obfuscation", &json!(false))?;
    options.finish()?;
    Ok((include, include && continuous))
}

fn stop(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let items = match fields.take("stop") {
        None => return Ok(Vec::new()),
        Some(Value::String(text)) => vec![Value::String(text)],
        Some(Value::Array(items)) => items,
        Some(other) => return Err(expected("stop", "a string or an array of strings", &other)),
    };
    if items.len() > STOPS_MAX {
        let message = format!("`stop` has {} strings; at most {STOPS_MAX} are allowed", items.len());
        return Err(ApiError::field("stop", message));
    }
    let string = |item| match item {
        Value::String(text) if !text.is_empty() && text.len() <= STOP_BYTES_MAX => Ok(text),
        other => Err(expected("stop", &format!("strings of 1 to {STOP_BYTES_MAX} bytes"), &other)),
    };
    items.into_iter().map(string).collect()
}

fn logit_bias(fields: &mut Fields, vocab: u32) -> Result<Vec<(u32, f32)>, ApiError> {
    let map = match fields.take("logit_bias") {
        None => return Ok(Vec::new()),
        Some(Value::Object(map)) => map,
        Some(other) => return Err(expected("logit_bias", "an object of token ids and numbers", &other)),
    };
    if map.len() > LOGIT_BIAS_MAX {
        let message = format!("`logit_bias` has {} entries; at most {LOGIT_BIAS_MAX} are allowed", map.len());
        return Err(ApiError::field("logit_bias", message));
    }
    let entry = |(key, value): (String, Value)| {
        // One way to write a number: `1` and `01` would be two entries for one token.
        let id = key.parse().ok().filter(|id: &u32| *id < vocab && id.to_string() == key).ok_or_else(|| {
            let key: String = key.chars().take(40).collect();
            ApiError::field("logit_bias", format!("`logit_bias` has the key {key:?}; keys are token ids below {vocab}"))
        })?;
        match value.as_f64() {
            Some(bias) if (-100.0..=100.0).contains(&bias) => Ok((id, bias as f32)),
            _ => Err(expected(&format!("logit_bias.{id}"), "a number from -100 to 100", &value)),
        }
    };
    map.into_iter().map(entry).collect()
}
