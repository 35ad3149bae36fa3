//! Attention with one KV head whose values are its keys (DeepSeek-V4): over a sliding window, and
//! over compressed keys of the blocks before it.

use std::sync::Arc;

use hal::HostRows;
use hal::op::Window;

use super::attention::{Attention, AttentionSizes, HeadNorm, Kv, LowRank, OutputGate};
use super::indexer::TOP_K;
use super::layer::MapOperand;
use super::layers::LayerReader;
use super::reader::f32_matrix;
use super::{Affine, Error, Mixer};

/// The keys of such a layer, and its output. RoPE is applied to the last values of a head.
#[derive(Clone, Debug)]
pub struct SingleKv<T = HostRows> {
    /// `[d_head, n_embd]`: the key, which is also the value.
    pub kv: Affine<T>,
    /// `[1, d_head]`: norm of the key.
    pub norm: Affine<T>,
    /// `[1, n_rot / 2]`, F32: frequencies of RoPE, negated. Because values are rotated keys, RoPE
    /// with these frequencies rotates the heads' outputs back.
    pub back: T,
    /// Number of groups of heads.
    pub n_group: usize,
    /// `[n_group * rank, n_head / n_group * d_head]`: for each group, computes the input of
    /// [`Attention::o`].
    pub out: T,
    /// The compressed keys; `None` in a layer that attends only to its window.
    pub blocks: Option<Box<CompressedBlocks<T>>>,
}

/// Keys of blocks of positions, to which a token attends in addition to its window.
#[derive(Clone, Debug)]
pub struct CompressedBlocks<T = HostRows> {
    /// Number of positions of a block.
    pub ratio: usize,
    /// Computes the keys.
    pub keys: Compressor<T>,
    /// Selects blocks; `None` if a token attends to all of them.
    pub indexer: Option<BlockIndexer<T>>,
}

/// Computes a key for each block, see [`hal::op::CompressKeys`].
#[derive(Clone, Debug)]
pub struct Compressor<T = HostRows> {
    /// `[w, n_embd]`: values; `w` is the width of a key, or twice as much if blocks overlap.
    pub values: Affine<T>,
    /// `[w, n_embd]`: gates.
    pub gates: Affine<T>,
    /// `[ratio, w]`, F32: added to the gates.
    pub ape: T,
    /// `[1, d]`, F32: norm of the keys.
    pub norm: T,
}

/// A lightning indexer with compressed keys of its own.
///
/// llama.cpp multiplies queries and keys by a Hadamard matrix, which makes keys easier to quantise and
/// does not change their products. Here, keys are not quantised.
#[derive(Clone, Debug)]
pub struct BlockIndexer<T = HostRows> {
    /// Number of query heads.
    pub n_head: usize,
    /// Number of values of a query head, and of a key.
    pub d_head: usize,
    /// Maximum number of blocks that a token selects.
    pub top_k: usize,
    /// `[n_head * d_head, rank]`: queries, from the input of attention's query matrix.
    pub q: Affine<T>,
    /// `[n_head, n_embd]`: weights of the heads.
    pub weights: Affine<T>,
    /// Computes the keys.
    pub keys: Compressor<T>,
}

/// Blocks of this many positions overlap, and an indexer selects them.
const OVERLAPPING: usize = 4;

/// Blocks of this many positions do not overlap, and tokens attend to all of them.
const LONG: usize = 128;

/// Key of the number of positions of a block in each layer; 0 in a layer without compressed keys.
const RATIOS: &str = "attention.compress_ratios";

impl<T> Compressor<T> {
    /// The names of the parts of `self` in `f` are `names`.
    fn try_map<U, E>(
        &self,
        names: [&'static str; 4],
        f: &mut MapOperand<'_, T, U, E>,
    ) -> Result<Compressor<U>, E> {
        let [values, gates, ape, norm] = names;
        Ok(Compressor {
            values: self.values.try_map(values, f)?,
            gates: self.gates.try_map(gates, f)?,
            ape: f(ape, &self.ape)?,
            norm: f(norm, &self.norm)?,
        })
    }
}

impl<T> CompressedBlocks<T> {
    /// Maximum number of blocks that a token attends to, in sequences of `n_positions`.
    #[must_use]
    pub fn n_selected(&self, n_positions: usize) -> usize {
        let all = n_positions / self.ratio;
        self.indexer.as_ref().map_or(all, |indexer| all.min(indexer.top_k))
    }

