//! Who wins: file < environment < flag.

use std::{fmt, path::Path};

use clap::{ArgMatches, parser::ValueSource};

use super::{ConfigError, Service, Setting, environment::Environment, file::File, value::Value};

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nobody gave one.
    Default,
    /// The configuration file.
    File(String),
    /// An environment variable.
    Environment(String),
    /// A flag.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => write!(f, "file {path}"),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Flag(flag) => write!(f, "flag {flag}"),
        }
    }
}

/// A service's values, each with its origin.
#[derive(Debug)]
pub struct Resolved {
    service: &'static str,
    rows: Vec<(&'static Setting, String, Origin)>,
}

impl Resolved {
    /// Chooses a value for each setting.
    fn new(service: &'static Service, file: Option<&File>, environment: &Environment, flags: &ArgMatches) -> Self {
        let choose = |setting: &'static Setting| {
            let (key, env) = (setting.key(), setting.env(service.name));
            let given = flags.value_source(setting.name) == Some(ValueSource::CommandLine);
            if let Some(text) = flags.get_one::<String>(setting.name).filter(|_| given) {
                (setting, text.clone(), Origin::Flag(format!("--{key}")))
            } else if let Some(text) = environment.get(&env) {
                (setting, text.to_owned(), Origin::Environment(env))
            } else if let Some((file, text)) = file.and_then(|file| Some((file, file.get(service.name, &key)?))) {
                (setting, text.to_owned(), Origin::File(file.path.clone()))
            } else {
                (setting, setting.default.to_owned(), Origin::Default)
            }
        };
        Self { service: service.name, rows: service.settings().map(choose).collect() }
    }

    /// Reads one value.
    ///
    /// # Errors
    /// [`ConfigError::Missing`] or [`ConfigError::Bad`].
    pub fn get<T: Value>(&self, name: &str) -> Result<T, ConfigError> {
        let Some((setting, text, origin)) = self.rows.iter().find(|(setting, ..)| setting.name == name) else {
            return Err(ConfigError::Conflict(format!("`{name}` is no setting of {}", self.service)));
        };
        let given_empty = setting.words && text.is_empty() && *origin != Origin::Default;
        if let Some(value) = T::parse(text).filter(|_| !given_empty) {
            return Ok(value);
        }
        let place = match origin {
            Origin::Default if text.is_empty() => {
                return Err(ConfigError::Missing {
                    name: setting.key(),
                    flag: setting.key(),
                    env: setting.env(self.service),
                    what: setting.what,
                });
            }
            Origin::Default => format!("default of {}", setting.key()),
            Origin::File(path) => format!("{path}: {}.{}", self.service, setting.key()),
            Origin::Environment(name) => name.clone(),
            Origin::Flag(flag) => flag.clone(),
        };
        let example = match (setting.default, setting.example) {
            ("", "") => String::new(),
            ("", example) | (example, _) => format!(", like {example}"),
        };
        let value = if setting.secret { "…".to_owned() } else { text.clone() };
        Err(ConfigError::Bad { place, value, what: setting.what, example })
    }
}

/// One line a setting: name, value, origin; secrets masked.
impl fmt::Display for Resolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |setting: &Setting, text: &str| match (text.is_empty(), setting.secret) {
            (true, _) => "(none)".to_owned(),
            (false, true) => "(secret)".to_owned(),
            (false, false) => text.to_owned(),
        };
        let names = self.rows.iter().map(|(s, ..)| s.name.len()).max().unwrap_or(0);
        let values = self.rows.iter().map(|(s, text, _)| shown(s, text).chars().count()).max().unwrap_or(0).min(40);
        write!(f, "kvrail {}: settings", self.service)?;
        for (setting, text, origin) in &self.rows {
            write!(f, "\n  {:names$}  {:values$}  {origin}", setting.key(), shown(setting, text))?;
        }
        Ok(())
    }
}

