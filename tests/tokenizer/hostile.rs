//! Random vocabularies: a typed error or a working tokenizer, never a panic.

use proptest::collection::vec;
use proptest::prelude::*;
use thermocline::tokenizer::{Detokenizer, SpecialIds, Start, TokenType, Tokenizer, Vocab};

use super::texts::texts;

const PRE: &[&str] =
    &["default", "gemma4", "kimi-k2", "llama-bpe", "sarvam-moe", "glm4", "superbpe", "klingon"];
const MODELS: &[&str] = &["llama", "gpt2", "gemma4", "t5", "bert"];
const WORDS: &[&str] = &[
    "a", "b", "ab", "Ġ", "Ġa", "▁", "▁a", "\n", "\n\n", "<s>", "</s>", "<0x0A>", "<0xF0>",
    "<|end|>", "<|call|>", "中",
];

fn token() -> impl Strategy<Value = Vec<u8>> + Clone {
    prop_oneof![
        8 => prop::sample::select(WORDS).prop_map(|word| word.as_bytes().to_vec()),
        1 => vec(any::<u8>(), 0..6),
        1 => "[ab▁]{1,6}".prop_map(String::into_bytes),
    ]
}

/// A list of `n` elements, an empty list, or a list of up to 8 elements.
fn list<T: std::fmt::Debug>(
    n: usize,
    element: impl Strategy<Value = T> + Clone,
) -> impl Strategy<Value = Vec<T>> {
    prop_oneof![6 => vec(element.clone(), n), 2 => vec(element.clone(), 0), 1 => vec(element, 0..9)]
}

fn ids() -> impl Strategy<Value = SpecialIds> {
    let id = || prop::option::of(prop_oneof![9 => 0u32..12, 1 => any::<u32>()]);
    (id(), id(), id(), id(), id()).prop_map(|(bos, eos, unk, eot, pad)| SpecialIds {
        bos,
        eos,
        unk,
        eot,
        pad,
        ..SpecialIds::default()
    })
}

/// No bytes, arbitrary bytes, or a table with a valid size and arbitrary units.
fn charsmap() -> impl Strategy<Value = Vec<u8>> {
    let units =
        vec(prop_oneof![any::<u32>(), (0u32..8, 0u32..128).prop_map(|(d, b)| d << 10 | b)], 0..300);
    let table = (units, vec(any::<u8>(), 0..20)).prop_map(|(units, rest)| {
        let size = 4 * units.len() as u32;
        let units = units.into_iter().flat_map(u32::to_le_bytes);
        size.to_le_bytes().into_iter().chain(units).chain(rest).collect()
    });
    prop_oneof![Just(Vec::new()), vec(any::<u8>(), 0..12), table]
}

fn any_vocab() -> impl Strategy<Value = Vocab> {
    let model = prop::sample::select(MODELS);
    let pre = prop::option::of(prop::sample::select(PRE));
    let kinds = (0..9i32).prop_map(TokenType::from_id);
    let score = prop_oneof![9 => -9f32..9.0, 1 => any::<f32>()];
    let merge = (token(), token()).prop_map(|(l, r)| [l, r].join(&b" "[..]));
    let flags = || prop::option::of(any::<bool>());
    (vec(token(), 0..14), model, pre, ids(), charsmap(), (flags(), flags(), flags(), flags()))
        .prop_flat_map(move |(mut tokens, model, pre, ids, charsmap, flags)| {
            // Distinct tokens make most vocabularies usable.
            tokens.sort();
            tokens.dedup();
            let n = tokens.len();
            let lists = (list(n, score.clone()), list(n, kinds.clone()), vec(merge.clone(), 0..4));
            lists.prop_map(move |(scores, types, merges)| Vocab {
                model: model.into(),
                pre: pre.map(str::to_owned),
                tokens: tokens.clone(),
                scores,
                types,
                merges,
                ids,
                add_bos: flags.0,
                add_eos: flags.1,
                add_space_prefix: flags.2,
                remove_extra_whitespaces: flags.3,
                add_sep: flags.0,
                lowercase: flags.1,
                strip_accents: flags.2,
                charsmap: charsmap.clone(),
                name: "phi-3".into(),
            })
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_vocabulary_is_refused_or_works(vocab in any_vocab(), text in texts(), special: bool) {
        let tokenizer = match Tokenizer::new(vocab) {
            Ok(tokenizer) => tokenizer,
            Err(e) => {
                prop_assert!(!e.to_string().is_empty());
                return Ok(());
            }
        };
        // A table of replacements is only checked when it is used: it may be rejected here.
        if let Ok(ids) = tokenizer.encode(&text, special, special) {
            let mut detokenizer = Detokenizer::new(&tokenizer, Start::BeginningOfText, special);
            for id in ids {
                detokenizer.push(id).expect("ids from the tokenizer");
            }
            detokenizer.finish();
        }
    }
}
