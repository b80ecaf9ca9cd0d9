//! `kvrail chat`: a conversation from the terminal, or one question from a pipe.

use std::{
    io::{BufRead, IsTerminal, Read, Write},
    net::SocketAddr,
    num::NonZeroU32,
};

use anyhow::Context;
use clap::{Arg, ArgMatches, Command};
use kvrail_bench::client::Client;
use serde_json::{Value, json};

use crate::{
    SERVICES,
    config::{Service, Settings, load, table::settings, value::Secret},
    config_arg,
    exit::Exit,
    up::model_name,
};

/// Most bytes that are read from a pipe: far more than any context holds.
const STDIN_BYTES_MAX: u64 = 16 << 20;

settings! {
    /// Settings of `kvrail chat`.
    pub struct ChatSettings {
        /// The endpoint.
        url: String = "http://127.0.0.1:8000";
        /// Model; without one, the first that the endpoint serves.
        model: Option<String> = "";
        /// Longest answer, in tokens.
        max_tokens: NonZeroU32 = "512";
        /// How far from the likeliest token answers may go; without one, the endpoint's default.
        temperature: Option<f64> = "";
        /// What the assistant is told beforehand.
        system: Option<String> = "";
        /// Key of the endpoint, if it wants one.
        api_key: Option<Secret> = "";
    }
}

/// The service.
pub const SERVICE: Service = Service { name: "chat", groups: &[ChatSettings::ROWS] };

/// The subcommand.
pub fn command() -> Command {
    Command::new(SERVICE.name)
        .about("Ask an endpoint from the terminal")
        .args(SERVICE.settings().map(|row| row.arg(SERVICE.name)))
        .arg(config_arg())
        .arg(
            Arg::new("question")
                .value_name("QUESTION")
                .help("Ask this and end; without it, ask in turns, or read a pipe"),
        )
        .after_help(
            "Examples:\n  kvrail chat\n  kvrail chat \"What is the capital of France?\"\n  cat notes.txt | kvrail chat \
             --system \"Sum up in one sentence.\"",
        )
}

/// Runs it.
pub fn run(arguments: &ArgMatches) -> anyhow::Result<Exit> {
    let settings = ChatSettings::read(&load(&SERVICE, &SERVICES, arguments)?)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(converse(&settings, arguments.get_one::<String>("question").map(String::as_str)))?;
    Ok(Exit::Ok)
}

/// A conversation with an endpoint.
struct Conversation {
    client: Client,
    model: String,
    max_tokens: u32,
    temperature: Option<f64>,
    messages: Vec<Value>,
}

impl Conversation {
    fn say(&mut self, role: &str, content: &str) {
        self.messages.push(json!({"role": role, "content": content}));
    }

    /// Asks, and prints the answer as it comes. A question that fails is taken back, so that the next one may be asked.
    async fn ask(&mut self, question: &str) -> anyhow::Result<()> {
        self.say("user", question);
        match self.answer().await {
            Ok(answer) => {
                self.say("assistant", &answer);
                Ok(())
            }
            Err(error) => {
                self.messages.pop();
                Err(error)
            }
        }
    }

    async fn answer(&self) -> anyhow::Result<String> {
        let mut body = json!({
            "model": self.model,
            "messages": self.messages,
            "max_tokens": self.max_tokens,
            "stream": true,
        });
        if let Some(temperature) = self.temperature {
            body["temperature"] = json!(temperature);
        }
        let mut stream = self.client.stream("/v1/chat/completions", &body).await?;
        let mut answer = String::new();
        let mut out = std::io::stdout();
        while let Some(event) = stream.next().await? {
            if let Some(piece) = event.pointer("/choices/0/delta/content").and_then(Value::as_str) {
                answer.push_str(piece);
                out.write_all(piece.as_bytes())?;
                out.flush()?;
            }
        }
        writeln!(out)?;
        Ok(answer)
    }
}

async fn converse(settings: &ChatSettings, question: Option<&str>) -> anyhow::Result<()> {
    let client = Client::new(&settings.url)?.with_api_key(settings.api_key.as_ref().map(|key| key.0.clone()));
    let model = match &settings.model {
        Some(model) => model.clone(),
        None => model_name(&client).await.with_context(|| format!("asking {} for its models", settings.url))?,
    };
    let max_tokens = settings.max_tokens.get();
    let temperature = settings.temperature;
    let mut conversation = Conversation { client, model, max_tokens, temperature, messages: Vec::new() };
    if let Some(system) = &settings.system {
        conversation.say("system", system);
    }
    if let Some(question) = question {
        return conversation.ask(question).await;
    }
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        let mut text = String::new();
        let read = stdin.lock().take(STDIN_BYTES_MAX + 1).read_to_string(&mut text).context("standard input")?;
        anyhow::ensure!(read as u64 <= STDIN_BYTES_MAX, "standard input is longer than {STDIN_BYTES_MAX} bytes");
        anyhow::ensure!(!text.trim().is_empty(), "standard input is empty: nothing to ask");
        return conversation.ask(text.trim_end()).await;
    }
    say!("{} at {}; an empty line or Ctrl-D ends", conversation.model, settings.url);
    loop {
        write!(std::io::stderr(), "> ")?;
        let mut line = String::new();
        // Blocks the one thread there is; nothing else runs between two questions.
        if stdin.lock().read_line(&mut line)? == 0 || line.trim().is_empty() {
            return Ok(());
        }
        if let Err(error) = conversation.ask(line.trim_end()).await {
            say!("kvrail: {error:#}");
        }
    }
}

/// Asks one question and prints the answer, for `kvrail up --ask`.
///
/// # Errors
/// If no whole answer came.
pub async fn ask_once(endpoint: SocketAddr, question: &str, max_tokens: u32) -> anyhow::Result<()> {
    let client = Client::new(&endpoint.to_string())?;
    let model = model_name(&client).await?;
    Conversation { client, model, max_tokens, temperature: Some(0.0), messages: Vec::new() }.ask(question).await
}