/// Loads a service's settings from file, environment and flags, and checks all three for keys that nobody knows.
///
/// # Errors
/// [`ConfigError`], naming key, value and what would be right.
pub fn load(service: &'static Service, services: &[&Service], flags: &ArgMatches) -> Result<Resolved, ConfigError> {
    let environment = Environment::new(std::env::vars_os(), services)?;
    let path = flags.get_one::<String>("config").map(String::as_str).or_else(|| environment.get("KVRAIL_CONFIG"));
    let file = path.map(|path| File::read(Path::new(path), services)).transpose()?;
    // A bad value of another service is that service's to report; a bad key is everybody's.
    Ok(Resolved::new(service, file.as_ref(), &environment, flags))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Settings, table::settings, value::Secret};

    settings! {
        /// A toy.
        pub struct Toy {
            /// How many.
            count: u32 = "3";
            /// Who.
            name: String = "";
            /// Keys.
            api_keys: Vec<Secret> = "";
            /// Whether.
            checksum: bool = "false", hidden;
        }
    }

    const TOY: Service = Service { name: "toy", groups: &[Toy::ROWS] };

    fn resolve(file: &str, env: &[(&str, &str)], flags: &[&str]) -> Result<Resolved, ConfigError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("k.toml");
        std::fs::write(&path, file).unwrap();
        let mut file = File::read(&path, &[&TOY])?;
        file.path = "k.toml".into();
        let environment = Environment::new(env.iter().map(|(n, v)| ((*n).into(), (*v).into())), &[&TOY])?;
        let command = clap::Command::new("toy").args(TOY.settings().map(|row| row.arg("toy")));
        let flags = command.get_matches_from(std::iter::once(&"toy").chain(flags));
        Ok(Resolved::new(&TOY, Some(&file), &environment, &flags))
    }

    #[test]
    fn file_yields_to_environment_yields_to_flag() {
        let file = "[toy]\ncount = 4\nname = 'f'\nchecksum = true";
        let env = [("KVRAIL_TOY_COUNT", "5"), ("KVRAIL_TOY_NAME", "e")];
        let toy = Toy::read(&resolve(file, &env, &["--count", "6"]).unwrap()).unwrap();
        assert_eq!((toy.count, toy.name.as_str(), toy.checksum), (6, "e", true));
        let toy = Toy::read(&resolve("", &[("KVRAIL_TOY_NAME", "e")], &["--checksum"]).unwrap()).unwrap();
        assert_eq!((toy.count, toy.checksum, toy.api_keys.len()), (3, true, 0));
        let toy = Toy::read(&resolve(file, &[], &["--checksum=false"]).unwrap()).unwrap();
        assert!(!toy.checksum);
    }

    #[test]
    fn every_value_is_shown_with_its_origin_and_secrets_are_not() {
        let env = [("KVRAIL_TOY_API_KEYS", "sk-abcdefgh,sk-ijklmnop")];
        let resolved = resolve("[toy]\nname = 'f'", &env, &["--count=6"]).unwrap();
        assert_eq!(
            resolved.to_string(),
            "kvrail toy: settings\n  count     6         flag --count\n  name      f         file k.toml\n  api-keys  \
             (secret)  environment KVRAIL_TOY_API_KEYS\n  checksum  false     default"
        );
    }

    #[test]
    fn bad_values_name_key_value_and_what_would_be_right() {
        let refuse =
            |file, env: &[_], flags: &[_]| Toy::read(&resolve(file, env, flags).unwrap()).unwrap_err().to_string();
        let name = ("KVRAIL_TOY_NAME", "n");
        assert_eq!(
            refuse("", &[name], &["--count", "many"]),
            "--count: `many` is not a whole number from 0 to 4294967295, like 3"
        );
        assert!(refuse("[toy]\ncount = -1", &[name], &[]).starts_with("k.toml: toy.count: `-1` is not a whole number"));
        assert!(
            refuse("", &[name, ("KVRAIL_TOY_CHECKSUM", "ja")], &[])
                .starts_with("KVRAIL_TOY_CHECKSUM: `ja` is not true or false")
        );
        assert_eq!(refuse("", &[], &[]), "`name` is needed: give --name or KVRAIL_TOY_NAME, a text");
        let secret = refuse("", &[name, ("KVRAIL_TOY_API_KEYS", "not one")], &[]);
        assert!(secret.starts_with("KVRAIL_TOY_API_KEYS: `…` is not a secret"), "{secret}");
    }
}
