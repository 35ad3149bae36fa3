//! Tests the differences between the types of vocabularies on small vocabularies.
//! scripts/check_tokenizers checks that llama.cpp gives the same ids.

use std::time::{Duration, Instant};

use thermocline::tokenizer::{
    Detokenizer, Error, SpecialIds, Start, TokenType, Tokenizer, Vocab, Warning,
};

use super::peers::charsmap;
use super::{push_all, text_of};

fn tokens(all: &[&str]) -> Vec<Vec<u8>> {
    all.iter().map(|token| token.as_bytes().to_vec()).collect()
}

/// Token types from the texts: `<0xNN>` are bytes, `<...>` control tokens, those in `defined` are
/// user-defined.
fn types(all: &[&str], defined: &[&str]) -> Vec<TokenType> {
    let kind = |token: &&str| match *token {
        token if defined.contains(&token) => TokenType::UserDefined,
        "<unk>" => TokenType::Unknown,
        token if token.starts_with("<0x") => TokenType::Byte,
        token if token.starts_with('<') => TokenType::Control,
        _ => TokenType::Normal,
    };
    all.iter().map(kind).collect()
}

fn gemma4() -> Vocab {
    let all = [
        "<pad>", "<eos>", "<bos>", "▁", "a", "b", "ab", "▁ab", "\n", "\n\n", "\n\n\n", "<0xE4>",
        "<0xB8>", "<0xAD>", "<|turn>",
    ];
    Vocab {
        model: "gemma4".into(),
        tokens: tokens(&all),
        types: types(&all, &[]),
        merges: vec![b"a b".to_vec(), "▁ ab".into(), b"\n \n\n".to_vec()],
        ids: SpecialIds { bos: Some(2), eos: Some(1), ..SpecialIds::default() },
        ..Vocab::default()
    }
}

#[test]
fn gemma_4_merges_characters_within_lines() {
    let tokenizer = Tokenizer::new(gemma4()).expect("good");
    let encode = |text| tokenizer.encode(text, true, true).expect("encodable");
    assert_eq!(encode("ab ab"), [2, 6, 7]);
    // A run of newlines that is a token, such as token 9, is not split. In longer runs, tokens 8
    // and 9 could merge to token 10, but no merge makes token 9.
    assert_eq!(encode("a\n\nb\n\n\n\n"), [2, 4, 9, 5, 8, 8, 8, 8]);
    assert_eq!(encode("<|turn>中 "), [2, 14, 11, 12, 13, 3]);
    assert_eq!(text_of(&tokenizer, &encode("ab  a中\n")[1..], Start::BeginningOfText), "ab  a中\n");
    let mut stream = Detokenizer::new(&tokenizer, Start::Continuation, false);
    assert_eq!(push_all(&mut stream, &[7, 11, 12, 13, 4, 11]), [" ab", "", "", "中", "a", ""]);
    assert_eq!(stream.finish(), "\u{fffd}");
}

#[test]
fn gemma_4_always_adds_bos() {
    let tokenizer = Tokenizer::new(Vocab { add_bos: Some(false), ..gemma4() }).expect("good");
    assert!(tokenizer.adds_bos());
    assert_eq!(tokenizer.warnings(), [Warning::BosAdded { pre: "gemma4".into() }]);
    let ids = SpecialIds::default();
    let error = Tokenizer::new(Vocab { ids, ..gemma4() }).expect_err("no BOS token").to_string();
    assert!(error.contains("tokenizer.ggml.bos_token_id"), "{error}");
}

