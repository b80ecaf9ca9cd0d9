//! Answers in OpenAI's shapes: whole, and in chunks.

use kvrail_text::TextModel;
use serde_json::{Map, Value, json};

use super::drive::Finish;
use super::request::Endpoint;
use super::transcript::TokenReport;

/// The least log-probability that is written: JSON has no infinity.
const LOGPROB_MIN: f32 = -9999.0;

/// Tokens of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub output_tokens: u64,
}

impl Usage {
    fn to_json(self) -> Value {
        json!({
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.output_tokens,
            "total_tokens": self.prompt_tokens + self.output_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        })
    }
}

/// One choice, whole.
#[derive(Clone, Debug, Default)]
pub(super) struct Answer {
    pub text: String,
    pub tokens: Vec<TokenReport>,
    pub finish: Option<Finish>,
}

/// Writes the answers of one request.
#[derive(Clone, Debug)]
pub(super) struct Renderer {
    pub endpoint: Endpoint,
    pub id: String,
    pub model: String,
    /// Seconds since 1970.
    pub created: u64,
    pub text: TextModel,
    /// Whether log-probabilities were asked for.
    pub logprobs: bool,
    /// Whether chunks have a `usage` field.
    pub include_usage: bool,
}

fn finish_name(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "stop",
        Finish::Length => "length",
    }
}

impl Renderer {
    fn envelope(&self, object: &str, choices: Vec<Value>) -> Map<String, Value> {
        let mut map = Map::new();
        map.insert("id".into(), json!(self.id));
        map.insert("object".into(), json!(object));
        map.insert("created".into(), json!(self.created));
        map.insert("model".into(), json!(self.model));
        map.insert("choices".into(), Value::Array(choices));
        map
    }

    /// The body of an answer that is not streamed.
    pub(super) fn whole(&self, answers: Vec<Answer>, usage: Usage) -> Value {
        let choices = answers.into_iter().enumerate();
        let choice = |(index, answer): (usize, Answer)| {
            let finish = answer.finish.map(finish_name);
            let logprobs = self.logprobs(&answer.tokens);
            match self.endpoint {
                Endpoint::Chat => json!({
                    "index": index,
                    "message": {"role": "assistant", "content": answer.text, "refusal": null},
                    "logprobs": logprobs,
                    "finish_reason": finish,
                }),
                Endpoint::Completions => {
                    json!({"index": index, "text": answer.text, "logprobs": logprobs, "finish_reason": finish})
                }
            }
        };
        let object = match self.endpoint {
            Endpoint::Chat => "chat.completion",
            Endpoint::Completions => "text_completion",
        };
        let mut map = self.envelope(object, choices.map(choice).collect());
        map.insert("usage".into(), usage.to_json());
        Value::Object(map)
    }

    fn chunk(&self, choices: Vec<Value>, usage: Option<Usage>) -> Value {
        let object = match self.endpoint {
            Endpoint::Chat => "chat.completion.chunk",
            Endpoint::Completions => "text_completion",
        };
        let mut map = self.envelope(object, choices);
        if self.include_usage {
            map.insert("usage".into(), usage.map_or(Value::Null, Usage::to_json));
        }
        Value::Object(map)
    }

    /// The first chunk of a chat's choice: it says who speaks. Completions have none.
    pub(super) fn role_chunk(&self, index: u32) -> Option<Value> {
        match self.endpoint {
            Endpoint::Completions => None,
            Endpoint::Chat => {
                let delta = json!({"role": "assistant", "content": "", "refusal": null});
                let choice = json!({"index": index, "delta": delta, "logprobs": null, "finish_reason": null});
                Some(self.chunk(vec![choice], None))
            }
        }
    }

    /// A chunk with text.
    pub(super) fn text_chunk(&self, index: u32, text: &str, tokens: &[TokenReport], usage: Option<Usage>) -> Value {
        let logprobs = self.logprobs(tokens);
        let choice = match self.endpoint {
            Endpoint::Chat => {
                json!({"index": index, "delta": {"content": text}, "logprobs": logprobs, "finish_reason": null})
            }
            Endpoint::Completions => json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": null}),
        };
        self.chunk(vec![choice], usage)
    }

    /// The last chunk of a choice.
    pub(super) fn finish_chunk(&self, index: u32, finish: Finish, usage: Option<Usage>) -> Value {
        let finish = finish_name(finish);
        let choice = match self.endpoint {
            Endpoint::Chat => json!({"index": index, "delta": {}, "logprobs": null, "finish_reason": finish}),
            Endpoint::Completions => json!({"index": index, "text": "", "logprobs": null, "finish_reason": finish}),
        };
        self.chunk(vec![choice], usage)
    }