    /// The indexer, if there are more blocks than it selects in sequences of `n_positions`.
    #[must_use]
    pub fn selecting(&self, n_positions: usize) -> Option<&BlockIndexer<T>> {
        self.indexer.as_ref().filter(|indexer| n_positions / self.ratio > indexer.top_k)
    }

    fn try_map<U, E>(&self, f: &mut MapOperand<'_, T, U, E>) -> Result<CompressedBlocks<U>, E> {
        const KEYS: [&str; 4] = [
            "attn_compressor_kv",
            "attn_compressor_gate",
            "attn_compressor_ape",
            "attn_compressor_norm",
        ];
        const INDEX: [&str; 4] = [
            "indexer_compressor_kv",
            "indexer_compressor_gate",
            "indexer_compressor_ape",
            "indexer_compressor_norm",
        ];
        let keys = self.keys.try_map(KEYS, f)?;
        let indexer = match &self.indexer {
            Some(by) => Some(BlockIndexer {
                n_head: by.n_head,
                d_head: by.d_head,
                top_k: by.top_k,
                q: by.q.try_map("indexer.attn_q_b", f)?,
                weights: by.weights.try_map("indexer.proj", f)?,
                keys: by.keys.try_map(INDEX, f)?,
            }),
            None => None,
        };
        Ok(CompressedBlocks { ratio: self.ratio, keys, indexer })
    }
}

impl<T> SingleKv<T> {
    pub(super) fn try_map<U, E>(&self, f: &mut MapOperand<'_, T, U, E>) -> Result<SingleKv<U>, E> {
        Ok(SingleKv {
            kv: self.kv.try_map("attn_kv", f)?,
            norm: self.norm.try_map("attn_kv_a_norm", f)?,
            back: f("rope_back", &self.back)?,
            n_group: self.n_group,
            out: f("attn_output_a", &self.out)?,
            blocks: match &self.blocks {
                Some(by) => Some(Box::new(by.try_map(f)?)),
                None => None,
            },
        })
    }
}

impl LayerReader<'_> {
    /// Reads attention with one KV head whose values are its keys.
    ///
    /// # Errors
    /// [`Error`]: missing or wrong keys and tensors.
    pub(super) fn single_kv(&self) -> Result<Mixer, Error> {
        const WINDOW: &str = "attention.sliding_window";
        const GROUPS: &str = "attention.output_group_count";
        const RANK: &str = "attention.output_lora_rank";
        let (keys, n_embd) = (self.keys(), self.n_embd());
        let sizes = self.sizes();
        let AttentionSizes { n_head, n_head_kv, d_head, n_rot, .. } = sizes;
        if n_head_kv != 1 {
            return Err(keys.wrong_key("attention.head_count_kv", "1 in each layer", n_head_kv));
        }
        if sizes.d_value != d_head {
            return Err(keys.wrong_key("attention.value_length", d_head, sizes.d_value));
        }
        let n_group = keys.need(GROUPS, "the number of groups of attention's output")?;
        if !n_head.is_multiple_of(n_group) {
            let expected = format!("a divisor of the {n_head} heads");
            return Err(keys.wrong_key(GROUPS, expected, n_group));
        }
        let rank = keys.need(RANK, "the width of a group of attention's output")?;
        let window = keys.need(WINDOW, "the number of positions of the window")?;
        let q_rank = self.n_rows("attn_q_a.weight", n_embd)?;
        let blocks = self.compressed_blocks(&sizes, q_rank)?;
        let ropes = &self.layers.ropes;
        let rope = if blocks.is_some() { &ropes.global } else { &ropes.local };
        let freqs = rope.freqs(0);
        if rope.freqs(usize::MAX) != freqs {
            let expected = "no long factors of RoPE (LongRoPE)";
            return Err(keys.wrong_key("rope.dimension_count", expected, n_rot));
        }
        if 2 * freqs.len() != n_rot {
            let expected = format!("{n_rot}, as in layers with compressed keys");
            return Err(keys.wrong_key("rope.dimension_count_swa", expected, 2 * freqs.len()));
        }
        let back: Vec<f32> = freqs.iter().map(|freq| -freq).collect();
        let width = n_group * rank;
        Ok(Mixer::Attention(Attention {
            rope: Some(Arc::clone(rope)),
            q_a: Some(LowRank {
                a: self.affine("attn_q_a", q_rank, n_embd)?,
                norm: self.norm("attn_q_a_norm", q_rank)?,
            }),
            q: self.affine("attn_q_b", sizes.n_q(), q_rank)?,
            gate: OutputGate::None,
            q_norm: Some(HeadNorm {
                by: Affine { w: self.constant(1.0, d_head), bias: None },
                width: d_head,
            }),
            kv: Kv::Single(Box::new(SingleKv {
                kv: self.affine("attn_kv", d_head, n_embd)?,
                norm: self.norm("attn_kv_a_norm", d_head)?,
                back: f32_matrix(1, &back),
                n_group,
                out: self.matrix("attn_output_a.weight", width, sizes.n_q() / n_group)?,
                blocks,
            })),
            sparse: None,
            k_norm: None,
            norms_after_rope: false,
            v_normed: false,
            slopes: None,
            sinks: Some(f32_matrix(1, &self.flat("attn_sinks.weight", n_head)?)),
            o: self.affine("attn_output_b", n_embd, width)?,
            sizes: AttentionSizes { window: Some(Window::Sliding(window)), ..sizes },
        }))
    }

