//! Malformed, unusual and small vocabularies.

use thermocline::gguf::{Array, Container, File, Value, Writer};
use thermocline::tokenizer::{SpecialIds, TokenType, Tokenizer, Vocab, Warning};

/// A `llama` vocabulary of eight tokens, without byte tokens.
pub(super) fn tiny() -> Vocab {
    let tokens = ["<unk>", "<s>", "</s>", "▁", "a", "b", "ab", "▁ab"];
    Vocab {
        model: "llama".into(),
        tokens: tokens.iter().map(|t| t.as_bytes().to_vec()).collect(),
        ..Vocab::default()
    }
}

fn tiny_gpt2() -> Vocab {
    let tokens = ["a", "b", "ab", "Ġ", "Ġab", "<|endoftext|>"];
    Vocab {
        model: "gpt2".into(),
        pre: Some("gpt-2".into()),
        tokens: tokens.iter().map(|t| t.as_bytes().to_vec()).collect(),
        merges: vec![b"a b".to_vec(), "Ġ ab".into()],
        ..Vocab::default()
    }
}

/// The error message of the vocabulary after `change`.
fn refusal(mut vocab: Vocab, change: impl FnOnce(&mut Vocab)) -> String {
    change(&mut vocab);
    Tokenizer::new(vocab).expect_err("a bad vocabulary").to_string()
}

#[test]
fn a_bad_vocabulary_is_refused_by_key() {
    let cases = [
        (refusal(tiny(), |v| v.model = "whitespace".into()), "supported: llama, gpt2, gemma4, t5"),
        (refusal(tiny(), |v| v.tokens.clear()), "tokenizer.ggml.tokens"),
        (refusal(tiny(), |v| v.scores = vec![0.0; 7]), "tokenizer.ggml.scores has 7 entries for 8"),
        (refusal(tiny(), |v| v.types = vec![TokenType::Normal; 9]), "tokenizer.ggml.token_type"),
        (refusal(tiny(), |v| v.scores = vec![f32::NAN; 8]), "tokenizer.ggml.scores"),
        (refusal(tiny(), |v| v.tokens[7] = b"ab".to_vec()), "`ab` twice, as tokens 6 and 7"),
        (refusal(tiny(), |v| v.types = vec![TokenType::Byte; 8]), "marks token 0 as a byte"),
        (refusal(tiny_gpt2(), |v| v.pre = Some("klingon".into())), "supported: default, llama-bpe"),
        (refusal(tiny_gpt2(), |v| v.merges.clear()), "tokenizer.ggml.merges is missing"),
        (refusal(tiny_gpt2(), |v| v.merges[1] = b"a c".to_vec()), "tokenizer.ggml.merges: entry 1"),
        (refusal(tiny_gpt2(), |v| v.merges[1] = b"b a".to_vec()), "`b a`"),
        (refusal(tiny_gpt2(), |v| v.merges[1] = b"ab".to_vec()), "`ab`"),
        (refusal(tiny_gpt2(), |v| v.merges[1].clear()), "entry 1"),
        (refusal(tiny_gpt2(), |v| v.add_bos = Some(true)), "tokenizer.ggml.add_bos_token is true"),
    ];
    for (error, expected) in cases {
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn metadata_of_the_wrong_type_is_refused_by_key() {
    let strings = |texts: &[&str]| Value::from(Array::String(texts.iter().collect()));
    let read = |changes: &[(&str, Option<Value>)]| {
        let mut writer = Writer::new(Container::Gguf);
        let good = [
            ("tokenizer.ggml.model", Value::from("llama")),
            ("tokenizer.ggml.tokens", strings(&["<unk>", "<s>", "</s>"])),
            ("tokenizer.ggml.scores", Value::from(Array::I32(vec![0, 1, -2]))),
            ("tokenizer.ggml.token_type", Value::from(Array::I32(vec![2, 3, 99]))),
            ("tokenizer.ggml.padding_token_id", Value::from(-1i32)),
        ];
        for (key, value) in good {
            let change = changes.iter().find(|(changed, _)| *changed == key);
            if let Some(value) = change.map_or(Some(value), |(_, value)| value.clone()) {
                writer.set(key, value).expect("a new key");
            }
        }
        let bytes = writer.in_memory().and_then(|data| data.finish()).expect("a file");
        let file = File::from_vec(bytes, "test").expect("a container");
        Vocab::from_metadata(file.metadata())
    };
    let vocab = read(&[]).expect("good");
    assert_eq!(vocab.scores, [0.0, 1.0, -2.0]);
    assert_eq!(vocab.types, [TokenType::Unknown, TokenType::Control, TokenType::Undefined]);
    assert_eq!(vocab.ids.pad, Some(u32::MAX));
    let bad = [
        ("tokenizer.ggml.model", None),
        ("tokenizer.ggml.model", Some(Value::from(1u32))),
        ("tokenizer.ggml.tokens", None),
        ("tokenizer.ggml.tokens", Some(Value::from("<s>"))),
        ("tokenizer.ggml.scores", Some(strings(&["0"]))),
        ("tokenizer.ggml.token_type", Some(Value::from(true))),
        ("tokenizer.ggml.padding_token_id", Some(Value::from("none"))),
    ];
    for (key, value) in bad {
        let error = read(&[(key, value)]).expect_err("a bad value").to_string();
        assert!(error.contains(key), "{error}");
    }
}

#[test]
fn an_odd_vocabulary_works_with_a_warning() {
    let ids = SpecialIds { pad: Some(u32::MAX), bos: Some(99), ..SpecialIds::default() };
    let tokenizer = Tokenizer::new(Vocab { ids, ..tiny() }).expect("usable");
    assert_eq!((tokenizer.bos(), tokenizer.special().pad), (Some(1), None));
    assert_eq!(tokenizer.warnings().len(), 2);

    // Kimi K2's files have no merges.
    let kimi = Vocab { pre: Some("kimi-k2".into()), merges: Vec::new(), ..tiny_gpt2() };
    let kimi = Tokenizer::new(kimi).expect("usable");
    assert_eq!(kimi.encode("ab", false, false).expect("encodable"), [0, 1]);

    let mut unnamed = Vocab { pre: None, ..tiny_gpt2() };
    unnamed.tokens.push(Vec::new());
    let tokenizer = Tokenizer::new(unnamed).expect("usable");
    assert_eq!(tokenizer.warnings(), [Warning::MissingPre]);
    assert_eq!(tokenizer.encode("ab ab", true, true).expect("encodable"), [2, 4]);
    assert_eq!(tokenizer.eog(), [5]);
}

#[test]
fn text_without_a_token_becomes_unk() {
    let tokenizer = Tokenizer::new(tiny()).expect("good");
    assert_eq!(tokenizer.encode("abx", false, false).expect("encodable"), [7, 0]);
    let bare = Vocab { tokens: vec![b"a".to_vec()], add_bos: Some(false), ..tiny() };
    let ids = SpecialIds { unk: None, ..SpecialIds::default() };
    let lone = Tokenizer::new(Vocab { ids, ..bare }).expect("good");
    // llama.cpp uses id 0 as the unknown token of a `llama` vocabulary.
    assert_eq!(lone.encode("x", false, false).expect("encodable"), [0, 0, 0, 0]);
}
