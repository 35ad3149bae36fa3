//! Comparison with the `tokenizers` crate, an independent implementation, on random texts.

use std::sync::LazyLock;

use proptest::prelude::*;
use serde_json::json;
use thermocline::tokenizer::{SpecialIds, TokenType, Tokenizer, Vocab};
use tokenizers::normalizers::Precompiled;

use super::texts::texts;
use super::{shared, vocab};

const LLAMA3: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

type Pair = (&'static str, Tokenizer, tokenizers::Tokenizer);

/// A tokenizer of the `tokenizers` crate with the same tokens and merges. Without a pattern it
/// splits like GPT-2.
fn peer_tokenizer(
    vocab: &Vocab,
    pattern: Option<&str>,
    ignore_merges: bool,
) -> tokenizers::Tokenizer {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let tokens: serde_json::Map<_, _> =
        (0u32..).zip(&vocab.tokens).map(|(id, token)| (text(token), id.into())).collect();
    let merges: Vec<_> = vocab.merges.iter().map(|merge| text(merge)).collect();
    let bytes = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
        "use_regex": pattern.is_none(),
    });
    let words = pattern.map(|regex| {
        json!({ "type": "Split", "pattern": { "Regex": regex }, "behavior": "Isolated", "invert": false })
    });
    let steps: Vec<_> = words.into_iter().chain([bytes]).collect();
    let whole = json!({
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": { "type": "Sequence", "pretokenizers": steps },
        "model": { "type": "BPE", "vocab": tokens, "merges": merges, "ignore_merges": ignore_merges },
    });
    whole.to_string().parse().expect("a tokenizer")
}

static PAIRS: LazyLock<Vec<Pair>> = LazyLock::new(|| {
    [("gpt-2", None, false), ("llama-bpe", Some(LLAMA3), true), ("qwen2", Some(QWEN2), false)]
        .into_iter()
        .filter_map(|(name, pattern, ignore_merges)| {
            let vocab = vocab(&shared(&format!("vocab/ggml-vocab-{name}.gguf"))?);
            let theirs = peer_tokenizer(&vocab, pattern, ignore_merges);
            Some((name, Tokenizer::new(vocab).unwrap(), theirs))
        })
        .collect()
});

/// A `precompiled_charsmap` with these replacements. The children of every node of its trie have
/// their own 256 units.
pub(super) fn charsmap(rules: &[(&str, &str)]) -> Vec<u8> {
    let mut units = vec![0u32; 256];
    let mut replacements = Vec::new();
    // Offset of the children of the root; unit 0 is the root.
    units.resize(512, 0);
    units[0] = 256 << 10;
    for (from, to) in rules {
        let (mut node, mut base) = (0usize, 256usize);
        for byte in from.bytes() {
            node = base + usize::from(byte);
            if units[node] == 0 {
                let children = units.len();
                units.resize(children + 256, 0);
                units[node] = ((node ^ children) as u32) << 10 | u32::from(byte);
            }
            base = node ^ (units[node] >> 10) as usize;
        }
        units[node] |= 1 << 8;
        units[base] = 1 << 31 | replacements.len() as u32;
        replacements.extend(to.bytes().chain([0]));
    }
    let units: Vec<u8> = units.into_iter().flat_map(u32::to_le_bytes).collect();
    [&(units.len() as u32).to_le_bytes(), &units[..], &replacements].concat()
}

const RULES: [(&str, &str); 6] =
    [("ﬁ", "fi"), ("Ａ", "a"), ("\u{3000}", " "), ("\t", " "), ("½", "1⁄2"), ("\u{200b}", "")];

fn unigram(pieces: &[(String, f32)], charsmap: &[u8]) -> Vocab {
    let mut tokens = vec![b"<pad>".to_vec(), b"</s>".to_vec(), b"<unk>".to_vec()];
    tokens.extend(pieces.iter().map(|(piece, _)| piece.as_bytes().to_vec()));
    let mut types = vec![TokenType::Control, TokenType::Control, TokenType::Unknown];
    types.resize(tokens.len(), TokenType::Normal);
    let scores = [0.0; 3].into_iter().chain(pieces.iter().map(|(_, score)| *score));
    Vocab {
        model: "t5".into(),
        scores: scores.collect(),
        tokens,
        types,
        charsmap: charsmap.to_vec(),
        ids: SpecialIds::default(),
        ..Vocab::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn bpe_ids_match_the_tokenizers_crate(text in texts()) {
        for (name, ours, theirs) in PAIRS.iter() {
            let theirs = theirs.encode_fast(text.as_str(), false).expect("encodable");
            let ours = ours.encode(&text, false, false).expect("encodable");
            prop_assert_eq!(ours, theirs.get_ids(), "{}", name);
        }
    }

    #[test]
    fn unigram_ids_match_the_tokenizers_crate(
        pieces in prop::collection::btree_map("[abfi12é▁中]{1,4}", -8f32..0.0, 1..60),
        text in "[abfiﬁＡ12½é\u{200b} \u{3000}\t中文🦙]{0,30}",
    ) {
        let pieces: Vec<(String, f32)> = pieces.into_iter().collect();
        let table = charsmap(&RULES);
        let ours = Tokenizer::new(unigram(&pieces, &table)).expect("a good vocabulary");
        let listed = [("<unk>".to_owned(), 0.0)].into_iter();
        let listed = listed.chain(pieces.iter().map(|(p, s)| (p.clone(), f64::from(*s))));
        let model = tokenizers::models::unigram::Unigram::from(listed.collect(), Some(0), false);
        let mut theirs = tokenizers::Tokenizer::new(model.expect("a model"));
        theirs.with_normalizer(Some(tokenizers::normalizers::Sequence::new(vec![
            Precompiled::from(&table).expect("a table").into(),
            tokenizers::normalizers::Replace::new(" ", "▁").expect("a pattern").into(),
        ]))).expect("no added tokens");
        // The crate's tokenizer has `<unk>` at 0 and the pieces from 1 on, ours has it at 2 and the
        // pieces from 3 on.
        let expected: Vec<u32> =
            theirs.encode_fast(text.as_str(), false).expect("encodable").get_ids().iter().map(|id| id + 2).collect();
        prop_assert_eq!(ours.encode(&text, false, false).expect("encodable"), expected);
    }
}
