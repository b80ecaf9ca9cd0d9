//! The public face on small vocabularies made by hand: no model file.

mod common;

use common::{byte_level, decode, sentence_piece};
use kvrail_text::{ChatMessage, Parts, TextError, TextModel, TokenKind};
use proptest::{arbitrary::any, prop_assert_eq, test_runner::TestRunner};

fn texts(model: &TextModel, tokens: &[u32]) -> Vec<String> {
    tokens.iter().map(|&t| String::from_utf8_lossy(model.token_bytes(t).unwrap()).into_owned()).collect()
}

#[test]
fn pre_tokenizers_split_digits_as_they_should() {
    let split = |pre: &str| {
        let model = TextModel::from_parts(byte_level(pre)).unwrap();
        texts(&model, &model.encode("hello world 1234", false).unwrap())
    };
    assert_eq!(split("gpt-2"), ["hello", " world", " ", "123", "4"]);
    assert_eq!(split("smollm"), ["hello", " world", " ", "1", "2", "3", "4"]);
    assert_eq!(split("llama-bpe"), ["hello", " world", " ", "123", "4"]);
    assert_eq!(split("qwen2"), ["hello", " world", " ", "1", "2", "3", "4"]);
}

#[test]
fn qwen2_composes_characters_first_and_others_do_not() {
    let encode = |pre: &str| TextModel::from_parts(byte_level(pre)).unwrap().encode("e\u{301}", false).unwrap().len();
    assert_eq!((encode("qwen2"), encode("gpt-2")), (1, 3));
}

#[test]
fn control_tokens_in_text_are_text_unless_asked_for() {
    let model = TextModel::from_parts(byte_level("smollm")).unwrap();
    let chat = "<|im_start|>hello[TAB]<|im_end|>";
    assert_eq!(texts(&model, &model.encode(chat, true).unwrap()), ["<|im_start|>", "hello", "[TAB]", "<|im_end|>"]);
    let plain = model.encode(chat, false).unwrap();
    assert!(!plain.contains(&1) && !plain.contains(&2), "control tokens in {plain:?}");
    assert_eq!(decode(&model, &plain), chat);
    assert_eq!(decode(&model, &model.encode(chat, true).unwrap()), "hello[TAB]", "control tokens are silent");
}

