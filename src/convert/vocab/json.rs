//! Reads `tokenizer.json`, or the older `vocab.json` with `merges.txt`.

use std::collections::HashMap;
use std::path::Path;

use serde_json::Value;

use super::{MAX_TOKENS, Vocab, kind, normalizer, pre, wordpiece};
use crate::Error;
use crate::config::Json;
use crate::read::text_limited;

/// Largest accepted `merges.txt`, in bytes: ten times the largest known one.
const MAX_MERGES: u64 = 64 << 20;

/// `own` is the name of a BPE vocabulary with byte tokens, if it is not `llama`.
pub(super) fn read(
    json: &Json,
    pre: Option<&str>,
    own: Option<&'static str>,
) -> Result<Vocab, Error> {
    let wrong =
        |what: &str| Error::Tokenizer { file: json.file().to_owned(), what: what.to_owned() };
    let model = json.inner("model")?;
    let kind = model.text(&["type"])?;
    match kind.as_deref() {
        Some("Unigram") => unigram(json, &model),
        Some("WordPiece") => wordpiece::read(json, &model),
        // Older files have no type; a list of merges implies BPE.
        Some("BPE") | None if model.get(&["merges"]).is_some() => bpe(json, &model, pre, own),
        Some("BPE") | None => Err(wrong("model.merges is missing, expected a list of merges")),
        Some(other) => {
            Err(wrong(&format!("model.type is `{other}`, expected BPE, Unigram or WordPiece")))
        }
    }
}

fn bpe(
    json: &Json,
    model: &Json,
    pre_name: Option<&str>,
    own: Option<&'static str>,
) -> Result<Vocab, Error> {
    let wrong =
        |what: &str| Error::Tokenizer { file: json.file().to_owned(), what: what.to_owned() };
    let ids = model
        .object("vocab")?
        .ok_or_else(|| model.missing("model.vocab", "the id of each token"))?;
    let merges = model
        .list("merges")?
        .ok_or_else(|| model.missing("model.merges", "the merges in order"))?;
    let merges = merges.iter().map(merge).collect::<Option<Vec<_>>>();
    let merges = merges.ok_or_else(|| {
        wrong("an entry of model.merges is not two tokens, as a list or separated by a space")
    })?;
    // Byte fallback marks a vocabulary converted from SentencePiece. Its tokens are plain text, and
    // byte tokens encode all other characters.
    let is_llama = model.bool(&["byte_fallback"])?.unwrap_or(false);
    let (name, pre) = match (is_llama, pre_name) {
        (true, _) => (own.unwrap_or("llama"), own.unwrap_or("default").to_owned()),
        (false, Some(name)) => ("gpt2", name.to_owned()),
        (false, None) => {
            ("gpt2", pre::name(json, model.bool(&["ignore_merges"])?.unwrap_or(false))?.to_owned())
        }
    };
    let mut vocab = Vocab { model: name, pre, ..Vocab::default() };
    store_tokens(&mut vocab, ids.iter().map(|(text, id)| (text.as_str(), id.as_u64())))
        .ok_or_else(|| wrong("the id of a token is negative, not an integer, or too large"))?;
    if is_llama {
        scores(&mut vocab, &merges);
        vocab.space_prefix = Some(prepends_space(json)?);
    }
    if !is_llama || own.is_some() {
        // A merge separates its tokens by a space, so a space inside a token is written as U+0120,
        // its character in the byte-level alphabet.
        let part = |text: &str| text.replace(' ', "\u{120}");
        vocab.merges =
            merges.iter().map(|(left, right)| format!("{} {}", part(left), part(right))).collect();
        if vocab.merges.is_empty() {
            return Err(wrong(
                "model.merges is empty: a GGUF file needs the merges of a BPE tokenizer",
            ));
        }
    }
    Ok(vocab)
}

/// Parses a merge: `left right`, or a list of left and right; `None` for anything else.
fn merge(value: &Value) -> Option<(String, String)> {
    if let Some(text) = value.as_str() {
        let (left, right) = text.split_once(' ')?;
        return Some((left.to_owned(), right.to_owned()));
    }
    let [left, right] = value.as_array()?.as_slice() else { return None };
    Some((left.as_str()?.to_owned(), right.as_str()?.to_owned()))
}

/// Stores tokens at their ids; `None` for an invalid id.
pub(super) fn store_tokens<'a>(
    vocab: &mut Vocab,
    tokens: impl Iterator<Item = (&'a str, Option<u64>)>,
) -> Option<()> {
    for (text, id) in tokens {
        let id = usize::try_from(id?).ok().filter(|&id| id < MAX_TOKENS)?;
        if id >= vocab.tokens.len() {
            vocab.grow(id + 1);
        }
        vocab.set(id, text.to_owned(), kind::NORMAL, -10_000.0);
    }
    Some(())
}

