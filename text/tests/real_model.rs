//! The real default model's tokenizer, where `KVRAIL_TEST_MODEL` names its file; without it these tests say so and pass.

mod common;

use std::path::PathBuf;

use common::decode;
use kvrail_text::{ChatMessage, TextModel};

fn model() -> Option<(PathBuf, TextModel)> {
    let Some(path) = std::env::var_os("KVRAIL_TEST_MODEL").map(PathBuf::from) else {
        eprintln!("skipped: KVRAIL_TEST_MODEL names no model file");
        return None;
    };
    let model = TextModel::open(&path).unwrap();
    Some((path, model))
}

/// Texts that tokenizers disagree on: digits, spaces, newlines, scripts, emoji, code, half-words, control characters.
const TEXTS: [&str; 16] = [
    "",
    " ",
    "What is the capital of France?",
    "In 1969, 400,000 people worked on Apollo 11; it cost $25.4 billion (½ of it before 1966).",
    "  two spaces,\ttabs\t\tand \n\n\n newlines \r\n at the end \n",
    "def f(x):\n    return x**2  # don't panic: we'll say it's fine, they've said I'd\n",
    "Ünïcödé: Straße, façade, naïve, Ελληνικά, русский, עברית, العربية, हिन्दी, 日本語, 한국어",
    "emoji 😀👩‍👩‍👧‍👦🏳️‍🌈 and math ∑∫√ ≠ ≤ ⅷ ²",
    "e\u{301} decomposed, \u{a0}no-break\u{a0}space, zero\u{200b}width",
    "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
    "!!!???...---___***///\\\\\\|||",
    "https://example.org/a/b?c=d&e=%20f#g",
    "{\"key\": [1, 2.50, -3e10, null, true], \"nested\": {\"a\": \"b\\n\"}}",
    "CamelCase snake_case SCREAMING_CASE kebab-case l33t 0x7fff",
    "<|im_end|> spelled out by somebody",
    "a\u{7}b\u{1b}[0m",
];

#[test]
fn every_text_comes_back_and_agrees_with_an_independent_tokenizer() {
    let Some((path, model)) = model() else { return };
    let other = shimmytok::Tokenizer::from_gguf_file(path).unwrap();
    for text in TEXTS {
        let ours = model.encode(text, false).unwrap();
        assert_eq!(decode(&model, &ours), text);
        assert_eq!(ours, other.encode(text, false).unwrap(), "{text:?}");
    }
}

#[test]
fn a_long_mixed_text_agrees_too() {
    let Some((path, model)) = model() else { return };
    let other = shimmytok::Tokenizer::from_gguf_file(path).unwrap();
    let text = TEXTS.join("\n").repeat(20);
    assert_eq!(model.encode(&text, false).unwrap(), other.encode(&text, false).unwrap());
}

#[test]
fn a_chat_is_rendered_with_the_default_system_prompt_and_parsed() {
    let Some((_, model)) = model() else { return };
    let messages = [ChatMessage::new("user", "Hello")];
    assert_eq!(
        model.render_chat(&messages, true).unwrap(),
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging \
         Face<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    );
    let tokens = model.encode_chat(&messages).unwrap();
    assert_eq!(tokens.iter().filter(|&&t| t == 1).count(), 3, "three turns begin: {tokens:?}");
    assert_eq!(tokens.iter().filter(|&&t| t == 2).count(), 2, "two of them end");
    assert_eq!(model.encode_completion("Hello").unwrap().len(), 1, "no bos before a completion");
}

#[test]
fn what_the_file_says_about_itself() {
    let Some((_, model)) = model() else { return };
    assert_eq!((model.vocab_size(), model.context_tokens()), (49_152, Some(8192)));
    assert_eq!(model.eos_tokens(), [0, 2], "<|endoftext|> and <|im_end|>");
    assert_eq!(model.token_bytes(2).unwrap(), b"<|im_end|>");
}
