//! Text to token ids and back, with the ids that llama.cpp gives.
//!
//! Here: [`Vocab`] (what a file states), [`Tokenizer`] (what is derived from it), [`Detokenizer`]
//! (text as it is generated). `llama` vocabularies merge by score (`llama.rs`), `gpt2` ones by rank
//! within the words of a named pre-tokenizer (`gpt2.rs`, `pre.rs`); both share `merge.rs`.
//! Not here: chat templates, `bert`, `t5` and other kinds of vocabulary.
//!
//! ```
//! use thermocline::tokenizer::{Tokenizer, Vocab};
//!
//! let tokens = ["<unk>", "<s>", "</s>", "▁", "a", "b", "ab", "▁ab"];
//! let tokenizer = Tokenizer::new(Vocab {
//!     model: "llama".into(),
//!     tokens: tokens.iter().map(|t| t.as_bytes().to_vec()).collect(),
//!     scores: vec![0.0; 8],
//!     ..Vocab::default()
//! })?;
//! assert_eq!(tokenizer.encode("ab", true, true)?, [1, 7]);
//! # Ok::<(), thermocline::tokenizer::Error>(())
//! ```

mod detokenize;
mod error;
mod gpt2;
mod llama;
mod merge;
mod pieces;
mod pre;
mod special;
mod vocab;

use std::collections::HashMap;

pub use detokenize::{Detokenizer, Start};
pub use error::{Error, Warning};
pub use special::SpecialIds;
pub use vocab::{TokenType, Vocab};

use gpt2::Gpt2;
use llama::Llama;
use merge::Merger;
use pieces::Pieces;
use pre::Splitter;
use special::{Fragment, Matcher};

/// Text of a token to its id.
type Ids = HashMap<Vec<u8>, u32>;

/// The longest text encoded at once, in bytes: with each space written as three bytes and one put
/// in front, positions still fit in 32 bits.
const LIMIT_BYTES: usize = 1 << 30;

/// Turns text into token ids and ids into pieces of text. Cheap to share between threads.
#[derive(Debug)]
pub struct Tokenizer {
    model: Model,
    ids: Ids,
    kinds: Vec<TokenType>,
    pieces: Pieces,
    matcher: Matcher,
    special: SpecialIds,
    eog: Vec<u32>,
    add_bos: bool,
    add_eos: bool,
    warnings: Vec<Warning>,
}

#[derive(Debug)]
enum Model {
    Llama(Llama),
    Gpt2(Gpt2),
}

impl Tokenizer {
    /// Checks the vocabulary and derives all tables; under a second for 150 000 tokens.
    ///
    /// # Errors
    /// Whatever is wrong with the vocabulary, by the name of its key.
    pub fn new(mut vocab: Vocab) -> Result<Tokenizer, Error> {
        let mut warnings = Vec::new();
        let is_llama = match vocab.model.as_str() {
            "llama" => true,
            "gpt2" => false,
            _ => return Err(Error::UnknownModel { model: vocab.model }),
        };
        if !is_llama && vocab.pre.is_none() {
            warnings.push(Warning::MissingPre);
        }
        let pre = pre::find(match &vocab.pre {
            Some(name) if !is_llama => name,
            Some(_) | None => "default",
        })?;
        check_lists(&mut vocab)?;
        let ids = index(&mut vocab.tokens)?;
        let mut special = special_ids(&vocab, is_llama, &mut warnings);
        let eog = special::detect(&mut special, &ids, &mut vocab.types);
        let add_bos = vocab.add_bos.unwrap_or(is_llama || pre.add_bos);
        let add_eos = vocab.add_eos.unwrap_or(false);
        for (flag, on, key, id) in [
            (vocab::ADD_BOS, add_bos, "tokenizer.ggml.bos_token_id", special.bos),
            (vocab::ADD_EOS, add_eos, "tokenizer.ggml.eos_token_id", special.eos),
        ] {
            if on && id.is_none() {
                return Err(Error::NoSpecial { flag, key });
            }
        }
        let model = if is_llama {
            let prefix = vocab.add_space_prefix.unwrap_or(true);
            Model::Llama(Llama::new(&vocab.scores, &ids, special.unk.unwrap_or(0), prefix))
        } else {
            let merges = std::mem::take(&mut vocab.merges);
            Model::Gpt2(Gpt2::new(Splitter::new(pre), pre.whole_words, &merges, &ids)?)
        };
        Ok(Tokenizer {
            pieces: Pieces::new(&vocab.tokens, &vocab.types, is_llama)?,
            matcher: Matcher::new(&vocab.tokens, &vocab.types, swallows_spaces(&vocab.name)),
            kinds: vocab.types,
            model,
            ids,
            special,
            eog,
            add_bos,
            add_eos,
            warnings,
        })
    }

