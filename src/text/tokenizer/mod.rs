//! Converts text to token ids and back, with the same ids as llama.cpp.
//!
//! [`Vocab`] is the vocabulary of a file, [`Tokenizer`] has the tables derived from it, and
//! [`Detokenizer`] converts generated tokens to text. `llama` vocabularies merge by score
//! (`llama.rs`). `gpt2` and `gemma4` vocabularies merge by rank within the words of a named
//! pre-tokenizer (`gpt2.rs`, `pre/`). Both share `merge.rs`. `t5` vocabularies split a normalised
//! text into its most probable pieces (`unigram.rs`). `rwkv` vocabularies take the longest token
//! (`world.rs`). `plamo2` vocabularies maximise the sum of scores (`plamo2.rs`). `bert` vocabularies
//! write words with the longest tokens (`wordpiece.rs`).
//!
//! ```
//! use thermocline_text::tokenizer::{Tokenizer, Vocab};
//!
//! let tokens = ["<unk>", "<s>", "</s>", "▁", "a", "b", "ab", "▁ab"];
//! let tokenizer = Tokenizer::new(Vocab {
//!     model: "llama".into(),
//!     tokens: tokens.iter().map(|t| t.as_bytes().to_vec()).collect(),
//!     scores: vec![0.0; 8],
//!     ..Vocab::default()
//! })?;
//! assert_eq!(tokenizer.encode("ab", true, true)?, [1, 7]);
//! # Ok::<(), thermocline_text::tokenizer::Error>(())
//! ```

mod charsmap;
mod detokenize;
mod error;
mod gpt2;
mod kind;
mod llama;
mod merge;
mod pieces;
mod plamo2;
mod pre;
mod special;
mod trie;
mod unigram;
mod vocab;
mod wordpiece;
mod world;

use std::collections::HashMap;

pub use detokenize::{Detokenizer, Start};
pub use error::{Error, Warning};
pub use special::SpecialIds;
pub use vocab::{TokenType, Vocab};

use gpt2::Gpt2;
use kind::TokenizerKind;
use llama::Llama;
use merge::Merger;
use pieces::{Pieces, Spelling};
use plamo2::Plamo2;
use pre::{AddBos, Pre};
use special::{Fragment, Matcher};
use unigram::Unigram;
use wordpiece::WordPiece;
use world::World;

/// Maps the text of a token to its id.
type Ids = HashMap<Vec<u8>, u32>;

/// Maximum length in bytes of a text that is encoded at once. Even if each space becomes three
/// bytes, positions fit in 32 bits.
const LIMIT_BYTES: usize = 1 << 30;

/// Converts text to token ids and ids to pieces of text. Cheap to share between threads.
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
    add_sep: bool,
    warnings: Vec<Warning>,
}

#[derive(Debug)]
enum Model {
    Llama(Llama),
    Gpt2(Gpt2),
    Unigram(Unigram),
    World(World),
    Plamo2(Plamo2),
    WordPiece(WordPiece),
}

impl Tokenizer {
    /// Checks the vocabulary and derives all tables; under a second for 150 000 tokens.
    ///
    /// # Errors
    /// Any error in the vocabulary, with the name of its key.
    pub fn new(mut vocab: Vocab) -> Result<Tokenizer, Error> {
        let mut warnings = Vec::new();
        let kind = TokenizerKind::from_name(&vocab.model)?;
        let pre = kind.pre(vocab.pre.as_deref())?;
        if kind == TokenizerKind::Gpt2 && vocab.pre.is_none() {
            warnings.push(Warning::MissingPre);
        }
        check_lists(&mut vocab, kind)?;
        let ids = index_tokens(&mut vocab.tokens)?;
        let mut special = special_ids(&vocab, kind, &mut warnings);
        let model = match pre {
            Some(pre) => Model::Gpt2(Gpt2::new(pre, &std::mem::take(&mut vocab.merges), &ids)?),
            None => whole_text_model(&vocab, kind, &special, &ids)?,
        };
        // Detect special tokens after building the model: some files mark control tokens as text.
        let eog = special::detect(&mut special, &ids, &mut vocab.types);
        let add_bos = adds_bos(&vocab, kind, pre, &mut warnings);
        let add_eos = vocab.add_eos.unwrap_or(kind == TokenizerKind::Unigram);
        for (flag, on, key, id) in [
            (vocab::ADD_BOS, add_bos, "tokenizer.ggml.bos_token_id", special.bos),
            (vocab::ADD_EOS, add_eos, "tokenizer.ggml.eos_token_id", special.eos),
        ] {
            if on && id.is_none() {
                return Err(Error::NoSpecial { flag, key });
            }
        }
        let spelling = match kind {
            TokenizerKind::World => {
                vocab.tokens.iter_mut().for_each(|text| *text = world::unescape(text));
                None
            }
            // Bytes are decoded by their type.
            TokenizerKind::Plamo2 => None,
            TokenizerKind::Llama
            | TokenizerKind::Unigram
            | TokenizerKind::WordPiece
            | TokenizerKind::Gpt2
            | TokenizerKind::Gemma4 => Some(pre.map_or(Spelling::Marks, |pre| pre.spelling)),
        };
        Ok(Tokenizer {
            pieces: Pieces::new(&vocab.tokens, &vocab.types, spelling)?,
            matcher: Matcher::new(&vocab.tokens, &vocab.types, includes_spaces_after(&vocab.name)),
            kinds: vocab.types,
            model,
            ids,
            special,
            eog,
            add_bos,
            add_eos,
            add_sep: vocab.add_sep.unwrap_or(kind == TokenizerKind::WordPiece),
            warnings,
        })
    }

