//! BERT's WordPiece vocabularies, in `tokenizer.json` or the older `vocab.txt`.
//!
//! GGUF marks tokens that begin a word by U+2581; the files of BERT mark the others by `##`.

use std::path::Path;

use serde_json::Value;

use super::json::store_tokens;
use super::{Vocab, kind};
use crate::Error;
use crate::config::Json;
use crate::read::text_limited;

const CONTINUED: &str = "##";
/// Largest accepted `vocab.txt`, in bytes: ten times the largest known one.
const MAX_LIST: u64 = 64 << 20;
/// Special tokens of `vocab.txt`, which does not mark them.
const SPECIAL: [&str; 5] = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"];

/// Reads `tokenizer.json`. Special tokens are added to the vocabulary later.
pub(super) fn read(json: &Json, model: &Json) -> Result<Vocab, Error> {
    let wrong =
        |what: &str| Error::Tokenizer { file: json.file().to_owned(), what: what.to_owned() };
    let prefix = model.text(&["continuing_subword_prefix"])?;
    if let Some(other) = prefix.filter(|prefix| prefix != CONTINUED) {
        return Err(model.wrong_value("continuing_subword_prefix", CONTINUED, other));
    }
    let ids = model
        .object("vocab")?
        .ok_or_else(|| model.missing("model.vocab", "the id of each token"))?;
    let texts: Vec<(String, Option<u64>)> =
        ids.iter().map(|(text, id)| (marked(text), id.as_u64())).collect();
    let mut vocab = Vocab { model: "bert", pre: "default".to_owned(), ..Vocab::default() };
    store_tokens(&mut vocab, texts.iter().map(|(text, id)| (text.as_str(), *id)))
        .ok_or_else(|| wrong("the id of a token is negative, not an integer, or too large"))?;
    let unknown = model.text(&["unk_token"])?.unwrap_or_else(|| "[UNK]".to_owned());
    vocab.unk = ids.get(&unknown).and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok());
    let normalizer = json.inner("normalizer")?;
    match normalizer.text(&["type"])?.as_deref() {
        Some("BertNormalizer") => {
            vocab.lowercase = Some(normalizer.bool(&["lowercase"])?.unwrap_or(true));
            vocab.strip_accents = normalizer.bool(&["strip_accents"])?;
        }
        None => (vocab.lowercase, vocab.strip_accents) = (Some(false), Some(false)),
        Some(other) => {
            return Err(wrong(&format!("normalizer.type is `{other}`, expected BertNormalizer")));
        }
    }
    Ok(vocab)
}

/// Reads `vocab.txt`, with a token in each line, and `tokenizer_config.json`.
pub(super) fn read_list(folder: &Path) -> Result<Vocab, Error> {
    let text = text_limited(&folder.join("vocab.txt"), MAX_LIST)?;
    let lines: Vec<&str> = text.lines().collect();
    let mut vocab = Vocab { model: "bert", pre: "default".to_owned(), ..Vocab::default() };
    vocab.grow(lines.len());
    for (id, line) in lines.into_iter().enumerate() {
        if SPECIAL.contains(&line) {
            vocab.set(id, line.to_owned(), kind::CONTROL, 0.0);
        } else {
            vocab.set(id, marked(line), kind::NORMAL, 0.0);
        }
        if line == "[UNK]" {
            vocab.unk = u32::try_from(id).ok();
        }
    }
    if let Some(settings) = Json::open_if_present(&folder.join("tokenizer_config.json"))? {
        vocab.lowercase = settings.bool(&["do_lower_case"])?;
        vocab.strip_accents = settings.bool(&["strip_accents"])?;
    }
    vocab.lowercase.get_or_insert(true);
    Ok(vocab)
}

/// A token in the form of GGUF.
fn marked(text: &str) -> String {
    match text.strip_prefix(CONTINUED) {
        Some(rest) => rest.to_owned(),
        None => format!("\u{2581}{text}"),
    }
}