    /// Ids of `text`. `add_special` puts the begin and end tokens around it that the vocabulary asks
    /// for; `parse_special` makes control tokens of their text (`<s>`), else it is text like any.
    ///
    /// # Errors
    /// [`Error::TooLong`] over 1 GiB.
    pub fn encode(
        &self,
        text: &str,
        add_special: bool,
        parse_special: bool,
    ) -> Result<Vec<u32>, Error> {
        if text.len() > LIMIT_BYTES {
            return Err(Error::TooLong { bytes: text.len(), limit: LIMIT_BYTES });
        }
        let mut out = Vec::with_capacity(text.len() / 4 + 2);
        out.extend(self.special.bos.filter(|_| add_special && self.add_bos));
        let fragments = self.matcher.partition(text, parse_special);
        match &self.model {
            Model::Llama(model) => {
                let mut merger = Merger::new();
                let mut after_special = true;
                for fragment in fragments {
                    after_special = match fragment {
                        Fragment::Text(range) => {
                            let text = &text[range];
                            model.encode(text, after_special, &self.ids, &mut merger, &mut out);
                            false
                        }
                        Fragment::Token(id) => {
                            out.push(id);
                            true
                        }
                    };
                }
            }
            Model::Gpt2(model) => {
                let mut merger = Merger::new();
                for fragment in fragments {
                    match fragment {
                        Fragment::Text(range) => {
                            model.encode(&text[range], &self.ids, &mut merger, &mut out);
                        }
                        Fragment::Token(id) => out.push(id),
                    }
                }
            }
        }
        out.extend(self.special.eos.filter(|_| add_special && self.add_eos));
        Ok(out)
    }

    /// The bytes that a token writes; they need not be whole characters. Control and unknown tokens
    /// write their text if `special`, else nothing.
    ///
    /// # Errors
    /// [`Error::NoSuchId`].
    pub fn piece(&self, id: u32, special: bool) -> Result<&[u8], Error> {
        let hidden = match self.kind(id)? {
            TokenType::Control | TokenType::Unknown => !special,
            TokenType::Normal
            | TokenType::UserDefined
            | TokenType::Unused
            | TokenType::Byte
            | TokenType::Undefined => false,
        };
        Ok(if hidden { &[] } else { self.pieces.get(id) })
    }

    /// What a token is, after llama.cpp's corrections of well-known control tokens.
    ///
    /// # Errors
    /// [`Error::NoSuchId`].
    pub fn kind(&self, id: u32) -> Result<TokenType, Error> {
        let kind = self.kinds.get(id as usize).copied();
        kind.ok_or(Error::NoSuchId { id, n_vocab: self.kinds.len() })
    }

    /// The token whose text in the file is exactly `text`: `<|im_end|>`, `▁the`, `Ġthe`.
    pub fn id_of(&self, text: &str) -> Option<u32> {
        self.ids.get(text.as_bytes()).copied()
    }

    /// Number of tokens.
    pub fn n_vocab(&self) -> usize {
        self.kinds.len()
    }

    /// Whether the model ends its answer with this token.
    pub fn is_eog(&self, id: u32) -> bool {
        self.eog.binary_search(&id).is_ok()
    }