#[test]
fn chats_become_prompts_and_bos_is_there_once() {
    let messages = [ChatMessage::new("user", "hello")];
    let without = TextModel::from_parts(byte_level("smollm")).unwrap();
    assert_eq!(
        without.render_chat(&messages, true).unwrap(),
        "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    );
    assert_eq!(without.encode_completion("hello").unwrap().len(), 1);

    // The template writes bos itself: it must not be doubled; a plain completion gets it.
    let with = TextModel::from_parts(Parts { add_bos: Some(true), ..byte_level("smollm") }).unwrap();
    let tokens = with.encode_chat(&messages).unwrap();
    assert_eq!((tokens[0], tokens[1] == 1), (1, false));
    assert_eq!(with.encode_completion("hello").unwrap()[0], 1);
}

#[test]
fn end_tokens_come_from_metadata_and_from_well_known_names() {
    assert_eq!(TextModel::from_parts(byte_level("smollm")).unwrap().eos_tokens(), [0, 2]);
    let named = Parts { other_ends: vec![9], ..byte_level("smollm") };
    assert_eq!(TextModel::from_parts(named).unwrap().eos_tokens(), [0, 2, 9]);
}

#[test]
fn a_character_split_over_tokens_is_never_shown_in_part() {
    let model = TextModel::from_parts(byte_level("smollm")).unwrap();
    let tokens = model.encode("€", false).unwrap();
    assert_eq!(tokens.len(), 3, "three byte tokens");
    let mut stream = model.detokenizer();
    assert_eq!(stream.push(tokens[0]).unwrap(), "");
    assert!(stream.is_holding());
    assert_eq!(stream.push(tokens[1]).unwrap(), "");
    assert_eq!(stream.push(tokens[2]).unwrap(), "€");
    assert_eq!(stream.push(tokens[0]).unwrap(), "");
    assert_eq!(stream.finish(), "\u{fffd}");
    assert!(matches!(stream.push(99_999), Err(TextError::UnknownToken { token: 99_999, .. })));
}

#[test]
fn sentence_piece_merges_by_score_and_falls_back_to_bytes() {
    let model = TextModel::from_parts(sentence_piece()).unwrap();
    // "ab" has the best score, then "▁ab" can be made; "bc" never gets its "b".
    assert_eq!(texts(&model, &model.encode("abc ab", false).unwrap()), [" ab", "c", " ab"]);
    assert_eq!(texts(&model, &model.encode("bc", false).unwrap()), [" ", "bc"]);
    assert_eq!(decode(&model, &model.encode("é€", false).unwrap()), " é€");
    assert_eq!(model.encode_completion("a").unwrap()[0], 1, "Llama prompts begin with bos");
    assert_eq!(model.encode("</s>a", true).unwrap()[0], 2);
    let bare = TextModel::from_parts(Parts { add_space_prefix: Some(false), ..sentence_piece() }).unwrap();
    assert_eq!(texts(&bare, &bare.encode("abc", false).unwrap()), ["abc"]);
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let refuse = |parts: Parts| TextModel::from_parts(parts).unwrap_err().to_string();
    assert!(refuse(Parts { tokenizer: "rwkv".into(), ..byte_level("smollm") }).contains("`rwkv`"));
    assert!(refuse(byte_level("kimi-k2")).contains("`kimi-k2`"));
    assert!(refuse(Parts { eos: Some(1 << 30), ..byte_level("smollm") }).contains("eos_token_id"));
    assert!(refuse(Parts { merges: vec!["h".into()], ..byte_level("smollm") }).contains("merges"));
    assert!(refuse(Parts { merges: vec!["zz yy".into()], ..byte_level("smollm") }).contains("zz"));
    assert!(refuse(Parts { kinds: vec![TokenKind::Normal], ..byte_level("smollm") }).contains("token_type"));
    assert!(refuse(Parts { tokens: vec![], kinds: vec![], ..byte_level("smollm") }).contains("tokens"));
    assert!(refuse(Parts { scores: vec![], ..sentence_piece() }).contains("scores"));
    let no_template = TextModel::from_parts(Parts { template: None, ..byte_level("smollm") }).unwrap();
    assert!(matches!(no_template.render_chat(&[], true), Err(TextError::NoChatTemplate)));
    let broken = TextModel::from_parts(Parts { template: Some("{% if".into()), ..byte_level("smollm") }).unwrap();
    assert!(matches!(broken.render_chat(&[], true), Err(TextError::Template(_))));
    assert!(broken.encode_completion("hello").is_ok(), "completions still work");
}

#[test]
fn the_mock_speaks_bytes() {
    let model = TextModel::mock(1000).unwrap();
    assert_eq!(model.encode("hé<|end|>", true).unwrap(), [b'h'.into(), 0xC3, 0xA9, 257]);
    assert_eq!(model.encode("<|end|>", false).unwrap().len(), 7);
    assert_eq!(model.eos_tokens(), [257, 258]);
    assert_eq!(model.vocab_size(), 1000);
    assert_eq!(decode(&model, &[104, 300, 257, 999]), "h<300><999>");
    assert_eq!(
        model.render_chat(&[ChatMessage::new("user", "hi")], true).unwrap(),
        "<|start|>user\nhi<|end|>\n<|start|>assistant\n"
    );
    assert!(TextModel::mock(258).is_err());
}

#[test]
fn every_text_comes_back_as_it_was() {
    // Not qwen2: it composes characters by design.
    for pre in ["gpt-2", "smollm", "llama-bpe"] {
        let model = TextModel::from_parts(byte_level(pre)).unwrap();
        let comes_back = |text: String| {
            prop_assert_eq!(decode(&model, &model.encode(&text, false).unwrap()), text);
            Ok(())
        };
        TestRunner::default().run(&any::<String>(), comes_back).unwrap();
    }
}
