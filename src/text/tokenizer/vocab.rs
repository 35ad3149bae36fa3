//! A vocabulary as stored in a GGUF file.

use super::{Error, SpecialIds};
use gguf::{Array, Metadata};

pub(super) const TOKENS: &str = "tokenizer.ggml.tokens";
pub(super) const SCORES: &str = "tokenizer.ggml.scores";
pub(super) const TYPES: &str = "tokenizer.ggml.token_type";
pub(super) const UNKNOWN: &str = "tokenizer.ggml.unknown_token_id";
const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";
pub(super) const MERGES: &str = "tokenizer.ggml.merges";
pub(super) const MODEL: &str = "tokenizer.ggml.model";
pub(super) const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
pub(super) const ADD_EOS: &str = "tokenizer.ggml.add_eos_token";

/// Type of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenType {
    /// Ordinary text.
    Normal,
    /// Replaces text without a token.
    Unknown,
    /// Controls the model; not part of the text.
    Control,
    /// Text that is matched before all other splitting.
    UserDefined,
    /// An unused id.
    Unused,
    /// One byte, spelled `<0x00>` to `<0xFF>`.
    Byte,
    /// A number without a defined meaning.
    Undefined,
}

impl TokenType {
    /// The type that has the number `id` in a file.
    pub fn from_id(id: i32) -> TokenType {
        match id {
            1 => TokenType::Normal,
            2 => TokenType::Unknown,
            3 => TokenType::Control,
            4 => TokenType::UserDefined,
            5 => TokenType::Unused,
            6 => TokenType::Byte,
            _ => TokenType::Undefined,
        }
    }
}

/// The vocabulary of a file. `None` and empty lists mean that the key is missing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Vocab {
    /// `llama`, `gpt2`, `gemma4`, `t5`, `rwkv`, `plamo2` or `bert`.
    pub model: String,
    /// Name of the pre-tokenizer of a `gpt2` vocabulary.
    pub pre: Option<String>,
    /// Text of each token. An empty text marks an unused id.
    pub tokens: Vec<Vec<u8>>,
    /// One score per token, or empty. Higher scores are merged first.
    pub scores: Vec<f32>,
    /// One type per token, or empty.
    pub types: Vec<TokenType>,
    /// Merges `left right`, by rank.
    pub merges: Vec<Vec<u8>>,
    /// Special tokens.
    pub ids: SpecialIds,
    /// Whether a BOS token is prepended.
    pub add_bos: Option<bool>,
    /// Whether an EOS token is appended.
    pub add_eos: Option<bool>,
    /// Whether a separator is written between two texts of a ranking model.
    pub add_sep: Option<bool>,
    /// Whether letters are converted to lower case (`bert`).
    pub lowercase: Option<bool>,
    /// Whether accents are removed (`bert`).
    pub strip_accents: Option<bool>,
    /// Whether a space is prepended (`llama` and `t5`).
    pub add_space_prefix: Option<bool>,
    /// Whether consecutive spaces are merged, and spaces at both ends removed (`t5`).
    pub remove_extra_whitespaces: Option<bool>,
    /// SentencePiece's table of replacements, or empty (`t5`).
    pub charsmap: Vec<u8>,
    /// The model's name. Phi-3's special tokens include the spaces after them.
    pub name: String,
}

