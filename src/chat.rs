//! `kvrail chat`: a conversation from the terminal, or one question from a pipe.

use std::{
    io::{self, BufRead, IsTerminal, Read, Write},
    net::SocketAddr,
    num::NonZeroU32,
};

use anyhow::Context;
use clap::{Arg, ArgMatches, Command};
use kvrail_bench::client::{Client, ClientError};
use serde_json::{Value, json};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
};

use crate::{
    SERVICES,
    config::{ConfigError, Service, Settings, load, table::settings, value::Secret},
    config_arg,
    exit::Exit,
    up::model_name,
};

/// What may be typed instead of a question.
const COMMANDS: &str = "/new begins a new conversation, /help shows this; Ctrl-C stops an answer, Ctrl-D ends";
/// Most characters of an answer that is no JSON which are shown.
const SHOWN_CHARS_MAX: usize = 120;
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
        /// How far from the likeliest token answers may stray, 0 to 2; 0 always takes the likeliest.
        temperature: f64 = "0";
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
    let question = arguments.get_one::<String>("question").map(String::as_str);
    not_empty("QUESTION", question)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(converse(&settings, question))?;
    Ok(Exit::Ok)
}

/// Refuses a question of nothing but blanks: a script's variable that was never set, more often than not.
///
/// # Errors
/// [`ConfigError::Conflict`], naming the argument.
pub fn not_empty(argument: &str, question: Option<&str>) -> Result<(), ConfigError> {
    match question {
        Some(text) if text.trim().is_empty() => {
            Err(ConfigError::Conflict(format!("{argument}: the question is empty")))
        }
        _ => Ok(()),
    }
}

/// A conversation with an endpoint.
struct Conversation {
    client: Client,
    model: String,
    max_tokens: u32,
    temperature: f64,
    messages: Vec<Value>,
    /// What came of the answer to the last message.
    answer: String,
}

impl Conversation {
    fn say(&mut self, role: &str, content: &str) {
        self.messages.push(json!({"role": role, "content": content}));
    }

    /// Asks, and prints the answer as it comes. A question that fails is taken back, so that the next one may be asked.
    async fn ask(&mut self, question: &str) -> anyhow::Result<()> {
        self.say("user", question);
        let answered = self.listen().await;
        match answered {
            Ok(()) => self.keep(),
            Err(_) => drop(self.messages.pop()),
        }
        answered
    }

    /// The answer was stopped half-way: what came of it was said, and belongs to the conversation.
    fn interrupted(&mut self) -> io::Result<()> {
        writeln!(io::stdout())?;
        if self.answer.is_empty() {
            self.messages.pop();
        } else {
            self.keep();
        }
        Ok(())
    }

    fn keep(&mut self) {
        let answer = std::mem::take(&mut self.answer);
        self.say("assistant", &answer);
    }

    async fn listen(&mut self) -> anyhow::Result<()> {
        self.answer.clear();
        let finished = self.stream().await;
        if finished.is_ok() || !self.answer.is_empty() {
            writeln!(io::stdout())?;
        }
        if finished?.as_deref() == Some("length") {
            say!("(cut after {} tokens; --max-tokens allows more)", self.max_tokens);
        }
        Ok(())
    }

    /// The reason why the answer is at its end.
    async fn stream(&mut self) -> anyhow::Result<Option<String>> {
        let body = json!({
            "model": self.model,
            "messages": self.messages,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "stream": true,
        });
        let mut stream = self.client.stream("/v1/chat/completions", &body).await.map_err(plain)?;
        let mut out = io::stdout();
        let (shown_to_people, mut finish) = (out.is_terminal(), None);
        while let Some(event) = stream.next().await.map_err(plain)? {
            if let Some(piece) = event.pointer("/choices/0/delta/content").and_then(Value::as_str) {
                self.answer.push_str(piece);
                // What a model says must not reach for the terminal's controls.
                let harmless = |c: &char| !shown_to_people || !c.is_control() || matches!(c, '\n' | '\t');
                out.write_all(piece.chars().filter(harmless).collect::<String>().as_bytes())?;
                out.flush()?;
            }
            let reason = event.pointer("/choices/0/finish_reason").and_then(Value::as_str);
            finish = reason.map(str::to_owned).or(finish);
        }
        Ok(finish)
    }
}

