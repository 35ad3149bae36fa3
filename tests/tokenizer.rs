//! Text to ids and back: llama.cpp's ids for its own test strings, an independent implementation
//! on ordinary text, round trips, hostile vocabularies and texts.

mod hostile;
mod kinds;
mod peers;
mod texts;
mod vocabularies;

use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use thermocline::gguf::File;
use thermocline::tokenizer::{Detokenizer, Error, Start, TokenType, Tokenizer, Vocab};

const VOCABULARIES: [&str; 5] = ["falcon", "gpt-2", "llama-bpe", "llama-spm", "qwen2"];
const MODEL: &str = "models/tinystories-relu/tinystories-relu-f16.gguf";

/// The path of a file in `../shared`, or `None` with a printed reason if it does not exist.
fn shared(path: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared").join(path);
    if path.exists() {
        return Some(path);
    }
    println!("skipped: {} does not exist", path.display());
    None
}

fn vocab(path: &Path) -> Vocab {
    let file = File::open(path).expect("a GGUF file");
    Vocab::from_metadata(file.metadata()).expect("a vocabulary")
}

fn tokenizer(name: &str) -> Option<Tokenizer> {
    let path = shared(&format!("vocab/ggml-vocab-{name}.gguf"))?;
    Some(Tokenizer::new(vocab(&path)).expect("a good vocabulary"))
}

fn model() -> Option<Tokenizer> {
    Some(Tokenizer::new(vocab(&shared(MODEL)?)).expect("a good vocabulary"))
}

/// All tokenizers except Falcon's, which has no tokens for control characters and drops them, as in
/// llama.cpp.
static TOKENIZERS: LazyLock<Vec<Tokenizer>> = LazyLock::new(|| {
    let whole = VOCABULARIES.into_iter().filter(|name| *name != "falcon");
    whole.filter_map(tokenizer).chain(model()).collect()
});

fn text_of(tokenizer: &Tokenizer, ids: &[u32], start: Start) -> String {
    let mut detokenizer = Detokenizer::new(tokenizer, start, true);
    let mut text = String::new();
    for &id in ids {
        text += detokenizer.push(id).expect("ids from the tokenizer");
    }
    text + &detokenizer.finish()
}

#[test]
fn ids_match_llama_cpp() {
    for name in VOCABULARIES {
        let Some(tokenizer) = tokenizer(name) else {
            return;
        };
        let read = |ext| {
            let path = shared(&format!("vocab/ggml-vocab-{name}.gguf.{ext}"));
            std::fs::read_to_string(path.expect("beside the vocabulary")).expect("text")
        };
        let (texts, ids) = (read("inp"), read("out"));
        let texts: Vec<_> = texts.split("\n__ggml_vocab_test__\n").collect();
        assert!(texts.len() > 40 && texts.len() == ids.split('\n').count(), "{name}");
        for (text, line) in texts.into_iter().zip(ids.split('\n')) {
            let expected: Vec<u32> =
                line.split_whitespace().map(|id| id.parse().expect("an id")).collect();
            for parse_special in [false, true] {
                let found = tokenizer.encode(text, false, parse_special).expect("encodable");
                assert_eq!(found, expected, "{name}: {text:?}");
            }
        }
    }
}

