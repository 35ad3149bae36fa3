//! Data that layers keep between steps: KV caches and recurrent states.

use hal::format::Format;
use hal::op::block_rows;
use hal::{Bytes, HostRows, KV_BLOCK, KvRows, Operand, TensorDesc};

use model::{Attention, BlockKeys, Kv, LayerWeights, Mamba2, Mixer};

use super::compressed;
use crate::options::EngineOptions;

/// Per-sequence data that a layer keeps between steps.
#[derive(Clone, Debug)]
pub(crate) struct Memory<T> {
    /// Keys and values, or latent vectors, of every position; `None` in a layer without attention.
    pub(crate) cache: Option<Cache<T>>,
    /// The indexer's cache. Its keys are the indexer's key of every position. If the indexer
    /// selects blocks, its keys are those of the blocks, and its values the keys and gates of the
    /// positions. `None` in a layer without an indexer.
    pub(crate) index: Option<KvRows<T>>,
    /// Compressed keys of blocks: the rows of the layer's own cache after those of positions. `None` in
    /// a layer without them.
    pub(crate) compressed: Option<KvRows<T>>,
    /// Recurrent states, `[n_seq + n_checkpoint, width]` each. Row `i` belongs to sequence `i` of
    /// the batch; the rows from `n_seq` on hold checkpoints. Empty in a layer without recurrence.
    pub(crate) states: Vec<T>,
    /// The last inputs of the convolution over n-grams, rows as in `states`; `None` in a layer without
    /// n-grams.
    pub(crate) ngrams: Option<T>,
}

/// The KV cache of a layer.
#[derive(Clone, Debug)]
pub(crate) enum Cache<T> {
    /// The layer's own.
    Own(KvRows<T>),
    /// An earlier layer's, which this layer only reads.
    Shared(KvRows<T>),
}

impl<T> Memory<T> {
    /// The KV cache that the layer attends to: its own cache or an earlier layer's; `None` in
    /// layers without attention.
    pub(crate) fn kv(&self) -> Option<&KvRows<T>> {
        match &self.cache {
            Some(Cache::Own(cache) | Cache::Shared(cache)) => Some(cache),
            None => None,
        }
    }

    pub(crate) fn own_kv(&self) -> Option<&KvRows<T>> {
        match &self.cache {
            Some(Cache::Own(cache)) => Some(cache),
            Some(Cache::Shared(_)) | None => None,
        }
    }

    /// Number of KV blocks of the layer's own cache.
    pub(crate) fn n_blocks(&self) -> usize
    where
        T: Operand,
    {
        let rows = |cache: &KvRows<T>| cache.k.desc().n_rows;
        let compressed = self.compressed.as_ref().map_or(0, rows);
        (self.own_kv().map_or(0, rows) - compressed) / KV_BLOCK
    }

    /// The tensors of recurrent state, of the mixer and of n-grams.
    pub(crate) fn all_states(&self) -> impl Iterator<Item = &T> {
        self.states.iter().chain(&self.ngrams)
    }

    /// The tensors to allocate for the layer. An earlier layer's cache is not included.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = &T> {
        let blocks = self.own_kv().into_iter().chain(&self.index).flat_map(KvRows::tensors);
        blocks.chain(self.all_states())
    }
}

pub(crate) fn shapes(layer: &LayerWeights) -> Mixer<TensorDesc> {
    layer.frame.map(&mut HostRows::desc).mixer
}