#[test]
fn user_defined_tokens_come_before_merges_the_longest_first() {
    let all = ["<unk>", "<s>", "</s>", "▁", "a", "▁a", "x", "xx", "xxx", "<turn>"];
    let vocab = Vocab {
        model: "llama".into(),
        tokens: tokens(&all),
        types: types(&all, &["xx", "xxx"]),
        add_space_prefix: Some(false),
        ..Vocab::default()
    };
    let gemma = Tokenizer::new(vocab.clone()).expect("good");
    let ids = |tokenizer: &Tokenizer, text, special| {
        tokenizer.encode(text, false, special).expect("encodable")
    };
    assert_eq!(ids(&gemma, "a axxxxx", false), [4, 5, 8, 7]);
    assert_eq!(ids(&gemma, "<turn> a", true), [9, 5]);
    assert_eq!(text_of(&gemma, &[5, 8, 4], Start::BeginningOfText), " axxxa");
    // With a prefix, a space goes before each section of text.
    let prefixed = Tokenizer::new(Vocab { add_space_prefix: None, ..vocab.clone() }).expect("good");
    assert_eq!(ids(&prefixed, "axxa", false), [5, 7, 5]);
    // Phi-3's special tokens absorb the white space after them, its BOS token does not.
    let phi3 = Tokenizer::new(Vocab { name: "Phi-3-mini".into(), ..vocab }).expect("good");
    assert_eq!(ids(&phi3, "<turn> \n a<s> a", true), [9, 4, 1, 5]);
}

fn t5() -> Vocab {
    let all = ["<pad>", "</s>", "<unk>", "▁", "a", "b", "ab", "▁a", "fi", "<extra>"];
    Vocab {
        model: "t5".into(),
        tokens: tokens(&all),
        types: types(&all, &[]),
        scores: vec![0.0, 0.0, 0.0, -2.0, -3.0, -3.0, -4.0, -3.5, -5.0, 0.0],
        charsmap: charsmap(&[("ﬁ", "fi"), ("\u{3000}", " "), ("ＡＢ", "ab"), ("Ａ", "a")]),
        ..Vocab::default()
    }
}

#[test]
fn unigram_chooses_the_most_probable_pieces() {
    let tokenizer = Tokenizer::new(t5()).expect("good");
    let encode = |text| tokenizer.encode(text, false, true).expect("encodable");
    assert_eq!(encode("ab"), [6]);
    // The pieces of `▁a b` have a score of -6.5, those of `▁ ab` a score of -6, which is better.
    assert_eq!(encode(" ab"), [3, 6]);
    assert_eq!(encode("ＡＢ\u{3000}Ａﬁ"), [6, 7, 8]);
    // Consecutive unknown characters are one token, and do not end the text.
    assert_eq!(encode("a中🦙b中"), [4, 2, 5, 2]);
    assert_eq!(encode("a<extra>"), [4, 9]);
    assert_eq!(tokenizer.encode("a", true, true).expect("encodable"), [4, 1]);
    assert!(encode("").is_empty());
}

#[test]
fn unigram_space_marks_follow_the_file() {
    let ids = |prefix, merge, text| {
        let (add_space_prefix, remove_extra_whitespaces) = (Some(prefix), Some(merge));
        let vocab = Vocab { add_space_prefix, remove_extra_whitespaces, ..t5() };
        Tokenizer::new(vocab).expect("good").encode(text, false, true).expect("encodable")
    };
    assert_eq!(ids(false, false, " a  "), [7, 3, 3]);
    assert_eq!(ids(true, false, " a"), [3, 7]);
    assert_eq!(ids(true, true, "  a  b "), [7, 3, 5]);
    assert!(ids(true, true, "  ").is_empty());
}

#[test]
fn long_words_take_linear_time() {
    for vocab in [gemma4(), t5(), Vocab { add_space_prefix: Some(true), ..t5() }] {
        let tokenizer = Tokenizer::new(vocab).expect("good");
        for text in ["a", " ", "\n", "ab", "中", "ＡＢ", " a"] {
            let text = text.repeat(1_000_000 / text.len());
            let start = Instant::now();
            assert!(!tokenizer.encode(&text, true, true).expect("encodable").is_empty());
            // The limit allows for unoptimised code on a busy machine; quadratic code would take
            // hours.
            assert!(start.elapsed() < Duration::from_secs(60), "{:?}", text.chars().next());
        }
    }
}