/// Ids checked against llama.cpp by hand: control tokens, whether BOS is added by default, and
/// end-of-generation tokens.
#[test]
fn control_tokens_are_parsed_on_request() {
    let Some(llama3) = tokenizer("llama-bpe") else {
        return;
    };
    let text = "<|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>";
    let ids = llama3.encode(text, true, true).expect("encodable");
    assert_eq!(ids, [128_000, 128_006, 882, 128_007, 271, 6151, 128_009]);
    assert!(llama3.encode(text, true, false).expect("encodable").len() > 20);
    assert_eq!(llama3.eog(), [128_001, 128_009]);
    assert_eq!(llama3.special().eot, Some(128_009));
    assert_eq!(llama3.piece(128_009, false).expect("exists"), b"");
    assert_eq!(llama3.piece(128_009, true).expect("exists"), b"<|eot_id|>");
    assert_eq!(llama3.kind(128_009).expect("exists"), TokenType::Control);

    let Some(spm) = tokenizer("llama-spm") else {
        return;
    };
    // The space prefix comes after every special token.
    assert_eq!(
        spm.encode("<s>hi</s> hi", false, true).expect("encodable"),
        [1, 7251, 2, 29871, 7251]
    );
    assert_eq!(spm.encode("", true, true).expect("encodable"), [1]);
    assert!(spm.encode("", false, true).expect("encodable").is_empty());
    assert_eq!(spm.id_of("<0x0A>"), Some(13));

    let Some(qwen2) = tokenizer("qwen2") else {
        return;
    };
    assert!(!qwen2.adds_bos());
    assert!(qwen2.is_eog(151_645) && qwen2.is_eog(151_643) && !qwen2.is_eog(0));
}

#[test]
fn the_embedded_model_agrees_with_its_hugging_face_tokenizer() {
    let (Some(ours), Some(json), Some(text), Some(greedy)) = (
        model(),
        shared("models/tinystories-relu/hf/tokenizer.json"),
        shared("models/tinystories-relu/eval.txt"),
        shared("models/tinystories-relu/reference/greedy.json"),
    ) else {
        return;
    };
    let theirs = tokenizers::Tokenizer::from_file(json).expect("a tokenizer");
    let text = std::fs::read_to_string(text).expect("text");
    for line in text.lines().filter(|line| !line.is_empty()) {
        let expected = theirs.encode(line, true).expect("encodable");
        assert_eq!(ours.encode(line, true, true).expect("encodable"), expected.get_ids(), "{line}");
    }
    let greedy = std::fs::read_to_string(greedy).expect("text");
    let greedy: Vec<serde_json::Value> = serde_json::from_str(&greedy).expect("JSON");
    for case in greedy {
        let prompt = case["prompt"].as_str().expect("a prompt");
        let ids: Vec<u32> = serde_json::from_value(case["prompt_ids"].clone()).expect("ids");
        assert_eq!(ours.encode(prompt, true, true).expect("encodable"), ids, "{prompt}");
    }
}

#[test]
fn detokenising_restores_the_text() {
    let texts = [
        " Hello",
        "  two  spaces ",
        "\n\n\ttab",
        "🦙🚀 é e\u{301}",
        "我想在apple工作 日本語 한국어",
        "'tis I'll we'VE",
        "\u{a0}\u{3000}\u{feff}\0\u{7f}",
        "</s> <|endoftext|> <0x41>",
        " ",
        "",
    ];
    for name in VOCABULARIES {
        let Some(tokenizer) = tokenizer(name) else {
            return;
        };
        for text in texts {
            for special in [false, true] {
                let ids = tokenizer.encode(text, special, false).expect("encodable");
                // The BOS token, if any, is printed too.
                let ids = &ids[usize::from(special && tokenizer.adds_bos())..];
                assert_eq!(text_of(&tokenizer, ids, Start::BeginningOfText), text, "{name}");
            }
        }
    }
}

#[test]
fn a_continuation_keeps_its_leading_space() {
    let Some(model) = tokenizer("llama-spm") else {
        return;
    };
    let ids = model.encode("Hello world", true, true).expect("encodable");
    assert_eq!(ids, [1, 15043, 3186]);
    assert_eq!(text_of(&model, &ids[2..], Start::Continuation), " world");
    assert_eq!(text_of(&model, &ids[2..], Start::BeginningOfText), "world");
    let mut whole = Detokenizer::new(&model, Start::BeginningOfText, false);
    assert_eq!(push_all(&mut whole, &ids), ["", "Hello", " world"]);
}

fn push_all(detokenizer: &mut Detokenizer<'_>, ids: &[u32]) -> Vec<String> {
    ids.iter().map(|&id| detokenizer.push(id).expect("exists").to_owned()).collect()
}

