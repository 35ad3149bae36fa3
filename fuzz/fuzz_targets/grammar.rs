//! Compiles arbitrary texts as GBNF, Lark, regular expressions and JSON schemas: each must compile within the limits or
//! return an error.
#![no_main]

use std::path::Path;
use std::sync::{Arc, LazyLock};

use constrain::{Grammar, Limits, Vocabulary};
use libfuzzer_sys::fuzz_target;
use thermocline::gguf::File;
use thermocline::tokenizer::{Tokenizer, Vocab};

static VOCABULARY: LazyLock<Vocabulary> = LazyLock::new(|| {
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets");
    let model = planes::unpack(&assets.join("tinystories-relu-f16.gguf.planes.gz"), 2)
        .expect("the built-in model");
    let file = File::from_vec(model, "the built-in model").expect("a GGUF file");
    let vocab = Vocab::from_metadata(file.metadata()).expect("a vocabulary");
    Vocabulary::new(&Arc::new(Tokenizer::new(vocab).expect("a tokenizer")))
        .expect("a small vocabulary")
});

fuzz_target!(|input: &[u8]| {
    let Some((&kind, rest)) = input.split_first() else { return };
    let Ok(text) = std::str::from_utf8(rest) else { return };
    let grammar = match kind % 4 {
        0 => Grammar::Gbnf(text.to_owned()),
        1 => Grammar::Lark(text.to_owned()),
        2 => Grammar::Regex(text.to_owned()),
        _ => match serde_json::from_str(text) {
            Ok(schema) => Grammar::JsonSchema(schema),
            Err(_) => return,
        },
    };
    let _ = VOCABULARY.compile(&grammar, &Limits::default());
});