#[test]
fn an_invalid_charsmap_is_an_error() {
    let build = |charsmap: Vec<u8>| Tokenizer::new(Vocab { charsmap, ..t5() });
    for blob in
        [vec![1], vec![0, 0, 0, 0], vec![255, 255, 255, 255, 0], vec![4, 0, 0, 0, 0, 0, 0, 0]]
    {
        assert!(matches!(build(blob), Err(Error::BadCharsmap { .. })));
    }
    let good = charsmap(&[("a", "b")]);
    let size = good.len();
    // Three invalid tables: the replacement has no end, it begins beyond the table, or the root's
    // children lie beyond it.
    let mut endless = good.clone();
    *endless.last_mut().expect("a zero") = b'x';
    let mut beyond = good.clone();
    beyond[4 + 4 * 512..][..4].copy_from_slice(&(1u32 << 31 | 99).to_le_bytes());
    let mut lost = good;
    lost[4..8].copy_from_slice(&(0x1F_FFFFu32 << 10).to_le_bytes());
    for blob in [endless, beyond, lost] {
        let tokenizer = build(blob).expect("not validated yet");
        let error = tokenizer.encode("a", false, false).expect_err("a bad table");
        assert!(matches!(error, Error::BadCharsmap { bytes } if bytes == size), "{error}");
    }
    let long = Vocab { tokens: tokens(&["a", &"b".repeat(2000)]), ..Vocab::default() };
    let long = Vocab { model: "t5".into(), ids: SpecialIds { unk: Some(0), ..long.ids }, ..long };
    assert!(matches!(Tokenizer::new(long), Err(Error::LongToken { id: 1, bytes: 2000, .. })));
}

#[test]
fn an_expanding_charsmap_is_stopped() {
    let much = "x".repeat(100_000);
    let vocab = Vocab { charsmap: charsmap(&[("a", &much)]), ..t5() };
    let tokenizer = Tokenizer::new(vocab).expect("good");
    let error = tokenizer.encode(&"a".repeat(1000), false, false).expect_err("too much");
    assert!(matches!(error, Error::TooLong { .. }), "{error}");
}

fn bert() -> Vocab {
    let all = [
        "<pad>", "<unk>", "<cls>", "<sep>", "▁the", "▁un", "want", "ed", "▁!", "▁中", "▁文",
        "▁cafe", "▁$", "▁a", "▁The", "ñ",
    ];
    let ids = SpecialIds { bos: Some(2), sep: Some(3), unk: Some(1), ..SpecialIds::default() };
    Vocab {
        model: "bert".into(),
        tokens: tokens(&all),
        types: types(&all, &[]),
        ids,
        ..Vocab::default()
    }
}

#[test]
fn bert_writes_words_with_the_longest_tokens() {
    let tokenizer = Tokenizer::new(bert()).expect("good");
    let encode = |text| tokenizer.encode(text, true, true).expect("encodable");
    assert_eq!(encode("The unwanted!"), [2, 4, 5, 6, 7, 8, 3]);
    // Chinese characters and symbols of ASCII are words; accents and control characters vanish.
    assert_eq!(encode("中文 café\u{200d}$"), [2, 9, 10, 11, 12, 3]);
    // A word that the tokens cannot write becomes one token.
    assert_eq!(encode("thethe wanted a"), [2, 1, 1, 13, 3]);
    assert_eq!(encode(""), [2, 3]);
    assert_eq!(tokenizer.encode("a", false, true).unwrap(), [13]);
    assert!(tokenizer.adds_bos() && tokenizer.adds_sep() && !tokenizer.adds_eos());
    let cased = Tokenizer::new(Vocab { lowercase: Some(false), ..bert() }).expect("good");
    assert_eq!(cased.encode("The the añ", false, true).unwrap(), [14, 4, 13, 15]);
    let accents = Vocab { strip_accents: Some(false), ..bert() };
    let accents = Tokenizer::new(accents).expect("good");
    assert_eq!(accents.encode("AÑ", false, true).unwrap(), [13, 15]);
    let ids = SpecialIds { unk: None, ..bert().ids };
    let missing = Tokenizer::new(Vocab { ids, ..bert() }).expect_err("no unknown token");
    assert!(missing.to_string().contains("unknown_token_id"), "{missing}");
}
