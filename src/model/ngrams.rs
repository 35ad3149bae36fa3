//! Embeddings of n-grams (PLE of Qwen3.8-Flash-Next): a token and the tokens before it are hashed to
//! rows of a table, which one layer adds to its residual streams.

use hal::HostRows;

use super::hyper::Keys;
use super::layer::MapOperand;
use super::layers::LayerReader;
use super::reader::{MatrixStack, Reader, f32_matrix};
use super::{Affine, ArchSpec, Error, Hyper};

/// The table of a model's n-grams, and the hash of a token's rows in it.
#[derive(Clone, Debug)]
pub struct Ngrams {
    /// The layer that adds the embeddings.
    pub layer: usize,
    /// Number of tokens of the longest n-gram; the shortest one has 2.
    pub n: usize,
    /// Odd factors of the tokens in the hash, the token's own first, `[n]`.
    pub multipliers: Vec<u64>,
    /// The parts of the table, from each of which a hash selects one row. Every n-gram length has
    /// the same number of parts, in order of the lengths.
    pub heads: Vec<NgramHead>,
    /// The token that ends a text. N-grams do not reach back beyond it.
    pub eos: u32,
    /// `[n_rows, width]`. It stays in the file: a step reads the rows that its tokens select.
    pub table: HostRows,
}

/// A part of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NgramHead {
    /// Its first row.
    pub first: u32,
    /// Number of rows, at least 1.
    pub n_rows: u32,
}

/// Weights with which a layer adds the embedding `e` of a token's n-grams to its `n` residual streams, in
/// order: `key = key . e`, `value = value . e`, a gate for each stream from the product of its norm and
/// the key's, and a convolution over the gated values.
#[derive(Clone, Debug)]
pub struct NgramLayer<T = HostRows> {
    /// `[n * n_embd, width of e]`.
    pub key: Affine<T>,
    /// `[n_embd, width of e]`.
    pub value: Affine<T>,
    /// `[n, n_embd]`, F32: weights of the norms of keys and streams, multiplied, divided by
    /// `sqrt(n_embd)`. The product of a row and the normed values of a stream is the score of the stream.
    pub scores: T,
    /// `[n * n_embd, (k - 1) * dilation + 1]`, F32: a filter per channel, with zeros between its `k`
    /// taps, multiplied by the weight of the norm of its input.
    pub conv: T,
}

const LAYERS: &str = "ple.layers";
const SIZE: &str = "ple.ngram_size";
const HEADS: &str = "ple.heads_per_ngram";
const EOS: &str = "ple.eos_token_id";
const WIDTH: &str = "embedding_length_per_layer_input";
const MULTIPLIERS: &str = "ple.layer_multipliers";
const OFFSETS: &str = "ple.head_offsets";
const ROWS: &str = "ple.head_vocab_sizes";
const TABLE: &str = "per_layer_token_embd.weight";

/// Largest number of tokens of an n-gram, and of parts of the table, as in llama.cpp.
const MAX_SIZE: usize = 8;
const MAX_HEADS: usize = 64;

/// The layer that adds n-grams; `None` without one.
fn layer_of(keys: &Keys<'_>, n_layer: usize) -> Result<Option<usize>, Error> {
    let list = keys.metadata.u32_array(&keys.name(LAYERS))?.unwrap_or_default();
    match *list {
        [] => Ok(None),
        [layer] if (layer as usize) < n_layer => Ok(Some(layer as usize)),
        [layer] => Err(keys.wrong_key(LAYERS, format!("a layer below {n_layer}"), layer)),
        _ => Err(keys.wrong_key(LAYERS, "one layer", format!("{} layers", list.len()))),
    }
}

/// Number of tokens of the longest n-gram.
fn size(keys: &Keys<'_>) -> Result<usize, Error> {
    match keys.need(SIZE, "the number of tokens of the longest n-gram")? {
        n if (2..=MAX_SIZE).contains(&n) => Ok(n),
        n => Err(keys.wrong_key(SIZE, format!("2 to {MAX_SIZE}"), n)),
    }
}

/// A list of at least `n` numbers.
fn numbers(keys: &Keys<'_>, key: &str, n: usize) -> Result<Vec<u64>, Error> {
    match keys.metadata.u64_array(&keys.name(key))? {
        Some(list) if list.len() >= n => Ok(list[..n].to_vec()),
        Some(list) => {
            let found = format!("{} numbers", list.len());
            Err(keys.wrong_key(key, format!("{n} or more numbers"), found))
        }
        None => Err(keys.missing(key, "a list of numbers for the hash of n-grams")),
    }
}

