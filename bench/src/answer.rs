//! One answer of an endpoint, token by token, with when each part came: what the suites compare and the benches time.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::{Client, ClientError};

/// A request in the form the suites use.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Text of the prompt.
    pub prompt: String,
    /// Through `/v1/chat/completions` rather than `/v1/completions`.
    pub chat: bool,
    /// Output tokens at most.
    pub max_tokens: u32,
    /// How each of them is chosen.
    pub sampling: Sampling,
    /// Go on past the model's own end.
    pub ignore_eos: bool,
}

/// How tokens are chosen; what is `None` is left to the endpoint's default. The default is greedy.
#[derive(Clone, Debug, Default)]
pub struct Sampling {
    /// 0 is greedy.
    pub temperature: f64,
    /// Only so many of the likeliest.
    pub top_k: Option<u32>,
    /// Only the likeliest that have so much of the probability together.
    pub top_p: Option<f64>,
    /// Only those with at least this share of the likeliest one's probability.
    pub min_p: Option<f64>,
    /// Divides the logits of all tokens that were there before.
    pub repetition_penalty: Option<f64>,
    /// Taken from the logits of tokens of the answer.
    pub presence_penalty: Option<f64>,
    /// Taken as often as the token is in the answer.
    pub frequency_penalty: Option<f64>,
    /// Seed of the draws.
    pub seed: u64,
}

impl Ask {
    /// A greedy chat question.
    #[must_use]
    pub fn chat(prompt: impl Into<String>, max_tokens: u32) -> Self {
        let sampling = Sampling { seed: 1, ..Sampling::default() };
        Self { prompt: prompt.into(), chat: true, max_tokens, sampling, ignore_eos: false }
    }

    /// A greedy continuation of plain text.
    #[must_use]
    pub fn plain(prompt: impl Into<String>, max_tokens: u32) -> Self {
        Self { chat: false, ..Self::chat(prompt, max_tokens) }
    }

    fn path(&self) -> &'static str {
        if self.chat { "/v1/chat/completions" } else { "/v1/completions" }
    }

    /// The JSON body of the call.
    #[must_use]
    pub fn body(&self, model: &str, stream: bool) -> Value {
        let sampling = &self.sampling;
        // A field that is null counts as absent.
        let mut body = json!({
            "model": model,
            "max_tokens": self.max_tokens,
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "repetition_penalty": sampling.repetition_penalty,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "seed": sampling.seed,
            "ignore_eos": self.ignore_eos,
            "stream": stream,
        });
        if stream {
            body["stream_options"] = json!({ "include_usage": true });
        }
        if self.chat {
            body["messages"] = json!([{ "role": "user", "content": self.prompt }]);
            body["logprobs"] = json!(true);
            body["top_logprobs"] = json!(2);
        } else {
            body["prompt"] = json!(self.prompt);
            body["logprobs"] = json!(2);
        }
        body
    }
}

/// One output token as the endpoint told it.
#[derive(Clone, Debug, PartialEq)]
pub struct AnswerToken {
    /// Its text as reported with its logprob.
    pub token: String,
    /// Its bytes: of a character, perhaps, only a part.
    pub bytes: Vec<u8>,
    /// Its log-probability.
    pub logprob: f64,
    /// The log-probability of the best alternatives, best first.
    pub top: Vec<f64>,
}

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The text.
    pub text: String,
    /// The tokens.
    pub tokens: Vec<AnswerToken>,
    /// `stop` or `length`.
    pub finish_reason: String,
    /// The usage object.
    pub usage: Value,
    /// From sending the request to the first token.
    pub ttft: Duration,
    /// When each event with a token came, from sending the request.
    pub arrivals: Vec<Duration>,
}

impl Answer {
    /// Mean time an output token after the first, if there are at least two.
    #[must_use]
    pub fn tpot(&self) -> Option<Duration> {
        let last = *self.arrivals.last()?;
        let gaps = u32::try_from(self.tokens.len()).ok()?.checked_sub(1)?;
        (gaps > 0).then(|| (last - self.ttft) / gaps)
    }

    /// Whether two answers are the same: text, tokens, finish reason, and logprobs to `tolerance`.
    ///
    /// # Errors
    /// Says where they part.
    pub fn same_as(&self, other: &Self, tolerance: f64) -> Result<(), String> {
        same_tokens(&self.tokens, &other.tokens, tolerance)?;
        if self.tokens.len() != other.tokens.len() {
            return Err(format!("{} tokens, expected {}", self.tokens.len(), other.tokens.len()));
        }
        if self.text != other.text {
            return Err(format!("text {:?}, expected {:?}", self.text, other.text));
        }
        if self.finish_reason != other.finish_reason {
            return Err(format!("finish_reason {}, expected {}", self.finish_reason, other.finish_reason));
        }
        Ok(())
    }
}