    /// The token ids of `text`. `add_special` adds the BOS and EOS tokens that the vocabulary
    /// requests. With `parse_special`, the text of a control token (`<s>`) becomes this token;
    /// otherwise it is ordinary text.
    ///
    /// # Errors
    /// [`Error::TooLong`] for a text of more than 1 GiB; [`Error::BadCharsmap`].
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
        let (mut by_score, mut by_rank) = (Merger::new(), Merger::new());
        let mut after_special = true;
        for fragment in self.matcher.partition(text, parse_special) {
            let text = match fragment {
                Fragment::Text(range) => &text[range],
                Fragment::Token(id) => {
                    out.push(id);
                    after_special = true;
                    continue;
                }
            };
            match &self.model {
                Model::Llama(model) => {
                    model.encode(text, after_special, &self.ids, &mut by_score, &mut out);
                }
                Model::Gpt2(model) => model.encode(text, &self.ids, &mut by_rank, &mut out),
                Model::Unigram(model) => model.encode(text, &mut out)?,
                Model::World(model) => model.encode(text, &mut out),
                Model::Plamo2(model) => model.encode(text, &mut out),
                Model::WordPiece(model) => model.encode(text, &mut out),
            }
            after_special = false;
        }
        out.extend(self.end().filter(|_| add_special));
        Ok(out)
    }

    /// The token that `encode` appends with `add_special`; `None` if it appends none.
    fn end(&self) -> Option<u32> {
        match &self.model {
            Model::WordPiece(_) => self.special.sep,
            Model::Llama(_)
            | Model::Gpt2(_)
            | Model::Unigram(_)
            | Model::World(_)
            | Model::Plamo2(_) => self.special.eos.filter(|_| self.add_eos),
        }
    }

    /// The bytes of a token, which may be incomplete characters. Control and unknown tokens have
    /// bytes only if `special` is set.
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

    /// The type of a token, after llama.cpp's corrections for well-known control tokens.
    ///
    /// # Errors
    /// [`Error::NoSuchId`].
    pub fn kind(&self, id: u32) -> Result<TokenType, Error> {
        let kind = self.kinds.get(id as usize).copied();
        kind.ok_or(Error::NoSuchId { id, n_vocab: self.kinds.len() })
    }

    /// The token whose text in the file is exactly `text`, such as `<|im_end|>`, `▁the` or `Ġthe`;
    /// `None` if no token has it.
    pub fn id_of(&self, text: &str) -> Option<u32> {
        self.ids.get(text.as_bytes()).copied()
    }

    /// Number of tokens.
    pub fn n_vocab(&self) -> usize {
        self.kinds.len()
    }

    /// Whether this token ends the generation (EOG).
    pub fn is_eog(&self, id: u32) -> bool {
        self.eog.binary_search(&id).is_ok()
    }

    /// All tokens that end the generation, in ascending order.
    pub fn eog(&self) -> &[u32] {
        &self.eog
    }

    /// The BOS token; `None` if the vocabulary defines none.
    pub fn bos(&self) -> Option<u32> {
        self.special.bos
    }

    /// The EOS token; `None` if the vocabulary defines none.
    pub fn eos(&self) -> Option<u32> {
        self.special.eos
    }

    /// All special tokens.
    pub fn special(&self) -> &SpecialIds {
        &self.special
    }

    /// Whether `encode` with `add_special` prepends the BOS token.
    pub fn adds_bos(&self) -> bool {
        self.add_bos
    }

    /// Whether `encode` with `add_special` appends the EOS token.
    pub fn adds_eos(&self) -> bool {
        self.add_eos
    }

    /// Whether a separator is written between two texts of a ranking model.
    pub fn adds_sep(&self) -> bool {
        self.add_sep
    }

    /// Whether `encode` prepends a space to a text.
    pub fn has_space_prefix(&self) -> bool {
        match &self.model {
            Model::Llama(model) => model.space_prefix,
            Model::Unigram(model) => model.space_prefix,
            Model::Gpt2(_) | Model::World(_) | Model::Plamo2(_) | Model::WordPiece(_) => false,
        }
    }

    /// Problems of the vocabulary that the tokenizer tolerates, for the caller to print.
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }
}