    /// Number of positions of a block of the layer. Published files also list the layers for
    /// multi-token prediction, whose tensors they lack.
    fn ratio(&self) -> Result<usize, Error> {
        let (keys, n) = (self.keys(), self.n_listed());
        match keys.metadata.u32_array(&keys.name(RATIOS))? {
            None => Err(keys.missing(RATIOS, "the number of positions of a block in each layer")),
            Some(list) if list.len() < n => {
                let found = format!("{} numbers", list.len());
                Err(keys.wrong_key(RATIOS, format!("a number for each of the {n} layers"), found))
            }
            Some(list) => Ok(list[self.index()] as usize),
        }
    }

    /// Reads the compressed keys of the layer; `None` in a layer without them.
    fn compressed_blocks(
        &self,
        sizes: &AttentionSizes,
        q_rank: usize,
    ) -> Result<Option<Box<CompressedBlocks>>, Error> {
        const HEADS: &str = "attention.indexer.head_count";
        const LENGTH: &str = "attention.indexer.key_length";
        let (keys, n_embd) = (self.keys(), self.n_embd());
        let ratio = self.ratio()?;
        let compressor = |part: &str, width: usize, d: usize| -> Result<Compressor, Error> {
            let ape = self.flat(&format!("{part}_ape.weight"), ratio * width)?;
            Ok(Compressor {
                values: self.affine(&format!("{part}_kv"), width, n_embd)?,
                gates: self.affine(&format!("{part}_gate"), width, n_embd)?,
                ape: f32_matrix(ratio, &ape),
                norm: self.norm(&format!("{part}_norm"), d)?.w,
            })
        };
        let d = sizes.d_head;
        let (width, indexer) = match ratio {
            0 => return Ok(None),
            LONG => (d, None),
            OVERLAPPING => {
                let n_head = keys.need(HEADS, "the number of the indexer's heads")?;
                let d_head = keys.need(LENGTH, "the number of values of the indexer's keys")?;
                if d_head < sizes.n_rot {
                    let expected =
                        format!("at least the {} values that RoPE is applied to", sizes.n_rot);
                    return Err(keys.wrong_key(LENGTH, expected, d_head));
                }
                let top_k = keys.need(TOP_K, "the number of blocks that a token attends to")?;
                let indexer = BlockIndexer {
                    n_head,
                    d_head,
                    top_k,
                    q: self.affine("indexer.attn_q_b", n_head * d_head, q_rank)?,
                    weights: self.affine("indexer.proj", n_head, n_embd)?,
                    keys: compressor("indexer_compressor", 2 * d_head, d_head)?,
                };
                (2 * d, Some(indexer))
            }
            other => {
                let expected = format!("0, {OVERLAPPING} or {LONG} for each layer");
                return Err(keys.wrong_key(RATIOS, expected, other));
            }
        };
        let keys = compressor("attn_compressor", width, d)?;
        Ok(Some(Box::new(CompressedBlocks { ratio, keys, indexer })))
    }
}