/// The per-sequence data of `layer`.
pub(crate) fn of_layer(layer: &LayerWeights, options: &EngineOptions) -> Memory<TensorDesc> {
    let mixer = &shapes(layer);
    let formats = options.kv_formats;
    let blocks = mixer.attention().and_then(Attention::blocks);
    let cache = mixer.attention().map(|Attention { sizes, kv, .. }| {
        let KvRows { k, v } = sizes.cached();
        let rows = compressed::cache_rows(blocks, options.n_blocks());
        let cache = KvRows {
            k: TensorDesc::new(rows, k, formats.k),
            v: v.map(|n_cols| TensorDesc::new(rows, n_cols, formats.v)),
        };
        match kv {
            Kv::Direct { .. } | Kv::Latent(_) | Kv::Single(_) => Cache::Own(cache),
            Kv::Shared { .. } => Cache::Shared(cache),
        }
    });
    let per_block = blocks.map_or(KV_BLOCK, |by| block_rows(by.ratio));
    let rows = options.n_blocks() * per_block;
    let of = |n_cols| TensorDesc::new(rows, n_cols, index_format(formats.k));
    let index = mixer.attention().and_then(Attention::indexer).map(|indexer| {
        let is_gated = matches!(indexer.blocks, Some(BlockKeys::Gated(_)));
        let v = is_gated.then(|| of(2 * indexer.d_head));
        KvRows { k: of(indexer.d_head), v }
    });
    let of_blocks = blocks.and_then(|by| by.indexer.as_ref());
    let index = index.or(of_blocks.map(|by| KvRows { k: of(by.d_head), v: None }));
    let own = cache.as_ref().zip(blocks);
    let compressed = own.map(|(Cache::Own(cache) | Cache::Shared(cache), _)| KvRows {
        k: TensorDesc { n_rows: rows, ..cache.k },
        v: None,
    });
    let rows = options.n_seq + options.n_checkpoint;
    let state = |width| TensorDesc::new(rows, width, Format::F32);
    let states = state_widths(mixer).into_iter().map(state).collect();
    Memory { cache, index, compressed, states, ngrams: ngram_width(layer).map(state) }
}

/// Number of inputs of the convolution `weight` that a sequence keeps.
fn conv_width(weight: &TensorDesc) -> usize {
    (weight.n_cols - 1) * weight.n_rows
}

fn ngram_width(layer: &LayerWeights) -> Option<usize> {
    layer.frame.ngrams.as_ref().map(|by| conv_width(&by.conv.desc()))
}

/// The format of the indexer's keys in a cache with keys in `keys`: the same, or F16 if that is
/// quantised, because rounding would change the selected positions.
#[must_use]
pub fn index_format(keys: Format) -> Format {
    if keys.quants().is_some() { Format::F16 } else { keys }
}

/// Bytes of the recurrent state of one sequence in `layer`; 0 in a layer without recurrence.
#[must_use]
pub fn state_bytes(layer: &LayerWeights) -> Bytes {
    let mixer = state_widths(&shapes(layer)).into_iter();
    let values: usize = mixer.chain(ngram_width(layer)).sum();
    Bytes(4 * values as u64)
}

/// Number of values of each recurrent state of one sequence.
fn state_widths(mixer: &Mixer<TensorDesc>) -> Vec<usize> {
    let conv = conv_width;
    let mamba2 = |by: &Mamba2<TensorDesc>| {
        let filters = [&by.x_conv, &by.b_conv, &by.c_conv].map(|filter| conv(&filter.w));
        let scan = by.sizes.d_inner * by.sizes.d_state;
        filters.into_iter().chain([scan]).collect()
    };
    match mixer {
        Mixer::None => Vec::new(),
        // The indexer's last keys, whose mean it computes.
        Mixer::Attention(Attention { kv: Kv::Single(by), .. }) => {
            by.blocks.as_ref().map_or_else(Vec::new, |by| compressed::state_widths(by))
        }
        Mixer::Attention(by) => match by.indexer().and_then(|indexer| indexer.blocks.as_ref()) {
            Some(BlockKeys::Mean(by)) => vec![conv(&by.mean)],
            Some(BlockKeys::Gated(_)) | None => Vec::new(),
        },
        Mixer::ShortConv(by) => vec![conv(&by.conv)],
        Mixer::GatedDelta(by) => {
            let sizes = &by.sizes;
            let delta = sizes.n_head_v * sizes.d_k * sizes.d_v;
            vec![conv(&by.q_conv), conv(&by.k_conv), conv(&by.v_conv), delta]
        }
        Mixer::Mamba1(by) => vec![conv(&by.x_conv.w), by.sizes.d_inner * by.sizes.d_state],
        Mixer::Mamba2(by) => mamba2(by),
        Mixer::Rwkv6(by) => {
            let wkv = by.n_head * by.d_head * by.d_head;
            by.shifts().map(conv).chain([wkv]).collect()
        }
        Mixer::Rwkv7(by) => {
            let wkv = by.n_head * by.d_head * by.d_head;
            by.shifts().map(conv).chain([wkv]).collect()
        }
        Mixer::Parallel { mamba, .. } => mamba2(mamba),
    }
}
