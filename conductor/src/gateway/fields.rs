//! Strict reading of a JSON object: each field is taken by name, checked, and what is left over is refused.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use super::error::ApiError;

/// The fields of an object that have not been taken yet. A null is as good as absent, as with OpenAI.
pub(super) struct Fields {
    map: Map<String, Value>,
    /// Path of the object itself, for error messages: empty at the top, else `outer.`.
    path: String,
}

impl Fields {
    /// The top of a body.
    pub(super) fn top(value: Value) -> Result<Self, ApiError> {
        match value {
            Value::Object(map) => Ok(Self { map, path: String::new() }),
            other => Err(ApiError::body(format!("The body must be a JSON object, not {}", kind(&other)))),
        }
    }

    /// An object inside.
    pub(super) fn nested(value: Value, path: &str) -> Result<Self, ApiError> {
        match value {
            Value::Object(map) => Ok(Self { map, path: format!("{path}.") }),
            other => Err(expected(path, "an object", &other)),
        }
    }

    fn at(&self, name: &str) -> String {
        format!("{}{name}", self.path)
    }

    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        self.map.remove(name).filter(|value| !value.is_null())
    }

    pub(super) fn required(&mut self, name: &str) -> Result<Value, ApiError> {
        let missing = || ApiError {
            code: "missing_field",
            ..ApiError::field(self.at(name), format!("`{}` is required", self.at(name)))
        };
        let error = missing();
        self.take(name).ok_or(error)
    }

    pub(super) fn bool(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(value)),
            Some(other) => Err(expected(&self.at(name), "true or false", &other)),
        }
    }

    pub(super) fn integer(&mut self, name: &str, range: RangeInclusive<i64>) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let wanted = format!("an integer from {} to {}", range.start(), range.end());
        match value.as_i64() {
            Some(number) if range.contains(&number) => Ok(Some(number)),
            _ => Err(expected(&self.at(name), &wanted, &value)),
        }
    }

    /// A number from `low` to `high`; `above`: greater than `low`.
    pub(super) fn number(&mut self, name: &str, low: f64, high: f64, above: bool) -> Result<Option<f32>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match value.as_f64() {
            Some(number) if number <= high && (number > low || (!above && number >= low)) => Ok(Some(number as f32)),
            _ => {
                let wanted =
                    format!("a number {} {low} and at most {high}", if above { "above" } else { "of at least" });
                Err(expected(&self.at(name), &wanted, &value))
            }
        }
    }

    pub(super) fn string(&mut self, name: &str, bytes_max: usize) -> Result<Option<String>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) if text.len() <= bytes_max => Ok(Some(text)),
            Some(other) => Err(expected(&self.at(name), &format!("a string of at most {bytes_max} bytes"), &other)),
        }
    }

    /// Fields of OpenAI's API that are not implemented: refused by name if they say anything.
    pub(super) fn unsupported(&mut self, names: &[&str]) -> Result<(), ApiError> {
        for name in names {
            if self.take(name).is_some() {
                return Err(ApiError::unsupported(self.at(name), ""));
            }
        }
        Ok(())
    }

    /// A field of which only the one value is implemented that changes nothing.
    pub(super) fn only(&mut self, name: &str, value: &Value) -> Result<(), ApiError> {
        match self.take(name) {
            Some(other) if other != *value => {
                Err(ApiError::unsupported(self.at(name), &format!(", other than as {value}")))
            }
            _ => Ok(()),
        }
    }

    /// All known fields are taken: whatever is left has a name nobody knows.
    pub(super) fn finish(self) -> Result<(), ApiError> {
        match self.map.keys().next() {
            None => Ok(()),
            Some(name) => {
                let name: String = name.chars().take(100).collect();
                let param = format!("{}{name}", self.path);
                let message = format!("`{param}` is not a field this endpoint knows");
                Err(ApiError { code: "unknown_parameter", ..ApiError::field(param, message) })
            }
        }
    }
}

/// 400: `param` should be something else.
pub(super) fn expected(param: &str, wanted: &str, got: &Value) -> ApiError {
    ApiError::field(param, format!("`{param}` must be {wanted}, not {}", kind(got)))
}

/// A value in a message: numbers and booleans as they are, the rest by type, so that no megabyte is echoed.
fn kind(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) if text.len() <= 40 => format!("{text:?}"),
        Value::String(text) => format!("a string of {} bytes", text.len()),
        Value::Array(items) => format!("an array of {}", items.len()),
        Value::Object(_) => "an object".into(),
    }
}