    /// The last chunk of a request that asked for usage: no choices.
    pub(super) fn usage_chunk(&self, usage: Usage) -> Value {
        self.chunk(Vec::new(), Some(usage))
    }

    fn logprobs(&self, tokens: &[TokenReport]) -> Value {
        if !self.logprobs {
            return Value::Null;
        }
        match self.endpoint {
            Endpoint::Chat => {
                let entry = |token: u32, logprob: f32| {
                    let bytes = self.text.token_bytes(token).unwrap_or_default();
                    json!({"token": token_text(bytes), "logprob": finite(logprob), "bytes": bytes})
                };
                let content = tokens.iter().map(|report| {
                    let token = &report.token;
                    let mut item = entry(token.token, token.logprob);
                    item["top_logprobs"] = token.top.iter().map(|top| entry(top.token, top.logprob)).collect();
                    item
                });
                json!({"content": content.collect::<Vec<_>>(), "refusal": null})
            }
            Endpoint::Completions => {
                let text = |token: u32| token_text(self.text.token_bytes(token).unwrap_or_default());
                let top = |report: &TokenReport| {
                    let top = report.token.top.iter().map(|top| (text(top.token), json!(finite(top.logprob))));
                    Value::Object(top.collect())
                };
                json!({
                    "tokens": tokens.iter().map(|t| text(t.token.token)).collect::<Vec<_>>(),
                    "token_logprobs": tokens.iter().map(|t| finite(t.token.logprob)).collect::<Vec<_>>(),
                    "top_logprobs": tokens.iter().map(top).collect::<Vec<_>>(),
                    "text_offset": tokens.iter().map(|t| t.text_offset).collect::<Vec<_>>(),
                })
            }
        }
    }
}

/// A token as text; one that is not whole characters as its bytes, so that no two look the same.
fn token_text(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().fold("bytes:".to_owned(), |text, byte| text + &format!("\\x{byte:02x}")),
    }
}

fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { LOGPROB_MIN }
}

#[cfg(test)]
mod tests {
    use kvrail_proto::v1;

    use super::*;

    fn renderer(endpoint: Endpoint) -> Renderer {
        Renderer {
            endpoint,
            id: "x-1".into(),
            model: "m".into(),
            created: 7,
            text: TextModel::mock(300).unwrap(),
            logprobs: true,
            include_usage: true,
        }
    }

    fn report(token: u32, logprob: f32) -> TokenReport {
        let top = vec![v1::TokenLogprob { token: 0xc3, logprob: -1.0 }];
        TokenReport { token: v1::Token { index: 0, token, logprob, top }, text_offset: 4 }
    }

    #[test]
    fn logprobs_have_the_shape_of_their_endpoint() {
        let tokens = [report(u32::from(b'a'), f32::NEG_INFINITY)];
        let chat = renderer(Endpoint::Chat).text_chunk(2, "a", &tokens, None);
        let item = &chat["choices"][0]["logprobs"]["content"][0];
        assert_eq!(item["token"], "a");
        assert_eq!(item["bytes"], json!([97]));
        assert_eq!(item["logprob"], json!(-9999.0));
        assert_eq!(item["top_logprobs"][0], json!({"token": "bytes:\\xc3", "bytes": [0xc3], "logprob": -1.0}));
        assert_eq!(chat["choices"][0]["index"], 2);
        assert_eq!(chat["usage"], Value::Null);

        let plain = renderer(Endpoint::Completions).text_chunk(0, "a", &tokens, None);
        let logprobs = &plain["choices"][0]["logprobs"];
        let expected = json!({"tokens": ["a"], "token_logprobs": [-9999.0], "top_logprobs": [{"bytes:\\xc3": -1.0}],
            "text_offset": [4]});
        assert_eq!(*logprobs, expected);
    }

    #[test]
    fn usage_adds_up() {
        let usage = Usage { prompt_tokens: 5, cached_tokens: 4, output_tokens: 3 };
        let chunk = renderer(Endpoint::Chat).usage_chunk(usage);
        assert_eq!(chunk["choices"], json!([]));
        assert_eq!(chunk["usage"]["total_tokens"], 8);
        assert_eq!(chunk["usage"]["prompt_tokens_details"]["cached_tokens"], 4);
    }
}
