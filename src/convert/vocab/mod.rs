//! Converts a Hugging Face tokenizer to the `tokenizer.*` keys of a file.
//!
//! `tokenizer.model` (SentencePiece) is preferred, because a `tokenizer.json` converted from it
//! lacks the scores. The next choices are `tokenizer.json`, tiktoken's lists, and `vocab.json` with
//! `merges.txt`. RWKV and PLaMo have lists of their own.

mod added;
mod json;
mod listed;
mod normalizer;
mod pre;
mod sentencepiece;
mod special;
mod tiktoken;
mod wordpiece;

use std::path::Path;

use super::Error;
use super::config::Json;
use gguf::{Array, Strings, Value};

/// Token types, by their numbers in the file.
pub(super) mod kind {
    pub(crate) const NORMAL: i32 = 1;
    pub(crate) const UNKNOWN: i32 = 2;
    pub(crate) const CONTROL: i32 = 3;
    pub(crate) const USER_DEFINED: i32 = 4;
    pub(crate) const UNUSED: i32 = 5;
    pub(crate) const BYTE: i32 = 6;
}

/// Score of added tokens, which merges must not produce.
const ADDED_SCORE: f32 = -1000.0;
/// Maximum number of tokens: four times the largest known vocabulary.
const MAX_TOKENS: usize = 1 << 20;

#[derive(Debug, Default)]
struct Vocab {
    /// `llama`, `gpt2`, `gemma4`, `t5`, `bert`, `rwkv` or `plamo2`.
    model: &'static str,
    pre: String,
    tokens: Vec<String>,
    /// Empty for `gpt2`, `bert` and `rwkv`.
    scores: Vec<f32>,
    types: Vec<i32>,
    merges: Vec<String>,
    space_prefix: Option<bool>,
    remove_spaces: Option<bool>,
    /// Whether letters are converted to lower case, and whether accents are removed (`bert`).
    lowercase: Option<bool>,
    strip_accents: Option<bool>,
    /// SentencePiece's normalisation table, in its stored form.
    charsmap: Vec<u8>,
    unk: Option<u32>,
    notes: Vec<String>,
}

impl Vocab {
    /// Adds unused tokens up to a size of `n`.
    fn grow(&mut self, n: usize) {
        for id in self.tokens.len()..n {
            self.tokens.push(format!("[PAD{id}]"));
            self.types.push(kind::UNUSED);
        }
        if !matches!(self.model, "gpt2" | "bert" | "rwkv") {
            self.scores.resize(self.tokens.len(), -10_000.0);
        }
    }

    fn set(&mut self, id: usize, text: String, kind: i32, score: f32) {
        self.tokens[id] = text;
        self.types[id] = kind;
        if let Some(slot) = self.scores.get_mut(id) {
            *slot = score;
        }
    }
}

pub(super) struct VocabInputs<'a> {
    pub(super) folder: &'a Path,
    pub(super) config: &'a Json,
    /// Rows of the embedding.
    pub(super) n_vocab: usize,
    /// The name of the pre-tokenizer, if the user gave one.
    pub(super) pre: Option<&'a str>,
    /// Whether a space is prepended to a text; `None` if the tokenizer files decide.
    pub(super) space_prefix: Option<bool>,
    /// The name of a BPE vocabulary with byte tokens, if it is not `llama`.
    pub(super) model: Option<&'static str>,
    /// Whether the model is an encoder, whose texts begin with the token of the class.
    pub(super) encodes: bool,
    /// Whether a decoder makes embeddings, from the state of the token that ends a text.
    pub(super) embeds: bool,
}

type Keys = Vec<(String, Value)>;