/// An endpoint's error in its own words, where it has some.
fn plain(error: ClientError) -> anyhow::Error {
    let (said, otherwise) = match &error {
        ClientError::Http { status, body } => {
            let line: String = body.lines().next().unwrap_or_default().chars().take(SHOWN_CHARS_MAX).collect();
            (serde_json::from_str(body).unwrap_or_default(), format!("the endpoint answers HTTP {status} {line}"))
        }
        ClientError::ErrorEvent(event) => (event.clone(), error.to_string()),
        ClientError::Connection { .. } | ClientError::Truncated => {
            return anyhow::Error::from(error).context("the endpoint cannot be reached, or went away");
        }
        _ => return error.into(),
    };
    // Whoever answers there need not be a friend of this terminal.
    let words: String =
        said["error"]["message"].as_str().unwrap_or(&otherwise).chars().filter(|c| !c.is_control()).collect();
    anyhow::anyhow!("{}", words.trim_end())
}

/// The model to ask for where nobody named one; an endpoint that is not there is told from one that refuses.
async fn first_model(client: &Client, url: &str) -> anyhow::Result<String> {
    let error = match model_name(client).await {
        Ok(name) => return Ok(name),
        Err(error) => error.downcast::<ClientError>()?,
    };
    Err(match error {
        ClientError::Connection { .. } | ClientError::TimedOut { .. } => anyhow::Error::from(error)
            .context(format!("no endpoint at {url} (`kvrail up` starts one, --url names another)")),
        error => plain(error),
    })
}

async fn converse(settings: &ChatSettings, question: Option<&str>) -> anyhow::Result<()> {
    // `kvrail up` shows the base that OpenAI's clients want.
    let url = settings.url.trim_end_matches('/').trim_end_matches("/v1");
    let client = Client::new(url)?.with_api_key(settings.api_key.as_ref().map(|key| key.0.clone()));
    let model = match &settings.model {
        Some(model) => model.clone(),
        None => first_model(&client, url).await?,
    };
    let mut conversation = Conversation {
        client,
        model,
        max_tokens: settings.max_tokens.get(),
        temperature: settings.temperature,
        messages: Vec::new(),
        answer: String::new(),
    };
    if let Some(system) = &settings.system {
        conversation.say("system", system);
    }
    if let Some(question) = question {
        return conversation.ask(question).await;
    }
    let stdin = io::stdin();
    if stdin.is_terminal() {
        say!("{} at {url}; {COMMANDS}", conversation.model);
        return talk(conversation).await;
    }
    let mut text = Vec::new();
    let read = stdin.lock().take(STDIN_BYTES_MAX + 1).read_to_end(&mut text).context("standard input")?;
    anyhow::ensure!(read as u64 <= STDIN_BYTES_MAX, "standard input is longer than {STDIN_BYTES_MAX} bytes");
    let text = String::from_utf8(text).context("standard input is not UTF-8 text")?;
    anyhow::ensure!(!text.trim().is_empty(), "standard input is empty: nothing to ask");
    conversation.ask(text.trim_end()).await
}

/// Takes turns with whoever sits at the terminal.
async fn talk(mut conversation: Conversation) -> anyhow::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut lines = lines();
    let beginning = conversation.messages.clone();
    loop {
        write!(io::stderr(), "> ")?;
        let line = tokio::select! {
            line = lines.recv() => line,
            _ = interrupt.recv() => None,
        };
        let Some(line) = line else {
            say!("");
            return Ok(());
        };
        match line.trim() {
            "" => {}
            "/new" => {
                conversation.messages.clone_from(&beginning);
                say!("(a new conversation)");
            }
            command if command.starts_with('/') => say!("{COMMANDS}"),
            question => {
                let stopped = tokio::select! {
                    answered = conversation.ask(question) => {
                        if let Err(error) = answered {
                            say!("kvrail: {error:#}");
                        }
                        false
                    }
                    _ = interrupt.recv() => true,
                };
                if stopped {
                    conversation.interrupted()?;
                }
            }
        }
    }
}

/// The lines of standard input, read by a thread of its own: a read that blocks would keep Ctrl-C from being heard.
fn lines() -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel(1);
    std::thread::spawn(move || {
        let mut line = Vec::new();
        while io::stdin().lock().read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            if sender.blocking_send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                return;
            }
            line.clear();
        }
    });
    receiver
}

/// Asks one question and prints the answer, for `kvrail up --ask`.
///
/// # Errors
/// If no whole answer came.
pub async fn ask_once(endpoint: SocketAddr, model: &str, question: &str, max_tokens: u32) -> anyhow::Result<()> {
    let (client, model) = (Client::new(&endpoint.to_string())?, model.to_owned());
    let (messages, answer) = (Vec::new(), String::new());
    Conversation { client, model, max_tokens, temperature: 0.0, messages, answer }.ask(question).await
}
