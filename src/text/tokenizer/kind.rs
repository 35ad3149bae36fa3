//! Kinds of vocabulary, by the value of `tokenizer.ggml.model`, and llama.cpp's implicit defaults
//! for each.

use super::pre::{self, Pre};
use super::{Error, SpecialIds};

/// Algorithm of a vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenizerKind {
    /// Merges by score.
    Llama,
    /// Merges by rank within words.
    Gpt2,
    /// As `Gpt2`, with Gemma 4's pre-tokenizer.
    Gemma4,
    /// Finds the most probable sequence of pieces.
    Unigram,
    /// Finds the segmentation with the greatest sum of scores, from the end (PLaMo 2).
    Plamo2,
    /// Takes the longest token (RWKV World).
    World,
    /// Takes the longest tokens of each word (BERT).
    WordPiece,
}

const NAMES: [(&str, TokenizerKind); 7] = [
    ("llama", TokenizerKind::Llama),
    ("gpt2", TokenizerKind::Gpt2),
    ("gemma4", TokenizerKind::Gemma4),
    ("t5", TokenizerKind::Unigram),
    ("rwkv", TokenizerKind::World),
    ("plamo2", TokenizerKind::Plamo2),
    ("bert", TokenizerKind::WordPiece),
];

impl TokenizerKind {
    /// The kind for a value of `tokenizer.ggml.model`.
    ///
    /// # Errors
    /// `UnknownModel`, with the supported names.
    pub(super) fn from_name(model: &str) -> Result<TokenizerKind, Error> {
        let found = NAMES.iter().find(|(name, _)| *name == model);
        found.map(|&(_, kind)| kind).ok_or_else(|| Error::UnknownModel {
            model: model.into(),
            known: NAMES.map(|(name, _)| name).join(", "),
        })
    }

    /// The pre-tokenizer, for kinds that split text into words.
    ///
    /// # Errors
    /// `UnknownPre`.
    pub(super) fn pre(self, named: Option<&str>) -> Result<Option<&'static Pre>, Error> {
        match self {
            TokenizerKind::Llama
            | TokenizerKind::Unigram
            | TokenizerKind::Plamo2
            | TokenizerKind::World
            | TokenizerKind::WordPiece => Ok(None),
            TokenizerKind::Gpt2 => pre::find(named.unwrap_or("default")).map(Some),
            TokenizerKind::Gemma4 => pre::find("gemma4").map(Some),
        }
    }

    /// Ids of special tokens for files that do not define them.
    pub(super) fn default_ids(self, pre: Option<&str>) -> SpecialIds {
        let none = SpecialIds::default();
        match self {
            TokenizerKind::Llama => SpecialIds { bos: Some(1), eos: Some(2), unk: Some(0), ..none },
            // 11 is Falcon's id; llama.cpp uses it for every gpt2 vocabulary without these keys.
            TokenizerKind::Gpt2 => {
                let glm = matches!(pre, Some("glm4" | "glm5" | "chatglm-bpe"));
                SpecialIds { bos: Some(11).filter(|_| !glm), eos: Some(11), ..none }
            }
            TokenizerKind::Gemma4 | TokenizerKind::World => none,
            TokenizerKind::Plamo2 => {
                SpecialIds { bos: Some(1), eos: Some(2), unk: Some(0), pad: Some(3), ..none }
            }
            TokenizerKind::WordPiece => {
                SpecialIds { bos: Some(101), unk: Some(100), sep: Some(102), pad: Some(0), ..none }
            }
            TokenizerKind::Unigram => {
                SpecialIds { eos: Some(1), unk: Some(2), pad: Some(0), ..none }
            }
        }
    }
}