/// Whether two lists of tokens are the same as far as the shorter one goes; logprobs to `tolerance`.
fn same_tokens(these: &[AnswerToken], others: &[AnswerToken], tolerance: f64) -> Result<(), String> {
    for (i, (a, b)) in these.iter().zip(others).enumerate() {
        if (&a.token, &a.bytes) != (&b.token, &b.bytes) {
            return Err(format!("token {i} is {:?}, expected {:?}", a.token, b.token));
        }
        // A logprob that is missing is no number, and near to nothing.
        let near = |a: f64, b: f64| (a - b).abs() <= tolerance;
        if !near(a.logprob, b.logprob) {
            return Err(format!("logprob of token {i} is {}, expected {}", a.logprob, b.logprob));
        }
        if a.top.len() != b.top.len() || !a.top.iter().zip(&b.top).all(|(a, b)| near(*a, *b)) {
            return Err(format!("top logprobs of token {i} are {:?}, expected {:?}", a.top, b.top));
        }
    }
    Ok(())
}

/// Asks and reads the whole stream.
///
/// # Errors
/// [`ClientError`]; a stream without finish reason or usage is malformed.
pub async fn ask(client: &Client, model: &str, ask: &Ask) -> Result<Answer, ClientError> {
    let collector = Mutex::default();
    let sent = follow(client, model, ask, &collector).await?;
    collector.into_inner().unwrap_or_default().finish(sent)
}

/// Asks and reads the whole stream into `collector`, which others may look into meanwhile, and which keeps what came if the
/// stream breaks. Returns when the request was sent.
///
/// # Errors
/// [`ClientError`], if the stream did not end with `[DONE]`.
pub async fn follow(
    client: &Client,
    model: &str,
    ask: &Ask,
    collector: &Mutex<Collector>,
) -> Result<Instant, ClientError> {
    let mut stream = client.stream(ask.path(), &ask.body(model, true)).await?;
    let sent = stream.sent;
    while let Some(event) = stream.next().await? {
        collector.lock().unwrap_or_else(PoisonError::into_inner).take(&event, ask.chat, sent.elapsed());
    }
    Ok(sent)
}

/// Gathers the events of one stream.
#[derive(Clone, Debug, Default)]
pub struct Collector {
    /// Text so far.
    pub text: String,
    /// Tokens so far.
    pub tokens: Vec<AnswerToken>,
    arrivals: Vec<Duration>,
    finish_reason: Option<String>,
    usage: Option<Value>,
}

impl Collector {
    /// Takes one event.
    pub fn take(&mut self, event: &Value, chat: bool, at: Duration) {
        if let Some(usage) = event.get("usage").filter(|u| u.is_object()) {
            self.usage = Some(usage.clone());
        }
        let Some(choice) = event.pointer("/choices/0") else { return };
        let text = if chat { choice.pointer("/delta/content") } else { choice.get("text") };
        self.text.push_str(text.and_then(Value::as_str).unwrap_or_default());
        let before = self.tokens.len();
        if chat {
            self.take_chat_logprobs(choice)
        } else {
            self.take_plain_logprobs(choice)
        }
        if self.tokens.len() > before {
            self.arrivals.push(at);
        }
        if let Some(reason) = choice.get("finish_reason").and_then(Value::as_str) {
            self.finish_reason = Some(reason.to_owned());
        }
    }

    fn take_chat_logprobs(&mut self, choice: &Value) {
        for entry in choice.pointer("/logprobs/content").and_then(Value::as_array).into_iter().flatten() {
            let top = entry.get("top_logprobs").and_then(Value::as_array);
            let bytes = entry["bytes"].as_array().into_iter().flatten();
            self.tokens.push(AnswerToken {
                token: entry["token"].as_str().unwrap_or_default().to_owned(),
                bytes: bytes.filter_map(|byte| u8::try_from(byte.as_u64()?).ok()).collect(),
                logprob: entry["logprob"].as_f64().unwrap_or(f64::NAN),
                top: top.into_iter().flatten().filter_map(|t| t["logprob"].as_f64()).collect(),
            });
        }
    }