impl Vocab {
    /// Reads the `tokenizer.ggml.*` keys.
    ///
    /// # Errors
    /// [`Error::Missing`] without a model or tokens, [`Error::Metadata`] for a value of another
    /// type.
    pub fn from_metadata(metadata: &Metadata) -> Result<Vocab, Error> {
        let text = |key| metadata.str(key).map(|t| t.unwrap_or_default().to_owned());
        let list = |key| -> Result<Option<Vec<Vec<u8>>>, Error> {
            Ok(metadata.str_array(key)?.map(|list| list.iter().map(<[u8]>::to_vec).collect()))
        };
        let pre = text("tokenizer.ggml.pre")?;
        let types = metadata.i32_array(TYPES)?.unwrap_or_default();
        Ok(Vocab {
            model: metadata.str(MODEL)?.ok_or(Error::Missing { key: MODEL })?.to_owned(),
            pre: Some(pre).filter(|name| !name.is_empty()),
            tokens: list(TOKENS)?.ok_or(Error::Missing { key: TOKENS })?,
            scores: scores(metadata)?,
            types: types.iter().map(|&id| TokenType::from_id(id)).collect(),
            merges: list(MERGES)?.unwrap_or_default(),
            ids: special_ids(metadata)?,
            add_bos: metadata.bool(ADD_BOS)?,
            add_eos: metadata.bool(ADD_EOS)?,
            add_sep: metadata.bool("tokenizer.ggml.add_sep_token")?,
            lowercase: metadata.bool("tokenizer.ggml.normalizer.lowercase")?,
            strip_accents: metadata.bool("tokenizer.ggml.normalizer.strip_accents")?,
            add_space_prefix: metadata.bool("tokenizer.ggml.add_space_prefix")?,
            remove_extra_whitespaces: metadata.bool("tokenizer.ggml.remove_extra_whitespaces")?,
            charsmap: charsmap(metadata)?,
            name: text("general.name")?,
        })
    }
}

/// Reads the scores, which are floats; some converters wrote integers.
fn scores(metadata: &Metadata) -> Result<Vec<f32>, Error> {
    if let Some(Array::I32(whole)) = metadata.get(SCORES).and_then(|value| value.as_array()) {
        return Ok(whole.iter().map(|&score| score as f32).collect());
    }
    Ok(metadata.f32_array(SCORES)?.unwrap_or_default().into_owned())
}

/// Reads the table's bytes, which converters wrote as signed or unsigned numbers.
fn charsmap(metadata: &Metadata) -> Result<Vec<u8>, Error> {
    if let Some(Array::U8(bytes)) = metadata.get(CHARSMAP).and_then(|value| value.as_array()) {
        return Ok(bytes.clone());
    }
    let numbers = metadata.i32_array(CHARSMAP)?.unwrap_or_default();
    // The low byte is the value, whatever the sign.
    Ok(numbers.iter().map(|number| number.to_le_bytes()[0]).collect())
}

/// Key and field of every special id.
pub(super) fn key_fields(ids: &mut SpecialIds) -> [(&'static str, &mut Option<u32>); 13] {
    [
        ("tokenizer.ggml.bos_token_id", &mut ids.bos),
        ("tokenizer.ggml.eos_token_id", &mut ids.eos),
        ("tokenizer.ggml.eot_token_id", &mut ids.eot),
        ("tokenizer.ggml.eom_token_id", &mut ids.eom),
        (UNKNOWN, &mut ids.unk),
        // The GGUF format spells it "seperator".
        ("tokenizer.ggml.seperator_token_id", &mut ids.sep),
        ("tokenizer.ggml.padding_token_id", &mut ids.pad),
        ("tokenizer.ggml.fim_pre_token_id", &mut ids.fim_pre),
        ("tokenizer.ggml.fim_suf_token_id", &mut ids.fim_suf),
        ("tokenizer.ggml.fim_mid_token_id", &mut ids.fim_mid),
        ("tokenizer.ggml.fim_pad_token_id", &mut ids.fim_pad),
        ("tokenizer.ggml.fim_rep_token_id", &mut ids.fim_rep),
        ("tokenizer.ggml.fim_sep_token_id", &mut ids.fim_sep),
    ]
}

fn special_ids(metadata: &Metadata) -> Result<SpecialIds, Error> {
    let mut ids = SpecialIds::default();
    for (key, slot) in key_fields(&mut ids) {
        // Some converters write -1 for "none". Keep it as an id that is in no vocabulary.
        let minus_one = metadata.get(key).and_then(|value| value.as_integer()) == Some(-1);
        *slot = if minus_one { Some(u32::MAX) } else { metadata.u32(key)? };
    }
    // Older names of these keys.
    for (key, slot) in [
        ("tokenizer.ggml.prefix_token_id", &mut ids.fim_pre),
        ("tokenizer.ggml.suffix_token_id", &mut ids.fim_suf),
        ("tokenizer.ggml.middle_token_id", &mut ids.fim_mid),
    ] {
        *slot = slot.or_else(|| metadata.u32(key).ok().flatten());
    }
    Ok(ids)
}