/// The `tokenizer.*` keys, and notes for the user.
pub(super) fn keys(inputs: &VocabInputs<'_>) -> Result<(Keys, Vec<String>), Error> {
    if inputs.n_vocab > MAX_TOKENS {
        let file = inputs.config.file().to_owned();
        let what = format!(
            "the embedding has rows for {} tokens, expected at most {MAX_TOKENS}",
            inputs.n_vocab
        );
        return Err(Error::Tokenizer { file, what });
    }
    let mut notes = Vec::new();
    let json = Json::open_if_present(&inputs.folder.join("tokenizer.json"))?;
    let settings = Json::open_if_present(&inputs.folder.join("tokenizer_config.json"))?;
    let mut vocab = read(inputs, json.as_ref(), settings.as_ref())?;
    notes.append(&mut vocab.notes);
    if let Some(pre) = inputs.pre.filter(|pre| *pre != vocab.pre) {
        notes.push(format!(
            "--pre {pre} is ignored: a `{}` tokenizer needs no pre-tokenizer",
            vocab.model
        ));
    }
    added::add(inputs.folder, json.as_ref(), settings.as_ref(), &mut vocab)?;
    if vocab.tokens.len() > inputs.n_vocab {
        let (n, n_vocab) = (vocab.tokens.len(), inputs.n_vocab);
        notes.push(format!(
            "the tokenizer has {n} tokens, but the model has {n_vocab}: dropping the last tokens"
        ));
        vocab.tokens.truncate(n_vocab);
        vocab.types.truncate(n_vocab);
        vocab.scores.truncate(n_vocab);
    }
    vocab.grow(inputs.n_vocab);
    vocab.space_prefix = inputs.space_prefix.or(match &settings {
        Some(settings) if vocab.model == "llama" => {
            settings.bool(&["add_prefix_space"])?.or(vocab.space_prefix)
        }
        Some(_) | None => vocab.space_prefix,
    });
    let mut keys = into_keys(&vocab);
    keys.extend(special::keys(inputs, &vocab, json.as_ref(), settings.as_ref())?);
    keys.extend(special::templates(inputs.folder, settings.as_ref())?);
    Ok((keys, notes))
}

fn read(
    inputs: &VocabInputs<'_>,
    json: Option<&Json>,
    settings: Option<&Json>,
) -> Result<Vocab, Error> {
    if let Some(vocab) = listed::read_if_present(inputs.folder)? {
        return Ok(vocab);
    }
    let model = inputs.folder.join("tokenizer.model");
    if model.is_file() {
        match (sentencepiece::read(&model), json) {
            (Ok(vocab), _) => return Ok(vocab),
            // Some models use the name `tokenizer.model` for another format; their vocabulary is in
            // `tokenizer.json`.
            (Err(_), Some(_)) => {}
            (Err(error), None) => return Err(error),
        }
    }
    let ranked = match json {
        Some(_) => None,
        None => tiktoken::read_if_present(inputs.folder, settings, inputs.pre)?,
    };
    match json {
        Some(json) => json::read(json, inputs.pre, inputs.model),
        None if ranked.is_some() => Ok(ranked.unwrap_or_default()),
        None if inputs.folder.join("vocab.json").is_file() => {
            json::read_pair(inputs.folder, inputs.pre)
        }
        None if inputs.folder.join("vocab.txt").is_file() => wordpiece::read_list(inputs.folder),
        None => Err(Error::Tokenizer {
            file: inputs.folder.display().to_string(),
            what: "the folder contains no tokenizer, expected tokenizer.model, tokenizer.json, vocab.json with merges.txt, or vocab.txt".to_owned(),
        }),
    }
}

fn into_keys(vocab: &Vocab) -> Vec<(String, Value)> {
    let array = Value::Array;
    let mut keys = vec![
        ("model", Value::from(vocab.model)),
        ("pre", Value::from(vocab.pre.as_str())),
        ("tokens", array(Array::String(Strings::from_iter(&vocab.tokens)))),
        ("token_type", array(Array::I32(vocab.types.clone()))),
    ];
    if !vocab.scores.is_empty() {
        keys.push(("scores", array(Array::F32(vocab.scores.clone()))));
    }
    if !vocab.merges.is_empty() {
        keys.push(("merges", array(Array::String(Strings::from_iter(&vocab.merges)))));
    }
    if let Some(space) = vocab.space_prefix {
        keys.push(("add_space_prefix", space.into()));
    }
    if let Some(remove) = vocab.remove_spaces {
        keys.push(("remove_extra_whitespaces", remove.into()));
    }
    for (key, flag) in [
        ("normalizer.lowercase", vocab.lowercase),
        ("normalizer.strip_accents", vocab.strip_accents),
    ] {
        keys.extend(flag.map(|flag| (key, flag.into())));
    }
    if !vocab.charsmap.is_empty() {
        keys.push(("precompiled_charsmap", array(Array::U8(vocab.charsmap.clone()))));
    }
    keys.into_iter().map(|(key, value)| (format!("tokenizer.ggml.{key}"), value)).collect()
}