    /// All tokens that end an answer, ascending.
    pub fn eog(&self) -> &[u32] {
        &self.eog
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        self.special.bos
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<u32> {
        self.special.eos
    }

    /// All tokens with a role.
    pub fn special(&self) -> &SpecialIds {
        &self.special
    }

    /// Whether `encode` with `add_special` puts the begin token in front.
    pub fn adds_bos(&self) -> bool {
        self.add_bos
    }

    /// Whether `encode` with `add_special` puts the end token after.
    pub fn adds_eos(&self) -> bool {
        self.add_eos
    }

    /// Whether `encode` puts a space in front of a text.
    pub fn has_space_prefix(&self) -> bool {
        match &self.model {
            Model::Llama(model) => model.space_prefix,
            Model::Gpt2(_) => false,
        }
    }

    /// What is odd about the vocabulary, for the caller to show.
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }
}

/// Checks the lengths of the lists and fills in those that the file leaves out.
fn check_lists(vocab: &mut Vocab) -> Result<(), Error> {
    let n = vocab.tokens.len();
    if n == 0 || i32::try_from(n).is_err() {
        return Err(Error::TokenCount { found: n });
    }
    for (key, found) in [(vocab::SCORES, vocab.scores.len()), (vocab::TYPES, vocab.types.len())] {
        if found != 0 && found != n {
            return Err(Error::Length { key, found, expected: n });
        }
    }
    if vocab.model == "gpt2" && vocab.merges.is_empty() {
        return Err(Error::Missing { key: vocab::MERGES });
    }
    vocab.scores.resize(n, 0.0);
    vocab.types.resize(n, TokenType::Normal);
    match (0..).zip(&vocab.scores).find(|(_, score)| score.is_nan()) {
        Some((id, &score)) => Err(Error::BadScore { id, score }),
        None => Ok(()),
    }
}

/// Names the holes in the table as llama.cpp does, and maps texts to ids.
fn index(tokens: &mut [Vec<u8>]) -> Result<Ids, Error> {
    let mut ids = Ids::with_capacity(tokens.len());
    for (id, text) in (0u32..).zip(tokens) {
        if text.is_empty() {
            *text = format!("[EMPTY_{id}]").into_bytes();
        }
        if let Some(first) = ids.insert(text.clone(), id) {
            let text = String::from_utf8_lossy(text).into_owned();
            return Err(Error::Duplicate { text, first, second: id });
        }
    }
    Ok(ids)
}

/// The ids that the file gives, or else the kind's defaults; those out of range are left out.
fn special_ids(vocab: &Vocab, is_llama: bool, warnings: &mut Vec<Warning>) -> SpecialIds {
    let n_vocab = vocab.tokens.len();
    let exists = |id: &u32| (*id as usize) < n_vocab;
    let glm = matches!(vocab.pre.as_deref(), Some("glm4" | "chatglm-bpe"));
    // 11 is Falcon's; llama.cpp gives it to every gpt2 vocabulary that names none.
    let (bos, eos, unk) = if is_llama {
        (Some(1), Some(2), Some(0))
    } else {
        (Some(11).filter(|_| !glm), Some(11), None)
    };
    let mut ids = vocab.ids;
    let mut default = SpecialIds { bos, eos, unk, ..SpecialIds::default() };
    for ((key, id), (_, default)) in
        vocab::keyed(&mut ids).into_iter().zip(vocab::keyed(&mut default))
    {
        if let Some(id) = id.filter(|id| !exists(id)) {
            warnings.push(Warning::BadSpecialId { key, id, n_vocab });
        }
        *id = id.filter(exists).or(default.filter(exists));
    }
    ids
}

/// Files do not say which special tokens swallow the spaces after them; llama.cpp goes by the name
/// of the one family that matters.
fn swallows_spaces(model_name: &str) -> impl Fn(&str) -> bool {
    let name = model_name.to_ascii_lowercase();
    let phi3 = name.contains("phi-3") || name.contains("phi3");
    move |token| phi3 && !matches!(token, "<unk>" | "<s>" | "<|endoftext|>")
}