/// The model of a vocabulary that does not split text into words.
fn whole_text_model(
    vocab: &Vocab,
    kind: TokenizerKind,
    special: &SpecialIds,
    ids: &Ids,
) -> Result<Model, Error> {
    if kind == TokenizerKind::Unigram {
        let unknown = special.unk.ok_or(Error::Missing { key: vocab::UNKNOWN })?;
        return Unigram::new(vocab, unknown).map(Model::Unigram);
    }
    if kind == TokenizerKind::WordPiece {
        let unknown = special.unk.ok_or(Error::Missing { key: vocab::UNKNOWN })?;
        return WordPiece::new(vocab, unknown).map(Model::WordPiece);
    }
    if kind == TokenizerKind::Plamo2 {
        return Plamo2::new(vocab).map(Model::Plamo2);
    }
    if kind == TokenizerKind::World {
        return World::new(&vocab.tokens, special.unk).map(Model::World);
    }
    let prefix = vocab.add_space_prefix.unwrap_or(true);
    Ok(Model::Llama(Llama::new(&vocab.scores, ids, special.unk.unwrap_or(0), prefix)))
}

fn adds_bos(
    vocab: &Vocab,
    kind: TokenizerKind,
    pre: Option<&Pre>,
    warnings: &mut Vec<Warning>,
) -> bool {
    let add_bos = vocab.add_bos;
    match pre.map(|pre| pre.bos) {
        // llama.cpp does so even if the file says otherwise.
        None if kind == TokenizerKind::WordPiece => true,
        None => add_bos.unwrap_or(kind == TokenizerKind::Llama),
        Some(AddBos::IfSet) => add_bos.unwrap_or(false),
        Some(AddBos::Default) => add_bos.unwrap_or(true),
        Some(AddBos::Always) => {
            if add_bos == Some(false) {
                let pre = vocab.pre.as_ref().unwrap_or(&vocab.model).clone();
                warnings.push(Warning::BosAdded { pre });
            }
            true
        }
    }
}

/// Checks the lengths of the lists, and fills in missing lists.
fn check_lists(vocab: &mut Vocab, kind: TokenizerKind) -> Result<(), Error> {
    let n = vocab.tokens.len();
    if n == 0 || i32::try_from(n).is_err() {
        return Err(Error::TokenCount { found: n });
    }
    for (key, found) in [(vocab::SCORES, vocab.scores.len()), (vocab::TYPES, vocab.types.len())] {
        if found != 0 && found != n {
            return Err(Error::Length { key, found, expected: n });
        }
    }
    let merges = match kind {
        TokenizerKind::Gpt2 => vocab.pre.as_deref() != Some("kimi-k2"),
        TokenizerKind::Gemma4 => true,
        TokenizerKind::Llama
        | TokenizerKind::Unigram
        | TokenizerKind::Plamo2
        | TokenizerKind::WordPiece
        | TokenizerKind::World => false,
    };
    if merges && vocab.merges.is_empty() {
        return Err(Error::Missing { key: vocab::MERGES });
    }
    vocab.scores.resize(n, 0.0);
    vocab.types.resize(n, TokenType::Normal);
    match (0..).zip(&vocab.scores).find(|(_, score)| score.is_nan()) {
        Some((id, &score)) => Err(Error::BadScore { id, score }),
        None => Ok(()),
    }
}

/// Maps the text of each token to its id. Unused ids get llama.cpp's names, such as `[EMPTY_7]`.
fn index_tokens(tokens: &mut [Vec<u8>]) -> Result<Ids, Error> {
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

/// The special ids in the file, or else the defaults of `kind`. Drops ids out of range and warns.
fn special_ids(vocab: &Vocab, kind: TokenizerKind, warnings: &mut Vec<Warning>) -> SpecialIds {
    let n_vocab = vocab.tokens.len();
    let exists = |id: &u32| (*id as usize) < n_vocab;
    let mut ids = vocab.ids;
    let mut default = kind.default_ids(vocab.pre.as_deref());
    for ((key, id), (_, default)) in
        vocab::key_fields(&mut ids).into_iter().zip(vocab::key_fields(&mut default))
    {
        if let Some(id) = id.filter(|id| !exists(id)) {
            warnings.push(Warning::BadSpecialId { key, id, n_vocab });
        }
        *id = id.filter(exists).or(default.filter(exists));
    }
    ids
}

/// Whether a special token includes the spaces after it. Files do not state this, so llama.cpp
/// decides by the model's name: only Phi-3's tokens do.
fn includes_spaces_after(model_name: &str) -> impl Fn(&str) -> bool {
    let name = model_name.to_ascii_lowercase();
    let phi3 = name.contains("phi-3") || name.contains("phi3");
    move |token| phi3 && !matches!(token, "<unk>" | "<s>" | "<|endoftext|>")
}
