//! The batch of a step, on the host and on the device: its tokens, their positions and their
//! KV-cache rows.

use std::ops::Range;

use crate::op::Window;
use crate::{Error, Result};

/// Tokens per block of the paged key-value cache.
pub const KV_BLOCK: usize = 32;

/// Sequence number of a padding token. A step with fewer tokens than its program is padded.
pub const NO_SEQUENCE: u32 = u32::MAX;

const HEADER: usize = 4;

/// Capacity of a [`Batch`], which determines the layout of its word array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BatchShape {
    /// Maximum number of tokens of one step.
    pub max_tokens: usize,
    /// Maximum number of sequences at once.
    pub max_seqs: usize,
    /// Maximum number of KV blocks of one sequence.
    pub max_blocks: usize,
}

impl BatchShape {
    /// Length of the word array, which consists of
    /// `[n_tokens, n_seqs, n_out, 0 | id | seq | pos | kv_row | out (max_tokens each) | len (max_seqs) | block table (max_seqs x max_blocks)]`.
    #[must_use]
    pub fn n_words(&self) -> usize {
        HEADER + 5 * self.max_tokens + self.max_seqs * (1 + self.max_blocks)
    }
}

/// A batch on a device: one row of `U32` words in the order of [`BatchShape::n_words`].
#[derive(Clone, Debug)]
pub struct Batch<T> {
    /// `[1, shape.n_words()]`, U32.
    pub words: T,
    /// Capacity.
    pub shape: BatchShape,
}

impl<T> Batch<T> {
    /// The same batch with operands of another type.
    pub fn map<U>(&self, f: &mut dyn FnMut(&T) -> U) -> Batch<U> {
        Batch { words: f(&self.words), shape: self.shape }
    }
}

/// One token of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchToken {
    /// Vocabulary id.
    pub id: u32,
    /// Index of its sequence in [`BatchFacts::seqs`].
    pub seq: u32,
    /// Position in the sequence, from 0.
    pub pos: u32,
    /// Whether the output head computes logits for this token.
    pub output: bool,
}

/// One sequence of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BatchSeq {
    /// Physical KV blocks, in order of position.
    pub blocks: Vec<u32>,
    /// Number of filled positions after this step.
    pub len: u32,
}

/// A step as described by the host; [`BatchFacts::encode`] converts it to the device's words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BatchFacts {
    /// Tokens. The tokens of each sequence are in ascending order of position.
    pub tokens: Vec<BatchToken>,
    /// Sequences.
    pub seqs: Vec<BatchSeq>,
}

impl BatchFacts {
    /// Number of tokens with [`BatchToken::output`].
    #[must_use]
    pub fn n_out(&self) -> usize {
        self.tokens.iter().filter(|t| t.output).count()
    }

    /// [`BatchFacts::encode_into`] with a new vector.
    ///
    /// # Errors
    /// [`Error::Shape`] with the field that does not fit.
    pub fn encode(
        &self,
        shape: &BatchShape,
        n_kv_blocks: usize,
        n_vocab: usize,
    ) -> Result<Vec<u32>> {
        let mut words = Vec::new();
        self.encode_into(shape, n_kv_blocks, n_vocab, &mut words)?;
        Ok(words)
    }

    /// Checks the step against `shape`, a cache of `n_kv_blocks` blocks and a vocabulary of
    /// `n_vocab` tokens, and overwrites `words` with the encoded step.
    ///
    /// # Errors
    /// [`Error::Shape`] with the field that does not fit.
    pub fn encode_into(
        &self,
        shape: &BatchShape,
        n_kv_blocks: usize,
        n_vocab: usize,
        words: &mut Vec<u32>,
    ) -> Result<()> {
        let bad = |what: &'static str, expected: String, got: String| {
            Err(Error::shape("Batch", what, expected, got))
        };
        let limit = |n: usize| format!("at most {n}");
        if self.tokens.is_empty() || self.tokens.len() > shape.max_tokens {
            return bad("tokens", limit(shape.max_tokens), self.tokens.len().to_string());
        }
        if self.seqs.len() > shape.max_seqs {
            return bad("seqs", limit(shape.max_seqs), self.seqs.len().to_string());
        }
        words.clear();
        words.resize(shape.n_words(), 0);
        let at = |section: usize| HEADER + section * shape.max_tokens;
        let lens = at(5);
        words[0] = self.tokens.len() as u32;
        words[1] = self.seqs.len() as u32;
        words[at(1)..at(2)].fill(NO_SEQUENCE);
        for (s, seq) in self.seqs.iter().enumerate() {
            if seq.blocks.len() > shape.max_blocks {
                return bad("blocks", limit(shape.max_blocks), seq.blocks.len().to_string());
            }
            if let Some(block) = seq.blocks.iter().find(|&&b| b as usize >= n_kv_blocks) {
                return bad("block", format!("below {n_kv_blocks}"), block.to_string());
            }
            if seq.len as usize > seq.blocks.len() * KV_BLOCK {
                return bad("len", limit(seq.blocks.len() * KV_BLOCK), seq.len.to_string());
            }
            words[lens + s] = seq.len;
            let table = lens + shape.max_seqs + s * shape.max_blocks;
            words[table..table + seq.blocks.len()].copy_from_slice(&seq.blocks);
        }
        let mut n_out = 0;
        for (t, token) in self.tokens.iter().enumerate() {
            let Some(seq) = self.seqs.get(token.seq as usize) else {
                return bad("seq", format!("below {}", self.seqs.len()), token.seq.to_string());
            };
            if token.pos >= seq.len {
                return bad("pos", format!("below {}", seq.len), token.pos.to_string());
            }
            if token.id as usize >= n_vocab {
                return bad("id", format!("below {n_vocab}"), token.id.to_string());
            }
            let pos = token.pos as usize;
            let row = seq.blocks[pos / KV_BLOCK] as usize * KV_BLOCK + pos % KV_BLOCK;
            words[at(0) + t] = token.id;
            words[at(1) + t] = token.seq;
            words[at(2) + t] = token.pos;
            words[at(3) + t] = row as u32;
            if token.output {
                words[at(4) + n_out] = t as u32;
                n_out += 1;
            }
        }
        words[2] = n_out as u32;
        Ok(())
    }
}