#[test]
fn an_incomplete_character_is_held_back() {
    let Some(model) = tokenizer("llama-spm") else {
        return;
    };
    let bytes: Vec<u32> =
        "🦙".bytes().map(|b| model.id_of(&format!("<0x{b:02X}>")).expect("byte token")).collect();
    let mut detokenizer = Detokenizer::new(&model, Start::Continuation, false);
    assert_eq!(push_all(&mut detokenizer, &bytes), ["", "", "", "🦙"]);
    assert_eq!(push_all(&mut detokenizer, &bytes[1..]), ["\u{fffd}"; 3]);
    assert_eq!(push_all(&mut detokenizer, &bytes[..3]), [""; 3]);
    let hello = model.id_of("hello").expect("a word");
    assert_eq!(detokenizer.push(hello).expect("exists"), "\u{fffd}hello");
    detokenizer.push(bytes[0]).expect("exists");
    assert_eq!(detokenizer.finish(), "\u{fffd}");
}

#[test]
fn ids_outside_the_vocabulary_are_errors() {
    let tokenizer = Tokenizer::new(vocabularies::tiny()).expect("good");
    for id in [8, u32::MAX] {
        assert!(matches!(tokenizer.piece(id, true), Err(Error::NoSuchId { n_vocab: 8, .. })));
        assert!(!tokenizer.is_eog(id));
        let mut detokenizer = Detokenizer::new(&tokenizer, Start::BeginningOfText, true);
        assert!(matches!(detokenizer.push(id), Err(Error::NoSuchId { .. })));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_text_survives_a_round_trip(text in texts::texts(), special: bool) {
        // `llama` vocabularies write a space as U+2581, so the character itself is decoded as a
        // space.
        let text = text.replace('\u{2581}', "");
        for tokenizer in TOKENIZERS.iter() {
            let ids = tokenizer.encode(&text, false, special).expect("encodable");
            if special && ids.iter().any(|&id| tokenizer.kind(id).expect("exists") == TokenType::Control) {
                continue;
            }
            prop_assert_eq!(text_of(tokenizer, &ids, Start::BeginningOfText), text.as_str());
        }
    }

    #[test]
    fn any_ids_come_out_as_whole_characters(seeds in prop::collection::vec(any::<u32>(), 0..40)) {
        for tokenizer in TOKENIZERS.iter() {
            let n = tokenizer.n_vocab() as u32;
            // Half of the ids come from the front, where `llama` vocabularies have their byte
            // tokens.
            let ids: Vec<u32> = seeds.iter().map(|s| if s & 1 == 0 { s % n } else { s % 260 }).collect();
            let bytes: Vec<u8> = ids.iter().flat_map(|&id| tokenizer.piece(id, true).expect("exists")).copied().collect();
            prop_assert_eq!(text_of(tokenizer, &ids, Start::Continuation), String::from_utf8_lossy(&bytes));
        }
    }
}

#[test]
fn a_long_text_of_any_kind_takes_linear_time() {
    let n = 300_000;
    let texts = [
        "a".repeat(n),
        " ".repeat(n),
        "\n".repeat(n) + "x",
        "A".repeat(n),
        " \t".repeat(n / 2) + "1",
        "<|".repeat(n / 2),
        "<s><|endoftext|>".repeat(n / 16),
        "中".repeat(n / 3),
        "The cat sat. ".repeat(n / 13),
    ];
    for tokenizer in VOCABULARIES.into_iter().filter_map(tokenizer) {
        for text in &texts {
            let start = Instant::now();
            let ids = tokenizer.encode(text, true, true).expect("encodable");
            assert!(!ids.is_empty());
            // The limit allows for unoptimised code on a busy machine; quadratic code would take
            // many minutes.
            assert!(start.elapsed() < Duration::from_secs(60), "{:?}", &text[..8]);
        }
    }
}