    fn take_plain_logprobs(&mut self, choice: &Value) {
        let Some(logprobs) = choice.get("logprobs").filter(|l| l.is_object()) else { return };
        let tokens = logprobs["tokens"].as_array().into_iter().flatten();
        let values = logprobs["token_logprobs"].as_array().into_iter().flatten();
        let mut tops = logprobs["top_logprobs"].as_array().into_iter().flatten();
        for (token, value) in tokens.zip(values) {
            let mut top: Vec<f64> = tops
                .next()
                .and_then(Value::as_object)
                .map(|o| o.values().filter_map(Value::as_f64).collect())
                .unwrap_or_default();
            top.sort_by(|a, b| b.total_cmp(a));
            let token = token.as_str().unwrap_or_default();
            self.tokens.push(AnswerToken {
                token: token.to_owned(),
                bytes: told_bytes(token),
                logprob: value.as_f64().unwrap_or(f64::NAN),
                top,
            });
        }
    }

    /// Whether what came so far is how `whole` begins: no token wrong, lost or repeated; logprobs to `tolerance`.
    ///
    /// # Errors
    /// Says where they part.
    pub fn begins(&self, whole: &Answer, tolerance: f64) -> Result<(), String> {
        same_tokens(&self.tokens, &whole.tokens, tolerance)?;
        if self.tokens.len() > whole.tokens.len() {
            return Err(format!("{} tokens came, of {}", self.tokens.len(), whole.tokens.len()));
        }
        if !whole.text.starts_with(&self.text) {
            return Err(format!("text {:?} is not how {:?} begins", self.text, whole.text));
        }
        Ok(())
    }

    /// When each event with a token came, from sending the request.
    #[must_use]
    pub fn arrivals(&self) -> &[Duration] {
        &self.arrivals
    }

    /// The whole answer.
    ///
    /// # Errors
    /// If the finish reason or the usage is missing, or usage and tokens disagree.
    pub fn finish(self, sent: Instant) -> Result<Answer, ClientError> {
        let malformed = |what: &str| ClientError::Malformed(what.to_owned());
        let finish_reason = self.finish_reason.ok_or_else(|| malformed("a stream without finish_reason"))?;
        let usage = self.usage.ok_or_else(|| malformed("a stream without usage"))?;
        let told = usage["completion_tokens"].as_u64();
        if told != Some(self.tokens.len() as u64) {
            let what = format!("usage says {told:?} tokens, the stream had {}", self.tokens.len());
            return Err(ClientError::Malformed(what));
        }
        let ttft = self.arrivals.first().copied().unwrap_or_else(|| sent.elapsed());
        Ok(Answer { text: self.text, tokens: self.tokens, finish_reason, usage, ttft, arrivals: self.arrivals })
    }
}

/// Bytes of a token of a plain completion: its text, or, where that is not whole characters, `bytes:\xNN\xNN…`.
fn told_bytes(token: &str) -> Vec<u8> {
    let escaped = token.strip_prefix("bytes:\\x").map(|rest| rest.split("\\x"));
    let bytes = escaped.and_then(|hex| hex.map(|byte| u8::from_str_radix(byte, 16).ok()).collect());
    bytes.unwrap_or_else(|| token.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(text: &str) -> AnswerToken {
        AnswerToken { token: text.into(), bytes: text.into(), logprob: -0.5, top: vec![-0.5] }
    }

    #[test]
    fn a_part_is_how_the_whole_begins_or_is_not() {
        let whole = Answer {
            text: "ab".into(),
            tokens: vec![token("a"), token("b")],
            finish_reason: "stop".into(),
            usage: Value::Null,
            ttft: Duration::ZERO,
            arrivals: Vec::new(),
        };
        let part = |text: &str, tokens: &[&str]| Collector {
            text: text.into(),
            tokens: tokens.iter().map(|t| token(t)).collect(),
            ..Collector::default()
        };
        for (text, tokens) in [("", &[][..]), ("a", &["a"]), ("ab", &["a", "b"])] {
            assert_eq!(part(text, tokens).begins(&whole, 1e-4), Ok(()));
        }
        // Lost, repeated, wrong, too many, and a text that is not its tokens'.
        for (text, tokens) in
            [("b", &["b"][..]), ("a", &["a", "a"]), ("x", &["x"]), ("ab", &["a", "b", "c"]), ("b", &["a"])]
        {
            assert!(part(text, tokens).begins(&whole, 1e-4).is_err(), "{text} {tokens:?}");
        }
    }

    #[test]
    fn a_token_that_is_no_text_is_told_as_its_bytes() {
        for (told, bytes) in [(" né", " né".as_bytes()), ("bytes:\\xc3\\x0a", &[0xc3, 0x0a]), ("bytes:", b"bytes:")] {
            assert_eq!(told_bytes(told), bytes, "{told}");
        }
    }
}
