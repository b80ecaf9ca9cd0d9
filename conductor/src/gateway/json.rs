//! JSON as a request means it: an object that gives a key twice says two things, and is refused.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Longest part of a key that an error repeats, in characters.
const KEY_SHOWN_MAX: usize = 100;

/// Reads a value.
///
/// # Errors
/// What is wrong with the text and where.
pub(super) fn parse(text: &str) -> Result<Value, serde_json::Error> {
    serde_json::from_str(text).map(|Unambiguous(value)| value)
}

struct Unambiguous(Value);

impl<'de> Deserialize<'de> for Unambiguous {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader).map(Self)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut array = Vec::new();
        while let Some(Unambiguous(item)) = items.next_element()? {
            array.push(item);
        }
        Ok(array.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if object.contains_key(&key) {
                let key: String = key.chars().take(KEY_SHOWN_MAX).collect();
                return Err(A::Error::custom(format_args!("`{key}` is given twice")));
            }
            let Unambiguous(value) = entries.next_value()?;
            object.insert(key, value);
        }
        Ok(object.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_serde_json_reads() {
        for text in
            ["null", "true", "-3", "18446744073709551615", "1e3", "\"a\\u00e9\"", "[1,[],{}]", "{\"a\":{\"b\":[1]}}"]
        {
            assert_eq!(parse(text).unwrap(), serde_json::from_str::<Value>(text).unwrap(), "{text}");
        }
        assert!(parse(&"[".repeat(1_000)).is_err(), "depth is bounded");
        assert!(parse("{} x").is_err(), "nothing may follow");
    }

    #[test]
    fn a_key_given_twice_is_refused_by_name_at_any_depth() {
        for text in [r#"{"seed":1,"seed":1}"#, r#"{"a":[{"seed":1,"s\u0065ed":2}]}"#] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.starts_with("`seed` is given twice at line 1"), "{error}");
        }
    }
}