/// Sets the type of byte tokens, and scores that give the same order of merges as the list: the
/// earlier the merge of a token, the higher its score.
fn scores(vocab: &mut Vocab, merges: &[(String, String)]) {
    let ids: HashMap<&str, usize> =
        vocab.tokens.iter().enumerate().map(|(id, text)| (text.as_str(), id)).collect();
    let mut ranks = vec![None; vocab.tokens.len()];
    for (rank, (left, right)) in merges.iter().enumerate() {
        if let Some(&id) = ids.get(format!("{left}{right}").as_str()) {
            ranks[id].get_or_insert(rank);
        }
    }
    for (id, rank) in ranks.into_iter().enumerate() {
        let text = &vocab.tokens[id];
        let is_byte = text.len() == 6 && text.starts_with("<0x") && text.ends_with('>');
        if vocab.types[id] == kind::NORMAL {
            vocab.types[id] = if is_byte { kind::BYTE } else { kind::NORMAL };
        }
        vocab.scores[id] = match rank {
            Some(rank) => -(rank as f32),
            None if is_byte => 0.0,
            None => -(merges.len() as f32),
        };
    }
}

/// Whether the normaliser or the pre-tokenizer prepends a space.
fn prepends_space(json: &Json) -> Result<bool, Error> {
    let has = |value: Option<&serde_json::Map<String, Value>>| {
        let text = value.map(|value| Value::Object(value.clone()).to_string()).unwrap_or_default();
        text.contains(r#""type":"Prepend""#)
            || text.contains(r#""prepend_scheme":"first""#)
            || text.contains(r#""prepend_scheme":"always""#)
            || text.contains(r#""add_prefix_space":true"#)
    };
    Ok(has(json.object("normalizer")?) || has(json.object("pre_tokenizer")?))
}

fn unigram(json: &Json, model: &Json) -> Result<Vocab, Error> {
    let wrong =
        |what: &str| Error::Tokenizer { file: json.file().to_owned(), what: what.to_owned() };
    let list = model
        .list("vocab")?
        .ok_or_else(|| model.missing("model.vocab", "tokens with their scores"))?;
    if list.len() > MAX_TOKENS {
        let n = list.len();
        return Err(wrong(&format!(
            "the vocabulary has {n} tokens, expected at most {MAX_TOKENS}"
        )));
    }
    let mut vocab = Vocab { model: "t5", pre: "default".to_owned(), ..Vocab::default() };
    vocab.grow(list.len());
    for (id, entry) in list.iter().enumerate() {
        let pair = entry
            .as_array()
            .and_then(|pair| Some((pair.first()?.as_str()?, pair.get(1)?.as_f64()?)));
        let (text, score) =
            pair.ok_or_else(|| wrong("an entry of model.vocab is not a pair of text and score"))?;
        let is_byte = text.len() == 6 && text.starts_with("<0x") && text.ends_with('>');
        vocab.set(
            id,
            text.to_owned(),
            if is_byte { kind::BYTE } else { kind::NORMAL },
            score as f32,
        );
    }
    vocab.unk = model.u32(&["unk_id"])?;
    if let Some(unk) = vocab.unk.map(|id| id as usize).filter(|&id| id < vocab.types.len()) {
        vocab.types[unk] = kind::UNKNOWN;
    }
    vocab.space_prefix = Some(prepends_space(json)?);
    normalizer::add(json, &mut vocab)?;
    let splits = json.object("pre_tokenizer")?.cloned().unwrap_or_default();
    if Value::Object(splits).to_string().contains(r#""type":"WhitespaceSplit""#) {
        vocab.remove_spaces = Some(true);
    }
    Ok(vocab)
}

/// Reads `vocab.json` and `merges.txt`, the format of GPT-2 and OPT.
pub(super) fn read_pair(folder: &Path, pre: Option<&str>) -> Result<Vocab, Error> {
    let ids = Json::open(&folder.join("vocab.json"))?;
    let mut vocab =
        Vocab { model: "gpt2", pre: pre.unwrap_or("gpt-2").to_owned(), ..Vocab::default() };
    let wrong =
        |what: &str| Error::Tokenizer { file: ids.file().to_owned(), what: what.to_owned() };
    store_tokens(&mut vocab, ids.entries().map(|(text, id)| (text, id.as_u64())))
        .ok_or_else(|| wrong("the id of a token is negative, not an integer, or too large"))?;
    let path = folder.join("merges.txt");
    let text = text_limited(&path, MAX_MERGES)?;
    let is_merge = |line: &&str| !line.starts_with("#version") && !line.is_empty();
    vocab.merges = text.lines().filter(is_merge).map(str::to_owned).collect();
    let invalid = text.lines().position(|line| is_merge(&line) && line.split(' ').count() != 2);
    if let Some(index) = invalid {
        let file = path.display().to_string();
        let what = format!("line {} is not two tokens separated by a space", index + 1);
        return Err(Error::Tokenizer { file, what });
    }
    Ok(vocab)
}
