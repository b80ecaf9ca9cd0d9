//! Small vocabularies made by hand, as parts and as GGUF files.
#![allow(dead_code)] // each test file uses its share

use kvrail_gguf::{Array, Value, writer::GgufWriter};
use kvrail_text::{Parts, TextModel, TokenKind};

/// Byte-level BPE: all 256 bytes, some merges, three control tokens and one that a user defined.
pub fn byte_level(pre: &str) -> Parts {
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

/// SentencePiece: pieces with scores, bytes for the rest.
pub fn sentence_piece() -> Parts {
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

/// The parts as a model file's metadata.
pub fn gguf(parts: &Parts) -> GgufWriter {
    let mut file = GgufWriter::new();
    let number = |kind: &TokenKind| (1..=6).find(|n| TokenKind::from_gguf((*n).into()) == Some(*kind)).unwrap();
    file.metadata("general.architecture", Value::Str("llama".into()))
        .metadata("general.name", Value::Str(parts.name.clone()))
        .metadata("llama.context_length", Value::U32(2048))
        .metadata("tokenizer.ggml.model", Value::Str(parts.tokenizer.clone()))
        .metadata("tokenizer.ggml.pre", Value::Str(parts.pre.clone()))
        .metadata("tokenizer.ggml.tokens", Value::Array(Array::Str(parts.tokens.clone())))
        .metadata("tokenizer.ggml.token_type", Value::Array(Array::I32(parts.kinds.iter().map(number).collect())));
    if !parts.merges.is_empty() {
        file.metadata("tokenizer.ggml.merges", Value::Array(Array::Str(parts.merges.clone())));
    }
    if !parts.scores.is_empty() {
        file.metadata("tokenizer.ggml.scores", Value::Array(Array::F32(parts.scores.clone())));
    }
    for (key, id) in [("bos", parts.bos), ("eos", parts.eos), ("unknown", parts.unknown)] {
        if let Some(id) = id {
            file.metadata(&format!("tokenizer.ggml.{key}_token_id"), Value::U32(id));
        }
    }
    if let Some(template) = &parts.template {
        file.metadata("tokenizer.chat_template", Value::Str(template.clone()));
    }
    file
}

/// Text of all the tokens through a stream.
pub fn decode(model: &TextModel, tokens: &[u32]) -> String {
    let mut stream = model.detokenizer();
    let mut text: String = tokens.iter().map(|&t| stream.push(t).unwrap()).collect();
    text += &stream.finish();
    text
}
