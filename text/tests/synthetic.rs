//! The public face on small vocabularies made by hand: no model file.

use kvrail_text::{ChatMessage, Parts, TextError, TextModel, TokenKind};
use proptest::prelude::*;

/// Byte-level BPE: all 256 bytes, some merges, three control tokens and one that a user defined.
fn byte_level(pre: &str) -> Parts {
    let mut tokens: Vec<String> = vec!["<|endoftext|>".into(), "<|im_start|>".into(), "<|im_end|>".into()];
    let mut kinds = vec![TokenKind::Control; 3];
    tokens.extend((0..=u8::MAX).map(|byte| alphabet(byte).to_string()));
    let merges = ["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "l d", "Ġwor ld", "1 2", "12 3", "Ã ©"];
    tokens.extend(merges.iter().map(|merge| merge.replace(' ', "")));
    kinds.resize(tokens.len(), TokenKind::Normal);
    tokens.push("[TAB]".into());
    kinds.push(TokenKind::UserDefined);
    Parts {
        name: "toy".into(),
        digest: "toy".into(),
        tokenizer: "gpt2".into(),
        pre: pre.into(),
        tokens,
        kinds,
        merges: merges.map(str::to_owned).to_vec(),
        bos: Some(1),
        eos: Some(2),
        add_bos: Some(false),
        template: Some(
            "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if \
             add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
                .into(),
        ),
        ..Parts::default()
    }
}

/// GPT-2's alphabet, written down a second time so that the crate's own is not its own witness.
fn alphabet(byte: u8) -> char {
    let printable = |b: &u8| (33..=126).contains(b) || (161..=172).contains(b) || *b >= 174;
    if printable(&byte) {
        return char::from(byte);
    }
    let others: Vec<u8> = (0..=u8::MAX).filter(|b| !printable(b)).collect();
    char::from_u32(256 + others.iter().position(|b| *b == byte).unwrap() as u32).unwrap()
}

fn texts(model: &TextModel, tokens: &[u32]) -> Vec<String> {
    tokens.iter().map(|&t| String::from_utf8_lossy(model.token_bytes(t).unwrap()).into_owned()).collect()
}

fn decode(model: &TextModel, tokens: &[u32]) -> String {
    let mut stream = model.detokenizer();
    let mut text: String = tokens.iter().map(|&t| stream.push(t).unwrap()).collect();
    text += &stream.finish();
    text
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

/// SentencePiece: pieces with scores, bytes for the rest.
fn sentence_piece() -> Parts {
    let mut entries: Vec<(String, TokenKind, f32)> = vec![
        ("<unk>".into(), TokenKind::Unknown, 0.0),
        ("<s>".into(), TokenKind::Control, 0.0),
        ("</s>".into(), TokenKind::Control, 0.0),
    ];
    entries.extend((0..=u8::MAX).map(|b| (format!("<0x{b:02X}>"), TokenKind::Byte, 0.0)));
    for (rank, piece) in ["ab", "bc", "▁a", "▁ab", "abc", "▁", "a", "b", "c"].into_iter().enumerate() {
        entries.push((piece.into(), TokenKind::Normal, -(rank as f32)));
    }
    Parts {
        tokenizer: "llama".into(),
        tokens: entries.iter().map(|e| e.0.clone()).collect(),
        kinds: entries.iter().map(|e| e.1).collect(),
        scores: entries.iter().map(|e| e.2).collect(),
        bos: Some(1),
        eos: Some(2),
        unknown: Some(0),
        ..Parts::default()
    }
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

proptest! {
    #[test]
    fn every_text_comes_back_as_it_was(text in any::<String>()) {
        // Not qwen2: it composes characters by design.
        for pre in ["gpt-2", "smollm", "llama-bpe"] {
            let model = TextModel::from_parts(byte_level(pre)).unwrap();
            let tokens = model.encode(&text, false).unwrap();
            prop_assert_eq!(decode(&model, &tokens), text.clone());
        }
    }
}
