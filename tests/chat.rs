//! `kvrail chat` as people use it, against an endpoint that does as the question says.

use std::{
    ffi::OsStr,
    fs::{File, OpenOptions},
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::ffi::OsStrExt,
    process::{Child, ChildStderr, ChildStdout, Command, Output, Stdio},
    sync::{Arc, Mutex},
    thread,
};

use rustix::{
    process::{Pid, Signal, kill_process},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
};
use serde_json::{Value, json};

/// Messages of each request, in order.
type Asked = Arc<Mutex<Vec<Vec<String>>>>;

/// An endpoint: `die` breaks off after a word, `long` never ends, `refuse` is refused, all else is answered.
fn endpoint() -> (String, Asked) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, asked) = (listener.local_addr().unwrap().to_string(), Asked::default());
    let seen = Arc::clone(&asked);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let seen = Arc::clone(&seen);
            // A client that goes away is part of the play.
            thread::spawn(move || drop(answer(stream.unwrap(), &seen)));
        }
    });
    (address, asked)
}

fn answer(mut stream: TcpStream, asked: &Asked) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let (mut request, mut length) = (String::new(), 0);
    reader.read_line(&mut request)?;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        match line.trim().to_ascii_lowercase().strip_prefix("content-length:") {
            Some(number) => length = number.trim().parse().unwrap(),
            None if line.trim().is_empty() => break,
            None => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    if request.starts_with("GET") {
        let models = json!({"data": [{"id": "toy"}]}).to_string();
        return write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{models}", models.len());
    }
    let body: Value = serde_json::from_slice(&body)?;
    let texts = body["messages"].as_array().unwrap().iter().map(|m| m["content"].as_str().unwrap().to_owned());
    let messages: Vec<String> = texts.collect();
    let question = messages.last().unwrap().clone();
    assert_eq!(body["temperature"], 0.0, "nobody asked for another");
    asked.lock().unwrap().push(messages);
    if question == "refuse" {
        let error = json!({"error": {"message": "That is too long.", "code": "x"}}).to_string();
        return write!(stream, "HTTP/1.1 400 Bad Request\r\ncontent-length: {}\r\n\r\n{error}", error.len());
    }
    write!(stream, "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")?;
    let mut say = |piece: &str| {
        let event = json!({"choices": [{"delta": {"content": piece}}]});
        write!(stream, "data: {event}\n\n")
    };
    say("well ")?;
    if question == "long" {
        loop {
            say("on and ")?;
            thread::sleep(std::time::Duration::from_millis(5));
        }
    }
    if question != "die" {
        say(&format!("{question}!"))?;
        write!(stream, "data: [DONE]\n\n")?;
    }
    Ok(())
}

fn chat(endpoint: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvrail"));
    command.args(["chat", "--url", endpoint]).args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn texts(output: &Output) -> (&str, &str) {
    (std::str::from_utf8(&output.stdout).unwrap(), std::str::from_utf8(&output.stderr).unwrap())
}

#[test]
fn a_pipe_is_one_question() {
    let (at, asked) = endpoint();
    // As `kvrail up` shows it.
    let mut child = chat(&format!("http://{at}/v1"), &["--system", "Be brief."]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"two\n\nlines\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), texts(&output)), (Some(0), ("well two\n\nlines!\n", "")));
    assert_eq!(*asked.lock().unwrap(), [["Be brief.", "two\n\nlines"]]);
    for (input, says) in [(&b" \n"[..], "standard input is empty"), (b"\xff", "not UTF-8")] {
        let mut child = chat(&at, &[]).stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.code() == Some(1) && texts(&output).1.contains(says), "{output:?}");
    }
}

#[test]
fn what_goes_wrong_is_said_in_plain_words() {
    let (at, _) = endpoint();
    let nobody = "127.0.0.1:9";
    for (at, question, out, says) in [
        (at.as_str(), "refuse", "", "kvrail: That is too long.\n"),
        (at.as_str(), "die", "well \n", "cannot be reached, or went away"),
        (nobody, "hello", "", "no endpoint at 127.0.0.1:9 (`kvrail up` starts one, --url names another)"),
    ] {
        let output = chat(at, &[question]).stdin(Stdio::null()).output().unwrap();
        let (said, complaint) = texts(&output);
        assert_eq!((output.status.code(), said), (Some(1), out), "{question}");
        assert!(complaint.contains(says), "{question}: {complaint}");
    }
}

/// An endpoint that answers everything with this status and body, and nothing else.
fn refusing(status: &str, body: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let reply = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(reply.as_bytes());
        }
    });
    address
}

