//! The text side of a GGUF file's metadata.

use kvrail_gguf::{Array, Gguf, GgufError};

use crate::{Parts, TextError, TokenKind};

impl Parts {
    /// Reads the parts from a model file's metadata.
    ///
    /// # Errors
    /// [`TextError::Gguf`] for what is missing or of the wrong type, [`TextError::Metadata`] for what makes no sense.
    pub fn from_gguf(file: &Gguf) -> Result<Self, TextError> {
        let architecture = file.str("general.architecture")?;
        let tokens = file.strings("tokenizer.ggml.tokens")?.to_vec();
        let other_ends = ["tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"]
            .into_iter()
            .filter_map(|key| optional(file.u32(key)).transpose())
            .collect::<Result<Vec<u32>, _>>()?;
        let text = |key: &str| optional(file.str(key)).map(|text| text.map(str::to_owned));
        Ok(Self {
            name: text("general.name")?.unwrap_or_else(|| architecture.to_owned()),
            digest: file.digest(),
            context_tokens: optional(file.u32(&format!("{architecture}.context_length")))?,
            tokenizer: file.str("tokenizer.ggml.model")?.to_owned(),
            // Files from before the key existed leave it out; what they meant is anybody's guess, so it gets a name that
            // no pre-tokenizer has and is refused by it.
            pre: text("tokenizer.ggml.pre")?.unwrap_or_else(|| "(none)".to_owned()),
            kinds: kinds(file)?,
            scores: scores(file)?,
            merges: optional(file.strings("tokenizer.ggml.merges"))?.unwrap_or_default().to_vec(),
            bos: optional(file.u32("tokenizer.ggml.bos_token_id"))?,
            eos: optional(file.u32("tokenizer.ggml.eos_token_id"))?,
            other_ends,
            unknown: optional(file.u32("tokenizer.ggml.unknown_token_id"))?,
            add_bos: optional(file.bool("tokenizer.ggml.add_bos_token"))?,
            add_space_prefix: optional(file.bool("tokenizer.ggml.add_space_prefix"))?,
            template: text("tokenizer.chat_template")?,
            tokens,
        })
    }
}

/// A key that may be left out, but not be of the wrong type.
fn optional<T>(value: Result<T, GgufError>) -> Result<Option<T>, GgufError> {
    match value {
        Ok(value) => Ok(Some(value)),
        Err(GgufError::Missing { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

fn kinds(file: &Gguf) -> Result<Vec<TokenKind>, TextError> {
    let key = "tokenizer.ggml.token_type";
    let bad = |reason: String| TextError::Metadata { key, reason };
    let numbers: Vec<i64> = match optional(file.array(key))? {
        None => return Ok(Vec::new()),
        Some(Array::I32(numbers)) => numbers.iter().map(|&n| n.into()).collect(),
        Some(Array::U32(numbers)) => numbers.iter().map(|&n| n.into()).collect(),
        Some(_) => return Err(bad("not an array of i32".into())),
    };
    let kind =
        |number| TokenKind::from_gguf(number).ok_or_else(|| bad(format!("{number} is no token type (1 to 6 are)")));
    numbers.into_iter().map(kind).collect()
}

fn scores(file: &Gguf) -> Result<Vec<f32>, TextError> {
    let key = "tokenizer.ggml.scores";
    match optional(file.array(key))? {
        None => Ok(Vec::new()),
        Some(Array::F32(scores)) if scores.iter().all(|score| !score.is_nan()) => Ok(scores.clone()),
        Some(_) => Err(TextError::Metadata { key, reason: "not an array of numbers in f32".into() }),
    }
}
