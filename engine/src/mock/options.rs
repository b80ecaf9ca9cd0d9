//! What a mock pretends to be, as values and as one line of text.

use std::time::Duration;

use kvrail_kv::{DType, FormatError, KvFormat, TokenId};

use super::{Gpu, StepModel};

/// What a mock pretends to be. `Default` is tiny and takes no time.
#[derive(Clone, Debug, PartialEq)]
pub struct MockOptions {
    /// Model name; part of what its bytes derive from.
    pub name: String,
    /// Vocabulary size.
    pub vocab: u32,
    /// Longest sequence.
    pub context_tokens: u32,
    /// Token ids that end an answer.
    pub eos: Vec<TokenId>,
    /// Shape of a block; a row must have at least 8 bytes.
    pub format: KvFormat,
    /// Time of a step.
    pub step: StepModel,
}

impl Default for MockOptions {
    /// 256 bytes and three special tokens, the last two of which end an answer: the vocabulary of the mock's text model.
    fn default() -> Self {
        Self {
            name: "mock".into(),
            vocab: 259,
            context_tokens: 8192,
            eos: vec![257, 258],
            format: KvFormat { layers: 2, kv_heads: 1, head_dim: 8, block_tokens: 16, dtype: DType::F16 },
            step: StepModel::Instant,
        }
    }
}

impl MockOptions {
    /// Stands for the digest of a model file: two mocks of the same digest say the same.
    #[must_use]
    pub fn digest(&self) -> String {
        format!("mock:{}:{}", self.name, self.vocab)
    }
}

/// Options that no mock can be made of.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum MockError {
    /// The format is refused.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// A row is too short to hold the state.
    #[error("a row of the format has {bytes} bytes; the mock needs at least 8")]
    RowTooShort {
        /// Bytes of a row.
        bytes: u64,
    },
    /// Nothing could be answered.
    #[error("vocabulary and context must not be empty")]
    Empty,
    /// The text is not `mock` or `mock:key=value,…`.
    #[error("`{text}` is not `mock` or `mock:key=value,…`")]
    Malformed {
        /// What was given.
        text: String,
    },
    /// No option has this name.
    #[error("`{key}` is not an option of the mock; these are: {known}")]
    UnknownKey {
        /// What was given.
        key: String,
        /// All names.
        known: String,
    },
    /// A value cannot be read.
    #[error("option `{key}` of the mock is `{value}`; it must be {wanted}")]
    BadValue {
        /// The option.
        key: &'static str,
        /// What was given.
        value: String,
        /// What would be right.
        wanted: &'static str,
    },
}

/// Every option's name with what it must be, in the order of the documentation of [`MockOptions::parse`].
const KEYS: [(&str, &str); 11] = [
    ("name", "a name"),
    ("vocab", "a number of tokens"),
    ("context", "a number of tokens"),
    ("layers", "a number of layers"),
    ("kv_heads", "a number of heads"),
    ("head_dim", "a number of elements"),
    ("block_tokens", "a number of tokens"),
    ("dtype", "f16 or f32"),
    ("prefill_us", "microseconds a prompt token, at most 1e9"),
    ("step_us", "microseconds a decode step, at most 1e9"),
    ("gpu", "a100, h100 or h200, each with an 8-billion-parameter model in 16 bits"),
];