#[test]
fn an_endpoint_that_refuses_is_not_called_absent() {
    let json = json!({"error": {"message": "No such key.\u{1b}[2J"}}).to_string();
    let page = format!("<html>{}\nmore", "x".repeat(500));
    let shown = format!("kvrail: the endpoint answers HTTP 502 <html>{}\n", "x".repeat(114));
    for (status, body, says) in [
        ("401 Unauthorized", json.as_str(), "kvrail: No such key.[2J\n"),
        ("502 Bad Gateway", page.as_str(), shown.as_str()),
        ("404 Not Found", "", "kvrail: the endpoint answers HTTP 404\n"),
    ] {
        // Also: a key may be short.
        let output = chat(&refusing(status, body), &["--api-key", "k", "hello"]).output().unwrap();
        assert_eq!((output.status.code(), texts(&output)), (Some(1), ("", says)));
    }
}

#[test]
fn an_empty_question_is_a_usage_error() {
    for empty in ["", " \n"] {
        let output = chat("127.0.0.1:9", &[empty]).output().unwrap();
        assert_eq!((output.status.code(), texts(&output).1), (Some(2), "kvrail: QUESTION: the question is empty\n"));
    }
}

/// A chat at a terminal: what is typed goes through a pseudo-terminal, what is said comes through pipes.
struct Terminal {
    child: Child,
    keyboard: File,
    out: BufReader<ChildStdout>,
    words: ChildStderr,
}

impl Terminal {
    fn open(at: &str) -> Self {
        // Not for the chat to inherit: it would keep its own terminal open.
        let keyboard = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&keyboard).unwrap();
        unlockpt(&keyboard).unwrap();
        let name = ptsname(&keyboard, Vec::new()).unwrap();
        let screen = OpenOptions::new().read(true).write(true).open(OsStr::from_bytes(name.as_bytes())).unwrap();
        let mut child = chat(at, &[]).stdin(screen).spawn().unwrap();
        let (out, words) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        Self { child, keyboard: keyboard.into(), out: BufReader::new(out), words }
    }

    fn type_in(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// The next line of the answers.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        line
    }

    /// The next bytes of an answer that has not ended.
    fn piece(&mut self) -> String {
        let piece = String::from_utf8(self.out.fill_buf().unwrap().to_vec()).unwrap();
        self.out.consume(piece.len());
        piece
    }

    fn interrupt(&self) {
        kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
    }

    /// Its status, and all that was said beside the answers.
    fn end(mut self) -> (Option<i32>, String) {
        let mut words = String::new();
        self.words.read_to_string(&mut words).unwrap();
        (self.child.wait().unwrap().code(), words)
    }
}

#[test]
fn turns_are_taken_until_ctrl_d() {
    let (at, asked) = endpoint();
    let mut terminal = Terminal::open(&at);
    terminal.type_in("\n  \none\n");
    assert_eq!(terminal.line(), "well one!\n");
    terminal.type_in("refuse\n");
    terminal.type_in("two\n");
    assert_eq!(terminal.line(), "well two!\n");
    terminal.type_in("/new\n/nwe\nthree\n");
    assert_eq!(terminal.line(), "well three!\n");
    terminal.type_in("\u{4}");
    let (status, words) = terminal.end();
    assert_eq!(status, Some(0));
    assert!(words.contains("kvrail: That is too long.") && words.ends_with("> \n"), "{words}");
    assert!(words.contains("(a new conversation)"), "{words}");
    assert_eq!(words.matches("/help").count(), 2, "at the start, and for `/nwe`: {words}");
    let asked = asked.lock().unwrap();
    assert_eq!(asked[2], ["one", "well one!", "two"], "what was refused is not part of the conversation");
    assert_eq!(asked[3..], [["three"]]);
}

#[test]
fn ctrl_c_stops_an_answer_and_then_the_chat() {
    let (at, asked) = endpoint();
    let mut terminal = Terminal::open(&at);
    terminal.type_in("long\n");
    assert!(terminal.piece().starts_with("well "));
    terminal.interrupt();
    assert!(terminal.line().ends_with('\n'), "the next answer begins on a line of its own");
    terminal.type_in("die\n");
    assert_eq!(terminal.line(), "well \n");
    terminal.type_in("go\n");
    assert_eq!(terminal.line(), "well go!\n");
    terminal.interrupt();
    let (status, words) = terminal.end();
    assert!(status == Some(0) && words.contains("went away") && words.ends_with("> \n"), "{status:?} {words}");
    let last = asked.lock().unwrap().pop().unwrap();
    assert!(last.len() == 3 && last[0] == "long" && last[1].starts_with("well "), "{last:?}");
    assert_eq!(last[2], "go");
}
