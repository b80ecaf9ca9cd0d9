//! What the doctor says.

use std::io::Write;

use serde::Serialize;
use serde_json::Value;

/// How it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It is there and will be used, or is as it should be.
    Good,
    /// A fact to know; nothing to do.
    Note,
    /// It would help and is not there, or is not as it should be.
    Missing,
}

/// One thing about the machine, in plain words.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// What it is about.
    pub subject: &'static str,
    /// How it stands.
    pub state: State,
    /// What is there, and what of it will be used.
    pub says: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
    /// The same as data.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub facts: Value,
}

impl Finding {
    /// A finding without advice and facts.
    pub fn new(subject: &'static str, state: State, says: impl Into<String>) -> Self {
        Self { subject, state, says: says.into(), advice: None, facts: Value::Null }
    }

    /// With what to do.
    pub fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }

    /// With data.
    pub fn facts(mut self, facts: Value) -> Self {
        self.facts = facts;
        self
    }

    /// Prints it for people.
    ///
    /// # Errors
    /// If the output is gone.
    pub fn print(&self, out: &mut impl Write, color: bool) -> std::io::Result<()> {
        let (mark, code) = match self.state {
            State::Good => ("ok", "32"),
            State::Note => ("--", "0"),
            State::Missing => ("no", "33"),
        };
        let mark = if color { format!("\x1b[{code}m{mark}\x1b[0m") } else { mark.to_owned() };
        writeln!(out, "{mark}  {:<14} {}", self.subject, self.says)?;
        match &self.advice {
            Some(advice) => writeln!(out, "{:19}→ {advice}", ""),
            None => Ok(()),
        }
    }
}
