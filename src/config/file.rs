//! Settings from a TOML file.

use std::{collections::BTreeMap, path::Path};

use super::{ConfigError, Service, Setting, nearest};

/// Largest file: far beyond all settings there are.
const BYTES_MAX: u64 = 1 << 20;

/// A configuration file: all sections and keys known.
#[derive(Clone, Debug)]
pub struct File {
    /// Its path, for messages.
    pub path: String,
    /// Text of each value by section and key.
    values: BTreeMap<(String, String), String>,
}

impl File {
    /// Reads a file; `services` are the sections it may have.
    ///
    /// # Errors
    /// [`ConfigError::File`] if it cannot be read or is no TOML, [`ConfigError::Unknown`] for a section or key nobody has.
    pub fn read(path: &Path, services: &[&Service]) -> Result<Self, ConfigError> {
        let refused = |reason: String| ConfigError::File { path: path.display().to_string(), reason };
        let metadata = std::fs::metadata(path).map_err(|error| refused(error.to_string()))?;
        // A device may have no end, and what a pipe held is gone when the next process reads it.
        if !metadata.is_file() {
            return Err(refused("not a regular file".into()));
        }
        if metadata.len() > BYTES_MAX {
            return Err(refused(format!("{} bytes are too many for settings, at most {BYTES_MAX}", metadata.len())));
        }
        let text = std::fs::read_to_string(path).map_err(|error| refused(error.to_string()))?;
        Self::parse(&path.display().to_string(), &text, services)
    }

    fn parse(path: &str, text: &str, services: &[&Service]) -> Result<Self, ConfigError> {
        let file_error = |reason: String| ConfigError::File { path: path.to_owned(), reason };
        let root: toml::Table = text.parse().map_err(|error: toml::de::Error| file_error(error.to_string()))?;
        let mut values = BTreeMap::new();
        for (section, content) in root {
            let unknown = |kind, key: &str, hint| ConfigError::Unknown {
                place: path.to_owned(),
                kind,
                key: key.to_owned(),
                hint,
            };
            let Some(service) = services.iter().find(|service| service.name == section) else {
                let hint = nearest::hint(&section, services.iter().map(|service| service.name));
                return Err(unknown("section", &section, hint));
            };
            let toml::Value::Table(content) = content else {
                return Err(file_error(format!("`{section}` must be a section, like [{section}]")));
            };
            let keys: Vec<String> = service.settings().map(Setting::key).collect();
            for (key, value) in content {
                if !keys.contains(&key) {
                    let hint = nearest::hint(&key, keys.iter().map(String::as_str));
                    return Err(unknown("key", &format!("{section}.{key}"), hint));
                }
                let Some(text) = text_of(&value) else {
                    let reason =
                        format!("`{section}.{key}` must be a text, a number, true or false, or a list of them");
                    return Err(file_error(reason));
                };
                values.insert((section.clone(), key), text);
            }
        }
        Ok(Self { path: path.to_owned(), values })
    }

    /// Text of a value.
    pub fn get(&self, section: &str, key: &str) -> Option<&str> {
        self.values.get(&(section.to_owned(), key.to_owned())).map(String::as_str)
    }
}

/// A value as the text that a flag would have; `None` for what no flag could say.
fn text_of(value: &toml::Value) -> Option<String> {
    match value {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Integer(number) => Some(number.to_string()),
        toml::Value::Float(number) => Some(number.to_string()),
        toml::Value::Boolean(yes) => Some(yes.to_string()),
        toml::Value::Array(items) => {
            let texts: Option<Vec<String>> = items.iter().map(text_of).collect();
            texts.map(|texts| texts.join(","))
        }
        toml::Value::Datetime(_) | toml::Value::Table(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DECODE: Service = Service {
        name: "decode",
        groups: &[
            &[Setting::of::<u32>("pool_blocks", "doc", "1", false)],
            &[Setting::of::<Vec<String>>("names", "doc", "", false)],
        ],
    };
    const GATEWAY: Service = Service { name: "gateway", groups: &[] };

    fn parse(text: &str) -> Result<File, ConfigError> {
        File::parse("kvrail.toml", text, &[&DECODE, &GATEWAY])
    }

    #[test]
    fn values_become_the_text_of_a_flag() {
        let file = parse("[decode]\npool-blocks = 7\nnames = ['a', 'b']").unwrap();
        assert_eq!(file.get("decode", "pool-blocks"), Some("7"));
        assert_eq!(file.get("decode", "names"), Some("a,b"));
        assert_eq!(file.get("gateway", "names"), None);
    }

    #[test]
    fn what_is_no_file_of_settings_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let large = dir.path().join("large.toml");
        std::fs::File::create(&large).unwrap().set_len(BYTES_MAX + 1).unwrap();
        for (path, says) in [
            (Path::new("/dev/zero"), "not a regular file"),
            (dir.path(), "not a regular file"),
            (&large, "bytes are too many"),
            (Path::new("/no/such.toml"), "No such file"),
        ] {
            let said = File::read(path, &[]).unwrap_err().to_string();
            assert!(said.starts_with(path.to_str().unwrap()) && said.contains(says), "{said}");
        }
    }

    #[test]
    fn what_nobody_knows_is_refused_with_the_nearest() {
        let refuse = |text: &str| parse(text).unwrap_err().to_string();
        assert_eq!(refuse("[decod]"), "kvrail.toml: unknown section `decod`; did you mean `decode`?");
        assert_eq!(
            refuse("[decode]\npool_blocks = 1"),
            "kvrail.toml: unknown key `decode.pool_blocks`; did you mean `pool-blocks`?"
        );
        assert_eq!(refuse("[gateway]\nzzz = 1"), "kvrail.toml: unknown key `gateway.zzz`");
        assert!(refuse("decode = 1").contains("must be a section"));
        assert!(refuse("[decode]\nnames = 1979-05-27").contains("`decode.names` must be"));
        assert!(refuse("[decode").contains("kvrail.toml"));
    }
}
