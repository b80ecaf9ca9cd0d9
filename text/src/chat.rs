//! Chat messages, and the template that turns them into a prompt.

use minijinja::{Environment, ErrorKind, Value, context, syntax::SyntaxConfig};
use serde::{Deserialize, Deserializer, Serialize, de};

use crate::TextError;

/// Steps a template may take, plus [`FUEL_PER_MESSAGE`] for each message: a template comes from a stranger's file, and a
/// loop in it must end. Real ones take some dozen steps a message.
const FUEL: u64 = 1_000_000;
const FUEL_PER_MESSAGE: u64 = 10_000;
const TEMPLATE: &str = "chat";

/// One message of a conversation. Reads OpenAI's JSON: `content` is a string, null, or a list of text parts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatMessage {
    /// Who speaks: `system`, `user`, `assistant`, or what else the template knows.
    pub role: String,
    /// What they say; text parts are joined by newlines.
    #[serde(default, deserialize_with = "content")]
    pub content: String,
}

impl ChatMessage {
    /// A message.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into() }
    }
}

/// Reads the forms that `content` may have.
fn content<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    struct Visitor;

    #[derive(Deserialize)]
    struct Part {
        r#type: String,
        text: Option<String>,
    }

    impl<'de> de::Visitor<'de> for Visitor {
        type Value = String;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a string or a list of text parts")
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<String, E> {
            Ok(text.to_owned())
        }

        fn visit_string<E: de::Error>(self, text: String) -> Result<String, E> {
            Ok(text)
        }

        fn visit_unit<E: de::Error>(self) -> Result<String, E> {
            Ok(String::new())
        }

        fn visit_seq<A: de::SeqAccess<'de>>(self, mut parts: A) -> Result<String, A::Error> {
            let mut texts = Vec::new();
            while let Some(part) = parts.next_element::<Part>()? {
                match (part.r#type.as_str(), part.text) {
                    ("text", Some(text)) => texts.push(text),
                    ("text", None) => return Err(de::Error::missing_field("text")),
                    (other, _) => {
                        let message = format!("content parts of type `{other}` are not supported; only `text` is");
                        return Err(de::Error::custom(message));
                    }
                }
            }
            Ok(texts.join("\n"))
        }
    }

    deserializer.deserialize_any(Visitor)
}

/// A compiled chat template.
#[derive(Debug)]
pub(crate) struct ChatTemplate {
    environment: Environment<'static>,
    bos: String,
    eos: String,
}

/// What `raise_exception` throws; found again in the error's chain.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refusal(String);

impl ChatTemplate {
    /// Compiles a template with the dialect that model files use: Jinja blocks trimmed, Python's string methods, and
    /// `raise_exception`. There is no clock in it: a template that can tell the date falls back to its own.
    pub(crate) fn new(source: String, bos: String, eos: String) -> Result<Self, TextError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| TextError::Template(describe(&error)))?);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |message: String| -> Result<String, minijinja::Error> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, "refused").with_source(Refusal(message)))
        });
        environment.add_template_owned(TEMPLATE, source).map_err(|error| TextError::Template(describe(&error)))?;
        Ok(Self { environment, bos, eos })
    }

    /// The prompt for these messages; with `add_generation_prompt` it ends where the assistant's answer begins.
    pub(crate) fn render(&self, messages: &[ChatMessage], add_generation_prompt: bool) -> Result<String, TextError> {
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(FUEL + FUEL_PER_MESSAGE.saturating_mul(messages.len() as u64)));
        let template = environment.get_template(TEMPLATE).map_err(|error| TextError::Template(describe(&error)))?;
        let message = |m: &ChatMessage| context! { role => m.role.as_str(), content => m.content.as_str() };
        let values = context! {
            messages => messages.iter().map(message).collect::<Vec<Value>>(),
            add_generation_prompt => add_generation_prompt,
            bos_token => self.bos.as_str(),
            eos_token => self.eos.as_str(),
        };
        template.render(values).map_err(|error| {
            let mut source = std::error::Error::source(&error);
            while let Some(cause) = source {
                if let Some(Refusal(message)) = cause.downcast_ref() {
                    return TextError::Refused(message.clone());
                }
                source = cause.source();
            }
            match error.kind() {
                ErrorKind::OutOfFuel => TextError::Template("it does not come to an end".into()),
                _ => TextError::Template(describe(&error)),
            }
        })
    }
}

/// What and where, on one line.
fn describe(error: &minijinja::Error) -> String {
    let what = error.detail().map_or_else(|| error.kind().to_string(), |detail| format!("{}: {detail}", error.kind()));
    error.line().map_or_else(|| what.clone(), |line| format!("{what} (line {line})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] \
                          + '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' \
                          }}{% endif %}";

    fn render(source: &str, messages: &[ChatMessage]) -> Result<String, TextError> {
        ChatTemplate::new(source.into(), "<s>".into(), "</s>".into())?.render(messages, true)
    }

    #[test]
    fn chatml_renders() {
        let text = render(CHATML, &[ChatMessage::new("user", "1 < 2 & \"so\"")]).unwrap();
        assert_eq!(text, "<|im_start|>user\n1 < 2 & \"so\"<|im_end|>\n<|im_start|>assistant\n");
    }

    #[test]
    fn python_methods_trimmed_blocks_and_special_tokens() {
        let source = "{{ bos_token }}\n{% for m in messages %}\n  {% if m.content.strip().startswith('h') %}\n{{ \
                      m.content.strip() | tojson }}\n  {% endif %}\n{% endfor %}\n{{ eos_token }}";
        assert_eq!(render(source, &[ChatMessage::new("user", "  hi ")]).unwrap(), "<s>\n\"hi\"\n</s>");
    }

    #[test]
    fn failures_are_typed() {
        let refused = render("{{ raise_exception('roles must alternate') }}", &[]).unwrap_err();
        assert!(matches!(refused, TextError::Refused(ref m) if m == "roles must alternate"), "{refused}");
        let broken = render("{% for %}", &[]).unwrap_err();
        assert!(matches!(broken, TextError::Template(_)), "{broken}");
        let unknown = render("{{ messages | no_such_filter }}", &[]).unwrap_err();
        assert!(unknown.to_string().contains("no_such_filter"), "{unknown}");
    }

    #[test]
    fn an_endless_template_runs_out_of_fuel() {
        let source = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}";
        let error = render(source, &[]).unwrap_err().to_string();
        assert!(error.contains("does not come to an end"), "{error}");
    }

    #[test]
    fn content_is_a_string_null_or_text_parts() {
        let read = |json: &str| serde_json::from_str::<ChatMessage>(json);
        assert_eq!(read(r#"{"role":"user","content":"a"}"#).unwrap().content, "a");
        assert_eq!(read(r#"{"role":"assistant","content":null}"#).unwrap().content, "");
        let parts = r#"{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}"#;
        assert_eq!(read(parts).unwrap().content, "a\nb");
        for (json, says) in [
            (r#"{"role":"user","content":[{"type":"image_url","image_url":{}}]}"#, "`image_url` are not supported"),
            (r#"{"role":"user","content":[{"type":"text"}]}"#, "missing field `text`"),
            (r#"{"role":"user","content":7}"#, "a string or a list of text parts"),
            (r#"{"content":"a"}"#, "missing field `role`"),
        ] {
            let error = read(json).unwrap_err().to_string();
            assert!(error.contains(says), "{json}: {error}");
        }
    }
}