impl MockOptions {
    /// Reads `mock` or `mock:key=value,…`. Keys: `name`, `vocab`, `context` (tokens), `layers`, `kv_heads`, `head_dim`,
    /// `block_tokens`, `dtype` (f16, f32), `prefill_us` (a prompt token), `step_us` (a decode step), `gpu` (a100, h100, h200:
    /// a roofline in place of the constants). What is not given is as in `Default`.
    ///
    /// ```
    /// use kvrail_engine::mock::MockOptions;
    /// let options = MockOptions::parse("mock:layers=30,prefill_us=200,step_us=5000")?;
    /// assert_eq!(options.format.layers, 30);
    /// # Ok::<(), kvrail_engine::mock::MockError>(())
    /// ```
    ///
    /// # Errors
    /// [`MockError`] names the key or the limit; what is returned has been validated.
    pub fn parse(text: &str) -> Result<Self, MockError> {
        let malformed = || MockError::Malformed { text: text.into() };
        let rest = text.strip_prefix("mock").ok_or_else(malformed)?;
        let list = match rest.strip_prefix(':') {
            Some(list) => list,
            None if rest.is_empty() => "",
            None => return Err(malformed()),
        };
        let mut options = Self::default();
        let (mut prefill_per_token, mut decode_step) = (Duration::ZERO, Duration::ZERO);
        for pair in list.split(',').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').ok_or_else(malformed)?;
            let Some(&(key, wanted)) = KEYS.iter().find(|known| known.0 == key) else {
                let known = KEYS.map(|known| known.0).join(", ");
                return Err(MockError::UnknownKey { key: key.into(), known });
            };
            let bad = || MockError::BadValue { key, value: value.into(), wanted };
            let number = || value.parse::<u32>().map_err(|_| bad());
            let micros = || match value.parse::<f64>() {
                Ok(us) if (0.0..=1e9).contains(&us) => Ok(Duration::from_secs_f64(us / 1e6)),
                _ => Err(bad()),
            };
            match key {
                "name" if value.is_empty() => return Err(bad()),
                "name" => options.name = value.into(),
                "vocab" => options.vocab = number()?,
                "context" => options.context_tokens = number()?,
                "layers" => options.format.layers = number()?,
                "kv_heads" => options.format.kv_heads = number()?,
                "head_dim" => options.format.head_dim = number()?,
                "block_tokens" => options.format.block_tokens = number()?,
                "dtype" => {
                    options.format.dtype = match value {
                        "f16" => DType::F16,
                        "f32" => DType::F32,
                        _ => return Err(bad()),
                    }
                }
                "prefill_us" => prefill_per_token = micros()?,
                "step_us" => decode_step = micros()?,
                _ => {
                    let gpu = match value {
                        "a100" => Gpu::A100,
                        "h100" => Gpu::H100,
                        "h200" => Gpu::H200,
                        _ => return Err(bad()),
                    };
                    options.step = StepModel::Roofline { gpu, parameters: 8_000_000_000, weight_bytes: 16_000_000_000 };
                }
            }
        }
        if options.step == StepModel::Instant && (prefill_per_token, decode_step) != (Duration::ZERO, Duration::ZERO) {
            options.step = StepModel::Constant { prefill_per_token, decode_step };
        }
        options.eos.retain(|&token| token < options.vocab);
        options.validate()?;
        Ok(options)
    }

    /// Checks that a mock can be made of these.
    ///
    /// # Errors
    /// [`MockError`] if not.
    pub fn validate(&self) -> Result<(), MockError> {
        self.format.validate()?;
        if self.format.row_bytes() < 8 {
            return Err(MockError::RowTooShort { bytes: self.format.row_bytes() });
        }
        if self.vocab == 0 || self.context_tokens == 0 {
            return Err(MockError::Empty);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_sets_what_it_names_and_nothing_else() {
        assert_eq!(MockOptions::parse("mock"), Ok(MockOptions::default()));
        assert_eq!(MockOptions::parse("mock:"), Ok(MockOptions::default()));
        let options =
            MockOptions::parse("mock:vocab=100,context=64,layers=3,prefill_us=0.5,step_us=5000,dtype=f32").unwrap();
        let default = MockOptions::default();
        let expected = MockOptions {
            vocab: 100,
            context_tokens: 64,
            eos: vec![],
            format: KvFormat { layers: 3, dtype: DType::F32, ..default.format },
            step: StepModel::Constant {
                prefill_per_token: Duration::from_nanos(500),
                decode_step: Duration::from_millis(5),
            },
            ..default
        };
        assert_eq!(options, expected);
        assert!(matches!(MockOptions::parse("mock:gpu=h100").unwrap().step, StepModel::Roofline { .. }));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let error = |text: &str| MockOptions::parse(text).unwrap_err().to_string();
        assert!(error("mick").contains("`mick` is not"));
        assert!(error("mocked").contains("`mocked` is not"));
        assert!(error("mock:layers").contains("is not `mock` or"));
        assert!(error("mock:name=").contains("option `name` of the mock is ``"));
        assert!(error("mock:layer=3").contains("`layer` is not an option"));
        assert!(error("mock:layers=-3").contains("option `layers` of the mock is `-3`"));
        assert!(error("mock:step_us=NaN").contains("`step_us`"));
        assert!(error("mock:prefill_us=1e12").contains("at most 1e9"));
        assert!(error("mock:dtype=f8").contains("f16 or f32"));
        assert!(error("mock:layers=0").contains("`layers` is 0"));
    }

    #[test]
    fn impossible_options_are_refused() {
        let d = MockOptions::default;
        let short = KvFormat { head_dim: 3, ..d().format };
        assert_eq!(MockOptions { format: short, ..d() }.validate(), Err(MockError::RowTooShort { bytes: 6 }));
        assert_eq!(MockOptions { vocab: 0, ..d() }.validate(), Err(MockError::Empty));
        let zero = KvFormat { layers: 0, ..d().format };
        assert!(matches!(MockOptions { format: zero, ..d() }.validate(), Err(MockError::Format(_))));
    }
}
