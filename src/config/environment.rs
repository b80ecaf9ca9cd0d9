//! Settings from the environment.

use std::{collections::BTreeMap, ffi::OsString};

use super::{ConfigError, Service, nearest};

const PREFIX: &str = "KVRAIL_";

/// Variables that are not a service's setting: the configuration file's path, and the model that tests use.
const OTHERS: [&str; 2] = ["KVRAIL_CONFIG", "KVRAIL_TEST_MODEL"];

/// The variables of this program, all known and valid UTF-8.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    values: BTreeMap<String, String>,
}

impl Environment {
    /// Takes what begins with `KVRAIL_` out of an environment.
    ///
    /// # Errors
    /// [`ConfigError::Unknown`] for a variable that belongs to no setting of any service.
    pub fn new(
        variables: impl Iterator<Item = (OsString, OsString)>,
        services: &[&Service],
    ) -> Result<Self, ConfigError> {
        let of_service = |service: &&Service| service.settings().map(|row| row.env(service.name)).collect::<Vec<_>>();
        let known: Vec<String> = services.iter().flat_map(of_service).chain(OTHERS.map(str::to_owned)).collect();
        let mut values = BTreeMap::new();
        for (name, value) in variables {
            let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else { continue };
            let bad_text = || ConfigError::Bad {
                place: name.to_owned(),
                value: value.to_string_lossy().into_owned(),
                what: "valid UTF-8",
                example: String::new(),
            };
            let value = value.to_str().ok_or_else(bad_text)?;
            if known.iter().any(|k| k == name) {
                values.insert(name.to_owned(), value.to_owned());
            } else if !is_service_link(name, value) {
                return Err(ConfigError::Unknown {
                    place: "environment".into(),
                    kind: "variable",
                    key: name.to_owned(),
                    hint: nearest::hint(name, known.iter().map(String::as_str)),
                });
            }
        }
        Ok(Self { values })
    }

    /// Value of a variable.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }
}

/// Kubernetes sets variables for every Service of a namespace: for one called `kvrail-gateway`,
/// `KVRAIL_GATEWAY_SERVICE_HOST`, `KVRAIL_GATEWAY_PORT_8000_TCP_ADDR` and their like. They are not misspelt settings.
fn is_service_link(name: &str, value: &str) -> bool {
    let link = value.starts_with("tcp://") || value.starts_with("udp://") || value.starts_with("sctp://");
    let port = name.contains("_PORT_") && ["_ADDR", "_PORT", "_PROTO"].iter().any(|end| name.ends_with(end));
    name.ends_with("_SERVICE_HOST") || name.contains("_SERVICE_PORT") || port || (link && name.contains("_PORT"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Setting;

    const DECODE: Service =
        Service { name: "decode", groups: &[&[Setting::of::<u32>("pool_blocks", "doc", "1", false)]] };

    fn read(pairs: &[(&str, &str)]) -> Result<Environment, ConfigError> {
        Environment::new(pairs.iter().map(|(n, v)| ((*n).into(), (*v).into())), &[&DECODE])
    }

    #[test]
    fn unknown_variables_are_refused_with_the_nearest() {
        assert_eq!(
            read(&[("KVRAIL_DECODE_POOL_BLOCKS", "7"), ("PATH", "/bin")]).unwrap().get("KVRAIL_DECODE_POOL_BLOCKS"),
            Some("7")
        );
        let error = read(&[("KVRAIL_DECODE_POOL_BLOKS", "7")]).unwrap_err().to_string();
        assert_eq!(
            error,
            "environment: unknown variable `KVRAIL_DECODE_POOL_BLOKS`; did you mean `KVRAIL_DECODE_POOL_BLOCKS`?"
        );
    }

    #[test]
    fn links_that_kubernetes_sets_are_no_settings() {
        let links = [
            ("KVRAIL_GATEWAY_SERVICE_HOST", "10.0.0.1"),
            ("KVRAIL_GATEWAY_SERVICE_PORT_HTTP", "8000"),
            ("KVRAIL_GATEWAY_PORT", "tcp://10.0.0.1:8000"),
            ("KVRAIL_GATEWAY_PORT_8000_TCP", "tcp://10.0.0.1:8000"),
            ("KVRAIL_GATEWAY_PORT_8000_TCP_PROTO", "tcp"),
        ];
        assert!(read(&links).is_ok());
        assert!(read(&[("KVRAIL_GATEWAY_PORTS", "8000")]).is_err());
    }
}