/// Reads the words of a batch; used by CPU kernels.
#[derive(Clone, Copy, Debug)]
pub struct BatchView<'a> {
    words: &'a [u32],
    shape: BatchShape,
}

impl<'a> BatchView<'a> {
    /// A view of `words`.
    ///
    /// # Panics
    /// If there are fewer words than `shape` needs.
    #[must_use]
    pub fn new(words: &'a [u32], shape: BatchShape) -> BatchView<'a> {
        assert!(words.len() >= shape.n_words(), "{} words for {shape:?}", words.len());
        BatchView { words, shape }
    }

    fn section(&self, section: usize) -> &'a [u32] {
        let start = HEADER + section * self.shape.max_tokens;
        &self.words[start..start + self.shape.max_tokens]
    }

    /// Number of tokens in this step.
    #[must_use]
    pub fn n_tokens(&self) -> usize {
        self.words[0] as usize
    }

    /// Number of sequences in this step.
    #[must_use]
    pub fn n_seqs(&self) -> usize {
        self.words[1] as usize
    }

    /// Number of tokens whose logits are computed.
    #[must_use]
    pub fn n_out(&self) -> usize {
        self.words[2] as usize
    }

    /// Vocabulary id of each token.
    #[must_use]
    pub fn ids(&self) -> &'a [u32] {
        self.section(0)
    }

    /// Sequence of each token ([`NO_SEQUENCE`] for padding).
    #[must_use]
    pub fn seqs(&self) -> &'a [u32] {
        self.section(1)
    }

    /// Position of each token.
    #[must_use]
    pub fn positions(&self) -> &'a [u32] {
        self.section(2)
    }

    /// Cache row of each token.
    #[must_use]
    pub fn kv_rows(&self) -> &'a [u32] {
        self.section(3)
    }

    /// Index in the step of each token whose logits are computed; [`BatchView::n_out`] are valid.
    #[must_use]
    pub fn outputs(&self) -> &'a [u32] {
        self.section(4)
    }

    /// Number of filled positions of each sequence after this step.
    #[must_use]
    pub fn lens(&self) -> &'a [u32] {
        let start = HEADER + 5 * self.shape.max_tokens;
        &self.words[start..start + self.shape.max_seqs]
    }

    /// The positions that token `t` attends to.
    #[must_use]
    pub fn visible_positions(&self, t: usize, window: Option<Window>) -> Range<usize> {
        let len = self.lens()[self.seqs()[t] as usize] as usize;
        Window::positions(window, self.positions()[t] as usize, len)
    }

    /// Cache row of position `pos` of sequence `seq`.
    #[must_use]
    pub fn kv_row(&self, seq: usize, pos: usize) -> usize {
        let tables = HEADER + 5 * self.shape.max_tokens + self.shape.max_seqs;
        let block = self.words[tables + seq * self.shape.max_blocks + pos / KV_BLOCK];
        block as usize * KV_BLOCK + pos % KV_BLOCK
    }
}

/// The keys and values of one layer's paged KV cache, or a property of each, such as their formats.
///
/// As tensors, `k` and `v` are `[n_blocks * KV_BLOCK, n_head_kv * d_head]` in one of
/// [`crate::op::KV_FORMATS`]. Their formats and `d_head` may differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KvCache<T> {
    /// Keys.
    pub k: T,
    /// Values.
    pub v: T,
}

impl<T> KvCache<T> {
    /// Keys and values with the same property.
    pub fn both(property: T) -> KvCache<T>
    where
        T: Clone,
    {
        KvCache { k: property.clone(), v: property }
    }

    /// The same cache with operands of another type.
    pub fn map<U>(&self, f: &mut dyn FnMut(&T) -> U) -> KvCache<U> {
        KvCache { k: f(&self.k), v: f(&self.v) }
    }
}

/// The rows of one layer's paged KV cache, as ops read and write them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KvRows<T> {
    /// Keys, `[n_blocks * KV_BLOCK, n_head_kv * d_head]`.
    pub k: T,
    /// Values, `[n_blocks * KV_BLOCK, n_head_kv * d_value]`; `None` if a value is the first values of
    /// its key, which a cache with one KV head allows (absorbed latent attention).
    pub v: Option<T>,
}

impl<T> KvRows<T> {
    /// The rows that hold the values.
    pub fn values(&self) -> &T {
        self.v.as_ref().unwrap_or(&self.k)
    }

    /// The tensors of the cache, each once.
    pub fn tensors(&self) -> impl Iterator<Item = &T> {
        [&self.k].into_iter().chain(&self.v)
    }

    /// The same rows with operands of another type.
    pub fn map<U>(&self, f: &mut dyn FnMut(&T) -> U) -> KvRows<U> {
        KvRows { k: f(&self.k), v: self.v.as_ref().map(f) }
    }
}

impl<T> From<KvCache<T>> for KvRows<T> {
    fn from(cache: KvCache<T>) -> KvRows<T> {
        KvRows { k: cache.k, v: Some(cache.v) }
    }
}