impl Ngrams {
    /// Reads the table; `None` in models without one.
    pub(super) fn read(
        reader: &Reader<'_>,
        keys: &Keys<'_>,
        spec: &ArchSpec,
        hyper: &Hyper,
    ) -> Result<Option<Ngrams>, Error> {
        if !spec.ngrams {
            return Ok(None);
        }
        let Some(layer) = layer_of(keys, hyper.n_layer)? else { return Ok(None) };
        let n = size(keys)?;
        let per_size = keys.need(HEADS, "the number of rows that an n-gram selects")?;
        let n_heads = per_size.saturating_mul(n - 1);
        if n_heads > MAX_HEADS {
            let expected =
                format!("at most {}, for n-grams of 2 to {n} tokens", MAX_HEADS / (n - 1));
            return Err(keys.wrong_key(HEADS, expected, per_size));
        }
        let width = keys.need(WIDTH, "the width of a row of the table of n-grams")?;
        if width.saturating_mul(n_heads) != hyper.n_embd {
            let expected = format!("{}, for {n_heads} rows", hyper.n_embd / n_heads);
            return Err(keys.wrong_key(WIDTH, expected, width));
        }
        let eos = keys.metadata.u32(&keys.name(EOS))?;
        let eos = eos.ok_or_else(|| keys.missing(EOS, "the token that ends a text"))?;
        let n_rows = reader.n_rows(TABLE, width, "the rows of n-grams")?;
        Ok(Some(Ngrams {
            layer,
            n,
            multipliers: numbers(keys, MULTIPLIERS, n)?,
            heads: heads(keys, n_heads, n_rows)?,
            eos,
            table: reader.matrix(TABLE, n_rows, width)?,
        }))
    }

    /// Number of values of a token's embedding.
    #[must_use]
    pub fn width(&self) -> usize {
        self.heads.len() * self.table.desc().n_cols
    }

    /// Bytes of the table that a token reads.
    #[must_use]
    pub fn bytes_per_token(&self) -> usize {
        self.heads.len() * self.table.row_bytes()
    }

    /// Appends the rows that `tokens` select, [`Ngrams::heads`] rows per token. In their sequence,
    /// they follow the tokens `before`.
    pub fn select(&self, before: &[u32], tokens: &[u32], rows: &mut Vec<u32>) {
        let per_size = self.heads.len() / (self.n - 1);
        for at in 0..tokens.len() {
            // Missing tokens before the text, and all tokens of an earlier text, count as the end
            // token.
            let mut ended = false;
            let mut earlier = |distance: usize| {
                let token = match at.checked_sub(distance) {
                    Some(at) => Some(tokens[at]),
                    None => before.len().checked_sub(distance - at).map(|at| before[at]),
                };
                ended |= token.is_none_or(|token| token == self.eos);
                token.filter(|_| !ended).unwrap_or(self.eos)
            };
            let mut hash = u64::from(tokens[at]).wrapping_mul(self.multipliers[0]);
            for (distance, heads) in (1..self.n).zip(self.heads.chunks(per_size)) {
                let token = u64::from(earlier(distance));
                hash ^= token.wrapping_mul(self.multipliers[distance]);
                let row = |head: &NgramHead| (hash % u64::from(head.n_rows)) as u32 + head.first;
                rows.extend(heads.iter().map(row));
            }
        }
    }

    /// Writes the values of `rows` of the table to `out`, `[rows, n_cols of the table]`.
    ///
    /// # Errors
    /// Errors of reading the file.
    ///
    /// # Panics
    /// If a row is not in the table, or the lengths do not fit.
    pub fn values(&self, rows: &[u32], out: &mut [f32]) -> hal::Result<()> {
        let desc = self.table.desc();
        assert_eq!(out.len(), rows.len() * desc.n_cols, "a value for each column of each row");
        for (&row, out) in rows.iter().zip(out.chunks_exact_mut(desc.n_cols)) {
            let row = row as usize;
            desc.format.dequantize(&self.table.rows(row..row + 1)?, out);
        }
        Ok(())
    }
}

/// The parts of a table of `n_rows` rows.
fn heads(keys: &Keys<'_>, n: usize, n_rows: usize) -> Result<Vec<NgramHead>, Error> {
    let (offsets, sizes) = (numbers(keys, OFFSETS, n)?, numbers(keys, ROWS, n)?);
    let head = |(&first, &size): (&u64, &u64)| {
        if size == 0 {
            return Err(keys.wrong_key(ROWS, "numbers of at least 1", size));
        }
        let end = first.checked_add(size).filter(|&end| end <= n_rows as u64);
        match (end, u32::try_from(first), u32::try_from(size)) {
            (Some(_), Ok(first), Ok(n_rows)) => Ok(NgramHead { first, n_rows }),
            _ => {
                let expected = format!("parts of the table's {n_rows} rows");
                let found = format!("{size} rows after the first {first}");
                Err(keys.wrong_key(OFFSETS, expected, found))
            }
        }
    };
    offsets.iter().zip(&sizes).map(head).collect()
}

impl<T> NgramLayer<T> {
    pub(super) fn try_map<U, E>(
        &self,
        f: &mut MapOperand<'_, T, U, E>,
    ) -> Result<NgramLayer<U>, E> {
        Ok(NgramLayer {
            key: self.key.try_map("ple_key", f)?,
            value: self.value.try_map("ple_value", f)?,
            scores: f("ple_norm_key", &self.scores)?,
            conv: f("ple_conv1d", &self.conv)?,
        })
    }
}

