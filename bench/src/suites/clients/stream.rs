//! Whether what a client has written down of a stream is a whole answer in OpenAI's protocol.

use serde_json::Value;

/// Tokens of the answer, if it is whole: chunks of one answer and nothing else, one end, then usage, then `[DONE]`.
///
/// # Errors
/// What is wrong with it.
pub fn whole(text: &str, max_tokens: u64) -> Result<u64, String> {
    let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty() && !line.starts_with(':')).collect();
    let Some((&"data: [DONE]", chunks)) = lines.split_last() else { return Err("no [DONE] at its end".into()) };
    let (mut id, mut ends, mut usage) = (None, 0, None);
    for line in chunks {
        let data = line.strip_prefix("data: ").ok_or_else(|| format!("a line that is no event: {line}"))?;
        let chunk: Value = serde_json::from_str(data).map_err(|e| format!("{e}: {data}"))?;
        let of = chunk["id"].as_str().unwrap_or_default().to_owned();
        if chunk["object"] != "chat.completion.chunk" || of.is_empty() || *id.get_or_insert_with(|| of.clone()) != of {
            return Err(format!("no chunk of this answer: {data}"));
        }
        if usage.is_some() {
            return Err(format!("a chunk after the usage: {data}"));
        }
        let delta = &chunk["choices"][0];
        if ends > 0 && delta.is_object() {
            return Err(format!("a chunk after the end: {data}"));
        }
        ends += u32::from(matches!(delta["finish_reason"].as_str(), Some("stop" | "length")));
        usage = chunk["usage"]["completion_tokens"].as_u64();
    }
    match (ends, usage) {
        (0, _) => Err("no finish_reason".into()),
        (_, None) => Err("no usage".into()),
        (_, Some(tokens)) if !(1..=max_tokens).contains(&tokens) => Err(format!("usage of {tokens} tokens")),
        (_, Some(tokens)) => Ok(tokens),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(id: &str, choices: &str, usage: &str) -> String {
        let object = "chat.completion.chunk";
        format!("data: {{\"id\":\"{id}\",\"object\":\"{object}\",\"choices\":{choices},\"usage\":{usage}}}\n\n")
    }

    fn parts() -> [String; 4] {
        [
            chunk("a", r#"[{"delta":{"content":"x"},"finish_reason":null}]"#, "null"),
            chunk("a", r#"[{"delta":{},"finish_reason":"length"}]"#, "null"),
            chunk("a", "[]", r#"{"completion_tokens":8}"#),
            "data: [DONE]\n\n".into(),
        ]
    }

    #[test]
    fn a_whole_stream_is_one() {
        assert_eq!(whole(&parts().concat(), 8), Ok(8));
        assert_eq!(whole(&format!(": ping\n\n{}", parts().concat()), 8), Ok(8));
    }

    #[test]
    fn a_stream_that_lacks_or_adds_something_is_not() {
        for missing in [1, 2, 3] {
            let text: String = parts().iter().enumerate().filter(|(i, _)| *i != missing).map(|(_, p)| &**p).collect();
            assert!(whole(&text, 8).is_err(), "without part {missing}");
        }
        let parts = parts();
        let [first, end, usage, done] = parts.each_ref().map(String::as_str);
        let (error, other) = ("data: {\"error\":{\"message\":\"x\"}}\n\n", &chunk("b", "[]", "null"));
        for wrong in [
            &[][..],
            &[first, end, end, usage, done],
            &[first, end, usage, first, done],
            &[first, error, end, usage, done],
            &[first, "data: {\n\n", end, usage, done],
            &[first, other, end, usage, done],
            &[first, end, usage],
        ] {
            assert!(whole(&wrong.concat(), 8).is_err(), "{wrong:?}");
        }
        assert!(whole(&parts.concat(), 7).is_err(), "more tokens than were asked for");
    }
}