impl LayerReader<'_> {
    /// Reads the weights that add n-grams; `None` in a layer without them.
    pub(super) fn ngrams(&self) -> Result<Option<Box<NgramLayer>>, Error> {
        const KERNEL: &str = "ple.conv_kernel";
        let keys = self.keys();
        if !self.layers.spec.ngrams || layer_of(keys, self.n_layer())? != Some(self.index()) {
            return Ok(None);
        }
        let kernel = match keys.need(KERNEL, "the number of taps of the convolution")? {
            1 => return Err(keys.wrong_key(KERNEL, "at least 2", 1)),
            kernel => kernel,
        };
        let (n, n_embd, dilation) = (self.n_streams()?, self.n_embd(), size(keys)?);
        let all = n * n_embd;
        let flat = |part: &str| self.flat(&format!("ple_{part}.weight"), all);
        let root = (n_embd as f32).sqrt();
        let scores = flat("norm_key")?.into_iter().zip(flat("norm_query")?);
        let scores: Vec<f32> = scores.map(|(key, query)| key * query / root).collect();
        let stack = MatrixStack { n: 1, rows: all, cols: kernel };
        let taps = self.layers.reader.stack_floats(&self.tensor("ple_conv1d.weight"), stack)?;
        let width = (kernel - 1) * dilation + 1;
        let mut conv = vec![0.0; all * width];
        let norm = flat("norm_conv")?;
        for ((filter, taps), weight) in
            conv.chunks_exact_mut(width).zip(taps.chunks_exact(kernel)).zip(norm)
        {
            for (to, tap) in filter.iter_mut().step_by(dilation).zip(taps) {
                *to = tap * weight;
            }
        }
        Ok(Some(Box::new(NgramLayer {
            key: self.affine("ple_key", all, n_embd)?,
            value: self.affine("ple_value", n_embd, n_embd)?,
            scores: f32_matrix(n, &scores),
            conv: f32_matrix(all, &conv),
        })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ngrams() -> Ngrams {
        let head = |first| NgramHead { first, n_rows: 100 };
        Ngrams {
            layer: 0,
            n: 3,
            multipliers: vec![1, 3, 5],
            heads: [0, 100, 200, 300].map(head).to_vec(),
            eos: 9,
            table: f32_matrix(400, &(0..800).map(|i| i as f32).collect::<Vec<_>>()),
        }
    }

    fn rows(before: &[u32], tokens: &[u32]) -> Vec<u32> {
        let mut rows = Vec::new();
        ngrams().select(before, tokens, &mut rows);
        rows
    }

    #[test]
    fn rows_depend_on_the_tokens_before() {
        // 7 ^ 3 * 4 = 11, 11 ^ 5 * 2 = 1.
        let expected = [11, 111, 201, 301];
        assert_eq!(rows(&[2, 4], &[7]), expected);
        assert_eq!(rows(&[1, 2], &[4, 7])[4..], expected);
        assert_eq!(rows(&[], &[2, 4, 7])[8..], expected);
        // A cut anywhere selects the same rows.
        let tokens = [3, 9, 4, 4, 1, 9, 9, 2, 8, 0, 5];
        for cut in 0..tokens.len() {
            let (before, rest) = tokens.split_at(cut);
            assert_eq!(rows(before, rest), rows(&[], &tokens)[4 * cut..], "{cut}");
        }
    }

    #[test]
    fn the_end_of_a_text_ends_ngrams() {
        assert_eq!(rows(&[], &[7]), rows(&[9, 9], &[7]));
        // The tokens up to the last end count as ends.
        assert_eq!(rows(&[5, 9], &[7]), rows(&[], &[7]));
        assert_eq!(rows(&[9, 4], &[7]), rows(&[], &[4, 7])[4..]);
        // An end's own n-grams have the tokens before it: 9 ^ 3 * 4 = 5, 5 ^ 5 * 2 = 15.
        assert_eq!(rows(&[2, 4], &[9]), [5, 105, 215, 315]);
    }

    #[test]
    fn hashes_wrap() {
        let mut rows = Vec::new();
        let multipliers = vec![u64::MAX, 1 << 63, 3];
        Ngrams { multipliers, ..ngrams() }.select(&[1, 1], &[u32::MAX], &mut rows);
        let two = u64::from(u32::MAX).wrapping_neg() ^ 1 << 63;
        let three = two ^ 3;
        let expected =
            [two % 100, 100 + two % 100, 200 + three % 100, 300 + three % 100].map(|n| n as u32);
        assert_eq!(rows, expected);
    }

    #[test]
    fn values_are_those_of_the_rows() {
        let mut out = [0.0; 6];
        ngrams().values(&[3, 399, 0], &mut out).unwrap();
        assert_eq!(out, [6.0, 7.0, 798.0, 799.0, 0.0, 1.0]);
    }
}
